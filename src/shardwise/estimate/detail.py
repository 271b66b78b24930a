"""What an estimate is made of, beyond its ledgers: operations and bytes of every stage, and what every communication
group reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardwise.cost.memory import trained_share
from shardwise.cost.network import Group, bus_share, collective
from shardwise.cost.overlap import behind_of
from shardwise.cost.update import DataGroups, data_groups, reduced_by
from shardwise.cost.work import StageWork, work_of
from shardwise.estimate.estimate import Estimate
from shardwise.estimate.passes import hop_seconds
from shardwise.estimate.setup import Setup, layer_groups, setup_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.runtime import Runtime


class GroupRate(NamedTuple):
    """One kind of collective of one communication group, its largest message alone on the network."""

    group: str
    """tp, cp, ep, etp; dp: gradients and weights outside experts; expert dp: those of experts; replicas: between the
    copies of a sharded model (HSDP); pp: from a pipeline rank to the next."""
    ranks: int
    stride: int
    """Ranks from one member to the next, in the order tp, cp, dp, pp."""
    levels: tuple[str, ...]
    """Levels of the network that it crosses, from the inside out."""
    collective: str
    bytes: float
    """Size of the message: the gathered tensor; of an all-to-all and a send, what one rank has."""
    seconds: float
    """Seconds that it takes, nothing of it hidden yet."""
    algorithm_bandwidth: float
    """Bytes of the message per second."""
    bus_bandwidth: float
    """What every member sends per second, as nccl-tests defines it; to compare with a link's bandwidth."""


class Detail(NamedTuple):
    """Beside the ledgers of an estimate."""

    work: tuple[StageWork, ...]
    """One entry a pipeline rank."""
    groups: tuple[GroupRate, ...]
    """Every group of more than one rank."""


def detail(found: Estimate, *, runtime: Runtime | None = None) -> Detail:
    """Work and groups of an estimate; `runtime`: the one it was made with, where that is not the one it names."""
    setup = setup_of(found.model, found.cluster, found.strategy, runtime or load_runtime(found.strategy.runtime))
    ranks = range(found.strategy.pp)
    work = tuple(work_of(rank, setup.rank_chunks(rank), setup.shard, setup.machine) for rank in ranks)
    return Detail(work, tuple(group_rates(setup)))


def group_rates(setup: Setup) -> Iterator[GroupRate]:
    """The groups in their order from the inside out."""
    groups = layer_groups(setup.network, setup.strategy, setup.runtime)
    for (axis, kind), size in _layer_messages(setup).items():
        yield from _rated(axis, kind, getattr(groups, axis), size)
    yield from _data(setup)
    if setup.strategy.pp > 1:
        yield _hop(setup)


def _layer_messages(setup: Setup) -> dict[tuple[str, str], float]:
    """The largest message of every kind on every axis."""
    largest: dict[tuple[str, str], float] = {}
    for chunk in setup.distinct.values():
        for comm in (comm for run in chunk.runs for op in run.block.ops for comm in op.comms):
            key = comm.axis, comm.kind
            largest[key] = max(largest.get(key, 0.0), comm.bytes)
    return largest


def _data(setup: Setup) -> Iterator[GroupRate]:
    """Gradients and weights: under ZeRO 3 of the largest layer, else of the pipeline rank with most of them."""
    strategy, states = setup.strategy, setup.states
    groups = data_groups(setup.network, strategy)
    splits = [split for rank in range(strategy.pp) for split in setup.splits(rank)]
    held = [(trained_share(one.chunks, one.shard), one.chunks) for one in splits]
    dense = max(share * sum(chunk.params for chunk in chunks) for share, chunks in held)
    experts = max(share * sum(chunk.expert_params for chunk in chunks) for share, chunks in held)
    if strategy.zero == 3:
        yield from _sharded(setup, groups)
    else:
        for name, group, count in (("dp", groups.dense, dense), ("expert dp", groups.expert, experts)):
            yield from _rated(name, reduced_by(strategy, setup.runtime), group, count * states.gradient)
            if strategy.zero:
                yield from _rated(name, "all-gather", group, count * states.weight)
    yield from _rated("replicas", "all-reduce", groups.replicas, states.gradient * dense / groups.dense.size)


def _sharded(setup: Setup, groups: DataGroups) -> Iterator[GroupRate]:
    """ZeRO 3: the largest layer, gathered and scattered at the rate that the runtime reaches."""
    runtime, rate = setup.runtime, setup.runtime.overlap.fsdp_rate
    behind = behind_of(setup.strategy, runtime, setup.states, groups, setup.cluster.host_bandwidth)
    blocks = [run.block for chunk in setup.distinct.values() for run in chunk.runs]
    dense, experts = max(block.params for block in blocks), max(block.expert_params for block in blocks)
    for name, group, count in (("dp", groups.dense, dense), ("expert dp", groups.expert, experts)):
        yield from _rated(name, "all-gather", group, count * behind.gathered * rate, rate)
        yield from _rated(name, "reduce-scatter", group, count * behind.scattered * rate, rate)


def _rated(name: str, kind: str, group: Group, size: float, rate: float = 1.0) -> Iterator[GroupRate]:
    """Nothing for one rank, or for no bytes. `rate`: share of its speed that a runtime's collectives reach."""
    if group.size == 1 or not size:
        return
    seconds = collective(kind, group, size / rate)
    each = size / seconds
    bus = each * bus_share(kind, group.size)
    yield GroupRate(name, group.size, group.stride, group.levels, kind, size, seconds, each, bus)


def _hop(setup: Setup) -> GroupRate:
    strategy = setup.strategy
    distance, seconds, size = strategy.world // strategy.pp, hop_seconds(setup), setup.shard.hidden
    level, _ = setup.network.between(distance)
    return GroupRate("pp", strategy.pp, distance, (level.name,), "send", size, seconds, size / seconds, size / seconds)
