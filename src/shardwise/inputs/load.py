"""The ways in: a model, a cluster, a strategy or a runtime, from a catalog name or a file.

`load_*` gives the value; `read_*` gives it with what was noticed on the way.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from shardwise.errors import Fault, FileError, InputError, UnknownNameError
from shardwise.inputs import lookup
from shardwise.inputs.check_model import checked_model
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.files import read_mapping
from shardwise.inputs.gate import counted
from shardwise.inputs.load_plan import decided, plan_at, resized
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import Strategy

T = TypeVar("T")

MODELS = lookup.CATALOG / "models"
CLUSTERS = lookup.CATALOG / "clusters"
RUNTIMES = lookup.CATALOG / "runtimes"
_ENDINGS = (".toml", ".json", ".yaml", ".yml")
_COUNTED = re.compile(r"\s*([0-9]{1,400})\s*[x*]\s*(.+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[T]):
    """An input with what was noticed while it was read."""

    value: T
    """The input itself."""
    notes: tuple[str, ...] = ()
    """What was assumed, ignored or not understood, a sentence each."""
    given: frozenset[str] = frozenset()
    """Fields that the file gives; the others hold defaults."""
    extra: Any = None
    """What another tool's file holds beside our fields (SimuMax's efficiencies)."""


def load_model(name: str | Path) -> Model:
    """A model by catalog name, or from a file: ours, Hugging Face's config.json, SimuMax's."""
    return read_model(name).value


def load_cluster(text: str | Path) -> Cluster:
    """A cluster from text such as `64xh100` or `h100` (one node), or from a file: ours or SimuMax's system."""
    return read_cluster(text).value


def load_strategy(path: str | Path) -> Strategy:
    """A strategy from a file: ours or SimuMax's."""
    return read_strategy(path).value


@functools.lru_cache(maxsize=256)
def load_runtime(name: str) -> Runtime:
    """A runtime by catalog name, or from a file; `megatron+kernels.loss=fused` is one with other values."""
    base, *changes = [name] if _is_file(name) else name.split("+")
    path = RUNTIMES / f"{lookup.normal(base)}.toml"
    if not path.is_file():
        if not _is_file(base):
            raise UnknownNameError("runtime", base, runtime_names())
        path = Path(base)
    fields = {"name": path.stem, **read_mapping(path)}
    if changes:
        fields = lookup.merged(fields, {"name": "+".join((path.stem, *changes)), **_changed(changes)})
    elif path.parent == RUNTIMES:
        try:
            return lookup.build(Runtime, fields)
        except (KeyError, TypeError):
            pass  # the slow way below says what is wrong
    return _validated(Runtime, fields, path, "runtime")


def _changed(texts: list[str]) -> dict[str, Any]:
    """`kernels.loss=fused` as tables; values are true, false, numbers or words."""
    found: dict[str, Any] = {}
    for text in texts:
        path, _, value = text.partition("=")
        section, _, field = path.partition(".")
        if not field or not value:
            raise InputError(Fault("runtime", f"{text[:60]!r} changes nothing; write for example +kernels.loss=fused"))
        number = re.fullmatch(r"[0-9.]+(e[+-]?[0-9]+)?", value)
        plain = {"true": True, "false": False}.get(value, float(value) if number else value)
        found.setdefault(section, {})[field] = plain
    return found


def model_names() -> tuple[str, ...]:
    return lookup.names(MODELS)


def gpu_names() -> tuple[str, ...]:
    """Shipped GPUs and the user's own."""
    return (*lookup.names(CLUSTERS), *lookup.names(lookup.home() / "gpus"))


def runtime_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in RUNTIMES.glob("*.toml")))


def read_model(name: str | Path) -> Loaded[Model]:
    if _is_file(name):
        return _model_file(Path(name))
    if Path(name).is_dir():
        raise FileError(name, "is a folder without a config.json; give a folder or file that holds a model")
    return Loaded(value=named_model(str(name)))


def named_model(name: str) -> Model:
    """A model by catalog name; no file of that name is looked for."""
    found = lookup.entry("models", MODELS, name)
    if found is None:
        hint = "(or give a file: ours, a Hugging Face config.json, or SimuMax's)"
        raise UnknownNameError("model", name, lookup.known("models", MODELS), hint=hint)
    return lookup.build(Model, {"name": found[0], **found[1]})


def _model_file(path: Path) -> Loaded[Model]:
    if path.is_dir():
        path /= "config.json"
    plan = plan_at(path)
    return Loaded(value=plan.model, extra=plan) if plan else model_from(read_mapping(path), path)


def model_from(data: dict[str, Any], path: Path) -> Loaded[Model]:
    """A model from what a file holds; `path` only names it in messages, and the model where it has no name."""
    from shardwise.inputs import huggingface, simumax

    if simumax.is_model(data):
        theirs = simumax.read_model(data, title=str(path))
        return Loaded(value=checked_model(theirs.model, str(path)), notes=theirs.notes, extra=theirs)
    if huggingface.is_config(data):
        read = huggingface.read_config(data, name=huggingface.name_of(data, path), title=str(path))
        return Loaded(value=checked_model(read.model, str(path)), notes=read.notes, extra=read)
    own = {key: value for key, value in data.items() if key != "base"}
    fields = {"name": path.stem, **lookup.merged(_base_fields(data.get("base")), own)}
    return Loaded(value=checked_model(_validated(Model, fields, path, "model"), str(path)), given=frozenset(own))


def _base_fields(base: object) -> dict[str, Any]:
    if base is None:
        return {}
    found = lookup.entry("models", MODELS, str(base))
    if found is None:
        raise UnknownNameError("model", str(base), lookup.known("models", MODELS))
    return found[1]


def read_cluster(text: str | Path) -> Loaded[Cluster]:
    if _is_file(text):
        return _cluster_file(Path(text), None)
    found = _COUNTED.fullmatch(str(text))
    if found and _is_file(found[2]):
        return _cluster_file(Path(found[2]), counted(found[1], SCALARS["Cluster.gpus"], "cluster.gpus"))
    return Loaded(value=named_cluster(str(text)))


def named_cluster(text: str) -> Cluster:
    """A cluster from text such as `64xh100`; no file of that name is looked for."""
    if text.strip().isdigit():
        raise InputError(f"{text[:20]!r} names no GPU; write for example {text.strip()[:12]}xh100")
    found = _COUNTED.fullmatch(text)
    name = found[2] if found else text.strip()
    gpus = counted(found[1], SCALARS["Cluster.gpus"], "cluster.gpus") if found else None
    canonical, fields, shipped = _gpu_fields(name)
    return _cluster(canonical, gpus, fields, shipped=shipped)


def _gpu_fields(name: str) -> tuple[str, dict[str, Any], bool]:
    """The user's own GPUs go before the shipped ones, so that a calibrated one can take a shipped name."""
    for folder in (lookup.home() / "gpus", CLUSTERS):
        found = lookup.entry("gpus", folder, name) if folder.is_dir() else None
        if found is not None:
            return *found, folder == CLUSTERS
    known = [*gpu_names(), *lookup.known("gpus", CLUSTERS)]
    raise UnknownNameError("GPU", name, set(known), hint="(write for example 64xh100, or give a cluster file)")


_OF_CLUSTER = frozenset({"levels", "host_bandwidth", "host_memory"})


def _cluster(gpu: str, gpus: int | None, fields: dict[str, Any], *, shipped: bool) -> Cluster:
    if not fields.get("levels"):
        raise InputError(Fault(f"gpus.{gpu}.levels", 'is missing; describe the network, or add a base such as "h100"'))
    count = gpus or fields["levels"][0].get("size") or 1
    data = {
        "name": f"{count}x{gpu}",
        "gpu": {"name": gpu, **{key: value for key, value in fields.items() if key not in _OF_CLUSTER}},
        "gpus": count,
        "levels": _levels(fields["levels"], count),
        **{key: value for key, value in fields.items() if key.startswith("host_")},
    }
    if shipped:
        return lookup.build(Cluster, data)
    path = lookup.home() / "gpus"
    return _checked_cluster(_validated(Cluster, data, path, "cluster"), path)


def _levels(levels: list[Any], gpus: int) -> list[Any]:
    """The levels that a cluster of this size uses; one without a size is as large as it must be."""
    used: list[Any] = []
    inner = 1
    for level in levels:
        if not isinstance(level, dict):
            return levels  # the check that follows says what is wrong
        size = level.get("size", -(-gpus // inner) * inner)
        used.append({**level, "size": size})
        if not isinstance(size, int) or size >= gpus:
            break
        inner = size
    return used


def _cluster_file(path: Path, gpus: int | None) -> Loaded[Cluster]:
    plan = plan_at(path)
    if plan:
        return Loaded(value=resized(plan.cluster, gpus), extra=plan)
    return cluster_from(read_mapping(path), path, gpus)


def cluster_from(data: dict[str, Any], path: Path, gpus: int | None = None) -> Loaded[Cluster]:
    """A cluster from what a file holds; `path` only names it."""
    from shardwise.inputs import simumax

    if simumax.is_system(data):
        system = simumax.read_system(data, gpus=gpus, title=str(path))
        return Loaded(value=system.cluster, notes=system.notes, extra=system)
    fields = {"name": path.stem, **data, **({"gpus": gpus} if gpus else {})}
    fields = _with_catalog_gpu(fields, path)
    count = fields.get("gpus")
    if isinstance(count, int) and isinstance(fields.get("levels"), list):
        fields["levels"] = _levels(fields["levels"], count)
    cluster = _checked_cluster(_validated(Cluster, fields, path, "cluster"), path)
    return Loaded(value=cluster, given=frozenset(data))


def _with_catalog_gpu(fields: dict[str, Any], path: Path) -> dict[str, Any]:
    """`gpu = "h100"`, or a table with `base = "h100"` and what differs."""
    gpu = fields.get("gpu")
    base = gpu if isinstance(gpu, str) else gpu.get("base") if isinstance(gpu, dict) else None
    if base is None:
        return fields
    canonical, known, _ = _gpu_fields(str(base))
    own = {key: value for key, value in gpu.items() if key != "base"} if isinstance(gpu, dict) else {}
    merged = {"name": canonical, **{key: value for key, value in known.items() if key not in _OF_CLUSTER}, **own}
    usual = {key: known[key] for key in _OF_CLUSTER & known.keys()}
    if "gpus" not in fields:
        raise InputError(Fault("cluster.gpus", "is missing; say how many GPUs there are"), title=str(path))
    return {**usual, **fields, "gpu": merged}


def _checked_cluster(cluster: Cluster, path: Path) -> Cluster:
    """What a cluster's own fields must agree on."""
    faults, inner = [], 1
    for index, level in enumerate(cluster.levels):
        if level.size % inner:
            message = f"{level.size} is not a multiple of the {inner} GPUs of the level inside it; make it one"
            faults.append(Fault(f"cluster.levels.{index}.size", message))
        inner = level.size
    if inner < cluster.gpus:
        message = f"the outermost level joins {inner} of {cluster.gpus} GPUs; add a level, or leave out the last size"
        faults.append(Fault("cluster.levels", message))
    formats = cluster.gpu.flops.keys()
    if "fp32" not in formats or not {"bf16", "fp16"} & formats:
        message = f"has {', '.join(formats) or 'no formats'}; give the dense peaks of fp32 and of bf16 or fp16 at least"
        faults.append(Fault("cluster.gpu.flops", message))
    if faults:
        raise InputError(faults, title=str(path))
    return cluster


def read_strategy(path: str | Path) -> Loaded[Strategy]:
    from shardwise.inputs import simumax

    path = Path(path)
    plan = plan_at(path)
    if plan:
        return Loaded(value=plan.strategy, given=decided(plan.strategy), extra=plan)
    data = read_mapping(path)
    if simumax.is_strategy(data):
        theirs = simumax.read_strategy(data, title=str(path))
        return Loaded(value=theirs.strategy, notes=theirs.notes, given=theirs.given, extra=theirs)
    data = data["strategy"] if set(data) == {"strategy"} and isinstance(data["strategy"], dict) else data
    return Loaded(value=_validated(Strategy, data, path, "strategy"), given=frozenset(data))


def _is_file(name: str | Path) -> bool:
    """Whether a file is meant: it is there, or it is written like one."""
    text = str(name)
    try:
        if Path(text).exists():
            return not Path(text).is_dir() or (Path(text) / "config.json").is_file()
    except OSError as error:
        raise FileError(text[:80], f"cannot be read: {error.strerror}") from None
    return text.lower().endswith(_ENDINGS) and not _COUNTED.fullmatch(text)


def _validated(kind: type[T], fields: dict[str, Any], path: Path, at: str) -> T:
    from shardwise.inputs.validate import validated

    return validated(kind, fields, title=str(path), at=at)
