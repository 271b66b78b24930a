"""Telling a framework's file by its content."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from shardwise.errors import FileError
from shardwise.frameworks.imported import Imported
from shardwise.inputs.files import parse_mapping, read_text

_DEEPSPEED = {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps"}
_MINDFORMERS = {"parallel_config", "runner_config", "micro_batch_interleave_num"}
_TORCHTITAN = {"parallelism", "training", "activation_checkpoint", "job"}


def read_framework(path: str | Path) -> Imported:
    """The strategy in a framework's file; `FILE::NAME` picks one of several configurations of a Python file."""
    name, _, entry = str(path).partition("::")
    return read_content(read_text(name), name, entry)


def read_content(text: str, name: str, entry: str = "") -> Imported:
    """The same from what a file holds; its name says what it is."""
    if _is_arguments(text, name):
        from shardwise.frameworks.megatron.read import read_arguments

        return read_arguments(text, title=name)
    if name.endswith(".py"):
        from shardwise.frameworks.torchtitan.read import read_python

        return read_python(text, entry=entry, title=name)
    return _mapping(text, name)


def _is_arguments(text: str, name: str) -> bool:
    """Whether it is a script or a list of arguments: flags outside of a file of keys and values."""
    if Path(name).suffix.lower() in {".json", ".toml", ".yaml", ".yml", ".py"}:
        return False
    return re.search(r"(^|[\s\"'(])--[a-z][\w-]+", text) is not None


def _mapping(text: str, name: str) -> Imported:
    data = parse_mapping(text, name)
    if isinstance(data.get("MODEL_ARGS"), dict):
        from shardwise.frameworks.megatron.read import read_arguments

        beside = [key for key in data if key != "MODEL_ARGS"]
        return read_arguments(_as_arguments(data["MODEL_ARGS"]), title=name, beside=beside)
    if str(data.get("schema", "")).startswith("shardwise/huggingface/"):
        from shardwise.frameworks.huggingface.read_train import read_train

        return read_train(data, title=name)
    if _DEEPSPEED & data.keys():
        from shardwise.frameworks.deepspeed.read import read_deepspeed

        return read_deepspeed(data, title=name)
    model = data.get("model")
    if is_bridge(data):
        from shardwise.frameworks.megatron.bridge import read_bridge

        return read_bridge(data, title=name)
    if _MINDFORMERS & data.keys() or (isinstance(model, dict) and "model_config" in model):
        from shardwise.frameworks.mindformers.read import read_mindformers

        return read_mindformers(data, title=name, text=text)
    if _TORCHTITAN & data.keys():
        from shardwise.frameworks.torchtitan.read import read_toml

        return read_toml(data, title=name)
    raise FileError(
        name,
        "is not a form that is known; expected a Megatron-LM script (--tensor-model-parallel-size ...) or YAML "
        "(MODEL_ARGS), a Megatron Bridge YAML (model, train), a torchtitan TOML ([parallelism]) or Python config, a "
        "MindFormers YAML (parallel_config), a DeepSpeed JSON (zero_optimization) or our shardwise_train.json",
    )


def is_bridge(data: dict[str, Any]) -> bool:
    """Megatron Bridge's `ConfigContainer`."""
    model = data.get("model")
    return isinstance(model, dict) and "tensor_model_parallel_size" in model and isinstance(data.get("train"), dict)


def _as_arguments(flags: dict[str, object]) -> str:
    """Megatron-LM's own YAML, `--flag: value` with true for a switch, as a list of arguments."""
    given = {flag: "" if value is True else str(value) for flag, value in flags.items() if value is not False}
    return "\n".join(f"{flag} {shlex.quote(value) if value else ''}" for flag, value in given.items()) + "\n"
