"""What one trace shows of head, layers and tail: MindSpore's scopes and operators, or PyTorch's modules and kernels.

An event counts where its name holds one of the given names; the number in the name (`3-LLamaDecodeLayer`,
`LlamaDecoderLayer_3`) is the layer. A layer may be one event, several of one name, or one for each of its operators:
time is what the events cover together, and passes are counted by operators, or by turns among the layers.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwise.errors import InputError
from shardwise.inputs.trace import events, kind_of
from shardwise.partition.readers.init_file import Profiling
from shardwise.partition.readers.torch_events import TorchTrace

PHASES = ("forward", "backward", "recompute")
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_SCOPES = frozenset({"Default", "Gradients", "recompute_Default"})
_LIKELY = re.compile(r"layer|block|embed|head|norm", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePiece:
    """A layer (or a part of head or tail) in one phase: ms of one pass."""

    part: str
    layer: str
    phase: str
    time: float
    passes: int
    talks: bool | None = None
    """Whether collectives are among its operators; None: operators are not shown."""
    computes: bool | None = None


Named = tuple[str, str, str, object, object]
"""Part, layer, name, process and thread: what many events share."""


@dataclass(slots=True)
class _TraceFile:
    """What is kept of a file while it is read: numbers in arrays, names once."""

    named: dict[Named, int] = field(default_factory=dict)
    which: array[int] = field(default_factory=lambda: array("l"))
    span: array[float] = field(default_factory=lambda: array("d"))
    scopes: list[tuple[float, float, int]] = field(default_factory=list)
    likely: Counter[str] = field(default_factory=Counter)
    torch: TorchTrace = field(default_factory=TorchTrace)

    def add(self, named: Named, span: tuple[float, float]) -> None:
        self.which.append(self.named.setdefault(named, len(self.named)))
        self.span.extend(span)


def pieces_of(path: Path, profiling: Profiling) -> tuple[list[TracePiece], list[str]]:
    """What a file shows; and names in it that may be layers, for the message when nothing is found."""
    file, scope_pid = _TraceFile(), None
    for event in events(path):
        name = str(event.get("name", ""))
        if name == "process_name" and "Scope Layer" in str(event.get("args")):
            scope_pid = event.get("pid")
        span = _span(event)
        if span is None:
            continue
        if name in _SCOPES and scope_pid in {None, event.get("pid")}:
            file.scopes.append((*span, _phase(name)))
        part, layer = part_of(name, profiling)
        if not file.torch.take(event, span, part, layer) and part:
            file.add((part, layer, name, event.get("pid"), event.get("tid")), span)
        elif not part and _LIKELY.search(name):
            file.likely[re.sub(r"\d+", "#", name.rsplit("/", 1)[-1])] += 1
    likely = [name for name, _ in file.likely.most_common(6)]
    if file.torch.used:
        return [TracePiece(**found) for found in file.torch.pieces(profiling.microbatches, path)], likely
    return _Shown(file).pieces(profiling.microbatches, path), likely


def part_of(name: str, profiling: Profiling) -> tuple[str, str]:
    """Head, body or tail, and which layer or operator of it; empty: neither. Body goes first: its norms are its own."""
    for part, words in (("body", profiling.body), ("head", profiling.head), ("tail", profiling.tail)):
        for word in words:
            at = name.find(word)
            if at >= 0:
                return part, _index(name, word, at) if part == "body" else word
    return "", ""


def _index(name: str, word: str, at: int) -> str:
    before = re.search(r"(\d+)[-._/]?$", name[:at])
    after = re.match(r"[A-Za-z]*[-._/: ]?(\d+)", name[at + len(word) :])
    found = before or after
    return found[1] if found else ""


def _span(event: dict[str, Any]) -> tuple[float, float] | None:
    """Begin and end in microseconds."""
    begin, length = event.get("ts"), event.get("dur")
    return None if begin is None or length is None else (begin, begin + length)


def _phase(name: str) -> int:
    words = name.lower()
    return 2 if "recompute" in words else 1 if "gradient" in words or "backward" in words else 0


class _Shown:
    """The events of a file, grouped by part, layer and phase."""

    def __init__(self, file: _TraceFile) -> None:
        self.named = list(file.named)
        self.which = np.array(file.which, dtype=np.int64)
        self.begin, self.end = np.array(file.span, dtype=float).reshape(-1, 2).T
        phase = np.maximum(np.array([_phase(one[2]) for one in self.named], dtype=int)[self.which], self._around(file))
        groups: dict[tuple[str, str, int], int] = {}
        of_name = [[groups.setdefault((*one[:2], k), len(groups)) for k in range(3)] for one in self.named]
        self.groups, self.group = list(groups), np.array(of_name, dtype=int).reshape(-1, 3)[self.which, phase]
        self._drop_norms()

    def _around(self, file: _TraceFile) -> Ints:
        """The phase of the scope around every event."""
        if not file.scopes:
            return np.zeros(len(self.which), dtype=np.int64)
        begin, end, phase = np.array(sorted(file.scopes)).T
        at = np.searchsorted(begin, self.begin, side="right") - 1
        return np.where((at >= 0) & (self.begin < end[at]), phase[at], 0).astype(np.int64)

    def _drop_norms(self) -> None:
        """A norm within a layer is not the tail's."""
        body = np.array([one[0] == "body" for one in self.named], dtype=bool)[self.which]
        order = np.argsort(self.begin[body], kind="stable")
        begin, end = self.begin[body][order], np.maximum.accumulate(self.end[body][order])
        at = np.searchsorted(begin, self.begin, side="right") - 1
        inside = (at >= 0) & (self.begin < end[at]) if len(end) else np.zeros(len(at), dtype=bool)
        kept = body | ~inside
        self.which, self.group, self.begin, self.end = (x[kept] for x in (self.which, self.group, self.begin, self.end))

    def pieces(self, microbatches: int, path: Path) -> list[TracePiece]:
        turns, found = self._turns(), list[TracePiece]()
        for group in sorted(set(self.group.tolist()), key=lambda k: self.groups[k]):
            (part, layer, phase), own = self.groups[group], self.group == group
            names = [self.named[k][2] for k in np.unique(self.which[own])]
            passes = self._passes(own, int(turns[group]), len(set(names)), microbatches)
            if passes is None:
                raise InputError(
                    f"{path}: {part} {layer} ({names[0]}) is seen {int(own.sum())} times in {PHASES[phase]}, which is "
                    f"no multiple of micro_batch_num {microbatches}: correct micro_batch_num, or profile whole steps"
                )
            talks = {kind_of(name.rsplit("/", 1)[-1]) == "communication" for name in names}
            shown = len(set(names)) > 1
            found.append(TracePiece(
                part=part, layer=layer, phase=PHASES[phase], time=self._time(own) / passes, passes=passes,
                talks=(True in talks) if shown else None, computes=(False in talks) if shown else None,
            ))  # fmt: skip
        return found

    def _time(self, own: Bools) -> float:
        """What events cover together, in ms: nested and parallel ones count once."""
        order = np.argsort(self.begin[own], kind="stable")
        begin, end = self.begin[own][order], self.end[own][order]
        before = np.concatenate(([-np.inf], np.maximum.accumulate(end)[:-1]))
        return float(np.maximum(end - np.maximum(begin, before), 0.0).sum()) / 1000

    def _turns(self) -> Ints:
        """How often each group has its turn on the lane that is busiest with them."""
        lanes: dict[tuple[object, object], int] = {}
        lane_of = np.array([lanes.setdefault(one[3:], len(lanes)) for one in self.named], dtype=int)
        lane = lane_of[self.which] if len(self.which) else np.zeros(0, dtype=int)
        busy = np.bincount(lane, weights=self.end - self.begin, minlength=1)
        own = lane == busy.argmax()
        groups = self.group[own][np.argsort(self.begin[own], kind="stable")]
        first = np.concatenate(([True], groups[1:] != groups[:-1]))[: len(groups)]
        return np.bincount(groups[first], minlength=len(self.groups))

    def _passes(self, own: Bools, turns: int, names: int, microbatches: int) -> int | None:
        """Whole steps hold a multiple of the micro batches.

        Operators come once a pass, and those that come more or less often matter little. Where all events have one
        name, there are several a pass if fewer turns make whole steps, too.
        """
        _, inverse, counts = np.unique(self.which[own], return_inverse=True, return_counts=True)
        weights: Counter[int] = Counter()
        for count, time in zip(counts.tolist(), np.bincount(inverse, self.end[own] - self.begin[own]), strict=True):
            weights[count] += float(time) + count
        likely = [count for count, _ in weights.most_common()]
        candidates = [*([turns] if names == 1 else []), *likely, turns]
        return next((count for count in candidates if count > 0 and count % microbatches == 0), None)
