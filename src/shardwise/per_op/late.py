"""Lower bounds of the ranges that begin inside a run of equal layers and end beyond it.

Their number is that of the first operators times that of the ends; but a path through such a range is one to the last
operator of the run, in some state (layout and flag), and one from there on. Each is walked once for all of its ranges,
and the cheapest sum over the states is the path. States between which nothing depends are one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from shardwise.per_op.answer import Deadline
from shardwise.per_op.chain import ChainBlock
from shardwise.per_op.relaxed import FAR, Relaxed
from shardwise.per_op.tables import Array

CHUNK = 2048
"""Ranges that are joined at once."""
ALONE = FAR * 1e6


class LateRanges(NamedTuple):
    """Ranges and their bounds."""

    firsts: Array
    ends: Array
    seconds: Array
    """[receives from another node, sends to another node, stages behind, range]."""


class _Side(NamedTuple):
    """Paths up to the end of the run, by first operator; or from there on, by end."""

    places: Array
    paths: Array
    """[place, crossing, state, price, behind]."""
    high_f: Array
    high_b: Array
    weight: Array


def late_ranges(relaxed: Relaxed, block: ChainBlock, longest: int, cap: float, deadline: Deadline) -> LateRanges | None:
    """Of one run of layers, those that can take at most `cap` seconds; none: there are none."""
    count = len(relaxed.tables.rows)
    low = max(block.start + block.period, block.end - longest + 1)
    high = min(count, block.end + longest - 1)
    if low >= block.end or high <= block.end:
        return None
    states = _states(relaxed, block.end)
    before = _before(relaxed, block.end, low, states, deadline)
    after = _after(relaxed, block.end, high, states, deadline)
    firsts, ends = _within(before, after, longest, cap)
    good = np.concatenate([_may_be(relaxed, before, after, firsts[part], ends[part]) <= cap
                           for part in _parts(len(firsts), deadline)] or [np.empty(0, bool)])  # fmt: skip
    firsts, ends = firsts[good], ends[good]
    if not len(firsts):
        return None
    made = np.empty((relaxed.node_crossings, 2, relaxed.between.shape[1], len(firsts)))
    for part in _parts(len(firsts), deadline):
        for inside, outside, bounds in _joined(relaxed, before, after, firsts[part], ends[part]):
            made[inside, outside, :, part] = bounds
    return LateRanges(before.places[firsts], after.places[ends], made)


def _parts(count: int, deadline: Deadline) -> Iterator[slice]:
    for start in range(0, count, CHUNK):
        deadline.check()
        yield slice(start, start + CHUNK)


def _states(relaxed: Relaxed, end: int) -> list[tuple[Array, bool | None]]:
    """Layouts and flag of the run's last operator that the next one tells apart; flag none: both."""
    t = relaxed.tables
    row, last = t.rows[end], t.rows[end - 1]
    layouts = np.eye(len(t.layouts), dtype=bool) if t.cross[row].any() else np.ones((1, len(t.layouts)), dtype=bool)
    counted = not t.starts[row] or t.shared[last]
    flags = (False, True) if t.may[row] and t.may[last] and counted else (None,)
    return [(own, flag) for own in layouts for flag in flags]


def _before(
    relaxed: Relaxed, end: int, low: int, states: list[tuple[Array, bool | None]], deadline: Deadline
) -> _Side:  # fmt: skip
    """Walk back from the last operator of the run, once for every state that it may end in."""
    t, shape = relaxed.tables, (len(states), *relaxed.nu.shape, len(relaxed.tables.layouts))
    keep, make = np.full(shape, ALONE), np.full(shape, ALONE)
    high_f = high_b = weight = 0.0
    paths, highs = [], []
    for first in range(end - 1, low - 1, -1):
        deadline.check()
        row = t.rows[first]
        kept, again = (x[0] for x in relaxed.own(np.array([row])))
        if first == end - 1:
            for place, (layouts, flag) in enumerate(states):
                if flag is not True:
                    keep[place] = np.where(layouts, kept, ALONE)
                if flag is not False:
                    make[place] = np.where(layouts, again, ALONE)
        else:
            after = t.rows[first + 1]
            saving = relaxed.saving(np.array([row]), np.array([after]))[0]
            both, cross = np.minimum(keep, make), t.cross[after]
            on_kept, on_made, on_again = (_step_back(x, cross) for x in (both, make, keep))
            keep, make = on_kept + kept, np.minimum(on_made - saving, on_again) + again
        high_f, high_b = max(high_f, relaxed.least_f[row]), max(high_b, relaxed.least_b[row])
        weight += relaxed.least_w[row]
        best = np.minimum(keep, make)
        paths.append([(best + relaxed.enter(np.array([row]), inside)[0]).min(axis=-1)
                      for inside in range(relaxed.node_crossings)])  # fmt: skip
        highs.append((high_f, high_b, weight))
    return _Side(np.arange(end - 1, low - 1, -1), np.array(paths), *np.array(highs).T)


def _after(
    relaxed: Relaxed, end: int, high: int, states: list[tuple[Array, bool | None]], deadline: Deadline
) -> _Side:  # fmt: skip
    """Walk on behind the run, once from every state that it may end in."""
    t = relaxed.tables
    keep, make = _entered(relaxed, end, states)
    high_f = high_b = weight = 0.0
    paths, highs = [], []
    for last in range(end, high):
        deadline.check()
        row = t.rows[last]
        if last > end:
            kept, again = (x[0] for x in relaxed.own(np.array([row])))
            saving = relaxed.saving(t.rows[[last - 1]], np.array([row]))[0]
            cross = t.cross[row].T
            base = np.minimum(keep, make), np.minimum(keep, make - saving)
            keep, make = _step_back(base[0], cross) + kept, _step_back(base[1], cross) + again
        weight += relaxed.least_w[row]
        best = np.minimum(keep, make)
        paths.append([(best + relaxed.leave(np.array([row]), outside)[0]).min(axis=-1) for outside in range(2)])
        highs.append((high_f, high_b, weight))  # the last operator reserves nothing
        high_f, high_b = max(high_f, relaxed.least_f[row]), max(high_b, relaxed.least_b[row])
    return _Side(np.arange(end + 1, high + 1), np.array(paths), *np.array(highs).T)


def _entered(relaxed: Relaxed, end: int, states: list[tuple[Array, bool | None]]) -> tuple[Array, Array]:
    """The first operator behind the run, kept and made again, after every state."""
    t, row = relaxed.tables, relaxed.tables.rows[end]
    kept, again = (x[0] for x in relaxed.own(np.array([row])))
    saving = relaxed.saving(t.rows[[end - 1]], np.array([row]))[0]
    keep, make = [], []
    for layouts, flag in states:
        free = np.where(layouts, 0.0, ALONE)
        change = (free[:, None] + t.cross[row]).min(axis=0)
        saved = (free[:, None] - saving[..., None] + t.cross[row]).min(axis=-2) if flag else change
        keep.append(kept + change)
        make.append(again + np.minimum(change, saved))
    return np.array(keep), np.array(make)


def _within(before: _Side, after: _Side, longest: int, cap: float) -> tuple[Array, Array]:
    """Places of both sides whose sum is within the cap where memory costs nothing."""
    fore = before.paths[:, :, :, 0, 0].min(axis=(1, 2))
    back = after.paths[:, :, :, 0, 0].min(axis=(1, 2))
    good = fore[:, None] + back[None, :] <= cap
    good &= after.places[None, :] - before.places[:, None] <= longest
    firsts, ends = np.nonzero(good)
    return firsts, ends


def _may_be(relaxed: Relaxed, before: _Side, after: _Side, firsts: Array, ends: Array) -> Array:
    """What ranges take at least, wherever they stand."""
    fore, back = (side.paths[..., 0].min(axis=1) for side in (before, after))
    return relaxed.least(_meeting(fore[firsts], back[ends]), _reserve(before, after, firsts, ends))


def _joined(
    relaxed: Relaxed, before: _Side, after: _Side, firsts: Array, ends: Array
) -> Iterator[tuple[int, int, Array]]:  # fmt: skip
    """Crossings and [behind, range] bounds."""
    reserve = _reserve(before, after, firsts, ends)
    for inside in range(before.paths.shape[1]):
        for outside in range(2):
            paths = _meeting(before.paths[firsts, inside], after.paths[ends, outside])
            yield inside, outside, relaxed.priced(paths, reserve)


def _reserve(before: _Side, after: _Side, firsts: Array, ends: Array) -> Array:
    highs = np.maximum(before.high_f[firsts], after.high_f[ends])
    highs += np.maximum(before.high_b[firsts], after.high_b[ends])
    found: Array = np.maximum(highs, before.weight[firsts] + after.weight[ends])
    return found


def _meeting(before: Array, after: Array) -> Array:
    """The cheapest sum over the states, which are the second axis of both."""
    found: Array = before[:, 0] + after[:, 0]
    for state in range(1, before.shape[1]):
        np.minimum(found, before[:, state] + after[:, state], out=found)
    return found


def _step_back(value: Array, cross: Array) -> Array:
    """Cheapest change of layout seen from before: [..., layout after] and [before, after]."""
    if not cross.any():
        return np.broadcast_to(value.min(axis=-1, keepdims=True), value.shape)
    found: Array = value[..., :1] + cross[:, 0]
    for after in range(1, value.shape[-1]):
        np.minimum(found, value[..., after : after + 1] + cross[:, after], out=found)
    return found
