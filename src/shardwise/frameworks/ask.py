"""A question as people put it: names, texts and files to model, cluster, strategy and runtime, all faults at once.

A strategy comes from a line of text, a file of ours, a plan, or another framework's file; single fields go before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from shardwise.errors import Fault, InputError
from shardwise.frameworks.imported import Imported
from shardwise.frameworks.load import plan_at, read_cluster, read_model, read_strategy, refuse_per_op
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.documents import Documents
from shardwise.inputs.files import read_mapping, read_text
from shardwise.inputs.layers import own_cut
from shardwise.inputs.load import Loaded, load_runtime, named_cluster
from shardwise.inputs.mixed import SHARING, Mixed, kinds_of
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.strategy_text import Given, complete, derived_dp, parse
from shardwise.pipeline.action import Schedule
from shardwise.plan.plan import Plan

T = TypeVar("T")

_ENDINGS = (".toml", ".yaml", ".yml", ".json")
_TEXTS = {"layers": "layers=", "batches": "batches=", "recompute": "recompute=", "lora": "lora"}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was typed; None: left out."""

    model: str | None = None
    """A catalog name, a file, or a plan that says everything."""
    cluster: str | None = None
    strategy: str | None = None
    """A line of text or a file."""
    source: str | None = None
    """A framework's file that says model and strategy."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Single fields of the strategy; layers, recompute, lora and documents as text. They go before the strategy."""
    switches: Mapping[str, Any] = field(default_factory=dict)
    """Fields that follow from flags without a value, where they are not among the fields."""
    megatron: Mapping[str, Any] = field(default_factory=dict)
    """Flags of Megatron's beyond those that are ours under another name."""


def ask(request: Request, notes: list[str] | None = None) -> Asked:
    """What was typed, resolved; raises InputError with all faults of all of it, `notes` filled so far."""
    told = [] if notes is None else notes
    faults: list[Fault] = []
    source = _tried(faults, lambda: source_of(request)) or Source(broken=True)
    told += source.notes
    source.notes = told
    flags = _tried(faults, lambda: _flags(request)) or {}
    model = _tried(faults, lambda: _model(request, source))
    cluster = _tried(faults, lambda: _cluster(request, source))
    flags |= _tried(faults, lambda: _megatron(request, source, flags, model)) or {}
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
    if source.order is not None:
        plan = _ordered(source.order, Plan(model=model, cluster=cluster, strategy=strategy), told)
        strategy = plan.strategy if plan else strategy
    same = plan is not None and (plan.model, plan.cluster, plan.strategy) == (model, cluster, strategy)
    return Asked(
        model=model, cluster=cluster, strategy=strategy, runtime=runtime, plan=plan if same else None, notes=tuple(told)
    )


def _ordered(order: Schedule, plan: Plan, notes: list[str]) -> Plan | None:
    """The plan with an order of its own, whose rows say what the name of a schedule would; none: it is of others."""
    s = plan.strategy
    if (len(order.codes), order.chunks, order.microbatches) == (s.pp, s.pp * s.vpp, s.microbatches):
        return replace(plan, strategy=replace(s, schedule="auto"), order=order)
    rows = f"{len(order.codes)} ranks, {order.chunks} chunks and {order.microbatches} micro batches"
    notes.append(f"{order.name} orders {rows} and is left out: the passes run as {s.schedule}")
    return None


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


def _model(request: Request, source: Source) -> Model | None:
    if request.model is None:
        if source.model or source.broken or request.megatron:
            return source.model
        raise InputError(Fault("MODEL", "is missing; name one (see `shardwise models`) or give a file"))
    read = read_model(request.model)
    source.notes += read.notes
    return read.value


def _cluster(request: Request, source: Source) -> Cluster | None:
    text = request.cluster
    if text is None:
        plan = plan_at(request.model) if request.model else None
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


def _megatron(request: Request, source: Source, flags: Given, model: Model | None) -> Given:
    """Flags of Megatron's beyond those that are ours under another name."""
    if not request.megatron:
        return {}
    from shardwise.frameworks.megatron.typed import read_typed
    from shardwise.frameworks.shell import Flags

    known = model or source.model
    typed = read_typed(Flags(request.megatron), {**source.given, **flags}, known.layers if known else None)
    source.notes += typed.notes
    source.model = source.model or typed.model
    faults = [
        Fault(
            f"strategy.{name}", f"is {request.fields[name]} by ours and {value} by Megatron's flags; keep one of them"
        )
        for name, value in typed.fields.items()
        if name in request.fields and flags.get(name) != value
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


def _flags(request: Request) -> Given:
    given = {**request.switches, **request.fields}
    faults: list[Fault] = []
    if "lora" in given and not re.fullmatch(r"\s*[0-9]{1,9}\s*(:.*)?", given["lora"]):
        said = given.pop("lora")
        faults.append(Fault("strategy.lora", f"{said!r} is no rank; write --lora 16, or --lora 16:qkv,out"))
    if isinstance(given.get("documents"), str):
        told = given.pop("documents")
        given |= _tried(faults, lambda: {"documents": Documents.parse(told)}) or {}
    for name, word in _TEXTS.items():
        if name in given:
            text = word + "".join(str(given.pop(name)).split())
            given |= _tried(faults, lambda text=text: parse(text)) or {}  # type: ignore[misc]
    if faults:
        raise InputError(faults)
    return given


@dataclass(slots=True, kw_only=True)
class Source:
    """What a text or a file says about a strategy, and what else it knows."""

    given: Given = field(default_factory=dict)
    model: Model | None = None
    cluster: Cluster | None = None
    plan: Plan | None = None
    """The plan that it is part of."""
    gpus: int | None = None
    name: str = ""
    """The file, for notes."""
    order: Schedule | None = None
    """The order of the passes, where the file names one of its own."""
    broken: bool = False
    """It could not be read: what it would have given is not missed as well."""
    notes: list[str] = field(default_factory=list)


def source_of(request: Request) -> Source:
    """The one source that a request names; a plan in place of MODEL is one where no other is named."""
    if request.strategy and request.source:
        raise InputError(Fault("--strategy", "and --from both give a strategy; leave one out"))
    if request.source:
        return _framework(request.source)
    text = request.strategy or ""
    if text and not is_file(text):
        return Source(given=parse(text, files=True))
    model = request.model
    if text:
        return _strategy_file(text)
    return _strategy_file(model) if model and plan_at(model) else Source()


def is_file(text: str) -> bool:
    """Whether a text means a file: by its ending, or because there is one."""
    if text.endswith(_ENDINGS):
        return True
    try:
        return " " not in text and Path(text).is_file()
    except (OSError, ValueError):  # longer than any name, or with a NUL byte: then it is text
        return False


def _strategy_file(path: str) -> Source:
    read: Loaded[Strategy] = read_strategy(path)
    given = {name: getattr(read.value, name) for name in read.given}
    source = Source(given=given, gpus=read.value.world if "dp" in given else None, name=path, notes=list(read.notes))
    plan = plan_at(path)
    if plan:
        refuse_per_op(plan, path, "a verb for whole strategies")
        source.plan, source.model, source.cluster = plan, plan.model, plan.cluster
    return source


def _framework(path: str) -> Source:
    if "::" not in path and (plan_at(path) or _is_simumax(path)):
        return _strategy_file(path)
    from shardwise.frameworks.read import read_framework

    read = read_framework(path)
    found = Path(path.partition("::")[0]).parent / read.order
    order = Schedule.parse(read_text(found), name=read.order) if read.order and found.is_file() else None
    source = _imported(read, path, order)
    if read.order:
        told_of = "orders the passes" if order else f"is not there: the passes run as {read.strategy.schedule}"
        source.notes.append(f"{found} {told_of}")
    return source


def ask_text(text: str, name: str, model: Model, cluster: Cluster) -> Asked:
    """A question from what a framework's file holds, its name beside it; no file is opened, and nothing of it is run.

    `model`, `cluster`: what it is asked about where the text does not say; of the cluster the kind of GPU is kept.
    """
    from shardwise.frameworks.read import read_content

    read = read_content(text, name)
    source = _imported(read, name)
    notes = source.notes
    if read.order:
        notes.append(f"{read.order} orders the passes and is not here: they run as {read.strategy.schedule}")
    if source.model is None:
        notes.append(f"{name} describes no model: {model.name} is taken")
    if source.gpus and not isinstance(cluster, Mixed):
        cluster = named_cluster(f"{source.gpus}x{cluster.gpu.name}")
    given = _with_batch(overlaid(source, {}, cluster), cluster, notes)
    runtime, strategy = load_runtime(given.get("runtime", "megatron")), complete(given, cluster)
    whole = source.model or model
    return Asked(
        model=whole, cluster=cluster, strategy=_cut(whole, strategy, runtime, notes), runtime=runtime,
        notes=tuple(notes),
    )  # fmt: skip


def _imported(read: Imported, name: str, order: Schedule | None = None) -> Source:
    made = read.understanding
    told = {"understood": made.understood, "assumed": made.assumed, "ignored": made.ignored}
    notes = [f"{name} ({read.framework}), {what}: {'; '.join(lines)}" for what, lines in told.items() if lines]
    return Source(given=read.fields, model=read.model, gpus=read.gpus, name=name, order=order, notes=notes)


def _is_simumax(path: str) -> bool:
    """Whether a file is a strategy of SimuMax's; DeepSpeed's JSON may hold a word or two of its."""
    if not path.endswith(".json") or not Path(path).is_file():
        return False
    from shardwise.frameworks.simumax.read import is_strategy

    data = read_mapping(path)
    return is_strategy(data) and not any(key.startswith(("zero_optimization", "train_")) for key in data)


def overlaid(source: Source, flags: Given, cluster: Cluster | None) -> Given:
    """Flags go before the text or file; what followed from values that they change is derived anew."""
    given = dict(source.given)
    if source.gpus and cluster and cluster.gpus != source.gpus:
        source.notes.append(
            f"{source.name} says {source.gpus} GPUs, the cluster has {cluster.gpus}: the cluster's are taken and dp "
            "follows from them"
        )
    if source.gpus and ({"tp", "pp", "cp"} & flags.keys() or (cluster and cluster.gpus != source.gpus)):
        given.pop("dp", None)
    for one, other in (("microbatches", "global_batch"), ("global_batch", "microbatches")):
        if one in flags and other not in flags:
            given.pop(other, None)
    if "vpp" in flags and "schedule" not in flags and given.get("schedule") in {"1f1b", "interleaved"}:
        given.pop("schedule")
    if {"pp", "vpp"} & flags.keys() and given.pop("layers", None):
        source.notes.append("the layers of the stages are spread anew, as other stages are asked for")
    elsewhere = cluster and len(kinds_of(cluster)) != len(given.get("batches", ()))
    if (elsewhere or SHARING & flags.keys()) and given.pop("batches", None):
        source.notes.append("all replicas have as many micro batches, as another split is asked for")
    return {**given, **flags}
