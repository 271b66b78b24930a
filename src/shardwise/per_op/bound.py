"""Lower bounds of the seconds of every range on a stage, for all numbers of stages behind, by Lagrangian relaxation.

For a price nu per byte that one micro batch keeps, and nu / c per byte of everything else (c micro batches are held),
the cheapest path over layouts and recompute flags, less the price of the limit, is a lower bound of the time of every
choice that fits. The largest over a few prices is kept. The peak of a recomputed run is left out, the reserve is taken
at its least: the bound stays a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.per_op.answer import ENDLESS, Deadline
from shardwise.per_op.chain import Ranges, ranges_of
from shardwise.per_op.evaluate import alike
from shardwise.per_op.late import late_ranges
from shardwise.per_op.question import OperatorQuestion
from shardwise.per_op.relaxed import FAR, Relaxed, step
from shardwise.per_op.tables import Array, Tables, tables_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageBounds:
    """Lower bounds for stages of one number of GPUs and one micro batch."""

    gpus: int
    samples: int
    ranges: Ranges
    seconds: Array
    """[receives from another node, sends to another node, stages behind that differ, range]; on one node nothing is
    received from another, and only the last stage's output counts as leaving it."""
    alike: tuple[int, ...]
    """Per stages behind: the entry with the same cost."""

    def column(self, receives: int, sends: int, behind: int) -> Array:
        """Of every range, and infinite for what is none."""
        return np.append(self.seconds[min(receives, len(self.seconds) - 1), sends, self.alike[behind]], np.inf)


def stage_bounds(
    question: OperatorQuestion, samples: int, gpus: int, most: int, cap: float, deadline: Deadline = ENDLESS
) -> StageBounds | None:
    """Bounds of all ranges that can take at most `cap` seconds in a pipeline of at most so many stages; none where the
    profile has no layout.
    """
    tables = tables_of(question, samples, gpus)
    if not tables.layouts:
        return None
    ranges = ranges_of(question.chain, _longest(tables, cap))
    same = tuple(alike(question, count, samples) for count in range(min(most, question.gpus - gpus + 1)))
    relaxed = Relaxed(question, tables, samples, range(same[-1] + 1))
    seconds = np.full((relaxed.node_crossings, 2, same[-1] + 1, ranges.total), FAR)
    _forward(relaxed, ranges, seconds, deadline)
    parts = [seconds]
    for block in question.chain.blocks:
        late = late_ranges(relaxed, block, ranges.longest, cap, deadline)
        if late is not None:
            ranges = ranges.extended(late.firsts, late.ends)
            parts.append(late.seconds)
    return StageBounds(
        gpus=gpus, samples=samples, ranges=ranges, seconds=np.concatenate(parts, axis=-1), alike=same
    )  # fmt: skip


def _longest(tables: Tables, cap: float) -> int:
    """Operators of the longest range that could keep within the cap, each at its fastest."""
    work = np.concatenate([[0.0], np.cumsum(tables.work.min(axis=0)[tables.rows])])
    ends = np.searchsorted(work, work + cap, side="right") - 1
    return max(1, int((ends - np.arange(len(work))).max()))


def _forward(relaxed: Relaxed, ranges: Ranges, seconds: Array, deadline: Deadline) -> None:
    rows, count = relaxed.tables.rows, ranges.count
    for inside in range(relaxed.node_crossings):
        starts = ranges.starts
        at = rows[starts]
        kept, again = relaxed.own(at)
        entry = relaxed.enter(at, inside)
        keep, make = entry + kept, entry + again
        high_f, high_b = np.zeros(len(starts)), np.zeros(len(starts))
        weight = np.zeros(len(starts))
        for length in range(1, ranges.longest + 1):
            deadline.check()
            live = starts + length <= count
            if length > 1:
                before, at = at, rows[np.minimum(starts + length - 1, count - 1)]
                kept, again = relaxed.own(at)
                cross = relaxed.tables.cross[at]
                base_kept = np.minimum(keep, make)
                base_again = np.minimum(keep, make - relaxed.saving(before, at))
                keep, make = step(base_kept, cross) + kept, step(base_again, cross) + again
            weight = weight + relaxed.least_w[at]
            reserve = np.maximum(high_f + high_b, weight)  # the last operator reserves nothing
            high_f, high_b = np.maximum(high_f, relaxed.least_f[at]), np.maximum(high_b, relaxed.least_b[at])
            best = np.minimum(keep, make)
            numbers = (np.arange(len(starts)) * ranges.longest + length - 1)[live]
            for outside in range(2):
                paths = (best + relaxed.leave(at, outside)).min(axis=-1)
                seconds[inside, outside][:, numbers] = relaxed.priced(paths, reserve)[:, live]
