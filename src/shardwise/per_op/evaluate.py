"""Time and memory of a plan, part by part. Every answer of every engine goes through here before it is shown."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwise.errors import Fault, InputError
from shardwise.per_op.lookups import send_seconds
from shardwise.per_op.question import PerOpPlan, Question, Stage
from shardwise.per_op.tables import Array, Tables, column, tables_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What one stage takes for one micro batch (seconds), and holds (bytes)."""

    work: float
    """Forward and backward."""
    again: float
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
    """The micro batch at work, and what is made again at once."""
    reserved: float
    made_again: float = 0.0
    """The part of `peak` that is made again at once."""

    @property
    def seconds(self) -> float:
        return self.work + self.receive + self.send + self.again

    @property
    def memory(self) -> float:
        return self.weights + self.gradients + self.states + self.kept + self.peak + self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
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
    factor: float = 1.0
    """Correction of the memory by what was measured."""

    @property
    def seconds(self) -> float:
        return max(self.times)

    @property
    def memory(self) -> tuple[float, ...]:
        return tuple(stage.memory * self.factor for stage in self.stages)

    def fits(self, limit: float) -> bool:
        return max(self.memory) <= limit


def crossings(question: Question, gpus: tuple[int, ...]) -> list[tuple[int, int]]:
    """Whether each stage receives from, and sends to, another node."""
    found, used = [], 0
    for count in gpus:
        inside = int(used > 0 and used % question.node == 0)
        used += count
        found.append((inside, int(used % question.node == 0)))
    return found


def evaluate(question: Question, plan: PerOpPlan) -> Evaluation:
    """The cost of a plan; a plan that the profile does not cover is refused."""
    passes = max(1, question.global_batch // plan.micro_batch)
    costs, ideals, wholes = [], [], []
    first, count = 0, len(plan.stages)
    for index, (stage, crossing) in enumerate(zip(plan.stages, crossings(question, plan.gpus), strict=True)):
        costs.append(_stage_cost(question, plan, stage, first, count - 1 - index, crossing))
        ideal, whole = _ideal(question, plan, stage, first, crossing)
        ideals.append(ideal)
        wholes.append(whole)
        first += stage.size
    total = sum(cost.seconds for cost in costs)
    times = tuple((passes - 1) * cost.seconds + total for cost in costs)
    made = Evaluation(
        stages=tuple(costs),
        passes=passes,
        times=times,
        ideal=tuple(ideals),
        lost=tuple(cost.work - ideal for cost, ideal in zip(costs, ideals, strict=True)),
        spare=(),
        gpu_seconds=sum(cost.seconds * stage.gpus for cost, stage in zip(costs, plan.stages, strict=True))
        * (passes - 1),
        factor=question.memory_factor,
    )
    return _with_spare(question, plan, made, wholes)


def _with_spare(question: Question, plan: PerOpPlan, made: Evaluation, wholes: list[float]) -> Evaluation:
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


def _ideal(
    question: Question, plan: PerOpPlan, stage: Stage, first: int, crossing: tuple[int, int]
) -> tuple[float, float]:
    """Work of the stage at the least tp (1) over its GPUs; and its work and sends on one GPU."""
    profile, rows = question.profile, np.array(question.chain.rows[first : first + stage.size])
    variants = np.array([layout.variant for layout in stage.layouts])
    tp = profile.tps[0]
    work = np.zeros(stage.size)
    sizes = {}
    for variant in sorted(set(variants.tolist())):
        here = variants == variant
        for name in ("forward", "backward"):
            work[here] += tp * column(profile, name, plan.micro_batch, tp, variant)[rows[here]]
        sizes[variant] = [column(profile, name, plan.micro_batch, tp, variant) for name in ("input", "output")]
    bands = (profile.intra, profile.inter or profile.intra)
    total = float(work.sum())
    sent = send_seconds(sizes[variants[0]][0][rows[0]], bands[crossing[0]], question.flavour)
    sent += send_seconds(sizes[variants[-1]][1][rows[-1]], bands[crossing[1]], question.flavour)
    return total / stage.gpus, total + sent


def _stage_cost(
    question: Question, plan: PerOpPlan, stage: Stage, first: int, behind: int, crossing: tuple[int, int]
) -> StageCost:
    tables = tables_of(question, plan.micro_batch, stage.gpus)
    known = {layout: index for index, layout in enumerate(tables.layouts)}
    if missing := sorted({layout for layout in stage.layouts if layout not in known}):
        tp, dp, variant = missing[0]
        raise InputError(Fault("plan", f"tp {tp} x dp {dp} variant {variant} at micro batch {plan.micro_batch} on "
                               f"{stage.gpus} GPUs is not in the profile or not in the space"))  # fmt: skip
    layouts = np.array([known[layout] for layout in stage.layouts])
    return stage_cost(question, tables, first, layouts, np.array(stage.recompute), behind, crossing, plan.micro_batch)


def in_flight(question: Question, behind: int, micro_batch: int) -> int:
    """Micro batches whose activations a stage holds beside the one at work."""
    if question.flavour.exact_lookups:
        return behind
    passes = max(1, question.global_batch // micro_batch)
    return passes - 1 if question.flavour.schedule == "gpipe" else min(behind, passes - 1)


def alike(question: Question, behind: int, micro_batch: int) -> int:
    """The fewest stages behind with which a stage costs the same."""
    if question.flavour.exact_lookups:
        return behind
    return 0 if question.flavour.schedule == "gpipe" else in_flight(question, behind, micro_batch)


def stage_cost(
    question: Question,
    tables: Tables,
    first: int,
    layouts: Array,
    recompute: Array,
    behind: int,
    crossing: tuple[int, int],
    micro_batch: int,
) -> StageCost:
    """Cost of one stage from layout indices and flags."""
    flavour = question.flavour
    rows = tables.rows[first : first + len(layouts)]
    forth = tables.cross[rows[1:], layouts[:-1], layouts[1:]]
    back = tables.cross_back[rows[1:], layouts[:-1], layouts[1:]]
    at_start, at_end = first == 0, first + len(layouts) == len(tables.rows)
    receive = 0.0 if flavour.both_ways and at_start else float(tables.enter[crossing[0], layouts[0], rows[0]])
    send = 0.0 if flavour.both_ways and at_end else float(
        tables.leave[crossing[1], layouts[0], layouts[-1], rows[-1]]
    )  # fmt: skip
    weights = float(tables.weights[layouts, rows].sum())
    static = float(tables.static[layouts, rows].sum())
    states = static - 2 * weights
    moments = states * flavour.moments / (flavour.master + flavour.moments)
    act = tables.act[layouts, rows]
    saved, highest = saved_and_peak(tables, rows, act, recompute, flavour.open_run_counts)
    kept = float(tables.entry[layouts[0], rows[0]]) + float(act.sum()) - saved
    return StageCost(
        work=float(tables.work[layouts, rows].sum()),
        again=float(tables.forward[layouts, rows][recompute].sum()),
        receive=receive + float((forth - back).sum()),
        send=send + float(back.sum()),
        reshard=float(forth.sum()),
        weights=weights + states - moments,
        gradients=weights,
        states=moments,
        kept=kept * in_flight(question, behind, micro_batch),
        peak=kept + highest,
        made_again=highest,
        reserved=_reserved(question, tables, layouts, rows, weights),
    )


def _reserved(question: Question, tables: Tables, layouts: Array, rows: Array, weights: float) -> float:
    upto = len(rows) - 1 if question.flavour.reserve_skips_last else len(rows)
    forward = float(tables.reserved_f[layouts, rows][:upto].max(initial=0.0))
    backward = float(tables.reserved_b[layouts, rows][:upto].max(initial=0.0))
    buffers = forward + backward if question.flavour.reserve == "sum" else max(forward, backward)
    return max(buffers, weights)


def saved_and_peak(
    tables: Tables, rows: Array, act: Array, recompute: Array, open_run_counts: bool
) -> tuple[float, float]:
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
        run += float(act[index])
        if not shared[index] and (starts[index + 1] or index == last):
            highest, run = max(highest, run), 0.0
    return saved, max(highest, run) if open_run_counts else highest
