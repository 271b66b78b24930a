"""DualPipeV: DeepSeek's DualPipe cut in half onto a v placement, two chunks a rank.

Source: deepseek-ai/DualPipe (2025), the eight steps of its V form; PyTorch's ScheduleDualPipeV is the same order. Pairs
of a forward and a full backward are meant to overlap: with `combined` they are one cell of the row, without, they run
one after the other, which is what a runtime without overlap does. The last rank's first pair never is one: it would
wait for its own forward's way through the model.
"""

from __future__ import annotations

from dataclasses import replace

from shardwise.errors import InputError
from shardwise.pipeline.action import Action, Schedule


class _Row:
    """One rank's row under construction; weight gradients that were split off wait in a queue."""

    def __init__(self, rank: int, pp: int) -> None:
        self.actions: list[Action] = []
        self.chunks = (rank, 2 * pp - 1 - rank)
        self.count = {(kind, j): 0 for kind in "FB" for j in (0, 1)}
        self.queue: list[Action] = []
        self.pairs: list[int] = []

    def forward(self, j: int) -> None:
        self.actions.append(Action(self.chunks[j], "F", self._next("F", j)))

    def backward(self, j: int, *, split: bool = False) -> None:
        m = self._next("B", j)
        self.actions.append(Action(self.chunks[j], "I" if split else "B", m))
        if split:
            self.queue.append(Action(self.chunks[j], "W", m))

    def together(self, j: int, *, alone: bool = False) -> None:
        """A forward and the backward of the other chunk; `alone`: one after the other in any case."""
        if not alone:
            self.pairs.append(len(self.actions))
        self.forward(j)
        self.backward(1 - j)

    def weight(self) -> None:
        self.actions.append(self.queue.pop(0))

    def _next(self, kind: str, j: int) -> int:
        self.count[kind, j] += 1
        return self.count[kind, j] - 1


def dualpipe_v(pp: int, microbatches: int, *, combined: bool = False) -> Schedule:
    if microbatches < 2 * pp:
        raise InputError(f"dualpipe-v needs at least 2 x pp = {2 * pp} micro batches, not {microbatches}")
    rows = [row_of(rank, pp, microbatches) for rank in range(pp)]
    made = Schedule.of([row.actions for row in rows], name="dualpipe-v")
    return replace(made, pairs=tuple(tuple(row.pairs) for row in rows)) if combined else made


def row_of(rank: int, pp: int, microbatches: int) -> _Row:
    """What a rank runs, with the forwards of pairs."""
    row, after = _Row(rank, pp), pp - rank - 1
    for _ in range(2 * after):
        row.forward(0)
    for _ in range(rank + 1):
        row.forward(0)
        row.forward(1)
    for _ in range(after):
        row.backward(1, split=True)
        row.weight()
        row.forward(1)
    for k in range(microbatches - 2 * pp + rank + 1):
        for j in (0, 1):
            row.together(j, alone=not after and not k and not j)
    for _ in range(after):
        row.backward(1)
        row.together(1)
    _cool_down(row, rank, after)
    return row


def _cool_down(row: _Row, rank: int, after: int) -> None:
    half, split = (rank + 1) // 2, False
    for k in range(rank + 1):
        split = split or (k == half and rank % 2 == 1)
        row.backward(1, split=split)
        split = split or (k == half and rank % 2 == 0)
        row.backward(0, split=split)
    for _ in range(after):
        row.weight()
        row.backward(0, split=True)
    for _ in range(rank + 1):
        row.weight()
