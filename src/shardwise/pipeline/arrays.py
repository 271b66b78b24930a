"""The scheduling problem as arrays: what the bounds, the builder and the annealer read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shardwise.errors import InfeasibleError, InputError
from shardwise.pipeline.action import Schedule, check_size
from shardwise.pipeline.costs import ROUNDING, Costs

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Objective = Literal["makespan", "period"]
NEVER = 1e300
"""Stands for no limit and never, as in build.c."""
_CHANCE = 1e-3
"""Share of the largest size below which a common divisor of sizes says nothing."""
_MOST_CHUNKS = 32
"""As many as build.c has places for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderArrays:
    """Chunks on ranks, their times and bytes, and the room of every rank."""

    pp: int
    vpp: int
    microbatches: int
    rank_of: Ints
    """Per chunk."""
    position: Ints
    """Per chunk: its place among its rank's chunks, in model order."""
    chunk_of: Ints
    """Per rank and position."""
    f: Floats
    i: Floats
    w: Floats
    hop: Floats
    """Between chunk c and c + 1; 0 inside a rank; the last entry is not used."""
    held: Floats
    """Bytes that F takes."""
    freed: Floats
    """Bytes that I gives back; W gives back the rest."""
    room: Floats
    """Per rank: bytes for activations, with what rounding may add: one tolerance for orders and bounds."""

    @property
    def chunks(self) -> int:
        return self.pp * self.vpp

    @property
    def actions(self) -> int:
        return 3 * self.chunks * self.microbatches

    @property
    def duration(self) -> Floats:
        return np.concatenate((self.f, self.i, self.w))

    @property
    def limited(self) -> bool:
        """Whether memory can bind at all."""
        return bool((self.room < self.microbatches * self.held[self.chunk_of].sum(axis=1)).any())

    @property
    def unit(self) -> float:
        """A typical action."""
        return float(self.duration.mean())

    def schedule(self, rows: Ints, name: str) -> Schedule:
        codes = tuple(rows.reshape(self.pp, -1).astype(np.int64))
        return Schedule(codes=codes, chunks=self.chunks, microbatches=self.microbatches, name=name)

    def rows(self, schedule: Schedule) -> Ints:
        return np.concatenate(schedule.codes).astype(np.int32)


def make_problem(costs: Costs, rank_of: Sequence[int], microbatches: int) -> OrderArrays:
    """The problem of these costs; says the smallest feasible limit where there is no room for one micro batch."""
    pp, chunks = 1 + max(rank_of), len(rank_of)
    if costs.chunks != chunks or chunks % pp:
        raise InputError(f"the costs are of {costs.chunks} chunks; {pp} ranks with {chunks / pp:g} each have {chunks}")
    if chunks // pp > _MOST_CHUNKS:
        raise InputError(f"{chunks // pp} chunks a rank; up to {_MOST_CHUNKS} are planned")
    if microbatches < 1:
        raise InputError(f"{microbatches} micro batches; at least 1 is needed")
    check_size(pp, chunks // pp, microbatches)
    ranks = np.array(rank_of, dtype=np.int32)
    chunk_of = np.array([np.flatnonzero(ranks == rank) for rank in range(pp)], dtype=np.int32)
    position = np.empty(chunks, dtype=np.int32)
    for own in chunk_of:
        position[own] = np.arange(len(own))
    held, freed = (np.array([size(c) for c in range(chunks)]) for size in (costs.held, costs.freed))
    room = np.minimum(np.array(costs.limits(pp)) * (1 + ROUNDING), NEVER)
    _check_room(costs, held[chunk_of].sum(axis=1), room)
    sizes = np.stack((held, freed, held - freed))[:, chunk_of].transpose(1, 0, 2).reshape(pp, -1)
    room = np.array([_reachable(size, own) for size, own in zip(room, sizes, strict=True)])
    return OrderArrays(
        pp=pp, vpp=chunks // pp, microbatches=microbatches, rank_of=ranks, position=position, chunk_of=chunk_of,
        f=np.array(costs.f), i=np.array(costs.i), w=np.array(costs.w), hop=_hops(costs, ranks),
        held=held, freed=freed, room=room,
    )  # fmt: skip


def _reachable(room: float, sizes: Floats) -> float:
    """The largest sum of sizes that fits, where they are multiples of one; else all of the room.

    What lies between two multiples is never used, and bounds that count it are too low.
    """
    if room >= NEVER or not (step := _common_step(sizes)):
        return room
    return min(room, float(np.floor(room / step * (1 + ROUNDING)) * step * (1 + ROUNDING)))


def _common_step(sizes: Floats) -> float:
    """The largest size that all are multiples of, but for rounding; 0 where there is none above chance."""
    largest = float(sizes.max())
    step = 0.0
    for size in sizes.tolist():
        rest = size
        while rest > _CHANCE * largest:
            step, rest = rest, abs(step - rest * round(step / rest))
    if step <= 0 or np.abs(sizes / step - np.round(sizes / step)).max() > ROUNDING:
        return 0.0
    return step


def _hops(costs: Costs, ranks: Ints) -> Floats:
    hop = np.zeros(len(ranks))
    hop[: len(costs.hop)] += costs.hop
    hop[: len(costs.transfer)] += costs.transfer
    hop[:-1][ranks[1:] == ranks[:-1]] = 0.0
    return hop


def _check_room(costs: Costs, least: Floats, room: Floats) -> None:
    """All chunks of a rank hold one micro batch at once, as its first gradient comes after its last forward."""
    short = [rank for rank in range(len(room)) if room[rank] < least[rank]]
    if not short:
        return
    static = costs.static or (0.0,) * len(room)
    needs = [static[rank] + float(least[rank]) for rank in range(len(room))]
    worst = max(short, key=lambda rank: needs[rank] - costs.memory_limit[rank])
    raise InfeasibleError(
        f"no schedule fits: rank {worst} needs at least {costs.shown(needs[worst])} for one micro batch "
        f"and has {costs.shown(costs.memory_limit[worst])}; the smallest feasible limit is {costs.shown(max(needs))}"
    )
