"""From what was typed to model, cluster, strategy and runtime; everything that is wrong is told together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from shardwise.cli.aliases import SWITCHES
from shardwise.errors import Fault, InputError
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.complete import complete
from shardwise.inputs.load import load_runtime, read_cluster, read_model, read_strategy
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.strategy_text import Given, parse

T = TypeVar("T")
Options = Mapping[str, Any]

_TEXTS = {"layers": "layers=", "recompute": "recompute=", "lora": "lora"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The inputs of a question, whole but not yet checked against each other."""

    model: Model
    cluster: Cluster
    strategy: Strategy
    runtime: Runtime
    notes: tuple[str, ...] = ()
    """What was understood, assumed or ignored on the way."""


@dataclass(slots=True, kw_only=True)
class _Source:
    """What a text or a file says about a strategy, and what else it knows."""

    given: Given = field(default_factory=dict)
    model: Model | None = None
    gpus: int | None = None
    notes: list[str] = field(default_factory=list)


def ask(options: Options) -> Asked:
    """Read the options of `asks`; raises InputError with all faults of all of them."""
    faults: list[Fault] = []
    source = _tried(faults, lambda: _source(options)) or _Source()
    flags = _tried(faults, lambda: _flags(options)) or {}
    model = _tried(faults, lambda: _model(options, source))
    cluster = _tried(faults, lambda: _cluster(options, source))
    given = _overlaid(source, flags, cluster)
    runtime = _tried(faults, lambda: load_runtime(given.get("runtime", "megatron")))
    strategy = _tried(faults, lambda: complete(given, cluster)) if cluster else None
    if faults or not (model and cluster and runtime and strategy):
        raise InputError(faults)
    return Asked(model=model, cluster=cluster, strategy=strategy, runtime=runtime, notes=tuple(source.notes))


def _tried(faults: list[Fault], read: Callable[[], T]) -> T | None:
    try:
        return read()
    except InputError as error:
        faults += [Fault(fault.path, _titled(error.title, fault.message)) for fault in error.faults]
        return None


def _titled(title: str, message: str) -> str:
    return f"{message} ({title})" if title else message


def _model(options: Options, source: _Source) -> Model:
    if options["model"] is None:
        if source.model:
            return source.model
        raise InputError(Fault("MODEL", "is missing; name one (see `shardwise models`) or give a file"))
    read = read_model(options["model"])
    source.notes += read.notes
    return read.value


def _cluster(options: Options, source: _Source) -> Cluster:
    text = options["cluster"]
    if text is None:
        raise InputError(Fault("--cluster", "is missing; give for example 64xh100 (see `shardwise clusters`)"))
    read = read_cluster(text)
    # SimuMax and launch scripts say the number of GPUs beside the strategy: `h100` alone then means so many.
    open_count = read.extra is not None or not (text[:1].isdigit() or Path(text).is_file())
    if source.gpus and open_count:
        read = read_cluster(f"{source.gpus}x{text}")
    source.notes += read.notes
    return read.value


def _source(options: Options) -> _Source:
    if options["strategy"] and options["framework_file"]:
        raise InputError(Fault("--strategy", "and --from both give a strategy; leave one out"))
    if options["framework_file"]:
        return _framework(options["framework_file"])
    text = options["strategy"] or ""
    if not _is_file(text):
        return _Source(given=parse(text))
    read = read_strategy(text)
    given = {name: getattr(read.value, name) for name in read.given}
    return _Source(given=given, gpus=read.value.world if "dp" in given else None, notes=list(read.notes))


def _is_file(text: str) -> bool:
    return text.endswith((".toml", ".yaml", ".yml", ".json")) or (" " not in text and Path(text).is_file())


def _framework(path: str) -> _Source:
    from shardwise.inputs.frameworks import read_framework

    read = read_framework(path)
    made = read.understanding
    told = {"understood": made.understood, "assumed": made.assumed, "ignored": made.ignored}
    notes = [f"{path} ({read.framework}), {what}: {'; '.join(lines)}" for what, lines in told.items() if lines]
    given = {name: getattr(read.strategy, name) for name in read.given}
    return _Source(given=given, model=read.model, gpus=read.gpus, notes=notes)


def _overlaid(source: _Source, flags: Given, cluster: Cluster | None) -> Given:
    """Flags go before the text or file; what followed from values that they change is derived anew."""
    given = dict(source.given)
    moved = {"tp", "pp", "cp"} & flags.keys() or (cluster and cluster.gpus != source.gpus)
    if source.gpus and moved:
        given.pop("dp", None)
    if "microbatches" in flags and "global_batch" not in flags:
        given.pop("global_batch", None)
    if "vpp" in flags and "schedule" not in flags and given.get("schedule") in {"1f1b", "interleaved"}:
        given.pop("schedule")
    return {**given, **flags}


def _flags(options: Options) -> Given:
    names = [item.name for item in fields(Strategy)] + ["microbatches"]
    given = {name: options[name] for name in names if options.get(name) is not None}
    faults: list[Fault] = []
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
