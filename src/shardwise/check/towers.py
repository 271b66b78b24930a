"""Rules of towers, and of models that read something other than text or see all of a sample."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from shardwise.check.pattern import pattern_faults
from shardwise.check.rule import Combination, divisors_near, either, rule
from shardwise.errors import Fault
from shardwise.inputs.model import Model

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_TOWERS = ("model.towers", "model.stem", "model.projector", "model.vocab")


@rule(*_TOWERS, "model.traced", "model.layers")
def towers(case: Combination) -> Iterator[Fault]:
    yield from tower_faults(case.model)


def tower_faults(model: Model) -> Iterator[Fault]:
    """What is wrong with a model's inputs and towers by themselves."""
    if model.vocab and not (model.towers or model.stem or model.projector):
        return
    if not model.vocab:
        yield Fault("model.vocab", "is missing; add it: what the output layer predicts, tokens or classes")
    if model.projector:
        yield Fault("model.projector", "hands a tower's output on, and this is no tower; put it into one of towers")
    if model.towers and (model.traced or model.stem):
        what = "a traced module" if model.traced else "a model that reads pictures itself"
        yield Fault("model.towers", f"stand before a model that reads tokens, not before {what}; drop one of the two")
    yield from _stem_faults(model, "model")
    names = [tower.name for tower in model.towers]
    if len(set(names)) < len(names) or not all(map(_NAME.fullmatch, names)):
        told = "all different, of small letters, digits, - and _, as frozen= says them"
        yield Fault("model.towers", f"need a name each, {told}, not {', '.join(map(repr, names))}")
    if sum(tower.projector is None for tower in model.towers) > 1:
        yield Fault("model.towers", "two have no projector, but layers attend to one encoder; give one a projector")
    for index, tower in enumerate(model.towers):
        yield from _faults(model, tower, f"model.towers.{index}")


def _faults(model: Model, tower: Model, at: str) -> Iterator[Fault]:
    for name in ("towers", "traced", "mtp"):
        if getattr(tower, name):
            yield Fault(f"{at}.{name}", "is not known of a tower; leave it out")
    if tower.mla or tower.recurrent or tower.moe:
        yield Fault(at, "has layers that are not known of a tower: mla, recurrent or moe; describe it without")
    if not tower.ffn:
        yield Fault(f"{at}.ffn", "is 0; a layer of a tower has a feed-forward block: give its width")
    if tower.position in {"learned", "learned+rope", "relative"} and not tower.max_positions:
        yield Fault(f"{at}.max_positions", f"is missing; {tower.position} positions need the rows of their table")
    if tower.norms_per_layer not in {1, 2, 4}:
        yield Fault(f"{at}.norms_per_layer", f"{tower.norms_per_layer} norms a layer are not modelled; use 1, 2 or 4")
    yield from (replace(one, path=one.path.replace("model", at, 1)) for one in pattern_faults(tower))
    if tower.heads % tower.kv_heads:
        near = either(divisors_near(tower.heads, tower.kv_heads))
        yield Fault(f"{at}.kv_heads", f"{tower.kv_heads} does not divide heads {tower.heads}; use {near}")
    if tower.stem is None and (tower.vocab, tower.hidden) != (model.vocab, model.hidden):
        told = f"vocab {tower.vocab} and hidden {tower.hidden}, but it shares the model's table of tokens"
        yield Fault(at, f"{told}; use {model.vocab} and {model.hidden}, or give a stem")
    if model.mla and tower.projector is None:
        yield Fault(at, "has no projector, and latent attention to an encoder's output is not known; give a projector")
    yield from _stem_faults(tower, at)


def _stem_faults(model: Model, at: str) -> Iterator[Fault]:
    stem, projector = model.stem, model.projector
    if stem is None:
        return
    if stem.size % stem.patch:
        near = either(stem.size // stem.patch * stem.patch + more for more in (0, stem.patch))
        yield Fault(f"{at}.stem.size", f"{stem.size} is no multiple of patch {stem.patch}; use {near}")
    elif projector and not stem.flat and stem.size // stem.patch % projector.merge:
        side = f"{stem.size // stem.patch} patches a side"
        yield Fault(f"{at}.projector.merge", f"{projector.merge} does not divide {side}; use another size or merge")


@rule("source", "images", "image_imbalance", "image_size", "frozen", *_TOWERS)
def said_of_inputs(case: Combination) -> Iterator[Fault]:
    model, s = case.model, case.strategy
    if not (s.source or s.image_size or s.frozen or s.images != 1 or s.image_imbalance != 1):
        return
    read = [one for one in (*model.towers, model) if one.stem]
    names = [tower.name for tower in model.towers]
    if s.source and not any(tower.stem is None for tower in model.towers):
        yield Fault("strategy.source", f"{s.source}, but {model.name} has no encoder of text; drop it")
    words = (("images", "images=", 1), ("image_imbalance", "images=1:", 1), ("image_size", "pixels", 0))
    for name, word, usual in words:
        if getattr(s, name) != usual and not read:
            yield Fault(f"strategy.{name}", f"{model.name} reads no pictures or recordings; drop {word}")
    if model.stem and s.images != 1:
        yield Fault("strategy.images", f"{s.images:g}, but a sample of {model.name} is one picture; drop images=")
    for name in sorted({name for name in s.frozen if s.frozen.count(name) > 1}):
        yield Fault("strategy.frozen", f"says {name} twice; keep one")
    for strange in sorted(set(s.frozen) - set(names)):
        told = f"{strange!r} is no tower of {model.name}"
        yield Fault("strategy.frozen", f"{told}; {f'choose {either(names)}' if names else 'it has none: drop it'}")
    sizes = [one for one in read if s.image_size % one.stem.patch] if s.image_size else []  # type: ignore[union-attr]
    for one in sizes:
        patch = one.stem.patch if one.stem else 1
        near = either(s.image_size // patch * patch + more for more in (0, patch))
        yield Fault("strategy.image_size", f"{s.image_size} is no multiple of the patch {patch} of {one.name}; {near}")


@rule("seq", "images", "image_imbalance", "image_size", *_TOWERS)
def tokens_of_pictures(case: Combination) -> Iterator[Fault]:
    model, s = case.model, case.strategy
    if not (model.towers or model.stem):
        return
    if model.stem and (wanted := model.stem.tokens(s.image_size)) != s.seq:
        told = f"a picture of {s.image_size or model.stem.size} is {wanted} tokens"
        yield Fault("strategy.seq", f"{s.seq}, but {told} of {model.name}; use seq {wanted}")
    most = s.images * s.image_imbalance
    taken = {one.name: most * handed_tokens(one, s.image_size) for one in model.towers if one.projector}
    if sum(taken.values()) > s.seq:
        told = " and ".join(f"{count:,.0f} of {name}" for name, count in taken.items())
        fullest = f" in the fullest micro batch ({s.images:g} x {s.image_imbalance:g})" if s.image_imbalance > 1 else ""
        cure = f"raise seq, or lower images={' or its imbalance' if fullest else ''} or pixels"
        yield Fault("strategy.seq", f"{s.seq} tokens do not hold {told}{fullest}; {cure}")


def handed_tokens(tower: Model, size: int = 0) -> float:
    """Tokens of the model that one picture or recording becomes."""
    if tower.stem is None or tower.projector is None:
        return 0.0
    merge = 1 if tower.stem.flat else tower.projector.merge**2
    return (tower.stem.tokens(size) - tower.stem.leading) / merge


@rule("tp", "cp", "schedule", "documents", "lora", "model.causal", *_TOWERS)
def split_towers(case: Combination) -> Iterator[Fault]:
    model, s = case.model, case.strategy
    for tower in model.towers:
        uneven = [f"{name} {size}" for name in ("heads", "kv_heads", "ffn") if (size := getattr(tower, name)) % s.tp]
        if uneven:
            told = f"{s.tp} does not divide {', '.join(uneven)} of tower {tower.name}"
            yield Fault("strategy.tp", f"{told}; lower tp")
    beside = "towers" if model.towers else "" if model.causal else "tokens that see all of a sample"
    if not beside:
        return
    if s.cp > 1 and model.towers:
        yield Fault("strategy.cp", f"{s.cp}, but attention of towers is not split by context parallel; use cp 1")
    if s.documents is not None:
        yield Fault("strategy.documents", f"are not known of models with {beside}; leave documents out")
    if s.schedule in {"seq-1f1b", "low-memory"} and s.pp > 1:
        told = f"{s.schedule} cuts samples into pieces, which {beside} do not allow"
        yield Fault("strategy.schedule", f"{told}; use 1f1b, or another that keeps them whole")


RULES = (towers, said_of_inputs, tokens_of_pictures, split_towers)
