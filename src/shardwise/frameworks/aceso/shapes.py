"""Shapes of the models that Aceso knows by name, in the keys of its runtime's configuration.

Facts of microsoft/SuperScaler, branch Aceso: sizes from search/aceso_utils.py, keys from runtime/megatron/arguments.py,
which reads all of a family's and stops where one is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.frameworks.aceso.names import blocks_of, lists_all
from shardwise.per_op.advice import dimensions
from shardwise.per_op.chain import Chain
from shardwise.per_op.profiles.table import Profile

FAMILIES = {
    "gpt": ("seq_length", "max_position_embeddings", "num_attention_heads", "hidden_size"),
    "t5": (
        "encoder_seq_length", "decoder_seq_length", "max_position_embeddings", "num_attention_heads", "kv_channels",
        "hidden_size", "ffn_hidden_size",
    ),
    "resnet": ("in_channels", "width_factor"),
}  # fmt: skip
"""What the runtime reads of a family beside its layers."""
_T5 = {"770M": (16, 64, 4096), "3B": (32, 128, 16384), "6B": (64, 128, 32768), "11B": (128, 128, 65536)}
"""Heads, their size, and the width of the feed-forward block; hidden 1024, 2048 and 512 tokens everywhere."""
_RESNET = {
    "250M": (160, 2), "500M": (224, 2), "1B": (320, 2), "2B": (448, 2), "4B": (640, 2), "6_8B": (320, 16),
    "13B": (320, 16),
}  # fmt: skip
_T5_LAYERS = 24
"""Of encoder and decoder each (its 22B is the 11B's profile with 48)."""


def family_of(profile: Profile) -> str:
    """What the runtime calls the model's kind: its operators say it, whatever the set is named."""
    if lists_all(profile.ops):
        return "resnet"
    return "t5" if "t5-post-process" in profile.ops else "gpt"


def known_layers(profile: Profile) -> int:
    """Layers of a model whose set has a tag or a name that says them; 0: they must be asked for."""
    tag = profile.tags.get("layers", "")
    if tag.isdecimal():
        return int(tag)
    if family_of(profile) == "t5":
        return _T5_LAYERS if profile.name.partition("_")[2] in _T5 else 0
    shape = dimensions(profile)
    return shape.layers if shape else 0


def layers_of(profile: Profile, chain: Chain) -> int | list[int]:
    """`num_layers`: a Wide-ResNet's is the number of blocks of every group."""
    return blocks_of(profile) if family_of(profile) == "resnet" else chain.layers


def shape_of(profile: Profile) -> dict[str, int]:
    """As many of the runtime's keys as are known: the profile's tags first, then its name."""
    family = family_of(profile)
    found = _named(profile, family) | {key: int(value) for key, value in _tags(profile.tags, family).items()}
    return {key: found[key] for key in FAMILIES[family] if key in found}


def missing_keys(profile: Profile) -> tuple[str, ...]:
    """What the runtime would read and nothing says."""
    known = shape_of(profile)
    return tuple(key for key in FAMILIES[family_of(profile)] if key not in known)


def _tags(tags: Mapping[str, str], family: str) -> dict[str, str]:
    return {key: tags[key] for key in FAMILIES[family] if tags.get(key, "").isdecimal()}


def _named(profile: Profile, family: str) -> dict[str, int]:
    size = profile.name.partition("_")[2]
    if family == "resnet":
        return dict(zip(FAMILIES[family], _RESNET.get(size, ()), strict=False))
    if family == "t5":
        if size not in _T5:
            return {}
        heads, each, inner = _T5[size]
        return dict(zip(FAMILIES[family], (2048, 512, 2048, heads, each, 1024, inner), strict=True))
    shape = dimensions(profile)
    return dict(zip(FAMILIES[family], (shape.seq, shape.seq, shape.heads, shape.hidden), strict=True)) if shape else {}
