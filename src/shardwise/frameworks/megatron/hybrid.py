"""Hybrid models in Megatron-LM's words: one text of signs, a sign a block, with a bar where a pipeline stage ends.

A layer of ours that has a mixer and a feed-forward block is two signs; where some block stands alone, every sign is a
layer. `--hybrid-layer-pattern` is Megatron-LM's main of August 2026 (d98e8a6); older ones cut stages evenly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from shardwise.errors import Fault
from shardwise.frameworks.imported import ImportDraft
from shardwise.inputs.mixers import Feed, Mixer, Recurrent, shortest
from shardwise.inputs.model import Model

PATTERN = "hybrid-layer-pattern"
OLD_PATTERN = "hybrid-override-pattern"
_SPEC = "megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec"
_RECURRENT = {"mamba2": "M", "delta": "G"}
_FEEDS: dict[Feed, str] = {"dense": "-", "experts": "E", "none": ""}
_ATTENTIONS = "*+"
CHUNK = 128
"""Tokens of a chunk of Mamba-2, which no flag changes; delta nets have 64."""
SIZES: dict[str, dict[str, str]] = {
    "mamba2": {
        "heads": "mamba-num-heads", "head_size": "mamba-head-dim", "state": "mamba-state-dim",
        "key_heads": "mamba-num-groups",
    },
    "delta": {
        "heads": "linear-num-value-heads", "head_size": "linear-value-head-dim", "state": "linear-key-head-dim",
        "key_heads": "linear-num-key-heads", "conv": "linear-conv-kernel-dim",
    },
}  # fmt: skip
"""Kind -> our size -> the flag that says it."""
HYBRID_FLAGS = frozenset({PATTERN, OLD_PATTERN, "spec", "attention-output-gate"}) | {
    flag for flags in SIZES.values() for flag in flags.values()
}
_DEFAULTS = {"mamba2": (0, 64, 128, 8, 4), "delta": (32, 128, 128, 16, 4)}


def unwritten(model: Model, version: str) -> str:
    """Why the pattern cannot be this model; empty: it can."""
    mixer = model.recurrent
    if mixer is None or mixer.kind not in SIZES:
        return f"Megatron-LM has {f'no {mixer.kind} layers' if mixer else 'none of these'}"
    if version != "main":
        return f"Megatron-LM {version} cuts hybrids evenly; export to megatron@main"
    others = (model.sparse, model.chunked, model.norm_vectors != "usual", model.parallel_residual)
    if "both" in model.mixers or any(others):
        return "its pattern has one block after the other, full attention and usual norms"
    plain = replace(mixer, conv=4, conv_bias=mixer.kind == "mamba2", normed=True, bias=False)
    if plain != mixer:
        return "its recurrent layers have convolutions of 4 tokens, norms and no biases of projections"
    return ""


def signs(model: Model, start: int, count: int) -> str:
    """The blocks of some layers."""
    attention = "+" if model.mla else "*"
    kind = _RECURRENT[model.recurrent.kind] if model.recurrent else ""
    mixers: dict[Mixer, str] = {"attention": attention, "recurrent": kind, "none": ""}
    return "".join(mixers[model.mixer_of(at)] + _FEEDS[model.feed_of(at)] for at in range(start, start + count))


def pattern_of(model: Model, layers: Iterable[int]) -> str:
    """All of the model, with a bar between chunks."""
    pieces, start = list[str](), 0
    for count in layers:
        pieces.append(signs(model, start, count))
        start += count
    return "|".join(pieces)


def hybrid_flags(model: Model, layers: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """The flags that make a model of transformer layers a hybrid."""
    mixer = model.recurrent
    if mixer is None:
        return
    yield from ((PATTERN, pattern_of(model, layers)), ("spec", _SPEC))
    for ours, flag in SIZES[mixer.kind].items():
        yield flag, getattr(mixer, ours) or mixer.heads
    if model.attention_gate:
        yield "attention-output-gate", None


def hybrid_losses(model: Model) -> Iterator[tuple[str, str]]:
    """What no flag says."""
    mixer = model.recurrent
    if mixer and mixer.kind == "mamba2" and mixer.chunk != CHUNK:
        yield "recurrent.chunk", f"{mixer.chunk}: Megatron-LM's Mamba-2 has chunks of {CHUNK}"


def read_hybrid(draft: ImportDraft, found: Mapping[str, Any], model: Model) -> Model:
    """The model that the pattern makes of a model of transformer layers."""
    text = str(found.get(PATTERN) or found.get(OLD_PATTERN) or "").strip("\"'")
    if not text:
        return model
    main = text.partition("/")[0]
    blocks = main.replace("|", "")
    kinds = [kind for kind, sign in _RECURRENT.items() if sign in blocks]
    strange = sorted(set(blocks) - set("MGE-*+"))
    if strange or len(kinds) > 1 or not blocks:
        why = f"letters {', '.join(strange)} are not known" if strange else "one kind of recurrent layers is read"
        draft.faults.append(Fault(f"--{PATTERN}", f"{text[:80]!r}: {why}"))
        return model
    layers = [*_layers(main)]
    draft.understood.append(
        f"--{PATTERN} -> {len(layers)} layers, {blocks.count('*') + blocks.count('+')} of attention"
    )
    mixer = _recurrent(draft, found, kinds[0], model) if kinds else None
    return replace(
        model, layers=len(layers), recurrent=mixer, attention_gate="attention-output-gate" in found,
        mixers=shortest([mixed for mixed, _ in layers]), feeds=_feeds([fed for _, fed in layers], model),
        moe=model.moe and replace(model.moe, first_dense=0, every=1),
    )  # fmt: skip


def chunk_layers(text: str) -> tuple[int, ...]:
    """Layers of every chunk, where bars say it."""
    main = text.strip("\"'").partition("/")[0]
    paired = _paired(main.replace("|", ""))
    return tuple(len(piece) // 2 if paired else len(piece) for piece in main.split("|")) if "|" in main else ()


def _paired(blocks: str) -> bool:
    """Whether every mixer has a feed-forward block behind it."""
    return len(blocks) % 2 == 0 and all(
        mixer in "MG*+" and feed in "-E" for mixer, feed in zip(blocks[::2], blocks[1::2], strict=True)
    )


def _layers(main: str) -> Iterator[tuple[Mixer, Feed]]:
    blocks = main.replace("|", "")
    fed: dict[str, Feed] = {"-": "dense", "E": "experts"}

    def mixed(sign: str) -> Mixer:
        return "attention" if sign in _ATTENTIONS else "recurrent"

    if _paired(blocks):
        yield from ((mixed(mixer), fed[feed]) for mixer, feed in zip(blocks[::2], blocks[1::2], strict=True))
    else:
        yield from (("none", fed[sign]) if sign in fed else (mixed(sign), "none") for sign in blocks)


def _feeds(feeds: list[Feed], model: Model) -> tuple[Feed, ...]:
    """Empty where every layer has what the model says anyway."""
    usual: Feed = "experts" if model.moe else "dense"
    return () if set(feeds) == {usual} else shortest(feeds)


def _recurrent(draft: ImportDraft, found: Mapping[str, Any], kind: str, model: Model) -> Recurrent:
    defaults = dict(zip(("heads", "head_size", "state", "key_heads", "conv"), _DEFAULTS[kind], strict=True))
    sizes = dict(defaults)
    for ours, flag in SIZES[kind].items():
        if flag in found:
            number = draft.whole(f"--{flag}", found[flag], row=f"Recurrent.{ours}")
            sizes[ours] = defaults[ours] if number is None else number
    if not sizes["heads"]:
        sizes["heads"] = 2 * model.hidden // max(1, sizes["head_size"])
    if sizes["key_heads"] == sizes["heads"]:
        sizes["key_heads"] = 0
    mamba = kind == "mamba2"
    return Recurrent(
        kind="mamba2" if mamba else "delta", heads=sizes["heads"], head_size=sizes["head_size"], state=sizes["state"],
        key_heads=sizes["key_heads"], conv=sizes["conv"], conv_bias=mamba, chunk=CHUNK if mamba else 64,
    )  # fmt: skip
