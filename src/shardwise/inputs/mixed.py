"""Clusters of several kinds of GPU: which of them holds which ranks, and what joins them.

Ranks are numbered kind by kind, in the order in which the kinds are written. With several pipeline stages kinds hold
different stages, with one they hold different replicas. GPUs of a stage are alike, or without stages those of a
replica, so that groups of tensor, context and expert parallel never mix kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import gcd

from shardwise.inputs.cluster import Cluster, Gpu, Level
from shardwise.inputs.serialise import DERIVED
from shardwise.inputs.site import Site
from shardwise.inputs.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed(Cluster):
    """Several kinds of GPU. Its own fields as a cluster sum them up; costs are asked of the kinds, one by one."""

    kinds: tuple[Cluster, ...]
    """Clusters of one kind each, in the order of their ranks."""
    join: Level
    """The network between kinds; its size is the number of all GPUs."""
    name: str = ""
    """What it is called in reports; by default its kinds, such as `32xh100 + 64xa100`."""
    gpu: Gpu = field(init=False, metadata=DERIVED)
    """The mean of the kinds' peaks in formats that all have, the memory of the largest."""
    gpus: int = field(init=False, metadata=DERIVED)
    """How many in all."""
    levels: tuple[Level, ...] = field(init=False, metadata=DERIVED)
    """The smallest node, or what of it divides the whole, and what joins all."""
    host_bandwidth: float = field(init=False, metadata=DERIVED)
    """Of the slowest kind."""
    host_memory: float = field(init=False, metadata=DERIVED)
    """Of the kind with least."""
    site: Site = field(init=False, metadata=DERIVED)
    """Of the first kind; each has its own."""

    def __post_init__(self) -> None:
        gpus = sum(kind.gpus for kind in self.kinds)
        join = replace(self.join, size=gpus)
        node = min((kind.levels[0] for kind in self.kinds), key=lambda one: one.size)
        summed = {
            "name": self.name or " + ".join(kind.name for kind in self.kinds),
            "gpus": gpus,
            "gpu": _mean_gpu(self.kinds, gpus),
            "join": join,
            "levels": (replace(node, size=gcd(node.size, gpus)), join),
            "host_bandwidth": min(kind.host_bandwidth for kind in self.kinds),
            "host_memory": min(kind.host_memory for kind in self.kinds),
            "site": self.kinds[0].site,
        }
        for name, value in summed.items():
            object.__setattr__(self, name, value)


def _mean_gpu(kinds: tuple[Cluster, ...], gpus: int) -> Gpu:
    """With it, an MFU of the whole is work over the sum of all peaks."""
    parts = [kind.gpu for kind in kinds]
    formats = [name for name in parts[0].flops if all(gpu.has(name) for gpu in parts)]
    return replace(
        max(parts, key=lambda gpu: gpu.memory),
        name="+".join(dict.fromkeys(gpu.name for gpu in parts)),
        flops={name: sum(kind.gpus * kind.gpu.peak(name) for kind in kinds) / gpus for name in formats},
        bandwidth=min(gpu.bandwidth for gpu in parts),
    )


def kinds_of(cluster: Cluster) -> tuple[Cluster, ...]:
    """The kinds of GPU of a cluster; of a plain one itself."""
    return cluster.kinds if isinstance(cluster, Mixed) else (cluster,)


def punctual(cluster: Cluster) -> Cluster:
    """The cluster with no host later than another."""
    if isinstance(cluster, Mixed):
        return replace(cluster, kinds=tuple(punctual(kind) for kind in cluster.kinds))
    return replace(cluster, site=replace(cluster.site, jitter=0.0))


def whole_kinds(cluster: Cluster) -> tuple[Cluster, ...]:
    """Each kind as a cluster of all ranks: its own network inside, beyond it what joins the kinds."""
    if not isinstance(cluster, Mixed):
        return (cluster,)
    return tuple(replace(kind, gpus=cluster.gpus, levels=_levels(kind, cluster.join)) for kind in cluster.kinds)


def _levels(kind: Cluster, join: Level) -> tuple[Level, ...]:
    """The outermost level of a kind is the joining one where both are the same network."""
    last = kind.levels[-1]
    inner = kind.levels[:-1] if replace(last, size=join.size) == join else kind.levels
    return (*inner, join)


def orders_of(cluster: Cluster) -> tuple[Cluster, ...]:
    """The same GPUs with their ranks in every order of kinds, the given one first."""
    if not isinstance(cluster, Mixed):
        return (cluster,)
    return (cluster, *(Mixed(kinds=kinds, join=cluster.join) for kinds in list(permutations(cluster.kinds))[1:]))


def by_replica(strategy: Strategy) -> bool:
    """Whether kinds hold different replicas, rather than different stages of all."""
    return strategy.pp == 1


def stage_kinds(cluster: Cluster, strategy: Strategy) -> tuple[int, ...]:
    """The kind of every pipeline rank, by its place in the cluster, where kinds hold different stages."""
    stage = strategy.tp * strategy.cp * strategy.dp
    return tuple(index for index, kind in enumerate(kinds_of(cluster)) for _ in range(kind.gpus // stage))


def replicas_of(cluster: Cluster, strategy: Strategy) -> tuple[int, ...]:
    """Replicas of every kind, where kinds hold different replicas."""
    return tuple(kind.gpus // (strategy.tp * strategy.cp) for kind in kinds_of(cluster))


SHARING = frozenset({"tp", "pp", "cp", "dp", "micro_batch", "global_batch"})
"""Fields of a strategy without which its `batches` mean nothing: others than these, other shares."""


def kind_batches(cluster: Cluster, strategy: Strategy) -> tuple[int, ...]:
    """Micro batches of a replica of every kind."""
    return strategy.batches or (strategy.microbatches,) * len(kinds_of(cluster))


def shared_batches(replicas: tuple[int, ...], total: int) -> Iterator[tuple[int, ...]]:
    """Every way to give each kind's replicas as many micro batches, `total` in all: two or more each, or one each."""
    for found in _shares(replicas, total):
        if min(found) > 1 or max(found) == 1:  # with one alone, gradients are not added up, and passes are others
            yield found


def _shares(replicas: tuple[int, ...], total: int) -> Iterator[tuple[int, ...]]:
    first, *rest = replicas
    if not rest:
        if total > 0 and total % first == 0:
            yield (total // first,)
        return
    for count in range(1, total // first + 1):
        yield from ((count, *others) for others in _shares(tuple(rest), total - count * first))
