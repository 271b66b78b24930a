"""Files of measured runs. Which form a file has is told by its content.

published           a list of runs from reports and papers (or an object with `rows`), each with `parallel`
h200_huggingface    {"rows": [...]}: training steps of one GPU, each with `states`
h200_megatron_rank  {"rows": [...]}: single ranks of a pipeline, each with `stage`
h200_real_jobs      {"rows": [...]}: steps of whole frameworks on one GPU, each with `framework` and `iteration_s`
simumax_runs        {"rows": [...]}: runs on a machine that SimuMax's system file describes, each with `system_config`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardwise.errors import FileError, ShardwiseError
from shardwise.frameworks.load import load_cluster
from shardwise.inputs import lookup
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.files import read_json
from shardwise.measure.fit.store import stored_base
from shardwise.measure.validate import h200, published, real_jobs, simumax_runs
from shardwise.measure.validate.case import MeasuredRun, Skipped, row_faults

Row = dict[str, Any]
Read = Callable[[Row, Path, str | None], MeasuredRun | Skipped]
"""Of a row, the folder of its file, and a cluster in place of the row's own."""

SHIPPED = Path(__file__).parent / "data"


def _placed(read: Callable[[Row], MeasuredRun | Skipped]) -> Read:
    """A reader whose rows ran on a cluster of the catalog."""
    return lambda row, _, cluster: elsewhere(read(row), cluster)


FORMS: dict[str, tuple[frozenset[str], Read]] = {
    "published": (frozenset({"parallel", "measured", "model"}), _placed(published.read)),
    "h200_megatron_rank": (frozenset({"stage", "micro_batches", "hidden"}), _placed(h200.read_megatron_rank)),
    "h200_huggingface": (frozenset({"arch", "seq", "hidden"}), _placed(h200.read_huggingface)),
    "h200_real_jobs": (frozenset({"framework", "strategy", "iteration_s"}), _placed(real_jobs.read)),
    "simumax_runs": (frozenset({"system_config", "parallel", "micro_batch_num"}), simumax_runs.read),
}
"""Form -> keys that its rows have, and its reader; the first form that fits is taken."""


def shipped_files() -> tuple[Path, ...]:
    """The measured runs that come with the package."""
    return tuple(sorted(SHIPPED.glob("*.json.gz")))


def read_file(path: str | Path, cluster: str | None = None) -> list[MeasuredRun | Skipped]:
    """Every row of a file as a case, or the reason why it cannot be one; an unreadable file is an error.

    `cluster`: what rows of its GPU are predicted with, a file or a name; rows of other GPUs are skipped.
    """
    return read_rows(_rows(read_json(path), path), Path(path), cluster)


def read_rows(rows: list[Any], path: Path, cluster: str | None = None) -> list[MeasuredRun | Skipped]:
    """The same of rows at hand; `path`: of their file, in whose folder other files are looked for."""
    form = _form(rows, path)
    found = [_read(row, form, number, path.parent, cluster) for number, row in enumerate(rows, 1)]
    first: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        if isinstance(row, dict) and "id" in row and first.setdefault(name := str(row["id"]), number) != number:
            found[number - 1] = Skipped(
                id=name, source=found[number - 1].source, reason=f"row {first[name]} has the same id {name!r}"
            )
    return found


def elsewhere(case: MeasuredRun | Skipped, cluster: str | None) -> MeasuredRun | Skipped:
    """A case on the cluster that was given in place of its own, if that has the GPU that it ran on."""
    if cluster is None or isinstance(case, Skipped):
        return case
    other = sized(cluster, case.cluster.gpus)
    ran, given = case.cluster.gpu.name, family(other.gpu.name)
    if given != lookup.normal(ran):
        return Skipped(id=case.id, source=case.source, reason=f"it ran on {ran}, and --cluster has {other.gpu.name}")
    return replace(case, cluster=other)


@lru_cache(maxsize=64)
def sized(cluster: str, gpus: int) -> Cluster:
    """So many GPUs of it; `validate` forgets them before it begins."""
    return load_cluster(f"{gpus}x{cluster}")


def family(gpu: str) -> str:
    """The catalog's GPU that a name holds (of `b200_bf16_ceperm` and `our-b200` b200) or stands on, or the name."""
    name = lookup.normal(stored_base(gpu) or gpu)
    return max((known for known in lookup.names(lookup.CATALOG / "clusters") if known in name), key=len, default=name)


def sources_of(path: str | Path) -> dict[str, Any]:
    """What a file says about where its rows come from."""
    data = read_json(path)
    told = data.get("sources", data.get("info", {})) if isinstance(data, dict) else {}
    return told if isinstance(told, dict) else {}


def _rows(data: Any, path: str | Path) -> list[Any]:  # noqa: ANN401
    rows = data.get("rows") if isinstance(data, dict) else data
    if not isinstance(rows, list):
        raise FileError(path, 'holds no measured runs; it must be a list of rows, or an object with a list "rows"')
    if not rows:
        raise FileError(path, "holds no rows; there is nothing to predict")
    return rows


def _form(rows: list[Any], path: str | Path) -> str:
    """The form that most rows have the keys of; a few bad rows do not decide it."""
    counts = {name: sum(_has(row, keys) for row in rows) for name, (keys, _) in FORMS.items()}
    best = max(counts, key=lambda name: counts[name])
    if not counts[best]:
        told = "; ".join(f"{name}: {', '.join(sorted(keys))}" for name, (keys, _) in FORMS.items())
        raise FileError(path, f"has rows of no form that is known; rows need the keys of one ({told})")
    return best


def _has(row: object, keys: Iterable[str]) -> bool:
    return isinstance(row, dict) and all(key in row for key in keys)


def _read(row: object, form: str, number: int, folder: Path, cluster: str | None) -> MeasuredRun | Skipped:
    """One row; what is wrong with it is its own reason, not the file's."""
    if not isinstance(row, dict):
        return Skipped(id=f"row {number}", source=form, reason="the row is not a table of keys and values")
    identity = {"id": str(row.get("id", row.get("case", f"row {number}"))), "source": str(row.get("source_key", form))}
    faults = row_faults(row, form)
    if faults:
        return Skipped(**identity, reason="; ".join(faults))
    try:
        return FORMS[form][1](row, folder, cluster)
    except ShardwiseError as error:
        return Skipped(**identity, reason=str(error))
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        # Every field that is known to matter was looked at above; what is left is a field of a strange kind.
        return Skipped(
            **identity, reason=f"a field is of another kind than in {form} rows; compare it with one of ours"
        )
