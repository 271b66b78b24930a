"""What goes in and out: models, clusters, strategies and plans from names and files, and plans into files."""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: who presses Ctrl-C while that loads would see a traceback of Python's
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from shardwise.estimate.estimate import Estimate
    from shardwise.frameworks.ask import Asked
    from shardwise.frameworks.target import Export
    from shardwise.inputs.cluster import Cluster
    from shardwise.inputs.load import Loaded
    from shardwise.inputs.model import Model
    from shardwise.inputs.runtime import Runtime
    from shardwise.inputs.strategy import Strategy
    from shardwise.partition.problem import BalanceAnswer
    from shardwise.per_op.answer import OperatorAnswer
    from shardwise.pipeline.action import Schedule
    from shardwise.plan.file import Difference
    from shardwise.plan.plan import Plan
    from shardwise.plan.renew import Renewed
    from shardwise.search.balance_plan import Balanced
    from shardwise.search.question import Answer
    from shardwise.search.schedule import Scheduled
    from shardwise.search.what_if import WhatIf

    Source = str | Path


def load_model(source: Source) -> Model:
    """A model by catalog name, or from a file: ours, a plan, Hugging Face's config.json, SimuMax's."""
    return read_model(source).value


def read_model(source: Source) -> Loaded[Model]:
    """The same as `load_model`, with what was noticed on the way (`.notes`)."""
    from shardwise.frameworks.load import read_model

    return read_model(source)


def trace_module(
    source: str, inputs: Sequence[str] | str, *, dtype: str = "bf16", name: str = "",
    executing: Callable[[Path], object] | None = None,
) -> Model:  # fmt: skip
    """A model out of any PyTorch module, followed forward and backward on fake tensors; no weights are made.

    `source`: a file and a function of it that gives the module, such as `my_model.py:build`: the file is executed, it
    is your code; `inputs`: what the module is called with, such as `ids=1x4096:int64`, the first number being samples;
    `dtype`: format of its parameters; `name`: what the model is called, by default as the function, or as its file
    where that is `build`; `executing`: called with the file when all else is in order, before it is executed.
    """
    from pathlib import Path

    from shardwise.check.model import checked_model
    from shardwise.frameworks.torch.trace import trace
    from shardwise.inputs.traced_model import traced_model

    found = trace(source, [inputs] if isinstance(inputs, str) else inputs, dtype, executing=executing)
    file, _, function = source.rpartition(":")
    called = name or (Path(file).stem if function == "build" else function)
    return checked_model(traced_model(called, found), source)


def load_cluster(source: Source) -> Cluster:
    """A cluster from text such as `64xh100` or `h100` (one node), or from a file: ours, a plan, SimuMax's system."""
    return read_cluster(source).value


def read_cluster(source: Source) -> Loaded[Cluster]:
    """The same as `load_cluster`, with what was noticed on the way (`.notes`)."""
    from shardwise.frameworks.load import read_cluster

    return read_cluster(source)


def load_runtime(name: str) -> Runtime:
    """A runtime by catalog name, or from a file; `megatron+kernels.loss=fused` is one with other values.

    `name`: the name or the file.
    """
    from shardwise.inputs.load import load_runtime

    return load_runtime(name)


def load_strategy(
    source: Source,
    cluster: Cluster | Source | None = None,
    *,
    global_batch: int | None = None,
    seq: int | None = None,
    runtime: str | None = None,
) -> Strategy:
    """A strategy from a line of text such as `tp8 pp4 mbs1 gbs512`, or from a file: ours, a plan, SimuMax's.

    `source`: the text or the file; `cluster`: where a text does not say dp, it follows from the cluster's GPUs;
    `global_batch`, `seq`, `runtime`: what stands where a text does not say them.
    """
    from shardwise.frameworks.ask import is_file
    from shardwise.frameworks.load import load_strategy
    from shardwise.inputs.strategy_text import build, complete, parse

    if not isinstance(source, str) or is_file(source):
        return load_strategy(source)
    beside = {"global_batch": global_batch, "seq": seq, "runtime": runtime}
    given = {**{name: value for name, value in beside.items() if value is not None}, **parse(source)}
    return build(given) if cluster is None else complete(given, as_cluster(cluster))


def ask(
    model: str | None = None,
    cluster: str | None = None,
    strategy: str | None = None,
    *,
    source: str | None = None,
    fields: Mapping[str, Any] | None = None,
    switches: Mapping[str, Any] | None = None,
    megatron: Mapping[str, Any] | None = None,
    notes: list[str] | None = None,
) -> Asked:
    """A whole question from what a person typed: model, cluster, strategy and runtime; all faults are told at once.

    `model`: a name, a file, or a plan that says everything; `cluster`: text or a file; `strategy`: a line of text or
    a file; `source`: a framework's file (a Megatron script, torchtitan's, DeepSpeed's ...) that says model and
    strategy; `fields`: single fields, which go before the strategy; `switches`: fields that follow where they are not
    said; `megatron`: further flags of Megatron's; `notes`: filled with what was understood, also where it fails.
    """
    from shardwise.frameworks.ask import Request, ask, is_file

    text, words = _beside_plan(model, strategy, source)
    request = Request(
        model=model, cluster=cluster, strategy=text, source=source, fields={**words, **(fields or {})},
        switches=switches or {}, megatron=megatron or {},
    )  # fmt: skip
    told = [] if notes is None else notes
    return _with_order(ask(request, told), source or (text if text and is_file(text) else model), told)


def _beside_plan(
    model: str | None, strategy: str | None, source: str | None
) -> tuple[str | None, dict[str, Any]]:  # fmt: skip
    """A line beside a plan as single fields over the plan's strategy, so that what it leaves out is the plan's."""
    from shardwise.errors import InputError
    from shardwise.frameworks.ask import is_file
    from shardwise.inputs.strategy_text import parse
    from shardwise.plan.file import is_plan

    if not (model and strategy and not source and not is_file(strategy) and is_plan(model)):
        return strategy, {}
    try:
        words = dict(parse(strategy, files=True))
    except InputError:  # told with all other faults
        return strategy, {}
    for name, lead in (("layers", "layers="), ("batches", "batches="), ("recompute", "recompute="), ("lora", "lora")):
        if name in words:  # as text, like the option of that name
            words[name] = next(word for word in strategy.split() if word.startswith(lead)).removeprefix(lead)
    return None, words


def _with_order(asked: Asked, source: str | None, notes: list[str]) -> Asked:
    """The question with the plan whose order goes with its strategy; a note where the order does not."""
    from dataclasses import replace

    from shardwise.frameworks.load import plan_at
    from shardwise.plan.predict import moved

    plan = plan_at(source) if source else None
    if asked.plan is not None or plan is None or plan.order is None:
        return asked
    if (plan.model, plan.strategy) == (asked.model, asked.strategy):
        return replace(asked, plan=moved(plan, asked.cluster))
    notes.append(
        f"the order that {source} carries is of its own strategy and is left out: the passes of this one run as "
        f"{asked.strategy.schedule}"
    )
    return replace(asked, notes=tuple(notes))


def read_plan(path: Source) -> Plan:
    """A plan from its file."""
    from shardwise.plan.file import read_plan

    return read_plan(path)


def plan_table(plan: Plan) -> dict[str, Any]:
    """What the plan's file would hold, as plain values."""
    from shardwise.plan.file import plan_table

    return plan_table(plan)


def write_plan(plan: Plan, path: Source) -> None:
    """A plan into its file, whole or not at all."""
    from shardwise.plan.file import write_plan

    write_plan(plan, path)


def plan_of(
    found: Estimate | Answer | OperatorAnswer | Scheduled | Balanced | BalanceAnswer | WhatIf,
    plan: Plan | Source | None = None,
    *,
    memory_limit: float | str | None = None,
) -> Plan:
    """The plan of an answer, to be written, exported or compared: inputs, cut, order and what is predicted.

    `found`: what `estimate`, `plan`, `plan_operators`, `schedule`, `balance`, `balance_plan` or `what_if` gave; `plan`:
    the plan that gets the layers of `balance`; where an order or an estimate of a plan is given, it must be that
    plan; `memory_limit`: bytes, or a text such as `40GB`, that a rank of an estimate may need, where that
    is not all of its GPU.
    """
    from shardwise.errors import Fault, InputError
    from shardwise.estimate.estimate import Estimate, limited
    from shardwise.plan.predict import plan_of, refuse_other_plan
    from shardwise.search.api import plan_file_of
    from shardwise.search.question import Answer

    if isinstance(found, Estimate):
        if plan is not None:
            refuse_other_plan(found, as_plan(plan, "an estimate"))
        return plan_of(found if memory_limit is None else limited(found, as_bytes(memory_limit, "memory_limit")))
    if memory_limit is not None:
        raise InputError(Fault("memory_limit", "goes with an estimate; other answers say it themselves: leave it out"))
    return plan_file_of(found) if isinstance(found, Answer) else _plan_of_other(found, plan)


def as_bytes(size: float | str, name: str) -> float:
    """Bytes of a device that a call gave under a name, as a number or a text such as `40GB`, checked."""
    from shardwise.inputs.gate import held
    from shardwise.inputs.scalars import SCALARS

    return held(size, SCALARS["Gpu.memory"], name)


def _plan_of_other(
    found: OperatorAnswer | Scheduled | Balanced | BalanceAnswer | WhatIf, plan: Plan | Source | None
) -> Plan:
    from shardwise.errors import Fault, InputError
    from shardwise.partition.problem import BalanceAnswer
    from shardwise.per_op import as_plan as per_op
    from shardwise.per_op.answer import OperatorAnswer
    from shardwise.plan.predict import plan_of
    from shardwise.report.balance import answer_data
    from shardwise.search.api import plan_file_of
    from shardwise.search.balance_plan import Balanced, with_layers_of
    from shardwise.search.schedule import Scheduled, in_order
    from shardwise.search.what_if import WhatIf

    if isinstance(found, WhatIf):
        return plan_file_of(found.again)
    if isinstance(found, OperatorAnswer):
        return per_op.plan_of(found)
    if isinstance(found, Balanced):
        return plan_of(found.after)
    if isinstance(found, Scheduled):
        return in_order(found, None if plan is None else as_plan(plan, "a schedule"))
    if plan is None:
        raise InputError(Fault("plan", "is missing; name the plan that gets the layers: plan_of(found, plan)"))
    whole = as_plan(plan, "a balance")
    assert isinstance(found, BalanceAnswer)  # noqa: S101 - for the type checker
    return with_layers_of(whole, found, answer_data(found))


def diff(left: Plan | Source, right: Plan | Source) -> tuple[Difference, ...]:
    """In what two plans differ: inputs first, then what is predicted, by the cost model in use for both."""
    from shardwise.plan.file import diff

    return diff(renewed(left).plan, renewed(right).plan)


def renewed(plan: Plan | Source) -> Renewed:
    """A plan predicted anew, and which figures of its file are no longer the cost model's."""
    from shardwise.plan.plan import Plan
    from shardwise.plan.renew import renewed

    return renewed(plan if isinstance(plan, Plan) else read_plan(plan))


def model_from(data: dict[str, Any], name: str) -> Model:
    """A model from what a file would hold; `name` is said where something is wrong."""
    from pathlib import Path

    from shardwise.frameworks.load import model_from

    return model_from(data, Path(name)).value


def cluster_from(data: dict[str, Any], name: str) -> Cluster:
    """A cluster from what a file would hold; `name` is said where something is wrong."""
    from pathlib import Path

    from shardwise.frameworks.load import cluster_from

    return cluster_from(data, Path(name)).value


def plan_from(data: dict[str, Any], name: str) -> Plan:
    """A plan from what its file would hold, its model checked; `name` is said where something is wrong."""
    from shardwise.check.model import checked_model
    from shardwise.plan.file import plan_from

    plan = plan_from(data, name)
    checked_model(plan.model, name)
    return plan


def question_from(text: str, name: str, model: Model, cluster: Cluster) -> Asked:
    """A question from what a launch script or a framework's configuration holds; no file is opened.

    `name`: of the file, whose ending tells a script from a configuration; `model`, `cluster`: what is asked about
    where the text does not say it.
    """
    from shardwise.frameworks.ask import ask_text

    return ask_text(text, name, model, cluster)


def targets() -> tuple[str, ...]:
    """What a plan can be exported to, with every version: `torchtitan@0.3`."""
    from shardwise.frameworks.export import target_names

    return target_names()


def export(plan: Plan | Schedule | Source, target: str, *, strict: bool = False, launcher: str = "torchrun") -> Export:
    """The files that make a training framework do what a plan says, and what they cannot say.

    `plan`: a plan (a per-operator plan goes to `torch-pipelining`, and where all operators are split alike anywhere),
    its file, or a schedule (or its CSV), which only PyTorch's pipelining takes; `target`: such as
    `megatron` or `torchtitan@0.3` (see `targets`); `strict`: refuse where only something near can be said;
    `launcher`: torchrun, slurm or kubernetes, whose job is written beside the script. `write_export` writes the files.
    """
    from shardwise.frameworks.export import export, export_schedule
    from shardwise.pipeline.action import Schedule
    from shardwise.plan.plan import Plan

    if isinstance(plan, Schedule) or (not isinstance(plan, Plan) and not str(plan).lower().endswith(".json")):
        return export_schedule(plan, target)
    return export(as_plan(plan, "export", operators=True), target, strict=strict, launcher=launcher)


def write_export(made: Export, folder: Source, *, force: bool = False) -> tuple[Path, ...]:
    """Write an export's files, all or none; gives their paths.

    `made`: what `export` gave; `folder`: made where there is none; `force`: over files that were edited or are not
    ours.
    """
    from shardwise.frameworks.folder import write_export

    return write_export(made, folder, force=force)


def as_model(source: Model | Source) -> Model:
    """A model, loaded where a name or a file stands for it."""
    from shardwise.inputs.model import Model

    return source if isinstance(source, Model) else load_model(source)


def as_cluster(source: Cluster | Source) -> Cluster:
    """A cluster, loaded where a text or a file stands for it."""
    from shardwise.inputs.cluster import Cluster

    return source if isinstance(source, Cluster) else load_cluster(source)


def as_strategy(source: Strategy | Source, cluster: Cluster) -> Strategy:
    """A strategy, read where a line or a file stands for it; what a line leaves out follows from the cluster."""
    from shardwise.inputs.strategy import Strategy

    return source if isinstance(source, Strategy) else load_strategy(source, cluster)


def as_runtime(source: Runtime | str | None) -> Runtime | None:
    """A runtime, loaded where a name stands for it; None: the one that the strategy names."""
    return load_runtime(source) if isinstance(source, str) else source


def as_plan(source: Plan | Source, verb: str, at: str = "plan", *, operators: bool = False) -> Plan:
    """A plan, read where a file stands for it; a per-operator plan is refused but with `operators`. `at`: its name."""
    from shardwise.frameworks.load import refuse_mixed, refuse_per_op
    from shardwise.plan.file import read_plan
    from shardwise.plan.plan import Plan

    plan = source if isinstance(source, Plan) else read_plan(source)
    at = at if plan is source else str(source)
    if not operators:
        refuse_per_op(plan, at, verb)
    if verb in _ONE_KIND:
        refuse_mixed(plan.cluster, at, verb, _ONE_KIND[verb])
    return plan


_ONE_KIND = {
    "what-if": "write the other cluster out and plan for it",
    "rehearse": "rehearse a plan for one of the kinds",
    "calibrate": "calibrate each kind by a run on it alone",
    "launch": "export it, and start its script on the nodes of every kind, in the order of the kinds",
}
"""Verbs that know one kind of GPU, and what to do instead."""
