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
from shardwise.estimate.imbalance import waiting_of
from shardwise.estimate.intervals import (
    Spread,
    around,
    causes_of,
    late_host,
    launch_bound,
    probability,
    spread_of,
    widened,
)
from shardwise.estimate.mfu import model_flops, tower_flops
from shardwise.estimate.passes import (
    Passes,
    Seconds,
    footprints_of,
    passes_of,
    plain_seconds,
    seconds_of,
    sharding_slowed,
)
from shardwise.estimate.predictions import Figures, Stage, device_of, yardstick
from shardwise.estimate.setup import Setup, memory_share, setup_of
from shardwise.inputs.cluster import Cluster, Gpu
from shardwise.inputs.formats import PEAKS
from shardwise.inputs.load import load_runtime
from shardwise.inputs.mixed import kinds_of
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
        asked = None if self.memory_limit is None else room(self, self.memory_limit)
        return yardstick(self.device.memory, asked, self.total_bytes_interval)

    @property
    def device(self) -> Gpu:
        """The GPU that `total_bytes` is of."""
        return device_of(self.cluster, self)

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
    gpu, before = found.device, found.limit
    found = replace(found, memory_limit=min(limit, found.cluster.gpu.memory))
    if found.limit == before or found.host_bytes > found.cluster.host_memory:
        return found
    low, high = needed = found.total_bytes_interval
    chance = probability(found.total_bytes, found.limit, log(high / low) / 2)
    return replace(found, fits=fits(needed, replace(gpu, memory=found.limit)), fits_probability=chance)


def room(found: Estimate, limit: float) -> float:
    """Of a limit for the largest GPUs of a cluster, what it is for those that have least room."""
    return limit * memory_share(found.cluster, found.device)


class RankParts(NamedTuple):
    """What one set of chunks costs a rank, whatever its place in the pipeline."""

    stage: Stage
    update: Update
    """Nothing of it hidden yet."""
    beside: Beside
    """What it meets behind the passes."""


class Side(NamedTuple):
    """The passes of one pipeline, and what its ranks need: one stands for all, or for those on one kind of GPU."""

    setup: Setup
    parts: list[RankParts]
    each: Seconds
    done: Passes
    memory: tuple[RankMemory, ...]
    waiting: Ledger | None
    """For longer documents elsewhere."""


def assemble(setup: Setup, order: Schedule | None = None) -> Estimate:
    """Stack a resolved setup into an estimate; `order`: its passes run in another order than the strategy's."""
    by_replica = setup.kinds and not setup.kind_of
    sides = [_side(one, order) for one in (setup.kinds if by_replica else (setup,))]
    slow = max(sides, key=_passes_of)  # the others wait for it before gradients are whole
    strategy, runtime, done = slow.setup.strategy, slow.setup.runtime, slow.done
    distinct = {id(part): part for side in sides for part in side.parts}.values()
    passes = _passes_of(slow)
    updates = [hidden(part.update, part.beside, strategy, runtime, passes) for part in distinct]
    update = max(updates, key=lambda one: one.exposed)
    fixed = runtime.overheads.beside(strategy.microbatches, strategy.zero)
    seconds = passes * strategy.straggler + update.exposed + fixed
    stages = tuple(part.stage._replace(rank=rank) for rank, part in enumerate(slow.parts))
    stage, own = stages[done.busiest], slow.setup.rank_chunks(done.busiest)
    forward, backward = (sum(each) for each in zip(*(slow.each[id(chunk)] for chunk in own), strict=True))
    sharding = (forward - stage.forward) + (backward - stage.backward)
    slowed = sharding_slowed(slow.setup.at(done.busiest), own)
    time = _time_ledger(slow.setup, own, (sharding - slowed, slowed), done, update, fixed, slow.waiting)
    steps = tuple(part.update.optimizer for part in slow.parts)
    full, rank = max(((side, one) for side in sides for one in side.memory), key=_filled)
    busiest = slow.setup.at(done.busiest)
    if by_replica:  # the faster kinds idle while they wait
        gpus = [kind.gpus / setup.cluster.gpus for kind in kinds_of(setup.cluster)]
        done = done._replace(work=sum(share * side.done.work for share, side in zip(gpus, sides, strict=True)))
    found = _estimate(setup, seconds, time, (full, rank.rank), stages, update, steps, done, busiest)
    return found if order is None else replace(found, order=order)


def _side(setup: Setup, order: Schedule | None) -> Side:
    each, footprints = seconds_of(setup), footprints_of(setup)
    done = passes_of(setup, each, footprints, order)
    memory = tuple(rank_memory(rank, done.held[rank], one) for rank, one in enumerate(footprints))
    waiting = waiting_of(setup, done, each, footprints) if setup.shard.documents else None
    return Side(setup, _parts(setup), each, done, memory, waiting)


def _passes_of(side: Side) -> float:
    """Seconds of the passes of the replica that all wait for, or of one that waits."""
    return side.done.makespan + (side.waiting.value if side.waiting else 0.0)


def _filled(place: tuple[Side, RankMemory]) -> float:
    """Share of its GPU that a rank needs."""
    side, one = place
    return one.total / side.setup.at(one.rank).cluster.gpu.memory


def _parts(setup: Setup) -> list[RankParts]:
    plain = plain_seconds(setup)

    def made(rank: int) -> RankParts:
        return RankParts(_stage(setup, rank, setup.rank_chunks(rank), plain), *rank_update(setup, rank))

    return setup.by_contents(made)


def rank_update(setup: Setup, rank: int) -> tuple[Update, Beside]:
    """Seconds of a rank's update, nothing of it hidden yet, and what it meets behind the passes. Operators that are
    split alike are reduced together, one lot after the other.
    """
    here, splits = setup.at(rank), setup.splits(rank)
    groups = [data_groups(here.network, split.strategy) for split in splits]
    found = [
        update_of(
            split.chunks,
            split.strategy,
            here.runtime,
            here.states,
            own,
            here.machine,
            here.cluster.host_bandwidth,
            trained_share(split.chunks, split.shard),
        )
        for split, own in zip(splits, groups, strict=True)
    ]
    forward = sum(chunk.f.wire for chunk in setup.chunks)
    backward = sum(chunk.i.wire + chunk.w.wire + chunk.recompute.wire for chunk in setup.chunks)
    met = [beside_of(own, split.strategy, forward, backward) for split, own in zip(splits, groups, strict=True)]
    whole = found[0] if len(found) == 1 else Update(*map(sum, zip(*found, strict=True)))
    return whole, Beside(*map(max, zip(*met, strict=True)))


def _estimate(
    setup: Setup,
    seconds: float,
    time: Ledger,
    fullest: tuple[Side, int],
    stages: tuple[Stage, ...],
    update: Update,
    steps: tuple[float, ...],
    done: Passes,
    slow: Setup,
) -> Estimate:
    """`fullest`: the pipeline rank that leaves least of its GPU, and whose it is; `slow`: of the busiest one's GPU."""
    strategy, cluster, (side, rank) = setup.strategy, setup.cluster, fullest
    memory, held = side.memory, side.setup.at(rank)
    tokens = strategy.global_batch * strategy.seq * strategy.useful_share
    peak = cluster.gpu.peak(PEAKS.get(strategy.dtype, strategy.dtype))
    causal, full = (tokens * _flops(setup, causal=causal) for causal in (True, False))
    again, world = _again(setup)
    capacity = seconds * world * peak
    total = memory[rank].total
    host = _host_bytes(setup)
    stage = stages[done.busiest]
    kinds = setup.kinds or (setup,)
    width = Spread(*map(max, zip(*(_width(kind, time) for kind in kinds), strict=True)))
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
        fits=fits(needed, held.cluster.gpu) if enough else "no",
        fits_probability=probability(total, held.cluster.gpu.memory, width.memory) if enough else 0.0,
        fullest=_place(setup, held),
        slowest=_place(setup, slow),
        stages=stages,
        makespan=done.makespan,
        bubble=1 - done.work / done.makespan,
        tokens_per_second_per_gpu=tokens / seconds / world,
        tflops_per_gpu=causal / seconds / world / 1e12,
        mfu=causal / capacity,
        mfu_full_attention=full / capacity,
        hfu=(causal + again) / capacity,
        forward_seconds=strategy.microbatches * stage.forward,
        backward_seconds=strategy.microbatches * stage.backward,
        optimizer_seconds=update.optimizer,
        optimizer_by_rank=steps,
        update=update,
        calibration="; ".join(dict.fromkeys(f"{one.calibration.name}: {one.calibration.source}" for one in kinds)),
    )


def _flops(setup: Setup, *, causal: bool) -> float:
    """Operations that the model needs for a token."""
    s = setup.strategy
    frozen = s.lora is not None
    each = model_flops(setup.model, s.seq, causal=causal, frozen=frozen, documents=s.documents, packing=s.packing)
    towers = (tower_flops(setup.model, tower, s.seq, causal=causal) for tower in setup.shard.towers)
    return each + sum(towers) / (s.micro_batch * s.seq * s.image_imbalance)


def _again(setup: Setup) -> tuple[float, int]:
    """Operations that all GPUs compute again in an iteration, and how many GPUs those are."""
    strategy = setup.strategy
    shares = [rank.gpus for rank in setup.ranks] or [strategy.dp * strategy.tp * strategy.cp] * len(setup.chunks)
    flops = sum(gpus * chunk.recompute_flops for gpus, chunk in zip(shares, setup.chunks, strict=True))
    mean = strategy.global_batch / strategy.dp / strategy.micro_batch  # replicas may have different batches
    return flops * mean, sum(shares) // strategy.vpp


def _place(setup: Setup, kind: Setup) -> int:
    return next((place for place, one in enumerate(setup.kinds) if one is kind), 0)


def _width(setup: Setup, time: Ledger) -> Spread:
    """How far predictions on one kind of GPU are off."""
    name, calibration = setup.runtime.name, setup.calibration
    causes = causes_of(setup.model, setup.cluster, setup.strategy.dtype, name, calibration, time)
    found = spread_of(causes, name, calibration, setup.cluster.site, launch_bound(time))
    passes = sum(part.value for part in time.parts if part.name in PASSES)
    return widened(found, late_host(_calls(setup), passes, time.value))


def _calls(setup: Setup) -> float:
    """Seconds that the calls of the busiest rank's host take by themselves in an iteration, where they are counted."""
    ranks = ([run for chunk in setup.rank_chunks(rank) for run in chunk.runs] for rank in range(setup.strategy.pp))
    parts = ([(n, one) for block, n in runs for one in (block.f, block.i, block.w, block.recompute)] for runs in ranks)
    each = (sum(repeat * one.calls for repeat, one in rank) for rank in parts)
    return setup.strategy.microbatches * max(each)


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


def _mixing(model: Model) -> str:
    """What the seconds of kernels that mix tokens are called."""
    if model.recurrent is None:
        return "attention"
    named = {model.mixer_of(index) for index in range(model.layers)}
    return "attention and recurrence" if named & {"attention", "both"} else "recurrence"


def _time_ledger(
    setup: Setup,
    chunks: list[Chunk],
    sharding: tuple[float, float],
    done: Passes,
    update: Update,
    fixed: float,
    waiting: Ledger | None,
) -> Ledger:
    """The iteration on its busiest rank: compute by pass and kind, communication, waiting, update. `sharding`: what
    sharded parameters show of themselves, and what they slow down.
    """
    strategy, cluster, makespan = setup.strategy, setup.at(done.busiest).cluster, done.makespan
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
    mixing = _mixing(setup.model)
    notes = kernel_notes((run.block for chunk in chunks for run in chunk.runs), setup.at(done.busiest).calibration)
    parts = [
        ledger(
            name,
            [
                Ledger("gemm", count * seconds.gemm / slowest, note=notes.get("gemm", "")),
                Ledger(mixing, count * seconds.attention / slowest, note=notes.get("attention", "")),
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
    late = (makespan + (waiting.value if waiting else 0.0)) * (strategy.straggler - 1)
    parts.append(Ledger("stragglers", slow + late, note=note))
    parts += [waiting] if waiting else []
    parts.append(Ledger("gradient reduction", update.reduce_exposed))
    parts.append(Ledger("weight gathering", update.gather_exposed))
    parts.append(Ledger("optimizer", update.optimizer))
    parts.append(Ledger("framework", fixed))
    return ledger("iteration", parts, _late(_calls(setup), makespan, sum(part.value for part in parts)))


PASSES = frozenset({"forward", "backward", "recompute", "pipeline waits and sends"})
"""Parts of the time ledger that make up the makespan."""


def _late(calls: float, passes: float, seconds: float) -> str:
    """That a step may take as long as the host's calls."""
    late = late_host(calls, passes, seconds)
    if late <= 1.0:
        return ""
    told = f"launches may bound it: by themselves they take the host {calls * 1e3:.0f} ms, and a slow host makes it"
    return f"{told} {late * seconds * 1e3:.0f} ms; take more samples a micro batch"
