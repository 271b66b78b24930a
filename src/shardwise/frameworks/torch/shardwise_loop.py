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
import zlib

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
    if CUDA:
        dist.destroy_process_group()
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads may still run when Python takes the process apart, which would abort it


def tokens(step, micro, replica, batch, seq, vocab):
    """One micro batch of one replica."""
    source = torch.Generator().manual_seed(((SEED * 100_003 + step) * 10_007 + micro) * 4_099 + replica)
    return (torch.rand(batch, seq, generator=source).square() * vocab).long().clamp(max=vocab - 1)


def wide(x):
    """In fp32, where it is narrower."""
    return x if x.dtype == torch.float64 else x.float()


def seeds_of(model, layers, seed=SEED):
    """Of every module with matrices a number to draw them from, by where it stands and by their shapes.

    Programs that build one model in different ways, or parts of it, so start from the same weights. `layers`: their
    numbers and modules.
    """
    found, inner = {}, set()
    for number, layer in layers:
        counted = {}
        for module in layer.modules():
            inner.add(module)
            if shape := _matrix(module):
                counted[shape] = counted.get(shape, -1) + 1
                found[module] = seed_of(seed, number, shape, counted[shape])
    for module in model.modules():
        if module not in inner and (shape := _matrix(module)):
            found[module] = seed_of(seed, "embedding" if isinstance(module, nn.Embedding) else "head", shape)
    return found


def _matrix(module):
    """Shape of its first matrix."""
    return next((tuple(one.shape) for one in module.parameters(recurse=False) if one.dim() > 1), None)


def seed_of(seed, place, shape, count=0):
    """Of the matrix of a shape that is number `count` of its shape in its place: a layer, embedding or head."""
    return seed * 1_000_003 + zlib.crc32(repr((place, tuple(shape), count)).encode())


def say(text):
    """One write per line: all processes share the terminal."""
    sys.stdout.write(f"shardwise {text}\n")
    sys.stdout.flush()


class Steps:
    """Times the steps and their parts, and prints them on rank 0."""

    def __init__(self, runtime, parameters, dtype, device):
        """`runtime`: what trains, by which a log of these lines is known."""
        self.device, self.step = device, 0
        self.parts = {}
        if dist.get_rank() == 0:
            where = f"world={dist.get_world_size()} device={device.type} dtype={dtype}"
            say(f"parameters={parameters} {where} runtime={runtime}")
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

    With fp32 copies and fp32 gradients (`wide`) every gradient is added to its fp32 sum as soon as it is there, and
    dropped. `zero` 1: every replica keeps the states of its share of the parameters, and hands the new ones round.
    """

    def __init__(
        self,
        parameters,
        kind,
        *,
        mixed=False,
        wide=True,
        zero=0,
        group=None,
        sharers=None,
        whole=True,
        passes=1,
        shared=None,
    ):
        """`group`: the replicas; `sharers`: those of them that spread one copy of the states, else all; `whole`: the
        gradients are not added up yet; `passes`: they are sums over so many; `shared`: a parameter that another rank
        holds too, and the group of the two, whose gradients are added.
        """
        self.own = [one for one in parameters if one.requires_grad]
        self.group, self.replicas, self.passes = group, dist.get_world_size(group) if whole else 1, passes
        self.sharers = group if sharers is None else sharers
        self.mixed, self.shared = mixed, shared or (None, None)
        self.sums = [None] * len(self.own)
        self.owner = self._owners() if zero == 1 and self.replicas > 1 else None
        mine = [
            index
            for index in range(len(self.own))
            if self.owner is None or self.owner[index] == dist.get_rank(self.sharers)
        ]
        self.states = {index: self._state(self.own[index]) for index in mine}
        if mixed and wide:
            for index, one in enumerate(self.own):
                one.register_post_accumulate_grad_hook(lambda one, index=index: self._add(one, index))
        held = list(self.states.values())
        if not held:  # more replicas than parameters
            self.inner = None
        elif kind == "sgd":
            self.inner = torch.optim.SGD(held, lr=RATE, momentum=0.9)
        else:
            self.inner = torch.optim.AdamW(held, lr=RATE, fused=CUDA)

    def _state(self, one):
        return nn.Parameter(one.detach().float().clone()) if self.mixed else one

    def _owners(self):
        """The replica of every parameter: the largest first, to whom has least."""
        held, owner = [0] * dist.get_world_size(self.sharers), {}
        for index in sorted(range(len(self.own)), key=lambda index: -self.own[index].numel()):
            owner[index] = held.index(min(held))
            held[owner[index]] += self.own[index].numel()
        return owner

    def _add(self, one, index):
        if self.sums[index] is None:
            self.sums[index] = one.grad.float() if self.mixed else one.grad
        else:
            self.sums[index].add_(one.grad)
        one.grad = None

    def step(self):
        """Mean gradients over the replicas, the update, the new parameters, and no gradients."""
        self.reduce()
        self.update()

    def gradient(self, one):
        """Of a parameter, between `reduce` and `update`."""
        return self.sums[next(index for index, own in enumerate(self.own) if own is one)]

    def reduce(self):
        """Mean gradients over the replicas."""
        for index, one in enumerate(self.own):
            if one.grad is not None:  # of parameters that are their own states, in 16 bit, or of a pass without hooks
                self._add(one, index)
            grad = self.sums[index]
            if grad is None:
                continue
            if self.replicas * self.passes > 1:
                grad.div_(self.replicas * self.passes)
            if self.replicas > 1:
                dist.all_reduce(grad, group=self.group)
            if one is self.shared[0]:
                dist.all_reduce(grad, group=self.shared[1])

    def update(self):
        for index, state in self.states.items():
            state.grad = self.sums[index]
        self.sums = [None] * len(self.own)
        if self.inner is not None:
            self.inner.step()
            self.inner.zero_grad(set_to_none=True)
        with torch.no_grad():
            if self.mixed:
                torch._foreach_copy_([self.own[index] for index in self.states], list(self.states.values()))
            for index, owner in (self.owner or {}).items():
                dist.broadcast(self.own[index], group=self.sharers, group_src=owner)


def total(value, device, group=None):
    """A sum over ranks."""
    kind = torch.int64 if isinstance(value, int) else torch.float64
    summed = torch.as_tensor(value, device=device).to(kind)
    dist.all_reduce(summed, group=group)
    return summed.item()


def mean(loss, device, group=None):
    """A loss over all replicas."""
    total = torch.as_tensor(loss, dtype=torch.float32, device=device).detach().clone()
    if dist.get_world_size(group) > 1:
        dist.all_reduce(total, group=group)
        total /= dist.get_world_size(group)
    return total.item()
