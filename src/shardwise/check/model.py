"""Rules inside the model and inside the cluster: sizes that must fit together before any strategy comes in. Every
model that comes from a file passes `checked_model`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from shardwise.check.pattern import blocks_of_layers, pattern_faults
from shardwise.check.rule import Combination, divisors_near, either, rule
from shardwise.check.towers import tower_faults
from shardwise.check.traced import traced_faults
from shardwise.check.values import value_faults
from shardwise.errors import Fault, InputError
from shardwise.inputs.model import Model

_FORMATS = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")


@rule("model.heads", "model.kv_heads", "model.mla")
def kv_heads_divide_heads(case: Combination) -> Iterator[Fault]:
    heads, kv = case.model.heads, case.model.kv_heads
    if case.model.mla is None and heads % kv:
        yield Fault("model.kv_heads", f"{kv} does not divide heads {heads}; use {either(divisors_near(heads, kv))}")


@rule("model.moe")
def experts_visited(case: Combination) -> Iterator[Fault]:
    moe = case.model.moe
    if moe and moe.top_k > moe.experts:
        yield Fault(
            "model.moe.top_k", f"{moe.top_k} of {moe.experts} experts cannot be visited; use at most {moe.experts}"
        )


@rule("model.moe")
def experts_in_groups(case: Combination) -> Iterator[Fault]:
    moe = case.model.moe
    if moe is None:
        return
    if moe.experts % moe.groups:
        legal = either(divisors_near(moe.experts, moe.groups))
        yield Fault("model.moe.groups", f"{moe.groups} does not divide {moe.experts} experts; use {legal}")
    elif moe.top_groups > moe.groups:
        yield Fault("model.moe.top_groups", f"{moe.top_groups} of {moe.groups} groups; use at most {moe.groups}")
    elif moe.top_k > moe.top_groups * moe.experts // moe.groups:
        held = moe.top_groups * moe.experts // moe.groups
        told = f"{moe.top_k} experts do not come out of {moe.top_groups} groups of {moe.experts // moe.groups}"
        yield Fault("model.moe.top_k", f"{told}; use at most {held}, or more top_groups")
    if moe.loads and (len(moe.loads) != moe.experts or not sum(moe.loads)):
        told = f"{len(moe.loads)} numbers that add up to {sum(moe.loads):g}"
        yield Fault("model.moe.loads", f"{told} for {moe.experts} experts; give one for each, not all of them 0")


@rule("model.moe", "model.layers")
def dense_layers(case: Combination) -> Iterator[Fault]:
    moe, layers = case.model.moe, case.model.layers
    if moe and moe.first_dense > layers:
        yield Fault("model.moe.first_dense", f"{moe.first_dense} dense layers of {layers}; use at most {layers}")


@rule("model.moe", "model.layers", "model.ffn", "model.feeds")
def ffn_of_dense_layers(case: Combination) -> Iterator[Fault]:
    model = case.model
    if model.ffn >= 1:
        return
    dense = sum(model.feed_of(index) == "dense" for index in range(model.layers))
    if dense:
        yield Fault(
            "model.ffn", f"{dense} layers have an ordinary feed-forward block, but its width is {model.ffn}; give it"
        )


@rule("model.position", "model.max_positions")
def position_table(case: Combination) -> Iterator[Fault]:
    if case.model.tabled and case.model.max_positions < 1:
        yield Fault(
            "model.max_positions", "learned positions need the number of rows of their table; give for example 2048"
        )


@rule("model.position", "model.head_size", "model.mla")
def rotary_pairs(case: Combination) -> Iterator[Fault]:
    model = case.model
    size = model.mla.rope_size if model.mla else model.head_size
    if model.turned and size % 2:
        name = "model.mla.rope_size" if model.mla else "model.head_size"
        yield Fault(name, f"{size} is odd, rotary positions turn pairs; use {size - 1} or {size + 1}")


@rule("model.rope_scaling", "model.position")
def rotary_scaling(case: Combination) -> Iterator[Fault]:
    scaling = case.model.rope_scaling
    if scaling is None:
        return
    if not case.model.turned:
        told = f"{case.model.position} positions have no angles to stretch"
        yield Fault("model.rope_scaling", f"{told}; leave it out, or use position rope")
    if scaling.kind != "linear" and not scaling.original:
        told = f"{scaling.kind} needs the longest sequence of the first training"
        yield Fault("model.rope_scaling.original", f"{told}; give for example 8192")
    for low, high in (("low", "high"), ("beta_slow", "beta_fast")):
        least, most = getattr(scaling, low), getattr(scaling, high)
        if least > most:
            yield Fault(f"model.rope_scaling.{low}", f"{least:g} is above {high} {most:g}; swap them")


@rule("model.rotary_share", "model.head_size", "model.mla")
def rotary_share(case: Combination) -> Iterator[Fault]:
    """The part that turns is made of pairs."""
    model = case.model
    turned = model.rotary_share * model.head_size
    if model.turned and model.mla is None and model.rotary_share < 1 and round(turned, 6) % 2:
        near = max(2, 2 * round(turned / 2))
        told = f"{model.rotary_share:g} of head_size {model.head_size} is {turned:g}, no even number"
        yield Fault("model.rotary_share", f"{told}; use {near / model.head_size:g}")


@rule("model.norms_per_layer")
def norms(case: Combination) -> Iterator[Fault]:
    if case.model.norms_per_layer not in {1, 2, 4}:
        yield Fault(
            "model.norms_per_layer", f"{case.model.norms_per_layer} norms a layer are not modelled; use 1, 2 or 4"
        )


@rule("model.dropout")
def dropout(case: Combination) -> Iterator[Fault]:
    if case.model.dropout >= 1:
        yield Fault("model.dropout", f"{case.model.dropout:g} drops everything; it is a probability below 1")


@rule("cluster.gpus", "cluster.levels")
def network_reaches(case: Combination) -> Iterator[Fault]:
    cluster = case.cluster
    reach = cluster.levels[-1].size if cluster.levels else 1
    if reach < cluster.gpus:
        yield Fault(
            "cluster.levels",
            f"the network reaches {reach} GPUs, the cluster has {cluster.gpus}; add a level of size {cluster.gpus} "
            "(between nodes) with its bandwidth, or use fewer GPUs",
        )


@rule("cluster.levels")
def levels_nest(case: Combination) -> Iterator[Fault]:
    levels = case.cluster.levels
    for index, (inner, outer) in enumerate(pairwise(levels), start=1):
        if outer.size % inner.size:
            yield Fault(
                f"cluster.levels.{index}.size",
                f"{outer.name} has {outer.size} GPUs, not a multiple of the {inner.size} of {inner.name} inside it; "
                f"use {inner.size * max(1, round(outer.size / inner.size))}",
            )


@rule("cluster.gpu")
def number_formats(case: Combination) -> Iterator[Fault]:
    formats = case.cluster.gpu.flops
    for name in formats:
        if name not in _FORMATS:
            yield Fault(f"cluster.gpu.flops.{name}", f"is not a number format; choose {either(_FORMATS)}")
    if not {"bf16", "fp16", "fp32"} & set(formats):
        yield Fault("cluster.gpu.flops", "no peak is given for bf16, fp16 or fp32; give the dense peak of at least one")


@rule("cluster.gpu")
def memory_left(case: Combination) -> Iterator[Fault]:
    gpu = case.cluster.gpu
    if gpu.reserved >= gpu.memory:
        yield Fault("cluster.gpu.reserved", f"{gpu.reserved:g} bytes leave nothing of {gpu.memory:g}; lower it")


RULES = (
    kv_heads_divide_heads, experts_visited, experts_in_groups, dense_layers, ffn_of_dense_layers, position_table,
    rotary_pairs, rotary_scaling, rotary_share, norms, blocks_of_layers, dropout, network_reaches, levels_nest,
    number_formats, memory_left,
)  # fmt: skip


def checked_model(model: Model, title: str) -> Model:
    """The model, or an InputError with everything that is wrong with it."""
    faults = [*value_faults(model, "model")] or [*_crossed(model), *tower_faults(model), *traced_faults(model)]
    if faults:
        raise InputError(faults, title=title)
    return model


def _crossed(model: Model) -> Iterator[Fault]:
    yield from pattern_faults(model)
    if model.heads % model.kv_heads:
        near = [n for n in range(1, min(model.heads, 1024) + 1) if model.heads % n == 0]
        yield Fault("model.kv_heads", f"{model.kv_heads} does not divide heads {model.heads}; use one of {near}")
    if model.tabled and not model.max_positions:
        yield Fault("model.max_positions", "is missing; a learned position table needs its number of rows")
    if model.moe and model.moe.top_k > model.moe.experts:
        message = f"a token visits {model.moe.top_k} of {model.moe.experts} experts; use at most {model.moe.experts}"
        yield Fault("model.moe.top_k", message)
    if model.moe and model.moe.first_dense > model.layers:
        message = f"{model.moe.first_dense} is more than the {model.layers} layers; lower it"
        yield Fault("model.moe.first_dense", message)
