"""The mixture-of-experts block on one rank: router, dispatch, experts, combine, shared expert."""

from __future__ import annotations

from shardwise.inputs.model import Moe
from shardwise.ops.mlp import activation, dense_ffn
from shardwise.ops.op import Comm, Op
from shardwise.ops.parts import norm, residual_add
from shardwise.ops.shard import Shard


def moe_block(shard: Shard) -> list[Op]:
    """The expert block with its norm and its residual addition."""
    moe = shard.model.moe
    if moe is None:
        message = "an expert block needs a model with moe"
        raise TypeError(message)
    ops = [norm(shard, "norm", "mlp-norm"), _router(shard, moe), _permute(shard, moe)]
    ops += _experts(shard, moe)
    ops.append(_combine(shard, moe))
    if moe.shared_ffn:
        ops += dense_ffn(shard, moe.shared_ffn, "mlp", "moe-act", "shared ")
    ops.append(residual_add(shard, "residual", "mlp"))
    return ops


def local_tokens(shard: Shard) -> float:
    """Tokens of this rank that enter the router: sequence parallel cuts them by tp."""
    return shard.tokens / (shard.tp if shard.sp else 1)


def routed_tokens(shard: Shard, moe: Moe) -> float:
    """Token copies that this rank's experts work on: the busiest rank's, or the padded capacity."""
    spread = local_tokens(shard) * moe.top_k * shard.etp
    factor = moe.capacity or (moe.imbalance if shard.ep > 1 else 1.0)
    return spread * factor


def _router(shard: Shard, moe: Moe) -> Op:
    tokens, hidden = local_tokens(shard), shard.model.hidden
    logits = tokens * moe.experts
    return Op(
        "router",
        "mlp",
        "gemm",
        (tokens, moe.experts, hidden),
        kernels_f=10.0,
        kernels_b=14.0,
        kept=shard.hidden + 8.0 * logits,
        extra_f=12.0 * logits,
        extra_b=2 * shard.residual + 12.0 * logits,
        params=hidden * moe.experts + (moe.experts if moe.router_bias else 0),
    )


def _permute(shard: Shard, moe: Moe) -> Op:
    """Sorting tokens by expert, and the dispatch over expert parallel ranks."""
    copies = local_tokens(shard) * moe.top_k * shard.model.hidden * shard.element
    received = routed_tokens(shard, moe) * shard.model.hidden * shard.element
    comms = _exchange(shard, copies, received)
    passes = 2.0 if shard.ep > 1 else 1.0
    eager = shard.runtime.kernels.activation == "eager"
    return Op(
        "permute",
        "mlp",
        "memory",
        # eager: the router's top-k and sorts take about 0.15 ms, and gathering's gradient is an indexed sum at a sixth
        # of streaming speed (H200 probe)
        bytes_f=passes * 2 * copies + (6e8 if eager else 0.0),
        bytes_b=(11.0 if eager else passes * 2) * copies + shard.residual,
        kernels_f=5.0 * passes,
        kernels_b=4.0 * passes,
        extra_f=copies + received,
        extra_b=2 * shard.residual + copies + received,
        comms=comms,
    )


def _exchange(shard: Shard, copies: float, received: float) -> tuple[Comm, ...]:
    comms: list[Comm] = []
    if shard.ep > 1:
        comms += [Comm("all-to-all", "ep", copies, "F"), Comm("all-to-all", "ep", copies, "I")]
    if shard.etp > 1:
        comms += [Comm("all-gather", "etp", received, "F"), Comm("reduce-scatter", "etp", received, "I")]
    return tuple(comms)


def _experts(shard: Shard, moe: Moe) -> list[Op]:
    model, element = shard.model, shard.element
    tokens, inner = routed_tokens(shard, moe), moe.expert_ffn / shard.etp
    gate = 2 if model.gated else 1
    groups = moe.experts / shard.ep
    wide, hidden = element * tokens * inner, element * tokens * model.hidden
    first = _grouped(shard, "expert up", groups, tokens, model.hidden, gate * inner, hidden, shard.residual, moe)
    second = _grouped(shard, "expert down", groups, tokens, inner, model.hidden, wide, shard.residual, moe)
    middle = activation(shard, tokens * inner, "moe-act", "expert ", shard.residual, halves=True)
    return [first, *middle, second]


def _grouped(
    shard: Shard,
    name: str,
    groups: float,
    rows: float,
    inputs: float,
    outputs: float,
    kept: float,
    live: float,
    moe: Moe,
) -> Op:
    weights = groups * inputs * outputs
    element = shard.element
    return Op(
        name,
        "mlp",
        "grouped",
        (rows, outputs, inputs, groups),
        kernels_f=2.0,
        kernels_b=4.0,
        kept=kept + (2.0 * weights if shard.autocast else 0.0),
        extra_f=element * rows * outputs,
        extra_b=live + element * rows * (inputs + outputs) + weights * shard.grad_temporary,
        params=weights + (groups * outputs if moe.expert_bias else 0.0),
        expert=True,
    )


def _combine(shard: Shard, moe: Moe) -> Op:
    """Returning the experts' outputs, scaling them by the router's weights and adding them up per token."""
    copies = local_tokens(shard) * moe.top_k * shard.model.hidden * shard.element
    received = routed_tokens(shard, moe) * shard.model.hidden * shard.element
    comms: list[Comm] = []
    if shard.ep > 1:
        comms += [Comm("all-to-all", "ep", copies, "F"), Comm("all-to-all", "ep", copies, "I")]
    if shard.etp > 1:
        comms += [Comm("reduce-scatter", "etp", received, "F"), Comm("all-gather", "etp", received, "I")]
    kept = copies if shard.runtime.kernels.expert_output_kept else 0.0
    eager = shard.runtime.kernels.activation == "eager"
    passes = 2.0 if shard.ep > 1 else 1.0
    return Op(
        "combine",
        "mlp",
        "memory",
        # eager: three products with a broadcast weight each way, at 40% of streaming speed
        bytes_f=(16.0 if eager else passes * 2) * copies + shard.residual,
        bytes_b=(16.0 if eager else passes * 3) * copies,
        kernels_f=4.0 * passes,
        kernels_b=5.0 * passes,
        kept=kept,
        extra_f=copies + shard.residual,
        extra_b=shard.residual + 2 * copies,
        comms=tuple(comms),
    )
