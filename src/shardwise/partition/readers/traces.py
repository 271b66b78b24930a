"""Times of head, body layer and tail from Chrome traces (MindSpore's and PyTorch's profilers), read as a stream.

An operator counts where its name holds one of the given names. Its phase: backward where it or the scope around it says
Gradients or backward, recompute where it says recompute, else forward. Every layer and micro batch is seen once per
step, so the number of times a layer is seen must be a multiple of the micro batches; times are in ms.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from shardwise.errors import FileError, InputError
from shardwise.partition.readers.init_file import Profiling

_PIECE = 1 << 20
_LARGEST = 1 << 24
"""One event is never this long: what does not parse within it is broken."""
_PATTERNS = ("trace_view*.json", "trace_view*.json.gz", "msprof*.json", "*.pt.trace.json", "*.pt.trace.json.gz")
_INDEX = re.compile(r"(\d+)-|[._/](\d+)(?:\D|$)")
Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """ms of one micro batch; None: the traces do not show it."""

    head: float
    body: float
    tail: float
    body_backward: float | None = None
    body_recompute: float | None = None
    notes: tuple[str, ...] = ()


def events(path: Path) -> Iterator[Event]:
    """Every event of a trace, a piece of the file at a time."""
    decoder = json.JSONDecoder()
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            text, at = _opening(file, path)
            while True:
                text, at = _skip(text, at, file)
                if at < len(text) and text[at] == "]":
                    return
                if at == len(text):
                    raise FileError(path, "ends in the middle: the trace is cut off; copy it again whole")
                event, text, at = _event(decoder, text, at, file, path)
                if isinstance(event, dict):
                    yield event
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise FileError(path, f"cannot be read: {error}") from None


def _opening(file: IO[str], path: Path) -> tuple[str, int]:
    """Up to the first event: a list, or an object with the list under traceEvents."""
    text = file.read(_PIECE)
    start = text.lstrip()[:1]
    if start == "[":
        return text, text.index("[") + 1
    while start == "{":
        found = re.search(r'"traceEvents"\s*:\s*\[', text)
        if found:
            return text, found.end()
        piece = file.read(_PIECE)
        if not piece or len(text) > _LARGEST:
            break
        text += piece
    raise FileError(path, "is not a Chrome trace: it holds neither a list of events nor traceEvents")


def _skip(text: str, at: int, file: IO[str]) -> tuple[str, int]:
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at < len(text):
            return text, at
        text, at = file.read(_PIECE), 0
        if not text:
            return text, at


def _event(decoder: json.JSONDecoder, text: str, at: int, file: IO[str], path: Path) -> tuple[Any, str, int]:
    while True:
        try:
            event, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            piece = file.read(_PIECE)
            if not piece:
                raise FileError(path, "ends in the middle: the trace is cut off; copy it again whole") from None
            text, at = text[at:] + piece, 0
            if len(text) > _LARGEST:
                raise FileError(path, "is not valid JSON; export the trace again") from None
            continue
        return event, text, end


@dataclass(slots=True)
class _Seen:
    """What one file shows."""

    total: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """By part, phase and name: ms."""
    count: dict[tuple[str, str, str], int] = field(default_factory=dict)
    scopes: list[tuple[float, float, str]] = field(default_factory=list)
    found: list[tuple[str, str, float, float]] = field(default_factory=list)

    def add(self, part: str, phase: str, name: str, duration: float) -> None:
        key = (part, phase, name)
        self.total[key] = self.total.get(key, 0.0) + duration / 1000.0
        self.count[key] = self.count.get(key, 0) + 1


def read_times(profiling: Profiling) -> Times:
    """Mean times over all traces of a folder."""
    folder = Path(profiling.folder)
    if not folder.is_dir():
        raise FileError(folder, "is not a folder; profiling_config.folder_path must hold the trace_view*.json files")
    paths = sorted({path for pattern in _PATTERNS for path in folder.rglob(pattern)})
    if not paths:
        raise FileError(folder, f"holds no trace; looked for {', '.join(_PATTERNS)}")
    seen = [_scan(path, profiling) for path in paths]
    parts = {part: _mean(seen, part, "forward", profiling) for part in ("head", "body", "tail")}
    missing = [part for part, time in parts.items() if time is None]
    if missing:
        names = {"head": profiling.head, "body": profiling.body, "tail": profiling.tail}
        wanted = ", ".join(name for part in missing for name in names[part])
        raise InputError(
            f"{folder}: no operator named {wanted} ({', '.join(missing)}) in "
            f"{len(paths)} trace(s); give the traces of the first, the last and one middle stage, and the names your "
            "model uses (head_layers, body_layers, tail_layers)"
        )
    back, again = (_mean(seen, "body", phase, profiling) for phase in ("backward", "recompute"))
    note = () if back is not None else ("the traces show no backward of the body: it is taken as twice the forward",)
    return Times(
        head=parts["head"] or 0.0, body=parts["body"] or 0.0, tail=parts["tail"] or 0.0, body_backward=back,
        body_recompute=again, notes=note,
    )  # fmt: skip


def _scan(path: Path, profiling: Profiling) -> _Seen:
    seen, scope_pid = _Seen(), None
    names = (("body", profiling.body), ("head", profiling.head), ("tail", profiling.tail))
    for event in events(path):
        name, start, duration = str(event.get("name", "")), event.get("ts"), event.get("dur")
        if name == "process_name" and "Scope Layer" in str(event.get("args")):
            scope_pid = event.get("pid")
        if not _number(start) or not _number(duration):
            continue
        begin, length = float(str(start)), float(str(duration))
        if name in {"Default", "Gradients", "recompute_Default"} and scope_pid in {None, event.get("pid")}:
            seen.scopes.append((begin, begin + length, name))
        part = next((part for part, words in names if any(word in name for word in words)), None)
        if part:
            seen.found.append((part, name, begin, length))
    _settle(seen)
    return seen


def _number(value: object) -> bool:
    return isinstance(value, int | float | str) and bool(re.fullmatch(r"-?[0-9.eE+-]+", str(value)))


def _settle(seen: _Seen) -> None:
    """Give every operator its phase; tail operators inside a body layer (its norms) are the layer's."""
    scopes = sorted(seen.scopes)
    body = sorted((begin, begin + length) for part, _, begin, length in seen.found if part == "body")
    for part, name, begin, length in seen.found:
        if part != "body" and _inside(body, begin):
            continue
        seen.add(part, _phase(name, begin, scopes), name, length)


def _inside(spans: list[tuple[float, float]], moment: float) -> bool:
    at = bisect_right(spans, (moment, float("inf"))) - 1
    return at >= 0 and moment < spans[at][1]


def _phase(name: str, begin: float, scopes: list[tuple[float, float, str]]) -> str:
    at = bisect_right(scopes, (begin, float("inf"), "")) - 1
    around = scopes[at][2] if at >= 0 and begin < scopes[at][1] else ""
    words = f"{name} {around}".lower()
    if "recompute" in words:
        return "recompute"
    return "backward" if "gradient" in words or "backward" in words else "forward"


def _mean(seen: list[_Seen], part: str, phase: str, profiling: Profiling) -> float | None:
    """Time of one micro batch: the mean of every name, then the mean over layers or the sum over pieces."""
    values: dict[str, list[float]] = {}
    for one in seen:
        for (which, when, name), total in one.total.items():
            if (which, when) == (part, phase):
                count = one.count[which, when, name]
                if part == "body" and count % profiling.microbatches:
                    raise InputError(
                        f"{name} is seen {count} times, which is no multiple of micro_batch_num "
                        f"{profiling.microbatches}: correct it, or profile whole steps"
                    )
                values.setdefault(name, []).append(total / count)
    if not values:
        return None
    means = {name: sum(times) / len(times) for name, times in values.items()}
    return sum(means.values()) / len(means) if part == "body" else sum(means.values())
