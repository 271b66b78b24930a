"""The handcrafted zero-bubble schedules ZB-H1, ZB-H2 (one chunk) and ZB-V (two chunks, v placement).

Sources: Qi et al., "Zero Bubble Pipeline Parallelism" (2023), and "Pipeline Parallelism with Controllable Memory"
(2024), where our I is written B. ZB-V is the fixed pattern that PyTorch's ScheduleZBVZeroBubble runs.
"""

from __future__ import annotations

from shardwise.simulate.action import Action, Schedule

Row = list[Action]


def zb_h1(pp: int, microbatches: int) -> Schedule:
    """1F1B's warm-up and memory; rank r runs its weight gradients r micro batches late."""
    rows = [_one_chunk_row(rank, microbatches, pp - rank, rank) for rank in range(pp)]
    return Schedule.of(rows, name="zb-h1")


def zb_h2(pp: int, microbatches: int) -> Schedule:
    """Twice the warm-up, so that only the shape of a parallelogram is left; 2 pp - 1 micro batches of memory."""
    rows = [_one_chunk_row(rank, microbatches, 2 * (pp - rank) - 1, 2 * rank) for rank in range(pp)]
    return Schedule.of(rows, name="zb-h2")


def _one_chunk_row(rank: int, microbatches: int, warmup: int, delay: int) -> Row:
    """`warmup` forwards, then I, W of `delay` micro batches ago, F in turn; W fills the end."""
    row = [Action(rank, "F", m) for m in range(min(warmup, microbatches))]
    for m in range(microbatches):
        row.append(Action(rank, "I", m))
        if m >= delay:
            row.append(Action(rank, "W", m - delay))
        if m + warmup < microbatches:
            row.append(Action(rank, "F", m + warmup))
    row += [Action(rank, "W", m) for m in range(max(0, microbatches - delay), microbatches)]
    return row


class _Counter:
    """Appends the next micro batch of a kind of a chunk; beyond the last one nothing is appended."""

    def __init__(self, early: int, late: int, microbatches: int) -> None:
        self.row: Row = []
        self.count: dict[tuple[int, str], int] = {}
        self.chunks, self.microbatches = (early, late), microbatches

    def __call__(self, j: int, kinds: str) -> None:
        for kind in kinds:
            m = self.count.get((j, kind), 0)
            self.count[j, kind] = m + 1
            if m < self.microbatches:
                self.row.append(Action(self.chunks[j], kind, m))

    def behind(self, j: int, kind: str, other: tuple[int, str]) -> bool:
        return self.count.get((j, kind), 0) < self.count.get(other, 0)


def zb_v(pp: int, microbatches: int) -> Schedule:
    """The fixed pattern; with fewer than 2 pp - 1 micro batches it is that of 2 pp - 1 with the surplus left out."""
    planned = max(2 * pp - 1, microbatches)
    rows = [_zb_v_row(rank, pp, microbatches, planned) for rank in range(pp)]
    return Schedule.of(rows, name="zb-v")


def _zb_v_row(rank: int, pp: int, microbatches: int, planned: int) -> Row:
    add = _Counter(rank, 2 * pp - 1 - rank, microbatches)
    for _ in range(2 * (pp - rank) - 1):
        add(0, "F")
    for _ in range(rank):
        add(1, "F")
        add(0, "F")
    for _ in range(pp - rank):
        add(1, "FIW")
    while add.behind(1, "F", (0, "F")) or add.count[0, "F"] < planned:
        if add.count[0, "F"] < planned:
            add(0, "F")
        add(0, "IW")
        add(1, "FIW")
    for _ in range(rank):
        add(0, "I")
        add(1, "I")
    for _ in range(pp - rank):
        add(0, "IW")
    for j in (1, 0):
        while add.behind(j, "W", (j, "I")):
            add(j, "W")
    return add.row
