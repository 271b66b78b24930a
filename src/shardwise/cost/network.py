"""Seconds of collectives and sends over the levels of a network: latency plus bytes over bandwidth.

A group is `size` ranks, `stride` apart, in the rank order tp, cp, ep / dp, pp (tp innermost). Collectives run as rings
over all its members: inside a domain at that level's bandwidth, between domains at what its members there can send
together. All-reduce chooses between a ring and a tree by time.
"""

from __future__ import annotations

from functools import lru_cache
from math import log2
from typing import NamedTuple

from shardwise.inputs.calibration import Calibration
from shardwise.inputs.cluster import Cluster, Level
from shardwise.ops.shard import Shard

DEFAULT_SHARE = 0.8


class Hop(NamedTuple):
    """One level as a group sees it."""

    members: int
    """Members inside one domain of the level below: they share the way out of it."""
    domains: int
    """Domains of the level below that the group reaches at this level."""
    bandwidth: float
    """Bytes per second of one member at this level."""
    latency: float


class Group(NamedTuple):
    """A group of ranks on a cluster, ready to time collectives on."""

    size: int
    hops: tuple[Hop, ...]
    fixed: float
    """Seconds that starting a collective takes."""


class Network:
    """The network of one cluster with what its levels really reach."""

    def __init__(self, cluster: Cluster, calibration: Calibration) -> None:
        shares = calibration.network
        self.fixed = calibration.collective_fixed
        self._groups: dict[tuple[int, int], Group] = {}
        self.levels = tuple(
            (level.size, _reached(level, shares), level.latency, level.topology) for level in cluster.levels
        )

    def group(self, size: int, stride: int) -> Group:
        """The levels that a group of `size` ranks, `stride` apart, uses."""
        found = self._groups.get((size, stride))
        if found is None:
            found = self._groups[size, stride] = self._group(size, stride)
        return found

    def _group(self, size: int, stride: int) -> Group:
        hops: list[Hop] = []
        below = 1
        for extent, bandwidth, latency, topology in self.levels:
            inside = max(1, min(size, extent // stride)) if stride < extent else 1
            if inside > below:
                domains = -(-inside // below)
                hops.append(Hop(below, domains, bandwidth * _topology(topology, inside, extent), latency))
                below = inside
            if below >= size:
                break
        if below < size and self.levels:  # more ranks than the last level names: it reaches on
            _, bandwidth, latency, _ = self.levels[-1]
            hops.append(Hop(below, -(-size // below), bandwidth, latency))
        return Group(size, tuple(hops), self.fixed)


def _topology(topology: str, inside: int, extent: int) -> float:
    """Share of a level's bandwidth that a group of `inside` ranks gets.

    mesh: links to its own members only; pcie: a tree whose upper branches all members share.
    """
    if topology == "mesh":
        return (min(inside, extent) - 1) / max(extent - 1, 1)
    return 1.0 / log2(inside) if topology == "pcie" and inside > 2 else 1.0


def _reached(level: Level, shares: dict[str, float]) -> float:
    share = shares.get(level.name, shares.get("default", DEFAULT_SHARE))
    return level.bandwidth * share / level.oversubscription


@lru_cache(maxsize=64)
def network_of(cluster: Cluster, calibration: Calibration) -> Network:
    return Network(cluster, calibration)


def ring(group: Group, size: float) -> float:
    """All-gather or reduce-scatter of `size` bytes in all (gathered)."""
    if group.size == 1:
        return 0.0
    moved = size * (group.size - 1) / group.size
    rate = min(hop.bandwidth * hop.members for hop in group.hops)
    steps = sum((hop.domains - 1) * hop.latency for hop in group.hops)
    return moved / rate + steps + group.fixed


def all_reduce(group: Group, size: float) -> float:
    """A ring moves least; a tree has fewer steps and suits small messages."""
    if group.size == 1:
        return 0.0
    rate = min(hop.bandwidth * hop.members for hop in group.hops)
    tree = 2 * size / rate * 1.15 + sum(2 * log2(max(hop.domains, 2)) * hop.latency for hop in group.hops)
    return min(2 * ring(group, size) - group.fixed, tree + group.fixed)


def all_to_all(group: Group, size: float) -> float:
    """Every member sends 1/n of its `size` bytes to every other; each level carries what crosses it."""
    if group.size == 1:
        return 0.0
    slowest, reached, steps = 0.0, 1, 0.0
    for hop in group.hops:
        inside = reached * hop.domains
        crossing = size * (min(inside, group.size) - reached) / group.size
        slowest = max(slowest, crossing / hop.bandwidth)
        steps += log2(max(hop.domains, 2)) * hop.latency
        reached = inside
    return slowest + steps + group.fixed


def send(network: Network, distance: int, size: float) -> float:
    """A message to the rank `distance` further on."""
    for extent, bandwidth, latency, _ in network.levels:
        if distance < extent:
            return size / bandwidth + latency
    _, bandwidth, latency, _ = network.levels[-1]
    return size / bandwidth + latency


def collective(kind: str, group: Group, size: float) -> float:
    if kind == "all-reduce":
        return all_reduce(group, size)
    if kind == "all-to-all":
        return all_to_all(group, size)
    return ring(group, size)


def hand_over(network: Network, distance: int, shard: Shard) -> float:
    """A micro batch's hidden state to the next pipeline rank; where tensor parallel ranks hold the same one, some
    runtimes send a share each and gather it there.
    """
    if shard.sp or shard.tp == 1 or not shard.runtime.overlap.p2p_shares:
        return send(network, distance, shard.hidden)
    return send(network, distance, shard.hidden / shard.tp) + ring(network.group(shard.tp, 1), shard.hidden)
