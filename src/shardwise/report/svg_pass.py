"""One forward and one backward pass as a figure: layers, operators, collectives, and below them the memory."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby

from shardwise.cost.traffic import AXES
from shardwise.estimate.iteration import SHARDING
from shardwise.estimate.operators import OpRun, PassTrace
from shardwise.plan.inside import RankPasses
from shardwise.report.svg_lanes import COLOURS, HIDDEN
from shardwise.units import show_bytes, show_seconds

_WIDTH, _LEFT, _ROW, _MEMORY = 1200.0, 70.0, 22.0, 190.0
_KINDS = {
    "matrix product": "#0072b2", "attention": "#e69f00", "recurrence": "#56b4e9", "memory-bound": "#009e73",
    "computed again": "#cc79a7",
    SHARDING: COLOURS[SHARDING], "send, copies": "#8b949e",
}  # fmt: skip
_OF = {
    "gemm": "matrix product", "grouped": "matrix product", "attention": "attention", "scan": "recurrence",
    "memory": "memory-bound",
}  # fmt: skip
_SHADES = ("#d0d7de", "#eaeef2")


def pass_svg(found: RankPasses, title: str = "") -> str:
    """A stand-alone SVG file of the rank's chunk that reaches highest."""
    trace, held = max(
        zip(found.passes, found.held, strict=True), key=lambda one: one[1] + max(run.level for run in one[0].backward)
    )
    runs = [*trace.forward, *(_later(run, trace.forward[-1].end) for run in trace.backward)]
    axes = [axis for axis in AXES if any(getattr(run.shown, axis) + getattr(run.hidden, axis) for run in runs)]
    scale, top = (_WIDTH - _LEFT - 20.0) / (runs[-1].end or 1.0), 66.0
    below = top + 2 * (_ROW + 4) + 12.0 * len(axes) + 24.0
    height = below + _MEMORY + 40.0
    said = (
        f"{title}: rank {trace.rank}, chunk {trace.chunk}, forward {show_seconds(trace.forward[-1].end)}, "
        f"backward {show_seconds(trace.backward[-1].end)}"
    )
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height:g}" '
            'font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{_WIDTH:g}" height="{height:g}" fill="white"/>',
        f'<text x="{_LEFT:g}" y="22" font-size="14">{escape(said)}</text>',
        *_passes(trace, scale, top, below),
        *_layers(runs, scale, top),
        *_operators(runs, scale, top + _ROW + 4),
        *(bar for k, axis in enumerate(axes) for bar in _traffic(runs, axis, scale, top + 2 * (_ROW + 4) + 12.0 * k)),
        *_memory(runs, held, scale, below),
        *_legend(runs, height - 14.0),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _later(run: OpRun, by: float) -> OpRun:
    return run._replace(start=run.start + by, end=run.end + by)


def _passes(trace: PassTrace, scale: float, top: float, below: float) -> Iterator[str]:
    """What the two halves are, and the line between them."""
    turn = _LEFT + trace.forward[-1].end * scale
    for name, x in (("forward", _LEFT), ("backward", turn)):
        yield f'<text x="{x + 4:.2f}" y="{top - 10:g}" font-size="12" fill="#444">{name}</text>'
    yield (
        f'<line x1="{turn:.2f}" x2="{turn:.2f}" y1="{top - 22:g}" y2="{below + _MEMORY:g}" stroke="#888" '
        'stroke-dasharray="3 3"/>'
    )


def _layers(runs: list[OpRun], scale: float, y: float) -> Iterator[str]:
    yield f'<text x="{_LEFT - 6:g}" y="{y + 15:g}" text-anchor="end">layers</text>'
    for index, (place, group) in enumerate(groupby(runs, key=lambda run: run.place)):
        own = list(group)
        x, width = _LEFT + own[0].start * scale, (own[-1].end - own[0].start) * scale
        yield (
            f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{_ROW:g}" fill="{_SHADES[index % 2]}">'
            f"<title>{escape(place)} {show_seconds(own[-1].end - own[0].start)}</title></rect>"
        )
        text = place.removeprefix("layer ")
        if width > 7 * len(text) + 2:
            yield f'<text x="{x + width / 2:.2f}" y="{y + 15:g}" text-anchor="middle" fill="#333">{escape(text)}</text>'


def _kind(run: OpRun) -> str:
    if run.name == SHARDING:
        return SHARDING
    if not run.kind:
        return "send, copies"
    return "computed again" if run.part == "R" else _OF[run.kind]


def _operators(runs: list[OpRun], scale: float, y: float) -> Iterator[str]:
    yield f'<text x="{_LEFT - 6:g}" y="{y + 15:g}" text-anchor="end">operators</text>'
    for run in runs:
        x, width = _LEFT + run.start * scale, (run.end - run.start) * scale
        told = escape(
            f"{run.place} {run.name} {run.part}: {show_seconds(run.end - run.start)}, {show_bytes(run.level)}"
        )
        yield (
            f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{_ROW:g}" fill="{_KINDS[_kind(run)]}" '
            f'stroke="white" stroke-width="{min(0.4, width / 8):.2g}"><title>{told}</title></rect>'
        )


def _traffic(runs: list[OpRun], axis: str, scale: float, y: float) -> Iterator[str]:
    yield f'<text x="{_LEFT - 6:g}" y="{y + 8:g}" text-anchor="end" font-size="9">{axis}</text>'
    for run in runs:
        shown, hidden = getattr(run.shown, axis), getattr(run.hidden, axis)
        for start, seconds, faint in ((run.start, hidden, f' fill-opacity="{HIDDEN}"'), (run.end - shown, shown, "")):
            width = min(seconds, run.end - run.start) * scale
            if width > 0:
                colour = COLOURS[f"{axis} communication"]
                yield (
                    f'<rect x="{_LEFT + start * scale:.2f}" y="{y:g}" width="{width:.2f}" height="9" '
                    f'fill="{colour}"{faint}/>'
                )


def _memory(runs: list[OpRun], held: float, scale: float, y: float) -> Iterator[str]:
    """Bytes through the operators, above what the rank holds anyway: the scale begins a little below that."""
    high = max(run.level for run in runs)
    most, least = held + high, max(0.0, held - 0.25 * high)

    def level(size: float) -> float:
        return y + _MEMORY * (1 - (size - least) / (most - least) / 1.04)

    points = [f"{_LEFT:.2f},{level(held):.2f}"]
    for run in runs:
        left, right = _LEFT + run.start * scale, _LEFT + run.end * scale
        points += [f"{left:.2f},{level(held + run.level):.2f}", f"{right:.2f},{level(held + run.level):.2f}",
                   f"{right:.2f},{level(held + run.stays):.2f}"]  # fmt: skip
    right, floor = _LEFT + runs[-1].end * scale, y + _MEMORY
    yield (
        f'<polygon points="{_LEFT:.2f},{floor:.2f} {" ".join(points)} {right:.2f},{floor:.2f}" fill="#56b4e9" '
        'fill-opacity="0.35" stroke="#0072b2" stroke-width="0.8"/>'
    )
    top = next(run for run in runs if run.level == high)
    for size in (most, held):
        yield f'<line x1="{_LEFT:g}" x2="{right:.2f}" y1="{level(size):.2f}" y2="{level(size):.2f}" stroke="#bbb"/>'
        yield f'<text x="{_LEFT - 6:g}" y="{level(size) + 4:.2f}" text-anchor="end">{show_bytes(size)}</text>'
    told = escape(f"highest at {top.place}, {top.name}; the lower line: before the forward pass, others in flight")
    yield f'<text x="{_LEFT + 6:g}" y="{floor - 8:g}" fill="#333">{told}</text>'
    yield f'<line x1="{_LEFT:g}" x2="{right:.2f}" y1="{floor:g}" y2="{floor:g}" stroke="#888"/>'


def _legend(runs: list[OpRun], y: float) -> Iterator[str]:
    used, x = {_kind(run) for run in runs}, _LEFT
    for name, colour in _KINDS.items():
        if name in used:
            yield f'<rect x="{x:g}" y="{y - 9:g}" width="10" height="10" fill="{colour}"/>'
            yield f'<text x="{x + 14:g}" y="{y:g}">{name}</text>'
            x += 34.0 + 6.4 * len(name)
    yield f'<text x="{x:g}" y="{y:g}" fill="#555">pale: hidden behind kernels</text>'
