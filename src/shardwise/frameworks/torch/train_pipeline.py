"""Trains the model of shardwise_pipeline.json with the schedule of schedule.csv: torch.distributed.pipelining.

    ./torch_pipelining.sh       STEPS=100 ./torch_pipelining.sh       python train_pipeline.py   (one stage)

Replicas add up their gradients after the last pass. Put your own data in place of `tokens`, and
your own weights in place of those of `build`.
"""

# mypy: ignore-errors
# a program to copy out: it must run, and read, without our checks; torch's own types change with its version

import json
from pathlib import Path

import torch
import torch.distributed as dist
from model import RoutedExperts, build, loss_of
from run_pipeline import pipeline, read_schedule
from shardwise_loop import DTYPES, SEED, STEPS, Optimizer, Steps, finish, start, tokens, total
from torch.distributed.device_mesh import init_device_mesh

HERE = Path(__file__).resolve().parent


def chunks_of(model, plan, owned, device):
    """The chunks of this rank, with their weights."""
    narrow = plan["dtype"] != "fp32" and plan["master"] != "autocast"
    dtype = DTYPES[plan["dtype"]] if narrow else torch.float32
    ends = [sum(plan["layers"][: chunk + 1]) for chunk in range(len(plan["layers"]))]
    found = {}
    for chunk in owned:
        found[chunk] = build(
            model, ends[chunk] - plan["layers"][chunk], ends[chunk], device, dtype, SEED,
            start=chunk == 0, head=chunk == len(ends) - 1, recompute=plan["recompute"][chunk],
        )  # fmt: skip
    first, last = found.get(0), found.get(len(ends) - 1)
    if model["tied"] and first is not None and last is not None:
        last.head.weight = first.embedding.weight
    if plan["compile"]:
        for chunk in found.values():
            for layer in chunk.layers.values():
                layer.compile()
    return found


def train(model, plan):
    device = start(plan["pp"] * plan["dp"])
    model["flash"] = plan["flash"]
    mesh = init_device_mesh(device.type, (plan["pp"], plan["dp"]), mesh_dim_names=("pp", "dp"))
    stages, replicas = mesh.get_group("pp"), mesh.get_group("dp")
    rank, replica = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
    batches = plan.get("batches")  # by replica, where they are on GPUs of different speed
    table = HERE / (f"schedule_{batches[replica]}.csv" if batches else "schedule.csv")
    owned, chunks, passes = read_schedule(table)
    mean_passes = sum(batches) / len(batches) if batches else passes  # so that every micro batch counts the same
    own = chunks_of(model, plan, owned[rank], device)
    modules = torch.nn.ModuleList(own.values()).train()
    ends = {next(row for row, held in enumerate(owned) if chunk in held) for chunk in (0, chunks - 1)}
    apart = model["tied"] and len(ends) > 1  # embedding and head on two ranks: one tensor, so one gradient
    pair = shared_ranks(plan, sorted(ends)) if apart else None
    tie = (own[0].embedding if 0 in own else own[chunks - 1].head).weight if apart and rank in ends else None
    optimizer = Optimizer(
        modules.parameters(), plan["optimizer"], mixed=plan["master"] == "mixed" and plan["dtype"] != "fp32",
        wide=plan["grad_dtype"] == "fp32", zero=plan["zero"], group=replicas, passes=mean_passes,
        shared=None if tie is None else (tie, pair),
    )  # fmt: skip
    runtime = pipeline(str(table), rank, own.__getitem__, loss_of, device, stages, scale=False)
    count = sum(one.numel() for one in modules.parameters()) - (tie.numel() if tie is not None and 0 not in own else 0)
    steps = Steps("torch-pipelining", total(count, device, stages), plan["dtype"], device)
    casting = torch.autocast(device.type, DTYPES[plan["dtype"]], enabled=plan["master"] == "autocast")
    for step in range(STEPS):
        batch = [
            tokens(step, micro, replica, plan["micro_batch"], plan["seq"], model["vocab"]) for micro in range(passes)
        ]
        ids, losses = torch.cat(batch).to(device), []
        last = {"target": ids, "losses": losses} if chunks - 1 in own else {}
        with casting:
            runtime.step(*((ids,) if 0 in own else ()), **last, return_outputs=False)  # else all logits are kept
        with steps.part("optimizer"):
            optimizer.step()
        for module in modules.modules():
            if isinstance(module, RoutedExperts):
                module.move_balance(replicas)
        mean = sum(one.detach().float() for one in losses) / mean_passes if losses else torch.zeros((), device=device)
        steps.end(total(mean, device) / plan["dp"])
    finish()


def shared_ranks(plan, ends):
    """The group of this replica's first and last stage; every rank must take part in making all groups."""
    found = None
    for replica in range(plan["dp"]):
        ranks = [row * plan["dp"] + replica for row in ends]
        group = dist.new_group(ranks)
        found = group if dist.get_rank() in ranks else found
    return found


if __name__ == "__main__":
    told = json.loads((HERE / "shardwise_pipeline.json").read_text())
    train(told["model"], told["plan"])
