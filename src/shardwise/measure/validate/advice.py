"""Advice held against what practitioners chose: their layout and what it reached, our prediction of it, the layout that
we propose under the same conditions and what we claim for it, and which parts of the time the difference is made of.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from shardwise.cost.ledger import Ledger, ledger
from shardwise.errors import ShardwiseError
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.measure.validate.case import MeasuredRun, Skipped
from shardwise.measure.validate.rows import SHIPPED, read_rows
from shardwise.measure.validate.summary import Regret, regrets, setting_of
from shardwise.measure.validate.validate import Outcome, validate
from shardwise.search.api import answer_of, question_of
from shardwise.search.question import Question
from shardwise.search.simplicity import SHORT
from shardwise.search.why import why
from shardwise.search.wishes import read_wishes

GAP = 0.02
"""How near its bound a proposal must be: well below the error of a prediction."""
SECONDS = 300.0
"""The longest that one search may take; what it found by then is the proposal, and said to be unfinished."""


OWN_ERROR = "error of our prediction"
FILE = SHIPPED / "setups.toml"
"""The well-known set-ups, the runs of each, and those runs that are not among the shipped rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """One set-up: what was chosen and reached, and what we say."""

    name: str
    source: str
    """Where the run was published."""
    known: bool
    """A well-known set-up, not a group of a sweep."""
    case: MeasuredRun
    chosen: Estimate
    """Our prediction of the practitioners' layout."""
    proposed: Estimate | None
    """What we recommend for the same model, cluster, batch, sequence, number format and runtime; none: nothing fits."""
    limit: float
    """Bytes that a rank of it may need."""
    proven: bool
    """The search was not stopped by its time."""
    without_cp: Estimate | None = None
    """What we recommend without context parallel, where a dense proposal has it at a short sequence."""

    @property
    def published(self) -> float:
        """Seconds of an iteration, measured."""
        return float(self.case.measured["iteration_seconds"])

    @property
    def error(self) -> float:
        """Of our prediction of their layout: predicted / measured - 1."""
        return self.chosen.iteration_seconds / self.published - 1

    @property
    def ratio(self) -> float | None:
        """Speed that we claim for our proposal over the published speed."""
        return None if self.proposed is None else self.published / self.proposed.iteration_seconds

    @property
    def difference(self) -> Ledger | None:
        """Published seconds less claimed ones: what we predict wrongly of their own layout, then what the two layouts
        spend differently, largest first.
        """
        if self.proposed is None:
            return None
        lost: dict[str, float] = {}
        for part in why(self.proposed, self.chosen, self.limit).parts:
            lost[_kind(part.name)] = lost.get(_kind(part.name), 0.0) + part.lost
        own = Ledger(OWN_ERROR, self.published - self.chosen.iteration_seconds)
        ranked = sorted(lost.items(), key=lambda item: -abs(item[1]))
        return ledger("published less claimed", [own, *(Ledger(name, seconds) for name, seconds in ranked if seconds)])


def _kind(name: str) -> str:
    """A part of the time, both passes together; what is computed again stays apart."""
    whole, _, inner = name.partition(": ")
    return inner if inner and whole != "recompute" else whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Well-known set-ups and groups of runs that differ only in layout, each advised on; and what is left out."""

    setups: tuple[Advised, ...]
    groups: tuple[Advised, ...]
    """The fastest run of every group, under the group's name."""
    regrets: tuple[Regret, ...]
    """How much slower the run of a group that we rank first is than the fastest."""
    skipped: tuple[Skipped, ...]
    """What cannot be advised on, and why."""
    total: int
    """Set-ups and groups there are; more than are answered: it was stopped."""

    @property
    def done(self) -> int:
        return len(self.setups) + len(self.groups) + len(self.skipped)

    @property
    def finished(self) -> bool:
        return self.done >= self.total


Told = Callable[["Advised | Skipped", int], None]


def advise(files: Iterable[str | Path] = (), told: Told = lambda _one, _total: None) -> Advice:
    """The well-known set-ups, then the fastest run of every group; of `files`, their groups alone.

    `told`: called with everything that is done, and how many there are; Ctrl-C ends it, and what is done is the answer.
    """
    files = tuple(files)
    outcomes = validate(files).outcomes
    asked = [*([] if files else _known(outcomes)), *_fastest(outcomes)]
    done: list[Advised | Skipped] = []
    try:
        for one in asked:
            made = one.case if isinstance(one.case, Skipped) else advise_on(one.case, one)
            done.append(made)
            told(made, len(asked))
    except KeyboardInterrupt:
        if not done:
            raise
    found = [one for one in done if isinstance(one, Advised)]
    return Advice(
        setups=tuple(one for one in found if one.known),
        groups=tuple(one for one in found if not one.known),
        regrets=tuple(regrets(outcomes)),
        skipped=tuple(one for one in done if isinstance(one, Skipped)),
        total=len(asked),
    )


class ChosenRun(NamedTuple):
    """A run that advice is held against."""

    name: str
    source: str
    known: bool
    case: MeasuredRun | Skipped


def _known(outcomes: list[Outcome]) -> Iterator[ChosenRun]:
    """The run of every well-known set-up that was fastest per sample."""
    told = tomllib.loads(FILE.read_text(encoding="utf-8"))
    runs = {one.id: one for one in (*(one.case for one in outcomes), *read_rows(told["run"], FILE))}
    for setup in told["setup"]:
        found = [runs[name] for name in setup["rows"]]
        cases = [one for one in found if isinstance(one, MeasuredRun)]
        yield ChosenRun(setup["name"], setup["source"], True, min(cases, key=_per_sample) if cases else found[0])


def _per_sample(case: MeasuredRun) -> float:
    return float(case.measured["iteration_seconds"]) / case.strategy.global_batch


def _fastest(outcomes: list[Outcome]) -> Iterator[ChosenRun]:
    """The fastest run of every group of at least two; what never ran as a whole says nothing of advice."""
    groups: dict[str, list[MeasuredRun]] = {}
    for one in outcomes:
        case = one.case
        if case.group and case.rank is None and not case.composed and "iteration_seconds" in case.measured:
            groups.setdefault(setting_of(one), []).append(case)
    for name, cases in sorted(groups.items()):
        if len(cases) > 1:
            yield ChosenRun(name, cases[0].source, False, min(cases, key=_per_sample))


def advise_on(case: MeasuredRun, asked: ChosenRun) -> Advised | Skipped:
    """One run: its own layout predicted, and the best layout searched under its conditions."""
    strategy = case.strategy
    try:
        chosen = estimate(case.model, case.cluster, strategy, runtime=case.runtime, checked=True)
        question = question_of(
            case.model, case.cluster, global_batch=strategy.global_batch, seq=strategy.seq, runtime=case.runtime,
            base=strategy,
        )  # fmt: skip
        answer = answer_of(question, gap=GAP, time_limit=SECONDS)
    except ShardwiseError as fault:
        return Skipped(id=case.id, source=case.source, reason=f"{asked.name}: {fault}")
    if answer.interrupted:
        raise KeyboardInterrupt
    return Advised(
        name=asked.name, source=asked.source, known=asked.known, case=case, chosen=chosen, proposed=answer.best,
        limit=question.memory_limit, proven=answer.finished,
        without_cp=_without_cp(question) if asked.known and _short_with_cp(answer.best) else None,
    )  # fmt: skip


def _short_with_cp(best: Estimate | None) -> bool:
    """Context parallel of a dense model at a sequence that is short for it."""
    return best is not None and best.model.moe is None and best.strategy.cp > 1 and best.strategy.seq <= SHORT


def _without_cp(question: Question) -> Estimate | None:
    wishes, _ = read_wishes("cp=1")
    return answer_of(replace(question, wishes=wishes), gap=GAP, time_limit=SECONDS).best
