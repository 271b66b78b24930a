"""Closing the loop: the plan that `balance` found is dry-run, its peaks are one more round, and it is balanced again.

Every round has a folder with what was planned (`round.json`), the user's YAML patched, the script of the dry run and
its logs; `model_<k>.json` is the layer model with the rounds up to k. So the loop may stop after a round is written and
go on when its logs are there. It ends when measured peaks agree with what was predicted and no plan is predicted to be
faster by more than `WORTH`; or after so many rounds, with the fastest plan that was measured within its limits, and,
where the last was as predicted, the plan that one more round would try.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.frameworks.mindformers.dryrun import FAILED, dryrun
from shardwise.frameworks.mindformers.patch import patch_file
from shardwise.inputs.files import read_mapping
from shardwise.inputs.serialise import to_json
from shardwise.inputs.write import write_now, write_text
from shardwise.measure.launch.process import run_job
from shardwise.partition.balance import Described, balance, layer_model, mixes, order_notes, problem_of
from shardwise.partition.graph import Ready
from shardwise.partition.lists import settled, to_lists
from shardwise.partition.problem import BalanceAnswer, Partition, Problem
from shardwise.partition.readers.peaks import Which, read_peaks
from shardwise.partition.refit import round_of, with_rounds

WORTH = 0.005
"""A plan that is predicted to be faster by this share is worth another dry run."""
_LOWER = (0.8, 0.5)
"""Confidence of a stage where the one that was asked for leaves no plan; 0.5: no margin."""
State = Literal["agreed", "within", "over", "waiting", "interrupted"]
Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRuns:
    """How and where the plans of a loop are dry-run."""

    config: str
    """The user's MindFormers YAML."""
    training: str
    """The training command of one rank; `{config}` stands for the patched YAML."""
    ranks: int
    """All devices of the training."""
    folder: Path
    run: bool = False
    """Run the scripts; else stop when one is written, and go on when its logs are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRound:
    """One plan, what was predicted of it, and what its dry run measured; memory in MB, one number a stage."""

    number: int
    folder: str
    simulated: float
    layers: tuple[int, ...]
    counts: tuple[Any, ...] = field(repr=False)
    """Layers of every chunk, per run, per choice."""
    lists: Mapping[str, Any] = field(hash=False)
    """In MindFormers' words."""
    predicted: tuple[float, ...]
    margin: tuple[float, ...]
    """What was kept free above each."""
    limits: tuple[float, ...]
    confidence: float
    """Of a stage."""
    low_memory: bool | None
    """Which of the two interleaved orders is run; None: a rank has one chunk."""
    tolerance: float
    """Share of a peak within which prediction and measurement agree in any case."""
    measured: tuple[float, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every stage was measured within its limit."""
        return bool(self.measured) and all(m <= limit for m, limit in zip(self.measured, self.limits, strict=True))

    @property
    def off(self) -> tuple[float, ...]:
        """Measured less predicted."""
        return tuple(m - p for m, p in zip(self.measured, self.predicted, strict=True))

    @property
    def surprised(self) -> frozenset[int]:
        """Stages off by more than the margin and the tolerance."""
        wide = (max(m, self.tolerance * p) for m, p in zip(self.margin, self.predicted, strict=True))
        return frozenset(s for s, (off, free) in enumerate(zip(self.off, wide, strict=True)) if abs(off) > free)

    @property
    def agrees(self) -> bool:
        return self.fits and not self.surprised


@dataclass(frozen=True, slots=True, kw_only=True)
class Looped:
    """What came of a loop."""

    rounds: tuple[DryRound, ...]
    """Those that were measured."""
    waiting: DryRound | None = None
    """Written, and to be run by the user."""
    unmeasured: DryRound | None = None
    """The plan that was being looked for, or dry-run, when the loop was interrupted."""
    interrupted: bool = False
    contradicted: bool = False
    """The last round cannot be explained together with those before: no further one can be planned."""
    further: DryRound | None = None
    """A plan that is predicted to be faster, for which no round was left."""

    @property
    def best(self) -> DryRound | None:
        """The fastest that was measured within its limits."""
        return min((one for one in self.rounds if one.fits), key=lambda one: one.simulated, default=None)

    @property
    def state(self) -> State:
        if self.interrupted:
            return "interrupted"
        if self.waiting:
            return "waiting"
        if not self.best:
            return "over"
        return "agreed" if self.rounds[-1].agrees and not (self.contradicted or self.further) else "within"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """How long and how sure."""

    rounds: int = 3
    confidence: float = 0.95
    """Of every stage that it stays within its limit."""
    tolerance: float = 0.02
    time_limit: float = 60.0
    effort: float = 1.0
    seed: int = 1


def close_loop(
    asked: Described, dry: DryRuns, settings: LoopSettings, *, tell: Tell = lambda _: None,
    follow: Callable[[DryRound], object] = lambda _: None,
) -> Looped:  # fmt: skip
    """Plan, dry-run and fit anew until prediction and peak agree. `tell`: what is about to be run, and notes."""
    if "{config}" not in dry.training:
        said = "does not say where the YAML goes; write {config} for it: python run_mindformer.py --config {config}"
        raise InputError(Fault("--training", said))
    loop = _Loop(asked, dry, settings, tell)
    while (made := loop.next()) is not None:
        follow(made)
    return Looped(
        rounds=tuple(loop.done), waiting=loop.waiting, unmeasured=loop.unmeasured, interrupted=loop.interrupted,
        contradicted=loop.ended, further=loop.further,
    )  # fmt: skip


class _Loop:
    """The rounds so far."""

    def __init__(self, asked: Described, dry: DryRuns, settings: LoopSettings, tell: Tell) -> None:
        self.dry, self.settings, self.tell = dry, settings, tell
        self.done, self.interrupted, self.ended = list[DryRound](), False, False
        self.waiting: DryRound | None = None
        self.unmeasured: DryRound | None = None
        self.further: DryRound | None = None
        model, notes = layer_model(asked)
        for note in (*model.notes, *notes, *order_notes(asked.low_memory, asked.vpp)):
            tell(note)
        if model.fit is None:
            raise InputError("the layer model holds no measured peaks, so rounds cannot be added to it; give --init")
        if model.fit.pp != asked.pp:
            said = (
                f"is {asked.pp}, but the peaks were measured with {model.fit.pp} stages; rounds are of the same stages"
            )
            raise InputError(Fault("--pp", said))
        dryrun(dry.training, ranks=dry.ranks, stages=model.fit.pp)  # refused before anything is solved
        self.first, self.known = model.data, 1 + max(one.round for one in model.fit.measured)
        self.peak: Which = asked.peak
        self.asked = replace(asked, init=None, peaks=(), times=None, model=str(self.model(0)))
        self.mark = hashlib.sha256(repr((asked.pp, asked.vpp, asked.microbatches, asked.memory, asked.low_memory,
                                         asked.schedule, to_json(model.data))).encode()).hexdigest()[:16]  # fmt: skip
        self.write(self.model(0), to_json(model.data))

    def model(self, number: int) -> Path:
        return self.dry.folder / f"model_{number}.json"

    def write(self, path: Path, text: str) -> None:
        write_text(path, text, folder=True, program=path.suffix == ".sh")
        write_now()

    def next(self) -> DryRound | None:
        """One more round, measured; None where there is none."""
        number = len(self.done) + 1
        if self.waiting or self.ended or self.interrupted:
            return None
        try:
            if number > self.settings.rounds:
                self.look_further(number)
                return None
            planned = self.planned(number)
            if planned is None:
                return None
            self.unmeasured = planned[0]
            peaks = self.peaks(planned[0])
        except KeyboardInterrupt:
            self.interrupted = True
            return None
        self.unmeasured = None
        if peaks is None:
            self.waiting = planned[0]
            return None
        made = replace(planned[0], measured=peaks)
        self.done.append(made)
        self.learn(planned[1])
        return made

    def look_further(self, number: int) -> None:
        """With all rounds spent and the last as predicted: whether one more would find a faster one."""
        if not self.done or not self.done[-1].agrees:
            return
        try:
            planned = self.planned(number, write=False)
        except InfeasibleError:
            return
        self.further = planned[0] if planned else None

    def planned(self, number: int, *, write: bool = True) -> tuple[DryRound, Problem] | None:
        """The plan of a round, as it was written or found now; None where it is not worth a dry run."""
        folder = self.dry.folder / f"round_{number}"
        asked = replace(self.asked, model=str(self.model(number - 1)), confidence=self.settings.confidence)
        problem = problem_of(asked).value
        if (folder / "round.json").exists():
            return self.read(folder, number), problem
        answer = self.solved(problem)
        made = self.made(answer, folder, number)
        if answer.interrupted:
            self.unmeasured = made
            raise KeyboardInterrupt
        best = Looped(rounds=tuple(self.done)).best
        if best is not None and self.done[-1].agrees and made.simulated > best.simulated * (1 - WORTH):
            return None
        if write:
            self.hand_over(answer, made)
        return made, problem

    def solved(self, problem: Problem) -> BalanceAnswer:
        """The best plan within margins; with smaller ones where they leave none, for the dry run shows what holds."""
        one = self.settings
        for confidence in (problem.confidence, *_LOWER):
            try:
                answer = balance(replace(problem, confidence=confidence), time_limit=one.time_limit, effort=one.effort,
                                 seed=one.seed)  # fmt: skip
            except InfeasibleError as error:
                if confidence == _LOWER[-1] or problem.fit is None:
                    raise
                self.tell(f"at {100 * confidence:.4g}% no plan is left ({str(error).split(';')[0]}); margins of less "
                          "confidence are taken, and the dry run shows what holds")  # fmt: skip
                continue
            return _said_by_lists(answer)
        raise AssertionError  # the last confidence returns or raises

    def made(self, answer: BalanceAnswer, folder: Path, number: int) -> DryRound:
        problem, best = answer.problem, answer.best
        lists = to_lists(problem, best.partition)
        return DryRound(
            number=number, folder=str(folder), simulated=best.simulated, layers=best.partition.layers,
            counts=best.partition.counts, predicted=best.peak, margin=best.margin, limits=problem.rank_limits,
            confidence=problem.confidence, tolerance=self.settings.tolerance,
            lists={name: getattr(lists, name) for name in lists.__slots__},
            low_memory=best.timeline.schedule.name == "low-memory" if problem.vpp > 1 else None,
        )  # fmt: skip

    def hand_over(self, answer: BalanceAnswer, made: DryRound) -> None:
        """The patched YAML, the script, and what was planned, all or none."""
        folder = Path(made.folder)
        patched = patch_file(self.dry.config, answer)
        for note in patched.notes if made.number == 1 else ():
            self.tell(note)
        table = {name: getattr(made, name) for name in _KEPT}
        write_text(folder / Path(self.dry.config).name, patched.after, folder=True)
        write_text(folder / "dryrun.sh", self.script(made), folder=True, program=True)
        self.write(folder / "round.json", to_json({"question": self.mark, **table}))

    def script(self, made: DryRound) -> str:
        """The script of a round's dry run."""
        config = Path(made.folder) / Path(self.dry.config).name
        command = self.dry.training.replace("{config}", shlex.quote(str(config)))
        return dryrun(command, ranks=self.dry.ranks, stages=len(made.predicted), folder=f"{made.folder}/logs",
                      low_memory=made.low_memory).script  # fmt: skip

    def read(self, folder: Path, number: int) -> DryRound:
        """A round that was written before."""
        data = read_mapping(folder / "round.json")
        if data.get("question") != self.mark:
            why = "holds rounds of another question (other measurements, stages, chunks or limits)"
            raise InputError(Fault("--out", f"{self.dry.folder} {why}; give another folder, or remove it"))
        try:
            table = {name: _tuple(data[name]) for name in _KEPT}
            return DryRound(**table, number=number, folder=str(folder), tolerance=self.settings.tolerance)
        except (KeyError, TypeError):
            said = f"{folder / 'round.json'} was edited or cut off; remove {folder} to plan that round again"
            raise InputError(said) from None

    def peaks(self, made: DryRound) -> tuple[float, ...] | None:
        """Peaks of every stage, from logs that are there or come now; None: the user runs the script."""
        logs, script = Path(made.folder) / "logs", Path(made.folder) / "dryrun.sh"
        found = self.logged(logs)
        if not found:
            self.write(script, self.script(made))  # the training command may be another by now
        if not found and not self.dry.run:
            return None
        if not found:
            self.tell(f"round {made.number}: running bash {script} ({len(made.predicted)} dry runs)")
            ended = run_job(["bash", str(script)], Path.cwd(), os.environ, Path(made.folder) / "dryrun.log",
                            lambda piece: piece)  # fmt: skip
            if ended.interrupted:
                raise KeyboardInterrupt
            found = self.after(made, logs)
        if len(found) != len(made.predicted):
            said = f"has peaks of {len(found)} stages, the plan has {len(made.predicted)}; run {script} again"
            raise InputError(said, title=str(logs))
        return tuple(found.values())

    def after(self, made: DryRound, logs: Path) -> dict[int, float]:
        """Peaks of a round that was run now; runs that failed are told, though some may have logged one."""
        log, taken = Path(made.folder) / "dryrun.log", ""
        try:
            found = read_peaks(logs, which=self.peak)
            taken = "; what it logged is taken as its peak"
        finally:
            for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else ():
                if FAILED in line:
                    self.tell(f"round {made.number}: {line}{taken}")
        return found

    def logged(self, logs: Path) -> dict[int, float]:
        """Peaks that are there; none where nothing was run, or where a run that was cut off is run again."""
        if not logs.is_dir() or not any(logs.iterdir()):
            return {}
        try:
            return read_peaks(logs, which=self.peak)
        except InputError:
            if self.dry.run:
                return {}
            raise

    def learn(self, problem: Problem) -> None:
        """The layer model with all rounds so far."""
        rounds = [
            round_of(problem, Partition(counts=one.counts), one.measured, self.known + k)
            for k, one in enumerate(self.done)
        ]
        over = {s for one in self.done for s in one.surprised if one.off[s] > 0}
        try:
            self.write(self.model(len(self.done)), to_json(with_rounds(self.first, rounds, over)))
        except InputError as error:
            self.tell(f"round {len(self.done)} cannot be explained together with those before: {error}")
            self.ended = True


def _said_by_lists(answer: BalanceAnswer) -> BalanceAnswer:
    """What MindFormers' lists say is what is dry-run, where a chunk mixes what they cannot say together."""
    said = settled(answer.problem, answer.best.partition) if mixes(answer) else None
    if said is None:
        return answer
    ready = Ready(answer.problem)
    return replace(answer, best=ready.evaluate(ready.matrix(said)))


_KEPT = ("simulated", "layers", "counts", "lists", "predicted", "margin", "limits", "confidence", "low_memory")


def _tuple(value: Any) -> Any:  # noqa: ANN401 - what a file holds
    return tuple(map(_tuple, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
