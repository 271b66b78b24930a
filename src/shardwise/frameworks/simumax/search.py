"""SimuMax's search call with its own knobs, answered by `shardwise.plan`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.load import load_runtime, resized
from shardwise.inputs.model import Model
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.write import together, write_text
from shardwise.plan.file import write_plan
from shardwise.search.api import plan_file_of, question_of
from shardwise.search.nothing_fits import closest
from shardwise.search.question import GAP, Answer, Candidate, Question
from shardwise.search.recomputes import AS_NEEDED, MODULES
from shardwise.search.search import Search
from shardwise.search.wishes import Condition, Wishes

GIB = 2.0**30
_COLUMNS = ("parallelism", "recompute", "mfu", "iteration_seconds", "total_bytes")
_RECOMPUTE = ("no_recompute", "full_block", "selective_recompute")


def search_best_parallel_strategy_with_recompute(
    model: Model | str,
    cluster: Cluster | str,
    *,
    world_size: int,
    global_batch_size: int,
    micro_batch_size: int = 1,
    seq_len: int = 4096,
    gmi_error: float = 6.0,
    tp_search_list: Sequence[int] = (),
    ep_search_list: Sequence[int] = (),
    pp_search_list: Sequence[int] = (),
    recompute_search_type: Sequence[str] = _RECOMPUTE,
    use_reserved_memory: bool = True,
    all_search_result: dict[str, list[Any]] | None = None,
    dump_path: str | None = None,
    runtime: str = "megatron",
    gap: float = GAP,
) -> Answer:
    """The best strategy under SimuMax's knobs; what it does not name (cp, vpp, ZeRO, cuts) is searched too.

    `gmi_error`: GiB of every GPU to leave free; without `use_reserved_memory` allocated bytes are held against the
    limit, not what the allocator reserves; `all_search_result` is filled with columns of all that was found to fit;
    `dump_path`: a folder for these rows as CSV and the best as a plan.
    """
    model = load_model(model) if isinstance(model, str) else model
    machines = load_cluster(cluster) if isinstance(cluster, str) else cluster
    machines = resized(machines, world_size)
    software = load_runtime(runtime)
    if not use_reserved_memory:
        memory = replace(software.memory, fragmentation=0.0, lasting_fragmentation=0.0, loss_gaps=0.0, context=0.0)
        software = replace(software, memory=memory)
    question = question_of(
        model, machines, global_batch=global_batch_size, seq=seq_len, runtime=software, memory_margin=gmi_error * GIB
    )
    lists = {"tp": tp_search_list, "ep": ep_search_list, "pp": pp_search_list, "mbs": (micro_batch_size,)}
    conditions = [Condition(axis, "=", tuple(values)) for axis, values in lists.items() if values]
    allowed = _recomputes(recompute_search_type, model.layers)
    conditions.append(Condition("recompute", "=", allowed))
    return _answered(replace(question, wishes=Wishes(conditions=tuple(conditions))), gap, all_search_result, dump_path)


def _recomputes(kinds: Sequence[str], layers: int) -> tuple[Recompute, ...]:
    unknown = [kind for kind in kinds if kind not in _RECOMPUTE]
    if unknown:
        raise InputError(Fault("recompute_search_type", f"{unknown[0]!r} is none of {', '.join(_RECOMPUTE)}"))
    found = [Recompute()] if "no_recompute" in kinds else []
    if "selective_recompute" in kinds:
        found += [Recompute(modules=modules, layers=some) for modules in MODULES for some in ((), AS_NEEDED)]
    if "full_block" in kinds:
        found += [Recompute(full=True), *(Recompute(full=True, layers=(count,)) for count in range(layers))]
    return tuple(found)


def _answered(question: Question, gap: float, rows: dict[str, list[Any]] | None, dump_path: str | None) -> Answer:
    search = Search(question=question, gap=gap)
    answer = search.run()
    if answer.best is None:
        return replace(answer, closest=closest(question, search.leanest))
    columns = _table([one for one in answer.simulated if one.allowed])
    if rows is not None:
        rows.update(columns)
    if dump_path:
        with together():
            write_text(Path(dump_path) / "all.csv", _csv(columns), folder=True)
            write_plan(plan_file_of(answer), Path(dump_path) / "plan.json")
    return answer


def _table(candidates: Sequence[Candidate]) -> dict[str, list[Any]]:
    lines = [
        (str(one.strategy), str(one.strategy.recompute), one.mfu, one.seconds, one.total_bytes) for one in candidates
    ]
    return {name: list(column) for name, column in zip(_COLUMNS, zip(*lines, strict=True), strict=True)}


def _csv(columns: dict[str, list[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()
