"""A sweep as a table, as CSV and as a Pareto chart."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from shardwise.search.question import GAP
from shardwise.search.stages import StagedRun
from shardwise.search.sweep import Cell, goals_of
from shardwise.units import show_percent, show_seconds


def grid_table(cells: Sequence[Cell]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The grid for people; days and cost where they were asked for."""
    money = any(cell.budget for cell in cells)
    heads: tuple[str, ...] = ("cluster", "batch", "seq", "iteration", "nine runs in ten", "gap", "tokens/s/GPU", "MFU")
    heads += ("days", "GPU-hours", "cost", "goodput") if money else ()
    return (*heads, "", "strategy"), [_row(cell, money=money) for cell in cells]


def _row(cell: Cell, *, money: bool) -> tuple[str, ...]:
    head = (cell.cluster, str(cell.global_batch), str(cell.seq))
    if not cell.strategy:
        return (*head, *("-",) * 5, *(("-",) * 4 if money else ()), "", cell.note)
    spent: tuple[str, ...] = ()
    if cell.budget:
        b = cell.budget
        spent = (f"{b.days:.1f}", f"{b.gpu_hours:,.0f}", f"{b.cost:,.0f}", show_percent(b.goodput))
    between = " to ".join(map(show_seconds, cell.iteration_seconds_interval or ()))
    gap = show_percent(cell.gap)
    speed = (show_seconds(cell.seconds), between, gap, f"{cell.tokens_per_second_per_gpu:,.0f}", show_percent(cell.mfu))
    return (*head, *speed, *spent, "*" if cell.best else "", cell.strategy)


def runs_table(runs: Sequence[StagedRun]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What all stages take together."""
    rows: list[tuple[str, ...]] = [
        (run.cluster, str(run.global_batch), f"{run.budget.days:.1f}", f"{run.budget.gpu_hours:,.0f}",
         f"{run.budget.cost:,.0f}", show_percent(run.budget.goodput))
        for run in runs
    ]  # fmt: skip
    return ("cluster", "batch", "days", "GPU-hours", "cost", "goodput"), rows


def searched_to(gap: float) -> str:
    """How far every point was searched, beside a plan: what it finds for the same point may be faster."""
    told = f"gap: how far the plan is above the bound; searched to {100 * gap:g}%"
    if gap <= GAP:
        return told
    return f"{told}, where plan searches to {GAP:.1%} and may find a faster one (--gap {GAP:.1%} searches as far)"


def csv_text(cells: Sequence[Cell]) -> str:
    """The grid as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["cluster", "gpus", "global_batch", "seq", "iteration_seconds", "iteration_seconds_low",
         "iteration_seconds_high", "fits_probability", "tokens_per_second_per_gpu", "mfu", "gap",
         "days", "gpu_hours", "cost", "goodput", "pareto", "strategy", "note"]
    )  # fmt: skip
    for cell in cells:
        money: list[Any] = (
            [cell.budget.days, cell.budget.gpu_hours, cell.budget.cost, cell.budget.goodput] if cell.budget else []
        )
        writer.writerow(
            [cell.cluster, cell.gpus, cell.global_batch, cell.seq, cell.seconds,
             *(cell.iteration_seconds_interval or ("", "")), cell.fits_probability, cell.tokens_per_second_per_gpu,
             cell.mfu, cell.gap, *(money or [""] * 4), cell.best, cell.strategy, cell.note]
        )  # fmt: skip
    return out.getvalue()


def chart(cells: Sequence[Cell]) -> str:
    """The Pareto chart as SVG: the first goal to the right, the second upwards, points that are worth it filled."""
    shown = [cell for cell in cells if cell.strategy]
    names = ("days", "cost") if shown and shown[0].budget else ("seconds per token", "GPUs")
    points = [goals_of(cell) for cell in shown]
    if not points:
        return '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"/>\n'
    wide, high = max(x for x, _ in points) or 1.0, max(y for _, y in points) or 1.0
    dots = []
    for cell, (x, y) in zip(shown, points, strict=True):
        left, top = 60 + 480 * x / wide, 340 - 300 * y / high
        fill = "#1f6feb" if cell.best else "#c9d1d9"
        label = f"{cell.cluster} batch {cell.global_batch} seq {cell.seq}: {x:.4g} {names[0]}, {y:.4g} {names[1]}"
        dots.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="5" fill="{fill}"><title>{label}</title></circle>')
        if cell.best:
            dots.append(f'<text x="{left + 8:.1f}" y="{top + 4:.1f}" font-size="11">{cell.cluster}</text>')
    axes = '<path d="M60 20V340H560" stroke="#57606a" fill="none"/>'
    titles = (
        f'<text x="310" y="375" font-size="12" text-anchor="middle">{names[0]} (to {wide:.4g})</text>'
        f'<text x="20" y="180" font-size="12" text-anchor="middle" transform="rotate(-90 20 180)">{names[1]} '
        f"(to {high:.4g})</text>"
    )
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="620" height="390" font-family="sans-serif">'
    return head + axes + titles + "".join(dots) + "</svg>\n"
