"""The mixture-of-experts block on one rank: router, dispatch, experts, combine, shared expert."""

from __future__ import annotations

from shardwise.inputs.assumed import ASSUMED
from shardwise.inputs.model import Moe
from shardwise.ops.linear import CAST, CAST_BACK, kept_operand, norm, quantised, residual_add
from shardwise.ops.mlp import activation, dense_ffn
from shardwise.ops.op import Collective, Comm, Op, Routing
from shardwise.ops.shard import Shard

# Eager experts (transformers 5.17 on an H200, kernel by kernel), weighted bytes per element, forward and backward.
# Dispatch: gather 4 and a mask 12; backward an indexed sum 12, mask and copy 16.
EAGER_DISPATCH = (15.6, 28.0)
# Masks of the widened tokens: a copy 4 and a fill 12 each way.
EAGER_MASK = (15.6, 15.8)
# Combine: mask and copy 16, fp32 product with the router's weight 18, gather back 9, sum 6; backward product 13,
# gradient of the weights 19, indexed sum 14, spread copy 9, mask and copy 16, zeros 4.
EAGER_COMBINE = (48.0, 75.0)
# The router's softmax, top-k, two sorts and counting: about 0.15 ms whatever the size.
EAGER_ROUTING = 6e8

# Launches that an expert's products take where each is launched for itself (Megatron with Transformer Engine on an
# H200: 1 kernel forth and 3 back for each of up and down; a layer takes the host 0.19 ms more for every expert, at
# 8.5 us a launch).
EXPERT_LAUNCHES = (4.0, 14.0)


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
        ops += [_shared_gate(shard)] if moe.shared_gate else []
    ops.append(residual_add(shard, "residual", "mlp"))
    return ops


def _shared_gate(shard: Shard) -> Op:
    """One number a token, out of the block's input, that the shared expert's output is multiplied by."""
    size = shard.hidden
    return Op(
        "shared gate", "mlp", "memory", bytes_f=4 * size, bytes_b=7 * size, kernels_f=3.0, kernels_b=5.0, kept=size,
        extra_f=size, extra_b=size, params=shard.model.hidden,
    )  # fmt: skip


def local_tokens(shard: Shard) -> float:
    """Tokens of this rank that enter the router: sequence parallel cuts them by tp."""
    return shard.tokens / (shard.tp if shard.sp else 1)


def routed_tokens(shard: Shard, moe: Moe) -> float:
    """Token copies that this rank's experts work on: the busiest rank's, or the padded capacity."""
    spread = local_tokens(shard) * moe.top_k * shard.etp
    return spread * (moe.capacity or moe.busiest(shard.ep))


def _router(shard: Shard, moe: Moe) -> Op:
    tokens, hidden = local_tokens(shard), shard.model.hidden
    logits = tokens * moe.experts
    kernels = ASSUMED.launches["router"]
    return Op(
        "router",
        "mlp",
        "gemm",
        (tokens, moe.experts, hidden),
        kernels_f=kernels[0],
        kernels_b=kernels[1],
        kept=shard.hidden + 8.0 * logits,
        extra_f=12.0 * logits,
        extra_b=2 * shard.residual + 12.0 * logits,
        params=hidden * moe.experts + (moe.experts if moe.router_bias else 0),
    )


def _permute(shard: Shard, moe: Moe) -> Op:
    """Sorting tokens by expert, and the dispatch over expert parallel ranks."""
    copies = local_tokens(shard) * moe.top_k * shard.model.hidden * shard.element
    received = routed_tokens(shard, moe) * shard.model.hidden * shard.element
    whole = _gathered(shard)
    comms = _exchange(shard, moe, received, back=False)
    passes = _sorts(shard)
    eager = shard.runtime.kernels.activation == "eager"
    elements = copies / shard.element
    kernels = ASSUMED.launches["permute"]
    return Op(
        "permute",
        "mlp",
        "memory",
        bytes_f=EAGER_DISPATCH[0] * elements + EAGER_ROUTING if eager else passes * 2 * copies,
        bytes_b=(EAGER_DISPATCH[1] * elements if eager else passes * 2 * copies) + shard.residual,
        kernels_f=kernels[0] * passes,
        kernels_b=kernels[1] * passes,
        extra_f=copies + received + whole,
        extra_b=2 * shard.residual + copies + received + whole,
        comms=comms,
    )


def _sorts(shard: Shard) -> float:
    """How often tokens are sorted on their way: by rank, and by expert there; some dispatchers sort as they send."""
    return 2.0 if shard.ep > 1 and shard.dispatcher == "all-to-all" else 1.0


def _gathered(shard: Shard) -> float:
    """Bytes of all tokens of the expert parallel ranks, where a dispatcher gathers them."""
    gathers = shard.ep > 1 and shard.dispatcher == "all-gather"
    return shard.ep * local_tokens(shard) * shard.model.hidden * shard.element if gathers else 0.0


def _exchange(shard: Shard, moe: Moe, received: float, *, back: bool) -> tuple[Comm, ...]:
    """Tokens to their experts (or back) in the forward pass, and their gradients the other way."""
    comms: list[Comm] = []
    to: Collective = "reduce-scatter" if back else "all-gather"
    fro: Collective = "all-gather" if back else "reduce-scatter"
    tokens = local_tokens(shard) * shard.model.hidden * shard.element
    if shard.ep > 1 and shard.dispatcher == "all-to-all":
        comms += [Comm("all-to-all", "ep", moe.top_k * tokens, phase) for phase in ("F", "I")]
    elif shard.ep > 1 and shard.dispatcher == "all-gather":
        comms += [Comm(to, "ep", shard.ep * tokens, "F"), Comm(fro, "ep", shard.ep * tokens, "I")]
    elif shard.ep > 1:
        routing = Routing(moe.experts, moe.top_k, moe.groups, moe.top_groups)
        comms += [Comm("dispatch", "ep", tokens, phase, routing) for phase in ("F", "I")]
    if shard.etp > 1:
        comms += [Comm(to, "etp", received, "F"), Comm(fro, "etp", received, "I")]
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
    if shard.runtime.kernels.activation == "eager":
        middle.insert(0, _mask(tokens * gate * inner))
    if not shard.fixed:
        slow_f, slow_b = shard.runtime.kernels.expert_activation
        middle = [op._replace(bytes_f=slow_f * op.bytes_f, bytes_b=slow_b * op.bytes_b) for op in middle]
    return [first, *middle, second]


def _mask(elements: float) -> Op:
    """Filling the rows of tokens that no expert took; a copy of passing life."""
    forward, backward = (weight * elements for weight in EAGER_MASK)
    return Op("expert mask", "moe-act", "memory", bytes_f=forward, bytes_b=backward, kernels_f=2.0, kernels_b=2.0)


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
    element, loop = shard.element, shard.runtime.kernels.expert_loop
    kernels, loops = (EXPERT_LAUNCHES, groups) if loop else (ASSUMED.launches["experts"], 1.0)
    made = quantised(shard, name, rows * inputs, rows * outputs, weights)
    return Op(
        name,
        "mlp",
        "grouped",
        (rows, outputs, inputs, groups),
        bytes_f=made.bytes_f + (CAST * weights if shard.casts_alone else 0.0),
        bytes_b=made.bytes_b + (CAST_BACK * weights if shard.casts_alone else 0.0),
        kernels_f=(kernels[0] + made.kernels) * loops,
        kernels_b=(kernels[1] + made.kernels) * loops,
        kept=kept_operand(shard, name, kept) + (2.0 * weights if shard.autocast else 0.0),
        extra_f=element * rows * outputs,
        extra_b=live + element * rows * (inputs + outputs) + weights * shard.grad_temporary,
        params=weights + (groups * outputs if moe.expert_bias else 0.0),
        expert=True,
    )


def _combine(shard: Shard, moe: Moe) -> Op:
    """Returning the experts' outputs, scaling them by the router's weights and adding them up per token."""
    copies = local_tokens(shard) * moe.top_k * shard.model.hidden * shard.element
    received = routed_tokens(shard, moe) * shard.model.hidden * shard.element
    kept = copies if shard.runtime.kernels.expert_output_kept else 0.0
    eager = shard.runtime.kernels.activation == "eager"
    passes = _sorts(shard)
    elements = copies / shard.element
    kernels = ASSUMED.launches["combine"]
    return Op(
        "combine",
        "mlp",
        "memory",
        bytes_f=(EAGER_COMBINE[0] * elements if eager else passes * 2 * copies) + shard.residual,
        bytes_b=EAGER_COMBINE[1] * elements if eager else passes * 3 * copies,
        kernels_f=kernels[0] * passes,
        kernels_b=kernels[1] * passes,
        kept=kept,
        extra_f=copies + shard.residual + _gathered(shard),
        extra_b=shard.residual + 2 * copies + _gathered(shard),
        comms=_exchange(shard, moe, received, back=True),
    )
