"""What the files of an export say: read back and estimated for the runtime of the target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shardwise.errors import ShardwiseError
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.frameworks.read import read_content
from shardwise.frameworks.target import ExportDraft, File, runtime_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.strategy_text import complete
from shardwise.pipeline.action import Schedule

READ_BACK = {
    "megatron@main": "train.sh", "torchtitan@0.2": "torchtitan.toml", "torchtitan@0.3": "shardwise_config.py",
    "torchtitan@main": "shardwise_config.py", "mindformers@2.1-graph": "mindformers.yaml",
}  # fmt: skip
"""Target -> the file that says a strategy in full; those of other targets say a part, or are read by nobody here."""
ORDER = "schedule.csv"
"""The file with the order of the passes, where they have one of their own."""


def read_back(files: Iterable[File], meant: ExportDraft) -> Estimate | None:
    """The estimate of an export; `meant`: what the exporter means it to say. None: it cannot be estimated."""
    texts = {file.name: file.text for file in files}
    order = Schedule.parse(texts[ORDER], name=ORDER) if ORDER in texts else None
    runtime = load_runtime(runtime_of(meant.plan, meant.target))
    try:
        model, said = _said(texts, meant, order)
        return estimate(model, meant.plan.cluster, said, runtime=runtime, order=order)
    except ShardwiseError:
        return None


def _said(texts: dict[str, str], meant: ExportDraft, order: Schedule | None) -> tuple[Model, Strategy]:
    """Model and strategy as the files have them; a straggler is the site's, so no file says it."""
    plan, runtime = meant.plan, runtime_of(meant.plan, meant.target)
    name = READ_BACK.get(f"{meant.target.name}@{meant.version}")
    if name is None:
        return plan.model, replace(meant.strategy, runtime=runtime)
    read = read_content(texts[name], name)
    own = {"runtime": runtime, "straggler": plan.strategy.straggler}
    said = complete({**read.fields, **own}, plan.cluster)
    # the rows order the work; the name that stands beside them says only where the chunks are
    return _model(read.model, meant), replace(said, schedule="auto") if order else said


def _model(read: Model | None, meant: ExportDraft) -> Model:
    """The model of the file; MindFormers' names the nearest architecture, and a note says to put the own one there."""
    return meant.model if read is None or meant.target.name == "mindformers" else read
