"""Bytes x time: how long a rank's activations must be held at least, and that all of it fits into its room.

An activation is held from the start of its F to the end of its I, its *life* at least, which is the way along the chain
and back; what W gives back is held while W runs, besides. Let the rank be through after a span D. F then starts no
later than its tail allows, and I ends no earlier than its head allows. So the activation is held for its life somewhere
between the earliest end less its life and the latest start plus its life, or all the time between them where they
cross. Wherever that is, between two times x and y each is held for as long as it has no place outside, and the sum fits
into room x (y - x). If it does not, D is too short; a longer D asks for no more between the same x and y.

Warm-up and drain come out of it: x is where the memory can be full, y where it no longer is. This is energetic
reasoning (J. Erschler, P. Lopez, "Energy-based approach for task scheduling under time and resources constraints",
1990) with the horizon as the unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.pipeline.arrays import Floats
from shardwise.pipeline.costs import ROUNDING
from shardwise.pipeline.streams import Streams

_STEPS = 32
"""x and y are multiples of what a rank works and one micro batch is on its way, over so many; any choice is sound."""
_RANKS, _SHARE = 8, 0.5
"""Ranks that are looked at, where memory is scarcest; and the share of the floor that bytes x time over the room must
take, as what stays unused is seldom more than that again."""
_PAIRS = 400_000
"""Activations x pairs of x and y at most; where there were more, fewer multiples are taken."""
_ROUNDS = 20
"""Pairs that raise the span of a rank; seldom more than five."""


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """What a rank holds, an entry each: no earlier than `begin`, until `left` before the end, for `life`."""

    begin: Floats
    left: Floats
    life: Floats
    size: Floats
    room: float
    unit: float

    def least_span(self, floor: float) -> float:
        """A span, no less than the floor, that every order takes."""
        for _ in range(_ROUNDS):
            x, y = self._pairs(floor)
            over = self._over(floor, x[:, None], y[:, None])
            worst = int(over.argmax()) if len(over) else 0
            if not len(over) or over[worst] <= 0:
                break
            floor = self._until(floor, float(x[worst]), float(y[worst]))
        return floor

    def _over(self, span: float, x: Floats | float, y: Floats | float) -> Floats:
        """Bytes x time that must be held between x and y, and that there is no room for but for rounding."""
        earliest, latest = self.begin + self.life, span - self.left - self.life  # end and start
        life = np.maximum(self.life, earliest - latest)
        inside = np.minimum(np.minimum(earliest - x, y - latest), np.minimum(life, y - x))
        fits = self.room * ((y - x) + 4 * ROUNDING * span)
        return np.asarray(np.maximum(inside, 0.0) @ self.size - np.ravel(fits))

    def _pairs(self, span: float) -> tuple[Floats, Floats]:
        count = int(span / self.unit) + 1
        step = 1 + int(np.sqrt(0.5 * count**2 * len(self.size) / _PAIRS))
        first, second = np.triu_indices(1 + (count - 1) // step, 1)
        return np.asarray(first * step * self.unit), np.asarray(second * step * self.unit)

    def _until(self, low: float, x: float, y: float) -> float:
        """The span up to which there is no room between x and y."""
        high = 2 * low
        while self._over(high, x, y)[0] > 0:
            low, high = high, 2 * high
        while high - low > ROUNDING * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self._over(middle, x, y)[0] > 0 else (low, middle)
        return low


def spans(streams: Streams, windows: Sequence[tuple[Floats, Floats]], floor: float) -> Iterator[tuple[int, float]]:
    """Ranks and what their span is at least, where that is above the floor and the ranks before.

    `windows`: by rank heads and tails of all actions, from the begin of the span and to its end.
    """
    for rank in _scarce(streams, floor):
        least = _held(streams, rank, *windows[rank]).least_span(floor)
        if least > floor:
            floor = least
            yield rank, least


def _scarce(streams: Streams, floor: float) -> list[int]:
    order = np.argsort(-streams.pressure, kind="stable")[:_RANKS]
    full = streams.problem.microbatches * streams.pressure > _SHARE * floor
    return [rank for rank in order.tolist() if full[rank]]


def _held(streams: Streams, rank: int, head: Floats, tail: Floats) -> _Held:
    problem, own = streams.problem, streams.chunk_of[rank]
    f, i, w = streams.time[rank][:, :, None]
    life = np.broadcast_to(streams.life[rank][:, None], head[0, own].shape)
    begin = np.stack((head[1, own] + i - life, head[2, own]))
    left = np.stack((tail[0, own] + f - life, tail[2, own]))
    size = np.stack((streams.held[rank], streams.freed[rank, 2]))[:, :, None]
    lives = np.stack((life, np.broadcast_to(w, life.shape)))
    busy = float(streams.time[rank].sum()) * problem.microbatches + float(streams.life[rank].max())
    return _Held(
        begin=np.maximum(begin, 0.0).ravel(), left=np.maximum(left, 0.0).ravel(), life=lives.ravel(),
        size=np.broadcast_to(size, lives.shape).ravel(), room=float(streams.room[rank]), unit=busy / _STEPS,
    )  # fmt: skip
