"""The ways in: a model, a cluster or a strategy from a catalog name, a file of ours, a plan, or another tool's file.

`load_*` gives the value; `read_*` gives it with what was noticed on the way.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.check.model import checked_model
from shardwise.errors import Fault, FileError, InputError
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.files import read_mapping, read_text
from shardwise.inputs.load import (
    Loaded,
    counted_gpus,
    is_file,
    mixed_of,
    named_cluster,
    named_model,
    own_cluster,
    own_model,
    own_strategy,
    parts_of,
    resized,
)
from shardwise.inputs.mixed import Mixed
from shardwise.inputs.model import Model
from shardwise.inputs.strategy import Strategy

if TYPE_CHECKING:
    from shardwise.plan.plan import Plan


def load_model(name: str | Path) -> Model:
    """A model by catalog name, or from a file: ours, Hugging Face's config.json, SimuMax's."""
    return read_model(name).value


def load_cluster(text: str | Path) -> Cluster:
    """A cluster from text such as `64xh100` or `h100` (one node), or from a file: ours or SimuMax's system."""
    return read_cluster(text).value


def load_strategy(path: str | Path) -> Strategy:
    """A strategy from a file: ours, SimuMax's, or a plan; a per-operator plan is refused."""
    from shardwise.plan.plan import Plan

    read = read_strategy(path)
    if isinstance(read.extra, Plan):
        refuse_per_op(read.extra, str(path), "load_strategy")
    return read.value


def read_model(name: str | Path) -> Loaded[Model]:
    if is_file(name):
        return _model_file(Path(name))
    if Path(name).is_dir():
        raise FileError(name, "is a folder without a config.json; give a folder or file that holds a model")
    return Loaded(value=named_model(str(name)))


def _model_file(path: Path) -> Loaded[Model]:
    if path.is_dir():
        path /= "config.json"
    plan = plan_at(path)
    return Loaded(value=plan.model, extra=plan) if plan else model_from(read_mapping(path), path)


def model_from(data: dict[str, Any], path: Path) -> Loaded[Model]:
    """A model from what a file holds; `path` only names it in messages, and the model where it has no name."""
    from shardwise.frameworks.huggingface import read as huggingface
    from shardwise.frameworks.simumax import read as simumax

    if simumax.is_model(data):
        theirs = simumax.read_model(data, title=str(path))
        return Loaded(value=checked_model(theirs.model, str(path)), notes=theirs.notes, extra=theirs)
    if huggingface.is_config(data):
        read = huggingface.read_config(data, name=huggingface.name_of(data, path), title=str(path))
        return Loaded(value=checked_model(read.model, str(path)), notes=read.notes, extra=read)
    own = own_model(data, path)
    checked_model(own.value, str(path))
    return own


def read_cluster(text: str | Path) -> Loaded[Cluster]:
    if is_file(text):
        return _cluster_file(Path(text), None)
    if len(parts := parts_of(str(text))) > 1:
        read = [read_cluster(part) for part in parts]
        notes = tuple(note for one in read for note in one.notes)
        return Loaded(value=mixed_of([one.value for one in read]), notes=notes)
    gpus, name = counted_gpus(str(text))
    if gpus is not None and is_file(name):
        return _cluster_file(Path(name), gpus)
    return Loaded(value=named_cluster(str(text)))


def _cluster_file(path: Path, gpus: int | None) -> Loaded[Cluster]:
    plan = plan_at(path)
    if plan:
        return Loaded(value=resized(plan.cluster, gpus or plan.cluster.gpus), extra=plan)
    return cluster_from(read_mapping(path), path, gpus)


def cluster_from(data: dict[str, Any], path: Path, gpus: int | None = None) -> Loaded[Cluster]:
    """A cluster from what a file holds; `path` only names it."""
    from shardwise.frameworks.simumax import read as simumax

    if simumax.is_system(data):
        system = simumax.read_system(data, gpus=gpus, title=str(path))
        return Loaded(value=system.cluster, notes=system.notes, extra=system)
    return own_cluster(data, path, gpus)


def read_strategy(path: str | Path) -> Loaded[Strategy]:
    from shardwise.frameworks.simumax import read as simumax

    path = Path(path)
    plan = plan_at(path)
    if plan:
        return Loaded(value=plan.strategy, given=decided(plan.strategy), extra=plan)
    data = read_mapping(path)
    if simumax.is_strategy(data):
        theirs = simumax.read_strategy(data, title=str(path))
        return Loaded(value=theirs.strategy, notes=theirs.notes, given=theirs.given, extra=theirs)
    return own_strategy(data, path)


def plan_at(path: str | Path) -> Plan | None:
    """The plan in a file, None where the file is something else; a newer plan is refused with a sentence."""
    if not Path(path).is_file() or '"shardwise/plan/' not in read_text(path):
        return None
    from shardwise.plan.file import read_plan

    return read_plan(path)


def refuse_per_op(plan: Plan, path: str, verb: str) -> None:
    """Verbs that know whole strategies only would show something else than the plan."""
    if plan.operators:
        raise InputError(
            Fault(path, f"is a per-operator plan, which {verb} cannot take: it says the split of every operator; "
                  "write it for PyTorch with `export --to torch-pipelining`, for Aceso's runtime with `plan-operators "
                  "--aceso FILE`, or plan whole strategies")
        )  # fmt: skip


def refuse_mixed(cluster: Cluster, at: str, verb: str, cure: str) -> None:
    """Verbs that know one kind of GPU only would answer for something else."""
    if isinstance(cluster, Mixed):
        raise InputError(Fault(at, f"has several kinds of GPU ({cluster.name}), which {verb} does not take; {cure}"))


def decided(strategy: Strategy) -> frozenset[str]:
    """The fields that a whole strategy decides: its degrees and batch, and what differs from the defaults."""
    always = {"tp", "pp", "vpp", "dp", "cp", "micro_batch", "global_batch", "seq", "schedule"}
    return frozenset(
        item.name for item in fields(Strategy) if item.name in always or getattr(strategy, item.name) != item.default
    )
