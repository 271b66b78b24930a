"""The peak of a CUDA memory snapshot and what it is made of: torch's pickle, or the same as JSON.

`torch.cuda.memory._dump_snapshot` writes what is allocated now and a record of what came and went before. What was
allocated before the record began is known by its size only.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.errors import FileError, InputError
from shardwise.inputs.files import read_bytes
from shardwise.inputs.gate import held, word
from shardwise.inputs.scalars import SCALARS
from shardwise.measure.fit.plain_pickle import PickleError, plain

BEFORE = "before the record began"
NAMELESS = "backward and kernels without a Python frame"
TOP = 6
# The first that is part of a frame's file or function names what an allocation is.
_PARTS = (
    ("optimizer", ("optim", "adam", "zero_grad")),
    ("gradient and parameter buffers", ("param_and_grad_buffer", "fully_shard", "fsdp", "reducer")),
    ("recomputed activations", ("checkpoint",)),
    ("loss", ("cross_entropy", "loss")),
)
_FORWARD = "forward"
_ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
    "snapshot", "oom", "user_defined",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Allocated bytes of one device."""

    peak: float
    """Highest allocated bytes that the record saw; what is allocated at its end where there is no record."""
    end: float
    """Allocated when it was written."""
    parts: dict[str, float] = field(hash=False)
    """What the peak is made of; the parts add up to it."""
    sites: tuple[tuple[str, float], ...]
    """The lines of code that hold most at the peak."""
    events: int
    """Allocations and frees in the record."""


def read_snapshot(path: str | Path) -> Snapshot:
    """Read a snapshot; the device with the highest peak is taken."""
    data = _data(path)
    if not isinstance(data, dict) or not isinstance(data.get("segments"), list):
        raise FileError(
            path, "is no memory snapshot: it has no segments; write it with torch.cuda.memory._dump_snapshot"
        )
    ends: dict[int, float] = defaultdict(float)
    try:
        for segment in data["segments"]:
            blocks = [block for block in segment["blocks"] if block["state"].startswith("active")]
            device = int(held(segment.get("device", 0), SCALARS["snapshot.device"], "segments.device"))
            ends[device] += sum(_size(block["size"]) for block in blocks)
        records = data.get("device_traces") or []
        found = [_peak(ends[device], records[device] if device < len(records) else []) for device in sorted(ends)]
    except InputError as error:
        raise FileError(path, f"is a broken memory snapshot: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileError(path, f"is a broken memory snapshot: {error!r}") from None
    if not found or not max(one.peak for one in found):
        raise FileError(path, "holds no allocated memory; write it from the training process, after an iteration")
    return max(found, key=lambda one: one.peak)


def _data(path: str | Path) -> Any:  # noqa: ANN401 - a file can hold anything
    content = read_bytes(path)
    try:
        if content[:1] in {b"{", b"["}:
            return json.loads(content)
        return plain(content)
    except PickleError as error:
        raise FileError(path, str(error)) from None
    except (ValueError, RecursionError) as error:
        raise FileError(path, f"is no memory snapshot: {error}") from None


def _size(value: object) -> float:
    return held(value, SCALARS["snapshot.bytes"], "size")


def _changes(record: list[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any], float]]:
    """(place, event, bytes more or less); memory is free when its free is complete, as the allocator counts it."""
    for place, event in enumerate(record):
        word(event["action"], _ACTIONS, "device_traces.action")
        if event["action"] == "alloc":
            yield place, event, _size(event["size"])
        elif event["action"] == "free_completed":
            yield place, event, -_size(event["size"])


def _peak(end: float, record: list[dict[str, Any]]) -> Snapshot:
    start = end - sum(change for _, _, change in _changes(record))
    live = peak = start
    at, count = -1, 0
    for place, _, change in _changes(record):
        live, count = live + change, count + 1
        if live > peak:
            peak, at = live, place
    held: dict[Any, dict[str, Any]] = {}
    earlier = start
    for _, event, change in _changes(record[: at + 1]):
        if change > 0:
            held[event["addr"]] = event
        elif held.pop(event["addr"], None) is None:
            earlier += change  # it was there before the record
    parts = {BEFORE: earlier} if earlier > 0 else {}
    sites: dict[str, float] = defaultdict(float)
    for event in held.values():
        name = _part(event.get("frames") or ())
        parts[name] = parts.get(name, 0.0) + _size(event["size"])
        sites[_site(event.get("frames") or ())] += _size(event["size"])
    top = sorted(sites.items(), key=lambda item: (-item[1], item[0]))[:TOP]
    return Snapshot(peak=peak, end=end, parts=parts, sites=tuple(top), events=count)


def _part(frames: Any) -> str:  # noqa: ANN401
    words = [f"{frame.get('filename', '')} {frame.get('name', '')}".lower() for frame in frames]
    words = [text for text in words if ".py" in text]
    if not words:
        return NAMELESS
    for name, marks in _PARTS:
        if any(mark in text for text in words for mark in marks):
            return name
    return _FORWARD


def _site(frames: Any) -> str:  # noqa: ANN401
    """The innermost line that is not torch's own."""
    own = [frame for frame in frames if str(frame.get("filename", "")).endswith(".py")]
    outside = [frame for frame in own if "/torch/" not in str(frame["filename"])]
    for frame in (outside or own)[:1]:
        return f"{Path(str(frame['filename'])).name}:{frame.get('line', '?')} {frame.get('name', '')}".strip()
    return NAMELESS
