"""A grid of clusters, batches and sequences, each planned: time, tokens, days, cost, and which are worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from shardwise.errors import InputError
from shardwise.inputs.load import load_cluster, load_model, load_runtime
from shardwise.plan.goodput import RESTART, Budget, budget, goodput
from shardwise.plan.search.api import plan
from shardwise.plan.search.wishes import read_wishes

STATES = 16.0
"""Bytes per parameter of a checkpoint: weights, fp32 copies and moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run that days and cost are for."""

    tokens: float = 0.0
    """Tokens in all; 0: not asked."""
    price: float = 0.0
    """Per GPU and hour."""
    mtbf: float = 0.0
    """Seconds between failures of one GPU; 0: none."""
    save: float = 0.0
    """Seconds that a checkpoint stops training; 0: from the model's size and the store."""
    store: float = 2e9
    """Bytes per second and node that a checkpoint is written with."""
    restart: float = RESTART


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the grid."""

    cluster: str
    gpus: int
    global_batch: int
    seq: int
    strategy: str
    """Empty: nothing fits."""
    seconds: float = 0.0
    tokens_per_second_per_gpu: float = 0.0
    mfu: float = 0.0
    gap: float = 0.0
    budget: Budget | None = None
    best: bool = False
    """No other point has more tokens a second for as few GPUs (or, with --tokens, fewer days for less money)."""
    note: str = ""


def sweep(
    model: str,
    clusters: Sequence[str],
    *,
    batches: Sequence[int],
    sequences: Sequence[int],
    runtime: str = "megatron",
    only: str = "",
    gap: float = 0.02,
    run: Run | None = None,
    told: Callable[[Cell], None] = lambda _: None,
) -> tuple[Cell, ...]:
    """Plan every point of the grid; Ctrl-C ends it with the points so far, unless there are none."""
    run = run or Run()
    read_wishes(only)  # what is wrong with every point is told at once; what is wrong with one, at that point
    load_model(model)
    load_runtime(runtime)
    cells: list[Cell] = []
    try:
        for cluster, batch, seq in product(clusters, batches, sequences):
            cells.append(_cell(model, cluster, batch, seq, runtime, only, gap, run))
            told(cells[-1])
    except KeyboardInterrupt:
        if not cells:
            raise
    return tuple(_marked(cells))


def _cell(model: str, cluster: str, batch: int, seq: int, runtime: str, only: str, gap: float, run: Run) -> Cell:
    machines = load_cluster(cluster)
    where: dict[str, Any] = {"cluster": cluster, "gpus": machines.gpus, "global_batch": batch, "seq": seq}
    try:
        answer = plan(model, machines, global_batch=batch, seq=seq, runtime=runtime, only=only, gap=gap)
    except InputError as error:
        return Cell(**where, strategy="", note=str(error))
    if answer.interrupted:
        raise KeyboardInterrupt
    best = answer.best
    if best is None:
        near = answer.closest
        note = f"needs {near.gpus} GPUs" if near and near.gpus else "nothing fits"
        return Cell(**where, strategy="", note=note)
    return Cell(
        **where, strategy=str(best.strategy), seconds=best.iteration_seconds, mfu=best.mfu, gap=answer.gap,
        tokens_per_second_per_gpu=best.tokens_per_second_per_gpu,
        budget=_budget(model, best.iteration_seconds, batch * seq, machines.gpus, machines.node_size, run),
    )  # fmt: skip


def _budget(model: str, seconds: float, tokens_per_step: int, gpus: int, node: int, run: Run) -> Budget | None:
    if not run.tokens:
        return None
    save = run.save or checkpoint_seconds(model, gpus, node, run.store)
    share = goodput(gpus, run.mtbf, save, run.restart).share
    return budget(seconds, tokens_per_step, gpus, run.tokens, run.price, share)


def checkpoint_seconds(model: str, gpus: int, node: int, store: float) -> float:
    """Seconds to write weights and optimizer states, all nodes at once."""
    from shardwise.inputs.parameters import count

    return count(load_model(model)).total * STATES / (store * max(1, gpus // node))


def _goals(cell: Cell) -> tuple[float, float]:
    """What is to be small: days and money, or seconds a token and GPUs."""
    if cell.budget is not None:
        return cell.budget.days, cell.budget.cost or cell.budget.gpu_hours
    return cell.seconds / (cell.global_batch * cell.seq), float(cell.gpus)


def _marked(cells: Iterable[Cell]) -> list[Cell]:
    """Mark the points that no other point beats in both goals."""
    from dataclasses import replace

    found = list(cells)
    goals = [_goals(cell) for cell in found if cell.strategy]

    def beaten(cell: Cell) -> bool:
        a, b = _goals(cell)
        return any(x <= a and y <= b and (x, y) != (a, b) for x, y in goals)

    return [replace(cell, best=bool(cell.strategy) and not beaten(cell)) for cell in found]


def csv_text(cells: Sequence[Cell]) -> str:
    """The grid as CSV."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["cluster", "gpus", "global_batch", "seq", "iteration_seconds", "tokens_per_second_per_gpu", "mfu", "gap",
         "days", "gpu_hours", "cost", "goodput", "pareto", "strategy", "note"]
    )  # fmt: skip
    for cell in cells:
        money: list[Any] = (
            [cell.budget.days, cell.budget.gpu_hours, cell.budget.cost, cell.budget.goodput] if cell.budget else []
        )
        writer.writerow(
            [cell.cluster, cell.gpus, cell.global_batch, cell.seq, cell.seconds, cell.tokens_per_second_per_gpu,
             cell.mfu, cell.gap, *(money or [""] * 4), cell.best, cell.strategy, cell.note]
        )  # fmt: skip
    return out.getvalue()


def chart(cells: Sequence[Cell]) -> str:
    """The Pareto chart as SVG: the first goal to the right, the second upwards, points that are worth it filled."""
    shown = [cell for cell in cells if cell.strategy]
    names = ("days", "cost") if shown and shown[0].budget else ("seconds per token", "GPUs")
    points = [_goals(cell) for cell in shown]
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
