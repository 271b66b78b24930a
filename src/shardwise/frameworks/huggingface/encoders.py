"""Hugging Face configs of encoders, of encoders with a decoder, and of the vision towers of language models.

A reader takes the keys of its part and gives a model of ours; what a published file leaves out is what the class in
transformers has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.frameworks.huggingface.keys import Keys
from shardwise.inputs.model import Model
from shardwise.inputs.towers import Projector, Stem

Fields = dict[str, Any]
_BIASES: Fields = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
_TURNED: Fields = {
    "norm": "layernorm", "position": "learned+rope", "activation": "gelu", **_BIASES
}  # fmt: skip
_PLAIN: Fields = {"norm": "layernorm", "position": "learned", "activation": "gelu", **_BIASES}


def _whole(keys: Keys, names: str, default: int = 0) -> int:
    """A number by any of its names; without a default it must be there. Of a height and a width, both alike, one."""
    every = names.split()
    listed = keys.data.get(every[0])
    if isinstance(listed, list):
        if not listed or any(one != listed[0] for one in listed):
            raise InputError(Fault(every[0], f"{listed} is no square, which is what can be read; give one number"))
        keys.data[every[0]] = listed[0]
    found = keys.whole(*every)
    if not found and not default:
        raise InputError(Fault(every[0], "is missing; add it"))
    return found or default


def _sizes(keys: Keys, layers: str, hidden: str, heads: str, ffn: str) -> Fields:
    width, count = _whole(keys, hidden), _whole(keys, heads)
    if width % count:
        raise InputError(
            Fault(hidden.split(maxsplit=1)[0], f"{width} is not a multiple of {count} heads; correct one of them")
        )
    return {
        "layers": _whole(keys, layers), "hidden": width, "heads": count, "kv_heads": count,
        "head_size": width // count, "ffn": _whole(keys, ffn),
    }  # fmt: skip


def _named(keys: Keys) -> Fields:
    return _sizes(keys, "num_hidden_layers depth", "hidden_size", "num_attention_heads num_heads", "intermediate_size")


def _dropout(keys: Keys, *names: str) -> float:
    return max(float(keys.number(name, row="Model.dropout") or 0.0) for name in names)


def _bert(keys: Keys, name: str) -> Model:
    keys.passed("hidden_act", "pooler_fc_size", "position_embedding_type", "attention_probs_dropout_prob", "num_labels")
    return Model(
        name=name, **_named(keys), **_PLAIN, causal=False, vocab=_whole(keys, "vocab_size"),
        max_positions=_whole(keys, "max_position_embeddings", 512), token_types=_whole(keys, "type_vocab_size", 2),
        embedding_norm=True, head_dense=True, head_bias=True, tied=keys.switch("tie_word_embeddings") is not False,
        norm_eps=keys.number("layer_norm_eps", row="Model.norm_eps") or 1e-12,
        dropout=_dropout(keys, "hidden_dropout_prob"),
    )  # fmt: skip


def _vit(keys: Keys, name: str) -> Model:
    stem = _stem(keys, leading=1)
    keys.passed("hidden_act", "encoder_stride", "pooler_act", "pooler_output_size", "attention_probs_dropout_prob")
    labels = keys.get("id2label")
    classes = keys.whole("num_labels") or (len(labels) if isinstance(labels, dict) and labels else 2)
    keys.passed("id2label", "label2id", "num_labels")
    made = {**_PLAIN, "qkv_bias": keys.switch("qkv_bias") is not False}
    return Model(
        name=name, **_named(keys), **made, causal=False, vocab=classes, head_bias=True, pooled=True, stem=stem,
        max_positions=stem.tokens(), dropout=_dropout(keys, "hidden_dropout_prob"),
        norm_eps=keys.number("layer_norm_eps", row="Model.norm_eps") or 1e-12,
    )  # fmt: skip


def _t5(keys: Keys, name: str) -> Model:
    heads, gated = _whole(keys, "num_heads"), str(keys.get("feed_forward_proj") or "relu").startswith("gated")
    depth = _whole(keys, "num_layers")
    keys.passed("dense_act_fn", "is_gated_act", "relative_attention_max_distance", "scale_decoder_outputs")
    shared: Fields = {
        "hidden": _whole(keys, "d_model"), "heads": heads, "kv_heads": heads, "head_size": _whole(keys, "d_kv", 64),
        "ffn": _whole(keys, "d_ff"), "vocab": _whole(keys, "vocab_size"), "position": "relative",
        "max_positions": _whole(keys, "relative_attention_num_buckets", 32),
        "activation": "geglu" if gated else "relu", "dropout": _dropout(keys, "dropout_rate"),
        "norm_eps": keys.number("layer_norm_epsilon", row="Model.norm_eps") or 1e-6,
    }  # fmt: skip
    tied = keys.switch("tie_word_embeddings") is not False
    encoder = Model(name="encoder", layers=depth, causal=False, **shared)
    decoder = _whole(keys, "num_decoder_layers", depth)
    return Model(name=name, layers=decoder, tied=tied, towers=(encoder,), **shared)


def _whisper(keys: Keys, name: str) -> Model:
    longest = _whole(keys, "max_source_positions", 1500)
    stem = Stem(size=2 * longest, patch=2, channels=_whole(keys, "num_mel_bins", 80), flat=True, kernel=3)
    keys.passed(
        "activation_function", "apply_spec_augment", "classifier_proj_size", "max_length", "median_filter_width",
        "use_weighted_layer_sum", "encoder_layerdrop", "decoder_layerdrop", "num_hidden_layers", "scale_embedding",
    )  # fmt: skip
    shared: Fields = {**_PLAIN, "key_bias": False, "heads_first": True, "dropout": _dropout(keys, "dropout")}
    encoder, decoder = (
        _sizes(keys, f"{part}_layers", "d_model", f"{part}_attention_heads", f"{part}_ffn_dim")
        for part in ("encoder", "decoder")
    )
    tower = Model(name="encoder", **encoder, **shared, causal=False, stem=stem, max_positions=longest)
    return Model(
        name=name, **decoder, **shared, tied=keys.switch("tie_word_embeddings") is not False, towers=(tower,),
        vocab=_whole(keys, "vocab_size"), max_positions=_whole(keys, "max_target_positions", 448),
    )  # fmt: skip


def _bart(keys: Keys, name: str) -> Model:
    """Norms stand behind its blocks, so that none follows the last; two rows of positions are never used."""
    keys.passed("activation_function", "encoder_layerdrop", "decoder_layerdrop", "num_hidden_layers", "scale_embedding")
    shared: Fields = {
        **_PLAIN, "heads_first": True, "final_norm": False, "embedding_norm": True,
        "dropout": _dropout(keys, "dropout"), "max_positions": _whole(keys, "max_position_embeddings", 1024) + 2,
        "vocab": _whole(keys, "vocab_size"),
    }  # fmt: skip
    encoder, decoder = (
        _sizes(keys, f"{part}_layers", "d_model", f"{part}_attention_heads", f"{part}_ffn_dim")
        for part in ("encoder", "decoder")
    )
    tower = Model(name="encoder", **encoder, **shared, causal=False)
    tied = keys.switch("tie_word_embeddings") is not False
    return Model(name=name, **decoder, **shared, tied=tied, towers=(tower,))


WHOLE: dict[str, Callable[[Keys, str], Model]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), _bert),
    **dict.fromkeys(("t5", "mt5"), _t5),
    "vit": _vit, "whisper": _whisper, "bart": _bart,
}  # fmt: skip
"""Architectures that are no decoder of text alone, by model_type; whole models."""


def _stem(keys: Keys, **more: Any) -> Stem:  # noqa: ANN401 - fields of a stem
    channels = _whole(keys, "num_channels in_channels in_chans", 3)
    return Stem(size=_whole(keys, "image_size"), patch=_whole(keys, "patch_size"), channels=channels, **more)


def _qwen_vision(keys: Keys, **more: Any) -> Fields:  # noqa: ANN401 - fields of a stem
    """Pictures come as rows of patches, of two frames each; of any size, so of one that is usual."""
    patch, merge = _whole(keys, "patch_size", 14), _whole(keys, "spatial_merge_size", 2)
    keys.passed("spatial_patch_size", "out_hidden_size", "tokens_per_second", "hidden_act")
    frames = _whole(keys, "temporal_patch_size", 2)
    channels = _whole(keys, "in_channels in_chans", 3)
    return {
        "causal": False, "final_norm": False, "fused_qkv": True,
        "stem": Stem(size=32 * patch * merge // 2, patch=patch, channels=channels, frames=frames, **more),
    }  # fmt: skip


def _merger(keys: Keys, hidden: int, **more: Any) -> Projector:  # noqa: ANN401 - fields of a projector
    merge = _whole(keys, "spatial_merge_size", 2)
    return Projector(merge=merge, norm="tokens", inner=(merge * merge * hidden,), **more)


def _qwen2_5_vision(keys: Keys, _outer: Keys) -> Model:
    sizes = _sizes(keys, "depth num_hidden_layers", "hidden_size", "num_heads num_attention_heads", "intermediate_size")
    full, patch = keys.items("fullatt_block_indexes"), _whole(keys, "patch_size", 14)
    window = (_whole(keys, "window_size", 112) // patch) ** 2
    windows = tuple(0 if index in full else window for index in range(sizes["layers"]))
    step = full[0] + 1 if full else 0
    if step and full == list(range(step - 1, sizes["layers"], step)):
        windows = windows[:step]
    return Model(
        name="vision", **sizes, **_BIASES, windows=windows, chunked=True, **_qwen_vision(keys, bias=False),
        projector=_merger(keys, sizes["hidden"]),
    )  # fmt: skip


def _qwen2_vision(keys: Keys, _outer: Keys) -> Model:
    """Its width is `embed_dim`; `hidden_size` is the language model's."""
    hidden, heads = _whole(keys, "embed_dim", 1280), _whole(keys, "num_heads", 16)
    keys.passed("hidden_size")
    ratio = keys.number("mlp_ratio", row="option.times") or 4
    return Model(
        name="vision", layers=_whole(keys, "depth", 32), hidden=hidden, heads=heads, kv_heads=heads,
        head_size=hidden // heads, ffn=int(hidden * ratio), norm="layernorm", activation="gelu", **_BIASES,
        **_qwen_vision(keys, bias=False), projector=_merger(keys, hidden),
    )  # fmt: skip


def _qwen3_vision(keys: Keys, _outer: Keys) -> Model:
    sizes = _sizes(keys, "depth num_hidden_layers", "hidden_size", "num_heads num_attention_heads", "intermediate_size")
    taps = len(keys.items("deepstack_visual_indexes"))
    return Model(
        name="vision", **sizes, **_TURNED, max_positions=_whole(keys, "num_position_embeddings", 2304),
        **_qwen_vision(keys), projector=_merger(keys, sizes["hidden"], taps=taps),
    )  # fmt: skip


def _intern_vision(keys: Keys, outer: Keys) -> Model:
    sizes, stem = _named(keys), _stem(keys, leading=1)
    ratio = outer.number("downsample_ratio", row="option.share") or 0.5
    biased = keys.switch("attention_bias", "qkv_bias") or False
    normed = keys.switch("use_qk_norm", "qk_normalization") or False
    keys.passed("use_mask_token", "use_mean_pooling", "norm_type", "layer_scale_init_value", "initializer_factor")
    rms = str(keys.get("norm_type") or "layer_norm").startswith("rms")
    made = {**_PLAIN, "qkv_bias": biased, "norm": "rmsnorm" if rms else "layernorm"}
    hidden = outer.data.get("text_hidden") or 0
    merge = round(1 / ratio)
    return Model(
        name="vision", **sizes, **made, causal=False, layer_scale=True, qk_norm="full" if normed else "none",
        max_positions=stem.tokens(), stem=stem, final_norm=False,
        projector=Projector(merge=merge, norm="merged", inner=(int(hidden),)),
    )  # fmt: skip


def _llama4_vision(keys: Keys, _outer: Keys) -> Model:
    stem = _stem(keys, leading=1, bias=False)
    sizes = _named(keys)
    merge = round(1 / (keys.number("pixel_shuffle_ratio", row="option.share") or 0.5))
    inner = (_whole(keys, "projector_input_dim", 4096), _whole(keys, "projector_output_dim", 4096))
    output = _whole(keys, "vision_output_dim", inner[1])
    if output != inner[1] or sizes["ffn"] != merge * merge * sizes["hidden"]:
        told = (
            f"projector_output_dim is {inner[1]} and hidden_size {sizes['hidden']}, which do not fit vision_output_dim"
        )
        raise InputError(Fault("vision_config", f"{told} {output} and intermediate_size {sizes['ffn']}; correct them"))
    keys.passed("projector_dropout", "vision_feature_layer", "vision_feature_select_strategy", "hidden_act")
    keys.passed("multi_modal_projector_bias", "norm_eps")
    return Model(
        name="vision", **sizes, **_TURNED, causal=False, embedding_norm=True, max_positions=stem.tokens(), stem=stem,
        projector=Projector(merge=merge, inner=inner, bias=False),
    )  # fmt: skip


def _gemma_vision(keys: Keys, outer: Keys) -> Model:
    """SigLIP without its pooling head, which Gemma's files leave out and nothing would read."""
    stem, tokens = _stem(keys), outer.whole("mm_tokens_per_image") or 256
    side = stem.size // stem.patch
    merge = max(1, round(side / tokens**0.5))
    keys.passed("vision_use_head", "hidden_act")
    return Model(
        name="vision", **_named(keys), **_PLAIN, causal=False, max_positions=side * side, stem=stem,
        projector=Projector(merge=merge, pooled=True, norm="tokens", rms=True, bias=False),
    )  # fmt: skip


VISION: dict[str, Callable[[Keys, Keys], Model]] = {
    "qwen2_vl": _qwen2_vision, "qwen2_5_vl": _qwen2_5_vision,
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe"), _qwen3_vision),
    **dict.fromkeys(("internvl", "internvl_chat"), _intern_vision), "llama4": _llama4_vision, "gemma3": _gemma_vision,
}  # fmt: skip
"""The vision tower by model_type of the whole file."""


def vision_of(data: dict[str, Any], hidden: int) -> tuple[Model, ...]:
    """The tower of a file whose language model is so wide; none where there is none, or it cannot be counted."""
    part, read = data.get("vision_config"), VISION.get(str(data.get("model_type") or "").lower())
    if read is None or not isinstance(part, dict):
        return ()
    try:
        return (read(Keys(part), Keys({**data, "text_hidden": hidden})),)
    except InputError as error:
        faults = [Fault(f"vision_config.{one.path}", one.message) for one in error.faults]
        raise InputError(faults) from None
