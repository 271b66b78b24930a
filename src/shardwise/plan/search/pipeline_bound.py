"""Lower bounds on the passes of a pipeline, however its layers are cut.

Let t_r = f_r + b_r be stage r's seconds per micro batch, T the sum over stages, m the micro batches. In 1F1B rank r runs
min(m, p - r) forwards before its first backward, which waits for micro batch 0 to go down and come back, so

    makespan >= T + (m - 1) t_r - min(m - 1, p - 1 - r) f_r        for every r                             (1)

In any order that keeps B whole, rank r waits for the first chunks of ranks before it, and they follow it at the end:

    makespan >= sum of t_c over chunks c < r + m t_r                                                        (2)

The slowest stage takes `slowest` or more. If it takes no more, all but `slack` layers' worth of stages are full, so one
of the last slack + 1 is; else some stage takes `next` or more. The smaller of both cases is a bound.
"""

from __future__ import annotations

import numpy as np

from shardwise.plan.search.table import Floats
from shardwise.plan.search.types import Layout
from shardwise.plan.search.work import Work


def makespan(layout: Layout, work: Work, layers: int, hop: float, shown: float) -> Floats:
    """Seconds of all passes at least. `hop`: one send; `shown`: what a pass of a rank shows of its sends."""
    m, p = layout.microbatches, layout.pp
    if p == 1:
        return m * work.total
    stage = 2 * shown
    slow = m * (work.slowest + stage)
    messages = 2 * (p - 1) * hop
    if layout.schedule == "1f1b":
        return np.maximum(slow, _one_f_one_b(m, p, work, stage) + messages)
    if layout.schedule == "gpipe":
        return work.total + p * stage + (m - 1) * (work.slowest + stage) + messages
    if layout.schedule == "interleaved":
        return np.maximum(slow, _interleaved(layout, work, layers, stage))
    if layout.schedule == "zb-h1":
        return np.maximum(slow, _zb_h1(m, p, work, shown))
    return slow


def _one_f_one_b(m: int, p: int, work: Work, stage: float) -> Floats:
    """(1) in both cases."""
    total = work.total + p * stage
    share = np.maximum(work.share, 0.5) if stage else work.share

    def bound(seconds: Floats, after: Floats | float) -> Floats:
        return total + ((m - 1) - np.minimum(m - 1, after) * share) * (seconds + stage)

    reach = np.minimum(work.slack, p - 1)
    last, first = bound(work.full_last, 0.0), bound(work.full_first, p - 1)
    if p > 2:
        inner = bound(work.full, np.maximum(1.0, np.minimum(reach, p - 2)))
        full = np.where(reach > 0, np.minimum(last, inner), np.maximum(last, inner))
    else:
        full = last
    full = np.where(reach >= p - 1, np.minimum(full, first), full)
    # leading layers outside the first stage make a full one shorter than it looks
    full = np.where((work.leading > 0) & (reach >= p - 2), bound(work.slowest, p - 1), full)
    return np.minimum(full, bound(work.next, p - 1))


def _interleaved(layout: Layout, work: Work, layers: int, stage: float) -> Floats:
    """(2) in both cases; chunks between the ends hold the even share of layers or more."""
    m, p, v = layout.microbatches, layout.pp, layout.vpp
    even = layers // (p * v)
    chunk = even * work.layer + np.minimum(even, work.block) * work.again + stage / v
    begin = np.maximum(0.0, (even - 1) * work.layer + work.first) + stage / v

    def bound(seconds: Floats, rank: Floats | float) -> Floats:
        before = np.where(np.asarray(rank) > 0, begin + np.maximum(np.asarray(rank) - 1, 0) * chunk, 0.0)
        return m * (seconds + stage) + before

    reach = np.minimum(work.slack, p - 1)
    last, first = bound(work.full_last, p - 1.0), bound(work.full_first, 0.0)
    if p > 2:
        inner = bound(work.full, np.maximum(p - 1 - np.maximum(reach, 1.0), 0.0))
        full = np.where(reach > 0, np.minimum(last, inner), np.maximum(last, inner))
    else:
        full = last
    full = np.where(reach >= p - 1, np.minimum(full, first), full)
    return np.where(work.leading > 0, m * (work.slowest + stage), np.minimum(full, bound(work.next, 0.0)))


def _zb_h1(m: int, p: int, work: Work, shown: float) -> Floats:
    """As (1), but only forwards of other ranks are sure to come before: W fills the rest."""
    share = np.maximum(work.share, 0.5) if shown else work.share
    seconds = work.slowest + 2 * shown
    return work.total_forward + p * shown + np.maximum(m - p * share, 0.0) * seconds
