"""Everything an estimate is made from, resolved once: shard, machine, groups, and the chunks of every rank.

On a mixed cluster every kind of GPU has a setup of its own, of the whole model; stages take their chunks from theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple, TypeVar

from shardwise.cost.chunk import BlockRun, Chunk, chunk_of, offloaded, placement_of, recomputed_layers
from shardwise.cost.kernels import Machine, machine_of
from shardwise.cost.layer import PLAIN, Block, Groups, Recipe, embedding_block, head_block, layer_block, received_block
from shardwise.cost.memory import layer_room
from shardwise.cost.network import Network, network_of
from shardwise.cost.states import States, sharding_of, states_of
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.calibrations import as_run_by, calibration_of
from shardwise.inputs.cluster import Cluster, Gpu
from shardwise.inputs.layers import rank_chunks, spread
from shardwise.inputs.mixed import Mixed, by_replica, kind_batches, stage_kinds, whole_kinds
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Placement, Strategy
from shardwise.ops.layer import LayerKind, layer_kinds
from shardwise.ops.shard import Shard, shard_of
from shardwise.pipeline.action import placed

T = TypeVar("T")


class Split(NamedTuple):
    """Operators of a rank that are split alike."""

    strategy: Strategy
    shard: Shard
    chunks: list[Chunk]
    """Their parameters."""


class RankSetup(NamedTuple):
    """A rank whose operators have splits of their own."""

    splits: tuple[Split, ...]
    """The widest first: its buffers are those that last."""
    gpus: int
    """GPUs that share its work."""
    hop: float
    """Seconds to hand a micro batch to the next rank, or from the one before for the last."""


class Setup(NamedTuple):
    """The resolved parts of one question."""

    model: Model
    cluster: Cluster
    strategy: Strategy
    runtime: Runtime
    calibration: Calibration
    shard: Shard
    machine: Machine
    network: Network
    states: States
    layers: tuple[int, ...]
    """Layers of every chunk, in model order."""
    chunks: tuple[Chunk, ...]
    """Chunks in model order."""
    ranks: tuple[RankSetup, ...] = ()
    """Where operators have splits of their own; empty: all are split as the strategy says."""
    memory_limit: float | None = None
    """Bytes that a rank may need, which an order that is made for the memory keeps; none: all of the GPU's."""
    kinds: tuple[Setup, ...] = ()
    """Of a mixed cluster, the whole model on each kind of GPU; empty: all GPUs are alike."""
    kind_of: tuple[int, ...] = ()
    """The kind of every pipeline rank; empty: kinds hold replicas, each with all ranks."""

    def at(self, rank: int) -> Setup:
        """The setup on the GPUs of a pipeline rank."""
        return self.kinds[self.kind_of[rank]] if self.kind_of else self

    def limit_of(self, rank: int) -> float:
        """Bytes that a rank may need."""
        own = self.at(rank)
        return own.memory_limit or own.cluster.gpu.memory

    def splits(self, rank: int) -> tuple[Split, ...]:
        """How a rank's parameters are split."""
        if self.ranks:
            return self.ranks[rank].splits
        return (Split(self.strategy, self.at(rank).shard, self.rank_chunks(rank)),)

    def by_contents(self, make: Callable[[int], T]) -> list[T]:
        """One of each rank; ranks with equal contents share one."""
        known: dict[tuple[int, ...], T] = {}
        made = []
        for rank in range(self.strategy.pp):
            key = tuple(map(id, self.rank_chunks(rank)))
            key += (id(self.ranks[rank].splits),) if self.ranks else ()
            if key not in known:
                known[key] = make(rank)
            made.append(known[key])
        return made

    @property
    def placement(self) -> Placement:
        return placement_of(self.strategy)

    @property
    def distinct(self) -> dict[int, Chunk]:
        """The chunks by identity: those with equal layers are one object."""
        return {id(chunk): chunk for chunk in self.chunks}

    def rank_indices(self, rank: int) -> tuple[int, ...]:
        """The chunks of a pipeline rank by their place in the model."""
        if self.strategy.vpp == 1:
            return (rank,)
        return rank_chunks(rank, self.strategy.pp, self.strategy.vpp, self.placement)

    def rank_chunks(self, rank: int) -> list[Chunk]:
        """The chunks of a pipeline rank, first in model order first."""
        return [self.chunks[index] for index in self.rank_indices(rank)]


@lru_cache(maxsize=64)
def compiled(runtime: Runtime) -> Runtime:
    """The runtime with its small kernels fused by a compiler."""
    loss = runtime.kernels.compiled_loss or runtime.kernels.loss
    kernels = replace(runtime.kernels, norm="fused", rope="fused", activation="compiled", loss=loss, compiled=True)
    none = (0.0, 0.0)
    overheads = replace(
        runtime.overheads, launch=runtime.overheads.launch / 2, call=none, called_kernel=none, called_layer=none,
        tower=0.0,
    )  # fmt: skip
    fragmentation = min(runtime.memory.fragmentation, runtime.memory.compiled_fragmentation)
    memory = replace(runtime.memory, fragmentation=fragmentation)
    return replace(runtime, kernels=kernels, overheads=overheads, memory=memory)


def setup_of(
    model: Model,
    cluster: Cluster,
    strategy: Strategy,
    runtime: Runtime,
    calibration: Calibration | None = None,
    *,
    memory_limit: float | None = None,
) -> Setup:
    """Resolve one question."""
    if isinstance(cluster, Mixed):
        return _mixed_setup(model, cluster, strategy, runtime, memory_limit)
    if strategy.compile and not runtime.kernels.compiled:
        runtime = compiled(runtime)
    calibration = calibration or calibration_of(cluster.gpu)
    if calibration.learnt:
        calibration = as_run_by(calibration, runtime.name, experts=model.moe is not None)
    shard = shard_of(model, strategy, runtime, cluster.gpu)
    states = states_of(strategy, runtime)
    machine = machine_of(
        cluster.gpu, calibration, runtime, strategy.dtype, strategy.scaling, gradient=states.gradient,
        accumulating=strategy.microbatches > 1, graphs=strategy.cuda_graphs, site=cluster.site, gpus=cluster.gpus,
        tp=strategy.tp,
    )  # fmt: skip
    network = network_of(cluster, calibration)
    layers = spread(model.depth, strategy)
    groups = layer_groups(network, strategy, runtime)
    chunks = _chunks(shard, strategy, layers, machine, groups, states)
    if strategy.offload == "activations":
        grads = piled_gradients(strategy, states)
        moved = {id(chunk): offloaded(chunk, cluster.host_bandwidth, grads) for chunk in chunks}
        chunks = [moved[id(chunk)] for chunk in chunks]
    return Setup(
        model, cluster, strategy, runtime, calibration, shard, machine, network, states, layers, tuple(chunks),
        memory_limit=memory_limit,
    )  # fmt: skip


def _mixed_setup(
    model: Model, cluster: Mixed, strategy: Strategy, runtime: Runtime, memory_limit: float | None
) -> Setup:
    """The setups of all kinds, and a pipeline with every stage on its own; a limit counts for each by its memory."""
    counts = kind_batches(cluster, strategy)
    asked = [strategy] * len(counts)
    if by_replica(strategy):  # a kind's replicas as if all had as many micro batches: what they take does not change
        each = strategy.dp * strategy.micro_batch
        asked = [replace(strategy, batches=(), global_batch=count * each) for count in counts]
    whole = whole_kinds(cluster)
    limits = [None if memory_limit is None else memory_limit * memory_share(cluster, kind.gpu) for kind in whole]
    kinds = tuple(
        setup_of(model, kind, own, runtime, memory_limit=limit)
        for kind, own, limit in zip(whole, asked, limits, strict=True)
    )
    most = kinds[0]._replace(cluster=cluster, strategy=strategy, kinds=kinds, memory_limit=memory_limit)
    if by_replica(strategy):
        return most
    made = most._replace(kind_of=stage_kinds(cluster, strategy))
    owners = [made.kind_of[rank] for rank in placed(strategy.pp, strategy.vpp, made.placement)]
    return made._replace(chunks=tuple(kinds[owner].chunks[index] for index, owner in enumerate(owners)))


def rank_limits(setup: Setup, limit: float) -> list[float]:
    """Of a limit for the largest GPUs of a cluster, what it is for every pipeline rank."""
    return [limit * memory_share(setup.cluster, setup.at(rank).cluster.gpu) for rank in range(setup.strategy.pp)]


def memory_share(cluster: Cluster, gpu: Gpu) -> float:
    """The memory of a kind of GPU over that of the largest."""
    return gpu.memory / cluster.gpu.memory


def layer_groups(network: Network, strategy: Strategy, runtime: Runtime) -> Groups:
    """The groups of a layer's collectives, tp innermost, then cp; experts are spread over tp x cp x dp."""
    overlap = runtime.overlap
    experts = overlap.ep_behind if strategy.ep_overlap and strategy.microbatches > 1 else overlap.ep
    hidden = (("tp", overlap.tp), ("cp", overlap.cp), ("ep", experts), ("etp", 0.0), ("W", overlap.weight_gather))
    return Groups(
        network.group(strategy.tp, 1),
        network.group(strategy.cp, strategy.tp),
        network.group(strategy.ep, strategy.etp),
        network.group(strategy.etp, 1),
        hidden,
    )


def block_of(setup: Setup, kind: LayerKind, recipe: Recipe) -> Block:
    """One layer of a kind, recomputed so."""
    groups = layer_groups(setup.network, setup.strategy, setup.runtime)
    return layer_block(setup.shard, kind, recipe, setup.machine, groups, new_gradients(setup.strategy, setup.states))


def new_gradients(strategy: Strategy, states: States) -> float:
    """Bytes per parameter that backward allocates for good: only a first micro batch finds no gradients yet; with
    several, they stand throughout. What stays is what the step finds: sums in their own format (fp32 beside 16-bit
    weights), and of sharded ones the shares: a layer's own goes once it is scattered.
    """
    if not states.lazy or strategy.microbatches > 1 or strategy.lora:
        return 0.0  # of a frozen model only adapters have any
    dense, expert = (sharding_of(strategy, expert=expert).gradient for expert in (False, True))
    return states.gradient / (dense if strategy.ep == 1 else min(dense, expert))


def piled_gradients(strategy: Strategy, states: States) -> float:
    """What of them stays once a layer is done: under ZeRO 3 they are scattered layer by layer."""
    spread = sharding_of(strategy, expert=False).gradient if strategy.zero == 3 else 1
    return new_gradients(strategy, states) / spread


def _chunks(
    shard: Shard, strategy: Strategy, layers: tuple[int, ...], machine: Machine, groups: Groups, states: States
) -> list[Chunk]:
    kinds = layer_kinds(shard.model)
    grads = new_gradients(strategy, states)
    chunks: list[Chunk] = []
    known: dict[tuple[object, ...], Chunk] = {}
    start, last = 0, len(layers) - 1
    for index, count in enumerate(layers):
        own = kinds[start : start + count] + (kinds[shard.model.depth :] if index == last else ())
        start += count
        again = recomputed_layers(strategy, index, layers, len(own))
        key = (own, again, index == 0, index == last)
        if key not in known:
            runs = _runs(own, again, shard, strategy, machine, groups, grads)
            if index == 0:
                runs.insert(0, BlockRun(embedding_block(shard, machine, groups, grads), 1))
            elif shard.model.crosses and own[0].crosses and not own[0].opens:
                runs.insert(0, BlockRun(received_block(shard, machine, groups, grads), 1))
            if index == last:
                # tied weights are the embedding's where both ends share a rank; else the last rank has a copy
                own_weights = not (shard.model.tied and len(layers) == 1)
                runs.append(BlockRun(head_block(shard, machine, groups, grads, own_weights=own_weights), 1))
                if shard.model.mtp:  # every token further ahead passes the same output layer again
                    runs.append(BlockRun(head_block(shard, machine, groups, grads, own_weights=False), shard.model.mtp))
            room = layer_room(runs, strategy, shard.runtime, states)
            known[key] = chunk_of(tuple(runs), piled_gradients(strategy, states), room)
        chunks.append(known[key])
    return chunks


def _runs(
    kinds: tuple[LayerKind, ...],
    again: int,
    shard: Shard,
    strategy: Strategy,
    machine: Machine,
    groups: Groups,
    grads: float,
) -> list[BlockRun]:
    """Equal neighbours folded: the first `again` layers are recomputed."""
    recompute = strategy.recompute
    recipe = Recipe(recompute.full, frozenset(recompute.modules), recompute.group)
    runs: list[BlockRun] = []
    for part, used in ((kinds[:again], recipe), (kinds[again:], PLAIN)):
        for kind, members in groupby(part):
            block = layer_block(shard, kind, used, machine, groups, grads)
            runs.append(BlockRun(block, len(list(members))))
    return runs
