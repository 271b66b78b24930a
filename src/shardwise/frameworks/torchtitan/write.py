"""A plan as a torchtitan configuration: TOML for 0.2, Python for 0.3 and main.

What torchtitan takes without a word, and what is done about it here:

- left alone it gives the first and the last stage a layer less: with a pipeline every chunk's modules are listed
- a CSV orders the work, but the chunks are placed as `pipeline_parallel_schedule` says: both are written
- the output layer is `output` in 0.2 and `lm_head` from 0.3 on; main counts tokens where the others count samples
- from 0.3 on CUDA graphs, which are on unless switched off, stop a job with stages or expert parallel
- only 0.2 can say how context parallel moves keys and values, only later ones can switch sequence parallel off
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.frameworks.nearest import (
    all_layers,
    choose,
    known_modules,
    plain_pipeline,
    without,
    without_lora,
)
from shardwise.frameworks.target import ExportDraft, File
from shardwise.frameworks.torch.write import check_torch, schedule_of
from shardwise.frameworks.torchtitan.names import (
    TORCHTITAN_CP_KINDS,
    TORCHTITAN_DEGREES,
    TORCHTITAN_DISPATCHERS,
    TORCHTITAN_OUTPUT,
    TORCHTITAN_SCHEDULES,
)
from shardwise.frameworks.torchtitan.write_text import config, say_model
from shardwise.inputs.recompute import Recompute
from shardwise.pipeline.action import Schedule

Settings = dict[str, Any]


def write(draft: ExportDraft) -> tuple[File, ...]:
    """The configuration, and `schedule.csv` where the order is one of our own."""
    for bend in (
        without_lora,
        plain_pipeline,
        _states,
        _axes,
        _experts,
        _recompute,
        _numbers,
        say_model,
    ):
        bend(draft)
    order = _order(draft)
    draft.settle()
    tables = {"training": _training(draft), "parallelism": _parallelism(draft, order)}
    made = config(draft, tables)
    csv = (File(name="schedule.csv", text=order.csv()),) if order else ()
    return (*made, *csv)


def _states(draft: ExportDraft) -> None:
    s = draft.strategy
    if s.shard_group == 1 and not _experts_spread(draft):  # spread over one rank is not spread
        draft.strategy = s = replace(s, zero=0, zero_group=0)
    if s.dp * s.cp == 1 and not _experts_spread(draft):
        return
    if s.zero == 1:
        text = "FSDP shards gradients with the optimizer states; zero 2 is written, so memory is at most as planned"
        draft.lose("strategy.zero", text, zero=2)
    if s.zero == 0 and s.cp > 1:
        text = "context parallel ranks always shard the states; zero 2 over the cp ranks is written"
        draft.lose("strategy.zero", text, zero=2, zero_group=s.cp)
    elif s.zero == 0 and s.dp == 1:
        text = "expert parallel ranks always shard the experts' states; zero 2 is written, so memory is at most as"
        draft.lose("strategy.zero", f"{text} planned", zero=2)
    elif s.zero == 0 and draft.version == "0.2" and s.world != s.dp:
        text = "0.2 replicates parameters with data parallel alone; zero 2 is written, so memory is at most as planned"
        draft.lose("strategy.zero", text, zero=2, zero_group=0)
    s = draft.strategy
    if s.zero and (s.shard_group % s.cp or s.dp % (s.shard_group // s.cp)):
        text = f"{s.zero_group} is not a whole number of replicas of cp {s.cp} that divides dp {s.dp}; all are written"
        draft.lose("strategy.zero_group", text, zero_group=0)


def _experts_spread(draft: ExportDraft) -> bool:
    """Whether a single replica still shards experts: over the tensor parallel ranks that share none of them."""
    s = draft.strategy
    return bool(draft.model.moe) and s.ep > 1 and s.dp * s.cp == 1 and s.tp > s.ep * s.etp


def _axes(draft: ExportDraft) -> None:
    s = draft.strategy
    if s.tp > 1 and not s.sp and draft.version == "0.2":
        draft.lose("strategy.sp", "0.2 always runs sequence parallel with tensor parallel", sp=True)
    if s.cp > 1:
        known = tuple(TORCHTITAN_CP_KINDS) if draft.version == "0.2" else ("all-gather",)
        choose(draft, "cp_kind", known, known[-1])
    s = draft.strategy
    if s.pp > 1 and s.placement == "v" and s.vpp != 2:
        draft.refuse("strategy.vpp", f"{s.vpp} chunks on a v: torchtitan places a v of 2 chunks a rank only; use vpp 2")
    if s.schedule == "seq-1f1b" and s.pp > 1:
        draft.refuse("strategy.schedule", "pieces of sequences are not in torch's pipelining; use 1f1b")


def _experts(draft: ExportDraft) -> None:
    s = draft.strategy
    if not draft.model.moe:
        return
    ranks = _shard(draft) * s.cp * s.tp
    if ranks % (s.ep * s.etp):
        draft.refuse(
            "strategy.ep",
            f"ep {s.ep} x etp {s.etp} must divide dp_shard {_shard(draft)} x cp {s.cp} x tp {s.tp} = {ranks}; raise "
            "hsdp or lower ep",
        )
    if draft.version == "0.2" and s.ep > 1 and not _sharded(draft):
        text = f"{s.ep}: 0.2 spreads experts beside FSDP alone, and dp {s.dp} x cp {s.cp} shards nothing"
        draft.refuse("strategy.ep", f"{text}; raise dp or cp, or use ep 1")
    allowed = (1, s.tp) if draft.version == "0.2" or s.ep == 1 else (1,)
    if s.etp not in allowed:
        draft.refuse("strategy.etp", f"{s.etp}: this version splits experts over {' or '.join(map(str, allowed))} only")
    elif s.ep == 1 and s.etp != s.tp:
        draft.lose("strategy.etp", f"without expert parallel experts are split over tp {s.tp}", etp=s.tp)
    # from 0.3 on it is an argument of the model, which is the user's own
    known = tuple(TORCHTITAN_DISPATCHERS) if draft.version == "0.2" else ("all-to-all",)
    choose(draft, "dispatcher", known, "all-to-all")


def _recompute(draft: ExportDraft) -> None:
    known_modules(draft, {}, ("ops",), "torchtitan")
    if draft.strategy.recompute.modules or draft.strategy.recompute.full:
        all_layers(draft, "torchtitan has no number of recomputed layers")
    recompute = draft.strategy.recompute
    if recompute.group > 1:
        text = f"{recompute}: every layer is a group of its own, so {recompute.group} times as many inputs are kept"
        draft.lose("strategy.recompute", text, recompute=Recompute(full=True))


def _sharded(draft: ExportDraft) -> bool:
    """Whether FSDP runs in 0.2; from 0.3 on it does in any case."""
    return _shard(draft) * draft.strategy.cp > 1


def _numbers(draft: ExportDraft) -> None:
    choose(draft, "dtype", ("fp32", "bf16", "fp8", "mxfp8"), "bf16")
    s = draft.strategy
    mixed = s.dtype == "fp32" or s.master == "pure" or s.tp * s.pp == 1 or _sharded(draft)
    if draft.version == "0.2" and not mixed:
        text = f"{s.dtype}: 0.2 mixes formats in FSDP, and tp {s.tp} pp {s.pp} without it computes in fp32, which is"
        draft.lose("strategy.dtype", f"{text} written; `pure` keeps all of it in 16 bits", dtype="fp32", master="mixed")
        s = draft.strategy
    if s.master == "autocast":  # FSDP's fp32 shards, gathered in 16 bits, are both
        draft.strategy = s = replace(s, master="mixed")
    if s.grad_dtype == "bf16" and s.master != "pure":
        draft.lose("strategy.grad_dtype", "gradients are reduced in fp32 here", grad_dtype="fp32")
    choose(draft, "optimizer", ("adamw",), "adamw")
    if s.offload == "optimizer" and not s.zero:
        draft.lose("strategy.offload", "host memory is for sharded states only (zero 2 or 3)", offload="none")
    choose(draft, "offload", ("none", "optimizer"), "none")
    without(draft, flash=(True, "attention is torch's scaled dot product"))


def _order(draft: ExportDraft) -> Schedule | None:
    """The rows of a schedule that torchtitan has no name for, or that the plan wrote out."""
    s = draft.strategy
    if s.pp == 1 or draft.refusals:
        return None
    if s.schedule in TORCHTITAN_SCHEDULES and draft.plan.order is None and not _grouped(draft):
        return None
    order = schedule_of(draft.plan)
    check_torch(order)
    return order


def _grouped(draft: ExportDraft) -> bool:
    """Whether interleaved runs other groups than torch's own, which makes all groups equal and at least pp."""
    s = draft.strategy
    if s.schedule != "interleaved":
        return False
    rounds = max(1, s.microbatches // s.pp)
    return s.microbatches % rounds != 0 or (s.group or s.pp) != s.microbatches // rounds


def _named(draft: ExportDraft, order: Schedule | None) -> str:
    """The schedule's name, which also places the chunks."""
    s = draft.strategy
    if s.placement == "v" and s.vpp > 1:
        return TORCHTITAN_SCHEDULES["dualpipe-v" if s.schedule == "dualpipe-v" else "zb-v"]
    if order is None or s.schedule in TORCHTITAN_SCHEDULES:
        return TORCHTITAN_SCHEDULES[s.schedule]
    return TORCHTITAN_SCHEDULES["interleaved" if s.vpp > 1 else "1f1b"]


def _shard(draft: ExportDraft) -> int:
    s = draft.strategy
    return max(1, s.shard_group // s.cp) if s.zero else 1


def _training(draft: ExportDraft) -> Settings:
    s = draft.strategy
    found: Settings = {"local_batch_size": s.micro_batch * (s.microbatches if s.pp > 1 else 1)}
    found |= {"global_batch_size": s.global_batch, "seq_len": s.seq}
    if draft.version == "main":
        found = {
            "num_tokens_per_microbatch_per_dp_rank": s.micro_batch * s.seq,
            "num_tokens_per_train_step": s.global_batch * s.seq,
            "max_context_length": s.seq,
        }
    if draft.version != "0.2" and (s.pp > 1 or s.ep > 1):
        found["disable_cuda_graphs"] = True
    if s.offload == "optimizer":
        found["enable_cpu_offload"] = True
    if s.master == "pure" and s.dtype != "fp32":
        found["dtype"] = "bfloat16"
    found["mixed_precision_param"] = "float32" if s.dtype == "fp32" else "bfloat16"
    return found


def _parallelism(draft: ExportDraft, order: Schedule | None) -> Settings:
    s, shard = draft.strategy, _shard(draft)
    found: Settings = {
        "data_parallel_replicate_degree": s.dp // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if s.zero == 3 else "never",
        **{TORCHTITAN_DEGREES[name]: getattr(s, name) for name in ("tp", "pp", "cp")},
    }
    if draft.version != "0.2" and s.tp > 1:
        found["enable_sequence_parallel"] = s.sp
    if draft.version == "0.2" and s.cp > 1:
        found["context_parallel_rotate_method"] = TORCHTITAN_CP_KINDS[s.cp_kind]
    if draft.model.moe:
        found |= {TORCHTITAN_DEGREES["ep"]: s.ep}
        found |= {TORCHTITAN_DEGREES["etp"]: s.etp} if draft.version == "0.2" else {}
        if s.dispatcher != "all-to-all":
            found["expert_parallel_comm_backend"] = TORCHTITAN_DISPATCHERS[s.dispatcher]
    return found | (_pipeline(draft, order) if s.pp > 1 else {})


def _pipeline(draft: ExportDraft, order: Schedule | None) -> Settings:
    s = draft.strategy
    found: Settings = {"pipeline_parallel_schedule": _named(draft, order)}
    if order:
        found["pipeline_parallel_schedule_csv"] = "schedule.csv"
    if draft.version == "main":
        found["num_pp_microbatches"] = s.microbatches
    else:
        found["pipeline_parallel_microbatch_size"] = s.micro_batch
    if s.schedule == "dualpipe-v" and draft.version == "0.2" and s.recompute.active:
        found["pipeline_parallel_expert_parallel_overlap"] = False  # it does not go with recompute
    found["module_fqns_per_model_part"] = modules(draft.layers, draft.version)
    return found


def modules(layers: tuple[int, ...], version: str) -> list[list[str]]:
    """Names of the modules of every chunk, in model order."""
    starts = [sum(layers[:index]) for index in range(len(layers))]
    parts = [[f"layers.{start + i}" for i in range(count)] for start, count in zip(starts, layers, strict=True)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", TORCHTITAN_OUTPUT[version]]
    return parts
