"""The time, memory and MFU of one strategy, each as a ledger."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import log
from typing import NamedTuple

from shardwise.check.check import ensure
from shardwise.cost.chunk import Chunk, combined
from shardwise.cost.ledger import Ledger, ledger
from shardwise.cost.memory import RankMemory, fits, rank_memory, trained_share
from shardwise.cost.reach import kernel_notes
from shardwise.cost.states import sharding_of
from shardwise.cost.update import Beside, Update, beside_of, data_groups, hidden, update_of
from shardwise.estimate.intervals import around, causes_of, launch_bound, probability, spread_of
from shardwise.estimate.mfu import model_flops
from shardwise.estimate.passes import (
    Passes,
    Seconds,
    footprints_of,
    passes_of,
    plain_seconds,
    seconds_of,
    sharding_slowed,
)
from shardwise.estimate.predictions import Figures, Stage, yardstick
from shardwise.estimate.setup import Setup, setup_of
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.formats import PEAKS
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.site import HOST
from shardwise.inputs.strategy import Strategy
from shardwise.pipeline.action import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Figures):
    """What Shardwise predicts for one strategy."""

    model: Model
    cluster: Cluster
    strategy: Strategy
    optimizer_by_rank: tuple[float, ...]
    """The optimizer's step on every pipeline rank."""
    calibration: str
    """What the kernel times are calibrated on."""
    order: Schedule | None = field(default=None, compare=False)
    """Of the passes, where it is not the one that the strategy's schedule stands for."""
    memory_limit: float | None = field(default=None, compare=False)
    """Bytes that a rank may need, where that is not all of its GPU."""

    @property
    def limit(self) -> float:
        """Bytes that `fits` is said against: what was asked for, else all of the GPU's."""
        return yardstick(self.cluster.gpu.memory, self.memory_limit, self.total_bytes_interval)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from shardwise.estimate.notebook import html_of

        return html_of(self.model, self.cluster, self.strategy, self)


def estimate(
    model: Model,
    cluster: Cluster,
    strategy: Strategy,
    *,
    runtime: Runtime | None = None,
    checked: bool = False,
    order: Schedule | None = None,
    memory_limit: float | None = None,
) -> Estimate:
    """Predict one strategy. `checked`: the caller has run the checks already; `order`: of the passes, if it is another
    than the strategy's; `memory_limit`: bytes that a rank may need, if not all of its GPU's.
    """
    runtime = runtime or load_runtime(strategy.runtime)
    if not checked:
        ensure(model, cluster, strategy, runtime)
    return within(assemble(setup_of(model, cluster, strategy, runtime, memory_limit=memory_limit), order), memory_limit)


def limited(found: Estimate, limit: float) -> Estimate:
    """An estimate under another memory limit: an order that is made for the memory is made anew."""
    if found.order is None and found.strategy.schedule == "auto":
        return estimate(found.model, found.cluster, found.strategy, memory_limit=limit)
    return within(found, limit)


def within(found: Estimate, limit: float | None) -> Estimate:
    """The estimate, held against the bytes that a rank may need, never more than its GPU has; none: as it is."""
    if limit is None:
        return found
    gpu, before = found.cluster.gpu, found.limit
    found = replace(found, memory_limit=min(limit, gpu.memory))
    if found.limit == before or found.host_bytes > found.cluster.host_memory:
        return found
    low, high = needed = found.total_bytes_interval
    chance = probability(found.total_bytes, found.limit, log(high / low) / 2)
    return replace(found, fits=fits(needed, replace(gpu, memory=found.limit)), fits_probability=chance)


class RankParts(NamedTuple):
    """What one set of chunks costs a rank, whatever its place in the pipeline."""

    stage: Stage
    update: Update
    """Nothing of it hidden yet."""


def assemble(setup: Setup, order: Schedule | None = None) -> Estimate:
    """Stack a resolved setup into an estimate; `order`: its passes run in another order than the strategy's."""
    strategy = setup.strategy
    by_rank = [setup.rank_chunks(rank) for rank in range(strategy.pp)]
    parts = _parts(setup)
    stages = tuple(part.stage._replace(rank=rank) for rank, part in enumerate(parts))
    each, footprints = seconds_of(setup), footprints_of(setup)
    done = passes_of(setup, each, footprints, order)
    memory = tuple(rank_memory(rank, done.held[rank], one) for rank, one in enumerate(footprints))
    distinct = {id(part): part.update for part in parts}.values()
    beside = beside_passes(setup)
    updates = [hidden(one, beside, strategy, setup.runtime, done.makespan) for one in distinct]
    update = max(updates, key=lambda one: one.exposed)
    fixed = setup.runtime.overheads.beside(strategy.microbatches, strategy.zero)
    seconds = done.makespan * strategy.straggler + update.exposed + fixed
    stage, own = stages[done.busiest], by_rank[done.busiest]
    forward, backward = (sum(each) for each in zip(*(each[id(chunk)] for chunk in own), strict=True))
    sharding = (forward - stage.forward) + (backward - stage.backward)
    slowed = sharding_slowed(setup, own)
    time = _time_ledger(setup, own, (sharding - slowed, slowed), done.makespan, update, fixed)
    steps = tuple(part.update.optimizer for part in parts)
    found = _estimate(setup, seconds, time, memory, stages, update, steps, done)
    return found if order is None else replace(found, order=order)


def _parts(setup: Setup) -> list[RankParts]:
    plain = plain_seconds(setup)

    def made(rank: int) -> RankParts:
        return RankParts(_stage(setup, rank, setup.rank_chunks(rank), plain), _update(setup, rank))

    return setup.by_contents(made)


def rank_updates(setup: Setup) -> list[Update]:
    """The update of every rank, nothing of it hidden yet."""
    return setup.by_contents(lambda rank: _update(setup, rank))


def _update(setup: Setup, rank: int) -> Update:
    """Seconds of a rank's update: operators that are split alike are reduced together, one lot after the other."""
    found = [
        update_of(
            split.chunks,
            split.strategy,
            setup.runtime,
            setup.states,
            data_groups(setup.network, split.strategy),
            setup.machine,
            setup.cluster.host_bandwidth,
            trained_share(split.chunks, split.shard),
        )
        for split in setup.splits(rank)
    ]
    return found[0] if len(found) == 1 else Update(*map(sum, zip(*found, strict=True)))


def beside_passes(setup: Setup) -> Beside:
    """What the update meets behind the passes."""
    forward = sum(chunk.f.wire for chunk in setup.chunks)
    backward = sum(chunk.i.wire + chunk.w.wire + chunk.recompute.wire for chunk in setup.chunks)
    return beside_of(data_groups(setup.network, setup.strategy), setup.strategy, forward, backward)


def _estimate(
    setup: Setup,
    seconds: float,
    time: Ledger,
    memory: tuple[RankMemory, ...],
    stages: tuple[Stage, ...],
    update: Update,
    steps: tuple[float, ...],
    done: Passes,
) -> Estimate:
    strategy, cluster, calibration = setup.strategy, setup.cluster, setup.calibration
    tokens = strategy.global_batch * strategy.seq
    peak = cluster.gpu.peak(PEAKS.get(strategy.dtype, strategy.dtype))
    frozen = strategy.lora is not None
    causal = model_flops(setup.model, strategy.seq, causal=True, frozen=frozen) * tokens
    full = model_flops(setup.model, strategy.seq, causal=False, frozen=frozen) * tokens
    shares = [rank.gpus for rank in setup.ranks] or [strategy.dp * strategy.tp * strategy.cp] * len(setup.chunks)
    again = sum(gpus * chunk.recompute_flops for gpus, chunk in zip(shares, setup.chunks, strict=True))
    world = sum(shares) // strategy.vpp
    capacity = seconds * world * peak
    microbatches = strategy.microbatches
    total = max(one.total for one in memory)
    host = _host_bytes(setup)
    stage = stages[done.busiest]
    causes = causes_of(setup.model, cluster, strategy.dtype, setup.runtime.name, calibration, time)
    width = spread_of(causes, setup.runtime.name, calibration, cluster.site, launch_bound(time))
    needed = around(total, width.memory)
    enough = host <= cluster.host_memory
    return Estimate(
        model=setup.model,
        cluster=cluster,
        strategy=strategy,
        iteration_seconds=seconds,
        time=time,
        iteration_seconds_interval=around(seconds, width.time),
        memory=memory,
        peak_bytes=max(one.peak.value for one in memory),
        total_bytes=total,
        total_bytes_interval=needed,
        host_bytes=host,
        fits=fits(needed, cluster.gpu) if enough else "no",
        fits_probability=probability(total, cluster.gpu.memory, width.memory) if enough else 0.0,
        stages=stages,
        makespan=done.makespan,
        bubble=1 - done.work / done.makespan,
        tokens_per_second_per_gpu=tokens / seconds / world,
        tflops_per_gpu=causal / seconds / world / 1e12,
        mfu=causal / capacity,
        mfu_full_attention=full / capacity,
        hfu=(causal + again * microbatches) / capacity,
        forward_seconds=microbatches * stage.forward,
        backward_seconds=microbatches * stage.backward,
        optimizer_seconds=update.optimizer,
        optimizer_by_rank=steps,
        update=update,
        calibration=f"{calibration.name}: {calibration.source}",
    )


def _host_bytes(setup: Setup) -> float:
    """Bytes of a node's memory that offloaded states or activations take."""
    strategy, node = setup.strategy, setup.cluster.node_size
    if strategy.offload == "optimizer":
        states = setup.states
        dense = max(sum(chunk.params for chunk in setup.rank_chunks(rank)) for rank in range(strategy.pp))
        experts = max(sum(chunk.expert_params for chunk in setup.rank_chunks(rank)) for rank in range(strategy.pp))
        own = dense / sharding_of(strategy, expert=False).states + experts / sharding_of(strategy, expert=True).states
        return node * own * (states.master + states.moments)
    return node * sum(chunk.offloaded for chunk in setup.rank_chunks(0)) * strategy.pp


def _stage(setup: Setup, rank: int, chunks: list[Chunk], plain: Seconds) -> Stage:
    layers = tuple(setup.layers[index] for index in setup.rank_indices(rank))
    parts = [combined(chunk.f, chunk.i, chunk.w, chunk.recompute) for chunk in chunks]
    return Stage(
        rank=rank,
        layers=layers,
        forward=sum(plain[id(chunk)][0] for chunk in chunks),
        backward=sum(plain[id(chunk)][1] for chunk in chunks),
        recompute=sum(chunk.recompute.total for chunk in chunks),
        communication=sum(part.communication for part in parts),
        alone=sum(chunk.f.alone + combined(chunk.i, chunk.w, chunk.recompute).alone for chunk in chunks),
        parameters=sum(chunk.all_params for chunk in chunks),
    )


def _time_ledger(
    setup: Setup,
    chunks: list[Chunk],
    sharding: tuple[float, float],
    makespan: float,
    update: Update,
    fixed: float,
) -> Ledger:
    """The iteration on its busiest rank: compute by pass and kind, communication, waiting, update. `sharding`: what
    sharded parameters show of themselves, and what they slow down.
    """
    strategy, cluster = setup.strategy, setup.cluster
    count, slowest = strategy.microbatches, cluster.site.slowest(cluster.gpus)
    passes = {
        "forward": combined(*(chunk.f for chunk in chunks)),
        "backward": combined(*(part for chunk in chunks for part in (chunk.i, chunk.w))),
        "recompute": combined(*(chunk.recompute for chunk in chunks)),
    }
    # the host is met once in a backward pass, replay and all
    waits = {
        "forward": passes["forward"].launch,
        "backward": combined(passes["backward"], passes["recompute"]).launch,
        "recompute": 0.0,
    }
    notes = kernel_notes((run.block for chunk in chunks for run in chunk.runs), setup.calibration)
    parts = [
        ledger(
            name,
            [
                Ledger("gemm", count * seconds.gemm / slowest, note=notes.get("gemm", "")),
                Ledger("attention", count * seconds.attention / slowest, note=notes.get("attention", "")),
                Ledger("memory", count * seconds.memory / slowest, note=notes.get("memory", "")),
                Ledger("tp communication", count * seconds.tp),
                Ledger("cp communication", count * seconds.cp),
                Ledger("ep communication", count * seconds.ep),
                Ledger("waiting for launches", count * waits[name], note=notes.get("host", "")),
            ],
        )
        for name, seconds in passes.items()
    ]
    parts.append(Ledger("parameter sharding", count * sharding[0]))
    slowed = count * (sharding[1] + sum(seconds.slowed for seconds in passes.values()))
    slow = count * (1 - 1 / slowest) * sum(seconds.compute for seconds in passes.values())
    work = sum(part.value for part in parts) + slowed + slow
    # chunks meet the host each for itself; the difference is settled here
    parts.append(Ledger("pipeline waits and sends", makespan - work))
    parts.append(Ledger("hidden communication", slowed + update.slowed))
    note = f"kernels x{slowest:.3f}: the slowest of {cluster.gpus / HOST:g} hosts" if slow else ""
    parts.append(Ledger("stragglers", slow + makespan * (strategy.straggler - 1), note=note))
    parts.append(Ledger("gradient reduction", update.reduce_exposed))
    parts.append(Ledger("weight gathering", update.gather_exposed))
    parts.append(Ledger("optimizer", update.optimizer))
    parts.append(Ledger("framework", fixed))
    return ledger("iteration", parts)
