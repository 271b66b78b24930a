"""A problem whose ranks run at different speeds: every kind of rank has the whole problem with its own times and
memory, and a rank takes its columns from its kind's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwise.partition.graph import Floats, Ints, Ready


class MixedReady(Ready):
    """Several problems over one order, each ready; what is asked of a chunk or a rank is asked of its kind's."""

    def __init__(self, kinds: Sequence[Ready], kind_of: Sequence[int], hops: Sequence[float]) -> None:
        """`kind_of`: the kind of every rank; `hops`: time of the message from every chunk to the next."""
        self.__dict__.update(kinds[0].__dict__)
        self.kinds, self.kind_of = kinds, kind_of
        of_chunk, ranks = [kind_of[rank] for rank in self.rank_of], range(len(kind_of))
        chunks = range(self.chunks)
        self.chunk_time = np.stack([one.option_time for one in kinds])[of_chunk].transpose(1, 0, 2)
        self.chunk_held = np.stack([one.option_held for one in kinds])[of_chunk]
        self.chunk_static = np.stack([one.option_static for one in kinds])[of_chunk]
        self.fixed_time = np.stack([kinds[of_chunk[c]].fixed_time[:, c] for c in chunks], axis=1)
        self.fixed_held = np.array([kinds[of_chunk[c]].fixed_held[c] for c in chunks])
        self.fixed_static = np.array([kinds[kind_of[rank]].fixed_static[rank] for rank in ranks])
        self.set_limits(np.array([kinds[kind_of[rank]].limits[rank] for rank in ranks]))
        self.set_hops(hops)

    def set_limits(self, limits: Floats) -> None:
        super().set_limits(limits)
        for one in self.kinds:
            one.set_limits(limits)

    def durations(self, counts: Ints | Floats) -> Floats:
        times = np.einsum("...co,kco->...kc", counts.astype(float), self.chunk_time)
        return np.ascontiguousarray(times + self.fixed_time)

    def peaks(self, counts: Ints) -> Floats:
        held = (counts * self.chunk_held).sum(axis=-1) + self.fixed_held
        return self.highest(held, (counts * self.chunk_static).sum(axis=-1))
