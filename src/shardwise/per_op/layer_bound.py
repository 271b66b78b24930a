"""A lower bound that knows memory and costs nothing in depth: how many whole layers stages of so many seconds can hold.

A walk over q x n layers is q walks over n: no walk through a stage is cheaper than its number of whole layers times the
cheapest walk through one. At every price of memory this limits the layers of a stage, and a small dynamic programme
over GPUs and stages says whether all layers find room; a cut inside a layer is granted to both sides.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from shardwise.per_op.chain import Array
from shardwise.per_op.cut import moves
from shardwise.per_op.question import OperatorQuestion
from shardwise.per_op.relaxed import Relaxed, step
from shardwise.per_op.tables import NEVER, gpu_counts, tables_of


def least_work(question: OperatorQuestion, samples: int) -> np.ndarray:
    """The fewest GPU seconds of every operator of the chain; infinite where no stage can run the micro batch."""
    least = np.full(len(question.profile.ops), np.inf)
    for gpus in gpu_counts(question):
        tables = tables_of(question, samples, gpus)
        if tables.layouts:
            least = np.minimum(least, gpus * tables.work.min(axis=0))
    found: np.ndarray = least[np.array(question.chain.rows)]
    return found


def plain_bound(question: OperatorQuestion, samples: int) -> float:
    """The plainest bound: all GPU seconds, evenly spread."""
    passes = question.passes(samples)
    spread = float(least_work(question, samples).sum()) / question.gpus
    return question.pricing.beside(passes) + passes * spread


def longest_stage(question: OperatorQuestion, samples: int) -> float:
    """Seconds that no stage exceeds, whatever its operators, layouts and flags: above it no bound need be believed."""
    most = 0.0
    for gpus in gpu_counts(question):
        tables = tables_of(question, samples, gpus)
        if not tables.layouts:
            continue
        changes = np.where(tables.cross < NEVER, tables.cross, 0.0).max(axis=(1, 2))
        work = np.where(tables.work < NEVER, tables.work, 0.0)
        each = np.maximum(0.0, (work + np.maximum(0.0, tables.forward)).max(axis=0) + changes)
        ends = max(0.0, float(tables.enter.max())) + max(0.0, float(tables.leave.max()))
        most = max(most, float(each[tables.rows].sum()) + ends)
    return most * (1 + 1e-9)


STEPS = 40


def layer_bound(question: OperatorQuestion, samples: int) -> float:
    """Seconds that no plan with this micro batch is below; 0 where the model is not one run of equal layers."""
    stages = question.stage_range
    if len(question.chain.blocks) != 1 or not len(stages):
        return 0.0
    limits = _limits(question, samples, stages[-1])
    if not limits:
        return float("inf")
    passes = question.passes(samples)
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


def _limits(question: OperatorQuestion, samples: int, most: int) -> dict[int, tuple[Array, Array]]:
    """GPUs -> [price, behind] cost of one layer, and price of the memory that is there."""
    block = question.chain.blocks[0]
    found = {}
    for gpus in gpu_counts(question):
        tables = tables_of(question, samples, gpus)
        if not tables.layouts:
            continue
        relaxed = Relaxed(question, tables, samples, range(most), prices=40)
        rows = tables.rows[block.start : block.start + block.period]
        keep, make = relaxed.own(rows[:1])
        for before, row in pairwise(rows):
            kept, again = relaxed.own(np.array([row]))
            cross, saving = tables.cross[[row]], relaxed.saving(np.array([before]), np.array([row]))
            on_again = np.minimum(keep, make - saving)
            keep, make = step(np.minimum(keep, make), cross) + kept, step(on_again, cross) + again
        layer = np.minimum(keep, make).min(axis=-1)[0]
        high_f, high_b = relaxed.least_f[rows[:-1]].max(initial=0.0), relaxed.least_b[rows[:-1]].max(initial=0.0)
        room = relaxed.per_byte * (relaxed.limit - high_f - high_b)
        found[gpus] = layer @ relaxed.between, room @ relaxed.between
    return found


def _holds(question: OperatorQuestion, limits: dict[int, tuple[Array, Array]], before: Array, seconds: float) -> bool:
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


def _before(question: OperatorQuestion, counts: list[int]) -> Array:
    """[GPUs left, choice] GPUs left after a stage of so many; one more than all where it may not be."""
    return np.array(
        [
            [left - gpus if gpus <= left and moves(question, gpus, left)[0] else question.gpus + 1 for gpus in counts]
            for left in range(question.gpus + 1)
        ]
    )
