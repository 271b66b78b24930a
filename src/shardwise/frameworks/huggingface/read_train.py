"""`shardwise_train.json`: what our programs for transformers train, read back."""

from __future__ import annotations

from typing import Any

from shardwise.frameworks.imported import ImportDraft, Imported
from shardwise.inputs.foreign import Foreign
from shardwise.inputs.recompute import Recompute


def read_train(data: dict[str, Any], *, title: str = "shardwise_train.json") -> Imported:
    """The strategy; the model stands beside it in config.json."""
    draft = ImportDraft(framework="huggingface")
    plan = Foreign(data, "", draft.faults).table("plan")
    for name in ("dp", "micro_batch", "seq"):
        draft.take(name, plan.whole(name, 1, row=f"Strategy.{name}"), f"plan.{name}")
    passes = plan.whole("microbatches", 1, row="Strategy.microbatches")
    draft.take("global_batch", passes * draft.number("micro_batch") * draft.number("dp"), "plan.microbatches")
    draft.take("zero", plan.whole("zero", 0, row="Strategy.zero"), "plan.zero")
    group = plan.whole("shard_group", 1, row="foreign.group")
    if draft.number("zero", 0) and group < draft.number("dp"):
        draft.take("zero_group", group, "plan.shard_group")
    for name, choices in _WORDS.items():
        draft.take(name, plan.text(name, choices[0], choices=choices), f"plan.{name}")
    full = plan.text("recompute", "none", choices=("none", "full")) == "full"
    draft.take("recompute", Recompute(full=full), "plan.recompute")
    for name in ("compile", "flash"):
        draft.take(name, plan.switch(name, default=name == "flash"), f"plan.{name}")
    draft.take("runtime", plan.text("runtime", "huggingface"), "plan.runtime")
    draft.gpus = draft.number("dp")
    draft.ignored += plan.idle()
    return draft.finish(title)


_WORDS = {
    "dtype": ("bf16", "fp32"), "master": ("mixed", "pure", "autocast"), "grad_dtype": ("fp32", "bf16"),
    "optimizer": ("adamw", "sgd"),
}  # fmt: skip
