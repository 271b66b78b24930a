"""Deep models: a coarse model with few thick layers finds the cut, whole layers are moved until the stages balance.

The stages are filled by `patterns`; the bound is that of `layer_bound`. Nothing here is called optimal.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from shardwise.cost.profiles.table import Profile, Samples
from shardwise.errors import InfeasibleError
from shardwise.plan.per_op.answer import Answer, nothing_fits
from shardwise.plan.per_op.chain import Chain, chain_of
from shardwise.plan.per_op.evaluate import crossings, evaluate
from shardwise.plan.per_op.layer_bound import layer_bound
from shardwise.plan.per_op.patterns import Filler
from shardwise.plan.per_op.search import Search, plain_bound
from shardwise.plan.per_op.space import gpu_counts, micro_batches
from shardwise.plan.per_op.stage import Solved, Task
from shardwise.plan.per_op.tables import layouts_of
from shardwise.plan.per_op.types import PerOpPlan, Question, Stage

COARSE_OPS = 320
"""Operators of the coarse model, about."""

Shape = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Micro batch, GPUs of the stages, ends of the stages."""


def coarse(question: Question) -> Question:
    """The same model with fewer, thicker layers: work, weights and activations of several in one."""
    chain, profile = question.chain, question.profile
    period = sum(block.period for block in chain.blocks)
    layers = max(8, min(chain.layers, COARSE_OPS // max(period, 1)))
    factor = chain.layers / layers
    rows = sorted({chain.rows[block.start + step] for block in chain.blocks for step in range(block.period)})
    values = profile.values.copy()
    for column in (0, 1, 4, 5):  # forward, backward, weights, activations
        values[column][..., rows] *= factor
    slower = {
        key: Samples(sizes=found.sizes, seconds=tuple(factor * value for value in found.seconds))
        for key, found in profile.collectives.items()
    }
    thick: Profile = replace(profile, values=values, collectives=slower)
    return replace(
        question,
        profile=thick,
        chain=_rechained(thick, chain, layers),
        flavour=replace(question.flavour, update=False),
    )


def _rechained(profile: Profile, chain: Chain, layers: int) -> Chain:
    block = chain.blocks[0]
    names = chain.names[block.start], chain.names[block.start + block.period - 1]
    return chain_of(profile, layers, names if len(chain.blocks) == 1 else None)


class Balancer:
    """Moves the ends of stages while the iteration gets shorter."""

    def __init__(self, question: Question, until: float) -> None:
        self.question, self.until = question, until
        self.filler = Filler(question)

    def stages(self, shape: Shape) -> list[Solved]:
        size, gpus, ends = shape
        found = []
        for index, crossing in enumerate(crossings(self.question, gpus)):
            first = ends[index - 1] if index else 0
            task = Task(first, ends[index], gpus[index], len(gpus) - 1 - index, crossing, size)
            found.append(self.filler.solve(task))
        return found

    def value(self, shape: Shape) -> float:
        seconds = [stage.seconds for stage in self.stages(shape)]
        passes = max(1, self.question.global_batch // shape[0])
        return float((passes - 1) * max(seconds) + sum(seconds)) if passes > 1 else float(sum(seconds))

    def balanced(self, shape: Shape) -> tuple[float, Shape]:
        """Move work off the slowest stage, many operators first, then few."""
        best = self.value(shape)
        period = max((block.period for block in self.question.chain.blocks), default=1)
        for step in (16 * period, 4 * period, period, max(1, period // 3), 1):
            while time.process_time() < self.until:
                tried = [(self.value(other), other) for other in self._moves(shape, step)]
                value, other = min(tried, default=(np.inf, shape), key=lambda item: (item[0], item[1]))
                if value >= best:
                    break
                best, shape = value, other
        return best, shape

    def _moves(self, shape: Shape, step: int) -> list[Shape]:
        """Shift the ends between the slowest stage and every other stage, through all between them."""
        size, gpus, ends = shape
        seconds = [stage.seconds for stage in self.stages(shape)]
        slow = int(np.argmax(seconds))
        made = []
        for other in range(len(gpus)):
            moved = list(ends)
            for index in range(min(slow, other), max(slow, other)):
                moved[index] += step if other < slow else -step
            spans = [b - a for a, b in zip([0, *moved[:-1]], moved, strict=True)]
            if other != slow and min(spans) > 0:
                made.append((size, gpus, tuple(moved)))
        return made

    def plan(self, shape: Shape) -> PerOpPlan:
        size, gpus, _ = shape
        stages = []
        for count, found in zip(gpus, self.stages(shape), strict=True):
            layouts = layouts_of(self.question, size, count)
            stages.append(
                Stage(
                    gpus=count,
                    layouts=tuple(layouts[index] for index in found.layouts),
                    recompute=tuple(bool(flag) for flag in found.recompute),
                )
            )
        return PerOpPlan(stages=tuple(stages), micro_batch=size)


def uniform_shapes(question: Question) -> list[Shape]:
    """Plans with equal stages: what is called uniform elsewhere, and where balancing may begin as well."""
    count, made = len(question.chain.rows), []
    for stages in question.stage_range:
        gpus, rest = divmod(question.gpus, stages)
        if rest or gpus not in gpu_counts(question):
            continue
        ends = tuple(round(count * (index + 1) / stages) for index in range(stages))
        made += [(size, (gpus,) * stages, ends) for size in micro_batches(question)]
    return made


def search_deep(question: Question, limit: float = float("inf"), keep: int = 8) -> Answer:
    """The best plan found for a deep model."""
    began = time.process_time()
    until = began + limit
    balancer = Balancer(question, until)
    shapes = _sketched(question) + sorted(
        uniform_shapes(question), key=lambda shape: (balancer.value(shape), shape)
    )[:2]  # fmt: skip
    made = sorted((balancer.balanced(shape) for shape in shapes), key=lambda item: (item[0], item[1]))
    made = [item for item in made if np.isfinite(item[0])]
    if not made:
        raise InfeasibleError(nothing_fits(question))
    plans = list(dict.fromkeys(balancer.plan(shape) for _, shape in made))[:keep]
    return Answer(
        plan=plans[0],
        cost=evaluate(question, plans[0]),
        bound=min(max(layer_bound(question, size), plain_bound(question, size)) for size in micro_batches(question)),
        others=tuple(plans[1:]),
        method="coarse cut and balance",
        solved=len(balancer.filler.known),
        cpu_seconds=time.process_time() - began,
        complete=time.process_time() < until,
    )


def _sketched(question: Question) -> list[Shape]:
    """Cuts of the coarse model under its stage bounds, one per micro batch that may win."""
    thick = coarse(question)
    factor = question.chain.layers / thick.chain.layers
    shapes = []
    for size, gpus, ends in Search(thick).sketch():
        moved = [_thin(question.chain, thick.chain, end, factor) for end in ends]
        spans = [b - a for a, b in zip([0, *moved[:-1]], moved, strict=True)]
        if min(spans) > 0:
            shapes.append((size, gpus, tuple(moved)))
    return shapes


def _thin(chain: Chain, thick: Chain, end: int, factor: float) -> int:
    """The operator of the model where a cut of the coarse model falls, at a whole layer."""
    shift = 0
    for own, coarse_block in zip(chain.blocks, thick.blocks, strict=True):
        if end <= coarse_block.start:
            return end + shift
        if end < coarse_block.end:
            layers = round((end - coarse_block.start) / coarse_block.period * factor)
            return own.start + min(layers, own.repeats) * own.period
        shift = own.end - coarse_block.end
    return end + shift
