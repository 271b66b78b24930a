"""Collectives: the share of each level's bandwidth that they reach, and what starting one costs; and the table of what
was measured, for the very groups that were.

Predicted by the network that estimates use, so that latencies are counted once. From the inside out: groups inside a
node decide the share of its links and the cost of starting, groups over nodes the share of the level that they reach.
Rows are the probe's, or those of a log of nccl-tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwise.cost.network import DEFAULT_SHARE, Network, bus_share, collective, send
from shardwise.errors import InputError
from shardwise.inputs.calibration import Calibration, CollectiveKind, Reach
from shardwise.inputs.cluster import Cluster, Level
from shardwise.measure.fit.minimise import minimise, off
from shardwise.measure.fit.probe_file import Row
from shardwise.measure.fit.result import FitPoint, FittedFamily

ENOUGH = 4
"""Rows below which a level keeps the base's share."""
SHARE, FIXED = (0.001, 1.2), (1e-7, 1e-3)
FASTEST = 1.3
"""Times faster than the whole link: sums that switches make have shown 1.1."""
SLOWEST = 50.0
"""Times slower than the base's link, at the largest message: another link, or another unit."""
SENDS = "p2p"
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", SENDS)


def fit_links(
    measured: Sequence[Row], cluster: Cluster | None, calibration: Calibration, notes: list[str]
) -> tuple[Calibration, FittedFamily | None]:
    """The calibration with what groups of ranks show of each level of the network."""
    rows = [row for row in measured if row["op"] in OPS and row["ranks"] > 1]
    if not rows or cluster is None:
        notes.append("collectives were not measured (start the probe with torchrun); the base's numbers stay")
        return calibration, None
    world = max(row["ranks"] for row in rows)
    for place, level in enumerate(cluster.levels):
        own = [row for row in rows if _reach(row, world, cluster.levels) == place]
        if len(own) >= ENOUGH:
            calibration = _fitted(own, world, cluster, place, calibration)
        else:
            notes.append(f"collectives over {level.name}: {len(own)} rows are too few; the base's share stays")
    network = Network(cluster, calibration)
    points = tuple(
        FitPoint(
            label=f"{row['op']} of {row['bytes']:,} bytes over {row['ranks']}",
            measured=row["seconds"],
            predicted=_seconds(row, world, network),
        )
        for row in rows
    )
    # the points say how groups are priced that nobody measured; those that were are looked up
    table = (*_table(rows, world, cluster, calibration), *calibration.collectives)
    family = FittedFamily(name="collectives", points=points, fitted=len(rows) >= ENOUGH)
    return replace(calibration, collectives=table), family


def refuse_impossible(rows: Sequence[Row], cluster: Cluster, calibration: Calibration) -> None:
    """Refuse measurements that the links of such GPUs cannot give."""
    largest: dict[tuple[str, int], int] = {}
    for row in rows:
        key = row["op"], row["ranks"]
        largest[key] = max(row["bytes"], largest.get(key, 0))
    free = replace(calibration, network={"default": 1.0}, collective_fixed=0.0, collectives=())
    direct = replace(
        cluster, levels=tuple(replace(level, latency=0.0, oversubscription=1.0) for level in cluster.levels)
    )  # fmt: skip
    best, usual = Network(direct, free), Network(cluster, replace(calibration, collectives=()))
    world = max(int(row["ranks"]) for row in rows)
    for row in rows:
        least = _crossing(row, world, best) * _seconds(row, world, best) / FASTEST
        most = SLOWEST * _seconds(row, world, usual)
        if row["seconds"] < least:
            raise InputError(_told(row, world, cluster, f"it takes {least * 1e6:.4g} us at the very least"))
        if row["seconds"] > most and row["bytes"] == largest[row["op"], row["ranks"]]:
            raise InputError(_told(row, world, cluster, f"it takes {most * 1e6 / SLOWEST:.4g} us"))


def _crossing(row: Row, world: int, network: Network) -> float:
    """What must cross between domains over what a ring through all ranks sends there: each domain can add up its own
    ranks' messages first, and pass on what it got.
    """
    ranks = int(row["ranks"])
    hops = network.group(ranks, _stride(row, world)).hops
    if len(hops) < 2 or row["op"] in {SENDS, "all_to_all"}:
        return 1.0
    domains = hops[-1].domains
    return (1 - 1 / domains) / (1 - 1 / ranks)


def _told(row: Row, world: int, cluster: Cluster, expected: str) -> str:
    level = cluster.levels[_reach(row, world, cluster.levels)]
    share = bus_share("send" if row["op"] == SENDS else row["op"].replace("_", "-"), int(row["ranks"]))
    return (
        f"{row['op']} of {row['bytes']:,} bytes over {row['ranks']} ranks, it says, took {row['seconds'] * 1e6:.4g} us "
        f"(bus bandwidth {share * row['bytes'] / row['seconds'] / 1e9:.4g} GB/s); over {level.name} of "
        f"{cluster.gpu.name}, {level.bandwidth / 1e9:.4g} GB/s a GPU, {expected}. Give the GPU that was measured with "
        "--base, and the log as nccl-tests printed it (its times are microseconds)"
    )


def _table(rows: Sequence[Row], world: int, cluster: Cluster, calibration: Calibration) -> Iterator[Reach]:
    """A line for every kind and group that was measured with messages of several sizes."""
    groups: dict[tuple[CollectiveKind, int, int, int], dict[float, float]] = {}
    for row in rows:
        sends = row["op"] == SENDS
        kind: CollectiveKind = "send" if sends else row["op"].replace("_", "-")
        if sends and row["ranks"] > 2:
            continue  # sends around a ring say nothing of one alone
        key = kind, int(row["ranks"]), _stride(row, world), _reach(row, world, cluster.levels)
        times = groups.setdefault(key, {})
        times[float(row["bytes"])] = min(row["seconds"], times.get(float(row["bytes"]), row["seconds"]))
    shares = calibration.network
    for (kind, ranks, stride, place), times in groups.items():
        level = cluster.levels[place]
        if len(times) > 1:
            yield Reach(
                level=level.name, kind=kind, size=ranks, stride=stride,
                share=shares.get(level.name, shares.get("default", DEFAULT_SHARE)), latency=level.latency,
                fixed=calibration.collective_fixed, sizes=tuple(sorted(times)),
                seconds=tuple(times[size] for size in sorted(times)),
            )  # fmt: skip


def _fitted(rows: list[Row], world: int, cluster: Cluster, place: int, calibration: Calibration) -> Calibration:
    name, first = cluster.levels[place].name, place == 0
    shares = calibration.network
    start = {"share": shares.get(name, shares.get("default", DEFAULT_SHARE)), "fixed": calibration.collective_fixed}

    def changed(numbers: dict[str, float]) -> Calibration:
        return replace(
            calibration, network={**shares, name: numbers["share"]}, collective_fixed=numbers["fixed"]
        )  # fmt: skip

    def loss(numbers: dict[str, float]) -> float:
        network = Network(cluster, changed(numbers))
        return sum(off(_seconds(row, world, network), row["seconds"]) for row in rows)

    found = minimise(loss, start, {"share": SHARE, "fixed": FIXED} if first else {"share": SHARE})
    return changed({key: float(f"{value:.3g}") for key, value in found.items()})


def _stride(row: Row, world: int) -> int:
    """Ranks between two members: the probe's strided groups spread over all ranks; a log's groups are as they are."""
    if "stride" in row:
        return int(row["stride"])
    return world // int(row["ranks"]) if row.get("groups") == "strided" else 1


def _reach(row: Row, world: int, levels: Sequence[Level]) -> int:
    """The level that a group needs; the last where none is that wide."""
    extent = (int(row["ranks"]) - 1) * _stride(row, world) + 1
    return next((place for place, level in enumerate(levels) if extent <= level.size), len(levels) - 1)


def _seconds(row: Row, world: int, network: Network) -> float:
    ranks, stride = int(row["ranks"]), _stride(row, world)
    if row["op"] == SENDS:  # each to the next; the last to the first, which is the longest way
        return send(network, (ranks - 1) * stride, row["bytes"])
    return collective(row["op"].replace("_", "-"), network.group(ranks, stride), row["bytes"])
