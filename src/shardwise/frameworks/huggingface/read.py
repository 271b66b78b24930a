"""A Hugging Face `config.json` of a causal language model, read without that library.

The alias table turns its many spellings into our fields; a family says what the architecture implies. What was
understood, ignored and not understood is part of the answer; layers that we cannot count are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.frameworks.huggingface.encoders import VISION, WHOLE, vision_of
from shardwise.frameworks.huggingface.families import ALIASES, FAMILIES, HYBRID, IGNORED, LLAMA, NOT_CAUSAL, Family
from shardwise.frameworks.huggingface.hybrids import HEADLESS, HYBRIDS, LISTED
from shardwise.frameworks.huggingface.keys import Keys
from shardwise.frameworks.huggingface.positions import positions
from shardwise.frameworks.huggingface.special import SPECIAL
from shardwise.inputs.mixers import shortest
from shardwise.inputs.model import Activation, Mla, Model, Moe

_NESTED = ("text_config", "llm_config", "language_config", "text_model_config", "thinker_config")
_SPELLINGS = frozenset(name for names in ALIASES.values() for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceModel:
    """A model with what its file said."""

    model: Model
    """The model."""
    architecture: str
    """The file's model_type."""
    understood: tuple[str, ...]
    """Keys that set a field of ours."""
    ignored: tuple[str, ...]
    """Keys that change neither shapes nor time."""
    unknown: tuple[str, ...]
    """Keys that were not understood."""
    notes: tuple[str, ...]
    """Sentences for the user."""


def is_config(data: dict[str, Any]) -> bool:
    """Whether the values look like a Hugging Face config rather than one of our files."""
    if {"layers", "hidden"} <= data.keys():
        return False
    spellings = {name for concept in ("layers", "hidden", "heads") for name in ALIASES[concept]} | set(_NESTED)
    return "model_type" in data or "architectures" in data or bool(spellings & data.keys())


def name_of(data: dict[str, Any], path: Path) -> str:
    """What to call the model: its own name, else its folder's or file's."""
    own = str(data.get("_name_or_path") or "").rstrip("/").rsplit("/", maxsplit=1)[-1]
    return (own or (path.resolve().parent.name if path.stem == "config" else path.stem)).lower()


def read_config(data: dict[str, Any], *, name: str = "model", title: str = "config.json") -> HuggingFaceModel:
    """The model that a config.json describes, or an InputError that names what is missing or strange."""
    try:
        return _read(data, name)
    except InputError as error:
        raise InputError(error.faults, title=title) from None


def _read(data: dict[str, Any], name: str) -> HuggingFaceModel:
    inner = next((data[key] for key in _NESTED if isinstance(data.get(key), dict)), None)
    # A nested text part may leave to the outer file what both share.
    tied = {"tie_word_embeddings": data["tie_word_embeddings"]} if data.get("tie_word_embeddings") is not None else {}
    seen = tied if str(data.get("model_type")) in VISION else {}  # the class of the whole file ties, or does not
    keys = Keys(data if inner is None else {**tied, **inner, **seen})
    kind = str(keys.get("model_type") or data.get("model_type") or "unknown").lower()
    if inner is None and kind in WHOLE:
        return _whole_model(keys, kind, name)
    _refuse(keys, kind)
    family = FAMILIES.get(kind, LLAMA)
    fields = _fields(keys, kind, family)
    towers = vision_of(data, fields["hidden"])
    model = Model(name=name, **fields, towers=towers)
    if model.heads % model.kv_heads:
        raise InputError(f"{model.kv_heads} key and value heads do not divide {model.heads} heads; correct one of them")
    unknown = tuple(sorted(keys.given - keys.read - IGNORED - _SPELLINGS))
    ignored = tuple(sorted((keys.given & (IGNORED | _SPELLINGS)) - keys.read))
    counted = {"vision_config", *_VISION_KEYS, *IGNORED} if towers else set()
    beside = (
        () if inner is None else tuple(sorted(key for key in data if data[key] is not inner and key not in counted))
    )
    return HuggingFaceModel(
        model=model,
        architecture=kind,
        understood=tuple(sorted((keys.read & keys.given) - IGNORED)),
        ignored=ignored,
        unknown=unknown,
        notes=_notes(kind, unknown, ignored, beside, "language part" + (" and its vision tower" if towers else "")),
    )


_VISION_KEYS = (
    "downsample_ratio", "mm_tokens_per_image", "model_type", "tie_word_embeddings", "image_seq_length",
    "projector_hidden_act", "vision_feature_layer", "vision_feature_select_strategy",
)  # fmt: skip


def _whole_model(keys: Keys, kind: str, name: str) -> HuggingFaceModel:
    """An encoder, or an encoder with a decoder."""
    model = WHOLE[kind](keys, name)
    keys.passed("model_type", "is_encoder_decoder", "tie_word_embeddings")
    return HuggingFaceModel(
        model=model,
        architecture=kind,
        understood=tuple(sorted((keys.read & keys.given) - IGNORED)),
        ignored=tuple(sorted((keys.given & IGNORED) - keys.read)),
        unknown=tuple(sorted(keys.given - keys.read - IGNORED)),
        notes=(),
    )


def _notes(
    kind: str, unknown: tuple[str, ...], ignored: tuple[str, ...], beside: tuple[str, ...], part: str
) -> tuple[str, ...]:
    notes = []
    if kind not in FAMILIES:
        notes.append(f"the architecture {kind!r} is not known; it was read as a Llama-like model, so check its size")
    if beside:
        notes.append(
            f"only the {part} {'were' if 'tower' in part else 'was'} read; left out beside it: {', '.join(beside)}"
        )
    if unknown:
        notes.append(f"not understood: {', '.join(unknown)}")
    if ignored:
        notes.append(f"without effect on sizes and times: {', '.join(ignored)}")
    return tuple(notes)


def _refuse(keys: Keys, kind: str) -> None:
    if kind in NOT_CAUSAL or keys.switch("is_encoder_decoder"):
        raise InputError(
            f"{kind!r} is not a causal language model, and of others only {', '.join(sorted(WHOLE))} are read; "
            "trace it (`shardwise models --trace`), or describe it in a file of ours"
        )
    known = kind in HYBRIDS
    strange = sorted(key for key in keys.data if key.lower().startswith(HYBRID) and keys.data[key] not in (None, False))
    if strange and not known:
        raise InputError(
            f"{kind!r} has layers that are not attention with a feed-forward block (keys {', '.join(strange)}); "
            "they cannot be counted yet: describe the nearest transformer in a file of ours"
        )
    missing = [
        Fault(ALIASES[concept][0], f"is missing (also known as {', '.join(ALIASES[concept][1:])}); add it")
        for concept in ("layers", "hidden", "heads", "vocab")
        if not keys.concept(concept)
        and not (concept == "heads" and kind in HEADLESS)
        and not (concept == "layers" and kind in LISTED)
    ]
    if missing:
        raise InputError(missing)


def _fields(keys: Keys, kind: str, family: Family) -> dict[str, Any]:
    hidden, heads = keys.concept("hidden") or 0, keys.concept("heads") or 1
    fields: dict[str, Any] = {
        "layers": keys.concept("layers") or 1,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": keys.concept("kv_heads") or heads,
        "head_size": _head_size(keys, hidden, heads),
        "vocab": keys.concept("vocab"),
        **family.fixed,
        "activation": _activation(keys, family),
        "gelu_steps": not family.gated and _in_steps(keys, family),
        "mtp": keys.concept("mtp") or 0,
        "dropout": _dropout(keys),
        "mla": _mla(keys),
    }
    if (eps := keys.number(*ALIASES["norm_eps"], row="Model.norm_eps")) is not None:
        fields["norm_eps"] = eps
    fields |= positions(keys, fields) | _scores(keys, fields)
    for ours, theirs in family.switches.items():
        value = keys.switch(*theirs)
        fields |= {} if value is None else {ours: value}
    if (tied := keys.switch("tie_word_embeddings")) is not None:
        fields["tied"] = tied
    if keys.switch("use_qk_norm", "qk_layernorm"):
        fields["qk_norm"] = "head"
    if fields.get("position") == "learned":
        fields["max_positions"] = keys.concept("max_positions") or 0
    fields["ffn"] = keys.concept("ffn") or family.ffn_factor * hidden
    fields["moe"] = _moe(keys, family, fields["ffn"], fields["layers"])
    if kind in HYBRIDS:
        return {**fields, "windows": (), "window_rotary_base": 0.0} | _hybrid(keys, kind, fields)
    fields["windows"] = _windows(keys, family, fields["layers"])
    if not fields["windows"] or (not fields["rope_scaling"] and fields["window_rotary_base"] == fields["rotary_base"]):
        fields["window_rotary_base"] = 0.0
    fields |= SPECIAL[kind](keys, fields) if kind in SPECIAL else {}
    if fields["mla"]:
        fields["head_size"] = fields["mla"].nope_size
    if not fields["ffn"] and not fields["moe"]:
        raise InputError(
            Fault(ALIASES["ffn"][0], f"is missing (also known as {', '.join(ALIASES['ffn'][1:])}); add it")
        )
    keys.get(*ALIASES["max_positions"])
    return fields


def _hybrid(keys: Keys, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    found = HYBRIDS[kind](keys, fields)
    if fields["mla"]:
        found["head_size"] = fields["mla"].nope_size
    keys.get(*ALIASES["max_positions"])
    return found


def _head_size(keys: Keys, hidden: int, heads: int) -> int:
    size = keys.concept("head_size")
    if size is None and hidden % heads and not keys.whole("kv_lora_rank"):
        message = f"{hidden} is not a multiple of {heads} heads; correct one of them, or give {ALIASES['head_size'][0]}"
        raise InputError(Fault(ALIASES["hidden"][0], message))
    return size or hidden // heads


def _activation(keys: Keys, family: Family) -> Activation:
    given = keys.get(*ALIASES["activation"])
    text = "" if given is None else str(given).lower()
    if given is not None and not re.search(r"silu|swish|swiglu|glu|gelu|relu|xielu", text):
        name = next(name for name in ALIASES["activation"] if keys.data.get(name) is not None)
        raise InputError(Fault(name, f"{text[:60]!r} is no activation that is known; write silu, gelu or relu"))
    if family.fixed.get("activation") == "squared-relu" or text in {"relu2", "squared_relu"}:
        return "squared-relu"
    if family.gated:
        return "geglu" if "gelu" in text or family.fixed.get("activation") == "geglu" else "swiglu"
    return "relu" if text == "relu" or (not text and family.fixed.get("activation") == "relu") else "gelu"


def _in_steps(keys: Keys, family: Family) -> bool:
    """Whether the library's own activation is a chain of torch's (`gelu_new`, which GPT-2 has where no key says)."""
    given = keys.get(*ALIASES["activation"])
    return (
        str(given).lower() in {"gelu_new", "gelu_fast"} if given is not None else bool(family.fixed.get("gelu_steps"))
    )


def _dropout(keys: Keys) -> float:
    return max(float(keys.number(name, row="Model.dropout") or 0.0) for name in ALIASES["dropout"])


_CAPS = {"score_cap": "attn_logit_softcapping", "logit_cap": "final_logit_softcapping"}


def _scores(keys: Keys, fields: dict[str, Any]) -> dict[str, Any]:
    """What attention scores are divided by, and the caps; null is none, whatever the architecture has."""
    said = {ours: keys.number(name, row=f"Model.{ours}") or 0.0 for ours, name in _CAPS.items() if name in keys.data}
    scalar = keys.whole("query_pre_attn_scalar", row="Model.query_scalar") or fields.get("query_scalar", 0)
    return {**said, "query_scalar": 0 if scalar == fields["head_size"] else scalar}


def _mla(keys: Keys) -> Mla | None:
    rank = keys.whole("kv_lora_rank")
    if not rank:
        return None
    names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    sizes = [keys.whole(name) or 0 for name in names]
    missing = [Fault(name, "is missing; MLA needs it") for name, size in zip(names, sizes, strict=True) if not size]
    if missing:
        raise InputError(missing)
    nope, rope, value = sizes
    return Mla(kv_rank=rank, nope_size=nope, rope_size=rope, value_size=value, q_rank=keys.whole("q_lora_rank") or 0)


def _moe(keys: Keys, family: Family, ffn: int, layers: int) -> Moe | None:
    experts = keys.concept("experts") or 0
    if experts <= 1:
        return None
    top_k = keys.concept("top_k")
    if not top_k:
        raise InputError(
            Fault(ALIASES["top_k"][0], f"is missing; {experts} experts need the number that a token visits")
        )
    expert_ffn = keys.concept("expert_ffn") or ffn
    shared = keys.concept("shared_ffn") or (keys.concept("shared_count") or 0) * expert_ffn
    first_dense, every = _moe_pattern(keys, layers)
    gate = bool(keys.get("shared_expert_intermediate_size"))
    groups = keys.whole("n_group") or 1
    return Moe(
        experts=experts, top_k=top_k, expert_ffn=expert_ffn, shared_ffn=shared, first_dense=first_dense, every=every,
        shared_gate=gate, groups=groups, top_groups=min(keys.whole("topk_group") or groups, groups),
        **{**family.router, **_router(keys)},
    )  # fmt: skip


def _router(keys: Keys) -> dict[str, Any]:
    """What the file says of the router's weights; a word that is not known stays among what was not understood."""
    found: dict[str, Any] = {}
    for ours in ("scale", "balance_loss"):
        if (number := keys.number(*ALIASES[ours], row=f"Moe.{ours}")) is not None:
            found[ours] = number
    if (normalised := keys.switch(*ALIASES["normalised"])) is not None:
        found["normalised"] = normalised
    if (score := keys.word(("softmax", "sigmoid"), "scoring_func", "score_function")) is not None:
        found["score"] = score
    if (bias := keys.switch("moe_router_enable_expert_bias")) is not None:
        found["balance_bias"] = bias
    elif (method := keys.word(("greedy", "gready", "group_limited_greedy", "noaux_tc"), "topk_method")) is not None:
        found["balance_bias"] = method == "noaux_tc"
    return found


def _moe_pattern(keys: Keys, layers: int) -> tuple[int, int]:
    """Leading dense layers and the step, from a count, a step, or a list of layers."""
    if isinstance(keys.get(*ALIASES["every"]), list):
        frequency = keys.items(next(name for name in ALIASES["every"] if name in keys.given))
        leading = frequency.index(1) if 1 in frequency else layers
        if any(item != 1 for item in frequency[leading:]):
            raise InputError(
                Fault("moe_layer_freq", "dense and expert layers alternate irregularly; write a file of ours")
            )
        return leading, 1
    words = keys.items("mlp_layer_types")
    if words:
        leading = next((index for index, word in enumerate(words) if word != "dense"), layers)
        if any(word == "dense" for word in words[leading:]):
            raise InputError(
                Fault("mlp_layer_types", "dense layers stand behind layers with experts; write a file of ours")
            )
        keys.passed(*ALIASES["first_dense"], *ALIASES["every"])
        return leading, 1
    dense = keys.items("mlp_only_layers")
    if dense and dense != list(range(len(dense))):
        raise InputError(Fault("mlp_only_layers", f"{dense} are not the leading layers; write a file of ours"))
    return max(keys.concept("first_dense") or 0, len(dense)), keys.concept("every") or 1


def _windows(keys: Keys, family: Family, layers: int) -> tuple[int, ...]:
    window = keys.whole("sliding_window", "sliding_window_size", "attention_chunk_size", row="Model.windows") or 0
    kinds = [str(kind) for kind in keys.items("layer_types")]
    if kinds:
        return cycle([0 if "full" in kind else window for kind in _attention_only(kinds)])
    pattern = keys.whole("sliding_window_pattern", "_sliding_window_pattern", row="Moe.first_dense")
    if not window or (family.window == "never" and not keys.switch("use_sliding_window")):
        return ()
    if family.window == "never":
        first = keys.whole("max_window_layers") or 0
        return cycle([0 if index < first else window for index in range(layers)])
    if family.window == "alternate":
        return (window, 0)
    if family.window == "pattern" or pattern:
        return (*[window] * ((pattern or 6) - 1), 0)
    return (window,)


def _attention_only(kinds: list[str]) -> list[str]:
    strange = sorted({kind for kind in kinds if "linear" in kind or not re.search(r"attention|sliding|full", kind)})
    if strange:
        raise InputError(Fault("layer_types", f"{', '.join(strange)} cannot be counted yet"))
    return kinds


def cycle(windows: list[int]) -> tuple[int, ...]:
    """The shortest run that repeats to the whole list; empty where no layer has a window."""
    return shortest(windows) if any(windows) else ()
