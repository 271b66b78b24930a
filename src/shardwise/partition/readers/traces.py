"""Times of head, body layer and tail from a folder of Chrome traces (MindSpore's and PyTorch's profilers), in ms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardwise.errors import FileError, InputError
from shardwise.partition.readers.init_file import Profiling
from shardwise.partition.readers.layer_events import TracePiece, pieces_of

_PATTERNS = ("trace_view*.json", "trace_view*.json.gz", "msprof*.json", "msprof*.json.gz", "*.pt.trace.json",
             "*.pt.trace.json.gz")  # fmt: skip
_WHOLE = 0.7
"""Recomputing at least this share of the forward is full recompute."""
_UNLIKE = 1.2
"""Layers whose times differ by more than this are pointed at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """ms of one micro batch; None or not there: the traces do not show it."""

    head: float
    body: float
    tail: float
    head_backward: float | None = None
    body_backward: float | None = None
    tail_backward: float | None = None
    recompute: dict[str, float] = field(default_factory=dict)
    """What one recomputed layer adds, by recompute kind."""
    notes: tuple[str, ...] = ()


def read_times(profiling: Profiling, kinds: Sequence[str] = ()) -> LayerTimes:
    """Mean times over all traces of a folder; `kinds`: the recompute kinds that may be in them."""
    paths = trace_files(profiling.folder)
    pieces, likely = list[TracePiece](), dict[str, None]()
    for path in paths:
        found, names = pieces_of(path, profiling)
        pieces += found
        likely.update(dict.fromkeys(names))
    parts = {part: _time(pieces, part, "forward") for part in ("head", "body", "tail")}
    missing = [part for part, time in parts.items() if time is None]
    if missing:
        raise InputError(_not_found(missing, profiling, len(paths), list(likely)))
    backward = {f"{part}_backward": _time(pieces, part, "backward") for part in parts}
    recompute, notes = _recompute(pieces, kinds)
    if backward["body_backward"] is None:
        notes.append("the traces show no backward of the body: it is taken as twice the forward")
    notes += _unlike(pieces)
    return LayerTimes(
        head=parts["head"] or 0.0, body=parts["body"] or 0.0, tail=parts["tail"] or 0.0, **backward,
        recompute=recompute, notes=tuple(notes),
    )  # fmt: skip


def trace_files(where: str) -> list[Path]:
    folder = Path(where)
    if not folder.is_dir():
        raise FileError(folder, "is not a folder; profiling_config.folder_path must hold the trace_view*.json files")
    paths = sorted({path for pattern in _PATTERNS for path in folder.rglob(pattern)})
    if not paths:
        raise FileError(folder, f"holds no trace; looked for {', '.join(_PATTERNS)}")
    return paths


def _not_found(missing: list[str], profiling: Profiling, files: int, likely: list[str]) -> str:
    names = {"head": profiling.head, "body": profiling.body, "tail": profiling.tail}
    wanted = "; ".join(f"{part}: {' or '.join(names[part])}" for part in missing)
    seen = f" Names in the traces that may be meant: {', '.join(likely[:8])}." if likely else ""
    keys = ", ".join(f"{part}_layers" for part in missing)
    return (
        f"{profiling.folder}: no operator named so in {files} trace(s): {wanted}. Give the traces of the first, the "
        f"last and one middle stage, and the names your model uses ({keys}).{seen}"
    )


def _time(pieces: Iterable[TracePiece], part: str, phase: str) -> float | None:
    """The mean over layers of the body, the sum over the operators of head and tail; each the mean of its files."""
    times: dict[str, list[float]] = {}
    for piece in pieces:
        if (piece.part, piece.phase) == (part, phase):
            times.setdefault(piece.layer, []).append(piece.time)
    if not times:
        return None
    means = [_mean(own) for own in times.values()]
    return _mean(means) if part == "body" else sum(means)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _recompute(pieces: list[TracePiece], kinds: Sequence[str]) -> tuple[dict[str, float], list[str]]:
    """What recomputing adds to a layer, by kind: told apart by how much of the forward runs again, and what."""
    forward = {p.layer: p.time for p in pieces if (p.part, p.phase) == ("body", "forward")}
    usual = _mean(list(forward.values())) if forward else 0.0
    found: dict[str, list[float]] = {}
    unknown = list[float]()
    for piece in pieces:
        if (piece.part, piece.phase) == ("body", "recompute"):
            kind = _kind(piece, forward.get(piece.layer, usual), kinds)
            (found.setdefault(kind, []) if kind else unknown).append(piece.time)
    notes = []
    if unknown:
        notes.append(
            f"the traces show layers that recompute {_mean(unknown):.4g} ms, but not which of {', '.join(kinds)} that "
            "is: SAPP's share of the backward is taken; profile with one kind, or with operators shown"
        )
    return {kind: _mean(times) for kind, times in found.items()}, notes


def _kind(piece: TracePiece, forward: float, kinds: Sequence[str]) -> str:
    partial = [kind for kind in kinds if kind != "full"]
    if piece.time >= _WHOLE * forward and ("full" in kinds or not partial):
        return "full"
    if len(partial) == 1:
        return partial[0]
    if piece.talks is None:
        return ""
    kind = "both" if piece.talks and piece.computes else "comm" if piece.talks else "select"
    return kind if kind in partial else ""


def _unlike(pieces: list[TracePiece]) -> list[str]:
    """A note where layers of the body are not alike."""
    times: dict[str, list[float]] = {}
    for piece in pieces:
        if (piece.part, piece.phase) == ("body", "forward"):
            times.setdefault(piece.layer, []).append(piece.time)
    means = {layer: _mean(own) for layer, own in times.items()}
    if not means or max(means.values()) <= _UNLIKE * min(means.values()):
        return []
    slow, fast = (pick(means, key=lambda layer: means[layer]) for pick in (max, min))
    said = (
        f"layers are not alike: layer {slow} takes {means[slow]:.4g} ms, layer {fast} {means[fast]:.4g} "
        f"({len(means)} seen); the mean is used. Kinds of layers are told apart in a problem file with several BODY "
        "entries (--problem)"
    )
    return [said]
