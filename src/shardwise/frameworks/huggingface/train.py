"""Trains the model of config.json as shardwise_train.json plans it: transformers in a plain loop of torch.

    ./huggingface.sh            STEPS=100 ./huggingface.sh            python train.py   (one process)

Put your own data in place of `tokens`, and your own weights in place of `make`.
"""

# mypy: ignore-errors
# a program to copy out: it must run, and read, without our checks; torch's own types change with its version

import json
from pathlib import Path

import torch
import torch.distributed as dist
from shardwise_loop import DTYPES, SEED, STEPS, Optimizer, Steps, finish, mean, start, tokens
from shardwise_transformers import describe, layers_of, make
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

HERE = Path(__file__).resolve().parent


def mesh_of(plan, device):
    """Ranks that shard states among themselves, `shard`, and their replicas."""
    shards = max(plan["shard_group"], 1)
    return init_device_mesh(device.type, (plan["dp"] // shards, shards), mesh_dim_names=("replicate", "shard"))


def build(plan, device, mesh):
    """The model with its weights on this process: whole, or sharded by torch's FSDP."""
    model = describe(plan)
    narrow, pure = DTYPES[plan["dtype"]], plan["master"] == "pure"
    mixed, sharded = plan["master"] == "mixed" and plan["dtype"] != "fp32", plan["zero"] >= 2
    dtype = narrow if pure or (mixed and not sharded) else torch.float32
    options = {"mesh": mesh["shard"] if mesh["replicate"].size() == 1 else mesh}
    if mixed:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=DTYPES[plan["grad_dtype"]])
    parameters = sum(one.numel() for one in model.parameters())
    for layer in layers_of(model):
        make(model, layer, device, dtype)
        if plan["compile"] and sharded:
            layer.compile()
        if sharded:
            fully_shard(layer, reshard_after_forward=plan["zero"] == 3, **options)
    make(model, model, device, dtype)
    model.tie_weights()
    if sharded:
        fully_shard(model, reshard_after_forward=False, **options)
    elif plan["compile"]:
        model.compile()
    return model, parameters


def train(plan):
    device = start(plan["dp"])
    torch.manual_seed(SEED)
    mesh = mesh_of(plan, device)
    model, parameters = build(plan, device, mesh)
    sharded, passes = plan["zero"] >= 2, plan["microbatches"]
    optimizer = Optimizer(
        model.parameters(), plan["optimizer"], wide=plan["grad_dtype"] == "fp32", zero=plan["zero"], whole=not sharded,
        sharers=mesh.get_group("shard"),
        mixed=plan["master"] == "mixed" and plan["dtype"] != "fp32" and not sharded,
    )  # fmt: skip
    casting = torch.autocast(device.type, DTYPES[plan["dtype"]], enabled=plan["master"] == "autocast")
    steps = Steps("huggingface", parameters, plan["dtype"], device)
    for step in range(STEPS):
        total = 0.0
        for micro in range(passes):
            ids = tokens(step, micro, dist.get_rank(), plan["micro_batch"], plan["seq"], model.config.vocab_size).to(
                device
            )
            with casting, steps.part("forward"):
                loss = model(input_ids=ids, labels=ids).loss / passes
            with steps.part("backward"):
                loss.backward()
            total += loss.detach()
        with steps.part("optimizer"):
            optimizer.step()
        steps.end(mean(total, device))
    finish()


if __name__ == "__main__":
    train(json.loads((HERE / "shardwise_train.json").read_text())["plan"])
