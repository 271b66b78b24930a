"""What stands before the first and after the last layer: embedding, final norm, output layer, loss."""

from __future__ import annotations

from shardwise.ops.linear import linear, norm
from shardwise.ops.op import Comm, Op
from shardwise.ops.shard import Shard


def padded_vocab(shard: Shard) -> float:
    """Vocabulary after padding, per rank."""
    multiple = shard.runtime.kernels.vocab_multiple * shard.tp
    return -(-shard.model.vocab // multiple) * multiple / shard.tp


def embedding(shard: Shard) -> list[Op]:
    """Token (and position) look-up; under sequence parallel its partial sums are reduce-scattered."""
    model = shard.model
    width = model.embedding_size or model.hidden
    rows = padded_vocab(shard)
    table = rows * width
    stream = shard.residual
    comms: tuple[Comm, ...] = ()
    if shard.tp > 1:
        kind = "reduce-scatter" if shard.sp else "all-reduce"
        back = (Comm("all-gather", "tp", shard.gathered, "I"),) if shard.sp else ()
        comms = (Comm(kind, "tp", shard.gathered, "F"), *back)  # type: ignore[arg-type]
    params = table + (model.max_positions * model.hidden if model.position == "learned" else 0)
    params += 2 * width * model.hidden if model.embedding_size else 0
    op = Op(
        "embedding",
        "embedding",
        "memory",
        bytes_f=2 * shard.gathered + stream,
        # the gradient of the table: zeros, a sort of the tokens and a scatter (H200 probe: about 0.3 ms of its own)
        bytes_b=6 * shard.gathered + 1.5 * shard.weight * table + 1.2e9,
        kernels_f=3.0,
        kernels_b=6.0,
        kept=16.0 * shard.tokens,
        extra_f=shard.gathered + stream,
        extra_b=shard.gathered + stream + shard.grad_temporary * table,
        params=params,
        comms=comms,
    )
    return [op, norm(shard, "embedding norm", "embedding")] if model.embedding_norm else [op]


def head(shard: Shard, *, own_weights: bool) -> list[Op]:
    """Final norm, output layer and loss; `own_weights`: its matrix lives here and is not the embedding's."""
    model = shard.model
    output = linear(
        shard,
        "output layer",
        "head",
        rows=shard.tokens,
        inputs=model.embedding_size or model.hidden,
        outputs=padded_vocab(shard),
        kept=shard.hidden,
        split="column",
        bias=model.head_bias,
        live=0.0,
    )
    if not own_weights:
        output = output._replace(params=padded_vocab(shard) if model.head_bias else 0.0)
    return [norm(shard, "final norm", "head"), output, loss(shard)]


def loss(shard: Shard) -> Op:
    """Cross entropy over the (sharded) vocabulary; logits L = tokens x vocabulary / tp."""
    logits = shard.tokens * padded_vocab(shard)
    kept, extra_f, extra_b, passes, kernels = _LOSS[shard.runtime.kernels.loss]
    comms: tuple[Comm, ...] = (Comm("all-reduce", "tp", 12.0 * shard.tokens, "F"),) if shard.tp > 1 else ()
    if shard.runtime.kernels.gathered_logits and shard.tp > 1:
        logits *= shard.tp
        comms = (Comm("all-gather", "tp", shard.element * logits, "F"),)
    return Op(
        "loss",
        "head",
        "memory",
        bytes_f=passes[0] * logits,
        bytes_b=passes[1] * logits,
        kernels_f=kernels[0],
        kernels_b=kernels[1],
        kept=kept * logits,
        extra_f=extra_f * logits,
        extra_b=extra_b * logits,
        comms=comms,
    )


# bytes per logit: kept, live in forward, live in backward beside what is kept, weighted traffic (forward, backward);
# kernels. Traffic from the H200 probe: library loss 18 at 2.95 TB/s, backward 26 at 4.0; Megatron's pieces 42 at 3.3.
_LOSS: dict[str, tuple[float, float, float, tuple[float, float], tuple[float, float]]] = {
    # library loss in fp32: upcast, log-softmax kept; gradient of the loss and of log-softmax each in fresh fp32
    "fp32": (4.0, 6.0, 8.0, (25.5, 27.5), (6.0, 6.0)),
    # Megatron: one fp32 copy, exponentials in place, gradient in place, cast to 16 bit
    "in-place": (4.0, 2.0, 2.0, (53.0, 18.0), (14.0, 5.0)),
    "fused": (2.0, 2.0, 0.0, (8.0, 6.0), (3.0, 2.0)),
    "compiled": (2.0, 6.0, 4.0, (8.0, 8.0), (3.0, 3.0)),
}
