"""A grid of clusters, batches and sequences, each planned: time, tokens, days, cost, and which are worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from shardwise.errors import InputError
from shardwise.estimate.goodput import Budget, budget, goodput
from shardwise.inputs.assumed import ASSUMED
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.strategy import Strategy
from shardwise.search.api import answer_of, question_of
from shardwise.search.wishes import read_wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """The run that days and cost are for."""

    tokens: float = 0.0
    """Tokens in all; 0: not asked."""
    price: float = 0.0
    """Per GPU and hour."""
    mtbf: float = 0.0
    """Seconds between failures of one GPU; 0: none."""
    save: float = 0.0
    """Seconds that a checkpoint stops training; 0: from the model's size and the store."""
    store: float = ASSUMED.store
    """Bytes per second and node that a checkpoint is written with."""
    restart: float = ASSUMED.restart


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
    iteration_seconds_interval: tuple[float, float] | None = None
    """Nine runs in ten take between these."""
    fits_probability: float | None = None
    tokens_per_second_per_gpu: float = 0.0
    mfu: float = 0.0
    gap: float = 0.0
    """Its seconds above the bound, as a share. A sweep searches to 2%, `plan` to 0.5%: that may find a faster one."""
    budget: Budget | None = None
    best: bool = False
    """No other point has more tokens a second for as few GPUs (or, with --tokens, fewer days for less money)."""
    note: str = ""


def sweep(
    model: Model,
    clusters: Mapping[str, Cluster],
    *,
    batches: Sequence[int],
    sequences: Sequence[int],
    runtime: str = "megatron",
    only: str = "",
    gap: float = 0.02,
    run: TrainingRun | None = None,
    base: Strategy | None = None,
    shares: Sequence[float] = (),
    told: Callable[[Cell], None] = lambda _: None,
) -> tuple[Cell, ...]:
    """Plan every point of the grid; Ctrl-C ends it with the points so far, unless there are none.

    `clusters`: by the names that they are shown with; `base`: as for `plan`; `shares`: of the tokens, that each of the
    sequences gets, one after the other, with as many tokens in a batch as in one of the first.
    """
    run = run or TrainingRun()
    read_wishes(only)  # what is wrong with every point is told at once; what is wrong with one, at that point
    load_runtime(runtime)
    cells: list[Cell] = []
    whole = (1.0,) * len(sequences)
    try:
        for name, batch, (seq, share) in product(clusters, batches, zip(sequences, shares or whole, strict=True)):
            part = replace(run, tokens=share * run.tokens)
            count = max(1, round(batch * sequences[0] / seq)) if shares else batch
            cells.append(_cell(model, name, clusters[name], count, seq, runtime, only, gap, part, base))
            told(cells[-1])
    except KeyboardInterrupt:
        if not cells:
            raise
    return tuple(cells if shares else _marked(cells))


def _cell(
    model: Model,
    name: str,
    machines: Cluster,
    batch: int,
    seq: int,
    runtime: str,
    only: str,
    gap: float,
    run: TrainingRun,
    base: Strategy | None,
) -> Cell:
    where: dict[str, Any] = {"cluster": name, "gpus": machines.gpus, "global_batch": batch, "seq": seq}
    try:
        question = question_of(model, machines, global_batch=batch, seq=seq, runtime=runtime, only=only, base=base)
        answer = answer_of(question, gap=gap)
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
        **where, strategy=str(best.strategy), seconds=best.iteration_seconds, mfu=best.mfu, gap=answer.gap_of(best),
        iteration_seconds_interval=best.iteration_seconds_interval, fits_probability=best.fits_probability,
        tokens_per_second_per_gpu=best.tokens_per_second_per_gpu,
        budget=_budget(
            model, best.iteration_seconds, batch * seq * best.strategy.useful_share, machines.gpus, machines.node_size,
            run,
        ),
    )  # fmt: skip


def _budget(
    model: Model, seconds: float, tokens_per_step: float, gpus: int, node: int, run: TrainingRun
) -> Budget | None:
    if not run.tokens:
        return None
    save = run.save or checkpoint_seconds(model, gpus, node, run.store)
    share = goodput(gpus, run.mtbf, save, run.restart).share
    return budget(seconds, tokens_per_step, gpus, run.tokens, run.price, share)


def checkpoint_seconds(model: Model, gpus: int, node: int, store: float) -> float:
    """Seconds to write weights and optimizer states, all nodes at once."""
    from shardwise.inputs.parameters import count

    return count(model).total * ASSUMED.checkpoint_bytes / (store * max(1, gpus // node))


def goals_of(cell: Cell) -> tuple[float, float]:
    """What is to be small: days and money, or seconds a token and GPUs."""
    if cell.budget is not None:
        return cell.budget.days, cell.budget.cost or cell.budget.gpu_hours
    return 1 / (cell.tokens_per_second_per_gpu * cell.gpus), float(cell.gpus)


def _marked(cells: Iterable[Cell]) -> list[Cell]:
    """Mark the points that no other point beats in both goals."""
    found = list(cells)
    goals = [goals_of(cell) for cell in found if cell.strategy]

    def beaten(cell: Cell) -> bool:
        a, b = goals_of(cell)
        return any(x <= a and y <= b and (x, y) != (a, b) for x, y in goals)

    return [replace(cell, best=bool(cell.strategy) and not beaten(cell)) for cell in found]
