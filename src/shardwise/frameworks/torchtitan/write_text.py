"""The text of a torchtitan configuration, TOML (0.2) or Python (0.3 and main), and the script that starts it."""

from __future__ import annotations

from collections.abc import Iterator
from pprint import pformat
from typing import Any

import tomli_w

from shardwise.frameworks.launcher import starting
from shardwise.frameworks.target import ExportDraft, File
from shardwise.frameworks.torchtitan.names import TORCHTITAN_FLAVORS

Settings = dict[str, Any]


def say_model(draft: ExportDraft) -> None:
    """What of the model cannot be said, and where to say it."""
    s, (name, _) = draft.strategy, flavor(draft)
    if draft.model.name not in TORCHTITAN_FLAVORS:
        known = f"torchtitan has no flavor that is known to be {draft.model.name}"
        draft.by_hand.append(f"the model: {known}; name yours, the file stops until then")
    if draft.model.mtp and not mtp(draft):
        stages = name == "deepseek_v3" and draft.version != "0.2" and (s.pp > 1 or s.cp > 1)
        why = "does not run with a pipeline or context parallel here" if stages else "is not in this model"
        draft.lose("model.mtp", f"{draft.model.mtp}: multi-token prediction {why}; it is trained without")


def config(draft: ExportDraft, tables: dict[str, Settings]) -> tuple[File, ...]:
    """The configuration file of a version, and what starts it."""
    if draft.version == "0.2":
        file = File(name="torchtitan.toml", text=_toml(draft, tables))
        return file, *_start(draft, "--job.config_file torchtitan.toml")
    file = File(name="shardwise_config.py", text=python(draft, tables))
    return file, *_start(draft, "--module shardwise_config --config shardwise")


def _toml(draft: ExportDraft, tables: dict[str, Settings]) -> str:
    s, (name, known) = draft.strategy, flavor(draft)
    model: Settings = {"name": name, "flavor": known or draft.model.name}
    if s.dtype in {"fp8", "mxfp8"}:
        kind = "float8" if s.dtype == "fp8" else "mx"
        model["converters"] = [f"quantize.linear.{kind}", *([f"quantize.grouped_mm.{kind}"] if draft.model.moe else [])]
    kind = "full" if s.recompute.full else "selective" if s.recompute.modules else "none"
    document = {
        "job": {"description": f"{draft.model.name}: Shardwise plan {draft.id}"},
        "model": model,
        "optimizer": {"name": "AdamW"},
        **tables,
        "activation_checkpoint": {"mode": kind, **({"selective_ac_option": "op"} if kind == "selective" else {})},
        "compile": {"enable": s.compile},
    }
    return draft.header() + tomli_w.dumps(document)


def _start(draft: ExportDraft, flags: str) -> tuple[File, ...]:
    """The files are found from their own folder: the module by Python, the CSV and the TOML by their names."""
    return starting(draft, "torchtitan", [f"-m torchtitan.train {flags}"], needs=draft.speaks)


_CONVERTERS = {"fp8": "Float8", "mxfp8": "MXFP8"}


def flavor(draft: ExportDraft) -> tuple[str, str]:
    """Their model and flavor; without a flavor where the model is not known to be one of theirs."""
    return TORCHTITAN_FLAVORS.get(draft.model.name, ("llama3", ""))


def mtp(draft: ExportDraft) -> int:
    """Extra layers that can be said: only DeepSeek's model has them, and only without stages and context parallel."""
    s = draft.strategy
    able = draft.version != "0.2" and flavor(draft)[0] == "deepseek_v3" and s.pp == 1 and s.cp == 1
    return draft.model.mtp if able else 0


def python(draft: ExportDraft, tables: dict[str, Settings]) -> str:
    """The file, with one function `shardwise`."""
    name, known = flavor(draft)
    known = known or "debugmodel"
    base = f"{name}_{known.lower().replace('.', '_').replace('-', '_')}"
    lines = ["from dataclasses import replace", "", *_imports(draft, name, base), "", ""]
    lines += ["def shardwise():", f"    base = {base}()", f"    model_spec = model_registry({_model(draft, known)})"]
    lines += [*_guard(draft), "    return replace(", "        base,", *_body(draft, tables), "    )", ""]
    return draft.header() + "\n".join(lines)


def _imports(draft: ExportDraft, name: str, base: str) -> Iterator[str]:
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


def _policy(draft: ExportDraft) -> str:
    recompute = draft.strategy.recompute
    return "FullAC" if recompute.full else "SelectiveAC" if recompute.modules else ""


def _converters(draft: ExportDraft) -> list[str]:
    start = _CONVERTERS.get(draft.strategy.dtype)
    kinds = ("LinearConverter", "GroupedExpertsConverter") if draft.model.moe else ("LinearConverter",)
    return [f"{start}{kind}" for kind in kinds] if start else []


def _model(draft: ExportDraft, known: str) -> str:
    words = [repr(known)]
    if mtp(draft):
        words.append(f"num_mtp_layers={mtp(draft)}")
    made = [f"{name}.Config(model_compile_enabled={draft.strategy.compile})" for name in _converters(draft)]
    if made:
        words.append(f"converters=[{', '.join(made)}]")
    return ", ".join(words)


def _guard(draft: ExportDraft) -> list[str]:
    """A model of another depth would train with stages that hold nothing, without a word."""
    model = draft.model
    text = f"the plan is for {model.name} of {model.layers} layers: name that model in this file"
    return [f"    if len(model_spec.model.layers) != {model.layers}:", f"        raise ValueError({text!r})"]


def _body(draft: ExportDraft, tables: dict[str, Settings]) -> Iterator[str]:
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
