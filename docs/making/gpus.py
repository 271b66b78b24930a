"""The page of the catalog's GPUs: data sheet, network, and what each one's calibration stands on."""

from __future__ import annotations

from making import MARK, row
from shardwise.frameworks.load import load_cluster
from shardwise.inputs import lookup
from shardwise.inputs.accuracy import accuracy
from shardwise.inputs.calibrations import calibration_of
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.load import CLUSTERS
from shardwise.units import show_bytes, show_rate

LEAD = """GPUs (and other accelerators) by name, from `inputs/catalog/clusters`; each file there names its data sheets.
Peaks are dense, in TFLOPS; memory is what the driver reports; bandwidths are per GPU and direction. Upper and lower
case do not matter, a space is a hyphen, and other names that people use lead to the same entry (`RTX PRO 6000`,
`trn2`). Another network is [described in a file](../how-to/describe-a-cluster.md)."""
CALIBRATED = """A calibration says what share of a data sheet is reached ([how](../explain/calibration.md)). Where no
measured run or probe supports it, `shardwise estimate` says so. The last column: timed runs that predictions are held
against ([validate](../how-to/validate.md)); with fewer than five, intervals are as wide as for a GPU never seen."""


def page() -> str:
    """The text of the page."""
    nodes = [load_cluster(f"8192x{name}") for name in lookup.names(CLUSTERS)]
    sheets = [
        row(["GPU", "memory", "bandwidth", "bf16", "fp8", "fp4", "network"]),
        row(["---"] + ["---:"] * 5 + ["---"]),
    ]
    sheets += [_sheet(node) for node in nodes]
    found = {calibration_of(node.gpu).name: calibration_of(node.gpu) for node in nodes}
    stands = [row(["calibration", "GPUs", "stands on", "timed runs"]), row(["---"] * 3 + ["---:"])]
    for name, one in found.items():
        gpus = ", ".join(f"`{node.gpu.name}`" for node in nodes if calibration_of(node.gpu).name == name)
        runs = sum(counts.get(name, 0) for counts in accuracy().seen.values())
        stands.append(row([f"`{name}`", gpus, one.source, f"{runs:,}"]))
    texts = ["# GPUs", MARK, LEAD, "\n".join(sheets), "## What they are calibrated on", CALIBRATED, "\n".join(stands)]
    return "\n\n".join(texts) + "\n"


def _sheet(node: Cluster) -> str:
    gpu = node.gpu
    peaks = [f"{gpu.flops[name] / 1e12:,.0f}" if gpu.has(name) else "-" for name in ("bf16", "fp8", "fp4")]
    peaks[0] = f"{gpu.peak('bf16') / 1e12:,.0f}"
    levels = [f"{one.name} ({one.size}, {one.topology}) {show_rate(one.bandwidth)}" for one in node.levels[:-1]]
    levels.append(f"{node.levels[-1].name} {show_rate(node.levels[-1].bandwidth)}")
    return row([f"`{gpu.name}`", show_bytes(gpu.memory), show_rate(gpu.bandwidth), *peaks, ", ".join(levels)])
