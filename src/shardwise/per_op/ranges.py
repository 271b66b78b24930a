"""All ranges of operators that a stage could hold, equal ones folded, so that 1,000 layers cost what 10 do.

A range is found from its first operator (forward), where that is in the first of the equal layers or in none; or,
where it begins in a later layer and reaches beyond the last, from its end (backward).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.per_op.chain import Chain

Array = np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranges:
    """Numbers of the distinct ranges."""

    count: int
    """Operators."""
    longest: int
    """Operators of the longest range."""
    starts: Array
    """First operators of forward ranges."""
    ends: Array
    """Ends of backward ranges."""
    number: Array
    """[first, end] number of the range; -1: none, or longer than the longest."""

    @property
    def total(self) -> int:
        return len(self.starts) * self.longest + len(self.ends) * self.count

    def of(self, number: int) -> tuple[int, int]:
        """First operator and end of a range."""
        forward = len(self.starts) * self.longest
        if number < forward:
            first = int(self.starts[number // self.longest])
            return first, first + number % self.longest + 1
        at, first = divmod(number - forward, self.count)
        return first, int(self.ends[at])


def ranges_of(chain: Chain, longest: int) -> Ranges:
    count = len(chain.rows)
    longest = min(longest, count)
    shift, limit = np.zeros(count, dtype=int), np.full(count, count)
    late = np.zeros(count, dtype=bool)
    for block in chain.blocks:
        inside = np.arange(block.start, block.end)
        shift[inside] = (inside - block.start) // block.period * block.period
        limit[inside] = block.end
        late[inside] = shift[inside] > 0
    starts = np.flatnonzero(~late)
    place = np.full(count, -1)
    place[starts] = np.arange(len(starts))
    first, length = np.arange(count)[:, None], np.arange(1, longest + 1)[None, :]
    end = first + length
    beyond = late[:, None] & (end > limit[:, None]) & (end <= count)
    ends = np.unique(end[beyond])
    end_place = np.zeros(count + 1, dtype=int)
    end_place[ends] = np.arange(len(ends))
    number = place[np.arange(count) - shift][:, None] * longest + length - 1
    backward = len(starts) * longest + end_place[np.minimum(end, count)] * count + first
    by_end = np.full((count + 1, count + 1), -1)
    good = end <= count
    by_end[np.broadcast_to(first, end.shape)[good], end[good]] = np.where(beyond, backward, number)[good]
    return Ranges(count=count, longest=longest, starts=starts, ends=ends, number=by_end)
