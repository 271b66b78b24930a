"""A plan as a MindFormers YAML of PyNative mode, which names every layer's place and recompute by ranges of layers.

`pipeline_parallel_microbatch_size` is not written: it is a count there, and the trainer overwrites it.
"""

from __future__ import annotations

from typing import Any

from shardwise.frameworks.launcher import STEPS
from shardwise.frameworks.mindformers.names import (
    MINDFORMERS_PATTERNS,
    MINDFORMERS_TYPES,
    PYNATIVE_CP_KINDS,
    PYNATIVE_DEGREES,
    PYNATIVE_RESHARD,
    PYNATIVE_SCHEDULES,
)
from shardwise.frameworks.mindformers.write_data import COLUMNS, loader
from shardwise.frameworks.mindformers.write_model import model_keys, say_model
from shardwise.frameworks.nearest import choose, known_modules, known_schedule, recomputed, without, without_lora
from shardwise.frameworks.target import ExportDraft
from shardwise.inputs.layers import rank_chunks
from shardwise.inputs.recompute import Recompute

Settings = dict[str, Any]
_WIDER = {"ffn": "mlp", "activation": "mlp", "moe-act": "mlp", "mla-up": "attention"}


def document(draft: ExportDraft) -> Settings:
    """The settings that a plan decides."""
    for bend in (without_lora, _pipeline, _states, _axes, _recompute, _numbers, say_model):
        bend(draft)
    draft.settle()
    s = draft.strategy
    return {
        "checkpoint": {"enable_save": False},
        "training": {
            "steps": STEPS,
            "local_batch_size": s.micro_batch,
            "global_batch_size": s.global_batch,
            "seed": 1234,
        },
        "optimizer": {"type": "AdamW"},
        "parallelism": _parallelism(draft),
        "recompute": _recompute_keys(draft),
        "lr_scheduler": {"type": "ConstantWarmUpLR", "learning_rate": 1e-4, "warmup_ratio": 0},
        "train_dataset": {"dataloader": {**loader(s), "column_names": list(COLUMNS)}, "num_parallel_workers": 2},
        "model": model_keys(draft),
    }


def _pipeline(draft: ExportDraft) -> None:
    known_schedule(draft, tuple(PYNATIVE_SCHEDULES))
    if draft.strategy.pp > 1 and 0 in draft.layers:
        draft.refuse("strategy.layers", f"{','.join(map(str, draft.layers))}: a range of layers cannot be empty here")


def _states(draft: ExportDraft) -> None:
    s = draft.strategy
    if s.zero < 2 and s.dp * s.cp > 1:
        text = f"zero {s.zero}: FSDP shards gradients too; zero 2 is written, so memory is at most as planned"
        draft.lose("strategy.zero", text, zero=2)
    choose(draft, "offload", ("none", "optimizer"), "none", "swap wants every operator named")


def _axes(draft: ExportDraft) -> None:
    s = draft.strategy
    if s.tp > 1 and not s.sp:
        draft.lose("strategy.sp", "PyNative refuses tensor parallel without sequence parallel", sp=True)
    if s.cp > 1:
        choose(draft, "cp_kind", tuple(PYNATIVE_CP_KINDS), "ring")
    if s.etp > 1:
        draft.refuse("strategy.etp", f"{s.etp}: PyNative has no tensor parallel of experts; use etp 1, or @2.1-graph")


def _recompute(draft: ExportDraft) -> None:
    known_modules(draft, _WIDER, tuple(MINDFORMERS_PATTERNS), "PyNative")
    recompute = draft.strategy.recompute
    if recompute.group > 1:
        text = f"{recompute}: layers are recomputed one by one, so {recompute.group} times as many inputs are kept"
        draft.lose("strategy.recompute", text, recompute=Recompute(full=True, layers=recompute.layers))


def _numbers(draft: ExportDraft) -> None:
    choose(draft, "dtype", tuple(MINDFORMERS_TYPES), "bf16")
    if draft.strategy.dtype != "fp32":
        choose(draft, "master", ("mixed", "pure"), "mixed")
    choose(draft, "optimizer", ("adamw",), "adamw", "set optimizer.type by hand")
    without(draft, compile=(False, "PyNative runs operator by operator"), grad_dtype=("fp32", "gradients are fp32"))


def _parallelism(draft: ExportDraft) -> Settings:
    s = draft.strategy
    found: Settings = {
        "data_parallel_shard": s.dp,
        "data_parallel_shard_strategy": "optim_grads_params",
        "reshard_after_forward_policy": PYNATIVE_RESHARD.get(s.zero, "never"),
        **{PYNATIVE_DEGREES[name]: getattr(s, name) for name in ("tp", "pp", "cp")},
        "sequence_parallel": s.tp > 1,
    }
    if s.shard_group < s.dp * s.cp:
        found["dense_fsdp_shard_size"] = s.shard_group
    if s.offload == "optimizer":
        found["cpu_offload"] = True
    if s.cp > 1:
        found["context_parallel_method"] = PYNATIVE_CP_KINDS[s.cp_kind]
    if draft.model.moe:
        found[PYNATIVE_DEGREES["ep"]] = s.ep
    if s.pp > 1:
        found["pipeline_parallel_schedule"] = PYNATIVE_SCHEDULES[s.schedule]
        found[PYNATIVE_DEGREES["vpp"]] = s.vpp
        found["pipeline_parallel_layers_per_stage"] = _stages(draft)
    return found


def _stages(draft: ExportDraft) -> list[str]:
    """A text per rank: `0-3,16-19`, a range per chunk."""
    s, layers = draft.strategy, draft.layers
    starts = [sum(layers[:chunk]) for chunk in range(len(layers))]
    ranges = [f"{start}-{start + count - 1}" for start, count in zip(starts, layers, strict=True)]
    return [",".join(ranges[chunk] for chunk in rank_chunks(rank, s.pp, s.vpp, "loop")) for rank in range(s.pp)]


def _recompute_keys(draft: ExportDraft) -> Settings:
    recompute, counts = draft.strategy.recompute, recomputed(draft)
    if not any(counts):
        return {"mode": "None"}
    starts = [sum(draft.layers[:chunk]) for chunk in range(len(counts))]
    ranges = _joined([layer for start, n in zip(starts, counts, strict=True) for layer in range(start, start + n)])
    if recompute.full:
        return {"mode": "full", "full_recompute_layer": ranges}
    named = {MINDFORMERS_PATTERNS[name]: ranges for name in recompute.modules}
    return {"mode": "select", "select_module": named}


def _joined(layers: list[int]) -> list[str]:
    """0,1,2,7 -> 0-2, 7-7."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][1] == layer - 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return [f"{first}-{last}" for first, last in runs]
