"""The schedule language: actions such as `2F0 1I3 1W3 3B7`, and a schedule as one row of them per rank.

The text is torch.distributed.pipelining's compute-only form: `<chunk><kind><micro batch>`, one CSV row a rank.
Inside, an action is one integer, `(kind * chunks + chunk) * microbatches + microbatch`, so that a schedule of a
million actions is a few arrays and not a million objects. A forward and a full backward that a runtime runs together,
one's traffic behind the other's kernels, are one cell, `(0F1;3B0)OVERLAP_F_B`: two actions of the row, and the place of
the first among `pairs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardwise.errors import InputError

KINDS = "FIWB"
"""F forward, I backward for inputs, W backward for weights, B full backward (I and W in one)."""
F, I, W, B = range(4)  # noqa: E741 - the field's name for the backward for inputs

Codes = npt.NDArray[np.int64]
_CELL = re.compile(r"(\d{1,9})([FIWB])(\d{1,9})")
_PAIR = re.compile(r"\(\s*(\d+F\d+)\s*;\s*(\d+B\d+)\s*\)OVERLAP_F_B")
MOST_ACTIONS = 20_000_000
"""Larger schedules are refused: they would need gigabytes."""
MOST_CHUNKS = 4_096
"""So are longer pipelines: bounds and bubbles are worked out chunk by chunk."""


class Action(NamedTuple):
    """One piece of work of one rank."""

    chunk: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.chunk}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        found = _CELL.fullmatch(text.strip())
        if found is None:
            raise InputError(f"{text!r} is not an action; write chunk, F, I, W or B, micro batch, such as 2F0")
        return cls(int(found[1]), found[2], int(found[3]))


class Offload(NamedTuple):
    """Activations of one forward that wait in host memory for their backward; all are places of one rank's row."""

    forward: int
    """The forward: they leave as soon as it has ended and those of earlier ones have left."""
    away: int
    """The first action that runs without them: it waits until they have left."""
    back: int
    """The first action beside which they are on the way back, from the end of the one before it on."""
    backward: int
    """The action that needs them: it waits until they are back."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """The order of work of every rank."""

    codes: tuple[Codes, ...]
    """One array of action codes per rank."""
    chunks: int
    """Chunks of the model (pp x vpp)."""
    microbatches: int
    """Micro batches per iteration."""
    name: str = ""
    """How it was made, such as `zb-v`."""
    pairs: tuple[tuple[int, ...], ...] = ()
    """By rank, the places of forwards that run together with the full backward after them; empty: none do."""
    copies: int = 1
    """Copies of the model, each with its own run of the chunks and its own micro batches: 2 of DualPipe, whose micro
    batches go both ways. The CSV does not hold it."""
    offloads: tuple[tuple[Offload, ...], ...] = ()
    """By rank, the activations that go to host memory and back, in the order of their forwards; empty: none do. The
    CSV does not hold them: it is compute only."""

    @property
    def pp(self) -> int:
        return len(self.codes)

    @property
    def vpp(self) -> int:
        return self.chunks // self.pp

    @property
    def length(self) -> int:
        """Chunks that a micro batch goes through."""
        return self.chunks // self.copies

    @property
    def actions(self) -> int:
        return sum(len(row) for row in self.codes)

    @property
    def rows(self) -> tuple[tuple[Action, ...], ...]:
        return tuple(tuple(self.decode(int(code)) for code in row) for row in self.codes)

    @cached_property
    def rank_of(self) -> tuple[int, ...]:
        """The rank that holds each chunk, the first that names it; -1: none does."""
        ranks = np.full(self.chunks, -1)
        for rank in reversed(range(self.pp)):
            ranks[self.codes[rank] // self.microbatches % self.chunks] = rank
        return tuple(ranks.tolist())

    @cached_property
    def fused(self) -> bool:
        """Whether every backward is a full one."""
        start = I * self.chunks * self.microbatches
        stop = B * self.chunks * self.microbatches
        return not any(bool(((row >= start) & (row < stop)).any()) for row in self.codes)

    def split(self) -> Schedule:
        """The same order with I, then W in place of every full backward; pairs run one after the other."""
        chunk = self.chunks * self.microbatches
        rows = [np.repeat(row, 1 + (row >= B * chunk)) for row in self.codes]
        for row in rows:
            first = np.flatnonzero(row >= B * chunk)[::2]
            row[first] -= (B - I) * chunk
            row[first + 1] -= (B - W) * chunk
        return replace(self, codes=tuple(rows), pairs=())

    def decode(self, code: int) -> Action:
        stream, microbatch = divmod(code, self.microbatches)
        kind, chunk = divmod(stream, self.chunks)
        return Action(chunk, KINDS[kind], microbatch)

    def csv(self) -> str:
        """Torch's compute-only text, a row a rank."""
        names = [f"{c}{kind}" for kind in KINDS for c in range(self.chunks)]
        m = self.microbatches
        rows = [[f"{names[code // m]}{code % m}" for code in row.tolist()] for row in self.codes]
        for cells, places in zip(rows, self.pairs, strict=False):
            for k in reversed(places):
                cells[k : k + 2] = [f"({cells[k]};{cells[k + 1]})OVERLAP_F_B"]
        return "\n".join(map(",".join, rows)) + "\n"

    __str__ = csv

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return (
            self.chunks,
            self.microbatches,
            tuple(row.tobytes() for row in self.codes),
            self.pairs,
            self.copies,
            self.offloads,
        )

    @classmethod
    def of(cls, rows: Sequence[Iterable[Action]], *, name: str = "") -> Schedule:
        """From rows of actions; the number of chunks and micro batches is read off the highest."""
        listed = [list(row) for row in rows]
        flat = [action for row in listed for action in row]
        if not flat:
            raise InputError("the schedule has no actions")
        chunks = 1 + max(action.chunk for action in flat)
        microbatches = 1 + max(action.microbatch for action in flat)
        if chunks * microbatches > len(flat):
            raise InputError(
                f"the schedule names chunk {chunks - 1} and micro batch {microbatches - 1} but has {len(flat)} actions"
                f"; {chunks} chunks x {microbatches} micro batches need at least {2 * chunks * microbatches}"
            )
        codes = tuple(_encoded(row, chunks, microbatches) for row in listed)
        return cls(codes=codes, chunks=chunks, microbatches=microbatches, name=name)

    @classmethod
    def parse(cls, text: str, *, name: str = "") -> Schedule:
        """From the CSV text; blank cells mean nothing and are dropped, as torch does."""
        rows, pairs = list[list[Action]](), list[tuple[int, ...]]()
        for line in (line for line in text.splitlines() if line.strip()):
            row, places = _parsed([cell for cell in line.split(",") if cell.strip()])
            rows.append(row)
            pairs.append(places)
        return replace(cls.of(rows, name=name), pairs=tuple(pairs) if any(pairs) else ())


def _parsed(cells: list[str]) -> tuple[list[Action], tuple[int, ...]]:
    """The actions of a row, and the places of those that run together with the next."""
    row, places = list[Action](), list[int]()
    for cell in cells:
        both = _PAIR.fullmatch(cell.strip())
        if both:
            places.append(len(row))
            row += [Action.parse(both[1]), Action.parse(both[2])]
        elif "OVERLAP" in cell:
            raise InputError(f"{cell.strip()!r} is no combined pass; write a forward and a full backward, such as "
                             "(0F1;3B0)OVERLAP_F_B")  # fmt: skip
        else:
            row.append(Action.parse(cell))
    return row, tuple(places)


def _encoded(row: list[Action], chunks: int, microbatches: int) -> Codes:
    values = [(KINDS.index(a.kind) * chunks + a.chunk) * microbatches + a.microbatch for a in row]
    return np.array(values, dtype=np.int64)


def check_size(pp: int, vpp: int, microbatches: int) -> None:
    """Refuse a pipeline that is too large to be held."""
    actions = 3 * pp * vpp * microbatches
    if actions > MOST_ACTIONS:
        raise InputError(
            f"pp {pp} x vpp {vpp} x {microbatches} micro batches are {actions:,} actions; "
            f"up to {MOST_ACTIONS:,} are planned: use fewer micro batches (a smaller global batch) or a lower pp"
        )
    if pp * vpp > MOST_CHUNKS:
        raise InputError(f"pp {pp} x vpp {vpp} are {pp * vpp:,} chunks; up to {MOST_CHUNKS:,} are planned: lower pp")


def placed(pp: int, vpp: int, placement: str) -> tuple[int, ...]:
    """The rank of every chunk: `loop` puts chunk c on rank c mod pp, `v` goes back and forth, `0,1,1,0` says it."""
    if "," in placement:
        rank_of = tuple(map(int, placement.split(",")))
        if sorted(rank_of) != sorted(tuple(range(pp)) * vpp):
            raise InputError(f"the map {placement} does not put {vpp} chunks on each of {pp} ranks")
        return rank_of
    if placement not in {"loop", "v"}:
        raise InputError(f"placement {placement!r} is unknown; use loop or v, or a map such as 0,1,1,0")
    turned = placement == "v"
    return tuple(pp - 1 - c % pp if turned and c // pp % 2 else c % pp for c in range(pp * vpp))
