"""`shardwise clusters`: the catalog of GPUs and the clusters made of them."""

from __future__ import annotations

import click

from shardwise import api
from shardwise.cli.options import CLUSTER
from shardwise.cli.output import Output, output_options
from shardwise.inputs.calibrations import calibration_of, learnt_line
from shardwise.inputs.cluster import Cluster, Gpu, Level
from shardwise.inputs.load import gpu_names
from shardwise.inputs.mixed import Mixed, kinds_of
from shardwise.inputs.site import USUAL
from shardwise.units import show_bytes, show_flops, show_rate, show_seconds


@click.command("clusters")
@click.argument("cluster", type=CLUSTER, required=False)
@output_options
def command(cluster: str | None, output: Output) -> None:
    """List the GPUs of the catalog, or show a cluster with its network.

    CLUSTER is text such as 64xh100 or "32xh100 + 64xa100", or a file of ours or SimuMax's system file.
    """
    if cluster is None:
        _list(output)
    else:
        _show(cluster, output)


def _list(output: Output) -> None:
    nodes = [api.load_cluster(name) for name in gpu_names()]
    output.answer([node.gpu for node in nodes])
    output.table(
        ("gpu", "memory", "bandwidth", "16-bit", "fp8", "fp4", "node", "in node"), [_row(node) for node in nodes]
    )
    output.say()
    output.say("A cluster is so many of one GPU, such as 64xh100, with the usual network for it, or a file;")
    output.say('"32xh100 + 64xa100" is a mixed one.')


def _row(node: Cluster) -> tuple[str, ...]:
    gpu, level = node.gpu, node.levels[0]
    peaks = (_peak(gpu, name) for name in ("bf16", "fp8", "fp4"))
    return (
        gpu.name,
        show_bytes(gpu.memory),
        show_rate(gpu.bandwidth),
        *peaks,
        str(level.size),
        show_rate(level.bandwidth),
    )


def _peak(gpu: Gpu, dtype: str) -> str:
    return f"{gpu.peak(dtype) / 1e12:,.0f} TFLOPS" if gpu.has(dtype) or dtype == "bf16" else "-"


def _show(text: str, output: Output) -> None:
    read = api.read_cluster(text)
    for note in read.notes:
        output.note(note)
    cluster = read.value
    output.answer(cluster)
    kinds = kinds_of(cluster)
    for kind in kinds:
        _show_kind(kind, output)
    if isinstance(cluster, Mixed):
        output.say()
        output.say(f"{cluster.name}: {cluster.gpus} GPUs of {len(kinds)} kinds, joined by")
        output.table(_LEVEL_HEADS, [_level_row(cluster.join)])


def _show_kind(cluster: Cluster, output: Output) -> None:
    gpu = cluster.gpu
    output.say(f"{cluster.name}: {cluster.gpus} x {gpu.name}, {show_bytes(gpu.memory)} at {show_rate(gpu.bandwidth)}")
    output.say("  peak: " + ", ".join(f"{name} {show_flops(value)}" for name, value in gpu.flops.items()))
    output.say(f"  host: {show_bytes(cluster.host_memory)} per node, {show_rate(cluster.host_bandwidth)} per GPU")
    site = cluster.site
    if site != USUAL:
        output.say(f"  site: {site.name}, kernels x{site.slowdown:g}, fabric x{site.fabric:g}, hosts x{site.host:g}")
    calibration = calibration_of(gpu)
    output.say(f"  calibrated on: {calibration.name}: {calibration.source}")
    for one in calibration.learnt:
        factors = ", ".join(f"{kind} x{factor:.3g}" for kind, factor in one.corrections.items())
        output.say(f"  {learnt_line(calibration.name, one)}: {factors}")
    output.say()
    output.table(_LEVEL_HEADS, [_level_row(level) for level in cluster.levels])


_LEVEL_HEADS = ("level", "GPUs", "per GPU", "latency", "topology", "oversubscription")


def _level_row(level: Level) -> tuple[str, ...]:
    speed = (show_rate(level.bandwidth), show_seconds(level.latency))
    return (level.name, str(level.size), *speed, level.topology, f"{level.oversubscription:g}")
