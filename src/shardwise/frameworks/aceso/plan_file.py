"""A per-operator plan as the JSON that Aceso's runtime reads (`--flexpipe-config`), and back.

The runtime's keys stay as they are; what was predicted, from which profile and for which shape is under `shardwise`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.frameworks.aceso.shapes import family_of, layers_of, missing_keys, shape_of
from shardwise.inputs.serialise import to_json
from shardwise.inputs.write import write_text
from shardwise.per_op.advice import mebibytes
from shardwise.per_op.answer import OperatorAnswer
from shardwise.per_op.as_plan import profile_data
from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.question import OperatorLayout, OperatorQuestion, PerOpPlan, SplitStage

Plain = dict[str, Any]
_PER_OP = {
    "model_parallel_size_of_each_op": "tp",
    "data_parallel_size_of_each_op": "dp",
    "recompute_ops": "recompute",
    "algo_of_each_op": "variant",
}


def to_aceso(question: OperatorQuestion, plan: PerOpPlan) -> Plain:
    """The runtime's keys in its order, then `shardwise`."""
    profile, stages = question.profile, plan.stages
    name, _, size = profile.name.partition("_")
    return {
        "model_name": name, "model_size": size, "num_layers": layers_of(profile, question.chain), **shape_of(profile),
        "global_batch_size": question.global_batch,
        "micro_batch_size": plan.samples,
        "num_stages": len(stages),
        "num_gpus": [stage.gpus for stage in stages],
        "checkpoint_activations": [any(stage.recompute) for stage in stages],
        "flex_recompute_activations": [any(stage.recompute) for stage in stages],
        "resharding_stages": [len(set(stage.layouts)) > 1 for stage in stages],
        "num_ops_in_each_stage": [stage.size for stage in stages],
        "model_parallel_size_of_each_op": [[layout.tp for layout in stage.layouts] for stage in stages],
        "data_parallel_size_of_each_op": [[layout.dp for layout in stage.layouts] for stage in stages],
        "recompute_ops": [[int(flag) for flag in stage.recompute] for stage in stages],
        "algo_of_each_op": [[layout.variant for layout in stage.layouts] for stage in stages],
        "shardwise": _predicted(question, plan),
    }  # fmt: skip


def lacks(question: OperatorQuestion) -> Iterator[str]:
    """What Aceso's runtime reads of the model and no file or name says."""
    if missing := missing_keys(question.profile):
        words = ", ".join(f'{key} = "..."' for key in missing)
        said = f"Aceso's runtime reads {', '.join(missing)} of a {family_of(question.profile)} and stops without"
        yield f"{said}: nothing says them; put them under [tags] of profile.toml ({words}), or into the file by hand"


def write_plans(answer: OperatorAnswer, path: str | Path, best: int) -> int:
    """The best plans, each in its file (`config.json`, `config-2.json`); how many there were."""
    plans, target = (answer.plan, *answer.others)[:best], Path(path)
    if not answer.plan.stages:
        raise InfeasibleError(
            f"{path} is not written: operator by operator nothing fits, and Aceso's runtime has no more"
        )
    for index, plan in enumerate(plans):
        file = target if index == 0 else target.with_stem(f"{target.stem}-{index + 1}")
        write_text(file, to_json(to_aceso(answer.question, plan)))
    return len(plans)


def _predicted(question: OperatorQuestion, plan: PerOpPlan) -> Plain:
    cost = evaluate(question, plan)
    return {
        "schema": "shardwise/aceso/1",
        "profile": profile_data(question.profile),
        "cost_model": question.pricing.name,
        "made_for": {
            "num_layers": layers_of(question.profile, question.chain),
            "global_batch_size": question.global_batch,
            "micro_batch_size": plan.samples,
            **shape_of(question.profile),
        },
        "seconds": cost.seconds,
        "stages": [
            {"seconds": time, "memory_MiB": mebibytes(memory), "reserved_MiB": mebibytes(stage.reserved)}
            for time, memory, stage in zip(cost.times, cost.memory, cost.stages, strict=True)
        ],
    }


def from_aceso(data: Plain, question: OperatorQuestion, *, title: str = "") -> PerOpPlan:
    """Read a plan; everything that is wrong with it is told at once."""
    faults = [*_key_faults(data)] or [*_shape_faults(data, question), *_stage_faults(data, question)]
    if faults:
        raise InputError(faults, title=title)
    columns = [data[key] for key in _PER_OP]
    stages = []
    for gpus, tps, dps, flags, variants in zip(data["num_gpus"], *columns, strict=True):
        layouts = tuple(OperatorLayout(*each) for each in zip(tps, dps, variants, strict=True))
        stages.append(SplitStage(gpus=gpus, layouts=layouts, recompute=tuple(bool(flag) for flag in flags)))
    plan = PerOpPlan(stages=tuple(stages), samples=data["micro_batch_size"])
    evaluate(question, plan)  # refuses what the profile does not cover
    return plan


def _key_faults(data: Plain) -> Iterator[Fault]:
    for key in ("micro_batch_size", "global_batch_size"):
        if not _whole(data.get(key)):
            yield Fault(key, f"is {data.get(key)!r}; it must be a whole number above 0")
    gpus = data.get("num_gpus")
    if not isinstance(gpus, list) or not gpus or not all(map(_whole, gpus)):
        yield Fault("num_gpus", "must be a list of GPUs per stage")
        return
    for key in _PER_OP:
        rows = data.get(key)
        if not isinstance(rows, list) or len(rows) != len(gpus) or not all(isinstance(row, list) for row in rows):
            yield Fault(key, f"must be a list of {len(gpus)} lists, one per stage")
        elif any(isinstance(value, bool) or not isinstance(value, int) or value < 0 for row in rows for value in row):
            yield Fault(key, "must hold whole numbers")
        elif [len(row) for row in rows] != _counts(data.get("recompute_ops"), rows):
            yield Fault(key, "has other numbers of operators per stage than recompute_ops")
        elif key == "recompute_ops" and any(value > 1 for row in rows for value in row):
            yield Fault(key, "must hold 0 (kept) and 1 (recomputed)")
    yield from _told_twice(data, gpus)


def _counts(rows: object, otherwise: list[list[int]]) -> list[int]:
    """Operators per stage; what is no list is told elsewhere."""
    return [len(row) for row in (rows if isinstance(rows, list) else otherwise) if isinstance(row, list)]


def _told_twice(data: Plain, gpus: list[int]) -> Iterator[Fault]:
    """Aceso's runtime reads these, our evaluation the lists: they must say the same."""
    if data.get("num_stages", len(gpus)) != len(gpus):
        yield Fault("num_stages", f"is {data['num_stages']!r}, but num_gpus has {len(gpus)} stages")
    counts = _counts(data.get("recompute_ops"), [])
    if counts and data.get("num_ops_in_each_stage", counts) != counts:
        said = f"is {data['num_ops_in_each_stage']!r}, but the lists per operator hold {counts}"
        yield Fault("num_ops_in_each_stage", said)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _shape_faults(data: Plain, question: OperatorQuestion) -> Iterator[Fault]:
    """Shapes and batches cannot be edited in a plan: its times and its memory belong to the profiled ones."""
    own = data.get("shardwise", {})
    made_for = own.get("made_for") if isinstance(own, dict) else None
    wanted: Plain = {**shape_of(question.profile), **(made_for if isinstance(made_for, dict) else {})}
    layers = layers_of(question.profile, question.chain)
    if data.get("num_layers", layers) != layers:
        cure = "" if isinstance(layers, list) else f"; plan with --layers {data['num_layers']}, or without that file"
        yield Fault("num_layers", f"is {data['num_layers']}, {question.profile.name} is planned with {layers}{cure}")
    for key, value in wanted.items():
        if key in {"micro_batch_size", "num_layers"} or key not in data or data[key] == value:
            continue
        if key == "global_batch_size":
            yield Fault(
                key, f"is {data[key]}, the plan was made for {value}; plan again with --global-batch {data[key]}"
            )
        else:
            said = f"is {data[key]}, the profile {question.profile.name} was measured at {value}"
            why = "matrix shapes, times and memory would not hold"
            yield Fault(key, f"{said}: {why}; profile it at {data[key]} and plan again")


def _stage_faults(data: Plain, question: OperatorQuestion) -> Iterator[Fault]:
    counts = [len(row) for row in data["recompute_ops"]]
    total = len(question.chain.rows)
    if sum(counts) != total:
        yield Fault("num_ops_in_each_stage", f"holds {sum(counts)} operators, the model has {total}")
    if min(counts, default=0) < 1:
        yield Fault("num_ops_in_each_stage", "every stage needs an operator")
    if sum(data["num_gpus"]) != question.gpus:
        yield Fault("num_gpus", f"adds up to {sum(data['num_gpus'])}, there are {question.gpus} GPUs")
    if data["micro_batch_size"] > question.global_batch:
        yield Fault(
            "micro_batch_size", f"is {data['micro_batch_size']}, above the global batch {question.global_batch}"
        )
    for index, gpus in enumerate(data["num_gpus"]):
        pairs = zip(
            data["model_parallel_size_of_each_op"][index], data["data_parallel_size_of_each_op"][index], strict=True
        )
        wrong = [(tp, dp) for tp, dp in pairs if tp * dp != gpus]
        if wrong:
            tp, dp = wrong[0]
            yield Fault(f"stage {index}", f"tp {tp} x dp {dp} is not its {gpus} GPUs ({len(wrong)} operators)")
