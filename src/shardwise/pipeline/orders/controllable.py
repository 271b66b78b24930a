"""V-Half and V-Min: v placement with about half and a third of 1F1B's memory.

Source: Qi et al., "Pipeline Parallelism with Controllable Memory" (2024), and the greedy re-ordering of its authors.
The plan is made in slots of one unit (all costs equal), whatever the real costs are, as their runtime does:

1. a building block, repeated every six slots: when each rank runs F of its early and late chunk, then I late and early;
   W fills idle slots, first in, first out
2. pull actions of warm-up and end into earlier idle slots while no rank needs more memory than the block does
3. squeeze idle slots out, forget the W, pull the end forward once more, and place W again
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.pipeline.action import Action, Schedule

Slots = list[list[int]]
"""Of one rank: the slot of every micro batch of F early, F late, I late, I early, and of the W in their order."""
_EARLY_F, _LATE_F, _LATE_I, _EARLY_I, _W = range(5)


def v_min(pp: int, microbatches: int) -> Schedule:
    gap = 2 if pp % 3 == 0 else 0
    block = [(r, 2 * pp - r - 1, 2 * pp + gap + r, 4 * pp + gap - r - 1) for r in range(pp)]
    return _planned(block, microbatches, "v-min")


def v_half(pp: int, microbatches: int) -> Schedule:
    gap = 0 if pp % 2 else 3
    block = [(2 * r, 3 * pp - r - 2, 3 * pp + gap + 2 * r - 1, 6 * pp + gap - r - 2) for r in range(pp)]
    return _planned(block, microbatches, "v-half")


def _planned(block: list[tuple[int, int, int, int]], microbatches: int, name: str) -> Schedule:
    plan = [[list(range(first, first + 6 * microbatches, 6)) for first in row] for row in block]
    plan = _Pull(ranks=[_with_weights(row) for row in plan], warmup=True).run()
    plan = [row[:_W] for row in _squeezed(plan)]
    plan = _Pull(ranks=plan, warmup=False).run()
    plan = [row[:_W] for row in _squeezed([_with_weights(row) for row in plan])]
    rows = [_row(rank, len(plan), slots) for rank, slots in enumerate(plan)]
    return Schedule.of(rows, name=name)


def _with_weights(slots: Slots) -> Slots:
    """With the W, oldest gradient first: each in the first idle slot after its gradient and the W before it."""
    gradients = np.sort(np.concatenate((slots[_LATE_I], slots[_EARLY_I])))
    busy = np.concatenate(slots[:_W])
    idle = np.ones(int(busy.max()) + 2 + len(gradients), dtype=bool)
    idle[busy] = False
    idle = np.flatnonzero(idle)
    k = np.arange(len(gradients))
    place = np.maximum.accumulate(np.searchsorted(idle, gradients) - k) + k
    return [*slots[:_W], idle[place].tolist()]


def _memory(slots: Slots) -> int:
    """Most micro batches of a chunk held: F takes one, W gives it back, the giving first within a slot."""
    weights = (slots if len(slots) > _W else _with_weights(slots))[_W]
    taken = np.sort(np.concatenate((slots[_EARLY_F], slots[_LATE_F])))
    given = np.searchsorted(np.array(weights), taken, side="right")
    return int((1 + np.arange(len(taken)) - given).max())


def _used(slots: Slots) -> list[int]:
    """Micro batches of a chunk held after each slot, where the row has its W."""
    change = np.zeros(2 + max(map(max, slots)), dtype=int)
    for kind, takes in ((_EARLY_F, 1), (_LATE_F, 1), (_W, -1)):
        if kind < len(slots):
            np.add.at(change, slots[kind], takes)
    return [int(held) for held in np.cumsum(change)]


@dataclass(slots=True, kw_only=True)
class _Pull:
    """Walks all actions by slot and moves those of warm-up (if asked) and end into the first idle slot they can have.

    In between, from the first I of the early chunk on rank 0 until the last F of an early chunk, the block stays.
    """

    ranks: list[Slots]
    warmup: bool

    def run(self) -> list[Slots]:
        most = max(_memory(row) for row in self.ranks)
        taken: list[set[int]] = [set() for _ in self.ranks]
        used = [_used(row) for row in self.ranks]
        phase = 0
        for rank, kind, m in self._walk():
            if phase == 0 and kind == _EARLY_I and rank == 0:
                phase = 1
            if phase == 1 and kind == _EARLY_F and m == len(self.ranks[0][_EARLY_F]) - 1:
                phase = 2
                taken[rank].add(self.ranks[rank][kind][m])
                continue
            if phase == 2 or (phase == 0 and self.warmup):
                self._pull(rank, kind, m, taken[rank], used[rank], most)
            taken[rank].add(self.ranks[rank][kind][m])
        return self.ranks

    def _walk(self) -> list[tuple[int, int, int]]:
        return [(rank, kind, m) for _, rank, kind, m in _by_slot(self.ranks)]

    def _pull(self, rank: int, kind: int, m: int, taken: set[int], used: list[int], most: int) -> None:
        """Into the first idle slot where memory stays within the block's. W that are not in the row fill idle slots."""
        row = self.ranks[rank]
        planned, takes = row[kind][m], (1, 1, 0, 0, -1)[kind]
        for slot in range(self._earliest(rank, kind, m), planned):
            if slot in taken:
                continue
            row[kind][m] = slot
            if len(row) > _W and takes + max(used[slot:planned]) <= most:
                used[slot:planned] = [takes + held for held in used[slot:planned]]
                return
            if len(row) <= _W and _memory(row) <= most:
                return
        row[kind][m] = planned

    def _earliest(self, rank: int, kind: int, m: int) -> int:
        row, after = self.ranks[rank], [-1]
        if kind in {_EARLY_F, _LATE_I} and rank > 0:
            after.append(self.ranks[rank - 1][kind][m])
        if kind in {_LATE_F, _EARLY_I} and rank + 1 < len(self.ranks):
            after.append(self.ranks[rank + 1][kind][m])
        if _EARLY_F < kind < _W:
            after.append(row[kind - 1][m])
        if kind == _W:
            after.append(sorted(row[_LATE_I] + row[_EARLY_I])[m])
        if m > 0:
            after.append(row[kind][m - 1])
        return 1 + max(after)


def _by_slot(plan: list[Slots]) -> list[tuple[int, int, int, int]]:
    cells = ((rank, kind, slots) for rank, row in enumerate(plan) for kind, slots in enumerate(row))
    return sorted((slot, rank, kind, m) for rank, kind, slots in cells for m, slot in enumerate(slots))


def _squeezed(plan: list[Slots]) -> list[Slots]:
    """The same orders without idle slots: every action as soon as its rank and its input allow."""
    result: list[Slots] = [[[0] * len(slots) for slots in row] for row in plan]
    free, pull = [0] * len(plan), _Pull(ranks=result, warmup=False)
    for _, rank, kind, m in _by_slot(plan):
        begin = free[rank] if kind == _W else max(free[rank], pull._earliest(rank, kind, m))  # noqa: SLF001 - same file
        result[rank][kind][m] = begin
        free[rank] = begin + 1
    return result


def _row(rank: int, pp: int, slots: Slots) -> list[Action]:
    """One rank's actions by slot, the W of each chunk after its own gradients, late chunk first where both wait."""
    early, late = rank, 2 * pp - 1 - rank
    actions = {slot: Action(early, "F", m) for m, slot in enumerate(slots[_EARLY_F])}
    actions |= {slot: Action(late, "F", m) for m, slot in enumerate(slots[_LATE_F])}
    actions |= {slot: Action(late, "I", m) for m, slot in enumerate(slots[_LATE_I])}
    actions |= {slot: Action(early, "I", m) for m, slot in enumerate(slots[_EARLY_I])}
    waiting: dict[int, list[int]] = {late: [], early: []}
    fill = set(_with_weights(slots)[_W])
    row = list[Action]()
    for slot in sorted(set(actions) | fill):
        action = actions.get(slot)
        if action is None:
            chunk = late if waiting[late] else early
            action = Action(chunk, "W", waiting[chunk].pop(0))
        elif action.kind == "I":
            waiting[action.chunk].append(action.microbatch)
        row.append(action)
    return row
