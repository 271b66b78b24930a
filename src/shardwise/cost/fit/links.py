"""Collectives: the share of a link's bandwidth that they reach, and what starting one costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardwise.cost.fit.probe_file import Probe, Row
from shardwise.cost.fit.result import Family, Point
from shardwise.cost.fit.search import minimise, off
from shardwise.inputs.calibration import Calibration

# Bytes that one rank sends per byte of the whole tensor, for n ranks (ring algorithms).
_MOVED: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "p2p": lambda _: 1.0,
}


def fit_links(
    probe: Probe, calibration: Calibration, notes: list[str], link: float = 450e9, level: str = "nvlink"
) -> tuple[Calibration, Family | None]:
    """Fit the innermost level. `link`: its bandwidth per GPU and direction, which shares are of."""
    rows = [row for row in probe.rows("distributed") if row.get("op") in _MOVED]
    if not rows:
        notes.append("collectives were not measured (start the probe with torchrun); the base's numbers stay")
        return calibration, None
    start = {"share": calibration.network.get(level, 0.8), "fixed": calibration.collective_fixed}

    def loss(numbers: dict[str, float]) -> float:
        return sum(off(_seconds(row, link * numbers["share"], numbers["fixed"]), row["seconds"]) for row in rows)

    found = minimise(loss, start, {"share": (0.001, 1.2), "fixed": (1e-6, 1e-3)})
    share, fixed = float(f"{found['share']:.3g}"), float(f"{found['fixed']:.3g}")
    points = tuple(
        Point(
            label=f"{row['op']} of {row['bytes']:,} bytes over {row['ranks']}",
            measured=row["seconds"],
            predicted=_seconds(row, link * share, fixed),
        )
        for row in rows
    )
    changed = replace(calibration, network={**calibration.network, level: share}, collective_fixed=fixed)
    return changed, Family(name="collectives", points=points, fitted=True)


def _seconds(row: Row, bandwidth: float, fixed: float) -> float:
    moved = row["bytes"] * _MOVED[row["op"]](int(row["ranks"]))
    return float(moved / bandwidth + fixed)
