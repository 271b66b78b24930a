"""The dense feed-forward block on one rank, and the activation that experts share with it."""

from __future__ import annotations

from shardwise.ops.linear import Linear, linear, norm, residual_add, scaled
from shardwise.ops.op import Op
from shardwise.ops.shard import Shard

# A fused gate in backward over a streaming kernel: it joins two gradients while it computes (Megatron-LM with its own
# fusion on an H200: 1.8 and 2.0); experts have a factor of their own.
FUSED_GATE_BACK = 1.9
# GELU composed of plain kernels, weighted bytes per element and kernels (H200 probe: 8192 x 4096).
GELU_BYTES, GELU_KERNELS = (38.0, 58.0), (8.0, 11.0)
# Halves of one tensor, read with a stride, over two tensors (H200 probe, silu and product: 22 to 24 bytes per element
# of the result for 10 to 11, backward 38 to 42 for 17 to 19).
STRIDED = 2.4


def mlp(shard: Shard) -> list[Op]:
    """The feed-forward block with its norm and its residual addition."""
    model = shard.model
    ops = [norm(shard, "norm", "mlp-norm")] if model.norms_per_layer > 1 else []
    ops += dense_ffn(shard, model.ffn, "mlp", "activation")
    if model.norms_per_layer >= 4:
        ops.append(norm(shard, "post norm", "mlp-norm"))
    return [*ops, *scaled(shard, "mlp"), residual_add(shard, "residual", "mlp")]


def dense_ffn(shard: Shard, ffn: float, module: str, activation_module: str, prefix: str = "") -> list[Op]:
    """Two linear layers and the activation between them, `ffn` wide before tensor parallel cuts it."""
    model = shard.model
    inner = ffn / shard.tp
    gate = 2 if model.gated else 1
    kept, live, bias = 0.0 if prefix else shard.hidden, shard.residual, model.mlp_bias
    up = Linear(prefix + "up", module, model.hidden, gate * inner, "column", kept, live, bias, projections=gate)
    wide, live = shard.element * shard.tokens * inner, shard.residual if shard.sp else 0.0
    down = Linear(prefix + "down", module, inner, model.hidden, "row", wide, live, bias)
    middle = activation(shard, shard.tokens * inner, activation_module, prefix, shard.residual, bias=bias)
    return [linear(shard, up), *middle, linear(shard, down)]


def activation(
    shard: Shard, elements: float, module: str, prefix: str, live: float, *, bias: bool = False, halves: bool = False
) -> list[Op]:
    """The activation on `elements` values; a gated one reads twice as many, `halves` of one tensor or two tensors."""
    size = shard.element * elements
    kernels = shard.runtime.kernels
    if shard.model.gated and kernels.activation == "eager":
        return _eager_gated(size, module, prefix, live, halves=halves)
    gate = 2 if shard.model.gated else 1
    kept = gate * size
    if not shard.model.gated and kernels.activation == "eager":
        kept = (kernels.gelu_kept if shard.model.gelu_steps else 1.0) * size
    if kernels.activation == "compiled":
        kept = gate * size
    staging = min(8.0 * elements, kernels.reduce_staging) if bias else 0.0
    slow = FUSED_GATE_BACK if gate > 1 and not halves and kernels.activation == "fused" else 1.0
    composed = kernels.activation == "eager" and kernels.gelu_kept > 1 and shard.model.gelu_steps
    return [
        Op(
            prefix + "activation",
            module,
            "memory",
            bytes_f=GELU_BYTES[0] * elements if composed else (gate + 1) * size,
            bytes_b=GELU_BYTES[1] * elements
            if composed
            else (2 * gate + 1) * size * slow + (2 * size if bias else 0.0),
            kernels_f=GELU_KERNELS[0] if composed else 1.0,
            kernels_b=GELU_KERNELS[1] if composed else 1.0 + (1.0 if bias else 0.0),
            kept=kept,
            extra_f=size,
            extra_b=live + (gate + 1) * size + staging,
        )
    ]


def _eager_gated(size: float, module: str, prefix: str, live: float, *, halves: bool) -> list[Op]:
    """Silu, then the product with the up branch: two kernels, each keeping its inputs.

    Halves of one tensor are read with a stride, and concatenated in backward.
    """
    slow = STRIDED if halves else 1.0
    silu = Op(
        prefix + "silu",
        module,
        "memory",
        bytes_f=2 * size * slow,
        bytes_b=3 * size * slow,
        kernels_b=1.0,
        kept=size,
        extra_f=size,
        extra_b=live + 3 * size,
    )
    product = Op(
        prefix + "product",
        module,
        "memory",
        bytes_f=3 * size * slow,
        bytes_b=6 * size * slow,
        kept=2 * size,
        extra_f=size,
        extra_b=live + 3 * size,
    )
    return [silu, product]
