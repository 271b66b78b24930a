"""A plan as a folder for Hugging Face transformers: the model's config.json, what is planned, and two programs.

`train.py` is a plain loop of torch with its FSDP; `trainer.py` does the same with transformers' Trainer. Both read
`shardwise_train.json`, which says the strategy and is what we read back.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.errors import InfeasibleError
from shardwise.frameworks.huggingface.config import Config, write_config
from shardwise.frameworks.launcher import starting
from shardwise.frameworks.nearest import (
    all_layers,
    choose,
    known_modules,
    plain_pipeline,
    spread_states,
    without,
    without_lora,
)
from shardwise.frameworks.target import ExportDraft, File
from shardwise.inputs.serialise import to_json

LOOP = Path(__file__).parents[1] / "torch" / "shardwise_loop.py"
MODEL = Path(__file__).with_name("shardwise_transformers.py")
SETTINGS = "shardwise_train.json"
SCHEMA = "shardwise/huggingface/1"


def write(draft: ExportDraft) -> tuple[File, ...]:
    """`huggingface.sh`, both programs, `config.json` and `shardwise_train.json`."""
    for bend in (without_lora, _axes, _states, _recompute, _numbers):
        bend(draft)
    config = model_config(draft)
    draft.settle()
    start = starting(
        draft,
        "huggingface",
        ("${PROGRAM}",),
        before=[
            "# TRAINER=1 before it runs transformers' Trainer in place of the plain loop",
            "PROGRAM=${TRAINER:+trainer.py}; PROGRAM=${PROGRAM:-train.py}", "export STEPS SEED=${SEED:-1234}",
        ],
        needs="torch 2.11 or newer and transformers 5 (trainer.py: accelerate too)",
    )  # fmt: skip
    folder = Path(__file__).parent
    programs = [folder / name for name in ("train.py", "trainer.py")]
    return (
        *start,
        File(name=SETTINGS, text=to_json({"_shardwise": draft.notes(), "schema": SCHEMA, "plan": settings(draft)})),
        File(name="config.json", text=to_json(config.keys)),
        *(File(name=path.name, text=draft.header() + path.read_text(encoding="utf-8")) for path in programs),
        *shared_files(LOOP, MODEL),
    )


def shared_files(*paths: Path) -> tuple[File, ...]:
    """What programs of ours share; without a header, so that folders of several targets share it too."""
    return tuple(File(name=path.name, text=path.read_text(encoding="utf-8")) for path in paths)


def model_config(draft: ExportDraft) -> Config:
    """The model's config.json; what transformers would train otherwise is told, what it cannot be is refused."""
    try:
        config = write_config(draft.model)
    except InfeasibleError as error:
        draft.refuse("model", str(error))
        return Config(architecture="", keys={}, unsaid=())
    draft.losses += config.unsaid
    _attention(draft, config.architecture)
    return config


_STORED = {"gpt_oss": "sinks", "bloom": "alibi", "mpt": "alibi", "gemma2": "caps on the scores"}
"""Architectures that transformers has no attention without stored scores for -> why."""


def _attention(draft: ExportDraft, architecture: str) -> None:
    needed = architecture in _STORED and (architecture != "gemma2" or draft.model.score_cap)
    if draft.strategy.flash and needed:
        text = f"transformers' {architecture} has no attention without stored scores ({_STORED[architecture]})"
        draft.lose("strategy.flash", f"{text}; eager attention is written", flash=False)


_NEAREST = {
    "tp": "torchtitan or megatron (FSDP here: zero 3 splits the same weights)",
    "pp": "torch-pipelining, torchtitan or megatron",
    "cp": "torchtitan or megatron; deepspeed has Ulysses",
    "ep": "torchtitan, megatron or deepspeed",
    "etp": "megatron",
}


def _axes(draft: ExportDraft) -> None:
    s = draft.strategy
    for name, nearest in _NEAREST.items():
        if getattr(s, name) > 1:
            text = f"{getattr(s, name)}: the loop has data parallel alone; use {name} 1, or export to {nearest}"
            draft.refuse(f"strategy.{name}", text)
    plain_pipeline(draft)


def _states(draft: ExportDraft) -> None:
    spread_states(draft)
    without(draft, offload=("none", "states and activations of the loop stay on the GPU"))


def _recompute(draft: ExportDraft) -> None:
    known_modules(draft, {}, (), "transformers")
    recompute = draft.strategy.recompute
    if not recompute.full:
        return
    all_layers(draft, "gradient checkpointing of transformers is for all layers or none")
    if draft.strategy.recompute.group > 1:
        again = replace(draft.strategy.recompute, group=1)
        text = f"{recompute}: transformers checkpoints every layer by itself; full is written"
        draft.lose("strategy.recompute", text, recompute=again)


def _numbers(draft: ExportDraft) -> None:
    choose(draft, "dtype", ("fp32", "bf16"), "bf16", "fp16 and fp8 need scaling that the loop has not")
    choose(draft, "optimizer", ("adamw", "sgd"), "adamw")


def settings(draft: ExportDraft) -> dict[str, Any]:
    """What the programs read."""
    s = draft.strategy
    return {
        "dp": s.dp, "zero": s.zero, "shard_group": s.shard_group if s.zero else 1, "micro_batch": s.micro_batch,
        "microbatches": s.microbatches, "seq": s.seq, "dtype": s.dtype, "master": s.master,
        "grad_dtype": s.grad_dtype, "optimizer": s.optimizer, "recompute": "full" if s.recompute.full else "none",
        "compile": s.compile, "flash": s.flash, "runtime": draft.runtime,
    }  # fmt: skip
