"""Seconds of kernels: matrix products, attention and memory-bound operators on one GPU.

    product     flops / (peak x share) x (1 + depth0 / depth) x waves, at least its traffic, plus a fixed cost
    attention   flops / (peak x share x s / (s + half)), slower with few blocks of queries
    scan        flops / (peak x share), at least its traffic, plus a fixed cost per kernel
    memory      bytes / (bandwidth x share), plus a fixed cost per kernel

Byte counts of memory-bound operators are weighted: a kernel that reaches half of streaming speed counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import ceil, log2, sqrt
from operator import itemgetter, sub
from typing import NamedTuple

from shardwise.errors import Fault, InputError
from shardwise.inputs.assumed import ASSUMED
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.cluster import Gpu
from shardwise.inputs.formats import format_of
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.site import USUAL, Site
from shardwise.ops.embedding import PIECES_LOSS
from shardwise.ops.op import Op

# Tiles of a product's result and blocks of an attention's queries: 128 x 128 and its like (NVIDIA, Matrix
# Multiplication Background User's Guide, tile sizes); the calibrations were fitted with it.
TILE = 128.0
# Attention kernels are built for heads of 64 and 128, and one between them pays for the next (H200 probe: over 2048
# tokens, heads of 80 reach 35% of the peak and those of 128 49%).
HEAD = 64.0
# Attention with an explicit mask over the same square without one, both passes (a compiled step on an H200).
EXPLICIT_MASK = (2.0, 1.5)
# Compute units that few blocks leave idle, in forward more than in backward (fitted to the H200 probe: 8 heads of 4096
# tokens reach 38 and 31% of the peak, 32 heads 55 and 46%).
IDLE = (2.0, 0.7)
# A product that adds into an fp32 buffer over a plain one (H200 probe: 606 against 663 TFLOP/s).
ACCUMULATING = 1.09
# An operand of odd width over a result of odd width (H200 probe: 141 to 149 TFLOP/s against 95 to 104).
READ_ODD = 0.7
# Adding a gradient to its buffer, weighted bytes per weight (H200 probe): 16 bit to fp32 14.8 to 15.3, at two thirds of
# streaming speed; 16 bit to 16 bit 5.8. A gradient that is made and not added to is next to nothing, yet no fused sum.
ADD_WIDE, ADD_NARROW, ADD_NOTHING = 15.0, 6.0, 1e-9
# Weight gradients of experts (H200 probe): one of few tokens takes this many over its tokens longer than a deep one,
# less what is hidden behind the next expert's.
GRADIENT_DEPTH, GRADIENT_HIDDEN = 270.0, 0.12

# Modules that CUDA graphs replay, and how much of the framework's own code of a layer goes with them.
_ATTENTION = frozenset({"attention-norm", "attention", "core-attention", "mla-up"})
GRAPHED: dict[str, tuple[frozenset[str], float]] = {
    "none": (frozenset(), 0.0),
    "attention": (_ATTENTION, ASSUMED.graphed_attention),
    "layer": (_ATTENTION | {"mlp-norm", "mlp", "activation", "moe-act", "mtp"}, 1.0),
}
# What our operators move, to be held against what was measured of them: bytes a logit, and a byte of routed tokens.
OWN_BYTES = {
    "in-place loss": PIECES_LOSS, "fused loss": ASSUMED.fused_loss, "permute": (4.0, 4.0), "combine": (4.0, 6.0),
}  # fmt: skip
# Octaves, all sizes together, within which a shape that was not measured runs as the nearest that was: four times the
# rows, or twice the rows and half the columns. Further off its kind's mean says more.
NEAR = 2.0
# Sizes that a shape's text has; and what is remembered of the shapes asked for.
SIZES = {"gemm": 3, "grouped": 4, "attention": 5}
MOST_DIGITS, MOST_SHAPES = 16, 65536


class Shapes:
    """Speeds of shapes that were measured one by one; a shape that was not has that of the nearest."""

    def __init__(self, speeds: Mapping[str, float]) -> None:
        """`speeds`: by the text of a shape, over the speed that its kind has otherwise."""
        self._speeds: dict[tuple[str, str], list[tuple[tuple[float, ...], float]]] = {}
        self._known: dict[tuple[object, ...], float] = {}
        for key, speed in speeds.items():
            kind, phase, *sizes = key.split()
            place = tuple(log2(float(size)) for size in sizes)
            self._speeds.setdefault((kind, phase), []).append((place, speed))

    def speed(self, kind: str, phase: str, *sizes: float) -> float:
        """1 where nothing near was measured: the speed of its kind."""
        if not self._speeds:
            return 1.0
        key = (kind, phase, *sizes)
        if key not in self._known:
            if len(self._known) > MOST_SHAPES:
                self._known.clear()
            self._known[key] = self._nearest((kind, phase), tuple(log2(max(size, 1.0)) for size in sizes))
        return self._known[key]

    def _nearest(self, kind: tuple[str, str], place: tuple[float, ...]) -> float:
        away = ((sum(map(abs, map(sub, place, at))), speed) for at, speed in self._speeds.get(kind, ()))
        octaves, speed = min(away, default=(NEAR, 1.0), key=itemgetter(0))
        return speed if octaves < NEAR else 1.0


class Machine(NamedTuple):
    """The numbers of one GPU under one runtime and number format that kernel times are made of."""

    gemm: float
    """Sustained operations per second of matrix products in the compute format."""
    wide: float
    """The same in 16 bit, for layers that stay there under fp8."""
    single: float
    """The same in fp32, for products that autocast leaves alone."""
    attention_f: float
    attention_b: float
    half_f: float
    half_b: float
    narrow: float
    bandwidth: float
    depth: float
    gemm_fixed: float
    kernel_fixed: float
    wave: float
    misaligned: float
    grouped: float
    sms: float
    element: float
    """Bytes of an operand."""
    collective: float
    accumulated: float
    """Bytes that a product moves to add a weight's gradient to its buffer."""
    grad_add: float
    """Bytes of traffic per weight that adding its gradient to the buffer takes; 0: fused into the product."""
    launch_f: float
    launch_b: float
    layer_f: float
    layer_b: float
    experts_f: float
    experts_b: float
    turned: bool
    """8-bit operands are multiplied along their rows only: turned copies are made."""
    graphed: frozenset[str]
    """Modules whose kernels CUDA graphs replay: the host does not launch them."""
    average: bool
    """Shares hold for every shape: nothing more is lost to depth, waves, alignment or few blocks."""
    shapes: Shapes
    """Speeds of shapes that were measured, over the speed that their kind has otherwise."""
    operators: Mapping[str, tuple[float, float]]
    """The same of memory-bound operators, both passes."""

    def __hash__(self) -> int:
        """Of the fields that tell machines apart; caches hash one for every layer."""
        return hash((self.gemm, self.attention_f, self.bandwidth, self.launch_f))


class KernelTimes(NamedTuple):
    """Seconds of the forward pass, the gradient of inputs and the gradient of weights, on the device."""

    f: float
    i: float
    w: float


@lru_cache(maxsize=256)
def machine_of(
    gpu: Gpu, calibration: Calibration, runtime: Runtime, dtype: str, scaling: str = "tensor",
    *, accumulating: bool, graphs: str = "none", site: Site = USUAL, gpus: int = 1, gradient: float = 4.0, tp: int = 1,
) -> Machine:  # fmt: skip
    """Gather a GPU's peaks, its calibration and its runtime into the numbers that the formulas use.

    `accumulating`: an iteration has several micro batches, so gradients are added up. `graphs`: what CUDA graphs cover.
    `gradient`: bytes of one. `gpus`: of the run; all wait for the slowest. `tp`: of the layers.
    """
    narrow = format_of(dtype, scaling)
    wide = "bf16" if narrow else dtype
    slow, host = runtime.overheads.slowdown * site.slowdown * site.slowest(gpus), calibration.host * site.host
    names = (*(narrow.share if narrow else (dtype,)), "bf16")
    share = next((calibration.gemm[name] for name in names if name in calibration.gemm), ASSUMED.gemm_share)
    wide_share = calibration.gemm.get(wide, ASSUMED.gemm_share)
    generations = {"best": calibration.attention, "flash2": calibration.flash2, "flash1": calibration.flash1}
    flash = generations[runtime.kernels.attention]
    # attention kernels keep 16-bit operands under fp8; without any 16-bit format they are matrix products in fp32
    sixteen = gpu.peak("bf16") if wide != "fp32" else gpu.peak("fp32")
    over = runtime.overheads
    own = host / (over.tensor[runtime.kernels.compiled] if tp > 1 else 1.0)
    graphed, covered = GRAPHED[graphs]
    slow_gemm, slow_attention, slow_memory = (
        slow * calibration.corrections.get(kind, 1.0) for kind in ("gemm", "attention", "memory")
    )
    return Machine(
        gemm=gpu.peak(narrow.peak if narrow else dtype) * share / slow_gemm,
        wide=gpu.peak(wide) * wide_share / slow_gemm,
        single=gpu.peak("fp32") * calibration.gemm.get("fp32", ASSUMED.gemm_share) / slow_gemm,
        attention_f=sixteen * flash[0] / slow_attention,
        attention_b=sixteen * flash[1] / slow_attention,
        half_f=calibration.attention_half[0],
        half_b=calibration.attention_half[1],
        # the first flash kernels were made for narrow heads
        narrow=1.0 if runtime.kernels.attention == "flash1" else calibration.narrow_head,
        bandwidth=gpu.bandwidth * calibration.bandwidth / slow_memory,
        depth=calibration.gemm_depth,
        gemm_fixed=calibration.gemm_fixed,
        kernel_fixed=calibration.kernel_fixed,
        wave=calibration.wave,
        misaligned=calibration.misaligned,
        grouped=calibration.grouped,
        sms=float(gpu.sms),
        element=4.0 if wide == "fp32" else 2.0,
        collective=over.collective / host,
        accumulated=2.0 * gradient,
        grad_add=_grad_add(runtime, gradient, accumulating=accumulating),
        launch_f=over.launch / own,
        launch_b=over.launch_backward / own,
        layer_f=over.layer / own * (1 - covered),
        layer_b=over.layer_backward / own * (1 - covered),
        experts_f=over.experts / host * (1 - covered),
        experts_b=over.experts_backward / host * (1 - covered),
        turned="fp4" not in gpu.flops,
        graphed=graphed,
        average=calibration.average,
        shapes=_shapes(calibration, wide_share, flash),
        operators=_operators(calibration, runtime),
    )


def _operators(calibration: Calibration, runtime: Runtime) -> dict[str, tuple[float, float]]:
    """Measured operators by the name that they have in a layer; those of eager runtimes are chains of other kernels."""
    names = {"loss": f"{runtime.kernels.loss} loss"}
    if runtime.kernels.activation != "eager":
        names |= {"permute": "permute", "combine": "combine"}
    found = ((name, OWN_BYTES.get(key), calibration.operators.get(key)) for name, key in names.items())
    return {name: (ours[0] / own[0], ours[1] / own[1]) for name, ours, own in found if ours and own}


def _shapes(calibration: Calibration, gemm: float, flash: tuple[float, float]) -> Shapes:
    """Measured shares over those of their kind; keys begin with the kind of kernel and of pass."""
    usual = {
        "gemm": (gemm, gemm, gemm),
        "grouped": (gemm * calibration.grouped,) * 3,
        "attention": (*flash, flash[1]),
    }
    found = {}
    for key, share in calibration.shapes.items():
        kind, phase, *sizes = (*key.split(), "", "")
        numbers = [size for size in sizes if size]
        if kind not in usual or phase not in {"F", "I", "W"} or len(numbers) != SIZES[kind] or not _sizes(numbers):
            message = f"{key[:60]!r} is no shape; write for example {shape_key('gemm', 'F', 4096, 10240, 8192)!r}"
            raise InputError(Fault("cluster.gpu.calibration.shapes", message))
        found[key] = share / usual[kind]["FIW".index(phase)]
    return Shapes(found)


def _sizes(texts: list[str]) -> bool:
    return all(text.isascii() and text.isdigit() and 0 < len(text) < MOST_DIGITS and int(text) for text in texts)


def shape_key(kind: str, phase: str, *sizes: float) -> str:
    """How a measured shape is named: `gemm F 4096 10240 8192` (rows, columns, depth of the pass's own product)."""
    return " ".join((kind, phase, *(f"{size:.0f}" for size in sizes)))


def op_times(op: Op, machine: Machine, *, narrow: bool = False, single: bool = False) -> KernelTimes:
    """Device seconds of an operator. `narrow`: its products run in the compute format, else in 16 bit; `single`: in
    fp32.
    """
    if op.kind == "memory":
        bandwidth, fixed = machine.bandwidth, machine.kernel_fixed
        f, b = machine.operators.get(op.name, (1.0, 1.0))
        forward = op.bytes_f / (bandwidth * f) + op.kernels_f * fixed
        return KernelTimes(forward, op.bytes_b / (bandwidth * b) + op.kernels_b * fixed, 0.0)
    if op.kind == "attention":
        return _attention(op, machine)
    if op.kind == "scan":
        return _scan(op, machine)
    rate = machine.gemm if narrow else machine.single if single else machine.wide
    rows, columns, depth = op.shape[0], op.shape[1], op.shape[2]
    if op.kind == "grouped":
        return _grouped(op, machine, rate)
    gradient = _product("W", columns, depth, rows, machine, rate)
    if not machine.average:
        gradient *= _unaligned(columns, machine, READ_ODD)
    if machine.grad_add:
        gradient += columns * depth * machine.grad_add / machine.bandwidth
    elif not machine.average:
        gradient *= ACCUMULATING
    beside_f, beside_b = op.bytes_f / machine.bandwidth, op.bytes_b / machine.bandwidth
    return KernelTimes(
        _product("F", rows, columns, depth, machine, rate) + beside_f,
        _product("I", rows, depth, columns, machine, rate) + beside_b,
        gradient,
    )


def _scan(op: Op, machine: Machine) -> KernelTimes:
    """A recurrence in chunks: products of small matrices, or what it moves, whichever takes longer."""
    forward, backward, _ = op.flops()
    rate = machine.wide * ASSUMED.scan
    return KernelTimes(
        max(forward / rate, op.bytes_f / machine.bandwidth) + op.kernels_f * machine.kernel_fixed,
        max(backward / rate, op.bytes_b / machine.bandwidth) + op.kernels_b * machine.kernel_fixed,
        0.0,
    )


def _grad_add(runtime: Runtime, gradient: float, *, accumulating: bool) -> float:
    """A lazy gradient is only added to from the second pass on."""
    if runtime.kernels.weight_grad_fusion:
        return 0.0
    lazy = runtime.memory.gradients != "buffer"
    if lazy and not accumulating:
        return ADD_NOTHING
    return ADD_NARROW if (gradient if lazy else runtime.memory.gradient_bytes) == 2.0 else ADD_WIDE


def _product(phase: str, rows: float, columns: float, depth: float, machine: Machine, rate: float) -> float:
    """Seconds of one matrix product with a rows x columns result."""
    traffic = machine.element * operands(rows, columns, depth) / machine.bandwidth
    if machine.average:
        speed = rate * machine.shapes.speed("gemm", phase, rows, columns, depth)
        return max(traffic, 2.0 * rows * columns * depth / speed) + machine.gemm_fixed
    tiles = ceil(rows / TILE) * ceil(columns / TILE)
    waves = tiles / machine.sms
    lost = 1.0 + machine.wave * (ceil(waves) - waves) / waves
    compute = 2.0 * rows * columns * depth / rate * (1.0 + machine.depth / depth) * lost
    # a gradient of weights sums over tokens, of which no row is made: their number moves no row's start
    summed = 1.0 if phase == "W" else _unaligned(depth, machine, READ_ODD)
    compute *= max(_unaligned(columns, machine, 1.0), summed)
    return (max(traffic, compute)) + machine.gemm_fixed


def operands(rows: float, columns: float, depth: float, groups: float = 1.0) -> float:
    """Elements of a product's operands and its result; of a grouped one, every group has its weights."""
    return rows * columns + rows * depth + groups * columns * depth


def _unaligned(width: float, machine: Machine, odd: float) -> float:
    """Slowdown of a product whose rows start at addresses that are no multiples of 16 bytes."""
    if width % 8 == 0:
        return 1.0
    return max(1.0, machine.misaligned * odd) if width % 2 else sqrt(machine.misaligned)


def _grouped(op: Op, machine: Machine, rate: float) -> KernelTimes:
    rows, columns, depth, groups = op.shape
    each = max(rows / groups, 1.0)
    rate *= machine.grouped
    traffic = machine.element * operands(rows, columns, depth, groups) / machine.bandwidth
    if machine.average:
        speeds = [machine.shapes.speed("grouped", phase, groups, columns, depth, each) for phase in "FIW"]
        plain = 2.0 * rows * columns * depth / rate
        seconds = (max(traffic, plain / speed) + machine.gemm_fixed for speed in speeds)
        return KernelTimes(*seconds)
    tiles = groups * ceil(each / TILE) * ceil(columns / TILE)
    # experts never get equal numbers of tokens: each leaves half of its last tile empty on average (H200, fresh
    # routers: 550 TFLOP/s with 256 tokens an expert, 645 with 768)
    filled = each / (each + TILE / 2)
    compute = 2.0 * rows * columns * depth / rate * (1.0 + machine.depth / depth) / max(filled, ASSUMED.least_filled)
    waves = tiles / machine.sms
    compute *= 1.0 + machine.wave * (ceil(waves) - waves) / waves
    # the weight gradient's depth is the tokens of one expert
    gradient = 2.0 * rows * columns * depth / rate * (1.0 + max(0.0, GRADIENT_DEPTH / each - GRADIENT_HIDDEN))
    # few tokens leave little behind which the sums of a fused kernel could be read and written
    gradient += groups * columns * depth * (machine.grad_add or machine.accumulated) / machine.bandwidth
    fixed = machine.gemm_fixed
    once = max(compute, traffic) + fixed
    beside_f, beside_b = op.bytes_f / machine.bandwidth, op.bytes_b / machine.bandwidth
    return KernelTimes(once + beside_f, once + beside_b, max(gradient, traffic) + fixed)


def _attention(op: Op, machine: Machine) -> KernelTimes:
    forward, backward, _ = op.flops()
    queries, keys, size_qk, share = op.shape[1], op.shape[2], op.shape[3], op.shape[5]
    if op.bytes_f:  # scores stored: two batched products and a chain of memory-bound kernels
        chain = KernelTimes(op.bytes_f / machine.bandwidth, op.bytes_b / machine.bandwidth, 0.0)
        rate = machine.wide * ASSUMED.scores_stored * min(1.0, size_qk / (2 * HEAD))
        backward *= 4.0 / 5.0  # scores are not computed again
        return KernelTimes(forward / rate + chain.f, backward / rate + chain.i, 0.0)
    if machine.average:
        sizes = (op.shape[0], op.shape[6] * op.shape[0], queries, size_qk, op.shape[4])
        f, b = (machine.shapes.speed("attention", phase, *sizes) for phase in "FI")
        return KernelTimes(forward / (machine.attention_f * f), backward / (machine.attention_b * b), 0.0)
    length = keys * share * 2.0 if share < 0.5 else min(queries, keys)
    slow = 1.0 if size_qk >= 2 * HEAD else machine.narrow + (1 - machine.narrow) * max(0.0, size_qk - HEAD) / HEAD
    slow *= size_qk / (ceil(size_qk / HEAD) * HEAD)
    causal = 1.0 if share <= 0.5 else ASSUMED.full_square
    masked_f, masked_b = EXPLICIT_MASK if op.masked else (1.0, 1.0)
    blocks = op.shape[0] * queries / TILE
    idle_f, idle_b = 1.0 + IDLE[0] * machine.sms / blocks, 1.0 + IDLE[1] * machine.sms / blocks
    return KernelTimes(
        masked_f * forward / (machine.attention_f * slow) * (1.0 + causal * machine.half_f / length) * idle_f,
        masked_b * backward / (machine.attention_b * slow) * (1.0 + causal * machine.half_b / length) * idle_b,
        0.0,
    )
