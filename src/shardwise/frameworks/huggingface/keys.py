"""The keys of a Hugging Face config, remembering which were read."""

from __future__ import annotations

from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.frameworks.huggingface.families import ALIASES
from shardwise.inputs import gate
from shardwise.inputs.scalars import SCALARS

_FLATTENED = ("attn_config", "ffn_config")
_ROWS = {
    "experts": "Moe.first_dense",  # 0 and 1 are how dense models say that they have none
    "top_k": "foreign.none",
    "expert_ffn": "Moe.shared_ffn",
    "shared_count": "foreign.none",
    "shared_ffn": "Moe.shared_ffn",
    "first_dense": "Moe.first_dense",
    "every": "Moe.first_dense",
    "kv_heads": "foreign.none",
    "head_size": "foreign.none",
}
"""Concept -> its row, where that is not `Model.<concept>`; 0 is how many files say "none"."""


class Keys:
    """The keys of a config, the two nested tables of MPT and DBRX laid flat."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = dict(data)
        for nested in _FLATTENED:
            if isinstance(data.get(nested), dict):
                self.data = {**data[nested], **self.data}
        self.read: set[str] = set(_FLATTENED) & data.keys()
        self.given = {name for name, value in self.data.items() if value is not None}

    def get(self, *names: str) -> Any:  # noqa: ANN401 - a file can hold anything
        """The first of these keys that is there and not null."""
        for name in names:
            if self.data.get(name) is not None:
                self.read.add(name)
                return self.data[name]
        return None

    def passed(self, *names: str) -> None:
        """These keys are known and change nothing here."""
        self.read |= self.data.keys() & set(names)

    def whole(self, *names: str, row: str = "foreign.none") -> int | None:
        """The first of these keys as a whole number."""
        value = self.get(*names)
        return None if value is None else int(gate.held(value, SCALARS[row], self._first(names)))

    def number(self, *names: str, row: str) -> float | None:
        """The first of these keys as a number."""
        value = self.get(*names)
        return None if value is None else gate.held(value, SCALARS[row], self._first(names))

    def word(self, known: tuple[str, ...], *names: str) -> str | None:
        """The first of these keys where it is a known word; else it counts as not read."""
        for name in names:
            if self.data.get(name) in known:
                return str(self.get(name))
        return None

    def switch(self, *names: str) -> bool | None:
        """The first of these keys as true or false: a text such as "false" is neither."""
        value = self.get(*names)
        return None if value is None else gate.switch(value, self._first(names))

    def _first(self, names: tuple[str, ...]) -> str:
        return next(name for name in names if self.data.get(name) is not None)

    def concept(self, name: str) -> int | None:
        """A number of ours by any of its spellings."""
        return self.whole(*ALIASES[name], row=_ROWS.get(name, f"Model.{name}"))

    def items(self, name: str) -> list[Any]:
        """A list; empty where the key is not there."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise InputError(Fault(name, f"must be a list, not {value!r}"))
        return value or []
