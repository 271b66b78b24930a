"""Seconds of collectives and sends over the levels of a network: latency plus bytes over bandwidth.

A group is `size` ranks, `stride` apart, in the rank order tp, cp, ep / dp, pp (tp innermost). Collectives run as rings
over all its members: inside a domain at that level's bandwidth, between domains at what its members there can send
together. All-reduce chooses between a ring and a tree by time.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import pairwise
from math import log2
from typing import NamedTuple

from shardwise.errors import Fault, InputError
from shardwise.inputs.assumed import ASSUMED
from shardwise.inputs.calibration import Calibration, CollectiveKind, Reach
from shardwise.inputs.cluster import Cluster, Level
from shardwise.inputs.site import Site
from shardwise.ops.op import Comm, Routing
from shardwise.ops.shard import Shard

DEFAULT_SHARE = ASSUMED.network_share


class Hop(NamedTuple):
    """One level as a group sees it."""

    members: int
    """Members inside one domain of the level below: they share the way out of it."""
    domains: int
    """Domains of the level below that the group reaches at this level."""
    bandwidth: float
    """Bytes per second of one member at this level."""
    latency: float
    scatter: float = 1.0
    """Share of that which an all-to-all gets: on a torus, messages pass through the links of others."""


Times = tuple[tuple[float, float], ...]
"""Bytes and seconds, sizes rising."""


class Tabled(NamedTuple):
    """A kind of collective as it was measured on the levels of a group."""

    kind: CollectiveKind
    hops: tuple[Hop, ...]
    fixed: float
    """Seconds that starting one takes."""
    times: Times = ()
    """Of the very group, in place of both."""


class Group(NamedTuple):
    """A group of ranks on a cluster, ready to time collectives on."""

    size: int
    hops: tuple[Hop, ...]
    fixed: float
    """Seconds that starting a collective takes."""
    measured: tuple[Tabled, ...] = ()
    """Kinds of collectives that were measured, in place of both."""
    stride: int = 1
    """Ranks from one member to the next."""
    levels: tuple[str, ...] = ()
    """Names of the levels that it crosses, from the inside out."""
    taken: float = 0.0
    """Share of their speed that kernels lose beside one of its collectives."""
    out: bool = False
    """Whether it leaves the node."""

    def of(self, kind: CollectiveKind) -> tuple[tuple[Hop, ...], float]:
        """The levels and the start of a kind of collective."""
        found = self.table(kind)
        return (found.hops, found.fixed) if found else (self.hops, self.fixed)

    def table(self, kind: CollectiveKind) -> Tabled | None:
        return next((one for one in self.measured if one.kind == kind), None)


class Network:
    """The network of one cluster with what its levels really reach."""

    def __init__(self, cluster: Cluster, calibration: Calibration) -> None:
        self.gpus = cluster.gpus
        self.fixed = calibration.collective_fixed
        self.reaches = calibration.collectives
        self.contended = calibration.contended
        self._groups: dict[tuple[int, int], Group] = {}
        shares = (1.0, *[cluster.site.fabric] * len(cluster.levels))  # inside a node nobody else sends
        levels = [
            (level, _reached(level, calibration.network) * share)
            for level, share in zip(cluster.levels, shares, strict=False)
        ]
        self.levels = (*levels[:-1], *_pods(*levels[-1], cluster.site))

    def group(self, size: int, stride: int) -> Group:
        """The levels that a group of `size` ranks, `stride` apart, uses."""
        found = self._groups.get((size, stride))
        if found is None:
            hops = self._hops(size, stride)
            measured = tuple(one for kind in _KINDS if (one := self._measured(kind, hops, size, stride)))
            crossed = tuple(level.name for level, _ in hops)
            plain = tuple(hop for _, hop in hops)
            out = any(level is not self.levels[0][0] for level, _ in hops)
            taken = self.contended[out] if hops else 0.0
            found = self._groups[size, stride] = Group(size, plain, self.fixed, measured, stride, crossed, taken, out)
        return found

    def _hops(self, size: int, stride: int) -> list[tuple[Level, Hop]]:
        hops: list[tuple[Level, Hop]] = []
        below = 1
        for level, bandwidth in self.levels:
            inside = max(1, min(size, level.size // stride)) if stride < level.size else 1
            if inside > below:
                domains = -(-inside // below)
                share = _topology(level.topology, inside, level.size)
                scatter = _scatter(level.topology, inside, level.size)
                hops.append((level, Hop(below, domains, bandwidth * share, level.latency, scatter)))
                below = inside
            if below >= size:
                break
        if below < size and self.levels:  # more ranks than the last level names: it reaches on
            level, bandwidth = self.levels[-1]
            hops.append((level, Hop(below, -(-size // below), bandwidth, level.latency)))
        return hops

    def _measured(self, kind: CollectiveKind, hops: list[tuple[Level, Hop]], size: int, stride: int) -> Tabled | None:
        """The hops of a group at the rates that were measured; none: nothing was."""
        found: list[Hop] = []
        reach = last = None
        for level, hop in hops:
            reach = self._reach(level, kind, size, stride)
            last = reach or last
            if reach is None:
                found.append(hop)
                continue
            share = _topology(level.topology, min(size, level.size), level.size)
            found.append(hop._replace(bandwidth=_rate(level, reach) * share, latency=reach.latency))
        if last is None:
            return None
        # a curve is of the whole group, and so of the widest level that it reaches
        times = _times(reach) if reach and reach.size == size else ()
        return Tabled(kind, tuple(found), last.fixed, times)

    def _reach(self, level: Level, kind: CollectiveKind, size: int, stride: int) -> Reach | None:
        """The first line of the table that fits a group."""
        extent = size * stride
        nodes = -(-((size - 1) * stride + 1) // self.levels[0][0].size)
        kinds = {kind, "ring"} if kind in {"all-gather", "reduce-scatter"} else {kind}
        for one in self.reaches:
            fits = one.size in {0, size} and one.stride in {0, stride} and one.nodes in {0, nodes}
            if fits and (not one.within or extent <= one.within) and one.level == level.name and one.kind in kinds:
                return one
        return None

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Devices of a job in a node, and in every larger group."""
        return tuple(_share(level.size, self.gpus) for level, _ in self.levels)

    def between(self, distance: int) -> tuple[Level, float]:
        """The level at which a rank and the one `distance` further on meet, and the bandwidth that it reaches."""
        return next((pair for pair in self.levels if distance < pair[0].size), self.levels[-1])

    def sending(self, distance: int) -> tuple[float, float]:
        """Bytes per second and latency of a message to the rank `distance` further on."""
        level, reach, bandwidth = self._sent(distance)
        if reach:
            return _rate(level, reach), reach.latency + reach.fixed
        # two ranks of a mesh or torus have one link between them, whatever the others do
        one = 0.5 if level.topology in AXES else 1.0
        return bandwidth * one * _topology(level.topology, 2, level.size), level.latency

    def sent(self, distance: int) -> Times:
        """Measured messages to the rank `distance` further on; empty: none."""
        reach = self._sent(distance)[1]
        return _times(reach) if reach else ()

    def _sent(self, distance: int) -> tuple[Level, Reach | None, float]:
        level, bandwidth = self.between(distance)
        near = (one for one in self.reaches if not one.within or distance < one.within)
        usual = (one for one in near if one.kind == "send" and one.level == level.name and one.stride in {0, distance})
        return level, next(usual, None), bandwidth


def _share(size: int, gpus: int) -> int:
    """Devices that a job takes of a group: all, or a little fewer where equal shares make it up, as jobs take 64 of
    the 72 GPUs of an NVL72 domain.
    """
    return next((n for n in range(size, int(_LEAST_SHARE * size), -1) if gpus % n == 0), size)


_LEAST_SHARE = 0.8
"""Of a group of devices that jobs fill; assumed: 64 of 72 is what published runs take, and less would be a waste."""
_KINDS: tuple[CollectiveKind, ...] = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")


def _times(reach: Reach) -> Times:
    """The measured messages of a line; a table that a hand wrote may be wrong."""
    rising = all(low < high for low, high in pairwise(reach.sizes))
    if not rising or len(reach.sizes) != len(reach.seconds):
        message = f"{reach.kind} over {reach.size} ranks: sizes must rise, and each must have its seconds"
        raise InputError(Fault("cluster.gpu.calibration.collectives", message))
    return tuple(zip(reach.sizes, reach.seconds, strict=True))


def _rate(level: Level, reach: Reach) -> float:
    return level.bandwidth * reach.share / level.oversubscription


def _topology(topology: str, inside: int, extent: int) -> float:
    """Share of a level's bandwidth that a group of `inside` ranks gets.

    mesh: links to its own members only; pcie: a tree whose upper branches all members share; torus: the links of the
    axes that the group spans, axis after axis (frameworks map each of their axes to one or more of the torus).
    """
    if topology in AXES:
        return _spanned(topology, inside, extent) / AXES[topology]
    if topology == "mesh":
        return (min(inside, extent) - 1) / max(extent - 1, 1)
    return 1.0 / log2(inside) if topology == "pcie" and inside > 2 else 1.0


AXES = {"torus-2d": 2, "torus-3d": 3}
"""Axes of a torus."""


def _spanned(topology: str, inside: int, extent: int) -> int:
    """Axes of a torus of `extent` chips, all as long, that a group of `inside` of them needs."""
    axes = AXES[topology]
    return next((count for count in range(1, axes) if inside <= round(extent ** (count / axes))), axes)


def _scatter(topology: str, inside: int, extent: int) -> float:
    """Share of a group's ring bandwidth that an all-to-all reaches.

    On a ring of n chips a message travels n / 4 links on average, both ways round, so that a chip sends at 8 / n of a
    link's rate; the axes do so side by side, and the longest counts. Never more than the group's own two links an axis.
    """
    if topology not in AXES:
        return 1.0
    spanned = _spanned(topology, inside, extent)
    longest: float = inside ** (1 / spanned)
    return min(1.0, 4.0 / (spanned * longest))


def _reached(level: Level, shares: dict[str, float]) -> float:
    share = shares.get(level.name, shares.get("default", DEFAULT_SHARE))
    return level.bandwidth * share / level.oversubscription


def _pods(level: Level, bandwidth: float, site: Site) -> tuple[tuple[Level, float], ...]:
    """The outermost level, cut into a site's pods and what is between them."""
    if not site.pod or level.size <= site.pod:
        return ((level, bandwidth),)
    between_pods = replace(level, name=f"{level.name} between pods")
    return (replace(level, size=site.pod), bandwidth), (between_pods, bandwidth / site.oversubscription)


@lru_cache(maxsize=64)
def network_of(cluster: Cluster, calibration: Calibration) -> Network:
    return Network(cluster, calibration)


def between(times: Times, size: float) -> float:
    """Seconds of a message from those of measured sizes: logarithms are interpolated, the last rate goes on."""
    place = bisect_left(times, (size, 0.0))
    if place == 0:
        return times[0][1]
    (low, first), (high, second) = times[place - 1], times[min(place, len(times) - 1)]
    if place == len(times):
        return first * size / low
    return float(first * (second / first) ** (log2(size / low) / log2(high / low)))


def ring(group: Group, size: float, kind: CollectiveKind = "all-gather") -> float:
    """All-gather or reduce-scatter of `size` bytes in all (gathered)."""
    if group.size == 1:
        return 0.0
    found = group.table(kind)
    if found and found.times:
        return between(found.times, size)
    hops, fixed = group.of(kind)
    return _around(group.size, hops, size) + fixed


def _around(ranks: int, hops: tuple[Hop, ...], size: float) -> float:
    """One ring through all ranks: a step for each but one, inside a domain or out of it (NCCL's `tuning.cc`)."""
    rate = min(hop.bandwidth * hop.members for hop in hops)
    steps, reached = 0.0, 1
    for hop in hops:
        inside = min(reached * hop.domains, ranks)
        steps += ranks * (1 / reached - 1 / inside) * hop.latency
        reached = inside
    return size * (ranks - 1) / ranks / rate + steps


def all_reduce(group: Group, size: float) -> float:
    """A ring moves least; a tree has fewer steps and suits small messages."""
    if group.size == 1:
        return 0.0
    found = group.table("all-reduce")
    if found:  # whichever way was taken when it was measured
        return between(found.times, size) if found.times else 2 * _around(group.size, found.hops, size) + found.fixed
    hops, fixed = group.hops, group.fixed
    rate = min(hop.bandwidth * hop.members for hop in hops)
    tree = 2 * size / rate * ASSUMED.tree_traffic + sum(2 * log2(max(hop.domains, 2)) * hop.latency for hop in hops)
    return min(2 * _around(group.size, hops, size), tree) + fixed


def all_to_all(group: Group, size: float) -> float:
    """Every member sends 1/n of its `size` bytes to every other; each level carries what crosses it."""
    if group.size == 1:
        return 0.0
    found = group.table("all-to-all")
    if found and found.times:
        return between(found.times, size)
    slowest, reached, steps = 0.0, 1, 0.0
    hops, fixed = group.of("all-to-all")
    for hop in hops:
        inside = reached * hop.domains
        crossing = size * (min(inside, group.size) - reached) / group.size
        slowest = max(slowest, crossing / (hop.bandwidth * hop.scatter))
        steps += log2(max(hop.domains, 2)) * hop.latency
        reached = inside
    return slowest + steps + fixed


def dispatch(group: Group, size: float, routing: Routing) -> float:
    """Tokens of `size` bytes to the ranks of their experts, a copy for each domain that they visit.

    One copy crosses to each other domain; inside it the copy is passed on to each rank that wants it, so the innermost
    level carries a copy for every rank. Levels work side by side: the slowest decides.
    """
    if group.size == 1:
        return 0.0
    slowest, reached, steps = 0.0, 1, 0.0
    hops, fixed = group.of("all-to-all")
    for hop in hops:
        others = (group.size if reached == 1 else reached * hop.domains) // reached - 1
        crossing = size * others * routing.reached(reached / group.size)
        slowest = max(slowest, crossing / (hop.bandwidth * hop.scatter))
        steps += log2(max(hop.domains, 2)) * hop.latency
        reached *= hop.domains
    return slowest + steps + fixed


def send(network: Network, distance: int, size: float) -> float:
    """A message to the rank `distance` further on."""
    times = network.sent(distance)
    if times:
        return between(times, size)
    bandwidth, latency = network.sending(distance)
    return size / bandwidth + latency


def exchanged(comm: Comm, group: Group) -> float:
    """Seconds of an operator's collective."""
    if comm.routing:
        return dispatch(group, comm.bytes, comm.routing)
    return collective(comm.kind, group, comm.bytes)


def collective(kind: str, group: Group, size: float) -> float:
    if kind == "all-reduce":
        return all_reduce(group, size)
    if kind == "all-to-all":
        return all_to_all(group, size)
    return ring(group, size, "reduce-scatter" if kind == "reduce-scatter" else "all-gather")


def bus_share(kind: str, ranks: int, routing: Routing | None = None) -> float:
    """Bus over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md): what every member must send of a message; of
    dispatched tokens, a copy for each other rank that they visit.
    """
    if routing:
        return (ranks - 1) * routing.reached(1 / ranks)
    return 1.0 if kind == "send" else (ranks - 1) / ranks * (2.0 if kind == "all-reduce" else 1.0)


def hand_over(network: Network, distance: int, shard: Shard) -> float:
    """A micro batch's hidden state to the next pipeline rank; where tensor parallel ranks hold the same one, some
    runtimes send a share each and gather it there.
    """
    if shard.sp or shard.tp == 1 or not shard.runtime.overlap.p2p_shares:
        return send(network, distance, shard.handed)
    return send(network, distance, shard.handed / shard.tp) + ring(network.group(shard.tp, 1), shard.handed)
