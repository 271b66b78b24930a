"""Runs a schedule written by Shardwise with torch.distributed.pipelining. Needs torch only: copy it where you train.

    torchrun --nproc-per-node 4 run_pipeline.py schedule.csv --check

In your own program: build the modules of this rank's chunks and call `pipeline`; then `schedule.step(...)` as torch
documents it: the input on the rank of chunk 0, target and losses on the rank of the last chunk.
Written for torch 2.13: `_PipelineScheduleRuntime` is not public there, but it is what loads a CSV.
"""

# mypy: ignore-errors
# a program to copy out: it must run, and read, without our checks; torch's own types change with its version

import argparse
import copy
import re
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

CELL = re.compile(r"(\d+)([FIWB])(\d+)")


def read_schedule(path: str) -> tuple[list[list[int]], int, int]:
    """Chunks of every rank in ascending order, number of chunks, number of micro batches."""
    owned, microbatches = [], 0
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - the standard library, in the plainest way
        for line in file:
            cells = CELL.findall(line)  # passes that run together, (0F1;3B0)OVERLAP_F_B, are two
            owned.append(sorted({int(cell[0]) for cell in cells}))
            microbatches = max([microbatches, *(int(cell[2]) + 1 for cell in cells)])
    return owned, sum(map(len, owned)), microbatches


def pipeline(
    path: str,
    rank: int,
    module_of: Callable[[int], nn.Module],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    device: torch.device,
    group: dist.ProcessGroup | None = None,
    *,
    scale: bool = True,
) -> _PipelineScheduleRuntime:
    """The runtime of this rank; stages go in ascending order, anything else fails inside torch without a word.

    `scale`: gradients are means over the micro batches, else sums.
    """
    owned, chunks, microbatches = read_schedule(path)
    if dist.get_world_size(group) != len(owned):
        raise SystemExit(f"{path} has {len(owned)} ranks, this job has {dist.get_world_size(group)}")
    stages = [PipelineStage(module_of(c), c, chunks, device, group=group) for c in owned[rank]]
    runtime = _PipelineScheduleRuntime(stages, microbatches, loss_fn=loss, scale_grads=scale)
    # never with defer_pp_recv: messages carry no tag, and re-ordered receives land in wrong buffers
    runtime._load_csv(path, format="compute_only")  # noqa: SLF001 - there is no public way in torch 2.13
    return runtime


def check(path: str, width: int = 16, steps: int = 2) -> float:
    """Train a small model a few steps with the schedule and in one process; the largest difference of a gradient."""
    rank, device = dist.get_rank(), torch.device("cpu")
    owned, chunks, microbatches = read_schedule(path)
    torch.manual_seed(7)
    whole = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(chunks)).to(torch.float64)
    own = {c: copy.deepcopy(whole[c]) for c in owned[rank]}
    loss = nn.functional.mse_loss
    runtime = pipeline(path, rank, own.__getitem__, loss, device)
    worst = 0.0
    for _ in range(steps):
        data, target = torch.randn(2, 2 * microbatches, width, dtype=torch.float64)
        last = {"target": target, "losses": []} if chunks - 1 in own else {}
        runtime.step(*((data,) if 0 in own else ()), **last)
        for x, y in zip(data.chunk(microbatches), target.chunk(microbatches), strict=True):
            (loss(nn.Sequential(*whole)(x), y) / microbatches).backward()
        for c, module in own.items():
            for mine, true in zip(module.parameters(), whole[c].parameters(), strict=True):
                worst = max(worst, float((mine.grad - true.grad).abs().max()))
        update([*whole, *own.values()])
    return worst


def update(modules: list[nn.Module], rate: float = 0.1) -> None:
    """A step down the gradients, so that the next one starts from what this one trained."""
    with torch.no_grad():
        for parameter in (parameter for module in modules for parameter in module.parameters()):
            parameter.add_(parameter.grad, alpha=-rate)
            parameter.grad = None


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a pipeline schedule on a small model.")
    parser.add_argument("csv", nargs="+")
    parser.add_argument("--check", action="store_true", help="fail where gradients differ from one process's")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    try:
        differences = [check(path) for path in options.csv]
        for path, difference in zip(options.csv, differences, strict=True):
            # one write per line: all processes share the terminal
            sys.stdout.write(f"rank {dist.get_rank()}: {path}: largest gradient difference {difference:.3g}\n")
            sys.stdout.flush()
        dist.barrier()
    finally:
        dist.destroy_process_group()
    sys.exit(1 if options.check and not max(differences) <= 1e-6 else 0)


if __name__ == "__main__":
    main()
