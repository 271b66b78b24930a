"""From what was typed to model, cluster, strategy and runtime; everything that is wrong is told together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
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
from shardwise.inputs.strategy_text import Given, build, parse

T = TypeVar("T")

_TEXTS = {"layers": "layers=", "recompute": "recompute=", "lora": "lora"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The inputs of a question, whole but not yet checked against each other."""

    model: Model
    cluster: Cluster
    strategy: Strategy
    runtime: Runtime
    notes: tuple[str, ...] = ()
    """What was assumed, ignored or not understood on the way."""


def ask(options: Mapping[str, Any]) -> Asked:
    """Read the options of `asks`; raises InputError with all faults of all of them."""
    faults: list[Fault] = []
    notes: list[str] = []
    given = _tried(faults, lambda: _given(options, notes)) or {}
    model = _tried(faults, lambda: _model(options, notes))
    cluster = _tried(faults, lambda: _cluster(options, notes, given))
    runtime = _tried(faults, lambda: load_runtime(given.get("runtime", "megatron")))
    strategy = _tried(faults, lambda: complete(given, cluster)) if cluster else None
    if faults or not (model and cluster and runtime and strategy):
        raise InputError(faults)
    return Asked(model=model, cluster=cluster, strategy=strategy, runtime=runtime, notes=tuple(notes))


def _tried(faults: list[Fault], read: Callable[[], T]) -> T | None:
    try:
        return read()
    except InputError as error:
        faults += error.faults
        return None


def _model(options: Mapping[str, Any], notes: list[str]) -> Model:
    if options["model"] is None:
        raise InputError(Fault("MODEL", "is missing; name one (see `shardwise models`) or give a file"))
    read = read_model(options["model"])
    notes += read.notes
    return read.value


def _cluster(options: Mapping[str, Any], notes: list[str], given: Given) -> Cluster:
    if options["cluster"] is None:
        raise InputError(Fault("--cluster", "is missing; give for example 64xh100 (see `shardwise clusters`)"))
    read = read_cluster(options["cluster"])
    if read.extra is not None and "dp" in given:  # SimuMax says the number of GPUs in the strategy, not the system
        read = read_cluster(f"{build({**given, 'microbatches': None}).world}x{options['cluster']}")
    notes += read.notes
    return read.value


def _given(options: Mapping[str, Any], notes: list[str]) -> Given:
    """Fields from --strategy, overlaid by flags."""
    faults: list[Fault] = []
    given = _tried(faults, lambda: _from_strategy(options["strategy"], notes)) or {}
    flags = _tried(faults, lambda: _from_flags(options)) or {}
    if faults:
        raise InputError(faults)
    if "microbatches" in flags and "global_batch" not in flags:
        given.pop("global_batch", None)
    if {"tp", "pp", "cp"} & flags.keys() and "dp" not in flags and _is_file(options["strategy"] or ""):
        given.pop("dp", None)  # the file's followed from its own tp, pp and cp
    return {**given, **flags}


def _from_strategy(text: str | None, notes: list[str]) -> Given:
    if text is None:
        return {}
    if not _is_file(text):
        return parse(text)
    read = read_strategy(text)
    notes += read.notes
    return {name: getattr(read.value, name) for name in read.given}


def _is_file(text: str) -> bool:
    return text.endswith((".toml", ".yaml", ".yml", ".json")) or (" " not in text and Path(text).is_file())


def _from_flags(options: Mapping[str, Any]) -> Given:
    names = [field.name for field in fields(Strategy)] + ["microbatches"]
    given = {name: options[name] for name in names if options.get(name) is not None}
    faults: list[Fault] = []
    for name, word in _TEXTS.items():
        if name in given:
            text = "".join(str(given.pop(name)).split())
            given |= _tried(faults, lambda word=word, text=text: parse(word + text)) or {}  # type: ignore[misc]
    for flag, (name, value) in SWITCHES.items():
        if options.get(flag[2:].replace("-", "_")):
            given.setdefault(name, value)
    if faults:
        raise InputError(faults)
    return given
