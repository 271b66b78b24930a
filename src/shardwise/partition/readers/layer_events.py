"""What one trace shows of head, layers and tail: MindSpore's scopes and operators, or PyTorch's modules and kernels.

An event counts where its name holds one of the given names; the number in the name (`3-LLamaDecodeLayer`,
`LlamaDecoderLayer_3`) is the layer. A layer may be one event, several of one name, or one for each of its operators:
time is what the events cover together, and passes are counted by operators, or by turns among the layers.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shardwise.cost.profiles.trace import events, kind_of
from shardwise.errors import InputError
from shardwise.partition.readers.init_file import Profiling
from shardwise.partition.readers.torch_events import TorchTrace, covered

Phase = Literal["forward", "backward", "recompute"]
_SCOPES = frozenset({"Default", "Gradients", "recompute_Default"})
_LIKELY = re.compile(r"layer|block|embed|head|norm", re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9.]+(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A layer (or a part of head or tail) in one phase: ms of one pass."""

    part: str
    layer: str
    phase: str
    time: float
    passes: int
    talks: bool | None = None
    """Whether collectives are among its operators; None: operators are not shown."""
    computes: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    part: str
    layer: str
    name: str
    lane: tuple[object, object]
    begin: float
    end: float


@dataclass(slots=True)
class _File:
    """What is kept of a file while it is read."""

    events: list[_Event] = field(default_factory=list)
    scopes: list[tuple[float, float, str]] = field(default_factory=list)
    likely: Counter[str] = field(default_factory=Counter)
    torch: TorchTrace = field(default_factory=TorchTrace)


def pieces_of(path: Path, profiling: Profiling) -> tuple[list[Piece], list[str]]:
    """What a file shows; and names in it that may be layers, for the message when nothing is found."""
    file, scope_pid = _File(), None
    for event in events(path):
        name = str(event.get("name", ""))
        if name == "process_name" and "Scope Layer" in str(event.get("args")):
            scope_pid = event.get("pid")
        span = _span(event)
        if span is None:
            continue
        if name in _SCOPES and scope_pid in {None, event.get("pid")}:
            file.scopes.append((*span, name))
        part, layer = part_of(name, profiling)
        if not file.torch.take(event, span, part, layer) and part:
            lane = (event.get("pid"), event.get("tid"))
            file.events.append(_Event(part=part, layer=layer, name=name, lane=lane, begin=span[0], end=span[1]))
        elif not part and _LIKELY.search(name):
            file.likely[re.sub(r"\d+", "#", name.rsplit("/", 1)[-1])] += 1
    likely = [name for name, _ in file.likely.most_common(6)]
    if file.torch.used:
        return [Piece(**found) for found in file.torch.pieces(profiling.microbatches, path)], likely
    return _pieces(file, profiling.microbatches, path), likely


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
    """Begin and end in microseconds; both may be written as texts."""
    begin, length = event.get("ts"), event.get("dur")
    for value in (begin, length):
        if isinstance(value, bool) or not isinstance(value, int | float | str) or not _NUMBER.fullmatch(str(value)):
            return None
    return float(str(begin)), float(str(begin)) + float(str(length))


def _pieces(file: _File, microbatches: int, path: Path) -> list[Piece]:
    body = covered((e.begin, e.end) for e in file.events if e.part == "body")
    scopes = sorted(file.scopes)
    groups: dict[tuple[str, str, str], list[_Event]] = {}
    for event in file.events:
        if event.part == "body" or not _inside(body, event.begin):  # a norm within a layer is not the tail's
            groups.setdefault((event.part, event.layer, _phase(event, scopes)), []).append(event)
    turns = _turns(groups)
    found = []
    for (part, layer, phase), own in sorted(groups.items()):
        passes = _passes(own, turns[part, layer, phase], microbatches)
        if passes is None:
            names = f"{part} {layer} ({own[0].name})".replace("  ", " ")
            raise InputError(
                f"{path}: {names} is seen {len(own)} times in {phase}, which is no multiple of micro_batch_num "
                f"{microbatches}: correct micro_batch_num, or profile whole steps"
            )
        spans = covered((e.begin, e.end) for e in own)
        shown = len({e.name for e in own}) > 1
        talks = any(kind_of(e.name.rsplit("/", 1)[-1]) == "communication" for e in own) if shown else None
        computes = any(kind_of(e.name.rsplit("/", 1)[-1]) != "communication" for e in own) if shown else None
        found.append(Piece(
            part=part, layer=layer, phase=phase, time=sum(b - a for a, b in spans) / 1000 / passes, passes=passes,
            talks=talks, computes=computes,
        ))  # fmt: skip
    return found


def _inside(spans: Sequence[tuple[float, float]], moment: float) -> bool:
    at = bisect_right(spans, (moment, float("inf"))) - 1
    return at >= 0 and moment < spans[at][1]


def _phase(event: _Event, scopes: list[tuple[float, float, str]]) -> Phase:
    at = bisect_right(scopes, (event.begin, float("inf"), "")) - 1
    around = scopes[at][2] if at >= 0 and event.begin < scopes[at][1] else ""
    words = f"{event.name} {around}".lower()
    if "recompute" in words:
        return "recompute"
    return "backward" if "gradient" in words or "backward" in words else "forward"


def _turns(groups: dict[tuple[str, str, str], list[_Event]]) -> Counter[tuple[str, str, str]]:
    """How often each has its turn on the lane that is busiest with them."""
    lanes: Counter[tuple[object, object]] = Counter()
    for own in groups.values():
        for event in own:
            lanes[event.lane] += round(event.end - event.begin) + 1
    busiest = lanes.most_common(1)[0][0] if lanes else None
    order = sorted((e.begin, key) for key, own in groups.items() for e in own if e.lane == busiest)
    turns: Counter[tuple[str, str, str]] = Counter()
    last = None
    for _, key in order:
        turns[key] += key != last
        last = key
    return turns


def _passes(own: list[_Event], turns: int, microbatches: int) -> int | None:
    """Whole steps hold a multiple of the micro batches.

    Operators come once a pass, and those that come more or less often matter little. Where all events have one name,
    there are several a pass if fewer turns make whole steps, too.
    """
    counts = Counter(e.name for e in own)
    weights: Counter[int] = Counter()
    for event in own:
        weights[counts[event.name]] += round(event.end - event.begin) + 1
    likely = [count for count, _ in weights.most_common()]
    candidates = [*([turns] if len(counts) == 1 else []), *likely, turns]
    return next((count for count in candidates if count > 0 and count % microbatches == 0), None)
