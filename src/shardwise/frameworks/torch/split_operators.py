"""What a stage of a per-operator plan is made of: its GPUs, the messages between stages, and the operators.

Needs torch only. What runs between operators are DTensors on the stage's mesh; the operators themselves are plain
functions of the parts that a GPU has.
"""

# mypy: ignore-errors
# a program to copy out: it must run, and read, without our checks; torch's own types change with its version

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as fn
from model import ACTIVATIONS, GATED, attend, capped, turn
from shardwise_loop import wide
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard

STREAM, FULL, SPLIT, SUM = "stream", "full", "split", "sum"
"""How a tensor lies over the tp GPUs of an operator. stream: between blocks, a copy on each or (sp) parts of the
sequence; full: a copy on each; split: parts of its third dimension; sum: parts that add up to it."""


# --- which GPUs, and which part of a tensor on each ---------------------------------------------------------------


class StageGpus:
    """A group of GPUs: its ranks count dp first, then tp, so that a tp group is a row of neighbours."""

    def __init__(self, first, gpus, tps, device):
        """`tps`: every tp of its operators; each divides the next, and the mesh has a dimension for every step."""
        self.gpus, self.ranks = gpus, list(range(first, first + gpus))
        self.sizes = [more // less for more, less in pairwise(sorted({1, *tps, gpus}, reverse=True))] or [1]
        self.mesh = DeviceMesh(device.type, torch.tensor(self.ranks).view(self.sizes))
        self.sharers = {}
        for tp in sorted({*tps, 1}):  # GPUs with the same part of what is split so; every process makes every group
            for part in range(tp):
                ranks = self.ranks[part::tp]
                group = dist.new_group(ranks)
                if dist.get_rank() in ranks:
                    self.sharers[tp] = group
        self.place = dist.get_rank() - first if dist.get_rank() in self.ranks else None
        """Of this process among its GPUs; None: it is of another stage."""

    def placements(self, form, tp, sp):
        """Of a tensor [batch, sequence, ...] on the mesh: the batch over dp, the rest over tp."""
        over, found = self.gpus // tp, []
        inner = {STREAM: Shard(1) if sp else Replicate(), FULL: Replicate(), SPLIT: Shard(2), SUM: Partial()}[form]
        for size in self.sizes:
            found.append(Shard(0) if over > 1 else inner)
            over //= size
        return found

    def box(self, shape, placements, place):
        """First index and size in every dimension of the part that the GPU at a place holds, cut as DTensor cuts."""
        starts, sizes, below = [0] * len(shape), list(shape), self.gpus
        for count, placement in zip(self.sizes, placements, strict=True):
            below //= count
            if isinstance(placement, Shard):
                dim, each = placement.dim, -(-sizes[placement.dim] // count)
                begin = min((place // below % count) * each, sizes[dim])
                starts[dim], sizes[dim] = starts[dim] + begin, min(each, sizes[dim] - begin)
        return tuple(zip(starts, sizes, strict=True))

    def weight_box(self, shape, tp, dim, place):
        """The part of a weight whose dimension is split over tp; None: all of it."""
        inner = Replicate() if dim is None else Shard(dim)
        along = self.placements(SPLIT, tp, sp=False)
        return self.box(shape, [inner if own == Shard(2) else Replicate() for own in along], place)


class Parcel(NamedTuple):
    """What one GPU sends to another: as it lies in the part of the first, and in that of the second."""

    source: int
    target: int
    taken: tuple
    put: tuple


def pieces(have, want):
    """Who sends what so that every GPU of `want` gets its part; both map ranks to boxes. Copies take turns."""
    copies, found, turns = {}, [], {}
    for rank, box in have.items():
        copies.setdefault(box, []).append(rank)
    for target, wanted in want.items():
        turn_of = turns[wanted] = turns.get(wanted, -1) + 1
        for box, ranks in copies.items():
            ends = [(max(a, c), min(a + b, c + d)) for (a, b), (c, d) in zip(box, wanted, strict=True)]
            if all(low < high for low, high in ends):
                taken, put = (
                    tuple(slice(low - begin, high - begin) for (low, high), (begin, _) in zip(ends, own, strict=True))
                    for own in (box, wanted)
                )
                found.append(Parcel(ranks[turn_of % len(ranks)], target, taken, put))
    return found


class Wire:
    """Messages from one group of GPUs to another, in the order in which they are sent."""

    def __init__(self, ranks):
        self.group, self.sent, self.kept = dist.new_group(ranks), [], []

    def begin(self):
        """A new set of messages; the sets before the last have arrived, or are waited for, and are let go."""
        self.sent.append([])
        while len(self.sent) > 2:
            self.drop()

    def drop(self):
        for work, _ in self.sent.pop(0):
            work.wait()

    def send(self, tensor, plan):
        for piece in plan:
            if piece.source == dist.get_rank():
                part = tensor[piece.taken].contiguous()
                if piece.target == piece.source:
                    self.kept.append(part)
                    continue
                self.sent[-1].append((dist.isend(part, piece.target, self.group), part))

    def receive(self, shape, plan, dtype, device):
        whole, waiting = torch.empty(shape, dtype=dtype, device=device), []
        for piece in plan:
            if piece.target == dist.get_rank() == piece.source:
                whole[piece.put] = self.kept.pop(0)
            elif piece.target == dist.get_rank():
                part = torch.empty(whole[piece.put].shape, dtype=dtype, device=device)
                waiting.append((dist.irecv(part, piece.source, self.group), part, piece))
        for work, part, piece in waiting:
            work.wait()
            whole[piece.put] = part
        return whole

    def end(self):
        while self.sent:
            self.drop()


# --- operators ----------------------------------------------------------------------------------------------------


class OperatorKind(NamedTuple):
    """An operator: the tensors that it reads and writes with their forms, its function, and its modules."""

    reads: dict
    writes: dict
    run: object
    """(the operator at work, the part of every tensor that it reads) -> those that it writes."""
    modules: dict
    """Name in the layer -> dimension in which its weights are split over tp: 0, its outputs; 1, its inputs; None."""


_QKV = ("attention.q", "attention.k", "attention.v")


def norm_unit(name, source, target):
    return OperatorKind({source: STREAM}, {target: STREAM}, lambda at, x: at.module(name)(x), {name: None})


def units(m):
    """Of every name."""
    gated, act, parallel = m["activation"] in GATED, ACTIVATIONS[m["activation"]], m["parallel_residual"]
    heads, inner = {"q": SPLIT, "k": SPLIT}, {"g": SPLIT, "u": SPLIT} if gated else {"u": SPLIT}
    mixed = {"x": STREAM, "a": STREAM}
    return {
        "embedding.embedding": OperatorKind({}, {"x": SUM}, _embed, {"embedding": 0, "positions": None}),
        "embedding.embedding norm": norm_unit("embedding_norm", "x", "x"),
        "attention-norm.norm": norm_unit("norm1", "x", "n"),
        "attention.qkv": OperatorKind({"n": FULL}, {**heads, "v": SPLIT}, _qkv, dict.fromkeys(_QKV, 0)),
        "attention.qk norm": OperatorKind(heads, heads, _qk_norm, {f"attention.{name}_norm": None for name in "qk"}),
        "attention.rope": OperatorKind(heads, heads, _rope, {}),
        "core-attention.attention": OperatorKind({**heads, "v": SPLIT}, {"o": SPLIT}, _core, {"attention": 0}),
        "attention.output": OperatorKind({"o": SPLIT}, {"a": SUM}, _rows("attention.out"), {"attention.out": 1}),
        "attention-norm.post norm": norm_unit("norm3", "a", "a"),
        "attention.residual": OperatorKind(mixed, {"x": STREAM}, lambda _, *x: sum(x), {}),
        "mlp-norm.norm": norm_unit("norm2", "x", "n"),
        "mlp.up": OperatorKind({"n": FULL}, inner, _up, {"mlp.gate": 0, "mlp.up": 0}),
        "activation.activation": OperatorKind(inner, {"u": SPLIT}, lambda _, x, *u: act(x) * u[0] if u else act(x), {}),
        "activation.silu": OperatorKind({"g": SPLIT}, {"g": SPLIT}, lambda _, g: act(g), {}),
        "activation.product": OperatorKind(inner, {"u": SPLIT}, lambda _, g, u: g * u, {}),
        "mlp.down": OperatorKind({"u": SPLIT}, {"y": SUM}, _rows("mlp.down"), {"mlp.down": 1}),
        "mlp-norm.post norm": norm_unit("norm4", "y", "y"),
        "mlp.residual": OperatorKind({**(mixed if parallel else {"x": STREAM}), "y": STREAM}, {"x": STREAM},
                             lambda _, *x: sum(x), {}),
        "head.final norm": norm_unit("norm", "x", "n"),
        "head.output layer": OperatorKind({"n": FULL}, {"z": SPLIT}, _head, {"head": 0}),
        "head.loss": OperatorKind({"z": SPLIT}, {}, _loss, {}),
    }  # fmt: skip


def _embed(at):
    m, ids, (begin, count) = at.model, at.ids, at.vocabulary
    mine = (ids >= begin) & (ids < begin + count)
    x = at.module("embedding")((ids - begin).clamp(0, count - 1)) * mine.unsqueeze(-1)
    x = x * m["hidden"] ** 0.5 if m["embedding_scaled"] else x
    if m["position"] == "learned":
        x = x + at.module("positions")(torch.arange(ids.shape[1], device=ids.device)) * at.once
    return x


def _qkv(at, n):
    shape = (*n.shape[:2], -1, at.model["head_size"])
    return tuple(at.module(name)(n).view(shape) for name in _QKV)


def _qk_norm(at, q, k):
    return at.module("attention.q_norm")(q), at.module("attention.k_norm")(k)


def _rope(at, q, k):
    return turn(q, *at.tables), turn(k, *at.tables)


def _core(at, q, k, v):
    m = at.model
    scale = m["query_scalar"] ** -0.5 if m["query_scalar"] else None
    return attend(m, q.to(v.dtype), k.to(v.dtype), v, at.window, at.module("attention").sinks, scale).flatten(2)


def _rows(name):
    """A product whose inputs are split: a sum over tp, to which one GPU adds the bias."""

    def run(at, x):
        own = at.module(name)
        return fn.linear(x, own.weight) if own.bias is None else fn.linear(x, own.weight) + own.bias * at.once

    return run


def _up(at, n):
    up = at.module("mlp.up")(n)
    return (at.module("mlp.gate")(n), up) if at.model["activation"] in GATED else up


def _head(at, n):
    return capped(at.module("head")(n), at.model["logit_cap"])


def _loss(at, z):
    """Mean over the tokens of this part of the batch, as `loss_of` has it of whole logits."""
    wanted = fn.pad(at.ids[:, 1:], (0, 1), value=-1)
    found = SplitLoss.apply(wide(z).flatten(0, 1), wanted.flatten(), at.vocabulary[0], at.tp_groups)
    return found / (wanted >= 0).sum()


class SplitLoss(torch.autograd.Function):
    """Sum of the cross entropies of logits [tokens, part of the vocabulary]; a wanted token of -1 is passed over."""

    @staticmethod
    def forward(ctx, logits, wanted, begin, groups):
        def added(x, how=dist.ReduceOp.SUM):
            for group in groups:
                dist.all_reduce(x, how, group=group)
            return x

        top = added(logits.amax(1), dist.ReduceOp.MAX)
        shares = (logits - top[:, None]).exp_()
        sums = added(shares.sum(1))
        mine = (wanted >= begin) & (wanted < begin + logits.shape[1])
        place = (wanted - begin).clamp(0, logits.shape[1] - 1)
        picked = added(logits.gather(1, place[:, None])[:, 0] * mine)
        ctx.save_for_backward(shares.div_(sums[:, None]), place, mine, wanted >= 0)
        return ((sums.log() + top - picked) * (wanted >= 0)).sum()

    @staticmethod
    def backward(ctx, grad):
        shares, place, mine, counted = ctx.saved_tensors
        made = shares.scatter_add(1, place[:, None], -mine[:, None].to(shares.dtype))
        return made * counted[:, None] * grad, None, None, None


class Operator:
    """One operator of this process: its unit, its split, and what its function asks for."""

    def __init__(self, worker, layer, name, tp, *, again):
        self.worker, self.layer, self.name, self.tp, self.again = worker, layer, name, tp, again
        self.model, self.stage, self.unit = worker.model, worker.stage, worker.units[name]
        self.dp = self.stage.gpus // tp
        self.once = float(self.stage.place % tp == 0)
        """1 on one GPU of a tp group, 0 on the others."""
        windows = self.model["windows"]
        self.window = windows[layer % len(windows)] if windows and 0 <= layer < self.model["layers"] else 0
        self.needed = ()
        """Tensors that are read after it."""

    def module(self, name):
        return self.worker.modules[self.layer].get_submodule(name)

    @property
    def ids(self):
        """Of this part of the micro batch."""
        return self.worker.ids.chunk(self.dp)[self.stage.place // self.tp]

    @property
    def vocabulary(self):
        """The first of this part, and how many."""
        return self.weight_box((self.model["vocab"],), 0)[0]

    @property
    def tp_groups(self):
        """Process groups along the mesh that make up the tp group."""
        inner = self.stage.placements(SPLIT, self.tp, sp=False)
        return [self.stage.mesh.get_group(dim) for dim, own in enumerate(inner) if own == Shard(2)]

    @property
    def tables(self):
        return self.worker.tables(self.model["window_rotary_base"] if self.window else 0.0)

    def weight_box(self, shape, dim):
        """The part of a weight that this process has."""
        return self.stage.weight_box(shape, self.tp, dim, self.stage.place)

    def run(self, state):
        """The tensors that are needed after it, by name."""
        sp, parts = self.worker.plan["sp"], []
        for name, form in self.unit.reads.items():
            read = state[name].redistribute(placements=self.stage.placements(form, self.tp, sp))
            back = SUM if form == FULL else form  # a copy is a part of the work each: gradients are parts of a sum
            parts.append(read.to_local(grad_placements=self.stage.placements(back, self.tp, sp)))
        made = self.unit.run(self, *parts)
        if not self.unit.writes:
            return {"loss": made}
        state = dict(state)
        made = made if isinstance(made, tuple) else (made,)
        for (name, form), part in zip(self.unit.writes.items(), made, strict=True):
            state[name] = self.worker.tensor(name, form, part, self.tp)
            if form == SUM:  # added up where it was made
                state[name] = state[name].redistribute(placements=self.stage.placements(STREAM, self.tp, sp))
        return {name: state[name] for name in self.needed}


def live(table, names):
    """Tensors that are read from every operator on, before they are written anew; one entry more than operators."""
    found, later = [set()], set()
    for name in reversed(names):
        later = (later - set(table[name].writes)) | set(table[name].reads)
        found.append(later)
    return found[::-1]
