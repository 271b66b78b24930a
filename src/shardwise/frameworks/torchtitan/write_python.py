"""A torchtitan configuration in Python, of 0.3 and main: a configuration of theirs with all that a plan decides put in.

The model is built anew: their configurations choose its number format too, and the plan may choose another.
"""

from __future__ import annotations

from collections.abc import Iterator
from pprint import pformat
from typing import Any

from shardwise.frameworks.target import Draft
from shardwise.frameworks.torchtitan.names import TORCHTITAN_FLAVORS

Settings = dict[str, Any]
_CONVERTERS = {"fp8": "Float8", "mxfp8": "MXFP8"}


def flavor(draft: Draft) -> tuple[str, str]:
    """Their model and flavor; without a flavor where the model is not known to be one of theirs."""
    return TORCHTITAN_FLAVORS.get(draft.model.name, ("llama3", ""))


def mtp(draft: Draft) -> int:
    """Extra layers that can be said: only DeepSeek's model has them, and only without stages and context parallel."""
    s = draft.strategy
    able = draft.version != "0.2" and flavor(draft)[0] == "deepseek_v3" and s.pp == 1 and s.cp == 1
    return draft.model.mtp if able else 0


def python(draft: Draft, tables: dict[str, Settings]) -> str:
    """The file, with one function `shardwise`."""
    name, known = flavor(draft)
    known = known or "debugmodel"
    base = f"{name}_{known.lower().replace('.', '_').replace('-', '_')}"
    lines = ["from dataclasses import replace", "", *_imports(draft, name, base), "", ""]
    lines += ["def shardwise():", f"    base = {base}()", f"    model_spec = model_registry({_model(draft, known)})"]
    lines += [*_guard(draft), "    return replace(", "        base,", *_body(draft, tables), "    )", ""]
    return draft.header() + "\n".join(lines)


def _imports(draft: Draft, name: str, base: str) -> Iterator[str]:
    converters, policy = _converters(draft), _policy(draft)
    if converters:
        yield f"from torchtitan.components.quantization import {', '.join(converters)}"
    yield "from torchtitan.config import CompileConfig, ParallelismConfig"
    if policy:
        yield f"from torchtitan.distributed.activation_checkpoint import {policy}"
    if mtp(draft):
        yield "from torchtitan.models.common.config_utils import decoder_vocab_size"
    yield f"from torchtitan.models.{name} import model_registry"
    yield f"from torchtitan.models.{name}.config_registry import {base}"
    if mtp(draft):
        yield f"from torchtitan.models.{name}.mtp import MTPLoss"


def _policy(draft: Draft) -> str:
    recompute = draft.strategy.recompute
    return "FullAC" if recompute.full else "SelectiveAC" if recompute.modules else ""


def _converters(draft: Draft) -> list[str]:
    start = _CONVERTERS.get(draft.strategy.dtype)
    kinds = ("LinearConverter", "GroupedExpertsConverter") if draft.model.moe else ("LinearConverter",)
    return [f"{start}{kind}" for kind in kinds] if start else []


def _model(draft: Draft, known: str) -> str:
    words = [repr(known)]
    if mtp(draft):
        words.append(f"num_mtp_layers={mtp(draft)}")
    made = [f"{name}.Config(model_compile_enabled={draft.strategy.compile})" for name in _converters(draft)]
    if made:
        words.append(f"converters=[{', '.join(made)}]")
    return ", ".join(words)


def _guard(draft: Draft) -> list[str]:
    """A model of another depth would train with stages that hold nothing, without a word."""
    model = draft.model
    text = f"the plan is for {model.name} of {model.layers} layers: name that model in this file"
    return [f"    if len(model_spec.model.layers) != {model.layers}:", f"        raise ValueError({text!r})"]


def _body(draft: Draft, tables: dict[str, Settings]) -> Iterator[str]:
    policy = _policy(draft)
    yield "        model_spec=model_spec,"
    if mtp(draft):
        yield "        loss=MTPLoss.Config(global_vocab_size=decoder_vocab_size(model_spec)),"
    yield from _call("training", "replace", tables["training"], "base.training")
    yield from _call("parallelism", "ParallelismConfig", tables["parallelism"])
    yield f"        activation_checkpoint={f'{policy}.Config()' if policy else None},"
    yield f"        compile=CompileConfig(enable={draft.strategy.compile}),"


def _call(field: str, function: str, settings: Settings, first: str = "") -> list[str]:
    inside = [f"            {name}={_literal(value)}," for name, value in settings.items()]
    return [f"        {field}={function}(", *([f"            {first},"] if first else []), *inside, "        ),"]


def _literal(value: object) -> str:
    if not isinstance(value, list):
        return repr(value)
    rows = (pformat(row, width=100, compact=True).replace("\n", "\n" + " " * 16) for row in value)
    return "[\n" + "".join(f"                {row},\n" for row in rows) + "            ]"
