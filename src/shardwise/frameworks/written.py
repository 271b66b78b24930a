"""What the files of an export say: read back and estimated for the runtime of the target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import NamedTuple

from shardwise.errors import Fault, ShardwiseError
from shardwise.estimate.estimate import Estimate, estimate, within
from shardwise.frameworks.partition import mixture, planned
from shardwise.frameworks.read import read_content
from shardwise.frameworks.target import ExportDraft, File, settings_of
from shardwise.inputs.model import Model
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.strategy_text import Given, complete
from shardwise.pipeline.action import Schedule
from shardwise.plan.predict import asked_limit
from shardwise.units import show_bytes, show_seconds

READ_BACK = {
    **dict.fromkeys(("megatron@main", "megatron@0.19", "megatron@0.18"), "train.sh"),
    "megatron-bridge@0.6": "bridge.yaml",
    "torchtitan@0.2": "torchtitan.toml", "torchtitan@0.3": "shardwise_config.py",
    "torchtitan@main": "shardwise_config.py", "mindformers@2.1-graph": "mindformers.yaml",
    "deepspeed@0.19": "ds_config.json", "huggingface@5": "shardwise_train.json",
}  # fmt: skip
"""Target -> the file that says its strategy; those of other targets are read by nobody here."""
PARTS = ("deepspeed", "megatron-bridge")
"""Targets whose file leaves a part to the program, or the number of GPUs to the script: that is as it is meant."""
UNPREDICTED = {
    "2.1-pynative": "PyNative shards gradients as FSDP does (zero 2 or 3), and the runtime mindformers is graph mode, "
    "which has zero 0 and 1"
}
"""Versions that run what the runtime of their target does not have -> why."""
ORDER = "schedule.csv"
"""The file with the order of the passes, where they have one of their own."""


MOST = 0.005
"""By which share the files' figures may differ from the plan's without a word."""


class Written(NamedTuple):
    """What the files of an export take, and what must be told of that."""

    found: Estimate | None
    """None: they cannot be estimated, which is told."""
    told: tuple[Fault, ...]


def read_back(files: Iterable[File], meant: ExportDraft) -> Written:
    """The estimate of an export's files; `meant`: what the exporter means them to say."""
    texts = {file.name: file.text for file in files}
    order = Schedule.parse(texts[ORDER], name=ORDER) if ORDER in texts else None
    name = meant.runtime
    try:
        model, said = _said(texts, meant, order)
        name = said.runtime
        found = within(estimate(model, meant.plan.cluster, said, order=order), asked_limit(meant.plan))
    except ShardwiseError as error:
        why = "; ".join(line.strip(" -") for line in str(error).splitlines())
        if meant.version in UNPREDICTED:
            return Written(None, (Fault("as written", f"nothing predicts it: {UNPREDICTED[meant.version]}"),))
        return Written(None, (Fault("as written", f"the checks refuse it for the runtime {name}: {why}"),))
    told = meant.losses or mixture(meant.plan)  # several kinds of recompute are more than one strategy says
    return Written(found, () if told else _unnamed(found, meant))


def _unnamed(found: Estimate, meant: ExportDraft) -> tuple[Fault, ...]:
    """A difference that no loss explains; the plan is priced on the runtime that the files are priced on."""
    plan, own = meant.plan, replace(planned(meant.plan), runtime=found.strategy.runtime)
    try:
        there = estimate(plan.model, plan.cluster, own, order=plan.order, checked=True)
    except ShardwiseError:  # the plan itself cannot be priced there
        return ()
    pairs = ((found.iteration_seconds, there.iteration_seconds), (found.total_bytes, there.total_bytes))
    if all(abs(ours - theirs) <= MOST * theirs for ours, theirs in pairs):
        return ()
    (seconds, planned_seconds), (size, planned_size) = pairs
    text = (
        f"it takes {show_seconds(seconds)} and {show_bytes(size)} where the plan takes {show_seconds(planned_seconds)} "
        f"and {show_bytes(planned_size)} on {own.runtime}: what the files cannot say is not named"
    )
    return (Fault("as written", text),)


def _said(texts: dict[str, str], meant: ExportDraft, order: Schedule | None) -> tuple[Model, Strategy]:
    """Model and strategy as the files have them; a straggler is the site's, so no file says it."""
    plan, runtime = meant.plan, meant.runtime
    name = READ_BACK.get(f"{meant.target.name}@{meant.version}")
    if name is None:
        return plan.model, replace(meant.strategy, runtime=runtime)
    read = read_content(texts[name], name)
    laid = settings_of(read.strategy.runtime)[1]
    runtime = _named(runtime, laid) if meant.target.settings else runtime
    own = {"runtime": runtime, "straggler": plan.strategy.straggler}
    said = complete({**_left_open(read.fields, meant), **read.fields, **own}, plan.cluster)
    # the rows order the work; the name that stands beside them says only where the chunks are
    return _model(read.model, meant), replace(said, schedule="auto") if order else said


def _left_open(read: Given, meant: ExportDraft) -> Given:
    """What a file leaves to the program, as the exporter's notes say to set it there."""
    if meant.target.name not in PARTS:
        return {}
    known = {*read, "global_batch"} if "microbatches" in read else {*read}
    return {one.name: getattr(meant.strategy, one.name) for one in fields(Strategy) if one.name not in known}


def _named(runtime: str, laid: tuple[str, ...]) -> str:
    """A runtime with the values that the files lay over it, those that change it."""
    base = settings_of(runtime)[0]
    return "+".join((base, *settings_of("+".join((base, *laid)))[1]))


def _model(read: Model | None, meant: ExportDraft) -> Model:
    """The model of the file; MindFormers' names the nearest architecture, and a note says to put the own one there,
    torchtitan's is a name, and the module beside it holds the planned one.
    """
    return meant.model if read is None or meant.target.name in {"mindformers", "torchtitan"} else read
