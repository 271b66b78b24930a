"""What is predicted, as a small piece of HTML for notebooks: facts, and bars of time and memory per pipeline rank.

It needs nothing else (no script, no file, no network), takes names as text, and is readable on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shardwise.cost.memory import RankMemory
from shardwise.estimate.predictions import Figures, Predictions, Stage, device_of, show_limit, yardstick
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.strategy import Strategy
from shardwise.units import show_bytes, show_percent, show_seconds

if TYPE_CHECKING:
    from shardwise.estimate.estimate import Estimate

T = TypeVar("T")
Facts = Sequence[tuple[str, str]]

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


def html_of(
    model: Model,
    cluster: Cluster,
    strategy: Strategy,
    told: Estimate | Predictions | None,
    facts: Facts = (),
    others: Sequence[Sequence[str]] = (),
) -> str:
    """What is known of a strategy; `facts` come after its own, `others` is a table of rivals, its heads first."""
    title = f"<b>{_text(model.name)}</b> on <b>{_text(cluster.name)}</b> with {_text(strategy.runtime)}"
    parts = [title, f"<code>{_text(str(strategy))}</code>"]
    if told is not None:
        memory = device_of(cluster, told).memory
        asked = None if told.memory_limit is None else told.memory_limit * memory / cluster.gpu.memory
        limit = yardstick(memory, asked, told.total_bytes_interval)
        parts += [_table([*_facts(told, show_limit(limit, memory)), *facts]), _drawing(told, limit)]
    if others:
        parts.append(f"<details><summary>other layouts</summary>{_table(others[1:], others[0])}</details>")
    return '<div style="line-height:1.5">' + "<br>".join(parts[:2]) + "".join(parts[2:]) + "</div>"


def _facts(told: Figures, limit: str) -> Iterator[tuple[str, str]]:
    between = _between(told.iteration_seconds_interval, show_seconds)
    yield "iteration", f"{show_seconds(told.iteration_seconds)} ({between})"
    yield "tokens", f"{told.tokens_per_second_per_gpu:,.0f} per second and GPU"
    yield "MFU", f"{show_percent(told.mfu)} (causal attention)"
    fits = {"yes": "fits", "no": "does not fit", "close": "close"}[told.fits]
    needed = f"{show_bytes(told.total_bytes)} ({_between(told.total_bytes_interval, show_bytes)})"
    yield "memory", f"{fits} (probability {told.fits_probability:.0%}): {needed} of {limit}"


def _between(interval: tuple[float, float], show: Callable[[float], str]) -> str:
    return " to ".join(map(show, interval))


def _drawing(told: Figures, limit: float) -> str:
    """Bars of time to the left, of memory to the right."""
    times = [_time_bar(stage) for stage in _drawn(told.stages)]
    memory = [_memory_bar(rank) for rank in _drawn(told.memory)]
    if not times or len(times) != len(memory):
        return ""
    names, passes = _legend_of(memory), _legend_of(times)
    left = _bars(times, _LEFT, max(_length(bar) for bar in times), passes)
    right = _bars(memory, _LEFT + _BARS + _BETWEEN, max(limit, *map(_length, memory)), names)
    labels = [_label(4, 34 + _ROW * index, bar.name) for index, bar in enumerate(times)]
    height = 34 + _ROW * len(times) + 16 * (1 + max(len(names), len(passes)) // 2)
    width = _LEFT + 2 * (_BARS + _BETWEEN)
    heads = [_label(_LEFT, 14, "one micro batch"), _label(_LEFT + _BARS + _BETWEEN, 14, "memory of the device")]
    inner = "".join([*heads, *labels, *left, *right, _limit(limit, memory)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="time and memory of every pipeline rank" style="max-width:100%;font:11px sans-serif">{inner}</svg>'
    )


def _drawn(ranks: Sequence[T]) -> Sequence[T]:
    return ranks if len(ranks) <= _RANKS else [*ranks[: _RANKS // 2], *ranks[-_RANKS // 2 :]]


def _time_bar(stage: Stage) -> _Bar:
    parts = (
        ("forward", stage.forward), ("backward", stage.backward - stage.recompute), ("recompute", stage.recompute),
    )  # fmt: skip
    shown = tuple(part for part in parts if part[1] > 0)
    return _Bar(f"rank {stage.rank}", shown, show_seconds(stage.forward + stage.backward))


def _memory_bar(rank: RankMemory) -> _Bar:
    parts = sorted(((part.name, part.value) for part in rank.peak.parts if part.value > 0), key=lambda part: -part[1])
    largest = parts[: len(_COLOURS) - 1]
    rest = max(0.0, rank.total - sum(value for _, value in largest))
    return _Bar("", (*largest, ("other", rest)), show_bytes(rank.total))


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


def _text(text: str) -> str:
    return escape("".join(letter if letter.isprintable() else " " for letter in text)[:2000])
