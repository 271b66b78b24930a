"""A plan for Megatron Bridge: the sections of its `ConfigContainer` as YAML, and the program that builds and trains it.

Bridge's fields are Megatron-Core's own, so they are made of the flags that Megatron-LM gets; what is said under another
name, or the other way round, is in the tables below. The YAML has the form of `ConfigContainer.to_yaml`, which the
reader beside this file understands.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import yaml

from shardwise.frameworks.launcher import starting
from shardwise.frameworks.megatron.bridge import NAMES, TURNED
from shardwise.frameworks.megatron.write import arguments, settled
from shardwise.frameworks.megatron.write_files import environment
from shardwise.frameworks.target import ExportDraft, File
from shardwise.inputs.model import Model

Sections = dict[str, dict[str, Any]]
_HOMES = {
    **dict.fromkeys(("micro-batch-size", "global-batch-size"), "train"),
    **dict.fromkeys(("optimizer", "use-precision-aware-optimizer", "exp-avg-dtype", "exp-avg-sq-dtype",
                     "optimizer-cpu-offload"), "optimizer"),
    **dict.fromkeys(("use-distributed-optimizer", "num-distributed-optimizer-instances", "overlap-grad-reduce",
                     "overlap-param-gather", "use-megatron-fsdp", "data-parallel-sharding-strategy"), "ddp"),
    **dict.fromkeys(("bf16", "fp16", "fp8-format", "fp8-recipe", "fp4-format", "fp8-param-gather", "fp4-param-gather",
                     "reuse-grad-buf-for-mxfp8-param-ag", "grad-reduce-in-bf16"), "mixed_precision"),
    "ckpt-format": "checkpoint", "tp-comm-overlap": "comm_overlap", "vocab-size": "tokenizer",
    "use-tp-pp-dp-mapping": "dist",
}  # fmt: skip
"""Flag -> the section that has it, where that is not the model's."""
_FIELDS = {flag: field for field, flag in NAMES.items()} | {
    "num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
    "rotary-scaling-factor": "yarn_rotary_scaling_factor", "mscale": "yarn_mscale",
    "mscale-all-dim": "yarn_mscale_all_dim", "yarn-beta-fast": "yarn_beta_fast", "yarn-beta-slow": "yarn_beta_slow",
    "yarn-original-max-position-embeddings": "yarn_original_max_position_embeddings",
    "fp8-param-gather": "fp8_param_gather",
}  # fmt: skip
_TURNED = {flag: field for field, flag in TURNED.items()}
_IDLE = frozenset({
    "group-query-attention", "max-position-embeddings", "seq-length", "accumulate-allreduce-grads-in-fp32", "swiglu",
    "quick-geglu", "squared-relu",
})  # fmt: skip
"""Flags that are said otherwise here, or follow from others."""
_YARN = frozenset({"rotary-scaling-factor", "mscale", "mscale-all-dim"})
"""Flags that latent attention shares with yarn positions; here each has fields of its own."""
_FUNCTIONS = {"swiglu": "silu", "geglu": "gelu", "gelu": "gelu", "relu": "relu", "squared-relu": "squared_relu"}


def write(draft: ExportDraft) -> tuple[File, ...]:
    """`bridge.yaml`, `train_bridge.py` and what starts it."""
    settled(draft)
    text = draft.header() + yaml.safe_dump(sections(draft), sort_keys=False, width=120, default_flow_style=None)
    program = ["train_bridge.py train.train_iters=$STEPS rng.seed=${SEED:-1234}"]
    needs = f"{draft.speaks} with the Megatron-Core that it pins, Transformer Engine and nvidia-resiliency-ext"
    return (
        *starting(draft, "bridge", program, environment=environment(draft), needs=needs),
        File(name="bridge.yaml", text=text),
        File(name="train_bridge.py", text=draft.header() + _PROGRAM),
    )


def sections(draft: ExportDraft) -> Sections:
    """Every field, by its section."""
    s, model = draft.strategy, draft.model
    found: Sections = {
        "model": {}, "train": {}, "validation": {"eval_iters": 0, "eval_interval": 1000},
        "optimizer": {"lr": 1e-4, "min_lr": 0.0}, "scheduler": {"lr_decay_style": "constant", "lr_warmup_iters": 0},
        "ddp": {"grad_reduce_in_fp32": s.grad_dtype == "fp32"}, "mixed_precision": _precision(draft),
        "dataset": {"seq_length": s.seq, "random_seed": 1234},
        "logger": {"log_interval": 1, "log_throughput": True},
        "tokenizer": {"tokenizer_type": "NullTokenizer"}, "checkpoint": {"save": None},
    }  # fmt: skip
    for flag, value in (pair for group in arguments(draft).values() for pair in group):
        if flag not in (_IDLE | _YARN if model.mla else _IDLE):
            field, said = _field(flag, value)
            found.setdefault(_HOMES.get(flag, "model"), {})[field] = said
    found["model"] |= _own(model, s.seq)
    found["model"].setdefault("cross_entropy_loss_fusion", False)  # on by itself in Bridge
    if s.fp8_attention:
        found["mixed_precision"]["fp8_dot_product_attention"] = True
    found["optimizer"]["use_distributed_optimizer"] = s.zero > 0
    return found


def _precision(draft: ExportDraft) -> dict[str, Any]:
    dtype = {"fp32": "float32", "fp16": "float16"}.get(draft.strategy.dtype, "bfloat16")
    kept = draft.strategy.grad_dtype == "fp32"
    return {"params_dtype": dtype, "pipeline_dtype": dtype, "autocast_enabled": False, "grad_reduce_in_fp32": kept}


def _field(flag: str, value: str | float | None) -> tuple[str, Any]:
    if flag in _TURNED:
        return _TURNED[flag], False
    field = _FIELDS.get(flag, flag.replace("-", "_"))
    if flag in {"recompute-modules", "offload-modules", "cuda-graph-modules"}:
        return field, str(value).split()
    if flag == "moe-layer-freq":
        return field, [kind for part in str(value)[1:-1].split("+") for kind in _run(part)]
    if flag == "window-size":
        return field, list(ast.literal_eval(f"({value})"))
    return field, True if value is None else value


def _run(part: str) -> Iterator[int]:
    """`[0]*3` -> 0, 0, 0"""
    kind, times = part.split("*")
    yield from [int(kind.strip("[]"))] * int(times)


def _own(model: Model, seq: int) -> dict[str, Any]:
    """What no flag says, or not in this form."""
    found: dict[str, Any] = {
        "seq_length": seq,
        "activation_func": _FUNCTIONS[model.activation],
        "gated_linear_unit": model.gated,
    }
    scaling = model.rope_scaling
    if model.mla and scaling and scaling.kind == "yarn":
        found |= {
            "rotary_scaling_factor": scaling.factor, "original_max_position_embeddings": scaling.original,
            "beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "mscale": scaling.mscale,
            "mscale_all_dim": scaling.mscale_all,
        }  # fmt: skip
    elif model.mla:
        found["rotary_scaling_factor"] = 1.0  # its own default is 40
    return found


_PROGRAM = '''"""Train what bridge.yaml describes; words such as train.train_iters=5 set a field of a section."""

import sys
from pathlib import Path

import torch
import yaml
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.models.mla_provider import MLAModelProvider
from megatron.bridge.training import config
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.core.activations import squared_relu
from megatron.core.transformer.enums import AttnBackend

FUNCTIONS = {
    "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "relu": torch.nn.functional.relu,
    "squared_relu": squared_relu,
}
DTYPES = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8,
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
}
CLASSES = {
    "train": config.TrainingConfig, "validation": config.ValidationConfig, "optimizer": config.OptimizerConfig,
    "scheduler": config.SchedulerConfig, "ddp": config.DistributedDataParallelConfig,
    "mixed_precision": MixedPrecisionConfig, "dataset": config.MockGPTDatasetConfig, "logger": config.LoggerConfig,
    "tokenizer": config.TokenizerConfig, "checkpoint": config.CheckpointConfig, "rng": config.RNGConfig,
    "comm_overlap": CommOverlapConfig,
}


def value_of(name, value):
    if name.endswith("_dtype"):
        return DTYPES[value]
    if name == "attention_backend":
        return AttnBackend[value]
    return FUNCTIONS[value] if name == "activation_func" else value


def container(words=()):
    sections = yaml.safe_load(Path(__file__).with_name("bridge.yaml").read_text())
    for word in words:
        path, _, value = word.partition("=")
        section, _, name = path.partition(".")
        sections.setdefault(section, {})[name] = yaml.safe_load(value)
    given = {
        section: {name: value_of(name, value) for name, value in fields.items()} for section, fields in sections.items()
    }
    # Packed samples of the mock data are one document to attention, as to the estimate.
    given["dataset"] |= {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    given["dataset"] |= {"dataloader_type": "single", "num_workers": 1}
    model = given.pop("model")
    provider = MLAModelProvider if model.get("multi_latent_attention") else GPTModelProvider
    made = {section: CLASSES[section](**fields) for section, fields in given.items()}
    return config.ConfigContainer(model=provider(**model), **made)


if __name__ == "__main__":
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(container(sys.argv[1:]), forward_step)
'''
