"""A plan as a small piece of HTML for notebooks: facts, and bars of time and memory per pipeline rank as inline SVG.

It needs nothing else (no script, no file, no network), takes everything it is given as text or as a number, and is
readable on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from shardwise.units import show_bytes, show_percent, show_seconds

if TYPE_CHECKING:
    from shardwise.plan.file import Plan

# Okabe and Ito's colours: told apart by colour-blind eyes.
_COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#f0e442", "#999999")
_RANKS = 32
"""Ranks that are drawn; of more, the first and the last ones."""
_ROW, _LEFT, _BARS, _BETWEEN = 18, 62, 270, 60
_CELL = 'style="text-align:left;padding:1px 12px 1px 0"'


class _Bar(NamedTuple):
    """One line of a drawing."""

    name: str
    parts: tuple[tuple[str, float], ...]
    text: str


def plan_html(plan: Plan, others: Sequence[Sequence[str]] = ()) -> str:
    """What a plan says about itself; `others` is a table of rivals, its heads first."""
    told = plan.predictions or {}
    title = f"<b>{_text(plan.model.name)}</b> on <b>{_text(plan.cluster.name)}</b> with {_text(plan.strategy.runtime)}"
    parts = [title, f"<code>{_text(str(plan.strategy))}</code>", _table(_facts(plan, told)), _drawing(plan, told)]
    if others:
        parts.append(f"<details><summary>other layouts</summary>{_table(others[1:], others[0])}</details>")
    return '<div style="line-height:1.5">' + "<br>".join(parts[:2]) + "".join(parts[2:]) + "</div>"


def _facts(plan: Plan, told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The facts that the plan knows."""
    seconds, tokens, mfu = (
        _number(told.get(name)) for name in ("iteration_seconds", "tokens_per_second_per_gpu", "mfu")
    )
    total, bound, gap = (_number(told.get(name)) for name in ("total_bytes", "bound", "gap"))
    if seconds:
        yield "iteration", show_seconds(seconds)
    if tokens:
        yield "tokens", f"{tokens:,.0f} per second and GPU"
    if mfu:
        yield "MFU", f"{show_percent(mfu)} (causal attention)"
    if total:
        fits = {"yes": "fits", "no": "does not fit", "close": "close"}.get(str(told.get("fits")), "needs")
        yield "memory", f"{fits}: {show_bytes(total)} of {show_bytes(plan.cluster.gpu.memory)}"
    if bound and gap is not None:
        yield "proof", f"no strategy of the space takes less than {show_seconds(bound)}: gap {show_percent(gap, 2)}"


def _drawing(plan: Plan, told: dict[str, Any]) -> str:
    """Bars of time to the left, of memory to the right."""
    times = [_time_bar(index, stage) for index, stage in _drawn(told.get("stages"))]
    memory = [_memory_bar(rank) for _, rank in _drawn(told.get("memory"))]
    if not times or len(times) != len(memory):
        return ""
    names = list(dict.fromkeys(name for bar in memory for name, _ in bar.parts))
    left = _bars(times, _LEFT, max(_length(bar) for bar in times), _legend_of(times))
    right = _bars(memory, _LEFT + _BARS + _BETWEEN, max(plan.cluster.gpu.memory, *map(_length, memory)), names)
    limit = _limit(plan.cluster.gpu.memory, memory)
    labels = [_label(4, 34 + _ROW * index, bar.name) for index, bar in enumerate(times)]
    height = 34 + _ROW * len(times) + 16 * (1 + max(len(names), len(_legend_of(times))) // 2)
    width = _LEFT + 2 * (_BARS + _BETWEEN)
    heads = [_label(_LEFT, 14, "one micro batch"), _label(_LEFT + _BARS + _BETWEEN, 14, "memory of the device")]
    inner = "".join([*heads, *labels, *left, *right, limit])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="time and memory of every pipeline rank" style="max-width:100%;font:11px sans-serif">{inner}</svg>'
    )


def _drawn(items: object) -> list[tuple[int, dict[str, Any]]]:
    found = (
        [(index, item) for index, item in enumerate(items) if isinstance(item, dict)] if isinstance(items, list) else []
    )
    return found if len(found) <= _RANKS else found[: _RANKS // 2] + found[-_RANKS // 2 :]


def _time_bar(index: int, stage: dict[str, Any]) -> _Bar:
    forward, backward, again = (_number(stage.get(name)) or 0.0 for name in ("forward", "backward", "recompute"))
    parts = (("forward", forward), ("backward", max(0.0, backward - again)), ("recompute", again))
    return _Bar(f"rank {index}", tuple(part for part in parts if part[1] > 0), show_seconds(forward + backward))


def _memory_bar(rank: dict[str, Any]) -> _Bar:
    peak, total = rank.get("peak"), _number(rank.get("total")) or 0.0
    listed = peak.get("parts", []) if isinstance(peak, dict) else []
    parts = [
        (str(part.get("name", "")), _number(part.get("value")) or 0.0)
        for part in (listed if isinstance(listed, list) else [])
        if isinstance(part, dict)
    ]
    largest = sorted((part for part in parts if part[1] > 0), key=lambda part: -part[1])[: len(_COLOURS) - 1]
    rest = max(0.0, total - sum(value for _, value in largest))
    return _Bar("", (*largest, ("other", rest)), show_bytes(total))


def _bars(bars: Sequence[_Bar], x: float, longest: float, names: Sequence[str]) -> Iterator[str]:
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(n for n in names if n != "other")}
    colours["other"] = _COLOURS[-1]
    scale = _BARS / longest if longest else 0.0
    for index, bar in enumerate(bars):
        at, y = x, 22 + _ROW * index
        for name, value in sorted(bar.parts, key=lambda part: list(colours).index(part[0])):
            long = value * scale
            yield f"{_rect(at, y, long, _ROW - 4, colours[name])}<title>{_text(name)}</title></rect>"
            at += long
        yield _label(at + 4, y + 12, bar.text)
    for index, name in enumerate(names):
        lx, ly = x + (index % 2) * _BARS / 2, 34 + _ROW * len(bars) + 16 * (index // 2)
        yield f"{_rect(lx, ly - 9, 9, 9, colours[name])}</rect>{_label(lx + 13, ly, name)}"


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}" fill="{colour}">'


def _limit(limit: float, memory: Sequence[_Bar]) -> str:
    """The device's memory as a line through the bars."""
    x = _LEFT + _BARS + _BETWEEN + _BARS * limit / max(limit, *map(_length, memory))
    bottom = 18 + _ROW * len(memory)
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="18" y2="{bottom}" stroke="currentColor" stroke-dasharray="3 2"/>'


def _legend_of(bars: Iterable[_Bar]) -> list[str]:
    return list(dict.fromkeys(name for bar in bars for name, _ in bar.parts))


def _length(bar: _Bar) -> float:
    return sum(value for _, value in bar.parts)


def _label(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:g}" fill="currentColor">{_text(text)}</text>'


def _table(rows: Iterable[Sequence[str]], heads: Sequence[str] = ()) -> str:
    lines = ["<tr>" + "".join(f"<th {_CELL}>{_text(head)}</th>" for head in heads) + "</tr>"] if heads else []
    lines += ["<tr>" + "".join(f"<td {_CELL}>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return f'<table style="border-collapse:collapse">{"".join(lines)}</table>' if lines else ""


def _number(value: object) -> float | None:
    """A finite number that is not negative, or none: files may hold anything."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def _text(text: str) -> str:
    return escape("".join(letter if letter.isprintable() else " " for letter in text)[:2000])
