"""The same plan with transformers' Trainer: TRAINER=1 ./huggingface.sh

Trainer keeps fp32 parameters where `train.py` keeps 16-bit ones beside fp32 copies (`mixed` without FSDP), shards no
states by themselves (zero 1) nor inside groups, and makes its weights whole on every process before FSDP shards them.
"""

# mypy: ignore-errors
# a program to copy out: it must run, and read, without our checks; torch's own types change with its version

import json
from pathlib import Path

import torch
from shardwise_loop import CUDA, DTYPES, RATE, SEED, STEPS, Steps, finish, start, tokens
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

HERE = Path(__file__).resolve().parent


class MadeUp(Dataset):
    """As many samples as the job takes."""

    def __init__(self, count, seq, vocab):
        self.count, self.seq, self.vocab = count, seq, vocab

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        ids = tokens(0, 0, index, 1, self.seq, self.vocab)[0]
        return {"input_ids": ids, "labels": ids}


class Lines(TrainerCallback):
    """A line for every step."""

    def __init__(self, parameters, dtype, device):
        self.steps = Steps("huggingface", parameters, dtype, device)

    def on_log(self, args, state, control, logs=None, **_):  # noqa: ARG002 - as Trainer calls it
        if "loss" in (logs or {}):
            self.steps.end(float(logs["loss"]))


def arguments(plan):
    narrow = plan["dtype"] == "bf16" and plan["master"] != "pure"
    sharded = plan["zero"] >= 2
    return TrainingArguments(
        output_dir=str(HERE / "trainer_output"), max_steps=STEPS, seed=SEED, learning_rate=RATE,
        per_device_train_batch_size=plan["micro_batch"], gradient_accumulation_steps=plan["microbatches"],
        bf16=narrow, gradient_checkpointing=plan["recompute"] == "full",
        gradient_checkpointing_kwargs={"use_reentrant": False} if plan["recompute"] == "full" else None,
        optim="sgd" if plan["optimizer"] == "sgd" else "adamw_torch_fused" if CUDA else "adamw_torch",
        torch_compile=plan["compile"], logging_steps=1, save_strategy="no", eval_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=not CUDA, lr_scheduler_type="constant", ddp_find_unused_parameters=False,
        dataloader_pin_memory=CUDA, max_grad_norm=0.0,
        fsdp=True if sharded else None,
        fsdp_config={"version": 2, "reshard_after_forward": plan["zero"] == 3} if sharded else None,
    )  # fmt: skip


def train(plan):
    device = start(plan["dp"])
    torch.manual_seed(SEED)
    config = AutoConfig.from_pretrained(HERE / "config.json")
    dtype = DTYPES[plan["dtype"]] if plan["master"] == "pure" else torch.float32
    model = AutoModelForCausalLM.from_config(
        config, dtype=dtype, attn_implementation="sdpa" if plan["flash"] else "eager"
    )
    lines = Lines(sum(one.numel() for one in model.parameters()), plan["dtype"], device)
    count = STEPS * plan["dp"] * plan["micro_batch"] * plan["microbatches"]
    data = MadeUp(count, plan["seq"], config.vocab_size)
    Trainer(model=model, args=arguments(plan), train_dataset=data, callbacks=[lines]).train()
    finish()


if __name__ == "__main__":
    train(json.loads((HERE / "shardwise_train.json").read_text())["plan"])
