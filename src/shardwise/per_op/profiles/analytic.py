"""Profiles from our own cost model, for any model and cluster: the per-operator space needs no measurements to begin.

Our operators keep their inputs, a profile's rows their outputs: what the next operator keeps is this row's activations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from shardwise.cost.kernels import Machine, machine_of, op_times
from shardwise.cost.network import Network, collective, exchanged, network_of, send
from shardwise.inputs.calibrations import as_run_by, calibration_of
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.ops.embedding import embedding, head
from shardwise.ops.layer import LayerKind, layer_kinds, layer_ops
from shardwise.ops.op import Op
from shardwise.ops.shard import Shard, shard_of
from shardwise.per_op.profiles.facts import Said
from shardwise.per_op.profiles.table import COLLECTIVES, COLUMNS, MB, Band, CollectiveSamples, LayerRun, Profile

ANALYTIC = "the profile is made by our analytic model, not measured"
MICRO_BATCHES = (1, 2, 4, 8)
SIZES = tuple(MB * 2**power for power in range(11))
_NAMES = dict(zip(COLLECTIVES, ("all-gather", "all-reduce", "reduce-scatter", "all-to-all"), strict=True))


class OperatorRows(NamedTuple):
    """The operators of a model at one micro batch and one tp."""

    micro_batch: int
    tp: int
    shard: Shard
    ops: list[Op]
    names: list[str]
    ends: list[int]
    """Where each part (embedding, layer kinds, head) ends."""


def operator_rows(
    model: Model, runtime: Runtime, *, seq: int, dtype: str, micro_batches: tuple[int, ...], tps: tuple[int, ...],
    flash: bool = True,
) -> Iterator[OperatorRows]:  # fmt: skip
    """All micro batches, and all tps of each."""
    kinds = list(dict.fromkeys(layer_kinds(model)))
    for size in micro_batches:
        for tp in tps:
            strategy = Strategy(tp=tp, micro_batch=size, seq=seq, dtype=dtype, flash=flash)  # type: ignore[arg-type]
            shard = shard_of(model, strategy, runtime)
            yield OperatorRows(size, tp, shard, *_rows(shard, kinds))


def make_profile(
    model: Model,
    cluster: Cluster,
    runtime: Runtime,
    *,
    seq: int,
    dtype: str = "bf16",
    micro_batches: tuple[int, ...] = MICRO_BATCHES,
    tps: tuple[int, ...] = (),
    flash: bool = True,
) -> Profile:
    """Tables for every micro batch and every tp that divides the heads and fits a node."""
    import numpy as np

    tps = tps or tensor_parallels(model, cluster)
    calibration = as_run_by(calibration_of(cluster.gpu), runtime.name, experts=model.moe is not None)
    machine = machine_of(
        cluster.gpu, calibration, runtime, dtype, accumulating=True, site=cluster.site, gpus=cluster.gpus
    )
    network = network_of(cluster, calibration)
    kinds = list(dict.fromkeys(layer_kinds(model)))
    values = []
    names: list[str] = []
    operators: dict[str, Said] = {}
    for rows in operator_rows(
        model, runtime, seq=seq, dtype=dtype, micro_batches=micro_batches, tps=tps, flash=flash
    ):  # fmt: skip
        names, operators = rows.names, _operators(rows)
        values.append(table_of(rows, machine, network))
    shaped = np.array(values).reshape(len(micro_batches), len(tps), len(names), len(COLUMNS))
    shaped = np.moveaxis(shaped, -1, 0)[:, :, :, None, :]
    return Profile(
        name=model.name, ops=tuple(names), micro_batches=micro_batches, tps=tps, variants=(0,), values=shaped,
        collectives=_collectives(network, tps), intra=_band(network, 1),
        inter=_band(network, cluster.node_size) if cluster.gpus > cluster.node_size else None,
        tags={
            "source": "analytic", "device": cluster.gpu.name, "seq": str(seq), "dtype": dtype,
            "attention": "flash" if flash else "plain", "framework": runtime.name,
        },
        runs=_runs(shard_of(model, Strategy(micro_batch=1, seq=seq), runtime), kinds), operators=operators,
        identity=f"analytic-{model.name}-{cluster.gpu.name}-{seq}", notes=(ANALYTIC,),
    )  # fmt: skip


_KINDS = {"gemm": "matrix", "grouped": "matrix", "attention": "attention"}


def _operators(rows: OperatorRows) -> dict[str, Said]:
    """Facts of our own operators: whole tensors between them, layers recomputed, ends not."""
    first, last = rows.ends[0], rows.ends[-2]
    found: dict[str, Said] = {}
    for index, (name, op) in enumerate(zip(rows.names, rows.ops, strict=True)):
        kind = "embedding" if index < first else "head" if index >= last else _KINDS.get(op.kind, "pointwise")
        found[name] = {"kind": kind} | ({"starts_layer": True} if first <= index < last and index in rows.ends else {})
    return found


def communication(op: Op, tp: int, network: Network) -> tuple[float, float]:
    """Seconds of an operator's own tensor-parallel collectives, forward and backward."""
    found, group = {"F": 0.0, "I": 0.0, "W": 0.0}, network.group(tp, 1)
    for comm in op.comms:
        if comm.axis == "tp":
            found[comm.phase] += exchanged(comm, group)
    return found["F"], found["I"]


def tensor_parallels(model: Model, cluster: Cluster) -> tuple[int, ...]:
    found = [1]
    while found[-1] * 2 <= cluster.node_size and model.heads % (found[-1] * 2) == 0:
        found.append(found[-1] * 2)
    return tuple(found)


def _rows(shard: Shard, kinds: list[LayerKind]) -> tuple[list[Op], list[str], list[int]]:
    """Operators of the profile, their names, and where each part (embedding, layer kinds, head) ends."""
    parts = [("embedding", embedding(shard)), *((kind.name, layer_ops(shard, kind)) for kind in kinds)]
    parts.append(("head", head(shard, own_weights=True)))
    ops: list[Op] = []
    names: list[str] = []
    ends: list[int] = []
    for index, (part, own) in enumerate(parts):
        for place, op in enumerate(own):
            name = f"{part}/{op.module}.{op.name}"
            name = f"start:{name}" if place == 0 and 0 < index < len(parts) - 1 else name
            names.append(f"{name} {names.count(name) + 1}" if name in names else name)
        ops += own
        ends.append(len(ops))
    return ops, names, ends


def table_of(rows: OperatorRows, machine: Machine, network: Network) -> list[list[float]]:
    """One row per operator in the order of COLUMNS."""
    shard, ops, ends = rows.shard, rows.ops, rows.ends
    starts = [0, *ends[:-1]]
    entries = [_entry(op, shard, first=index in starts) for index, op in enumerate(ops)]
    table = []
    for index, op in enumerate(ops):
        last = index + 1 in ends
        times, (forth, back) = op_times(op, machine), communication(op, shard.tp, network)
        # after the last operator of a layer stands the first of the next one, or the head
        kept = (0.0 if index == len(ops) - 1 else _entry_kept(ops, ends)) if last else ops[index + 1].kept
        out = shard.residual if last else entries[index + 1]
        table.append([
            times.f + forth, times.i + times.w + back, entries[index],
            out if index < len(ops) - 1 else 0.0, op.params * shard.weight, kept, op.extra_f, op.extra_b,
        ])  # fmt: skip
    return table


def _entry_kept(ops: list[Op], ends: list[int]) -> float:
    return ops[ends[0]].kept


def _entry(op: Op, shard: Shard, *, first: bool) -> float:
    """Bytes that arrive at an operator: the residual stream, and inside a layer what it works on as well."""
    return shard.residual if first else shard.residual + op.kept


def _runs(shard: Shard, kinds: list[LayerKind]) -> tuple[LayerRun, ...]:
    """Neighbouring equal layers, or a repeating pattern of kinds."""
    _, _, ends = _rows(shard, kinds)
    spans = {kind: (ends[index], ends[index + 1] - 1) for index, kind in enumerate(kinds)}
    every = layer_kinds(shard.model)
    period = next(p for p in range(1, len(every) + 1) if all(a == b for a, b in zip(every, every[p:], strict=False)))
    if 1 < period <= len(every) // 2:
        pattern, left = every[:period], every[len(every) // period * period :]
        return (LayerRun(tuple(spans[kind] for kind in pattern), len(every) // period), *_alike(spans, left))
    return _alike(spans, every)


def _alike(spans: dict[LayerKind, tuple[int, int]], kinds: Sequence[LayerKind]) -> tuple[LayerRun, ...]:
    return tuple(LayerRun((spans[kind],), len(list(members))) for kind, members in groupby(kinds))


def _collectives(network: Network, tps: tuple[int, ...]) -> dict[tuple[str, int], CollectiveSamples]:
    return {
        (kind, gpus): CollectiveSamples(
            sizes=SIZES, seconds=tuple(collective(_NAMES[kind], network.group(gpus, 1), size) for size in SIZES)
        )
        for kind in COLLECTIVES
        for gpus in tps
        if gpus > 1
    }


def _band(network: Network, distance: int) -> Band:
    rates = tuple(size / send(network, distance, size) for size in SIZES)
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(rates))  # noqa: S101 - latency fades with size
    return Band(sizes=SIZES, rates=rates)
