"""A schedule, of a plan or alone, as PyTorch's CSV and the program that runs it; what would run wrongly is refused."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import InputError
from shardwise.frameworks.export import SPEAKS, TORCH
from shardwise.frameworks.folder import write_export
from shardwise.frameworks.huggingface.write import LOOP, shared_files
from shardwise.frameworks.launcher import starting
from shardwise.frameworks.nearest import choose, known_modules, recomputed, spread_states, without, without_lora
from shardwise.frameworks.target import Export, ExportDraft, File
from shardwise.inputs.mixed import replicas_of
from shardwise.inputs.serialise import to_json
from shardwise.pipeline.action import F, Schedule
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.faults import validate
from shardwise.pipeline.generate import SHAPES, generate
from shardwise.plan.plan import Plan

RUNNER, TRAINING, MODEL = (Path(__file__).with_name(name) for name in ("runner.py", "train_pipeline.py", "model.py"))


def write(draft: ExportDraft) -> tuple[File, ...]:
    """`torch_pipelining.sh`, `schedule.csv`, which cannot hold a comment, and the programs with the planned model."""
    for bend in (without_lora, _axes, bend_model, _states, _recompute, _numbers):
        bend(draft)
    draft.settle()
    schedule = schedule_of(draft.plan)
    check_torch(schedule)
    start = starting(
        draft, "torch_pipelining", ("train_pipeline.py",), before=["export STEPS SEED=${SEED:-1234}"],
        needs="torch 2.11 or newer",
    )  # fmt: skip
    head = {"_shardwise": draft.notes(), "schema": "shardwise/pipeline/1"}
    named = {"run_pipeline.py": RUNNER, **{path.name: path for path in (TRAINING, MODEL)}}
    return (
        *start,
        *_schedules(draft, schedule),
        File(name="shardwise_pipeline.json", text=to_json(head | {"model": asdict(draft.model), "plan": _plan(draft)})),
        *(File(name=name, text=draft.header() + path.read_text(encoding="utf-8")) for name, path in named.items()),
        *shared_files(LOOP),
    )


def _axes(draft: ExportDraft) -> None:
    s = draft.strategy
    for name in ("tp", "cp", "ep", "etp"):
        if getattr(s, name) > 1:
            text = (
                f"{getattr(s, name)}: the program has stages and replicas alone; use {name} 1, or export to torchtitan"
            )
            draft.refuse(f"strategy.{name}", text)
    if s.vpp > 1 or s.pp > 1:
        draft.strategy = replace(draft.strategy, layers=draft.layers, **_COUNTED)


_COUNTED: dict[str, Any] = {"first_layers": 0, "last_layers": 0, "count_embedding": False, "count_head": False}


def bend_model(draft: ExportDraft) -> None:
    """What the program's decoder is not."""
    model = draft.model
    if model.mtp:
        draft.refuse("model.mtp", f"{model.mtp}: the program has no multi-token prediction; use mtp 0, or megatron")
    if draft.strategy.flash and (model.sinks or model.score_cap):
        what = "sinks" if model.sinks else "caps on the scores"
        draft.lose("strategy.flash", f"attention with {what} stores its scores in the program", flash=False)
    if model.moe and model.moe.capacity is not None:
        text = f"{model.moe.capacity:g}: experts of the program take every token; leave it out, or use megatron"
        draft.refuse("model.moe.capacity", text)


def _states(draft: ExportDraft) -> None:
    spread_states(draft)
    s = draft.strategy
    if s.zero > 1:
        text = f"{s.zero}: replicas of the program shard their states alone; zero 1 is written"
        draft.lose("strategy.zero", text, zero=1)
    if draft.strategy.zero and s.shard_group < s.dp:
        text = f"{s.zero_group}: states are sharded over all {s.dp} replicas, so memory is at most as planned"
        draft.lose("strategy.zero_group", text, zero_group=0)
    without(draft, offload=("none", "states and activations of the program stay on the GPU"))


def _recompute(draft: ExportDraft) -> None:
    known_modules(draft, {}, (), "the program")
    recompute = draft.strategy.recompute
    if recompute.full and recompute.group > 1:
        again = replace(recompute, group=1)
        text = f"{recompute}: layers are recomputed one by one; {again} is written"
        draft.lose("strategy.recompute", text, recompute=again)


def _numbers(draft: ExportDraft) -> None:
    choose(draft, "dtype", ("fp32", "bf16"), "bf16", "fp16 and fp8 need scaling that the program has not")
    choose(draft, "optimizer", ("adamw", "sgd"), "adamw")
    s = draft.strategy
    split = s.schedule not in {"gpipe", "1f1b", "interleaved"}
    if s.compile and split:
        draft.lose("strategy.compile", "a compiled layer's backward pass cannot be split in two", compile=False)


def _plan(draft: ExportDraft) -> dict[str, Any]:
    """What the program reads."""
    s = draft.strategy
    return {
        "pp": s.pp, "dp": s.dp, "zero": s.zero, "micro_batch": s.micro_batch, "seq": s.seq, "dtype": s.dtype,
        "master": s.master, "grad_dtype": s.grad_dtype, "optimizer": s.optimizer, "flash": s.flash,
        "compile": s.compile,
        **({"batches": [m for n, m in _shares(draft) for _ in range(n)]} if s.batches else {}),
        "layers": draft.layers, "recompute": recomputed(draft) if s.recompute.full else [0] * s.chunks,
    }  # fmt: skip


def _shares(draft: ExportDraft) -> list[tuple[int, int]]:
    """Replicas of every kind of GPU, and the micro batches of each."""
    return list(zip(replicas_of(draft.plan.cluster, draft.strategy), draft.strategy.batches, strict=True))


def _schedules(draft: ExportDraft, schedule: Schedule) -> list[File]:
    """The order of passes; where replicas have different numbers of micro batches, one for every number."""
    s = draft.strategy
    if not s.batches:
        return [File(name="schedule.csv", text=schedule.csv())]
    orders = {count: generate(s.schedule, pp=s.pp, vpp=s.vpp, microbatches=count) for count in sorted(set(s.batches))}
    return [File(name=f"schedule_{count}.csv", text=order.csv()) for count, order in orders.items()]


def schedule_of(plan: Plan) -> Schedule:
    """The rows of the plan, else those that its schedule's name stands for."""
    s = plan.strategy
    if plan.order is not None:
        return plan.order
    if s.schedule not in SHAPES:
        raise InputError(
            f"the plan has no rows of a schedule, and {s.schedule} stands for none; make them with  "
            "shardwise schedule auto --plan PLAN --out FILE"
        )
    return generate(s.schedule, pp=s.pp, vpp=s.vpp, microbatches=s.microbatches, group=s.group)


def export_torch(schedule: Schedule, folder: str | Path, *, force: bool = False) -> tuple[Path, Path]:
    """Write `schedule.csv` and `run_pipeline.py` into a folder; what PyTorch would train wrongly is refused."""
    table, runner, *_ = write_export(schedule_export(schedule), folder, force=force)
    return table, runner


def schedule_export(schedule: Schedule) -> Export:
    """A schedule without a plan, as files."""
    check_torch(schedule)
    text = schedule.csv()
    return Export(
        target=TORCH,
        speaks=SPEAKS,
        plan="none; the schedule " + hashlib.sha256(text.encode()).hexdigest()[:12],
        files=(
            File(name="schedule.csv", text=text),
            File(name="run_pipeline.py", text=RUNNER.read_text(encoding="utf-8")),
        ),
    )


def check_torch(schedule: Schedule) -> None:
    """Raise InputError where PyTorch would not run the schedule, or would run it wrongly."""
    validate(schedule)
    last = schedule.chunks - 1
    rank = schedule.rank_of[last]
    row = schedule.codes[rank]
    order = row[row // schedule.microbatches == F * schedule.chunks + last] % schedule.microbatches
    back = np.flatnonzero(np.diff(order) < 0)
    if len(back):
        first, second = order[back[0]], order[back[0] + 1]
        raise InputError(
            f"rank {rank} runs {last}F{first} before {last}F{second}: PyTorch stores the losses of the last chunk in "
            "the order they are computed and would train on the wrong ones; keep them in order"
        )


def torch_costs(costs: Costs) -> Costs:
    """The costs as PyTorch runs them: chunk 0 has no input to differentiate, so its W does all of the backward."""
    return replace(costs, i=(0.0, *costs.i[1:]), w=(costs.i[0] + costs.w[0], *costs.w[1:]))
