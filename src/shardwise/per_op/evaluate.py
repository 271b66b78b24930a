"""Time and memory of a plan, part by part. Every answer of every engine goes through here before it is shown."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.errors import Fault, InputError
from shardwise.per_op.question import OperatorQuestion, PerOpPlan, SplitStage
from shardwise.per_op.tables import NEVER, Array, Tables, tables_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What one stage takes for one micro batch (seconds), and holds (bytes)."""

    work: float
    """Forward and backward."""
    recompute: float
    """Recomputed forward."""
    receive: float
    """Receiving inputs, and resharding forward."""
    send: float
    """Sending outputs, and resharding backward."""
    reshard: float
    """The part of both that is resharding."""
    weights: float
    """Weights with their fp32 copies."""
    gradients: float
    states: float
    """Optimizer states."""
    kept: float
    """Activations of the micro batches of the stages behind."""
    peak: float
    """The micro batch at work, and what is recomputed at once."""
    reserved: float
    recomputed_peak: float = 0.0
    """The part of `peak` that is recomputed at once."""

    @property
    def seconds(self) -> float:
        return self.work + self.receive + self.send + self.recompute

    @property
    def memory(self) -> float:
        return self.weights + self.gradients + self.states + self.kept + self.peak + self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class PerOpCost:
    """A plan's cost: one entry a stage."""

    stages: tuple[StageCost, ...]
    passes: int
    """Micro batches per iteration."""
    times: tuple[float, ...]
    """Seconds of an iteration if this stage were the bottleneck."""
    ideal: tuple[float, ...]
    """Work at tp 1 and the whole micro batch, over the stage's GPUs."""
    lost: tuple[float, ...]
    """Work beyond the ideal."""
    spare: tuple[float, ...]
    """Idle GPU seconds that could take useful work (Aceso's efficient time): who should receive operators."""
    gpu_seconds: float
    seconds: float
    """Of an iteration."""
    factor: float = 1.0
    """Correction of the memory by what was measured."""

    @property
    def memory(self) -> tuple[float, ...]:
        return tuple(stage.memory * self.factor for stage in self.stages)

    def fits(self, limit: float) -> bool:
        return max(self.memory) <= limit


def crossings(question: OperatorQuestion, gpus: tuple[int, ...]) -> list[tuple[int, int]]:
    """Whether each stage receives from, and sends to, another node."""
    found, used = [], 0
    for count in gpus:
        inside = int(used > 0 and used % question.node == 0)
        used += count
        found.append((inside, int(used % question.node == 0)))
    return found


def evaluate(question: OperatorQuestion, plan: PerOpPlan) -> PerOpCost:
    """The cost of a plan; a plan that the profile does not cover is refused."""
    first = 0
    for stage in plan.stages:
        if missing := sorted(set(stage.layouts).difference(tables_of(question, plan.samples, stage.gpus).layouts)):
            tp, dp, variant = missing[0]
            raise InputError(Fault("plan", f"tp {tp} x dp {dp} variant {variant} with micro batches of {plan.samples} "
                                   f"samples on {stage.gpus} GPUs is not in the profile or the space"))  # fmt: skip
        _refuse_split(question, plan, stage, first)
        first += stage.size
    return question.pricing.evaluate(question, plan)


def _refuse_split(question: OperatorQuestion, plan: PerOpPlan, stage: SplitStage, first: int) -> None:
    """A split that the profile says an operator cannot have."""
    tables = tables_of(question, plan.samples, stage.gpus)
    for layout in set(stage.layouts):
        never = tables.work[tables.layouts.index(layout)] >= NEVER
        if not never.any():
            continue
        for own, row in zip(stage.layouts, question.chain.rows[first:], strict=False):
            if own == layout and never[row]:
                said = f"{question.profile.ops[row]} cannot have tp {layout.tp}, as profile.toml says"
                raise InputError(Fault("plan", said))


def with_spare(question: OperatorQuestion, plan: PerOpPlan, made: PerOpCost, wholes: list[float]) -> PerOpCost:
    """`wholes`: the work of every stage on one GPU."""
    spare = []
    for stage, cost, time, memory, whole in zip(plan.stages, made.stages, made.times, made.memory, wholes, strict=True):
        idle = made.seconds - time
        room = (question.memory - memory) / memory * time if memory > 0 else 0.0
        if any(stage.recompute):
            idle /= 2
        elif room <= idle:
            idle = (room + idle) / 2
        # Aceso's efficiency compares GPU time with the stage on one GPU, sends included
        spare.append(float(idle * stage.gpus * whole / (cost.seconds * stage.gpus)) if cost.seconds > 0 else 0.0)
    return replace(made, spare=tuple(spare))


def in_flight(question: OperatorQuestion, behind: int, samples: int) -> int:
    """Micro batches whose activations a stage holds beside the one at work."""
    return question.pricing.in_flight(behind, question.passes(samples))


def alike(question: OperatorQuestion, behind: int, samples: int) -> int:
    """The fewest stages behind with which a stage costs the same."""
    held = in_flight(question, behind, samples)
    return next(count for count in range(behind + 1) if in_flight(question, count, samples) == held)


def stage_cost(
    question: OperatorQuestion,
    tables: Tables,
    first: int,
    layouts: Array,
    recompute: Array,
    behind: int,
    crossing: tuple[int, int],
    samples: int,
) -> StageCost:
    """Cost of one stage as the tables add it up, from layout indices and flags; its lasting bytes stand as weights."""
    rows = tables.rows[first : first + len(layouts)]
    forth = tables.cross[rows[1:], layouts[:-1], layouts[1:]]
    back = tables.cross_back[rows[1:], layouts[:-1], layouts[1:]]
    weights = float(tables.weights[layouts, rows].sum())
    act = tables.act[layouts, rows]
    saved, highest = saved_and_peak(tables, rows, act, tables.made[layouts, rows], recompute)
    kept = float(tables.entry[layouts[0], rows[0]]) + float(act.sum()) - saved
    kept -= float(tables.sent[layouts[-1], rows[-1]])
    return StageCost(
        work=float(tables.work[layouts, rows].sum()),
        recompute=float(tables.forward[layouts, rows][recompute].sum()),
        receive=float(tables.enter[crossing[0], layouts[0], rows[0]]) + float((forth - back).sum()),
        send=float(tables.leave[crossing[1], layouts[0], layouts[-1], rows[-1]]) + float(back.sum()),
        reshard=float(forth.sum()),
        weights=float(tables.static[layouts, rows].sum()),
        gradients=0.0,
        states=0.0,
        kept=kept * in_flight(question, behind, samples),
        peak=kept + highest,
        recomputed_peak=highest,
        reserved=_reserved(tables, layouts, rows, weights) + tables.fixed,
    )


def _reserved(tables: Tables, layouts: Array, rows: Array, weights: float) -> float:
    """The allocator's; Aceso does not look at the last operator, and no other pricing says so by operator."""
    forward = float(tables.reserved_f[layouts, rows][:-1].max(initial=0.0))
    backward = float(tables.reserved_b[layouts, rows][:-1].max(initial=0.0))
    return max(forward + backward, weights)


def saved_and_peak(tables: Tables, rows: Array, act: Array, made: Array, recompute: Array) -> tuple[float, float]:
    """Bytes of a micro batch that recompute saves, and the largest run that is made again at once.

    An operator's activations are saved where it and its successor are both made again. A run is cut where a layer
    starts: that operator's input stays.
    """
    pairs = recompute[:-1] & recompute[1:]
    if not pairs.any():
        return 0.0, 0.0
    starts, shared = tables.starts[rows], tables.shared[rows]
    # an operator that shares its tensor is counted as saved even before a layer's start: Aceso's order of rules
    counted = pairs & (~starts[1:] | shared[:-1])
    saved = float(act[:-1][counted].sum())
    highest = run = 0.0
    last = len(rows) - 2
    for index in range(last + 1):
        if not pairs[index]:
            highest, run = max(highest, run), 0.0
            continue
        run += float(made[index])
        if not shared[index] and (starts[index + 1] or index == last):
            highest, run = max(highest, run), 0.0
    return saved, highest
