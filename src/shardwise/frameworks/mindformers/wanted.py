"""What an answer of `balance`, or a plan, says of a pipeline, in the words of MindFormers' YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.frameworks.export import export
from shardwise.frameworks.mindformers.names import MINDFORMERS_DEGREES
from shardwise.frameworks.mindformers.read import layers_said, read_mindformers
from shardwise.frameworks.mindformers.write import offset
from shardwise.inputs.files import parse_mapping, read_mapping
from shardwise.inputs.foreign import Foreign
from shardwise.inputs.gate import fits, together
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import Placement
from shardwise.partition.lists import can_say, to_lists
from shardwise.partition.problem import BalanceAnswer
from shardwise.plan.file import read_plan
from shardwise.plan.plan import Plan

LISTS = ("recompute", "select_recompute", "select_comm_recompute")
CHUNKED_ORDERS = ("interleaved", "low-memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """What an answer or a plan says of a pipeline, in MindFormers' words."""

    title: str
    """Whose it is, in errors."""
    pp: int
    vpp: int
    layers: tuple[int, ...]
    """Of every chunk, in model order."""
    recompute: Mapping[str, Any] = field(hash=False)
    """`recompute_config`: of every list its value."""
    microbatches: int
    scheduler: str = "1f1b"
    low_memory: bool = False
    placement: Placement = "loop"
    degrees: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Further keys of `parallel_config` that a file must have as they are."""


def settings_from(answer: Plan | BalanceAnswer | str | Path) -> PipelineSettings:
    """What an answer, a plan or the file of one says of a pipeline."""
    if isinstance(answer, Plan):
        return _of_plan(answer, "the plan")
    if isinstance(answer, BalanceAnswer):
        return answer_settings(_data(answer), "the answer")
    data = read_mapping(answer)
    if str(data.get("schema", "")).startswith("shardwise/plan/"):
        return _of_plan(read_plan(answer), str(answer))
    return answer_settings(data, str(answer))


def _of_plan(plan: Plan, title: str) -> PipelineSettings:
    """As the exporter writes it; what MindFormers cannot say is refused there."""
    made = export(plan, "mindformers@2.1-graph")
    text = next(file.text for file in made.files if file.name == "mindformers.yaml")
    return settings_of(parse_mapping(text, "mindformers.yaml"), text, title)


def settings_of(data: Mapping[str, Any], text: str, title: str) -> PipelineSettings:
    """What a MindFormers YAML that we wrote says of its pipeline."""
    pipeline = data.get("parallel", {}).get("pipeline_config", {})
    degrees, model = data["parallel_config"], data["model"]["model_config"]
    read = read_mindformers(dict(data), title=title, text=text).strategy
    return PipelineSettings(
        title=title, pp=read.pp, vpp=read.vpp, layers=read.layers or even(layers_said(Foreign(model)), read.chunks),
        recompute=data["recompute_config"], microbatches=read.microbatches, placement=read.placement,
        scheduler=pipeline.get("pipeline_scheduler", "1f1b"), low_memory=read.schedule == "low-memory",
        degrees={theirs: degrees[theirs] for theirs in MINDFORMERS_DEGREES.values() if theirs in degrees},
    )  # fmt: skip


def _data(answer: BalanceAnswer) -> Mapping[str, Any]:
    problem, best = answer.problem, answer.best
    if not can_say(problem, best.partition):
        raise InputError(
            "MindFormers' lists cannot say this answer: its choices or its way through the stages are others"
        )
    lists = to_lists(problem, best.partition)
    return {
        "pp": problem.pp, "vpp": problem.vpp, "microbatches": problem.microbatches, "splits": problem.splits,
        "layers": list(best.partition.layers), "schedule": best.timeline.schedule.name,
        "mindformers": {name: [list(row) for row in getattr(lists, name)] for name in lists.__slots__},
    }  # fmt: skip


def answer_settings(data: Mapping[str, Any], title: str) -> PipelineSettings:
    """The pipeline of an answer that `balance --json` wrote."""
    keys = Foreign(dict(data))
    lists = keys.table("mindformers")
    if not lists.data:
        raise InputError(
            "holds no lists for MindFormers; give what `balance --json FILE` wrote, or a plan", title=title
        )
    if data.get("schedule") == "seq-1f1b" or data.get("splits", 1) != 1:
        raise InputError("cuts sequences in pieces (seq_split_num), which is not patched; set it by hand", title=title)
    pp, vpp = keys.whole("pp", row="Strategy.pp"), keys.whole("vpp", row="Strategy.vpp")
    microbatches, schedule = keys.whole("microbatches", row="Strategy.microbatches"), keys.text("schedule")
    tables = {name: _table(lists, name, pp, vpp) for name in ("offset", *LISTS)}
    keys.finish(title)
    if schedule not in (CHUNKED_ORDERS if vpp > 1 else ("1f1b", "low-memory")):  # of one chunk the latter is 1F1B
        said = "1f1b" if vpp == 1 else " or ".join(CHUNKED_ORDERS)
        fault = f"is {schedule}; with pp_interleave_num {vpp} a patched file runs {said}: balance with that order"
        raise InputError(Fault("schedule", fault), title=title)
    layers = data.get("layers")
    if (
        not isinstance(layers, list)
        or len(layers) != pp * vpp
        or not all(fits(one, SCALARS["Model.layers"]) for one in layers)
    ):
        raise InputError(
            Fault("layers", f"must be whole numbers, one for each of pp {pp} x vpp {vpp} chunks"), title=title
        )
    if tables["offset"] != offset(layers, pp):
        raise InputError(Fault("mindformers.offset", f"says other layers than layers, {layers}"), title=title)
    if faults := [fault for name in LISTS for fault in _beyond(flat(tables[name]), layers, f"mindformers.{name}", pp)]:
        raise InputError(faults, title=title)
    return PipelineSettings(
        title=title, pp=pp, vpp=vpp, layers=tuple(layers), microbatches=microbatches,
        recompute={name: tables[name] for name in LISTS}, low_memory=schedule == "low-memory",
    )  # fmt: skip


def _beyond(counts: list[int], layers: list[int], at: str, pp: int) -> list[Fault]:
    """Chunks of which more layers are recomputed than they have, or fewer than none."""
    faults = [
        Fault(f"{at}.{k // pp}.{k % pp}", f"is {count}; write 0 to {own}, the layers of that chunk")
        for k, (count, own) in enumerate(zip(counts, layers, strict=True))
        if not 0 <= count <= own
    ]
    return together(faults, len(counts), at)


def _table(lists: Foreign, name: str, pp: int, vpp: int) -> Any:  # noqa: ANN401 - a list, or rows of one
    """A list, or rows of one, from rows."""
    table = lists.data.get(name)
    sound = isinstance(table, list) and len(table) == vpp and shape(table) == (pp,) * vpp
    if not sound or not all(fits(item, SCALARS["pipeline.offset"]) for item in flat(table)):
        lists.fault(name, f"must be vpp {vpp} lists of pp {pp} whole numbers")
        return []
    assert isinstance(table, list)  # noqa: S101 - for the type checker
    return table[0] if vpp == 1 else table


def even(count: int, chunks: int) -> tuple[int, ...]:
    return (count // chunks,) * chunks


def flat(table: Any) -> list[Any]:  # noqa: ANN401 - a list, or rows of one
    return (
        [item for row in table for item in (row if isinstance(row, list) else [row])]
        if isinstance(table, list)
        else [table]
    )


def shape(table: Any) -> tuple[int, ...]:  # noqa: ANN401 - a list, or rows of one
    """Lengths of the rows; of a list its own, negative."""
    if not isinstance(table, list):
        return ()
    return tuple(len(row) for row in table) if all(isinstance(row, list) for row in table) else (-len(table),)
