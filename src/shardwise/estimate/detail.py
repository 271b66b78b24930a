"""What an estimate is made of, beyond its ledgers: operations and bytes of every stage, and what every communication
group reaches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shardwise.cost.memory import trained_share
from shardwise.cost.network import Group, bus_share, exchanged
from shardwise.cost.overlap import behind_of
from shardwise.cost.update import DataGroups, data_groups, reduced_by
from shardwise.cost.work import StageWork, work_of
from shardwise.estimate.estimate import Estimate
from shardwise.estimate.passes import hop_seconds
from shardwise.estimate.setup import Setup, layer_groups, setup_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.runtime import Runtime
from shardwise.ops.op import Collective, Comm


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
    """Size of the message: the gathered tensor; of an all-to-all and a send, what one rank has; of a dispatch, one
    copy of a rank's tokens."""
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
    own = [setup.at(rank) for rank in range(found.strategy.pp)]
    work = tuple(work_of(rank, setup.rank_chunks(rank), one.shard, one.machine) for rank, one in enumerate(own))
    if not setup.kinds:
        return Detail(work, tuple(group_rates(setup)))
    rates = ((kind.cluster.gpu.name, one) for kind in setup.kinds for one in group_rates(kind))
    return Detail(work, tuple(one._replace(group=f"{one.group} on {name}") for name, one in rates))


def group_rates(setup: Setup) -> Iterator[GroupRate]:
    """The groups in their order from the inside out."""
    groups = layer_groups(setup.network, setup.strategy, setup.runtime)
    for comm in _layer_messages(setup):
        yield from _rated(comm.axis, comm, getattr(groups, comm.axis))
    yield from _data(setup)
    if setup.strategy.pp > 1:
        yield _hop(setup)


def _layer_messages(setup: Setup) -> Iterable[Comm]:
    """The largest message of every kind on every axis."""
    largest: dict[tuple[str, str], Comm] = {}
    for chunk in setup.distinct.values():
        for comm in (comm for run in chunk.runs for op in run.block.ops for comm in op.comms):
            known = largest.get((comm.axis, comm.kind), comm)
            largest[comm.axis, comm.kind] = max(known, comm, key=lambda one: one.bytes)
    return largest.values()


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
            yield from _rated(name, _message(reduced_by(strategy, setup.runtime), count * states.gradient), group)
            if strategy.zero:
                yield from _rated(name, _message("all-gather", count * states.sent), group)
    copies = _message("all-reduce", states.gradient * dense / groups.dense.size)
    yield from _rated("replicas", copies, groups.replicas)


def _sharded(setup: Setup, groups: DataGroups) -> Iterator[GroupRate]:
    """ZeRO 3: the largest layer, gathered and scattered at the rate that the runtime reaches."""
    runtime, rate = setup.runtime, setup.runtime.overlap.fsdp_rate
    behind = behind_of(
        setup.strategy, runtime, setup.states, groups, setup.cluster.host_bandwidth, setup.machine.bandwidth
    )
    blocks = [run.block for chunk in setup.distinct.values() for run in chunk.runs]
    dense, experts = max(block.params for block in blocks), max(block.expert_params for block in blocks)
    for name, group, count in (("dp", groups.dense, dense), ("expert dp", groups.expert, experts)):
        yield from _rated(name, _message("all-gather", count * behind.gathered), group, rate)
        yield from _rated(name, _message("reduce-scatter", count * behind.scattered), group, rate)


def _message(kind: Collective, size: float) -> Comm:
    """A collective that no operator has; neither its axis nor its phase is read here."""
    return Comm(kind, "tp", size, "F")


def _rated(name: str, comm: Comm, group: Group, rate: float = 1.0) -> Iterator[GroupRate]:
    """Nothing for one rank, or for no bytes. `rate`: share of its speed that a runtime's collectives reach, by which
    the message's bytes were divided.
    """
    if group.size == 1 or not comm.bytes:
        return
    seconds, size = exchanged(comm, group), comm.bytes * rate
    each = size / seconds
    bus = each * bus_share(comm.kind, group.size, comm.routing)
    yield GroupRate(name, group.size, group.stride, group.levels, comm.kind, size, seconds, each, bus)


def _hop(setup: Setup) -> GroupRate:
    strategy = setup.strategy
    distance, seconds, size = strategy.between_stages, hop_seconds(setup), setup.shard.handed
    level, _ = setup.network.between(distance)
    return GroupRate("pp", strategy.pp, distance, (level.name,), "send", size, seconds, size / seconds, size / seconds)
