"""What comes out of another framework's file, and the draft that it is gathered in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.inputs.gate import held, typed, word
from shardwise.inputs.model import Model
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import V_SCHEDULES, Strategy
from shardwise.inputs.strategy_text import Given


@dataclass(frozen=True, slots=True, kw_only=True)
class Understanding:
    """What was made of a file, a line each."""

    understood: tuple[str, ...]
    """Their setting = our field."""
    assumed: tuple[str, ...]
    """What the file leaves open, and what was taken."""
    ignored: tuple[str, ...]
    """Settings without effect on a plan, or not understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A strategy, and where possible the model and the number of GPUs, from a framework's file."""

    framework: str
    """megatron, torchtitan, mindformers, deepspeed or huggingface."""
    strategy: Strategy
    """The strategy; fields that are not in `given` hold defaults."""
    given: frozenset[str]
    """Fields of the strategy that the file decides."""
    gpus: int | None
    """GPUs, where the file says."""
    model: Model | None
    """The model, where the file describes it."""
    understanding: Understanding
    """What was made of the file."""
    microbatches: int | None = None
    """Passes per replica, where the file leaves the global batch to the number of replicas."""
    order: str = ""
    """The file beside it that orders the passes, where it names one."""

    @property
    def fields(self) -> Given:
        """The fields that the file decides, for `complete`."""
        given = {name: getattr(self.strategy, name) for name in self.given}
        if self.microbatches is not None:  # the global batch follows from dp, which the cluster may still change
            given.pop("global_batch", None)
            given["microbatches"] = self.microbatches
        return given


@dataclass(slots=True, kw_only=True)
class ImportDraft:
    """Gathers the fields of a strategy while a file is read."""

    framework: str
    fields: dict[str, Any] = field(default_factory=dict)
    understood: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    gpus: int | None = None
    model: Model | None = None
    microbatches: int | None = None
    order: str = ""
    guesses: set[str] = field(default_factory=set)
    """Fields that the file does not decide."""

    def take(self, ours: str, value: Any, theirs: str) -> None:  # noqa: ANN401 - fields have many types
        """Set a field of ours from a setting of theirs."""
        self.fields[ours] = value
        self.understood.append(f"{theirs} -> {ours} {value}")

    def assume(self, ours: str, value: Any, why: str) -> None:  # noqa: ANN401
        """Set a field that the file leaves open."""
        self.fields[ours] = value
        self.guesses.add(ours)
        self.assumed.append(f"{ours} {value}: {why}")

    def assume_batch(self, microbatches: int, why: str) -> None:
        """A global batch of so many micro batches a replica; a number only once dp is known."""
        self.microbatches = microbatches
        if "dp" in self.fields:
            self.assume("global_batch", microbatches * self.number("micro_batch") * self.number("dp"), why)
        else:
            self.assumed.append(f"global_batch {microbatches * self.number('micro_batch')} x dp: {why}")

    def whole(self, theirs: str, value: Any, *, row: str = "foreign.count") -> int | None:  # noqa: ANN401
        """A whole number from a text or a number, or a fault."""
        try:
            read = typed if isinstance(value, str) else held
            return int(read(value, SCALARS[row], theirs))
        except InputError as error:
            self.faults += error.faults
            return None

    def take_whole(self, ours: str, theirs: str, value: Any) -> int | None:  # noqa: ANN401
        """Set a number of ours, in its own range."""
        number = self.whole(theirs, value, row=f"Strategy.{ours}")
        if number is not None:
            self.take(ours, number, theirs)
        return number

    def word(self, theirs: str, value: Any, choices: Iterable[str]) -> str:  # noqa: ANN401
        """One of some words, or a fault and the first of them."""
        allowed = list(choices)
        try:
            return word(value, allowed, theirs)
        except InputError as error:
            self.faults += error.faults
            return allowed[0]

    def number(self, ours: str, default: int = 1) -> int:
        value = self.fields.get(ours, default)
        return value if isinstance(value, int) else default

    def derive_dp(self) -> None:
        """Data parallel from the number of GPUs, where both are known."""
        inner = self.number("tp") * self.number("pp") * self.number("cp")
        if self.gpus is None or "dp" in self.fields:
            return
        if self.gpus % inner:  # whether the GPUs of the question do is told by `check`
            self.assumed.append(f"dp is left open: {self.gpus} GPUs are no multiple of tp x pp x cp = {inner}")
            return
        self.assume("dp", self.gpus // inner, f"{self.gpus} GPUs / {inner}")

    def _whole(self) -> dict[str, Any]:
        if self.microbatches is None or "global_batch" in self.fields:
            return self.fields
        return {**self.fields, "global_batch": self.microbatches * self.number("micro_batch")}

    def finish(self, title: str) -> Imported:
        if self.faults:
            raise InputError(self.faults, title=title)
        if self.fields.get("schedule") in V_SCHEDULES:
            self.fields["placement"] = "v"
        return Imported(
            framework=self.framework,
            strategy=Strategy(**self._whole()),
            given=frozenset(self.fields),
            gpus=self.gpus,
            model=self.model,
            microbatches=self.microbatches,
            order=self.order,
            understanding=Understanding(
                understood=tuple(self.understood), assumed=tuple(self.assumed), ignored=tuple(self.ignored)
            ),
        )


def back(table: Mapping[str, str]) -> dict[str, str]:
    """Their word to ours; of two of ours with one name, the first in the table is meant."""
    return {theirs: ours for ours, theirs in reversed(list(table.items()))}
