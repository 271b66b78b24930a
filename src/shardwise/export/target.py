"""What an exporter is made of: a draft that it bends to what the target can say, and the files that come out.

An exporter goes over the plan once and calls `lose` wherever the target cannot say something but can say something
near it, and `refuse` where there is nothing near; `settle` then tells all of it at once or lets the files be written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import shardwise
from shardwise.errors import Fault, InfeasibleError
from shardwise.export.partition import planned
from shardwise.inputs.layers import spread
from shardwise.inputs.model import Model
from shardwise.inputs.plan_file import Plan
from shardwise.inputs.serialise import Plain
from shardwise.inputs.strategy import Strategy
from shardwise.plan.identity import plan_id
from shardwise.units import show_bytes, show_percent, show_seconds


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Files for a target that belong together."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Export(Bundle):
    """The files of a plan for one target, and what they do not say."""

    strategy: Strategy
    """What the files say; the plan's own where nothing was lost."""


@dataclass(kw_only=True)
class Draft:
    """A plan on its way to a target."""

    plan: Plan
    target: Target
    version: str
    strict: bool = False
    strategy: Strategy = field(init=False)
    losses: list[Fault] = field(default_factory=list)
    refusals: list[Fault] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)

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
        """Note what cannot be said, and put what is written in its place."""
        self.losses.append(Fault(path, message))
        self.strategy = replace(self.strategy, **instead)

    def refuse(self, path: str, message: str) -> None:
        self.refusals.append(Fault(path, message))

    def settle(self) -> None:
        """Stop where something cannot be said at all, or, strictly, at all; everything is told at once."""
        self._add_cost()
        if not self.refusals and not (self.strict and self.losses):
            return
        why = "cannot say this plan" if self.refusals else "cannot say all of this plan (--strict)"
        lines = [f"{self.speaks} {why}:", *(f"  - {fault}" for fault in self.refusals)]
        if self.refusals and self.losses:
            lines.append("  besides, it would lose:")
        raise InfeasibleError("\n".join([*lines, *(f"  - {fault}" for fault in self.losses)]))

    def _add_cost(self) -> None:
        """What the nearest strategy costs against the planned one, by the same estimate of both."""
        if not self.losses or self.strategy == planned(self.plan):
            return
        text = cost_of(self.plan, self.strategy)
        if text:
            self.losses.append(Fault("", text))

    def header(self, mark: str = "# ") -> str:
        """The lines that open every file that can hold a comment; a name with a line break ends no comment,
        and one with control characters leaves YAML valid.
        """
        lines = (" ".join(line.splitlines()) for line in self.notes())
        shown = ("".join(one if one.isprintable() else "?" for one in line) for line in lines)
        return "".join(f"{mark}{line}".rstrip() + "\n" for line in shown)

    def notes(self) -> list[str]:
        lines = [
            f"Written by Shardwise {shardwise.__version__} for {self.speaks}.",
            f"plan {self.id}: {self.model.name} on {self.plan.cluster.name}, {planned(self.plan)}",
            f"predicted: {prediction(self.plan.predictions)}",
        ]
        lines += [f"not as planned: {fault}" for fault in self.losses]
        return lines + [f"by hand: {note}" for note in self.by_hand]

    def export(self, files: Iterable[File]) -> Export:
        return Export(
            target=f"{self.target.name}@{self.version}",
            speaks=self.speaks,
            plan=self.id,
            files=tuple(files),
            strategy=self.strategy,
            losses=tuple(self.losses),
            by_hand=tuple(self.by_hand),
            prediction=prediction(self.plan.predictions),
        )


def prediction(predictions: Plain | None) -> str:
    """The line of what is promised."""
    found = predictions or {}
    if not isinstance(found.get("iteration_seconds"), int | float):
        return "nothing; the plan holds no prediction"
    parts = [f"{show_seconds(found['iteration_seconds'])} per iteration"]
    if isinstance(found.get("mfu"), int | float):
        parts.append(f"{show_percent(found['mfu'])} MFU")
    if isinstance(found.get("tokens_per_second_per_gpu"), int | float):
        parts.append(f"{found['tokens_per_second_per_gpu']:.0f} tokens/s/GPU")
    if isinstance(found.get("total_bytes"), int | float):
        limit = found.get("memory_limit_bytes")
        of = f" of {show_bytes(limit)}" if isinstance(limit, int | float) else ""
        parts.append(f"at most {show_bytes(found['total_bytes'])}{of} on a GPU")
    return ", ".join(parts)


def cost_of(plan: Plan, strategy: Strategy) -> str:
    """Time and memory of another strategy beside the planned one; empty where it cannot be estimated."""
    from shardwise.errors import ShardwiseError
    from shardwise.inputs.load import load_runtime
    from shardwise.plan.estimate import estimate

    try:
        runtime = load_runtime(plan.strategy.runtime)
        ours, theirs = (estimate(plan.model, plan.cluster, s, runtime=runtime) for s in (planned(plan), strategy))
    except ShardwiseError:
        return ""
    return (
        f"as written it is estimated at {show_seconds(theirs.iteration_seconds)} and {show_bytes(theirs.total_bytes)}"
        f"{_FITS[theirs.fits]}"
        f"; the plan at {show_seconds(ours.iteration_seconds)} and {show_bytes(ours.total_bytes)}"
    )


_FITS = {"yes": "", "close": ", which is close to the limit", "no": ", which does not fit"}
