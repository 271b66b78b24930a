"""Pictures as SVG, written by hand: timelines (the pipeline on top, the memory of every rank below), alone or
compared, and how well a calibration fits.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

from shardwise.estimate.iteration import Iteration
from shardwise.measure.fit.result import Fit, FitPoint, FittedFamily
from shardwise.partition.compare import Compared, bubble_of
from shardwise.pipeline.action import KINDS
from shardwise.pipeline.timeline import Timeline
from shardwise.report.svg_lanes import LANE, host_lanes, lanes_legend, rank_lanes
from shardwise.units import show_bytes, show_seconds

COLOURS = {"F": "#0072b2", "I": "#e69f00", "W": "#009e73", "B": "#d55e00"}
"""Of every kind of action; colour-blind eyes tell them apart (Okabe and Ito). The page has the same."""
LINES = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8b949e", "#9a8700")
_INK = {"I": "#1a1a1a"}
_WIDTH, _LEFT, _ROW, _GAP, _MEMORY = 1200.0, 60.0, 22.0, 4.0, 160.0
_TICKS = 12
"""Of the time axis at most, zero aside."""
_LETTERS = 150
"""Of the heading in one line."""
_LABELS = 4000
"""Actions up to which each carries its name."""


class Extent(NamedTuple):
    """What the width and the height of a figure stand for; figures with the same can be compared by eye."""

    time: float
    memory: float


def timeline_svg(
    timeline: Timeline,
    title: str = "",
    *,
    seconds: bool = False,
    whole: Iteration | None = None,
    extent: Extent | None = None,
    said: str = "",
) -> str:
    """A stand-alone SVG file; with `seconds`, times are seconds and memory is bytes. `whole`: the iteration that the
    passes belong to, whose traffic has lanes below every rank's row. By default the timeline fills its extent. `said`:
    of the time, in place of the makespan and the idle share.
    """
    extent = extent or Extent(whole.seconds if whole else timeline.makespan, _most_memory(timeline))
    pp, lanes = timeline.schedule.pp, len(whole.lanes(0)) if whole else 2 * bool(timeline.host)
    makespan = _time(timeline.makespan, seconds=seconds).replace(" ", "\N{NO-BREAK SPACE}")
    said = said or f"makespan {makespan}, bubble {100 * timeline.bubble:.2f}%"
    if whole:
        said = f"iteration {_time(whole.seconds, seconds=True)}, {said}".replace(" s,", "\N{NO-BREAK SPACE}s,")
    heading = textwrap.wrap(f"{title or timeline.schedule.name}: {said}", _LETTERS)
    top, each = 16.0 + 18.0 * len(heading), _ROW + _GAP + lanes * LANE
    below = top + pp * each + 30.0
    height = below + _MEMORY + 40.0 + (18.0 if whole else 0.0)
    scale = (_WIDTH - _LEFT - 20.0) / (extent.time or 1.0)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height:g}" '
            'font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{_WIDTH:g}" height="{height:g}" fill="white"/>',
        *(
            f'<text x="{_LEFT:g}" y="{20 + 18 * k}" font-size="14">{_escaped(line)}</text>'
            for k, line in enumerate(heading)
        ),
    ]
    for rank in range(pp):
        parts += _rank(timeline, rank, top + rank * each, scale)
        if whole:
            parts += rank_lanes(whole, rank, top + rank * each, _ROW, _LEFT, scale)
        elif timeline.host:
            parts += host_lanes(timeline, rank, top + rank * each, _ROW, _LEFT, scale)
    parts += _axis(extent.time, below - 28.0, scale, seconds=seconds)
    parts += _memory(timeline, below, scale, extent.memory or 1.0, seconds=seconds)
    parts += _legend(timeline, below + _MEMORY + 26.0)
    if whole:
        parts += lanes_legend(whole, _LEFT, height - 14.0)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _rank(timeline: Timeline, rank: int, y: float, scale: float) -> list[str]:
    labelled = timeline.schedule.actions <= _LABELS
    parts = [f'<text x="4" y="{y + 15:g}">rank {rank}</text>']
    rows = zip(timeline.schedule.codes[rank].tolist(), timeline.start[rank], timeline.end[rank], strict=True)
    for code, start, end in rows:
        action = timeline.schedule.decode(code)
        x, width = _LEFT + float(start) * scale, float(end - start) * scale
        shade = 1 - 0.35 * (action.chunk // timeline.schedule.pp % 2)
        edge = min(0.5, width / 8)  # a white edge would hide what is narrow
        parts.append(
            f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{_ROW:g}" fill="{COLOURS[action.kind]}" '
            f'fill-opacity="{shade:g}" stroke="white" stroke-width="{edge:.2g}">'
            f"<title>{action} {start:g} to {end:g}</title></rect>"
        )
        if labelled and width > 14:
            ink = _INK.get(action.kind, "white")
            parts.append(f'<text x="{x + 2:.2f}" y="{y + 15:g}" fill="{ink}">{action.microbatch}</text>')
    return [*parts, *_pairs(timeline, rank, y, scale)]


def _pairs(timeline: Timeline, rank: int, y: float, scale: float) -> Iterator[str]:
    """A frame around passes that run together."""
    for k in timeline.schedule.pairs[rank] if timeline.schedule.pairs else ():
        start, end = float(timeline.start[rank][k]), float(timeline.end[rank][k + 1])
        yield (
            f'<rect x="{_LEFT + start * scale + 0.75:.2f}" y="{y + 0.75:g}" width="{(end - start) * scale - 1.5:.2f}" '
            f'height="{_ROW - 1.5:g}" fill="none" stroke="#111" stroke-width="1.5"/>'
        )


def _axis(span: float, y: float, scale: float, *, seconds: bool) -> Iterator[str]:
    """Times at round numbers."""
    step = _round_step(span)
    for k in range(int(span / step * (1 + 1e-9)) + 1):
        x, said = _LEFT + k * step * scale, _time(k * step, seconds=seconds)
        yield f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{y:g}" y2="{y + 4:g}" stroke="#888"/>'
        yield f'<text x="{x:.2f}" y="{y + 14:g}" font-size="9" fill="#555" text-anchor="middle">{said}</text>'
    yield f'<line x1="{_LEFT:g}" x2="{_WIDTH - 20:g}" y1="{y:g}" y2="{y:g}" stroke="#888"/>'


def _round_step(span: float) -> float:
    """1, 2 or 5 times a power of ten, some ten of them in a span."""
    if span <= 0:
        return 1.0
    power = 10.0 ** floor(log10(span / _TICKS))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power * _TICKS >= span)


def _most_memory(timeline: Timeline) -> float:
    return max((*timeline.peak, *timeline.costs.memory_limit))


def _memory(timeline: Timeline, y: float, scale: float, most: float, *, seconds: bool) -> list[str]:
    """One step line a rank, and the limit where there is one."""
    limit = max(timeline.costs.memory_limit, default=0.0)
    parts = [
        f'<text x="4" y="{y + 10:g}">memory</text>',
        f'<line x1="{_LEFT:g}" x2="{_WIDTH - 20:g}" y1="{y + _MEMORY:g}" y2="{y + _MEMORY:g}" stroke="#888"/>',
        f'<text x="4" y="{y + 26:g}">{_size(most, seconds=seconds)}</text>',
    ]
    for rank in range(timeline.schedule.pp):
        points, before = list[str](), y + _MEMORY
        for time, held in zip(*timeline.memory(rank), strict=True):
            x, level = _LEFT + float(time) * scale, y + _MEMORY * (1 - float(held) / most)
            points += [f"{x:.2f},{before:.2f}", f"{x:.2f},{level:.2f}"]
            before = level
        shade = LINES[rank % len(LINES)]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{shade}"/>')
    if limit:
        level = y + _MEMORY * (1 - limit / most)
        parts.append(
            f'<line x1="{_LEFT:g}" x2="{_WIDTH - 20:g}" y1="{level:.2f}" y2="{level:.2f}" stroke="#d55e00" '
            'stroke-dasharray="6 3"/>'
        )
        parts.append(
            f'<text x="{_WIDTH - 22:g}" y="{level - 4:.2f}" font-size="9" fill="#a34700" text-anchor="end">'
            f"limit {_size(limit, seconds=seconds)}</text>"
        )
    return parts


def _size(value: float, *, seconds: bool) -> str:
    return show_bytes(value) if seconds else f"{value:,.6g}"


def _legend(timeline: Timeline, y: float) -> list[str]:
    names = {"F": "forward", "I": "backward, inputs", "W": "backward, weights", "B": "full backward"}
    cells = timeline.schedule.chunks * timeline.schedule.microbatches
    used = [kind for k, kind in enumerate(KINDS) if any((row // cells == k).any() for row in timeline.schedule.codes)]
    kinds = [
        f'<rect x="{_LEFT + 130 * k:g}" y="{y - 9:g}" width="10" height="10" fill="{COLOURS[kind]}"/>'
        f'<text x="{_LEFT + 130 * k + 14:g}" y="{y:g}">{names[kind]}</text>'
        for k, kind in enumerate(used)
    ]
    return kinds + _ranks(timeline.schedule.pp, _LEFT + 130 * len(used) + 10, y)


def _ranks(pp: int, left: float, y: float) -> list[str]:
    """Whose memory a line is; from the ninth rank on the colours come again."""
    parts = []
    for k, shade in enumerate(LINES[:pp]):
        x, more = left + 92 * k, f", {k + len(LINES)}, ..." if pp > len(LINES) else ""
        parts.append(
            f'<line x1="{x:g}" x2="{x + 14:g}" y1="{y - 4:g}" y2="{y - 4:g}" stroke="{shade}" stroke-width="2"/>'
            f'<text x="{x + 18:g}" y="{y:g}">rank {k}{more}</text>'
        )
    return parts


def _time(value: float, *, seconds: bool) -> str:
    return show_seconds(value) if seconds else f"{value:g}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_OPEN = re.compile(r'<svg xmlns="[^"]*" viewBox="0 0 ([\d.]+) ([\d.]+)"')


def compared_svg(compared: Iterable[Compared]) -> str:
    """One SVG file, the strategies below each other, all in one extent."""
    compared = list(compared)
    timelines = [one.evaluation.timeline for one in compared]
    extent = Extent(max(one.makespan for one in timelines), max(map(_most_memory, timelines)))
    parts, y, width = list[str](), 0.0, 0.0
    for one in compared:
        figure = strategy_svg(one, extent)
        found = _OPEN.search(figure)
        wide, tall = (float(found[1]), float(found[2])) if found else (1200.0, 800.0)
        placed = f'<svg y="{y:g}" width="{wide:g}" height="{tall:g}" viewBox="0 0 {wide:g} {tall:g}"'
        parts.append(_OPEN.sub(placed, figure, count=1))
        y, width = y + tall, max(width, wide)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {y:g}">\n{"".join(parts)}</svg>\n'


def strategy_svg(one: Compared, extent: Extent | None = None) -> str:
    """One strategy, with what the table of compared ones says of it."""
    found, limits = one.evaluation, one.problem.rank_limits
    surely = any(peak > limit for peak, limit in zip(found.peak, limits, strict=True))
    over = "" if found.fits else " (over the memory limit)" if surely else " (over with its margin)"
    said = f"makespan {found.simulated:,.2f}, bubble {bubble_of(one.problem, found)}"
    return timeline_svg(found.timeline, one.name + over, extent=extent, said=said)


_WIDE, _HIGH, _COLUMNS, _PAD = 330.0, 190.0, 3, 42.0
_MOST = 0.5
"""Errors beyond this are drawn at the edge."""
POINTS = {False: "#4c78a8", True: "#e45756"}


def fit_svg(fit: Fit) -> str:
    """A stand-alone SVG file."""
    families = [family for family in fit.families if family.points]
    rows = ceil(len(families) / _COLUMNS)
    width, height = _COLUMNS * _WIDE + 20, rows * _HIGH + 60
    title = escape(f"{fit.calibration.name}: {fit.calibration.source}")
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            'font-family="sans-serif" font-size="10">'
        ),
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
        f'<text x="12" y="20" font-size="13">{title}</text>',
        (
            f'<text x="12" y="36">predicted / measured - 1 against measured time; '
            f'<tspan fill="{POINTS[False]}">fitted or checked</tspan>, '
            f'<tspan fill="{POINTS[True]}">kept out of the fit</tspan></text>'
        ),
    ]
    for index, family in enumerate(families):
        x, y = 10 + index % _COLUMNS * _WIDE, 50 + index // _COLUMNS * _HIGH
        lines += _panel(family, x, y)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(family: FittedFamily, x: float, y: float) -> Iterator[str]:
    low = floor(log10(min(point.measured for point in family.points)))
    high = max(low + 1, ceil(log10(max(point.measured for point in family.points))))
    wide, tall = _WIDE - _PAD - 14, _HIGH - 56
    left, top = x + _PAD, y + 20
    share = "" if family.held_out is None else f", kept out {100 * family.held_out:.1f}%"
    yield f'<text x="{left:g}" y="{y + 12:g}">{escape(family.name)}: mean {100 * family.mean:.1f}%{share}</text>'
    for error in (-_MOST, -0.1, 0.0, 0.1, _MOST):
        at = top + tall * (0.5 - error / _MOST / 2)
        colour = "#333" if error == 0 else "#ccc"
        yield f'<line x1="{left:g}" x2="{left + wide:g}" y1="{at:.1f}" y2="{at:.1f}" stroke="{colour}"/>'
        yield f'<text x="{left - 4:g}" y="{at + 3:.1f}" text-anchor="end">{100 * error:+.0f}%</text>'
    for power in range(low, high + 1):
        at = left + wide * (power - low) / (high - low)
        yield f'<text x="{at:.1f}" y="{top + tall + 14:g}" text-anchor="middle">1e{power} s</text>'
    for point in family.points:
        yield _dot(point, left + wide * (log10(point.measured) - low) / (high - low), top, tall)


def _dot(point: FitPoint, x: float, top: float, tall: float) -> str:
    error = max(-_MOST, min(_MOST, point.error))
    told = escape(f"{point.label}: {point.measured:.3g} s, {100 * point.error:+.1f}%")
    return (
        f'<circle cx="{x:.1f}" cy="{top + tall * (0.5 - error / _MOST / 2):.1f}" r="2.2" fill-opacity="0.6" '
        f'fill="{POINTS[point.held_out]}"><title>{told}</title></circle>'
    )
