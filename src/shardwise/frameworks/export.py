"""The targets, and the way of a plan to one of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

from shardwise.check.check import ensure
from shardwise.errors import ShardwiseError, UnknownNameError
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.frameworks.partition import mixture
from shardwise.frameworks.read import read_content
from shardwise.frameworks.target import Draft, Export, File, Target, runtime_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.strategy_text import complete
from shardwise.plan.plan import Plan

TORCH = "torch-pipelining@2.13"
SPEAKS = "torch 2.13, torch.distributed.pipelining (CSV and runner)"

TARGETS = {
    target.name: target
    for target in (
        Target(
            name="megatron",
            title="Megatron-LM",
            versions={"main": "Megatron-LM, main of August 2026 (d98e8a6)"},
            module="shardwise.frameworks.megatron.write",
            runtime="megatron",
        ),
        Target(
            name="torchtitan",
            title="torchtitan",
            versions={
                "0.2": "torchtitan 0.2.2 (TOML)",
                "0.3": "torchtitan 0.3.0 (Python)",
                "main": "torchtitan, main of August 2026 (b5bcd76, Python)",
            },
            module="shardwise.frameworks.torchtitan.write",
            runtime="torchtitan",
        ),
        Target(
            name="deepspeed",
            title="DeepSpeed",
            versions={"0.19": "DeepSpeed 0.19.8 (JSON)"},
            module="shardwise.frameworks.deepspeed.write",
            runtime="deepspeed",
        ),
        Target(
            name="mindformers",
            title="MindFormers",
            versions={
                "2.1-graph": "MindFormers 2.1.0, graph mode (YAML)",
                "2.1-pynative": "MindFormers 2.1.0, PyNative (YAML)",
            },
            module="shardwise.frameworks.mindformers.write",
            runtime="mindformers",
        ),
        Target(
            name="paddle",
            title="PaddleNLP",
            versions={"3.0": "PaddleNLP 3.0 trainer, auto-parallel (JSON)"},
            module="shardwise.frameworks.paddle.write",
            runtime="paddle",
        ),
        Target(
            name="torch-pipelining",
            title="torch.distributed.pipelining",
            versions={"2.13": SPEAKS},
            module="shardwise.frameworks.torch.write",
        ),
    )
}


def find(text: str) -> tuple[Target, str]:
    """`torchtitan@0.3` -> the target and its version; without a version its default."""
    name, _, version = text.partition("@")
    if name not in TARGETS:
        raise UnknownNameError("target", name, TARGETS)
    target = TARGETS[name]
    if version and version not in target.versions:
        raise UnknownNameError(f"version of {target.title}", version, target.versions)
    return target, version or next(iter(target.versions))


def export(plan: Plan, to: str, *, strict: bool = False) -> Export:
    """A plan in the words of a target.

    Raises InfeasibleError where the target cannot say it; with `strict` also where it can only say something near.
    """
    target, version = find(to)
    ensure(plan.model, plan.cluster, plan.strategy, load_runtime(plan.strategy.runtime))
    write = cast("Callable[[Draft], tuple[File, ...]]", importlib.import_module(target.module).write)
    first = _draft(plan, target, version, strict=strict)
    written = as_written(write(first), first.strategy, plan, target)
    draft = _draft(plan, target, version, strict=strict)  # once more, with what the files say in their headers
    draft.written = written
    return draft.export(write(draft))


def _draft(plan: Plan, target: Target, version: str, *, strict: bool) -> Draft:
    draft = Draft(plan=plan, target=target, version=version, strict=strict)
    _say_mixture(draft)
    return draft


def _say_mixture(draft: Draft) -> None:
    """MindFormers' lists hold every kind of recompute side by side; no other target's words do."""
    text = mixture(draft.plan)
    if text and draft.version != "2.1-graph":
        draft.lose("balance.recompute", text)


READ_BACK = {
    "megatron": ("train.sh",), "torchtitan": ("torchtitan.toml", "shardwise_config.py"),
    "mindformers": ("mindformers.yaml",),
}  # fmt: skip
"""Target -> the files that say a strategy in full; those of other targets say a part, or are read by nobody here."""


def as_written(files: Iterable[File], strategy: Strategy, plan: Plan, target: Target) -> Estimate | None:
    """The estimate of an export; `strategy` is what the exporter means it to say. None: it cannot be estimated."""
    runtime = runtime_of(plan, target)
    file = next((one for one in files if one.name in READ_BACK.get(target.name, ())), None)
    try:
        if file is None:
            model, said = plan.model, replace(strategy, runtime=runtime)
        else:
            read = read_content(file.text, file.name)
            model, said = read.model or plan.model, complete({**read.fields, "runtime": runtime}, plan.cluster)
        return estimate(model, plan.cluster, said, runtime=load_runtime(runtime))
    except ShardwiseError:
        return None


LARGEST = 200_000
"""Characters that the files of one target may have inside a page; larger ones are left to `shardwise export`."""


def target_names() -> tuple[str, ...]:
    """Every target with every version: `torchtitan@0.3`."""
    return tuple(f"{name}@{version}" for name, target in TARGETS.items() for version in target.versions)


def export_data(plan: Plan, target: str) -> dict[str, Any]:
    """A plan in the words of a target; raises as `export` does."""
    made = export(plan, target)
    return {
        "target": made.target, "speaks": made.speaks, "strategy": str(made.strategy),
        "predicted": made.prediction, "as_written": made.as_written,
        "losses": [str(fault) for fault in made.losses], "by_hand": list(made.by_hand),
        "files": [{"name": file.name, "text": file.text} for file in made.files],
    }  # fmt: skip


def every_export(plan: Plan) -> list[dict[str, Any]]:
    """All targets, as far as their files are small; one that cannot say the plan has its refusal as `error`."""
    return [found for target in target_names() if (found := _small(plan, target)) is not None]


def _small(plan: Plan, target: str) -> dict[str, Any] | None:
    try:
        found = export_data(plan, target)
    except ShardwiseError as error:
        return {"target": target, "error": str(error)}
    return found if sum(len(file["text"]) for file in found["files"]) <= LARGEST else None
