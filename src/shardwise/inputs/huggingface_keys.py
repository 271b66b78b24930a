"""The keys of a Hugging Face config, remembering which were read."""

from __future__ import annotations

from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.inputs.huggingface_families import ALIASES

_FLATTENED = ("attn_config", "ffn_config")
_HIGHEST = {"layers": 10_000, "mtp": 100}
"""No model is near these; they keep a typing error from filling the memory."""

_NEVER_ZERO = frozenset({"layers", "hidden", "heads", "vocab"})


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

    def whole(self, *names: str, lowest: int = 0, highest: int = 10**10) -> int | None:
        """The first of these keys as a whole number."""
        value = self.get(*names)
        if value is None:
            return None
        name = next(name for name in names if self.data.get(name) is not None)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(Fault(name, f"must be a whole number, not {value!r}"))
        if not lowest <= value <= highest:
            said = value if abs(value) < 10**30 else "a number of more than 30 digits"
            raise InputError(Fault(name, f"is {said}; it must be from {lowest} to {highest:,}"))
        return value

    def concept(self, name: str) -> int | None:
        """A number of ours by any of its spellings."""
        lowest = 1 if name in _NEVER_ZERO else 0
        return self.whole(*ALIASES[name], lowest=lowest, highest=_HIGHEST.get(name, 10**10))

    def items(self, name: str) -> list[Any]:
        """A list; empty where the key is not there."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise InputError(Fault(name, f"must be a list, not {value!r}"))
        return value or []
