"""The shipped measured run that is nearest to a layout: what practitioners reached with its like.

A distance is a sum of steps; a step is a factor of two where nothing else is said:

- the model: parameters or active ones, whichever are further apart; 4 steps between dense and experts;
- the GPU: 1 step between two kinds, and the factor between their peaks;
- the number of GPUs and tokens of a sample: half a step for a factor of two;
- the layout: a quarter of a step for a factor of two in tp, pp, cp, ep, chunks or micro batch;
- the software and the number format of the products: 1 step each where they are others.

Only runs count that were published with their times and all settings that matter, and that ran as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from heapq import nsmallest
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

from shardwise.errors import UnknownNameError
from shardwise.estimate.estimate import Estimate, assemble
from shardwise.estimate.setup import setup_of
from shardwise.inputs.cluster import Gpu
from shardwise.inputs.files import read_json
from shardwise.inputs.load import named_model
from shardwise.inputs.model import Model
from shardwise.inputs.parameters import count
from shardwise.inputs.strategy import Strategy
from shardwise.measure.validate.case import PRECISIONS, MeasuredRun
from shardwise.measure.validate.frameworks import cluster_for, runtime_for
from shardwise.measure.validate.published import model_of
from shardwise.measure.validate.rows import read_rows, shipped_files
from shardwise.measure.validate.validate import Outcome, predict
from shardwise.search.question import NearestRun

TRIES = 5
"""Rows that are looked at, nearest first, until one can be predicted."""
KINDS, CHIP, OTHER, WORLD, LAYOUT = 4.0, 1.0, 1.0, 0.5, 0.25
"""Steps; see above."""
ALIKE = 0.05
"""Share by which models of one size may differ."""

Row = dict[str, Any]


class _Shape(NamedTuple):
    """What a distance is made of."""

    parameters: float
    active: float
    experts: bool
    gpu: str
    peak: float
    gpus: int
    seq: int
    dtype: str
    runtime: str
    layout: tuple[int, ...]
    """As LAYOUT_AXES."""


LAYOUT_AXES = ("tp", "pp", "cp", "ep", "vpp", "micro_batch")


class _Run(NamedTuple):
    """A shipped row, not yet read."""

    row: Row
    path: Path
    shape: _Shape


def nearest_run(found: Estimate) -> NearestRun | None:
    """The shipped run that is nearest to a plan, and what we predict of it; none: none can be predicted."""
    own = _shape(found.model, found.cluster.gpu, found.cluster.gpus, found.strategy)
    for distance, at in nsmallest(TRIES, ((_distance(own, one.shape), at) for at, one in enumerate(_runs()))):
        run = _runs()[at]
        case = read_rows([run.row], run.path)[0]
        outcome = predict(case) if isinstance(case, MeasuredRun) else None
        if isinstance(outcome, Outcome):
            return _told(outcome, distance, tuple(_differences(own, run.shape)))
    return None


def _told(outcome: Outcome, distance: float, differs: tuple[str, ...]) -> NearestRun:
    case, seconds = outcome.case, float(outcome.case.measured["iteration_seconds"])
    predicted = float(outcome.predicted["iteration_seconds"])  # type: ignore[arg-type]
    strategy = case.strategy if len(set(case.strategy.layers)) > 1 else replace(case.strategy, layers=())
    whole = assemble(setup_of(case.model, case.cluster, case.strategy, case.runtime))
    return NearestRun(
        id=case.id, source=case.source, model=_called(case.model), cluster=case.cluster.name, strategy=strategy,
        seconds=seconds, mfu=whole.mfu * whole.iteration_seconds / seconds, predicted_seconds=predicted,
        predicted_interval=outcome.interval("iteration_seconds"), distance=distance, differs=differs,
    )  # fmt: skip


def _called(model: Model) -> str:
    """The name, and how much of the model ran: benchmarks of large ones on few GPUs cut layers."""
    known = [int(one.row["model"]["layers"]) for one in _runs() if one.row["model"]["name"] == model.name]
    with suppress(UnknownNameError):
        known.append(named_model(model.name).layers)
    return model.name if model.layers == max(known) else f"{model.name} cut to {model.layers} layers"


@cache
def _runs() -> tuple[_Run, ...]:
    return tuple(
        _Run(row, path, shape)
        for path in shipped_files()
        if path.name.startswith("published")
        for row in read_json(path)["rows"]
        if (shape := _row_shape(row)) is not None
    )


def _row_shape(row: Row) -> _Shape | None:
    """None: the row is not one to show."""
    timed = row["measured"].get("iteration_time_s") or row.get("derived", {}).get("iteration_time_s")
    composed = str(row.get("notes") or "").startswith("COMPOSED")
    kind, page = str(row["gpu"].get("type", "")), str((row.get("source") or {}).get("path", ""))
    gpu, runtime = _gpu(kind, str(row["gpu"].get("family", ""))), _runtime(row["framework"], page, kind)
    if not (timed and gpu and runtime) or composed or row.get("completeness") not in {"full", "minor"}:
        return None
    p = row["parallel"]
    told: dict[str, Any] = {name: int(p.get(name) or 1) for name in LAYOUT_AXES}
    told |= {"seq": int(row["model"]["seq_len"]), "dtype": PRECISIONS[row["precision"]["compute"]]}
    return _shape(model_of(row), gpu, int(row["num_gpus"]), Strategy(**told, runtime=runtime))


@cache
def _gpu(kind: str, family: str) -> Gpu | None:
    found = cluster_for({"type": kind, "family": family}, 8)
    return None if found is None else found.gpu


@cache
def _runtime(framework: str, page: str, gpu: str) -> str | None:
    found = runtime_for(framework, page, gpu)
    return None if found is None else found.base


def _shape(model: Model, gpu: Gpu, gpus: int, s: Strategy) -> _Shape:
    layout = tuple(getattr(s, name) for name in LAYOUT_AXES)
    return _Shape(
        *_sizes(model), model.moe is not None, gpu.name, gpu.peak("bf16"), gpus, s.seq, s.dtype,
        s.runtime.partition("+")[0], layout,
    )  # fmt: skip


@cache
def _sizes(model: Model) -> tuple[float, float]:
    found = count(model)
    return found.total, found.active


def _distance(one: _Shape, other: _Shape) -> float:
    def steps(name: str) -> float:
        return abs(log2(getattr(one, name) / getattr(other, name)))

    size = max(steps("parameters"), steps("active")) + KINDS * (one.experts != other.experts)
    chip = (CHIP if one.gpu != other.gpu else 0.0) + steps("peak")
    layout = sum(abs(log2(a / b)) for a, b in zip(one.layout, other.layout, strict=True))
    others = (one.dtype != other.dtype) + (one.runtime != other.runtime)
    return size + chip + WORLD * (steps("gpus") + steps("seq")) + LAYOUT * layout + OTHER * others


def _differences(one: _Shape, other: _Shape) -> Iterator[str]:
    """What the run has otherwise, in words."""
    size = other.parameters / one.parameters
    if abs(size - 1) > ALIKE:
        yield f"{size:.2g} times the parameters"
    names = {"gpu": "", "gpus": " GPUs", "seq": " tokens a sample", "dtype": "", "runtime": ""}
    yield from (f"{getattr(other, k)}{w}" for k, w in names.items() if getattr(one, k) != getattr(other, k))
    if one.layout != other.layout:
        yield "another layout"
