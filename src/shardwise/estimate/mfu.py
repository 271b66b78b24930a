"""Operations per token that a model needs, whatever runs it: the numerator of MFU."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwise.inputs.documents import Documents, Packing
from shardwise.inputs.model import Model
from shardwise.inputs.parameters import count
from shardwise.ops.attention import area
from shardwise.ops.documents import keys_met, keys_met_alone
from shardwise.ops.shard import Shard
from shardwise.ops.traced import traced_flops


@lru_cache(maxsize=1024)
def model_flops(
    model: Model, seq: int, *, causal: bool, frozen: bool = False, documents: Documents | None = None,
    packing: Packing = "packed",
) -> float:  # fmt: skip
    """Forward and backward operations per token: 6 per active matrix weight, attention, and recurrences.

    `causal`: only the half of the scores that a causal mask leaves is counted; else the full square. `frozen`: the
    matrices do not train, so that they have no gradient of their own. `documents`: only attention inside them is
    counted, whatever computes more, but for samples that are attended to as one (`unmasked`).
    """
    if model.traced:
        return traced_flops(model.traced, causal=causal)
    parameters = count(model)
    # embedding look-ups cost nothing; a tied output layer still does
    head = model.vocab * model.hidden * (1 + model.mtp) / (seq if model.pooled else 1)
    active = parameters.active - parameters.ends - parameters.towers + head
    if model.condition:  # what conditions a layer is computed once a sample
        active -= model.layers * 6 * model.hidden * model.hidden * (1 - 1 / seq)
    recurrent = 0.0
    if model.recurrent:
        layers = sum(model.mixer_of(index) in {"recurrent", "both"} for index in range(model.layers))
        recurrent = 6.0 * layers * model.recurrent.products
    return (4.0 if frozen else 6.0) * active + _attention(model, seq, documents, packing, causal=causal) + recurrent


def tower_flops(model: Model, tower: Shard, seq: int, *, causal: bool) -> float:
    """Operations of a tower for a sample of the model: forward and backward, forward alone where it is frozen."""
    tokens = tower.tokens / tower.samples
    own = replace(tower.model, vocab=0, projector=None)
    each = model_flops(own, round(tokens), causal=causal) * tokens * (1 / 3 if tower.frozen else 1.0)
    if tower.model.projector is None:  # keys of its output, which cost as its tokens do, and every query meets them
        width = model.heads * model.head_size
        crossed = 2 * model.kv_heads * model.head_size * tower.model.hidden * (tokens - seq)
        return (each + model.layers * (6.0 * crossed + 12.0 * seq * tokens * width)) * tower.samples
    squared = tower.model.projector.merge**2
    linears = tower.model.projector.linears(tower.model.hidden, model.hidden)
    products = sum(inputs * outputs for inputs, outputs in linears) * (1 + tower.model.projector.taps)
    return (each + 6.0 * products * tokens / squared) * tower.samples


def _attention(model: Model, seq: int, documents: Documents | None, packing: Packing, *, causal: bool) -> float:
    if model.mla:
        widths = model.heads * (model.mla.nope_size + model.mla.rope_size + model.mla.value_size)
    else:
        widths = 2 * model.heads * model.head_size
    chosen = model.sparse.top_k if model.sparse else 0
    windows = [
        chosen or model.window_of(index)
        for index in range(model.layers)
        if model.mixer_of(index) in {"attention", "both"}
    ]
    sees = model.causal
    shares = [_share(seq, window, documents, packing, chunked=model.chunked, causal=sees) for window in windows]
    shares += [_share(seq, 0, documents, packing)] * model.mtp
    if not causal:
        shares = [min(1.0, 2 * share) for share in shares]
    return 6.0 * seq * widths * sum(shares)


def _share(
    seq: int, window: int, documents: Documents | None, packing: Packing, *, chunked: bool = False, causal: bool = True
) -> float:
    """Share of the square of scores that a layer needs."""
    if documents is None or packing == "unmasked":
        return area(seq, window, chunked=chunked, causal=causal)
    met = keys_met_alone if packing == "padded" else keys_met
    return met(documents, seq, window, chunked=chunked) / seq
