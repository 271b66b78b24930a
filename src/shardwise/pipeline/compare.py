"""Two orders of one pipeline held against each other, operation by operation.

A row that lost one action is not a row of which every later action moved: what both rows have is lined up along their
longest common order, and only actions outside it have moved. Rows hold an action once, so that the longest common order
is a longest rising sequence of places, found by patience sorting in n log n.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from shardwise.pipeline.action import Action, Codes, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """An action that stands elsewhere in the second row."""

    action: Action
    left: int
    """Place in the first row, from 0."""
    right: int
    """Place in the second row, from 0."""
    by: int
    """Actions that stay and that it comes after now, not before (negative: the other way round); never 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDiff:
    """In what the rows of one rank differ."""

    rank: int
    first: int | None
    """The first place, from 0, at which the rows differ; none: they are equal."""
    left: Action | None
    """What the first row has there; none: it has ended."""
    right: Action | None
    """What the second row has there; none: it has ended."""
    moved: tuple[Moved, ...]
    """The fewest actions that must move to make one order of the other, in the first row's order."""
    only_left: tuple[Action, ...]
    """Actions of the first row that the second lacks, in their order."""
    only_right: tuple[Action, ...]
    """Actions of the second row that the first lacks."""
    together_left: tuple[tuple[Action, Action], ...] = ()
    """Passes that run together in the first row only."""
    together_right: tuple[tuple[Action, Action], ...] = ()
    """The same of the second row."""

    @property
    def equal(self) -> bool:
        return self.first is None


def compare_rows(left: Schedule, right: Schedule) -> tuple[RankDiff, ...]:
    """One entry a rank; where one order has fewer ranks, its further rows are empty."""
    chunks, microbatches = max(left.chunks, right.chunks), max(left.microbatches, right.microbatches)
    rows = [[_spelled(one, row, chunks, microbatches) for row in one.codes] for one in (left, right)]
    count = max(map(len, rows))
    first, second = ([*each, *[np.zeros(0, dtype=np.int64)] * (count - len(each))] for each in rows)
    words = Schedule(codes=(), chunks=chunks, microbatches=microbatches)
    found = (_rank(rank, *pair, words) for rank, pair in enumerate(zip(first, second, strict=True)))
    return tuple(_together(one, left, right) for one in found)


def _together(found: RankDiff, left: Schedule, right: Schedule) -> RankDiff:
    """With the passes that run together in one of the rows only."""
    own = [_pairs(one, found.rank) for one in (left, right)]
    lost, new = ([pair for pair in own[k] if pair not in own[1 - k]] for k in (0, 1))
    if not lost and not new:
        return found
    told = replace(found, together_left=tuple(lost), together_right=tuple(new))
    if found.first is not None:
        return told
    first = min(own[k][pair] for k, pairs in enumerate((lost, new)) for pair in pairs)
    action = (lost or new)[0][0]
    return replace(told, first=first, left=action, right=action)


def _pairs(schedule: Schedule, rank: int) -> dict[tuple[Action, Action], int]:
    places = schedule.pairs[rank] if rank < len(schedule.pairs) else ()
    row = schedule.codes[rank] if places else ()
    return {(schedule.decode(int(row[k])), schedule.decode(int(row[k + 1]))): k for k in places}


def _spelled(schedule: Schedule, row: Codes, chunks: int, microbatches: int) -> Codes:
    """The row in the codes of a pipeline of that size: a code says nothing without it."""
    stream, microbatch = np.divmod(row, schedule.microbatches)
    kind, chunk = np.divmod(stream, schedule.chunks)
    return np.asarray((kind * chunks + chunk) * microbatches + microbatch)


def _rank(rank: int, left: Codes, right: Codes, words: Schedule) -> RankDiff:
    first = _first(left, right)
    if first is None:
        return RankDiff(rank=rank, first=None, left=None, right=None, moved=(), only_left=(), only_right=())
    shared_left, shared_right = np.isin(left, right), np.isin(right, left)
    there = [words.decode(int(row[first])) if first < len(row) else None for row in (left, right)]
    return RankDiff(
        rank=rank, first=first, left=there[0], right=there[1],
        moved=_moved(left, right, np.flatnonzero(shared_left), np.flatnonzero(shared_right), words),
        only_left=tuple(words.decode(int(code)) for code in left[~shared_left]),
        only_right=tuple(words.decode(int(code)) for code in right[~shared_right]),
    )  # fmt: skip


def _first(left: Codes, right: Codes) -> int | None:
    shorter = min(len(left), len(right))
    unlike = np.flatnonzero(left[:shorter] != right[:shorter])
    if len(unlike):
        return int(unlike[0])
    return None if len(left) == len(right) else shorter


def _moved(left: Codes, right: Codes, at_left: Codes, at_right: Codes, words: Schedule) -> tuple[Moved, ...]:
    """`at_left`, `at_right`: the places of the actions that both rows have."""
    place = {code: k for k, code in enumerate(right[at_right].tolist())}
    places = [place[code] for code in left[at_left].tolist()]
    stays = longest_rising(places)
    passed = _passed(places, stays)
    return tuple(
        Moved(action=words.decode(int(left[at_left[k]])), left=int(at_left[k]), right=int(at_right[other]), by=by)
        for k, other, by in ((k, places[k], passed[k]) for k in range(len(places)) if k not in stays)
    )


def _passed(places: list[int], stays: set[int]) -> list[int]:
    """By action, how many of those that stay lie before it in the second row and not in the first."""
    kept = np.array([k in stays for k in range(len(places))], dtype=np.int64)
    second = np.zeros(len(places), dtype=np.int64)
    second[places] = kept
    return (np.cumsum(second)[places] - np.cumsum(kept)).tolist() if places else []


def longest_rising(values: list[int]) -> set[int]:
    """Indices of a longest rising sequence of distinct values."""
    tails, heads, before = list[int](), list[int](), [-1] * len(values)
    for k, value in enumerate(values):
        length = bisect_left(tails, value)
        before[k] = heads[length - 1] if length else -1
        tails[length : length + 1] = [value]
        heads[length : length + 1] = [k]
    found, k = set[int](), heads[-1] if heads else -1
    while k >= 0:
        found.add(k)
        k = before[k]
    return found
