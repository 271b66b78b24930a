"""Two recordings of one module, of different numbers of samples, folded into its blocks as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from shardwise.errors import InputError
from shardwise.frameworks.torch.trace_ops import called
from shardwise.frameworks.torch.trace_split import RANKS
from shardwise.inputs.traced import NONE, ElementType, Line, Traced, TracedBlock, TracedCut, TracedKind, TracedOp, at

if TYPE_CHECKING:
    from shardwise.frameworks.torch.trace_record import Call, Held, Recording


@dataclass(slots=True)
class _CallRun:
    """Calls that become one operator."""

    name: str
    kind: TracedKind
    calls: list[int] = field(default_factory=list)
    main: int = -1
    """The product or attention."""


@dataclass(slots=True)
class _Numbers:
    """An operator's numbers at one number of samples."""

    shape: tuple[float, ...]
    bytes_f: float
    bytes_b: float
    kept: float
    extra_f: float
    extra_b: float
    params: float
    sums_f: float
    sums_b: float


class _Pass:
    """One recording, ready to be asked for the numbers of runs of its calls."""

    def __init__(self, found: Recording, size: int) -> None:
        self.found, self.size = found, size
        self.tables = [one for one in found.memory if _is_table(one, found)]
        for one in self.tables:
            found.forward[one.kept].kept -= one.bytes
        self.so_far = list(accumulate(call.kept for call in found.forward))
        self.back: list[list[Call]] = [[] for _ in found.forward]
        for call in found.backward:
            self.back[call.of].append(call)

    @property
    def table_bytes(self) -> float:
        return float(sum(one.bytes for one in self.tables))

    def numbers(self, run: _CallRun) -> _Numbers:
        calls = [self.found.forward[index] for index in run.calls]
        end = self.so_far[run.calls[-1]]
        beside = [call.cost for call in calls if call.cost]
        back = [call.cost for index in run.calls for call in self.back[index] if call.cost]
        main = self.found.forward[run.main].cost if run.main >= 0 else None
        return _Numbers(
            shape=main.shape if main else (),
            bytes_f=sum(cost.bytes for cost in beside),
            bytes_b=sum(cost.bytes + (cost.moved if main is None else 0.0) for cost in back),
            kept=sum(call.kept for call in calls),
            extra_f=max(self._above(call) for call in calls) - end,
            extra_b=max(0.0, max(self._back_above(index) for index in run.calls) - end),
            params=sum(call.params for call in calls),
            sums_f=sum(call.sums for call in calls),
            sums_b=sum(call.sums_back for call in calls),
        )

    def _above(self, call: Call) -> float:
        """Bytes live at a call, without what all blocks share."""
        return call.live - (self.table_bytes if call.segment else 0.0)

    def _back_above(self, index: int) -> float:
        """The most bytes live at a call of backward, without gradients of weights that wait for an earlier block's."""
        segment = self.found.forward[index].segment
        waiting = sum(number for _, later, number in self.found.shared if segment < later) * self.size
        return max((self._above(call) for call in self.back[index]), default=0.0) - waiting


_Passes = tuple[_Pass, _Pass]
DIVIDED = RANKS / (RANKS - 1)
"""What a number loses by tensor parallel of so many ranks, times this, is what ranks divide of it."""


def _is_table(memory: Held, found: Recording) -> bool:
    """Made before its first saver's block, without a gradient, and read by several blocks: masks and positions."""
    if memory.kept < 0 or memory.trains or len(memory.readers - {memory.segment}) < 2:
        return False
    return memory.segment < found.forward[memory.kept].segment


def folded(
    few: Recording, many: Recording, samples: tuple[int, int], *, inputs: str, dtype: ElementType, seq: int,
    names: dict[str, str], cut: tuple[Recording, Recording] | None = None,
) -> Traced:  # fmt: skip
    """`samples`: of both; `names`: classes of blocks by path; `cut`: both as a rank of tensor parallel has them."""
    _same(few, many, samples)
    size = 4 if dtype == "fp32" else 2
    passes = _Pass(few, size), _Pass(many, size)
    parts = (_Pass(cut[0], size), _Pass(cut[1], size)) if cut else None
    count = len(few.starts)
    segments = [_segment(passes, parts, samples, place, few.starts) for place in range(count + 2)]
    blocks = [
        TracedBlock(name=names[path], ops=ops, entry=_entry(passes, samples, place))
        for place, (path, ops) in enumerate(zip(few.starts, segments[1:-1], strict=True), start=1)
    ]
    kinds, order = _kinds(blocks, few.starts)
    last = TracedBlock(name="last", ops=segments[-1], entry=_entry(passes, samples, count + 1))
    return Traced(
        inputs=inputs, dtype=dtype, seq=seq, kinds=kinds, order=order,
        first=TracedBlock(name="first", ops=segments[0]), last=last,
        border=_border(passes, samples, count),
        tables=line_of(passes[0].table_bytes, passes[1].table_bytes, samples),
        logits=_logits(last, samples),
        tied=_tied(few), tied_cut=round(DIVIDED * (_tied(few) - _tied(cut[0]))) if cut else 0,
    )  # fmt: skip


def _tied(found: Recording) -> int:
    """Parameters that the last part shares with the first."""
    return round(sum(number for first, later, number in found.shared if (first, later) == (0, len(found.starts) + 1)))


def line_of(few: float, many: float, samples: tuple[int, int]) -> Line:
    each = (many - few) / (samples[1] - samples[0])
    return round(few - each * samples[0], 3) + 0.0, round(each, 3) + 0.0


def _same(few: Recording, many: Recording, samples: tuple[int, int]) -> None:
    told = f"runs other operators with {samples[0]} samples than with {samples[1]}"
    for one, other in ((few.forward, many.forward), (few.backward, many.backward)):
        if len(one) != len(other):
            raise InputError(f"{told} ({len(one)} and {len(other)}); a trace needs the same for any number of them")
        for ours, theirs in zip(one, other, strict=True):
            if (ours.name, ours.owner, ours.segment) != (theirs.name, theirs.owner, theirs.segment):
                raise InputError(
                    f"{told} ({ours.name} in {ours.owner or 'the module'}, {theirs.name} in "
                    f"{theirs.owner or 'the module'}); a trace needs the same for any number of them"
                )


def _segment(
    passes: _Passes, parts: _Passes | None, samples: tuple[int, int], place: int, starts: Sequence[str]
) -> tuple[TracedOp, ...]:
    path = starts[place - 1] if 0 < place <= len(starts) else ""
    found = passes[0].found
    indices = [index for index, call in enumerate(found.forward) if call.segment == place]
    return tuple(
        replace(_op(passes, samples, run), cut=_cut(passes, parts, samples, run) if parts else None)
        for run in _runs(found, indices, path)
    )


def _runs(found: Recording, indices: list[int], path: str) -> Iterator[_CallRun]:
    """Kernels that memory limits stand together as far as one module runs them in a row; what launches nothing goes
    with what follows it.
    """
    run, silent = None, list[int]()
    for index in indices:
        call = found.forward[index]
        silent.append(index)
        if call.cost is None:
            continue
        name = _inside(call.owner, path) or call.name
        kind = call.cost.kind if call.cost.shape or call.cost.kind == "memory" else "memory"
        if run is None or kind != "memory" or run.kind != "memory" or run.name != name:
            if run:
                yield run
            run = _CallRun(name, kind, main=-1 if kind == "memory" else index)
        run.calls += silent
        silent = []
    if run:
        run.calls += silent
        yield run
    elif silent:
        yield _CallRun("views", "memory", silent)


def _inside(owner: str, path: str) -> str:
    """A module's path inside its block."""
    if owner == path:
        return ""
    return owner.removeprefix(f"{path}.") if path else owner


def _op(passes: _Passes, samples: tuple[int, int], run: _CallRun) -> TracedOp:
    few, many = (one.numbers(run) for one in passes)
    found, back = passes[0].found, passes[0].back
    launched = [found.forward[index].cost for index in run.calls]
    launched_b = [call.cost for index in run.calls for call in back[index]]

    def line(name: str) -> Line:
        return line_of(getattr(few, name), getattr(many, name), samples)

    return TracedOp(
        name=run.name, kind=run.kind,
        shape=tuple(line_of(one, other, samples) for one, other in zip(few.shape, many.shape, strict=True)),
        bytes_f=line("bytes_f"), bytes_b=line("bytes_b"),
        kernels_f=sum(cost.kernels for cost in launched if cost),
        kernels_b=sum(cost.kernels for cost in launched_b if cost),
        calls_f=_called([found.forward[index] for index in run.calls], back=False),
        calls_b=_called([call for index in run.calls for call in back[index]], back=True),
        kept=line("kept"), extra_f=line("extra_f"), extra_b=line("extra_b"),
        params=round(few.params),
        single=any(cost.single for cost in launched if cost),
        masked=any(cost.masked for cost in launched if cost),
    )  # fmt: skip


def _called(calls: list[Call], *, back: bool) -> float:
    """What calls take of the host, in calls that launch a kernel."""
    return round(sum(called(one.name, launches=bool(one.cost and one.cost.kernels), back=back) for one in calls), 3)


def _cut(passes: _Passes, parts: _Passes, samples: tuple[int, int], run: _CallRun) -> TracedCut | None:
    """What tensor parallel divides: a line through the whole and one rank's part of it."""
    whole, part = [one.numbers(run) for one in passes], [one.numbers(run) for one in parts]

    def divided(few: float, many: float, less: float, less_of_many: float) -> Line:
        return line_of(DIVIDED * (few - less), DIVIDED * (many - less_of_many), samples)

    lines = {
        name: divided(*(getattr(one, name) for one in (*whole, *part)))
        for name in ("bytes_f", "bytes_b", "kept", "extra_f", "extra_b")
    }
    same = len(whole[0].shape) == len(part[0].shape)
    shape = tuple(divided(*each) for each in zip(*(one.shape for one in (*whole, *part)), strict=True)) if same else ()
    found = TracedCut(
        shape=shape if any(line != NONE for line in shape) else (), **lines,
        params=round(DIVIDED * (whole[0].params - part[0].params)),
        sums_f=line_of(part[0].sums_f, part[1].sums_f, samples),
        sums_b=line_of(part[0].sums_b, part[1].sums_b, samples),
    )  # fmt: skip
    return None if found == TracedCut() else found


def _entry(passes: _Passes, samples: tuple[int, int], place: int) -> Line:
    few, many = (
        sum(one.bytes for one in part.found.memory if one.trains and one.segment < place and place in one.readers)
        for part in passes
    )
    return line_of(few, many, samples)


def _border(passes: _Passes, samples: tuple[int, int], count: int) -> Line:
    """Of the widest of all borders between blocks."""

    def crossing(part: _Pass, place: int) -> float:
        memory = (one for one in part.found.memory if one.trains and one.segment <= place)
        return sum(one.bytes for one in memory if max(one.readers, default=0) > place)

    places = range(1, count) if count > 1 else range(count + 1)
    widest = max(places, key=lambda place: crossing(passes[1], place))
    few, many = (crossing(part, widest) for part in passes)
    return line_of(few, many, samples)


def _logits(last: TracedBlock, samples: tuple[int, int]) -> Line:
    products = [op.shape for op in last.ops if op.kind == "gemm"]
    few, many = (
        max((2.0 * at(rows, count) * at(columns, count) for rows, columns, *_ in products), default=0.0)
        for count in samples
    )
    return line_of(few, many, samples)


def _kinds(blocks: list[TracedBlock], paths: Sequence[str]) -> tuple[tuple[TracedBlock, ...], tuple[int, ...]]:
    """Blocks with the same operators are one kind; bytes that are live beside them are the most of any of it."""
    known: dict[TracedBlock, int] = {}
    kinds: list[TracedBlock] = []
    firsts, order = list[str](), list[int]()
    for block, path in zip(blocks, paths, strict=True):
        plain = replace(block, ops=tuple(_without_peaks(op) for op in block.ops))
        index = known.setdefault(plain, len(known))
        if index == len(kinds):
            kinds.append(block)
            firsts.append(path)
        else:
            kinds[index] = _highest(kinds[index], block)
        order.append(index)
    return _named(kinds, firsts), tuple(order)


def _without_peaks(op: TracedOp) -> TracedOp:
    cut = op.cut and replace(op.cut, extra_f=NONE, extra_b=NONE)
    return replace(op, extra_f=NONE, extra_b=NONE, cut=cut)


def _named(kinds: list[TracedBlock], paths: list[str]) -> tuple[TracedBlock, ...]:
    """Kinds of one class by their first block, and a block that runs again by its turn."""
    shared, turns = Counter(kind.name for kind in kinds), Counter[str]()
    found = []
    for kind, path in zip(kinds, paths, strict=True):
        name = f"{kind.name} ({path or 'all'})" if shared[kind.name] > 1 else kind.name
        turns[name] += 1
        found.append(replace(kind, name=f"{name} again {turns[name] - 1}" if turns[name] > 1 else name))
    return tuple(found)


def _highest(kind: TracedBlock, other: TracedBlock) -> TracedBlock:
    return replace(kind, ops=tuple(map(_higher, kind.ops, other.ops)))


def _higher(op: TracedOp, other: TracedOp) -> TracedOp:
    for name in ("extra_f", "extra_b"):
        if sum(getattr(other, name)) > sum(getattr(op, name)):
            cut = op.cut and other.cut and replace(op.cut, **{name: getattr(other.cut, name)})
            op = replace(op, cut=cut, **{name: getattr(other, name)})
    return op
