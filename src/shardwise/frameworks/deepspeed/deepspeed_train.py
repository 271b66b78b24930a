"""Trains the model of config.json as ds_config.json plans it: transformers under DeepSpeed's engine.

    ./deepspeed.sh              STEPS=100 ./deepspeed.sh              python deepspeed_train.py   (one process)

What DeepSpeed's file has no word for stands in its key `_program`, which DeepSpeed does not read. Put your own data in
place of `tokens`, and your own weights in place of `make`.
"""

# mypy: ignore-errors
# a program to copy out: it must run, and read, without our checks; torch's own types change with its version

import json
import os
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from shardwise_loop import CUDA, DTYPES, RATE, SEED, STEPS, Steps, finish, mean, start, tokens
from shardwise_model import describe, layers_of, make

HERE = Path(__file__).resolve().parent


def build(plan, config, device):
    """The model with its weights, partitioned layer by layer under ZeRO 3."""
    model = describe(plan)
    parameters = sum(one.numel() for one in model.parameters())
    dtype, split = DTYPES[plan["dtype"]], config["zero_optimization"]["stage"] == 3
    for layer in layers_of(model):
        make(model, layer, device, dtype)
        if split:
            deepspeed.zero.Init(module=layer, config_dict_or_path=config)
    make(model, model, device, dtype)
    model.tie_weights()
    if split:
        deepspeed.zero.Init(module=model, config_dict_or_path=config)
    return model, parameters


def optimizer_of(model, config):
    """Torch's own AdamW and SGD: DeepSpeed's are compiled where they run, which needs a compiler there."""
    kind = config.pop("optimizer")["type"].lower()
    if config["zero_optimization"].get("offload_optimizer"):
        return deepspeed.ops.adam.DeepSpeedCPUAdam(model.parameters(), lr=RATE)
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=RATE, fused=CUDA)


def train(config):
    plan = config.pop("_program")
    config.pop("_shardwise", None)
    device = start(plan["world"])
    if not CUDA:  # its collectives of a CPU are compiled where they run; gloo's are not
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="nccl" if CUDA else "gloo")
    torch.manual_seed(SEED)
    model, parameters = build(plan, config, device)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer_of(model, config), config=config)
    if plan["compile"]:
        engine.compile()
    replica, passes = dist.get_rank() // plan["tp"], plan["microbatches"]
    steps = Steps(parameters, plan["dtype"], device)
    for step in range(STEPS):
        total = 0.0
        for micro in range(passes):
            ids = tokens(step, micro, replica, plan["micro_batch"], plan["seq"], model.config.vocab_size).to(device)
            with steps.part("forward"):
                loss = engine(input_ids=ids, labels=ids).loss
            with steps.part("backward"):
                engine.backward(loss)
            with steps.part("optimizer"):
                engine.step()
            total += loss.detach() / passes
        steps.end(mean(total, device))
    finish()


if __name__ == "__main__":
    if not CUDA:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    train(json.loads((HERE / "ds_config.json").read_text()))
