"""MindFormers' four lists and our counts, both ways.

`offset` is layers - layers // chunks; `recompute` R, `select_recompute` S and `select_comm_recompute` C count layers
from the front of a chunk, so R are full, min(S, C) - R are select and comm together, the rest of S and C are one of the
two. Select alone and comm alone therefore never meet in a chunk: such a pair is written, and run, as one layer of
both and one of none. Of a chunk with layers of several kinds the first are recomputed, whatever their kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from shardwise.errors import Fault, InputError
from shardwise.partition.decompose import CHOICES
from shardwise.partition.problem import Counts, Partition, Problem

Table = tuple[tuple[int, ...], ...]
"""One list per turn (interleave), one number per stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """A strategy in MindFormers' words."""

    offset: Table
    recompute: Table
    select_recompute: Table
    select_comm_recompute: Table


def counted(layers: int, full: int, select: int, comm: int) -> tuple[int, int, int, int, int]:
    """Layers of a chunk by choice (none, select, comm, both, full) from its three lists."""
    both = max(0, min(select - full, comm - full))
    only_select, only_comm = max(0, select - full - both), max(0, comm - full - both)
    return layers - full - both - only_select - only_comm, only_select, only_comm, both, full


def counted_by_kind(kinds: Sequence[int], full: int, select: int, comm: int) -> list[tuple[int, int, int, int, int]]:
    """The same of a chunk that holds so many layers of each kind, in the order of the model."""
    found, first = [], 0
    for layers in kinds:
        found.append(counted(layers, *(min(max(count - first, 0), layers) for count in (full, select, comm))))
        first += layers
    return found


def kinds_of_chunks(sizes: Sequence[int], kinds: Sequence[int]) -> list[list[int]]:
    """Layers of every kind in every chunk, from the layers of the chunks and of the kinds, both in model order."""
    cuts, found, first = [0, *accumulate(sizes)], list[list[int]](), 0
    for count in kinds:
        ends = [min(max(cut, first), first + count) for cut in cuts]
        found.append([after - before for before, after in pairwise(ends)])
        first += count
    return [list(row) for row in zip(*found, strict=True)]


def has_lists(problem: Problem) -> bool:
    """Whether MindFormers' lists can say a partition of this problem."""
    known = {"none", "select", "comm", "both", "full"}
    loop = problem.rank_of == tuple(c % problem.pp for c in range(problem.chunks))
    return loop and all(choice.name in known for run in problem.runs for choice in run.kind.choices)


def settled(problem: Problem, partition: Partition) -> Partition | None:
    """What the lists of a partition say; None: a choice that was not measured.

    A chunk of several kinds recomputes its first layers, whatever their kind.
    """
    rows = []
    for layers, said in zip(partition.counts, _said(problem, partition), strict=True):
        row = _counts(problem, [sum(run) for run in layers], said)
        if row is None:
            return None
        rows.append(row)
    return Partition(counts=tuple(rows))


def _said(problem: Problem, partition: Partition) -> Iterator[tuple[int, int, int]]:
    """Per chunk: its numbers of the three lists."""
    lists = to_lists(problem, partition)
    flat = ([n for row in table for n in row] for table in (lists.recompute, lists.select_recompute,
                                                           lists.select_comm_recompute))  # fmt: skip
    return zip(*flat, strict=True)


def _counts(problem: Problem, layers: Sequence[int], said: tuple[int, int, int]) -> Counts | None:
    """A chunk's counts by run and choice from its numbers of the lists; None: a choice that was not measured."""
    made = []
    for run, counts in zip(problem.runs, counted_by_kind(layers, *said), strict=True):
        found = dict(zip(CHOICES, counts, strict=True))
        names = [choice.name for choice in run.kind.choices]
        if any(count and name not in names for name, count in found.items()):
            return None
        made.append(tuple(found[name] for name in names))
    return tuple(made)


def sayable(problem: Problem, layers: Sequence[int]) -> list[Counts]:
    """Everything that the lists can say of a chunk of so many layers of each kind: full first, then both, then one."""
    found, names = dict[Counts, None](), {choice.name for run in problem.runs for choice in run.kind.choices}
    ends = range(sum(layers) + 1)
    for full in ends if "full" in names else (0,):
        for both in ends[full:] if "both" in names else (full,):
            for one in ends[both:] if names & {"select", "comm"} else (both,):
                for said in ((full, one, both), (full, both, one)):
                    if (row := _counts(problem, layers, said)) is not None:
                        found[row] = None
    return list(found)


def can_say(problem: Problem, partition: Partition) -> bool:
    """Whether lists may be handed over: of several kinds of layers they say just this, of one as much as they can."""
    return has_lists(problem) and (len(problem.runs) == 1 or settled(problem, partition) == partition)


def to_lists(problem: Problem, partition: Partition) -> Lists:
    """MindFormers' lists of a partition on loop placement."""
    chosen, pp = partition.chosen(problem), problem.pp
    zero = (0,) * problem.chunks
    full, both = chosen.get("full", zero), chosen.get("both", zero)
    select = tuple(a + b + c for a, b, c in zip(chosen.get("select", zero), both, full, strict=True))
    comm = tuple(a + b + c for a, b, c in zip(chosen.get("comm", zero), both, full, strict=True))
    base = problem.layers // problem.chunks
    offset = tuple(n - base for n in partition.layers)
    tables = (
        tuple(values[k : k + pp] for k in range(0, problem.chunks, pp)) for values in (offset, full, select, comm)
    )
    return Lists(**dict(zip(("offset", "recompute", "select_recompute", "select_comm_recompute"), tables, strict=True)))


def from_lists(problem: Problem, lists: Lists) -> Partition:
    """A partition from lists; every fault is named."""
    faults, base = list[Fault](), problem.layers // problem.chunks
    if problem.rank_of != tuple(chunk % problem.pp for chunk in range(problem.chunks)):
        loop = f"is a list per turn through the stages; {problem.schedule} goes through them in a V"
        raise InputError(Fault("offset", f"{loop}: compare under interleaved or low-memory"))
    tables = {name: _flat(getattr(lists, name), problem, name, faults) for name in Lists.__slots__}
    if faults:  # lists made from true or false are as long as the offset: one fault, not four
        raise InputError([f for f in faults if f.path == "offset"] or faults)
    faults += [
        Fault(name, f"holds {min(tables[name])}; write 0 or more")
        for name in Lists.__slots__[1:]
        if min(tables[name]) < 0
    ]
    if faults:
        raise InputError(faults)
    layers, totals = [base + value for value in tables["offset"]], [run.count for run in problem.runs]
    if sum(layers) != problem.layers:
        over = sum(layers) - problem.layers
        many = "many" if over > 0 else "few"
        faults.append(Fault("offset", f"the stages add up to {sum(layers)} layers, {abs(over)} too {many}"))
    rows = []
    for chunk, (n, kinds) in enumerate(zip(layers, kinds_of_chunks(layers, totals), strict=True)):
        said = tables["recompute"][chunk], tables["select_recompute"][chunk], tables["select_comm_recompute"][chunk]
        rows.append(_row(problem, kinds, said, f"chunk {chunk}", n, faults))
    if faults:
        raise InputError(faults)
    return Partition(counts=tuple(rows))


def _flat(table: Table, problem: Problem, name: str, faults: list[Fault]) -> list[int]:
    flat = [value for row in table for value in row]
    if len(table) != problem.vpp or any(len(row) != problem.pp for row in table):
        sizes = " + ".join(str(len(row)) for row in table)
        faults.append(Fault(name, f"has {sizes} numbers; {problem.vpp} list(s) of {problem.pp} are needed"))
    return flat


def _row(
    problem: Problem, kinds: Sequence[int], said: tuple[int, int, int], at: str, n: int, faults: list[Fault]
) -> Counts:
    """A chunk's counts; what cannot be is a fault."""
    most = max(said)
    if most > n or n < 0:
        faults.append(Fault(at, f"recomputes {most} of {n} layers; recompute at most {max(n, 0)}"))
        return ()
    row = _counts(problem, kinds, said)
    if row is None:
        faults.append(Fault(at, _missing(problem, kinds, said)))
    return row or ()


def _missing(problem: Problem, kinds: Sequence[int], said: tuple[int, int, int]) -> str:
    """Which choices a chunk uses that were not measured."""
    words = []
    for run, counts in zip(problem.runs, counted_by_kind(kinds, *said), strict=True):
        names = [choice.name for choice in run.kind.choices]
        missing = [name for name, count in zip(CHOICES, counts, strict=True) if count and name not in names]
        if missing:
            of = f" of {run.kind.name}" if len(problem.runs) > 1 else ""
            words.append(f"uses {', '.join(missing)}{of}, whose memory was not measured; measured: {', '.join(names)}")
    return "; ".join(words)
