"""From what was typed to model, cluster, strategy and runtime; everything that is wrong is told together."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from shardwise.cli.options import SWITCHES
from shardwise.cli.sources import Options, Source, overlaid, source_of
from shardwise.errors import Fault, InputError
from shardwise.frameworks.load import plan_at, read_cluster, read_model
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.layers import own_cut
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.strategy_text import Given, complete, derived_dp, parse
from shardwise.plan.plan import Plan

T = TypeVar("T")

_TEXTS = {"layers": "layers=", "recompute": "recompute=", "lora": "lora"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The inputs of a question, whole but not yet checked against each other."""

    model: Model
    cluster: Cluster
    strategy: Strategy
    runtime: Runtime
    plan: Plan | None = None
    """The plan that says all of it, where nothing else was typed."""
    notes: tuple[str, ...] = ()
    """What was understood, assumed or ignored on the way."""


def ask(options: Options, notes: list[str] | None = None) -> Asked:
    """Read the options of `asks`; raises InputError with all faults of all of them, `notes` filled so far."""
    told = [] if notes is None else notes
    faults: list[Fault] = []
    source = _tried(faults, lambda: source_of(options)) or Source(broken=True)
    told += source.notes
    source.notes = told
    flags = _tried(faults, lambda: _flags(options)) or {}
    model = _tried(faults, lambda: _model(options, source))
    cluster = _tried(faults, lambda: _cluster(options, source))
    flags |= _tried(faults, lambda: _megatron(options, source, flags, model)) or {}
    given = overlaid(source, flags, cluster)
    runtime = _tried(faults, lambda: load_runtime(given.get("runtime", "megatron")))
    if cluster and not source.broken:  # a source that could not be read may well give a batch
        given = _with_batch(given, cluster, told)
    strategy = _tried(faults, lambda: complete(given, cluster)) if cluster else None
    model = model or source.model
    if not model and not faults:
        faults.append(Fault("MODEL", "is missing; name one (see `shardwise models`) or give a file"))
    if faults or not (model and cluster and runtime and strategy):
        raise InputError(dict.fromkeys(faults))
    strategy = _cut(model, strategy, runtime, told)
    plan = source.plan
    same = plan is not None and (plan.model, plan.cluster, plan.strategy) == (model, cluster, strategy)
    return Asked(
        model=model, cluster=cluster, strategy=strategy, runtime=runtime, plan=plan if same else None, notes=tuple(told)
    )


def _cut(model: Model, strategy: Strategy, runtime: Runtime, notes: list[str]) -> Strategy:
    """The cut that a runtime chooses by itself, where no other is asked for."""
    fixed = strategy.layers or strategy.first_layers or strategy.last_layers
    layers = () if fixed else own_cut(model, runtime, strategy.pp, strategy.vpp)
    if not layers:
        return strategy
    notes.append(
        f"layers={','.join(map(str, layers))}: {runtime.name} cuts the pipeline by the {runtime.can.cut} of its layers"
    )
    return replace(strategy, layers=layers)


def _tried(faults: list[Fault], read: Callable[[], T]) -> T | None:
    try:
        return read()
    except InputError as error:
        faults += [Fault(fault.path, _titled(error.title, fault.message)) for fault in error.faults]
        return None


def _titled(title: str, message: str) -> str:
    return f"{message} ({title})" if title else message


def _model(options: Options, source: Source) -> Model | None:
    if options["model"] is None:
        if source.model or source.broken or options.get("megatron"):
            return source.model
        raise InputError(Fault("MODEL", "is missing; name one (see `shardwise models`) or give a file"))
    read = read_model(options["model"])
    source.notes += read.notes
    return read.value


def _cluster(options: Options, source: Source) -> Cluster | None:
    text = options["cluster"]
    if text is None:
        plan = plan_at(options["model"]) if options["model"] else None
        known = source.cluster or (plan.cluster if plan else None)
        if known or source.broken:
            return known
        raise InputError(Fault("--cluster", "is missing; give for example 64xh100 (see `shardwise clusters`)"))
    read = read_cluster(text)
    # SimuMax and launch scripts say the number of GPUs beside the strategy: `h100` alone then means so many.
    open_count = read.extra is not None or not (text[:1].isdigit() or Path(text).is_file())
    if source.gpus and open_count:
        read = read_cluster(f"{source.gpus}x{text}")
    source.notes += read.notes
    return read.value


def _megatron(options: Options, source: Source, flags: Given, model: Model | None) -> Given:
    """Flags of Megatron's beyond those that are ours under another name."""
    if not options.get("megatron"):
        return {}
    from shardwise.frameworks.megatron.typed import read_typed

    known = model or source.model
    typed = read_typed(options["megatron"], {**source.given, **flags}, known.layers if known else None)
    source.notes += typed.notes
    source.model = source.model or typed.model
    faults = [
        Fault(f"strategy.{name}", f"is {options[name]} by ours and {value} by Megatron's flags; keep one of them")
        for name, value in typed.fields.items()
        if options.get(name) is not None and flags.get(name) != value
    ]
    if faults:
        raise InputError(faults)
    return typed.fields


def _with_batch(given: Given, cluster: Cluster, notes: list[str]) -> Given:
    """A batch where none is given: one micro batch a replica, and enough of them to keep a pipeline busy."""
    degrees = [given.get(name, 1) for name in ("tp", "pp", "cp", "dp", "micro_batch")]
    if {"global_batch", "microbatches"} & given.keys() or any(degree < 1 for degree in degrees):
        return given
    pp = given.get("pp", 1)
    count = 4 * pp if pp > 1 else 1
    dp, size = given.get("dp") or derived_dp(given, cluster.gpus), given.get("micro_batch", 1)
    many = f"{count} micro batches (4 x pp)" if count > 1 else "1 micro batch"
    notes.append(f"global_batch {count * size * dp} was assumed: {many} of {size} on dp {dp}; --global-batch sets it")
    return {**given, "microbatches": count}


def _flags(options: Options) -> Given:
    names = [item.name for item in fields(Strategy)] + ["microbatches"]
    given = {name: options[name] for name in names if options.get(name) is not None}
    faults: list[Fault] = []
    if "lora" in given and not re.fullmatch(r"\s*[0-9]{1,9}\s*(:.*)?", given["lora"]):
        said = given.pop("lora")
        faults.append(Fault("strategy.lora", f"{said!r} is no rank; write --lora 16, or --lora 16:qkv,out"))
    for name, word in _TEXTS.items():
        if name in given:
            text = word + "".join(str(given.pop(name)).split())
            given |= _tried(faults, lambda text=text: parse(text)) or {}  # type: ignore[misc]
    for flag, (name, value) in SWITCHES.items():
        if options.get(flag[2:].replace("-", "_")):
            given.setdefault(name, value)
    if faults:
        raise InputError(faults)
    return given
