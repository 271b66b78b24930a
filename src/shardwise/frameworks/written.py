"""What files say once they are written: read back by our own reader, and estimated for the framework that runs them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shardwise.errors import ShardwiseError
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.frameworks.read import read_content
from shardwise.frameworks.target import File, Target, runtime_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.strategy_text import complete
from shardwise.plan.file import Plan

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
