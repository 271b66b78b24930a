"""Collectives: the share of each level's bandwidth that they reach, and what starting one costs.

Predicted by the network that estimates use, so that latencies are counted once. From the inside out: groups inside a
node decide the share of its links and the cost of starting, groups over nodes the share of the level that they reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwise.cost.network import DEFAULT_SHARE, Network, collective, send
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.cluster import Cluster, Level
from shardwise.measure.fit.minimise import minimise, off
from shardwise.measure.fit.probe_file import Probe, Row
from shardwise.measure.fit.result import FitPoint, FittedFamily

ENOUGH = 4
"""Rows below which a level keeps the base's share."""
SHARE, FIXED = (0.001, 1.2), (1e-7, 1e-3)
SENDS = "p2p"
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", SENDS)


def fit_links(
    probe: Probe, cluster: Cluster | None, calibration: Calibration, notes: list[str]
) -> tuple[Calibration, FittedFamily | None]:
    """The calibration with what the probe's groups of ranks show of each level of the network."""
    rows = [row for row in probe.rows("distributed") if row["op"] in OPS and row["ranks"] > 1]
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
    return calibration, FittedFamily(name="collectives", points=points, fitted=len(rows) >= ENOUGH)


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
    """Ranks between two members: the probe's strided groups spread over all ranks."""
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
