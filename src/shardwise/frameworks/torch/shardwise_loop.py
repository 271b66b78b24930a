"""What the programs of an exported folder share: the processes, made-up data, the optimizer, and a line for every step.

STEPS and SEED come from the environment. Data is drawn from SEED, the step and the replica, so that any number of GPUs
trains on the same batch; small ids are commoner than large ones, so that the loss falls.
"""

# mypy: ignore-errors
# a program to copy out: it must run, and read, without our checks; torch's own types change with its version

import contextlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS = int(os.environ.get("STEPS", "20"))
SEED = int(os.environ.get("SEED", "1234"))
RATE = float(os.environ.get("LEARNING_RATE", "3e-4"))
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CUDA = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
"""Whether every process of this node has a GPU of its own; else all run on the CPU."""


def start(processes):
    """Join the other processes; the device of this one."""
    if CUDA:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    device = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
    if "RANK" not in os.environ:  # started by hand, alone
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    dist.init_process_group("nccl" if CUDA else "gloo", device_id=device if CUDA else None)
    if dist.get_world_size() != processes:
        raise SystemExit(
            f"the plan is for {processes} processes and {dist.get_world_size()} were started; set GPUS_PER_NODE and "
            "NUM_NODES so that they multiply to it, or plan for the GPUs that are there"
        )
    return device


def finish():
    """Leave together: a process that goes while another still talks to it takes it down."""
    dist.barrier()
    if CUDA:  # gloo's groups may end the process with their threads still running; they go with it anyway
        dist.destroy_process_group()


def tokens(step, micro, replica, batch, seq, vocab):
    """One micro batch of one replica."""
    source = torch.Generator().manual_seed(((SEED * 100_003 + step) * 10_007 + micro) * 4_099 + replica)
    return (torch.rand(batch, seq, generator=source).square() * vocab).long().clamp(max=vocab - 1)


def say(text):
    """One write per line: all processes share the terminal."""
    sys.stdout.write(f"shardwise {text}\n")
    sys.stdout.flush()


class Steps:
    """Times the steps and their parts, and prints them on rank 0."""

    def __init__(self, parameters, dtype, device):
        self.device, self.step = device, 0
        self.parts = {}
        if dist.get_rank() == 0:
            say(f"parameters={parameters} world={dist.get_world_size()} device={device.type} dtype={dtype}")
        self._wait()
        self.begun = time.perf_counter()

    def _wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @contextlib.contextmanager
    def part(self, name):
        """Time of a part on the GPU's own clock: asking it waits for nothing."""
        if self.device.type != "cuda":
            begun = time.perf_counter()
            yield
            self.parts.setdefault(name, []).append(time.perf_counter() - begun)
            return
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record()
        yield
        marks[1].record()
        self.parts.setdefault(name, []).append(marks)

    def end(self, loss):
        """The step is over; `loss`: its mean over all replicas, known to rank 0."""
        self._wait()
        now = time.perf_counter()
        seconds, self.begun = now - self.begun, now
        self.step += 1
        line = f"step={self.step} seconds={seconds:.6f} loss={loss:.6f}"
        for name, marks in self.parts.items():
            spent = sum(one[0].elapsed_time(one[1]) / 1e3 if isinstance(one, list) else one for one in marks)
            line += f" {name}={spent:.6f}"
        self.parts = {}
        if self.device.type == "cuda":
            peaks = [torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device)]
            most = torch.tensor(peaks, dtype=torch.int64, device=self.device)
            dist.all_reduce(most, dist.ReduceOp.MAX)
            line += f" allocated={most[0].item()} reserved={most[1].item()}"
        if dist.get_rank() == 0:
            say(line)


class Optimizer:
    """AdamW or SGD on parameters as they are, or on fp32 copies of 16-bit ones (`mixed`).

    With fp32 copies and fp32 gradients every gradient is added to its copy's as soon as it is there, and dropped.
    """

    def __init__(self, parameters, kind, *, mixed=False, wide=True, group=None, replicas=1, passes=1, shared=None):
        """`passes`: gradients are sums over so many; `shared`: a parameter that another rank holds too, and the group
        of the two, whose gradients are added.
        """
        self.own = [one for one in parameters if one.requires_grad]
        self.group, self.replicas, self.passes = group, replicas, passes
        self.copies = [nn.Parameter(one.detach().float().clone()) for one in self.own] if mixed else self.own
        self.mixed = mixed
        self.shared = next(
            ((copy, shared[1]) for one, copy in zip(self.own, self.copies, strict=True) if shared and one is shared[0]), None
        )
        if mixed and wide:
            for one, copy in zip(self.own, self.copies, strict=True):
                one.register_post_accumulate_grad_hook(lambda one, copy=copy: _add(one, copy))
        if kind == "sgd":
            self.inner = torch.optim.SGD(self.copies, lr=RATE, momentum=0.9)
        else:
            self.inner = torch.optim.AdamW(self.copies, lr=RATE, fused=CUDA)

    def step(self):
        """Mean gradients over the replicas, the update, the new 16-bit parameters, and no gradients."""
        if self.mixed:
            for one, copy in zip(self.own, self.copies, strict=True):
                if one.grad is not None:  # gradients in 16 bit, or of a pass that runs no hooks
                    _add(one, copy)
        for copy in self.copies:
            if copy.grad is not None and self.replicas * self.passes > 1:
                copy.grad.div_(self.replicas * self.passes)
            if copy.grad is not None and self.replicas > 1:
                dist.all_reduce(copy.grad, group=self.group)
        if self.shared:
            dist.all_reduce(self.shared[0].grad, group=self.shared[1])
        self.inner.step()
        self.inner.zero_grad(set_to_none=True)
        if self.mixed:
            with torch.no_grad():
                torch._foreach_copy_(self.own, self.copies)  # noqa: SLF001 - there is no public name


def _add(one, copy):
    if copy.grad is None:
        copy.grad = one.grad.float()
    else:
        copy.grad.add_(one.grad)
    one.grad = None


def mean(loss, device, group=None):
    """A loss over all replicas."""
    total = torch.as_tensor(loss, dtype=torch.float32, device=device).detach().clone()
    if dist.get_world_size(group) > 1:
        dist.all_reduce(total, group=group)
        total /= dist.get_world_size(group)
    return total.item()
