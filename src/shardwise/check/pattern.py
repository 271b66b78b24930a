"""Rules of a model whose layers are not all alike: what its pattern names must be described, and all else used."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.check.rule import Combination, divisors_near, either, rule
from shardwise.errors import Fault
from shardwise.inputs.mixers import Recurrent
from shardwise.inputs.model import Model


@rule("model.mixers", "model.feeds", "model.recurrent", "model.moe", "model.sparse", "model.chunked", "model.windows",
      "model.layers")  # fmt: skip
def blocks_of_layers(case: Combination) -> Iterator[Fault]:
    yield from pattern_faults(case.model)


def pattern_faults(model: Model) -> Iterator[Fault]:
    """What is wrong with the kinds of a model's layers."""
    named = bool({"recurrent", "both"} & set(model.mixers))
    if named and model.recurrent is None:
        yield Fault("model.recurrent", "is missing; mixers name recurrent layers, whose kind and sizes it gives")
    if model.recurrent and not named:
        yield Fault("model.mixers", "names no recurrent layer, but `recurrent` describes one; add it or drop recurrent")
    if "experts" in model.feeds and model.moe is None:
        yield Fault("model.moe", "is missing; feeds name layers with experts, which it describes")
    blocks = ((model.mixer_of(index), model.feed_of(index)) for index in range(model.layers))
    empty = next((index for index, block in enumerate(blocks) if block == ("none", "none")), None)
    if empty is not None:
        yield Fault("model.feeds", f"layer {empty} neither mixes tokens nor has a feed-forward block; give it one")
    if model.recurrent:
        yield from _sizes(model.recurrent)
    if model.sparse and model.mla is None:
        yield Fault("model.sparse", "chooses keys of latent attention, which the model does not have; give mla")
    if model.chunked and not any(model.windows):
        yield Fault("model.chunked", "says that windows are chunks, but no layer has a window; give windows")


def _sizes(mixer: Recurrent) -> Iterator[Fault]:
    if mixer.kind != "conv" and not mixer.state:
        yield Fault("model.recurrent.state", f"is 0, but {mixer.kind} has a state; give its size, for example 128")
    if mixer.kind in {"mamba", "kda"} and not mixer.rank:
        yield Fault("model.recurrent.rank", f"is 0, but {mixer.kind} has a low-rank projection; give its width")
    if mixer.key_heads and mixer.heads % mixer.key_heads:
        legal = either(divisors_near(mixer.heads, mixer.key_heads))
        yield Fault("model.recurrent.key_heads", f"{mixer.key_heads} does not divide heads {mixer.heads}; use {legal}")
