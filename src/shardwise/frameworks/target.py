"""What an exporter is made of: a draft that it bends to what the target can say, and the files that come out.

An exporter goes over the plan once and calls `lose` wherever the target cannot say something but can say something
near it, and `refuse` where there is nothing near; `settle` then tells all of it at once or lets the files be written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shardwise.errors import Fault, InfeasibleError, ShardwiseError
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.estimate.predictions import show_limit
from shardwise.frameworks.partition import planned
from shardwise.inputs.layers import spread
from shardwise.inputs.load import is_file, load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.strategy import Strategy
from shardwise.pipeline.action import Schedule
from shardwise.plan.file import plan_id
from shardwise.plan.plan import Plan
from shardwise.plan.predict import estimate_of
from shardwise.units import show_bytes, show_percent, show_seconds
from shardwise.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of an export."""

    name: str
    """Its name in the folder."""
    text: str
    """What it holds."""
    program: bool = False
    """Whether it is meant to be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A framework that plans are written for."""

    name: str
    """What `--to` calls it."""
    title: str
    """What people call it."""
    versions: dict[str, str] = field(hash=False)
    """Version as `@` gives it -> what exactly was read to write for it; the first is the default."""
    module: str
    """The module whose `write` makes the files."""
    runtime: str = ""
    """The runtime of our catalog that predicts it."""
    settings: tuple[str, ...] = ()
    """Values laid over a runtime (`megatron+kernels.loss=fused`) that its files say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The files of a plan for one target, and what they do not say."""

    target: str
    """Name and version, such as `megatron@main`."""
    speaks: str
    """The version of the target in words."""
    plan: str
    """Id of the plan."""
    files: tuple[File, ...]
    """The files."""
    losses: tuple[Fault, ...] = ()
    """What the target cannot say, what is written instead, and what that costs."""
    by_hand: tuple[str, ...] = ()
    """What must be set elsewhere: in a program, on a command line."""
    prediction: str = "nothing; there is no plan"
    """What the plan promises, in a line."""
    as_written: str = ""
    """What the files promise, in a line: they are read back and estimated; empty where that cannot be."""
    runtime: str = ""
    """What the target's own kernels and overlaps change beside what is lost; empty where they are planned."""
    strategy: Strategy | None = None
    """What the files say, on the target's runtime; the plan's own where nothing was lost. None: a schedule alone, no
    plan, or operators with splits of their own."""
    shape: str = ""
    """What the files of a per-operator plan say, in a line."""


@dataclass(kw_only=True)
class ExportDraft:
    """A plan on its way to a target."""

    plan: Plan
    target: Target
    version: str
    strict: bool = False
    launcher: str = "torchrun"
    """What the job is started by."""
    strategy: Strategy = field(init=False)
    losses: list[Fault] = field(default_factory=list)
    refusals: list[Fault] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)
    written: Estimate | None = None
    """What the files say, read back and estimated; none before they are written, or where that cannot be."""

    def __post_init__(self) -> None:
        self.strategy = planned(self.plan)

    @property
    def model(self) -> Model:
        return self.plan.model

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of every chunk, in model order."""
        return spread(self.model.layers, self.strategy)

    @cached_property
    def id(self) -> str:
        return plan_id(self.plan)

    @property
    def speaks(self) -> str:
        return self.target.versions[self.version]

    def lose(self, path: str, message: str, **instead: Any) -> None:  # noqa: ANN401 - fields of a strategy
        """Note what cannot be said, put what is written in its place, and say what that costs."""
        before, self.strategy = self.strategy, replace(self.strategy, **instead)
        self.losses.append(Fault(path, message + self._price(before)))

    def _price(self, before: Strategy) -> str:
        """Seconds and bytes by which the strategy differs from the one before, for the framework that runs it."""
        if before == self.strategy:
            return ""
        try:
            old, new = map(self._there, (before, self.strategy))
        except ShardwiseError:  # one of them cannot run there at all
            return ""
        return f" ({_difference(old, new)} by the estimate)"

    def _there(self, strategy: Strategy) -> Estimate:
        """What a strategy takes on the target's runtime."""
        runtime = load_runtime(runtime_of(self.plan, self.target))
        return estimate(
            self.model, self.plan.cluster, strategy, runtime=runtime, checked=True, order=self._order(strategy)
        )

    def _order(self, strategy: Strategy) -> Schedule | None:
        """The plan's own order, where the strategy still is the one that it orders."""
        kept = all(getattr(strategy, name) == getattr(self.plan.strategy, name) for name in _ORDERED)
        return self.plan.order if kept else None

    @property
    def runtime(self) -> str:
        """The runtime that predicts the target, with no more laid over it than the target can say."""
        own = runtime_of(self.plan, self.target)
        return self.strategy.runtime if own == self.plan.strategy.runtime else own

    @cached_property
    def moved(self) -> str:
        """What the plan itself takes more on the target's runtime; with what is lost it makes up `as_written`."""
        own, there = self.plan.strategy.runtime, runtime_of(self.plan, self.target)
        if self.written is None or own == there:
            return ""
        try:
            change = _difference(self.planned, self._there(planned(self.plan)))
        except ShardwiseError:  # as it is planned it cannot run there at all
            return ""
        return f"{there} in place of {own}, its kernels and overlaps: {change} by the estimate"

    def refuse(self, path: str, message: str) -> None:
        self.refusals.append(Fault(path, message))

    def settle(self) -> None:
        """Stop where something cannot be said at all, or, strictly, at all; everything is told at once."""
        if not self.refusals and not (self.strict and self.losses):
            return
        why = "cannot say this plan" if self.refusals else "cannot say all of this plan (--strict)"
        lines = [f"{self.speaks} {why}:", *(f"  - {fault}" for fault in self.refusals)]
        if self.refusals and self.losses:
            lines.append("  besides, it would lose:")
        raise InfeasibleError("\n".join([*lines, *(f"  - {fault}" for fault in self.losses)]))

    def header(self, mark: str = "# ") -> str:
        """The lines that open every file that can hold a comment; a name with a line break ends no comment,
        and one with control characters leaves YAML valid.
        """
        lines = (" ".join(line.splitlines()) for line in self.notes())
        shown = ("".join(one if one.isprintable() else "?" for one in line) for line in lines)
        return "".join(f"{mark}{line}".rstrip() + "\n" for line in shown)

    def notes(self) -> list[str]:
        lines = [
            f"Written by Shardwise {__version__} for {self.speaks}.",
            f"plan {self.id}: {self.model.name} on {self.plan.cluster.name}, {planned(self.plan)}",
            f"predicted: {self.prediction}",
        ]
        lines += [f"runtime: {self.moved}"] if self.moved else []
        lines += [f"as written: {self.as_written}"] if self.written else []
        lines += [f"not as planned: {fault}" for fault in self.losses]
        return lines + [f"by hand: {note}" for note in self.by_hand]

    @property
    def prediction(self) -> str:
        """The prediction of the plan, in a line; made anew, as the one in its file may be of another order."""
        return prediction(self.planned)

    @cached_property
    def planned(self) -> Estimate:
        """What the plan takes as it is."""
        return estimate_of(self.plan)

    @property
    def as_written(self) -> str:
        """The prediction of the files themselves, in a line."""
        if self.written is None:
            return ""
        return f"{prediction(self.written)} (runtime {self.written.strategy.runtime})"

    def export(self, files: Iterable[File]) -> Export:
        return Export(
            target=f"{self.target.name}@{self.version}",
            speaks=self.speaks,
            plan=self.id,
            files=tuple(files),
            strategy=replace(self.strategy, runtime=self.written.strategy.runtime if self.written else self.runtime),
            losses=tuple(self.losses),
            by_hand=tuple(self.by_hand),
            prediction=self.prediction,
            as_written=self.as_written,
            runtime=self.moved,
        )


_ORDERED = ("pp", "vpp", "placement", "schedule", "microbatches")


def prediction(told: Estimate) -> str:
    """The line of what is promised."""
    limit = show_limit(told.limit, told.device.memory)
    low, high = map(show_seconds, told.iteration_seconds_interval)
    return (
        f"{show_seconds(told.iteration_seconds)} per iteration ({low} to {high}), {show_percent(told.mfu)} MFU, "
        f"{told.tokens_per_second_per_gpu:.0f} tokens/s/GPU, at most {show_bytes(told.total_bytes)} of "
        f"{limit} on a GPU{_doubt(told)}"
    )


def _doubt(told: Estimate) -> str:
    if told.fits == "close":
        return f": fits with a probability of {show_percent(told.fits_probability)}"
    return ": does not fit" if told.fits == "no" else ""


def _difference(old: Estimate, new: Estimate) -> str:
    seconds, size = new.iteration_seconds - old.iteration_seconds, new.total_bytes - old.total_bytes
    return f"{_signed(seconds, show_seconds)} and {_signed(size, show_bytes)}"


def _signed(value: float, show: Callable[[float], str]) -> str:
    return f"{'+' if value >= 0 else '-'}{show(abs(value))}"


def runtime_of(plan: Plan, target: Target) -> str:
    """The runtime that predicts a target: the plan's own where it is one of the target's."""
    own = plan.strategy.runtime
    return own if not target.runtime or own.startswith(target.runtime) else target.runtime


def settings_of(runtime: str) -> tuple[str, tuple[str, ...]]:
    """A runtime's own name, and the values laid over it that change it, numbers written the shortest way."""
    base, *laid = [runtime] if is_file(runtime) else runtime.split("+")
    plain = load_runtime(base)
    changed = [one for one in laid if replace(load_runtime(f"{base}+{one}"), name=plain.name) != plain]
    return base, tuple(re.sub(r"=0[.0]*$", "=0", one) for one in changed)
