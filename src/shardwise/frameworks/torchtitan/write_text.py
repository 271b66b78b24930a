"""The text of a torchtitan configuration, TOML (0.2) or Python (0.3 and main), and the script that starts it."""

from __future__ import annotations

from collections.abc import Iterator
from pprint import pformat
from typing import Any

import tomli_w

from shardwise.frameworks.launcher import gpus_per_node, starting
from shardwise.frameworks.target import ExportDraft, File
from shardwise.frameworks.torchtitan import write_later as later
from shardwise.frameworks.torchtitan.families import Flavor, flavor
from shardwise.frameworks.torchtitan.names import TORCHTITAN_FLAVORS
from shardwise.frameworks.torchtitan.write_model import MODULE, RANDOM, module
from shardwise.inputs.strategy import Strategy

Settings = dict[str, Any]


def say_model(draft: ExportDraft) -> None:
    """What of the model cannot be said: the family must be exactly it, what only the training lacks is lost."""
    model, s = draft.model, draft.strategy
    found = flavor(model, s.seq)
    if not isinstance(found, Flavor):
        for fault in found:
            draft.refuse(fault.path, f"{fault.message}; choose another target, or change the model")
        return
    if found.biased and draft.version != "0.2":
        draft.refuse("model.qkv_bias", "biases of queries, keys and values are in no family from 0.3 on; use 0.2")
    if draft.version == "main" and model.name not in TORCHTITAN_FLAVORS:
        known = f"torchtitan has no flavor that is known to be {model.name}"
        draft.by_hand.append(f"the model: {known}; name yours, the file stops until then")
    if model.tied and s.pp > 1:
        text = f"with pp {s.pp} the embedding and the output layer are on two ranks, and torchtitan ties no weights"
        draft.refuse("model.tied", f"{text} over a pipeline; use pp 1")
    if model.mtp and not mtp(draft):
        stages = found.family == "deepseek_v3" and draft.version != "0.2" and (s.pp > 1 or s.cp > 1)
        why = "does not run with a pipeline or context parallel here" if stages else "is not in this model"
        draft.lose("model.mtp", f"{model.mtp}: multi-token prediction {why}; it is trained without")
    if model.moe and model.moe.balance_loss:
        told = "torchtitan has no auxiliary loss; it is trained without"
        draft.lose("model.moe", f"balance_loss {model.moe.balance_loss:g}: {told}")
    if model.dropout:
        draft.lose("model.dropout", f"{model.dropout:g}: torchtitan has no dropout; it is trained without")
    if found.family == "deepseek_v3" and draft.version == "0.2":
        draft.lose("model.norm_eps", f"{model.norm_eps:g}: the last norm of deepseek_v3 takes torch's own in 0.2")
    scaling = model.rope_scaling
    if scaling and scaling.kind == "yarn" and s.seq <= scaling.original:
        told = f"deepseek_v3 scales sequences longer than {scaling.original} tokens only; {s.seq} are trained without"
        draft.lose("model.rope_scaling", told)


def config(draft: ExportDraft, tables: dict[str, Settings]) -> tuple[File, ...]:
    """The configuration file of a version, what it needs beside it, and what starts it."""
    found = flavor(draft.model, draft.strategy.seq)
    assert isinstance(found, Flavor)  # noqa: S101 - `settle` stopped where it is none
    if draft.version == "0.2":
        file = File(name="torchtitan.toml", text=_toml(draft, found, tables))
        flags = "--job.config_file torchtitan.toml --training.steps $STEPS --debug.seed ${SEED:-1234}"
        return file, module(draft, found), *_start(draft, flags)
    file = File(name="shardwise_config.py", text=python(draft, tables))
    flags = "--module shardwise_config --config shardwise --training.steps $STEPS --debug.seed ${SEED:-1234}"
    beside = (later.module(draft, found, mtp(draft)),) if draft.version == "0.3" else ()
    return file, *beside, *_start(draft, flags)


def _toml(draft: ExportDraft, found: Flavor, tables: dict[str, Settings]) -> str:
    s = draft.strategy
    model: Settings = {"name": found.family, "flavor": draft.model.name, "hf_assets_path": "."}
    if s.dtype in {"fp8", "mxfp8"}:
        kind = "float8" if s.dtype == "fp8" else "mx"
        model["converters"] = [f"quantize.linear.{kind}", *([f"quantize.grouped_mm.{kind}"] if draft.model.moe else [])]
    kind = "full" if s.recompute.full else "selective" if s.recompute.modules else "none"
    document = {
        "job": {"description": f"{draft.model.name}: Shardwise plan {draft.id}"},
        "experimental": {"custom_import": MODULE},
        "metrics": {"log_freq": 1, "disable_color_printing": True},
        "model": model,
        "optimizer": {"name": "AdamW"},
        **tables,
        "activation_checkpoint": {"mode": kind, **({"selective_ac_option": "op"} if kind == "selective" else {})},
        "compile": {"enable": s.compile},
    }
    document["training"] = {"dataset": RANDOM, **tables["training"]}
    return draft.header() + tomli_w.dumps(document)


def _start(draft: ExportDraft, flags: str) -> tuple[File, ...]:
    """The files are found from their own folder. The one rank that logs is the first that holds the loss."""
    rank = loss_rank(draft.strategy)
    torchrun = f"--local-ranks-filter {rank % gpus_per_node(draft.strategy.world)} --role rank --tee 3"
    return starting(
        draft,
        "torchtitan",
        [torchrun, f"-m torchtitan.train {flags}"],
        before=['export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"'],
        environment={"LOG_RANK": rank},
        needs=draft.speaks,
    )


def loss_rank(strategy: Strategy) -> int:
    """The first rank of the last stage; stages are the outermost axis, and a v ends where it began."""
    if strategy.placement == "v" and strategy.vpp > 1:
        return 0
    return strategy.world // strategy.pp * (strategy.pp - 1)


_CONVERTERS = {"fp8": "Float8", "mxfp8": "MXFP8"}


def _known(draft: ExportDraft) -> tuple[str, str]:
    """Their model and flavor; without a flavor where the model is not known to be one of theirs."""
    found = flavor(draft.model, draft.strategy.seq)
    if draft.version == "0.3" and isinstance(found, Flavor):
        return found.family, later.BASE
    return TORCHTITAN_FLAVORS.get(draft.model.name, (found.family if isinstance(found, Flavor) else "llama3", ""))


def mtp(draft: ExportDraft) -> int:
    """Extra layers that can be said: only DeepSeek's model has them, and only without stages and context parallel."""
    s = draft.strategy
    able = draft.version != "0.2" and _known(draft)[0] == "deepseek_v3" and s.pp == 1 and s.cp == 1
    return draft.model.mtp if able else 0


def python(draft: ExportDraft, tables: dict[str, Settings]) -> str:
    """The file, with one function `shardwise`."""
    name, known = _known(draft)
    known = known or "debugmodel"
    base = f"{name}_{known.lower().replace('.', '_').replace('-', '_')}"
    lines = ["from dataclasses import replace", "", *_imports(draft, name, base), "", ""]
    lines += ["def shardwise():", f"    base = {base}()", f"    model_spec = {_model(draft, known)}"]
    guard = _guard(draft) if draft.version == "main" else []
    lines += [*guard, "    return replace(", "        base,", *_body(draft, tables), "    )", ""]
    return draft.header() + "\n".join(lines)


def _imports(draft: ExportDraft, name: str, base: str) -> Iterator[str]:
    converters, policy = _converters(draft), _policy(draft)
    if draft.version == "0.3":
        yield f"from {later.MODULE} import VOCABULARY, NoTokenizer, RandomTokens, planned"
        yield "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss"
    if converters:
        yield f"from torchtitan.components.quantization import {', '.join(converters)}"
    yield "from torchtitan.config import CompileConfig, ParallelismConfig"
    if policy:
        yield f"from torchtitan.distributed.activation_checkpoint import {policy}"
    if mtp(draft) and draft.version == "main":
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
    made = [f"{name}.Config(model_compile_enabled={draft.strategy.compile})" for name in _converters(draft)]
    converters = [f"converters=[{', '.join(made)}]"] if made else []
    if draft.version == "0.3":
        return f"planned({', '.join([repr(draft.model.name), f'model_registry({known!r})', *converters])})"
    extra = [f"num_mtp_layers={mtp(draft)}"] if mtp(draft) else []
    return f"model_registry({', '.join([repr(known), *extra, *converters])})"


def _guard(draft: ExportDraft) -> list[str]:
    """A model of another depth would train with stages that hold nothing, without a word."""
    model = draft.model
    text = f"the plan is for {model.name} of {model.layers} layers: name that model in this file"
    return [f"    if len(model_spec.model.layers) != {model.layers}:", f"        raise ValueError({text!r})"]


def _body(draft: ExportDraft, tables: dict[str, Settings]) -> Iterator[str]:
    policy = _policy(draft)
    yield "        model_spec=model_spec,"
    if draft.version == "0.3":
        plain = "ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=VOCABULARY))"
        yield f"        loss={'MTPLoss.Config(global_vocab_size=VOCABULARY)' if mtp(draft) else plain},"
        yield '        hf_assets_path=".",'
        yield "        tokenizer=NoTokenizer.Config(),"
        yield "        dataloader=RandomTokens.Config(),"
        yield "        metrics=replace(base.metrics, log_freq=1, disable_color_printing=True),"
        yield "        checkpoint=replace(base.checkpoint, enable=False),"
        yield "        validator=replace(base.validator, enable=False),"
    elif mtp(draft):
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
