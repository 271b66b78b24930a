"""Trains the model of shardwise_operators.json with a split of its own for every operator.

    ./torch_pipelining.sh       STEPS=100 ./torch_pipelining.sh       ./torch_pipelining.sh --check

A stage is a group of GPUs that holds operators in a row. An operator has a tp and a dp whose product is the stage's
GPUs: the batch is split over dp, its matrices over tp. What runs between operators are DTensors on the stage's mesh;
where the next operator is split otherwise they are redistributed. Between stages, of any sizes, every GPU sends what
its part of a tensor shares with the parts of the next stage. Gradients of a weight are added over the GPUs that hold
the same part of it.

`--check` compares every gradient of the first step with those of the whole model in each process, in fp64, both with
the layers, heads and splits of the plan, but thin matrices and short samples.
"""

# mypy: ignore-errors
# a program to copy out: it must run, and read, without our checks; torch's own types change with its version

import json
import math
import sys
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from model import build, loss_of, rotary
from shardwise_loop import DTYPES, SEED, STEPS, Optimizer, Steps, finish, say, start, tokens, total
from split_operators import SPLIT, STREAM, Operator, StageGpus, Wire, live, pieces, units
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

HERE = Path(__file__).resolve().parent

_STREAMS = ("x", "n", "a", "y")
"""Tensors as wide as the model; all others are split over tp."""


class Weight(NamedTuple):
    """A weight of this process, and what it is a part of."""

    own: nn.Parameter
    layer: int
    name: str
    box: tuple
    """Its part."""
    copy: int
    """Which of the GPUs with this part it is on."""
    alike: int
    """The tp whose sharers add up its gradient."""


class StageWorker:
    """The operators of this process's stage with their weights, and its messages."""

    def __init__(self, model, plan, device, dtype):
        self.model, self.plan, self.device, self.dtype = model, plan, device, dtype
        self.units, self.ids, self.angles = units(model), None, {}
        rows = [[tuple(row) for row in one["operators"]] for one in plan["stages"]]
        sizes = [one["gpus"] for one in plan["stages"]]
        self.stages = [
            StageGpus(sum(sizes[:index]), gpus, {row[2] for row in own}, device)
            for index, (gpus, own) in enumerate(zip(sizes, rows, strict=True))
        ]
        self.wires = [(Wire(a.ranks + b.ranks), Wire(a.ranks + b.ranks)) for a, b in pairwise(self.stages)]
        self.index = next(index for index, stage in enumerate(self.stages) if stage.place is not None)
        self.stage, self.last = self.stages[self.index], self.index == len(rows) - 1
        lives = live(self.units, [row[1] for own in rows for row in own])
        begins = [sum(map(len, rows[:index])) for index in range(len(rows))]
        self.edges = [
            self.crossing(index, own[-1][2], other[0][2], lives[begins[index + 1]])
            for index, (own, other) in enumerate(pairwise(rows))
        ]
        self.operators = [Operator(self, layer, name, tp, again=again) for layer, name, tp, again in rows[self.index]]
        for step, operator in enumerate(self.operators, begins[self.index] + 1):
            operator.needed = lives[step]
        self.modules, self.weights = {}, []
        for layer, own in groupby(self.operators, key=lambda one: one.layer):
            self.build(layer, list(own))

    def build(self, layer, operators):
        """The modules of a layer, cut to the weights of this process as soon as they are there."""
        m, inside = self.model, 0 <= layer < self.model["layers"]
        first = layer if inside else 0
        whole = build(
            m, first, first + inside, self.device, self.dtype, SEED, start=layer < 0, head=layer >= m["layers"]
        )
        whole = whole.layers[str(layer)] if inside else whole
        mine = {}
        for operator in operators:
            for name, dim in operator.unit.modules.items():
                module = whole.get_submodule(name) if _has(whole, name) else nn.Module()
                for weight, full in list(module.named_parameters(recurse=False)):
                    split = None if dim == 1 and full.dim() == 1 else dim  # a bias beside split inputs is whole
                    box = operator.weight_box(full.shape, split)
                    module.register_parameter(weight, nn.Parameter(full[_slices(box)].detach().clone()))
                    alike = operator.tp if split is not None or self.same(operator.unit) else 1
                    copy = self.stage.place // operator.tp if split is not None else self.stage.place
                    made = Weight(getattr(module, weight), layer, f"{name}.{weight}", box, copy, alike)
                    mine[made.name] = made
        for name, other in whole.named_parameters():  # of operators on other stages
            if name not in mine:
                other.data = other.data.new_empty(0)
        self.modules[layer] = whole
        self.weights += mine.values()

    def same(self, unit):
        """Whether all tp GPUs make one gradient of a weight that is not split: each has the whole stream."""
        return not self.plan["sp"] and set(unit.reads.values()) == {STREAM}

    def tensor(self, name, form, part, tp):
        """A part as the DTensor that it is a part of."""
        shape, placements = self.shape(name), self.stage.placements(form, tp, self.plan["sp"])
        strides = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(part, self.stage.mesh, placements, run_check=False, shape=shape, stride=strides)

    def shape(self, name):
        """Of a whole micro batch."""
        m, heads = self.model, {"q": "heads", "k": "kv_heads", "v": "kv_heads"}
        batch = (self.plan["samples"], self.plan["seq"])
        if name in heads:
            return torch.Size((*batch, m[heads[name]], m["head_size"]))
        widths = {"o": m["heads"] * m["head_size"], "g": m["ffn"], "u": m["ffn"], "z": m["vocab"]}
        return torch.Size((*batch, widths.get(name, m["hidden"])))

    def tables(self, base):
        if base not in self.angles:
            self.angles[base] = rotary(self.model, self.model["head_size"], self.plan["seq"], self.device, base)
        return self.angles[base]

    # passes

    def crossing(self, edge, before, after, names):
        """What goes from a stage to the next: form, boxes of both sides, and the pieces forth and back."""
        found, sides = {}, ((self.stages[edge], before), (self.stages[edge + 1], after))
        for name in sorted(names):
            form = STREAM if name in _STREAMS else SPLIT
            have, want = (
                {rank: stage.box(self.shape(name), stage.placements(form, tp, self.plan["sp"]), place)
                 for place, rank in enumerate(stage.ranks)}
                for stage, tp in sides
            )  # fmt: skip
            found[name] = form, have, want, pieces(have, want), pieces(want, have)
        return found

    def forward(self, micro, step):
        """One micro batch; the tensors to go back from, and those that came in."""
        self.ids = tokens(step, micro, 0, self.plan["samples"], self.plan["seq"], self.model["vocab"]).to(self.device)
        state, came = {}, {}
        for name, (form, _, want, forth, _) in (self.edges[self.index - 1] if self.index else {}).items():
            shape = [size for _, size in want[dist.get_rank()]]
            came[name] = self.wires[self.index - 1][0].receive(shape, forth, self.dtype, self.device).requires_grad_()
            state[name] = self.tensor(name, form, came[name], self.operators[0].tp)
        for (_, again), own in groupby(self.operators, key=lambda one: (one.layer, one.again)):
            chain = _chain(list(own))
            state = checkpoint(chain, state, use_reentrant=False, preserve_rng_state=False) if again else chain(state)
        if self.last:
            return state["loss"], came
        went, wire = {}, self.wires[self.index][0]
        wire.begin()
        for name, (form, *_, forth, _) in self.edges[self.index].items():
            placements = self.stage.placements(form, self.operators[-1].tp, self.plan["sp"])
            went[name] = state[name].redistribute(placements=placements).to_local()
            wire.send(went[name].detach(), forth)
        return went, came

    def backward(self, went, came):
        if self.last:
            went.backward()
        else:
            grads = []
            for _, have, _, _, back in self.edges[self.index].values():
                shape = [size for _, size in have[dist.get_rank()]]
                grads.append(self.wires[self.index][1].receive(shape, back, self.dtype, self.device))
            torch.autograd.backward(list(went.values()), grads)
        if self.index:
            wire = self.wires[self.index - 1][1]
            wire.begin()
            for name, (*_, back) in self.edges[self.index - 1].items():
                wire.send(came[name].grad, back)

    def step(self, step):
        """All passes of an iteration, in the order of the plan; the sum of the losses of this process."""
        under_way, losses = {}, torch.zeros((), device=self.device)
        for word in self.plan["passes"][self.index].split():
            kind, micro = word[0], int(word[1:])
            if kind == "F":
                under_way[micro] = self.forward(micro, step)
                losses += under_way[micro][0].detach().float() if self.last else 0.0
            else:
                self.backward(*under_way.pop(micro))
        for wires in self.wires:
            for wire in wires:
                wire.end()
        return losses


def _chain(operators):
    def run(state):
        for operator in operators:
            state = operator.run(state)
        return state

    return run


def _has(module, name):
    for step in name.split("."):
        module = getattr(module, step, None)
    return module is not None


def _slices(box):
    return tuple(slice(begin, begin + size) for begin, size in box)


# --- training -----------------------------------------------------------------------------------------------------


def optimizers_of(worker):
    """An optimizer for all weights whose gradients are added over the same GPUs."""
    plan, head = worker.plan, worker.plan["stages"][-1]
    parts = head["gpus"] // head["operators"][-1][2]  # of the batch, each with its mean loss
    found = {}
    for alike in sorted({one.alike for one in worker.weights}):
        copies = worker.stage.gpus // alike
        found[alike] = Optimizer(
            [one.own for one in worker.weights if one.alike == alike], plan["optimizer"],
            mixed=plan["master"] == "mixed" and worker.dtype in {torch.bfloat16, torch.float16},
            wide=plan["grad_dtype"] == "fp32", zero=plan["zero"], group=worker.stage.sharers[alike],
            passes=plan["microbatches"] * parts / copies,
        )  # fmt: skip
    return found


class Tie:
    """Embedding and output layer of a tied model: each has its weights, and both have the sum of the gradients."""

    def __init__(self, worker):
        self.worker, ends = worker, {}
        for stage, told in zip(worker.stages, worker.plan["stages"], strict=True):
            for _, name, tp, _ in told["operators"]:
                if name in {"embedding.embedding", "head.output layer"}:
                    ends[name] = stage, tp
        shape = (worker.model["vocab"], worker.model["hidden"])
        boxes = [
            {rank: stage.weight_box(shape, tp, 0, place) for place, rank in enumerate(stage.ranks)}
            for stage, tp in (ends["embedding.embedding"], ends["head.output layer"])
        ]  # fmt: skip
        ranks = sorted({*boxes[0], *boxes[1]})
        self.ways = [(Wire(ranks), pieces(have, want)) for have, want in (boxes, boxes[::-1])]
        self.held = [next((one for one in worker.weights if one.name == name), None)
                     for name in ("embedding.weight", "head.weight")]  # fmt: skip

    def add(self, optimizers):
        """Every gradient goes to the other end as it is, and is added there."""
        grads = [None if one is None else optimizers[one.alike].gradient(one.own) for one in self.held]
        for (wire, plan), grad in zip(self.ways, grads, strict=True):
            if grad is not None:
                wire.begin()
                wire.send(grad.clone(), plan)
        for (wire, plan), grad in zip(self.ways[::-1], grads, strict=True):
            if grad is not None:
                grad.add_(wire.receive(grad.shape, plan, grad.dtype, grad.device))
        for wire, _ in self.ways:
            wire.end()


def train(model, plan):
    device = start(sum(one["gpus"] for one in plan["stages"]))
    model["flash"] = plan["flash"]
    if "--check" in sys.argv[1:]:
        check(*thin(model, plan), device)
    worker = StageWorker(model, plan, device, DTYPES[plan["dtype"]])
    optimizers = optimizers_of(worker)
    tie = Tie(worker) if model["tied"] else None
    steps = Steps("torch-pipelining", parameters(worker), plan["dtype"], device)
    for step in range(STEPS):
        losses = worker.step(step)
        with steps.part("optimizer"):
            update(optimizers, tie)
        steps.end(mean_loss(worker, losses))
    finish()


def update(optimizers, tie):
    for one in optimizers.values():
        one.reduce()
    if tie is not None:
        tie.add(optimizers)
    for one in optimizers.values():
        one.update()


def mean_loss(worker, losses):
    """Of all tokens: every GPU of the last stage has that of its part of the batch."""
    return total(losses, worker.device) / (worker.plan["microbatches"] * worker.stages[-1].gpus)


def parameters(worker):
    """Of the whole model: every part counts on the first GPU that holds it; an output layer that is tied does not."""
    own = 0
    for one in worker.weights:
        tied = worker.model["tied"] and one.name == "head.weight"
        own += one.own.numel() if one.copy == 0 and not tied else 0
    return total(own, worker.device)


def thin(model, plan):
    """The same layers, heads, splits and passes at sizes at which every process can hold the whole."""
    step = math.lcm(*(tp for stage in plan["stages"] for _, _, tp, _ in stage["operators"]))

    def cut(size, most):
        return min(size, -(-most // step) * step)

    head = min(model["head_size"], 8)
    sizes = {"head_size": head, "hidden": min(model["hidden"], head * model["heads"]), "ffn": cut(model["ffn"], 256),
             "vocab": cut(model["vocab"], 512)}  # fmt: skip
    return model | sizes, plan | {"seq": cut(plan["seq"], 64)}


def check(model, plan, device):
    """Compare the gradients of a step with those of the whole model; leaves with 1 where they differ."""
    worker = StageWorker(model, plan, device, torch.float64)
    optimizers = optimizers_of(worker)
    worker.step(0)
    for one in optimizers.values():
        one.reduce()
    if model["tied"]:
        Tie(worker).add(optimizers)
    whole = build(model, 0, model["layers"], device, torch.float64, SEED)
    for micro in range(plan["microbatches"]):
        ids = tokens(0, micro, 0, plan["samples"], plan["seq"], model["vocab"]).to(device)
        (loss_of(whole(ids), ids) / plan["microbatches"]).backward()
    largest, errors = max(float(one.grad.abs().max()) for one in whole.parameters()), [0.0]
    for one in worker.weights:
        layer = whole.layers[str(one.layer)] if 0 <= one.layer < model["layers"] else whole
        true = layer.get_parameter(one.name).grad
        scale = max(float(true.abs().max()), 1e-6 * largest)  # some are zero but for rounding: a bias of keys
        found = optimizers[one.alike].gradient(one.own)
        errors.append(float((found - true[_slices(one.box)]).abs().max()) / scale)
    worst = torch.tensor(errors).max().item()
    say(f"rank={dist.get_rank()} gradients={len(worker.weights)} worst={worst:.3g}")
    dist.barrier()
    if not worst <= 1e-6:
        raise SystemExit(1)
    finish()


if __name__ == "__main__":
    told = json.loads((HERE / "shardwise_operators.json").read_text())
    train(told["model"], told["plan"])
