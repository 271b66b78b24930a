"""What stands before the first and after the last layer: embedding, final norm, output layer, loss."""

from __future__ import annotations

from shardwise.inputs.assumed import ASSUMED
from shardwise.inputs.model import Model
from shardwise.ops.linear import CAP_TRAFFIC, Linear, caps, linear, norm
from shardwise.ops.op import Comm, Op
from shardwise.ops.shard import Shard
from shardwise.ops.tower import modulation, stem
from shardwise.ops.traced import traced_first, traced_last

# The gradient of a table: weighted bytes per byte of its tokens' gradients and of the table (zeros, then a scatter),
# and those of sorting the tokens (H200 probe: 4096 tokens into 32,000 x 4096 take 0.40 ms, into 128,256 x 4096 0.64,
# 16,384 tokens into 32,000 x 1024 0.34; 512 tokens take less than this says, 32,768 more).
SCATTER, ZEROS, SORT = 6, 1.5, 1.2e9
# Weighted traffic of losses per logit, both passes (H200 probe). The library's in fp32 (18 bytes at 2.95 TB/s, 26 at
# 4.0): upcast, log-softmax kept, the gradient of the loss and of log-softmax each in fresh fp32.
LIBRARY_LOSS = (25.5, 27.5)
# The library's on 16-bit logits: its log-softmax, and of both gradients the same two kernels (H200: BERT, T5).
PLAIN_LOSS = (6.0, 10.0)
# Megatron's pieces (42 bytes at 3.3 TB/s): one fp32 copy, exponentials in place; backward a scaling of rows (12.2) and
# a cast to 16 bit (5.9).
PIECES_LOSS = (53.0, 18.0)


def padded_vocab(shard: Shard) -> float:
    """Vocabulary after padding, per rank."""
    multiple = shard.runtime.kernels.vocab_multiple * shard.tp
    return -(-shard.model.vocab // multiple) * multiple / shard.tp


def logits_bytes(shard: Shard) -> float:
    """A micro batch's logits in 16 bit."""
    return 2.0 * pooled(shard).tokens * padded_vocab(shard)


def embedding(shard: Shard) -> list[Op]:
    """Token (and position) look-up; under sequence parallel its partial sums are reduce-scattered."""
    model = shard.model
    if model.traced:
        return traced_first(shard, model.traced)
    if model.stem:
        return stem(shard)
    width = model.embedding_size or model.hidden
    table = table_params(shard)
    stream = shard.residual
    comms: tuple[Comm, ...] = ()
    if shard.tp > 1:
        kind = "reduce-scatter" if shard.sp else "all-reduce"
        back = (Comm("all-gather", "tp", shard.gathered, "I"),) if shard.sp else ()
        comms = (Comm(kind, "tp", shard.gathered, "F"), *back)  # type: ignore[arg-type]
    params = table + position_params(model) + model.token_types * model.hidden
    params += 2 * width * model.hidden if model.embedding_size else 0
    kernels = ASSUMED.launches["embedding"]
    op = Op(
        "embedding",
        "embedding",
        "memory",
        bytes_f=2 * shard.gathered + stream,
        bytes_b=SCATTER * shard.gathered + ZEROS * shard.weight * table + SORT,
        kernels_f=kernels[0],
        kernels_b=kernels[1],
        kept=16.0 * shard.tokens,
        extra_f=shard.gathered + stream,
        extra_b=shard.gathered + stream + shard.grad_temporary * table,
        params=params,
        comms=comms,
    )
    return [op, norm(shard, "embedding norm", "embedding")] if model.embedding_norm else [op]


def position_params(model: Model) -> int:
    """Parameters of its table of positions: a row for each, or a number for every head."""
    width = model.hidden if model.tabled else model.heads if model.position == "relative" else 0
    return model.max_positions * width


def table_params(shard: Shard) -> float:
    """Parameters of the table of tokens on this rank."""
    return padded_vocab(shard) * (shard.model.embedding_size or shard.model.hidden)


def head(shard: Shard, *, own_weights: bool) -> list[Op]:
    """Final norm, output layer and loss; `own_weights`: its matrix lives here and is not the embedding's."""
    model = shard.model
    if model.traced:
        return traced_last(shard, model.traced, own_weights=own_weights)
    before = _before_head(shard)
    shard = pooled(shard)
    inputs = model.embedding_size or model.hidden
    layer = Linear("output layer", "head", inputs, padded_vocab(shard), "column", shard.hidden, bias=model.head_bias)
    output = linear(shard, layer)
    if shard.runtime.memory.dummy_gradients:
        # Megatron's own layer gathers its input again, where those of Transformer Engine have one buffer for it
        again = shard.gathered if shard.sp and shard.tp > 1 else 0.0
        made = 0.0 if shard.runtime.memory.output_gradient else 2.0 * layer.weights
        output = output._replace(extra_b=output.extra_b + again + made)
    if not own_weights:
        output = output._replace(params=padded_vocab(shard) if model.head_bias else 0.0)
    return [*before, output, loss(shard)]


def pooled(shard: Shard) -> Shard:
    """What the output layer sees: one token of a sample, or all."""
    return shard._replace(tokens=float(shard.samples), seq=1.0) if shard.model.pooled else shard


def _before_head(shard: Shard) -> list[Op]:
    """The final norm, and a linear layer with its activation before it (BERT), or scales and shifts behind (DiT)."""
    model, size = shard.model, shard.hidden
    ops = []
    if model.head_dense:
        dense = Linear("head dense", "head", model.hidden, model.hidden, "none", size, bias=True)
        ops = [linear(shard, dense), Op("head activation", "head", "memory", (), 2 * size, 3 * size, 1.0, 1.0, size)]
    if model.final_norm:
        ops += [norm(shard, "final norm", "head"), *modulation(shard, 2)]
    return ops


def loss(shard: Shard) -> Op:
    """Cross entropy over the (sharded) vocabulary; logits L = tokens x vocabulary / tp."""
    logits = shard.tokens * padded_vocab(shard)
    kind = _loss_kind(shard)
    kept, extra_f, extra_b, passes = _loss_bytes(kind)
    kernels = ASSUMED.launches["fp32 loss" if kind == "plain" else f"{kind} loss"]
    capped = caps(shard, shard.model.logit_cap) and "compiled" not in kind
    # of every token, in fp32: the largest logit, that of its target, the sum of exponentials
    comms: tuple[Comm, ...] = (Comm("all-reduce", "tp", 12.0 * shard.tokens, "F"),) if shard.tp > 1 else ()
    if shard.runtime.kernels.gathered_logits and shard.tp > 1:
        logits *= shard.tp
        comms = (Comm("all-gather", "tp", shard.element * logits, "F"),)
    return Op(
        "loss",
        "head",
        "memory",
        bytes_f=(passes[0] + CAP_TRAFFIC[0] * capped) * logits,
        bytes_b=(passes[1] + CAP_TRAFFIC[1] * capped) * logits,
        kernels_f=kernels[0] + 3.0 * capped,
        kernels_b=kernels[1] + 3.0 * capped,
        kept=(kept + 2.0 * (capped + shard.runtime.kernels.logits_kept)) * logits,
        extra_f=extra_f * logits,
        extra_b=extra_b * logits,
        comms=comms,
    )


def _loss_kind(shard: Shard) -> str:
    """Libraries compute the loss of causal models in fp32, that of others in the format of their logits."""
    kind, model = shard.runtime.kernels.loss, shard.model
    return "plain" if kind == "fp32" and (model.crosses or not model.causal) else kind


def _loss_bytes(kind: str) -> tuple[float, float, float, tuple[float, float]]:
    """Bytes per logit: kept, live in forward, live in backward beside what is kept, weighted traffic of both passes."""
    return {
        "fp32": (4.0, 6.0, 8.0, LIBRARY_LOSS),
        "plain": (2.0, 2.0, 4.0, PLAIN_LOSS),
        "in-place": (4.0, 2.0, 2.0, PIECES_LOSS),
        # it leaves the gradient where the logits were
        "fused": (2.0, 0.0, 0.0, ASSUMED.fused_loss),
        # peaks of compiled steps on an H200: torchtitan compiles the loss for itself, transformers inside the model
        "compiled": (2.0, 2.0, 2.0, ASSUMED.compiled_loss),
        "compiled-fp32": (2.0, 4.0, 4.0, ASSUMED.compiled_loss),
    }[kind]
