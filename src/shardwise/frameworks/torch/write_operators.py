"""A per-operator plan as the program that runs it on PyTorch, each operator in its own split."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from shardwise.frameworks.aceso.ask import OperatorOptions, question_of
from shardwise.frameworks.huggingface.write import LOOP, shared_files
from shardwise.frameworks.launcher import starting
from shardwise.frameworks.nearest import choose, without
from shardwise.frameworks.operators import StageRows, stage_rows
from shardwise.frameworks.target import Export, ExportDraft, File
from shardwise.frameworks.torch.write import MODEL, bend_model
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.serialise import to_json
from shardwise.inputs.strategy import Strategy, Zero
from shardwise.per_op.as_plan import profile_data
from shardwise.per_op.evaluate import PerOpCost, evaluate
from shardwise.per_op.question import OperatorLayout, PerOpPlan, SplitStage
from shardwise.pipeline.generate import generate
from shardwise.plan.plan import Operators, Plan
from shardwise.units import show_bytes, show_seconds
from shardwise.version import __version__

PROGRAM, OPERATORS = (Path(__file__).with_name(name) for name in ("train_operators.py", "split_operators.py"))
_PASS = re.compile(r"\d+([FB])(\d+)")
_SPLIT = {"qkv": ("heads", "kv_heads"), "qk norm": ("heads", "kv_heads"), "rope": ("heads", "kv_heads"),
          "attention": ("heads", "kv_heads"), "output": ("heads",), "up": ("ffn",), "activation": ("ffn",),
          "silu": ("ffn",), "product": ("ffn",), "down": ("ffn",)}  # fmt: skip
"""What of the model an operator's tp must divide."""
_KNOWN = re.compile(r'^        "([a-z-]+\.[a-z ]+)": ', re.MULTILINE)
"""Operators in the program's own table."""


@dataclass(kw_only=True)
class OperatorDraft(ExportDraft):
    """A per-operator plan on its way; its strategy is only what all operators have in common."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rows = stage_rows(self.plan)
        self.strategy = replace(self.strategy, tp=1, pp=1, dp=sum(stage.gpus for stage in self.operators.stages))

    @property
    def operators(self) -> Operators:
        assert self.plan.operators is not None  # noqa: S101 - asked for before
        return self.plan.operators

    @property
    def speaks(self) -> str:
        return "torch 2.13 (DTensor, torch.distributed)"

    def _price(self, before: Strategy) -> str:
        """No estimate knows the plan but the search that made it."""
        del before
        return ""

    @property
    def shape(self) -> str:
        """The plan in a line."""
        stages = self.operators.stages
        gpus = ", ".join(str(stage.gpus) for stage in stages)
        tps = sorted({tp for stage in stages for tp, _, _ in stage.layouts})
        count = f"{len(stages)} stages of {gpus} GPUs" if len(stages) > 1 else f"one stage of {gpus} GPUs"
        return f"{count}, tp {', '.join(map(str, tps))} by operator, {_counted(self.operators.microbatches)}"

    @property
    def prediction(self) -> str:
        most = max(stage.memory for stage in self.operators.stages)
        return f"{show_seconds(self.operators.seconds)} per iteration, at most {show_bytes(most)} on a GPU"

    @property
    def as_written(self) -> str:
        """The same where the program shards less than the plan; empty where it does as planned."""
        if self.strategy.zero == self.plan.strategy.zero:
            return ""
        found = _priced(self.plan, self.strategy.zero)
        if found is None:
            return "unknown, as the profile that the plan was made with is not in it"
        cost, usable = found
        doubt = "" if cost.fits(usable) else f", beyond the {show_bytes(usable)} that a plan may use"
        return f"{show_seconds(cost.seconds)} per iteration, at most {show_bytes(max(cost.memory))} on a GPU{doubt}"

    def notes(self) -> list[str]:
        lines = [
            f"Written by Shardwise {__version__} for {self.speaks}.",
            f"plan {self.id}: {self.model.name} on {self.plan.cluster.name}, {self.shape}",
            f"predicted: {self.prediction}",
        ]
        lines += [f"as written: {self.as_written}"] if self.as_written else []
        return [*lines, *(f"not as planned: {fault}" for fault in self.losses)]


def export_operators(draft: OperatorDraft) -> Export:
    """The folder of a per-operator plan."""
    files = _files(draft)
    return Export(
        target=f"{draft.target.name}@{draft.version}", speaks=draft.speaks, plan=draft.id, files=files,
        shape=draft.shape, losses=tuple(draft.losses), by_hand=tuple(draft.by_hand), prediction=draft.prediction,
        as_written=draft.as_written,
    )  # fmt: skip


def _priced(plan: Plan, zero: Zero) -> tuple[PerOpCost, float] | None:
    """The plan with its states sharded otherwise, and the bytes that a GPU may use; none: the times of its operators
    are not those of its model.
    """
    s, operators = plan.strategy, plan.operators
    assert operators is not None  # noqa: S101 - asked for before
    asked: dict[str, Any] = dict.fromkeys(one.name for one in fields(OperatorOptions)) | {
        "model": plan.model, "cluster": plan.cluster, "global_batch": s.global_batch, "seq": s.seq, "zero": zero,
        "runtime": load_runtime(s.runtime), "most_tp": 0, "compatible": False, "compatible_space": False,
        "schedule": s.schedule if s.schedule == "gpipe" else None, "operators_only": True,
    }  # fmt: skip
    question = question_of(OperatorOptions(**asked))
    if operators.profile != profile_data(question.profile):
        return None
    stages = tuple(
        SplitStage(
            gpus=one.gpus, layouts=tuple(OperatorLayout(*own) for own in one.layouts),
            recompute=tuple(place in set(one.recompute) for place in range(one.ops)),
        )
        for one in operators.stages
    )  # fmt: skip
    made = PerOpPlan(stages=stages, samples=s.global_batch // operators.microbatches)
    return evaluate(question, made), question.memory


def _files(draft: OperatorDraft) -> tuple[File, ...]:
    for bend in (_axes, bend_model, _numbers):
        bend(draft)
    for index, rows in enumerate(draft.rows):
        for why in dict.fromkeys(_impossible(draft, index, rows)):
            draft.refuse(f"stage {index}", why)
    draft.settle()
    start = starting(
        draft, "torch_pipelining", ("train_operators.py",), before=["export STEPS SEED=${SEED:-1234}"],
        needs="torch 2.11 or newer",
    )  # fmt: skip
    told = {
        "_shardwise": draft.notes(),
        "schema": "shardwise/operators/1",
        "model": _model(draft),
        "plan": _plan(draft),
    }
    return (
        *start,
        File(name="shardwise_operators.json", text=to_json(told)),
        *(
            File(name=path.name, text=draft.header() + path.read_text(encoding="utf-8"))
            for path in (PROGRAM, OPERATORS, MODEL)
        ),
        *shared_files(LOOP),
    )


def _counted(microbatches: int) -> str:
    return f"{microbatches} micro batch{'es' if microbatches > 1 else ''}"


def _axes(draft: OperatorDraft) -> None:
    s, stages = draft.strategy, draft.operators.stages
    for name in ("cp", "ep", "etp", "vpp"):
        if getattr(s, name) > 1:
            draft.refuse(
                f"strategy.{name}", f"{getattr(s, name)}: operators of the program have tp and dp; use {name} 1"
            )
    if len(stages) > 1 and (s.schedule not in {"1f1b", "gpipe"} or draft.plan.order is not None):
        text = f"{s.schedule}: the program runs whole backward passes; plan with --schedule 1f1b or gpipe"
        draft.refuse("strategy.schedule", text)
    if s.zero > 1:
        text = f"{s.zero}: GPUs with the same weights shard their states alone; zero 1 is written"
        draft.lose("strategy.zero", text, zero=1)
    without(draft, offload=("none", "states and activations of the program stay on the GPU"))


def _numbers(draft: OperatorDraft) -> None:
    choose(draft, "dtype", ("fp32", "bf16"), "bf16", "fp16 and fp8 need scaling that the program has not")
    choose(draft, "optimizer", ("adamw", "sgd"), "adamw")
    choose(draft, "master", ("mixed", "pure"), "mixed", "tensors between stages have one format")
    if draft.model.dropout:
        draft.lose(
            "model.dropout", f"{draft.model.dropout:g}: GPUs that hold copies would drop differently; none is written"
        )
    if draft.model.tied and len(draft.rows) == 1:
        size = 2.0 * draft.model.vocab * draft.model.hidden
        text = (
            f"embedding and output layer have weights each, which stay equal: up to {show_bytes(size)} more and states"
        )
        draft.lose("model.tied", text)


def _unknown(model: Model) -> Iterator[str]:
    """What the program's operators do not make up."""
    if model.moe is not None:
        yield "experts"
    if model.mla is not None:
        yield "latent attention"
    if model.embedding_size:
        yield "an embedding narrower than the model"
    if model.norms_per_layer == 1 and not model.parallel_residual:
        yield "one norm that is used twice"


def _impossible(draft: OperatorDraft, index: int, rows: StageRows) -> Iterator[str]:
    """Why the program cannot run a stage."""
    model, s = draft.model, draft.strategy
    samples, rest = divmod(s.global_batch, draft.operators.microbatches)
    if index == 0:
        yield from (f"{what}: the program has none; plan whole strategies" for what in _unknown(model))
        if rest:
            yield f"global batch {s.global_batch}: {draft.operators.microbatches} micro batches do not divide it"
    dps = () if rest else sorted({row.dp for row in rows if samples % row.dp})
    yield from (f"dp {dp}: does not divide a micro batch of {samples} samples" for dp in dps)
    known = set(_KNOWN.findall(OPERATORS.read_text(encoding="utf-8")))
    yield from (f"{row.unit}: the program has no such operator; plan whole strategies" for row in rows
                if row.unit not in known and not any(_unknown(model)))  # fmt: skip
    tps = sorted({row.tp for row in rows})
    yield from (f"tp {a} and tp {b}: one must divide the other" for a, b in pairwise(tps) if b % a)
    for row in rows:
        name = row.unit.partition(".")[2]
        for size in _SPLIT.get(name, ()):
            if getattr(model, size) % row.tp:
                yield f"{row.unit}: tp {row.tp} does not divide {size} {getattr(model, size)}; plan with --most-tp"
        if s.sp and s.seq % row.tp:
            yield f"{row.unit}: tp {row.tp} does not divide seq {s.seq}, which is split between blocks"
        if row.tp > 1 and name == "qk norm" and model.qk_norm == "full":
            yield f"{row.unit}: a norm over all heads is not split; plan with --most-tp 1"
        if row.tp > 1 and name == "attention" and model.position == "alibi":
            yield f"{row.unit}: alibi's slopes are not split; plan with --most-tp 1"


def _model(draft: OperatorDraft) -> dict[str, Any]:
    return asdict(replace(draft.model, dropout=0.0))


def _plan(draft: OperatorDraft) -> dict[str, Any]:
    """What the program reads; an operator is [layer, name, tp, whether it is recomputed]."""
    s, operators = draft.strategy, draft.operators
    order = generate(s.schedule, pp=len(operators.stages), vpp=1, microbatches=operators.microbatches)
    return {
        "samples": s.global_batch // operators.microbatches, "microbatches": operators.microbatches, "seq": s.seq,
        "dtype": s.dtype, "master": s.master, "grad_dtype": s.grad_dtype, "optimizer": s.optimizer, "zero": s.zero,
        "sp": s.sp, "flash": s.flash,
        "passes": [" ".join(map("".join, _PASS.findall(row))) for row in order.csv().splitlines()],
        "stages": [
            {"gpus": stage.gpus, "operators": [[row.layer, row.unit, row.tp, row.recompute] for row in rows]}
            for stage, rows in zip(operators.stages, draft.rows, strict=True)
        ],
    }  # fmt: skip
