"""Megatron Bridge's configuration (`ConfigContainer.to_yaml`) as Megatron-LM's flags, which one reader understands.

Its sections hold Megatron-Core's own names; a few are said the other way round, or under another name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.frameworks.imported import Imported
from shardwise.frameworks.megatron.read import drafted, finished
from shardwise.frameworks.shell import Flags

SECTIONS = ("tokenizer", "model", "train", "dataset", "optimizer", "ddp", "dist", "mixed_precision", "comm_overlap")
"""Sections that say something of a strategy or a model; a later one goes before an earlier one."""
NAMES = {
    "num_moe_experts": "num-experts", "fp8": "fp8-format", "fp4": "fp4-format", "fp8_param": "fp8-param-gather",
    "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
    "layernorm_epsilon": "norm-epsilon", "rope_scaling": "use-rope-scaling",
    "seq_len_interpolation_factor": "rotary-seq-len-interpolation-factor",
    "yarn_rotary_scaling_factor": "rotary-scaling-factor", "yarn_mscale": "mscale",
    "yarn_mscale_all_dim": "mscale-all-dim", "beta_fast": "yarn-beta-fast", "beta_slow": "yarn-beta-slow",
    "original_max_position_embeddings": "yarn-original-max-position-embeddings",
}  # fmt: skip
TURNED = {
    "add_bias_linear": "disable-bias-linear",
    "share_embeddings_and_output_weights": "untie-embeddings-and-output-weights",
    "grad_reduce_in_fp32": "grad-reduce-in-bf16",
    "yarn_correction_range_round_to_int": "no-yarn-correction-range-round-to-int",
}
"""Settings whose `false` is a flag."""
_ACTIVATIONS = {"silu": "swiglu", "swiglu": "swiglu", "quick_gelu": "quick-geglu", "squared_relu": "squared-relu"}
_HERE = frozenset({
    "gated_linear_unit", "activation_func", "num_query_groups", "window_size", "moe_layer_freq",
    "pipeline_model_parallel_layout",
})  # fmt: skip
"""Settings that are read here, since what they mean takes two of them or another form."""


def read_bridge(data: Mapping[str, Any], *, title: str) -> Imported:
    """The strategy and the model of a configuration; what no flag of Megatron-LM stands for is named by its section."""
    found = Flags()
    for name in SECTIONS:
        section = data.get(name)
        if isinstance(section, dict):
            found.update(_flags(section))
    draft = drafted(found)
    unread = [name.removeprefix("--").partition(" ")[0] for name in draft.ignored]
    draft.ignored = [f"settings that neither time nor memory here depends on: {', '.join(unread)}"] if unread else []
    draft.ignored += [f"section {name}" for name in data if name not in SECTIONS and data[name]]
    return finished(draft, title)


def _flags(section: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    for key, value in section.items():
        if key in TURNED:
            if value is False:
                yield TURNED[key], None
        elif key not in _HERE and not key.startswith("_"):
            yield from _flag(NAMES.get(key, key.replace("_", "-")), value)
    yield from _composed(section)


def _composed(section: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    if section.get("gated_linear_unit") or section.get("activation_func"):
        word = str(section.get("activation_func") or "silu").rpartition(".")[2]
        if word == "gelu" and section.get("gated_linear_unit"):
            yield "quick-geglu", None
        elif word in _ACTIVATIONS:
            yield _ACTIVATIONS[word], None
    if section.get("num_query_groups"):
        yield from (("group-query-attention", None), ("num-query-groups", str(section["num_query_groups"])))
    if section.get("kv_lora_rank") and "multi_latent_attention" not in section:
        yield "multi-latent-attention", None
    if section.get("moe_layer_freq"):
        yield "moe-layer-freq", str(section["moe_layer_freq"])
    if section.get("pipeline_model_parallel_layout"):
        yield "pipeline-model-parallel-layout", _layout(section["pipeline_model_parallel_layout"])
    if section.get("position_embedding_type") == "learned_absolute" and section.get("seq_length"):
        yield "max-position-embeddings", str(section["seq_length"])
    if section.get("window_size"):
        yield "window-size", ",".join(map(str, section["window_size"]))


def _flag(name: str, value: object) -> Iterator[tuple[str, str | None]]:
    """True is a switch; false, null and tables say nothing."""
    if value is True:
        yield name, None
    elif isinstance(value, list) and all(isinstance(one, str | int | float) for one in value) and value:
        yield name, " ".join(map(str, value))
    elif isinstance(value, str | int | float) and value is not False and value != "":
        yield name, str(value)


_PIECES = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def _layout(stages: object) -> str:
    """Stages of named pieces as the text that Megatron-LM's flag has."""
    if not isinstance(stages, list):
        return str(stages)
    return "|".join("".join(_PIECES.get(str(piece), "?") for piece in stage) for stage in stages)
