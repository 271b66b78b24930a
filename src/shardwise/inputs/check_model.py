"""What a model's own fields must agree on; every model that comes from a file goes through here."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.errors import Fault, InputError
from shardwise.inputs.check_values import value_faults
from shardwise.inputs.model import Model


def checked_model(model: Model, title: str) -> Model:
    """The model, or an InputError with everything that is wrong with it."""
    faults = [*value_faults(model, "model")] or [*_crossed(model)]
    if faults:
        raise InputError(faults, title=title)
    return model


def _crossed(model: Model) -> Iterator[Fault]:
    if model.heads % model.kv_heads:
        near = [n for n in range(1, min(model.heads, 1024) + 1) if model.heads % n == 0]
        yield Fault("model.kv_heads", f"{model.kv_heads} does not divide heads {model.heads}; use one of {near}")
    if model.position == "learned" and not model.max_positions:
        yield Fault("model.max_positions", "is missing; a learned position table needs its number of rows")
    if model.moe and model.moe.top_k > model.moe.experts:
        message = f"a token visits {model.moe.top_k} of {model.moe.experts} experts; use at most {model.moe.experts}"
        yield Fault("model.moe.top_k", message)
    if model.moe and model.moe.first_dense > model.layers:
        message = f"{model.moe.first_dense} is more than the {model.layers} layers; lower it"
        yield Fault("model.moe.first_dense", message)
