"""What must precede what on a rank, as numbers of micro batches, and how long it takes to make room.

The streams of a rank are F, I and W of each of its chunks; each is first in, first out, which costs nothing. So all
that comes before an action is a number of actions of each stream. An *offset* K from stream a to stream b says that
micro batch n of a precedes micro batch n + K of b in any order: 0 along the chain, and what fits where a makes room for
the forward b. Offsets add up along paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.pipeline.arrays import Floats, Ints, OrderArrays
from shardwise.pipeline.costs import ROUNDING


@dataclass(frozen=True, eq=False)
class Streams:
    """A problem seen from some of its ranks: arrays are by rank, kind (F, I, W) and position."""

    problem: OrderArrays
    ranks: Ints

    @cached_property
    def chunk_of(self) -> Ints:
        return self.problem.chunk_of[self.ranks]

    @cached_property
    def time(self) -> Floats:
        return self.problem.duration.reshape(3, -1)[:, self.chunk_of].transpose(1, 0, 2)

    @cached_property
    def up_to(self) -> Floats:
        """Time of one micro batch in the positions up to each."""
        return np.cumsum(self.time, axis=2)

    @cached_property
    def from_here(self) -> Floats:
        """The same from each position on."""
        return np.cumsum(self.time[:, :, ::-1], axis=2)[:, :, ::-1]

    @cached_property
    def held(self) -> Floats:
        """By rank and position."""
        return self.problem.held[self.chunk_of]

    @cached_property
    def freed(self) -> Floats:
        """Bytes that each action gives back."""
        freed = self.problem.freed[self.chunk_of]
        return np.stack((np.zeros_like(freed), freed, self.held - freed), axis=1)

    @cached_property
    def took(self) -> Floats:
        """Bytes that each action takes."""
        none = np.zeros_like(self.held)
        return np.stack((self.held, none, none), axis=1)

    @cached_property
    def opened(self) -> Floats:
        """Bytes that W alone may give back after each action: more after I, fewer after W."""
        kept = self.freed[:, 2]
        return np.stack((np.zeros_like(kept), kept, -kept), axis=1)

    @cached_property
    def taken(self) -> Floats:
        """By rank and position: bytes of one micro batch in the chunks up to it."""
        return np.cumsum(self.held, axis=1)

    @cached_property
    def _fits(self) -> Floats:
        return self.problem.room[self.ranks]

    @cached_property
    def room(self) -> Floats:
        """No more than all that is ever taken; without what rounding may add, which is a share of the time as small as
        that of the bytes.
        """
        return np.minimum(self._fits / (1 + ROUNDING), (self.problem.microbatches + 1) * self.taken[:, -1])

    @cached_property
    def noise(self) -> Floats:
        """By rank: bytes that may be no more than rounding, so that nothing follows from them."""
        return 4 * ROUNDING * self.room

    @cached_property
    def offsets(self) -> Floats:
        """By rank, from (kind, position) to (kind, position)."""
        ranks, v = self.held.shape
        found = np.full((ranks, 3, v, 3, v), np.inf)
        for j in range(v):
            found[:, 0, j, 0, j + 1 :] = found[:, 0, j, 1, :] = found[:, 1, j, 1, :j] = found[:, 1, j, 2, j] = 0.0
            found[:, 0, j, 0, j] = found[:, 1, j, 1, j] = found[:, 2, j, 2, j] = 1.0
            found[:, 1, j, 0, : j + 1] = self._fit_before_gradient(j)
            found[:, 2, j, 0, : j + 1] = self._fit_before_weight(j)
        return _closed(found.reshape(ranks, 3 * v, 3 * v)).reshape(found.shape)

    @cached_property
    def before_forward(self) -> Floats:
        """By position of F, and by rank, kind and position: the offset to F."""
        return np.ascontiguousarray(np.moveaxis(self.offsets[:, :, :, 0], -1, 0))

    @cached_property
    def after_gradient(self) -> Floats:
        """By position of I, and by rank, kind and position: the offset from I."""
        return np.ascontiguousarray(np.moveaxis(self.offsets[:, 1], 1, 0))

    def _fit_before_gradient(self, j: int) -> Floats:
        """Forwards of each position up to j that fit beyond micro batch n while I of position j, n, is not done.

        Chunks up to j have given back nothing of what they took since n. Those after the position hold n itself, those
        before it no fewer than the position does.
        """
        taken = self.taken[:, : j + 1]
        return _whole(self._fits[:, None] - (self.taken[:, j, None] - taken), taken)

    def _fit_before_weight(self, j: int) -> Floats:
        """The same for W: every forward since is still held by its own chunk, or at least by W of position j."""
        least = np.minimum(self.freed[:, 2, j, None], self.held[:, : j + 1])
        return _whole(np.broadcast_to(self._fits[:, None], least.shape), least)

    @cached_property
    def useful(self) -> Floats:
        """Time of what makes room: I, as W needs it, and W where it gives anything back."""
        none = np.zeros_like(self.held)
        weight = np.where(self.freed[:, 2] > 0, self.time[:, 2], 0.0)
        return np.stack((none, np.where(self.held > 0, self.time[:, 1], 0.0), weight), axis=1)

    @cached_property
    def rates(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Time per byte over the positions up to each: the least to give back by a W whose I is done; by the I of
        another micro batch, with its W or without; to take by F; and the most that leaving out a W, or both, saves.
        """
        f, i, w = self.time.transpose(1, 0, 2)
        weight, both = _per_byte(w, self.freed[:, 2]), _per_byte(i + w, self.held)
        gradient = np.minimum(_per_byte(i, self.freed[:, 1]), both)
        least = (np.minimum(gradient, weight), gradient, _per_byte(f, self.held))
        weight, gradient, forward = (_known(np.minimum.accumulate(one, axis=1)) for one in least)
        most = np.maximum(_known(_per_byte(w, self.freed[:, 2])), _known(both))
        return weight, gradient, forward, np.maximum.accumulate(most, axis=1)

    @cached_property
    def life(self) -> Floats:
        """Least time from the start of F to the end of I."""
        p, there, back = self.problem, self.forward_lag, self.gradient_lag
        return np.asarray((there[-1] - there + p.f[-1] + back[-1] - back + p.i[-1])[self.chunk_of])

    @cached_property
    def pressure(self) -> Floats:
        """By rank: bytes x least time that a micro batch holds them, over the room."""
        area = (self.held * self.life + self.freed[:, 2] * self.time[:, 2]).sum(axis=1)
        return np.where(self.room > 0, area / np.where(self.room > 0, self.room, 1.0), 0.0)

    @cached_property
    def forward_lag(self) -> Floats:
        """By chunk: from the first forward of the chain to its own."""
        return np.concatenate(([0.0], np.cumsum((self.problem.f + self.problem.hop)[:-1])))

    @cached_property
    def gradient_lag(self) -> Floats:
        """By chunk: from the end of its gradient to the end of the chain's last."""
        return np.concatenate(([0.0], np.cumsum((self.problem.i + self.problem.hop)[:-1])))


def every(problem: OrderArrays) -> Streams:
    """Seen from all ranks."""
    return Streams(problem, np.arange(problem.pp, dtype=np.int32))


def _whole(room: Floats, each: Floats) -> Floats:
    return np.where(each > 0, np.floor(room / np.where(each > 0, each, 1.0)), np.inf)


def _per_byte(time: Floats, size: Floats) -> Floats:
    return np.where(size > 0, time / np.where(size > 0, size, 1.0), np.inf)


def _known(rate: Floats) -> Floats:
    """0 where there are no bytes at all."""
    return np.where(np.isinf(rate), 0.0, rate)


def _closed(offsets: Floats) -> Floats:
    """The least offset along any path (Floyd, Warshall)."""
    for via in range(offsets.shape[1]):
        offsets = np.minimum(offsets, offsets[:, :, via, None] + offsets[:, None, via, :])
    return offsets
