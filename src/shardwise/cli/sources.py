"""Where a strategy comes from: a line of text, a file of ours, a plan, or another framework's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.frameworks.load import plan_at, read_strategy
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.files import read_mapping
from shardwise.inputs.load import Loaded
from shardwise.inputs.model import Model
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.strategy_text import Given, parse
from shardwise.plan.plan import Plan

Options = Mapping[str, Any]
_ENDINGS = (".toml", ".yaml", ".yml", ".json")


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
    broken: bool = False
    """It could not be read: what it would have given is not missed as well."""
    notes: list[str] = field(default_factory=list)


def source_of(options: Options) -> Source:
    """The one source that the options name; a plan in place of MODEL is one where no other is named."""
    if options["strategy"] and options["framework_file"]:
        raise InputError(Fault("--strategy", "and --from both give a strategy; leave one out"))
    if options["framework_file"]:
        return _framework(options["framework_file"])
    text = options["strategy"] or ""
    if text and not _is_file(text):
        return Source(given=parse(text))
    model = options["model"]
    if text:
        return _strategy_file(text)
    return _strategy_file(model) if model and plan_at(model) else Source()


def _is_file(text: str) -> bool:
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
        from shardwise.cli.per_op_show import refuse_per_op

        refuse_per_op(plan, path, "a verb for whole strategies")
        source.plan, source.model, source.cluster = plan, plan.model, plan.cluster
    return source


def _framework(path: str) -> Source:
    if "::" not in path and (plan_at(path) or _is_simumax(path)):
        return _strategy_file(path)
    from shardwise.frameworks.read import read_framework

    read = read_framework(path)
    made = read.understanding
    told = {"understood": made.understood, "assumed": made.assumed, "ignored": made.ignored}
    notes = [f"{path} ({read.framework}), {what}: {'; '.join(lines)}" for what, lines in told.items() if lines]
    return Source(given=read.fields, model=read.model, gpus=read.gpus, name=path, notes=notes)


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
    return {**given, **flags}
