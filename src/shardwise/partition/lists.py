"""MindFormers' four lists and our counts, both ways.

`offset` is layers - layers // chunks; `recompute` R, `select_recompute` S and `select_comm_recompute` C count layers
from the front of a chunk, so R are full, min(S, C) - R are select and comm together, the rest of S and C are one of the
two. Select alone and comm alone therefore never meet in a chunk: such a pair is written, and run, as one layer of
both and one of none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.errors import Fault, InputError
from shardwise.partition.problem import Partition, Problem

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


def has_lists(problem: Problem) -> bool:
    """Whether MindFormers' lists can say a partition of this problem."""
    known = {"none", "select", "comm", "both", "full"}
    loop = problem.rank_of == tuple(c % problem.pp for c in range(problem.chunks))
    return loop and all(choice.name in known for run in problem.runs for choice in run.kind.choices)


def settled(problem: Problem, partition: Partition) -> Partition:
    """The same with no chunk that MindFormers' lists cannot say."""
    chunks = []
    for runs in partition.counts:
        chunk = []
        for run, counts in zip(problem.runs, runs, strict=True):
            names = [choice.name for choice in run.kind.choices]
            chunk.append(_merged(names, list(counts)) if {"select", "comm", "both"} <= set(names) else counts)
        chunks.append(tuple(chunk))
    return Partition(counts=tuple(chunks))


def _merged(names: list[str], counts: list[int]) -> tuple[int, ...]:
    none, select, comm, both = (names.index(name) for name in ("none", "select", "comm", "both"))
    pairs = min(counts[select], counts[comm])
    for index, change in ((none, pairs), (select, -pairs), (comm, -pairs), (both, pairs)):
        counts[index] += change
    return tuple(counts)


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
    """A partition of a single run from lists; every fault is named."""
    faults, base = list[Fault](), problem.layers // problem.chunks
    if len(problem.runs) > 1:
        kinds = ", ".join(run.kind.name for run in problem.runs)
        raise InputError(Fault("recompute", f"does not say layers of which kind; the model has several: {kinds}"))
    if problem.rank_of != tuple(chunk % problem.pp for chunk in range(problem.chunks)):
        said = f"is a list per turn through the stages; {problem.schedule} goes through them in a V"
        raise InputError(Fault("offset", f"{said}: compare under interleaved or low-memory"))
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
    layers = [base + value for value in tables["offset"]]
    if sum(layers) != problem.layers:
        over = sum(layers) - problem.layers
        many = "many" if over > 0 else "few"
        faults.append(Fault("offset", f"the stages add up to {sum(layers)} layers, {abs(over)} too {many}"))
    names = [choice.name for choice in problem.runs[0].kind.choices]
    rows = []
    for chunk, n in enumerate(layers):
        counts = counted(n, *(tables[name][chunk] for name in Lists.__slots__[1:]))
        rows.append((_row(names, counts, chunk, n, faults),))
    if faults:
        raise InputError(faults)
    return Partition(counts=tuple(rows))


def _flat(table: Table, problem: Problem, name: str, faults: list[Fault]) -> list[int]:
    flat = [value for row in table for value in row]
    if len(table) != problem.vpp or any(len(row) != problem.pp for row in table):
        sizes = " + ".join(str(len(row)) for row in table)
        faults.append(Fault(name, f"has {sizes} numbers; {problem.vpp} list(s) of {problem.pp} are needed"))
    return flat


def _row(names: Sequence[str], counts: Sequence[int], chunk: int, n: int, faults: list[Fault]) -> tuple[int, ...]:
    found = dict(zip(("none", "select", "comm", "both", "full"), counts, strict=True))
    if found["none"] < 0 or n < 0:
        faults.append(
            Fault(f"chunk {chunk}", f"recomputes {n - found['none']} of {n} layers; recompute at most {max(n, 0)}")
        )
    missing = [name for name, count in found.items() if count and name not in names]
    if missing:
        faults.append(
            Fault(
                f"chunk {chunk}",
                f"uses {', '.join(missing)}, whose memory was not measured; measured: {', '.join(names)}",
            )
        )
    return tuple(found[name] for name in names)
