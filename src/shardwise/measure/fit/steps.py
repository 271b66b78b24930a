"""Steps of a few decoder layers: what products reach between other kernels.

The probe measures kernels between rests, at the full clock. In a training step the GPU runs into its power limit and
its clock falls: products feel it most, attention little, memory-bound kernels hardly. One number, the share of their
full speed that products keep, is fitted on the probe's own steps. (Files of older probes hold products
measured at the power limit without pause, where they run slower than in a step: there the number is above 1.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

from shardwise.cost.chunk import combined
from shardwise.cost.kernels import Machine, machine_of
from shardwise.cost.layer import Block, Groups, head_block, layer_afresh
from shardwise.cost.network import Group
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.cluster import Gpu
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.measure.fit.minimise import minimise, off
from shardwise.measure.fit.probe_file import Probe, Row
from shardwise.measure.fit.result import FitPoint, FittedFamily
from shardwise.measure.fit.samples import rested
from shardwise.ops.layer import LayerKind
from shardwise.ops.shard import Shard, shard_of

SMALL = 512
"""Hidden sizes below which a step measures the host, not the GPU."""
RELIEF = {True: (0.7, 1.0), False: (1.0, 1.15)}
"""What the share of speed may be, for probes that rested and older ones."""
_ALONE = Group(1, (), 0.0)
_GROUPS = Groups(_ALONE, _ALONE, _ALONE, _ALONE, (("tp", 0.0), ("cp", 0.0), ("ep", 0.0), ("etp", 0.0)))


class MeasuredStep(NamedTuple):
    """One measured pass of a stack of layers."""

    label: str
    phase: str
    shard: Shard
    layers: int
    head: bool
    seconds: float


def fit_steps(probe: Probe, gpu: Gpu, calibration: Calibration) -> tuple[Calibration, FittedFamily | None]:
    """The calibration with its product shares relieved, and how steps follow it; steps held out: every second."""
    rows = [row for row in probe.rows("step") if row["clock"] == "device" and row["hidden"] >= SMALL]
    steps = [_step(row) for row in rows]
    if not steps:
        return calibration, None
    fitted, cool = steps[::2], rested(probe)

    def loss(numbers: dict[str, float]) -> float:
        machine = _machine(gpu, _relieved(calibration, numbers["relief"]))
        return sum(off(_seconds(step, machine), step.seconds) for step in fitted)

    bounds = RELIEF[cool]
    relief = minimise(loss, {"relief": sum(bounds) / 2}, {"relief": bounds})["relief"]
    found = _relieved(calibration, relief)
    machine = _machine(gpu, found)
    points = tuple(
        FitPoint(label=step.label, measured=step.seconds, predicted=_seconds(step, machine), held_out=index % 2 == 1)
        for index, step in enumerate(steps)
    )
    return found, FittedFamily(name="steps of layers", points=points, fitted=True)


def _relieved(calibration: Calibration, relief: float) -> Calibration:
    shares = {dtype: float(f"{share * relief:.4g}") for dtype, share in calibration.gemm.items()}
    return replace(calibration, gemm=shares)


def _machine(gpu: Gpu, calibration: Calibration) -> Machine:
    return machine_of.__wrapped__(gpu, calibration, load_runtime("huggingface"), "bf16", accumulating=False)


def _step(row: Row) -> MeasuredStep:
    runtime = _runtime(row["norm"])
    heads, vocabulary = int(row["heads"]), int(row["vocabulary"])
    model = Model(
        name="stack", layers=int(row["layers"]), hidden=int(row["hidden"]), heads=heads,
        kv_heads=int(row["kv_heads"]), ffn=int(row["ffn"]), vocab=vocabulary or 32000,
        head_size=int(row["dim"] or row["hidden"] // heads),
    )  # fmt: skip
    strategy = Strategy(
        zero=0, micro_batch=int(row["batch"]), global_batch=int(row["batch"]), seq=int(row["seq"]),
        master="autocast" if row["autocast"] else "pure", runtime="huggingface",
    )  # fmt: skip
    label = f"{row['phase']} of {row['layers']} layers of {row['hidden']}, {row['norm']} norms"
    label += ", autocast" if row["autocast"] else ""
    shard = shard_of(model, strategy, runtime)
    return MeasuredStep(label, row["phase"], shard, model.layers, bool(vocabulary), row["seconds"])


def _runtime(norm: Literal["eager", "native"]) -> Runtime:
    runtime = load_runtime("huggingface")
    return replace(runtime, kernels=replace(runtime.kernels, norm=norm))


def _seconds(step: MeasuredStep, machine: Machine) -> float:
    layer = layer_afresh(step.shard, LayerKind(), machine, _GROUPS)
    blocks = [layer] * step.layers
    if step.head:
        blocks.append(head_block.__wrapped__(step.shard, machine, _GROUPS, 0.0, own_weights=True))
    return sum(_pass(block, step.phase) for block in blocks)


def _pass(block: Block, phase: str) -> float:
    back = combined(block.i, block.w).total
    return {"forward": block.f.total, "backward": back, "both": block.f.total + back}[phase]
