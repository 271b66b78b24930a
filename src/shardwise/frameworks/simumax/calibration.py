"""The measured efficiencies of a SimuMax system file as the calibration that comes with its cluster.

SimuMax's time of an operator is flops / (peak x efficiency), the efficiency that of the exact shape or else the
operator's mean; nothing else is lost. Attention is credited with the full square of scores, ours with the causal half.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardwise.frameworks.simumax.system import MemoryRate, NetworkEfficiency, OperatorEfficiency, SimumaxEfficiency
from shardwise.inputs.calibration import Calibration, CollectiveKind, Reach

_PASSES = {"TN": "F", "NN": "I", "NT": "W", "fwd": "F", "bwd_grad_act": "I", "bwd_grad_w": "W"}
_GEMM = re.compile(r"b=1, m=(\d+), k=(\d+), n=(\d+), layout=(TN|NN|NT)(?:, accumulate=\w+, out_dtype=(\w+))?")
_GROUPED = re.compile(r"ng=(\d+), M=(\d+), N=(\d+), K=(\d+), dtype=bf16.*main_grad_dtype=fp32, stage=(\w+)")
_ATTENTION = re.compile(
    r"batch=(\d+), seq_len=(\d+), head_num=(\d+), kv_head_num=(\d+), qk_head_dim=(\d+), v_head_dim=(\d+)"
    r"(?:, qkv_contiguous=True)?"
)
_KINDS: dict[CollectiveKind, str] = {
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-reduce": "all_reduce",
    "all-to-all": "all2all",
    "send": "p2p",
}
_SIZES = tuple(2**power for power in range(1, 13))
Nets = tuple[tuple[str, int, NetworkEfficiency], ...]
"""Name of our level, ranks that groups on it lie within (0: any), and the network; the nearest first."""


def calibration_of(
    name: str, efficiency: SimumaxEfficiency, nets: Nets, rates: dict[str, float], notes: list[str]
) -> Calibration:
    """`rates`: bytes per second of our levels, of which shares are taken."""
    operators = efficiency.operators
    peak = operators["default"].peak
    matmul, grouped = _share(operators, "matmul", peak), _share(operators, "group_matmul", peak)
    forward, backward = (_share(operators, f"sdp_{name}", peak) / 2 for name in ("fwd", "bwd"))
    gemm = {"bf16": matmul, "fp16": matmul}
    if "fp8_matmul" in operators:
        gemm["fp8"] = operators["fp8_matmul"].fallback
    memory = efficiency.memory["default"]
    return Calibration(
        name=name, source=f"the efficiencies of SimuMax's system file {name}", gemm=gemm, gemm_fixed=0.0,
        grouped=grouped / matmul, bandwidth=memory.efficiency, kernel_fixed=memory.latency,
        attention=(forward, backward), flash2=(forward, backward), flash1=(forward, backward),
        collectives=tuple(reach for level, within, net in nets for reach in _reaches(level, within, net, rates[level])),
        average=True, shapes=_shapes(operators, peak, notes), operators=_memory_bound(efficiency.memory),
    )  # fmt: skip


def _memory_bound(memory: dict[str, MemoryRate]) -> dict[str, tuple[float, float]]:
    """SimuMax's bytes of an operator as a streaming kernel's: those that it would move in the operator's time.

    Its permute and its unpermute move the routed tokens three times, and so in backward; a logit is 4 bytes each way in
    a fused loss, 38 and 14 in one of pieces.
    """
    usual = memory["default"].efficiency * memory["default"].rate

    def streamed(name: str, moved: float) -> float:
        return moved * usual / (memory[name].efficiency * memory[name].rate)

    found: dict[str, tuple[float, float]] = {}
    if {"permute_fwd", "permute_bwd"} <= memory.keys():
        found = dict.fromkeys(("permute", "combine"), (streamed("permute_fwd", 3), streamed("permute_bwd", 3)))
    for name, kind, (forward, backward) in (("ce_fusion", "fused", (4, 4)), ("ce", "in-place", (38, 14))):
        if name in memory:
            found[f"{kind} loss"] = streamed(name, forward), streamed(name, backward)
    return found


def _share(operators: dict[str, OperatorEfficiency], name: str, peak: float) -> float:
    """The mean share of the 16-bit peak; an operator without an entry is SimuMax's `default`."""
    own = operators.get(name, operators["default"])
    return own.fallback * own.peak / peak


def _shapes(operators: dict[str, OperatorEfficiency], peak: float, notes: list[str]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    left: list[str] = []
    for name, readers in (("matmul", _gemm), ("group_matmul", _grouped), ("sdp_fwd", _sdp), ("sdp_bwd", _sdp)):
        own = operators.get(name)
        for text, share in (own.table if own else {}).items():
            key, scale = readers(text, name)
            if key:
                found.setdefault(key, []).append(share * scale * own.peak / peak)  # type: ignore[union-attr]
            else:
                left.append(f"{name} {text} = {share:g}")
    left += [f"{name} {text} = {share:g}" for name in operators if name.startswith("fp8") or name == "default"
             for text, share in operators[name].table.items()]  # fmt: skip
    if left:
        more = f" and {len(left) - 1:,} more" if len(left) > 1 else ""
        notes.append(f"measured shapes that no kernel here has, so that the mean counts for them: {left[0]}{more}")
    return {key: sum(shares) / len(shares) for key, shares in found.items()}


def _gemm(text: str, _: str) -> tuple[str, float]:
    """Rows, columns and depth of the product itself; gradients are added up in fp32."""
    match = _GEMM.fullmatch(text)
    if not match or (match[4] == "NT" and match[5] == "bf16"):
        return "", 1.0
    return f"gemm {_PASSES[match[4]]} {match[1]} {match[3]} {match[2]}", 1.0


def _grouped(text: str, _: str) -> tuple[str, float]:
    match = _GROUPED.match(text)
    if not match or match[5] not in _PASSES:
        return "", 1.0
    return f"grouped {_PASSES[match[5]]} {match[1]} {match[3]} {match[4]} {match[2]}", 1.0


def _sdp(text: str, name: str) -> tuple[str, float]:
    """The full square is 2 (forward) or 5 (backward) products of the mean head size, ours the causal half."""
    match = _ATTENTION.fullmatch(text)
    if not match:
        return "", 1.0
    batch, seq, heads, kv_heads, qk, v = map(int, match.groups())
    ours, theirs = (qk + v, 2 * (qk + v)) if name == "sdp_fwd" else (3 * qk + 2 * v, 5 * (qk + v))
    phase = "F" if name == "sdp_fwd" else "I"
    return f"attention {phase} {batch * heads} {batch * kv_heads} {seq} {qk} {v}", ours / theirs


def _reaches(level: str, within: int, net: NetworkEfficiency, rate: float) -> Iterator[Reach]:
    """Entries for sizes of their own before the one for all."""
    for kind, name in _KINDS.items():
        own = net.collectives.get(name)
        if own is None:
            continue
        sizes = sorted({*own.fixed_by_group, *own.rate_by_group, *(_SIZES if kind == "all-to-all" else ())})
        for size in (*sizes, 0):
            # every peer is a step of SimuMax's all-to-all, of ours the logarithm of their number
            steps = own.latency * (size - 1) if size and kind == "all-to-all" else 0.0
            yield Reach(
                level=level, kind=kind, within=within, size=size,
                share=(own.rate_by_group.get(size) or net.rate * own.efficiency) / rate,
                latency=0.0 if steps else own.latency, fixed=own.fixed_by_group.get(size, own.fixed) + steps,
            )  # fmt: skip
