"""A model of traced blocks: what the other fields must say beside them."""

from __future__ import annotations

from dataclasses import fields
from math import ceil

from shardwise.inputs.model import Model
from shardwise.inputs.traced import Traced, at


def traced_model(name: str, traced: Traced) -> Model:
    """What crosses the widest border stands for the hidden state, and the widest result of the last part for logits."""
    tokens = 2.0 * traced.seq  # both are counted in elements of 16 bit
    size = {"fp32": 2.0}.get(traced.dtype, 1.0)
    return Model(
        name=name,
        layers=len(traced.order),
        hidden=max(1, ceil(at(traced.border, 1.0) / size / tokens)),
        heads=traced.ways,  # what tensor parallel divides
        kv_heads=traced.ways,
        head_size=1,
        ffn=1,
        vocab=max(1, ceil(at(traced.logits, 1.0) / tokens)),
        position="none",
        tied=traced.tied > 0,
        traced=traced,
    )


def disagreements(model: Model) -> list[str]:
    """Fields that say something else than the traced blocks."""
    if model.traced is None:
        return []
    right = traced_model(model.name, model.traced)
    return [one.name for one in fields(Model) if getattr(model, one.name) != getattr(right, one.name)]
