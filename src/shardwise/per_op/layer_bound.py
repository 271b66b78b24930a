"""A lower bound that knows memory and costs nothing in depth: how many whole layers stages of so many seconds can hold.

A walk over q x n layers is q walks over n: no walk through a stage is cheaper than its number of whole layers times the
cheapest walk through one. At every price of memory this limits the layers of a stage, and a small dynamic programme
over GPUs and stages says whether all layers find room; a cut inside a layer is granted to both sides.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from shardwise.per_op.bound import Relaxed, step
from shardwise.per_op.cut import moves
from shardwise.per_op.question import Question
from shardwise.per_op.ranges import Array
from shardwise.per_op.space import gpu_counts
from shardwise.per_op.tables import tables_of

STEPS = 40


def layer_bound(question: Question, micro_batch: int) -> float:
    """Seconds that no plan with this micro batch is below; 0 where the model is not one run of equal layers."""
    stages = question.stage_range
    if len(question.chain.blocks) != 1 or not len(stages):
        return 0.0
    limits = _limits(question, micro_batch, stages[-1])
    if not limits:
        return float("inf")
    passes = question.passes(micro_batch)
    before = _before(question, list(limits))
    low, high = 0.0, 1.0
    while not _holds(question, limits, before, high):
        if high > 1e6:  # no time is enough: memory is short
            return float("inf")
        low, high = high, 4 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if _holds(question, limits, before, middle) else (middle, high)
    return question.pricing.beside(passes) + passes * low


def _limits(question: Question, micro_batch: int, most: int) -> dict[int, tuple[Array, Array]]:
    """GPUs -> [price, behind] cost of one layer, and price of the memory that is there."""
    block = question.chain.blocks[0]
    found = {}
    for gpus in gpu_counts(question):
        tables = tables_of(question, micro_batch, gpus)
        if not tables.layouts:
            continue
        relaxed = Relaxed(question, tables, micro_batch, most, prices=40)
        rows = tables.rows[block.start : block.start + block.period]
        keep, make = relaxed.own(rows[:1])
        for before, row in pairwise(rows):
            kept, again = relaxed.own(np.array([row]))
            cross, saving = tables.cross[[row]], relaxed.saving(np.array([before]), np.array([row]))
            on_again = np.minimum(keep, make - saving)
            keep, make = step(np.minimum(keep, make), cross) + kept, step(on_again, cross) + again
        layer = np.minimum(keep, make).min(axis=-1)[0]
        high_f, high_b = relaxed.least_f[rows[:-1]].max(initial=0.0), relaxed.least_b[rows[:-1]].max(initial=0.0)
        found[gpus] = layer, relaxed.per_byte * (relaxed.limit - high_f - high_b)
    return found


def _holds(question: Question, limits: dict[int, tuple[Array, Array]], before: Array, seconds: float) -> bool:
    """Whether stages of at most so many seconds can hold all layers."""
    block, stages = question.chain.blocks[0], question.stage_range
    held = np.array([np.floor(((seconds + room) / layer).min(axis=0) + 1e-9) for layer, room in limits.values()])
    value = np.full(question.gpus + 2, -np.inf)  # the last entry stands for what may not be
    value[0] = 0.0
    for count in range(1, stages[-1] + 1):
        inside = np.maximum(0.0, held[:, count - 1]) + (1 if count > 1 else 0)
        value[:-1] = (value[before] + inside).max(axis=1)
        # the two outer layers may stand outside the block: they are what `blocks` leaves out
        if count >= stages[0] and value[question.gpus] >= block.repeats:
            return True
    return False


def _before(question: Question, counts: list[int]) -> Array:
    """[GPUs left, choice] GPUs left after a stage of so many; one more than all where it may not be."""
    return np.array(
        [
            [left - gpus if gpus <= left and moves(question, gpus, left)[0] else question.gpus + 1 for gpus in counts]
            for left in range(question.gpus + 1)
        ]
    )
