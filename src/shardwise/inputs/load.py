"""Catalog names and files of our own as model, cluster, strategy and runtime; `frameworks/load.py` reads any file."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from shardwise.errors import Fault, FileError, InputError, UnknownNameError
from shardwise.inputs import lookup
from shardwise.inputs.cluster import Cluster, Level, at_site, cluster_name
from shardwise.inputs.files import read_mapping
from shardwise.inputs.gate import counted
from shardwise.inputs.mixed import Mixed, kinds_of
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.site import USUAL, Site
from shardwise.inputs.strategy import Strategy

T = TypeVar("T")

MODELS = lookup.CATALOG / "models"
CLUSTERS = lookup.CATALOG / "clusters"
RUNTIMES = lookup.CATALOG / "runtimes"
SITES = lookup.CATALOG / "sites"
OWN_SITE = "own"
"""What a site of a file is called that has numbers and no name."""
MOST_KINDS = 3
"""Kinds of GPU of a mixed cluster."""
_ENDINGS = (".toml", ".json", ".yaml", ".yml")
_OF_CLUSTER = frozenset({"levels", "host_bandwidth", "host_memory"})
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


@functools.lru_cache(maxsize=256)
def load_runtime(name: str) -> Runtime:
    """A runtime by catalog name, or from a file; `megatron+kernels.loss=fused` is one with other values."""
    base, *changes = name.split("+")
    path = RUNTIMES / f"{lookup.normal(base)[:100]}.toml"
    if not path.is_file():  # a file's name may have a plus; many changes are longer than any can be
        base, changes = (name, []) if is_file(name) else (base, changes)
        if not is_file(base):
            raise UnknownNameError("runtime", base, runtime_names())
        path = Path(base)
    fields = {"name": path.stem, **_runtime_fields(path)}
    if changes:
        fields = lookup.merged(fields, {"name": "+".join((path.stem, *changes)), **_changed(changes)})
    elif path.parent == RUNTIMES:
        try:
            return lookup.build(Runtime, fields)
        except (KeyError, TypeError):
            pass  # the slow way below says what is wrong
    return _validated(Runtime, fields, path, "runtime")


def _runtime_fields(path: Path) -> dict[str, Any]:
    """What a runtime's file says, laid over the runtime of the catalog that it names as its `base`."""
    own = read_mapping(path)
    base = own.pop("base", None)
    if base is None:
        return own
    under = RUNTIMES / f"{lookup.normal(str(base))}.toml"
    if not under.is_file():
        raise UnknownNameError("base", str(base), runtime_names())
    return lookup.merged(_runtime_fields(under), own)


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


def named_model(name: str) -> Model:
    """A model by catalog name; no file of that name is looked for."""
    found = lookup.entry("models", MODELS, name)
    if found is None:
        hint = "(or a file: ours, a Hugging Face config.json, or SimuMax's)"
        raise UnknownNameError("model", name, lookup.known("models", MODELS), hint=hint)
    return lookup.build(Model, {"name": found[0], **found[1]})


def own_model(data: dict[str, Any], path: Path) -> Loaded[Model]:
    """A model from a file of ours; `base`: a catalog model that it differs from."""
    own = {key: value for key, value in data.items() if key != "base"}
    fields = {"name": path.stem, **lookup.merged(_base_fields(data.get("base")), own)}
    return Loaded(value=_validated(Model, fields, path, "model"), given=frozenset(own))


def _base_fields(base: object) -> dict[str, Any]:
    if base is None:
        return {}
    found = lookup.entry("models", MODELS, str(base))
    if found is None:
        raise UnknownNameError("model", str(base), lookup.known("models", MODELS))
    return found[1]


def parts_of(text: str) -> list[str]:
    """The kinds of a mixed cluster: `32xh100 + 64xa100` as two texts."""
    parts = [part.strip() for part in text.split("+")]
    if len(parts) > 1 and not all(parts):
        raise InputError(f"{text[:60]!r} has a + without a kind of GPU on either side; write 32xh100 + 64xa100")
    return parts


def counted_gpus(text: str) -> tuple[int | None, str]:
    """`64xh100` as 64 and `h100`; without a number, none."""
    found = _COUNTED.fullmatch(text)
    if not found:
        return None, text.strip()
    return counted(found[1], SCALARS["Cluster.gpus"], "cluster.gpus"), found[2]


def named_cluster(text: str) -> Cluster:
    """A cluster from text such as `64xh100`, `384xa100@bloom` at a site, or `32xh100 + 64xa100`; no file of that name
    is looked for.
    """
    if len(parts := parts_of(text)) > 1:
        return mixed_of([named_cluster(part) for part in parts])
    if text.strip().isdigit():
        raise InputError(f"{text[:20]!r} names no GPU; write for example {text.strip()[:12]}xh100")
    text, mark, site = text.partition("@")
    if mark and not site.strip():
        raise InputError(f"no site stands behind the @ of {text[:40] + mark!r}; known: {', '.join(_sites())}")
    gpus, name = counted_gpus(text)
    canonical, fields, shipped = _gpu_fields(name)
    cluster = _cluster(canonical, gpus, fields, shipped=shipped)
    return _placed(cluster, load_site(site)) if mark else cluster


def mixed_of(parts: Sequence[Cluster], join: Level | None = None) -> Cluster:
    """Clusters that train together; neighbours that are alike are one kind. `join`: the network between kinds, by
    default the slowest of those that join their nodes.
    """
    kinds: list[Cluster] = []
    for part in (kind for one in parts for kind in kinds_of(one)):
        both = resized(part, kinds[-1].gpus + part.gpus) if kinds else part
        if kinds and resized(kinds[-1], both.gpus) == both:
            kinds[-1] = both
        else:
            kinds.append(part)
    if len(kinds) == 1:
        return kinds[0]
    if len(kinds) > MOST_KINDS:
        raise InputError(Fault("cluster", f"has {len(kinds)} kinds of GPU; up to {MOST_KINDS} are known together"))
    return Mixed(kinds=tuple(kinds), join=join or min(map(_between_nodes, kinds), key=_rate))


def _between_nodes(cluster: Cluster) -> Level:
    """What joins the nodes of a cluster, also where it has one only."""
    return resized(cluster, max(cluster.gpus, 2 * cluster.levels[0].size)).levels[-1]


def _rate(level: Level) -> float:
    return level.bandwidth / level.oversubscription


def _placed(cluster: Cluster, site: Site) -> Cluster:
    return replace(cluster, site=site, name=at_site(cluster.name, site))


def _sites() -> list[str]:
    return [USUAL.name, *lookup.known("sites", SITES)]


def resized(cluster: Cluster, gpus: int) -> Cluster:
    """The same GPUs, site and network, another number of them: levels that are not needed go, the outermost grows."""
    if gpus == cluster.gpus:
        return cluster
    if isinstance(cluster, Mixed):
        raise InputError(
            Fault("cluster.gpus", f"{gpus} does not say how many of each kind of {cluster.name}; write the cluster out")
        )
    used: list[Level] = []
    for level in (*cluster.levels, *_levels_beyond(cluster, gpus)):
        inner = used[-1].size if used else 1
        used.append(level)
        if level.size >= gpus:
            break
    if used and used[-1].size < gpus:
        used[-1] = replace(used[-1], size=-(-gpus // inner) * inner)
    return replace(cluster, name=cluster_name(gpus, cluster.gpu.name, cluster.site), gpus=gpus, levels=tuple(used))


def _levels_beyond(cluster: Cluster, gpus: int) -> tuple[Level, ...]:
    """What the catalog has outside the levels of a cluster: one node knows of no network between nodes."""
    try:
        known = named_cluster(f"{gpus}x{cluster.gpu.name}").levels
    except InputError:  # a GPU of a user's own file, not of the catalog
        return ()
    own = len(cluster.levels)
    same = [level.name for level in known[:own]] == [level.name for level in cluster.levels]
    return known[own:] if same else ()


def load_site(name: str) -> Site:
    """A site by its name in the catalog, or the usual one."""
    if lookup.normal(name) == USUAL.name:
        return USUAL
    found = lookup.entry("sites", SITES, name)
    if found is None:
        raise UnknownNameError("site", name, _sites(), every=True)
    return lookup.build(Site, {"name": found[0], **found[1]})


def _gpu_fields(name: str) -> tuple[str, dict[str, Any], bool]:
    """The user's own GPUs go before the shipped ones, so that a calibrated one can take a shipped name."""
    for folder in (lookup.home() / "gpus", CLUSTERS):
        found = lookup.entry("gpus", folder, name) if folder.is_dir() else None
        if found is not None:
            return *found, folder == CLUSTERS
    known = [*gpu_names(), *lookup.known("gpus", CLUSTERS)]
    raise UnknownNameError("GPU", name, set(known), hint="(write for example 64xh100, or a cluster file)")


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


def own_cluster(data: dict[str, Any], path: Path, gpus: int | None = None) -> Loaded[Cluster]:
    """A cluster from a file of ours; `path` only names it."""
    if "kinds" in data:
        return _own_mixed(data, path, gpus)
    fields = {"name": path.stem, **data, **({"gpus": gpus} if gpus else {})}
    fields = _with_catalog_gpu(fields, path)
    if isinstance(fields.get("site"), str):
        fields["site"] = asdict(load_site(fields["site"]))
    elif isinstance(fields.get("site"), dict):
        fields["site"] = {"name": OWN_SITE, **fields["site"]}
    count = fields.get("gpus")
    if isinstance(count, int) and isinstance(fields.get("levels"), list):
        fields["levels"] = _levels(fields["levels"], count)
    cluster = _checked_cluster(_validated(Cluster, fields, path, "cluster"), path)
    return Loaded(value=_placed(cluster, cluster.site), given=frozenset(data))


def _own_mixed(data: dict[str, Any], path: Path, gpus: int | None) -> Loaded[Cluster]:
    """Kinds of GPU, each a text such as `32xh100` or a cluster of its own, and the network between them (`join`)."""
    kinds, unknown = data["kinds"], sorted(data.keys() - {"name", "kinds", "join"})
    if unknown or not isinstance(kinds, list) or len(kinds) < 2:
        message = "must be a list of two kinds or more, each a text such as 32xh100 or a table of a cluster"
        faults = [Fault(f"cluster.{name}", "does not go with kinds; give it in each kind") for name in unknown]
        raise InputError(faults or Fault("cluster.kinds", message), title=str(path))
    parts = [_own_kind(kind, path) for kind in kinds]
    join = None
    if "join" in data:
        fields = {"size": sum(part.gpus for part in parts), "name": "join", **data["join"]}
        join = _validated(Level, fields, path, "cluster.join")
    made = replace(mixed_of(parts, join), name=data.get("name", path.stem))
    return Loaded(value=resized(made, gpus) if gpus else made, given=frozenset(data))


def _own_kind(kind: object, path: Path) -> Cluster:
    """One kind of a mixed cluster, called as it would be written."""
    if isinstance(kind, str):
        return named_cluster(kind)
    if not isinstance(kind, dict):
        raise InputError(Fault("cluster.kinds", f"{kind!r} is neither a text nor a table"), title=str(path))
    made = own_cluster(kind, path).value
    return made if "name" in kind else replace(made, name=cluster_name(made.gpus, made.gpu.name, made.site))


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


def own_strategy(data: dict[str, Any], path: Path) -> Loaded[Strategy]:
    """A strategy from a file of ours."""
    data = data["strategy"] if set(data) == {"strategy"} and isinstance(data["strategy"], dict) else data
    return Loaded(value=_validated(Strategy, data, path, "strategy"), given=frozenset(data))


def is_file(name: str | Path) -> bool:
    """Whether a file is meant: it is there, or it is written like one."""
    text = str(name)
    try:
        if Path(text).exists():
            return not Path(text).is_dir() or (Path(text) / "config.json").is_file()
    except OSError as error:
        raise FileError(text[:80], f"cannot be read: {error.strerror}") from None
    return text.lower().endswith(_ENDINGS) and not _COUNTED.fullmatch(text)


def _validated(kind: type[T], fields: dict[str, Any], path: Path, at: str) -> T:
    from shardwise.inputs.typed import validated

    return validated(kind, fields, title=str(path), at=at)
