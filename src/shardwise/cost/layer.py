"""Time and memory of one layer (or end) on one rank: the sum of its operators, ready to be stacked into stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import sqrt
from typing import NamedTuple

from shardwise.cost.activations import Walk, full_walk, plain_walk, selective_walk
from shardwise.cost.kernels import KernelTimes, Machine, op_times
from shardwise.cost.network import Group, exchanged
from shardwise.inputs.assumed import ASSUMED
from shardwise.ops.embedding import embedding, head
from shardwise.ops.layer import LayerKind, layer_ops
from shardwise.ops.linear import adapter_params, narrow_of
from shardwise.ops.op import Comm, Op
from shardwise.ops.shard import Shard

ENDS = frozenset({"embedding", "head"})
"""Blocks that are no layers."""


class Groups(NamedTuple):
    """The groups that a layer's collectives run in, and how much of each the runtime hides."""

    tp: Group
    cp: Group
    ep: Group
    etp: Group
    hidden: tuple[tuple[str, float], ...]


HOST_SHARE = 0.3
"""Below this share of the device's time the host does not show at all: the fourth power would add 0.2%."""
SHOWN = 1 - HOST_SHARE**4
"""What makes `meet` whole there: without a step, so that more work on either side is never faster."""


def meet(device: float, host: float) -> float:
    """Time of a pass whose kernels take `device` and whose launches take `host` seconds.

    The slower side decides, but where both are alike each waits for the other in turn: kernels are not launched as
    evenly as they run. The fourth power fits steps of small and large models on an H200. It is a norm: never smaller
    for more of either, and never more than its parts' sum when passes are taken together.
    """
    if host < HOST_SHARE * device:
        return device
    square_d, square_h = device * device, host * host
    return sqrt(sqrt(SHOWN * square_d * square_d + square_h * square_h))


class Seconds(NamedTuple):
    """Device seconds of one pass by kind of work, exposed communication by axis, and the host's seconds."""

    gemm: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    tp: float = 0.0
    cp: float = 0.0
    ep: float = 0.0
    slowed: float = 0.0
    """What kernels take longer beside collectives that hide behind them."""
    host: float = 0.0
    wire: float = 0.0
    """Seconds that its collectives keep the links between nodes busy, hidden or not; no part of the others."""

    @property
    def compute(self) -> float:
        return self.gemm + self.attention + self.memory

    @property
    def communication(self) -> float:
        return self.tp + self.cp + self.ep

    @property
    def device(self) -> float:
        return (self.gemm + self.attention + self.memory) + (self.tp + self.cp + self.ep) + self.slowed

    @property
    def launch(self) -> float:
        """What the device waits for the host."""
        return self.total - self.device

    @property
    def total(self) -> float:
        return meet(self.device, self.host)

    @property
    def alone(self) -> float:
        """Without communication: as if all other ranks answered at once."""
        return meet(self.compute, self.host)


COLUMNS = len(Seconds._fields)


class Block(NamedTuple):
    """One layer or end, recompute included."""

    name: str
    f: Seconds
    i: Seconds
    w: Seconds
    recompute: Seconds
    """What backward computes again before it starts."""
    walk: Walk
    params: float
    """Parameters on this rank outside experts."""
    expert_params: float
    """Parameters of this rank's experts."""
    flops: float
    """Operations of F, I and W on this rank, without recompute."""
    recompute_flops: float
    ops: tuple[Op, ...]
    forwards: tuple[Seconds, ...] = ()
    """The forward pass of every operator."""

    @property
    def all_params(self) -> float:
        return self.params + self.expert_params


class Timed(NamedTuple):
    """One operator with the seconds of its passes."""

    op: Op
    f: Seconds
    i: Seconds
    w: Seconds


class Recipe(NamedTuple):
    """What of a layer is recomputed."""

    full: bool = False
    modules: frozenset[str] = frozenset()
    group: int = 1


PLAIN = Recipe()


@lru_cache(maxsize=4096)
def layer_block(shard: Shard, kind: LayerKind, recipe: Recipe, machine: Machine, groups: Groups, grads: float) -> Block:
    """A transformer layer. `grads`: bytes per parameter that backward allocates for good."""
    if recipe == PLAIN:
        return _block(kind.name, layer_ops(shard, kind), shard, machine, groups, grads)
    return _recomputed(layer_block(shard, kind, PLAIN, machine, groups, grads), recipe, shard, machine, grads)


@lru_cache(maxsize=1024)
def embedding_block(shard: Shard, machine: Machine, groups: Groups, grads: float) -> Block:
    return _block("embedding", embedding(shard), shard, machine, groups, grads)


@lru_cache(maxsize=1024)
def head_block(shard: Shard, machine: Machine, groups: Groups, grads: float, *, own_weights: bool) -> Block:
    return _block("head", head(shard, own_weights=own_weights), shard, machine, groups, grads)


def _block(name: str, ops: list[Op], shard: Shard, machine: Machine, groups: Groups, grads: float) -> Block:
    input_grad, weight_grad = [0.0] * COLUMNS, [0.0] * COLUMNS
    hidden = dict(groups.hidden)
    forwards = tuple(_add(op, shard, machine, groups, hidden, input_grad, weight_grad) for op in ops)
    return _stacked(name, ops, forwards, Seconds(*input_grad), Seconds(*weight_grad), machine, grads)


def stacked(name: str, parts: Sequence[Timed], machine: Machine, grads: float, *, begins: bool = True) -> Block:
    """Operators in a row, each with the seconds of the split that it has. `begins`: a layer begins with them, and with
    it the framework's own code.
    """
    ops, forwards = [part.op for part in parts], tuple(part.f for part in parts)
    input_grad, weight_grad = _added(part.i for part in parts), _added(part.w for part in parts)
    return _stacked(name, ops, forwards, input_grad, weight_grad, machine, grads, begins=begins)


def _stacked(
    name: str, ops: list[Op], forwards: tuple[Seconds, ...], input_grad: Seconds, weight_grad: Seconds,
    machine: Machine, grads: float, *, begins: bool = True,
) -> Block:  # fmt: skip
    forward = _added(forwards)
    if begins and name not in ENDS:
        forward = forward._replace(host=forward.host + machine.layer_f)
        input_grad = input_grad._replace(host=input_grad.host + machine.layer_b)
    params, expert_params = 0.0, 0.0
    for op in ops:
        if op.expert:
            expert_params += op.params
        else:
            params += op.params
    return Block(
        name=name,
        f=forward,
        i=input_grad,
        w=weight_grad,
        recompute=Seconds(),
        walk=plain_walk(ops, grads),
        params=params,
        expert_params=expert_params,
        flops=sum(f + i + w for f, i, w in (op.flops() for op in ops)),
        recompute_flops=0,
        ops=tuple(ops),
        forwards=forwards,
    )


def _added(parts: Iterable[Seconds]) -> Seconds:
    columns = zip(*parts, strict=True)
    return Seconds(*map(sum, columns))


def _recomputed(plain: Block, recipe: Recipe, shard: Shard, machine: Machine, grads: float) -> Block:
    # of a whole layer the framework's own code runs again too
    return with_recompute(plain, _walk(plain, shard, recipe, grads), machine.layer_f if recipe.full else 0.0)


def with_recompute(plain: Block, walk: Walk, launches: float) -> Block:
    """The same layer with some of it computed again: other memory, and another forward pass of what is replayed.

    `launches`: seconds of the host on top of those of the operators.
    """
    forwards = [plain.forwards[index] for index in walk.recomputed if index != walk.unsent]
    if walk.unsent is not None:
        forwards.append(plain.forwards[walk.unsent]._replace(tp=0.0, cp=0.0, ep=0.0, slowed=0.0, wire=0.0))
    recompute = _added(forwards)
    if launches:
        recompute = recompute._replace(host=recompute.host + launches)
    flops = sum(plain.ops[index].flops()[0] for index in walk.recomputed)
    return plain._replace(recompute=recompute, walk=walk, recompute_flops=flops)


def _walk(plain: Block, shard: Shard, recipe: Recipe, grads: float) -> Walk:
    if recipe.full:
        return whole_walk(plain, shard, recipe.group)
    if recipe.modules:
        return selective_walk(list(plain.ops), recipe.modules, grads, compiled=shard.runtime.kernels.compiled)
    return plain.walk


def whole_walk(plain: Block, shard: Shard, group: int = 1) -> Walk:
    """Memory of a layer that is computed again from its input."""
    # torch's own checkpointing stops replaying once the last kept tensor is there again
    early_stop = shard.runtime.memory.gradients == "lazy"
    return full_walk(list(plain.ops), plain.walk, shard.residual, skip_last=early_stop, group=group)


# Columns of `Seconds`, and rows of the passes.
_COLUMN = {"gemm": 0, "grouped": 0, "attention": 1, "memory": 2}
_PHASES = {"F": 0, "I": 1, "W": 2}
_AXES = {"tp": 3, "cp": 4, "ep": 5, "etp": 5}
_SLOWED, _HOST, _WIRE = 6, 7, 8


def timed(op: Op, shard: Shard, machine: Machine, groups: Groups) -> Timed:
    """An operator with the seconds of its passes, its exposed collectives and its launches."""
    input_grad, weight_grad = [0.0] * COLUMNS, [0.0] * COLUMNS
    forward = _add(op, shard, machine, groups, dict(groups.hidden), input_grad, weight_grad)
    return Timed(op, forward, Seconds(*input_grad), Seconds(*weight_grad))


def _add(
    op: Op, shard: Shard, machine: Machine, groups: Groups, hidden: dict[str, float], input_grad: list[float],
    weight_grad: list[float],
) -> Seconds:  # fmt: skip
    """The forward pass of an operator; its other passes are added to those of its layer."""
    forward = [0.0] * COLUMNS
    product = op.kind in {"gemm", "grouped"}
    narrow = narrow_of(shard, op.name) if product else None
    single = shard.autocast and op.kind == "grouped" and not shard.runtime.kernels.experts_autocast
    times = op_times(op, machine, narrow=narrow is not None, single=single)
    if narrow:
        more = op.shape[3] - 1 if op.kind == "grouped" else 0.0
        fixed = (narrow.kernels + more * narrow.each) * machine.kernel_fixed
        times = times._replace(f=times.f + fixed, i=times.i + fixed)
    elif op.kind == "attention" and shard.fp8_attention:
        times = KernelTimes(*(one / ASSUMED.fp8_attention for one in times))
    if shard.lora and product:
        times = _frozen(times, op, shard)
    column = _COLUMN[op.kind]
    forward[column] = times.f
    input_grad[column] += times.i
    weight_grad[column] += times.w
    launched = op.module not in machine.graphed
    forward[_HOST] = launched * op.kernels_f * machine.launch_f
    launches = launched * op.kernels_b * machine.launch_b
    input_grad[_HOST] += launches / 2 if product else launches
    weight_grad[_HOST] += launches / 2 if product else 0.0
    if op.name == "router":
        forward[_HOST] += machine.experts_f
        input_grad[_HOST] += machine.experts_b
    table, room = (forward, input_grad, weight_grad), [times.f, times.i + times.w]
    for comm in op.comms:
        row = table[_PHASES[comm.phase]]
        row[_HOST] += launched * machine.collective
        group: Group = getattr(groups, comm.axis)
        seconds = exchanged(comm, group)
        behind, slowed = _behind(comm, seconds, room, hidden, group.taken)
        row[_AXES[comm.axis]] += seconds - behind
        row[_SLOWED] += slowed
        row[_WIRE] += group.out * seconds
    return Seconds(*forward)


def _behind(
    comm: Comm, seconds: float, room: list[float], hidden: dict[str, float], taken: float
) -> tuple[float, float]:
    """Seconds of a collective that run behind kernels, and what these take longer for it; they lose `taken` of their
    speed. Tensor and context parallel's run behind their own operator's, each second of which hides one. `room`: what
    is left of those forward and backward.
    """
    if comm.axis == "cp" and comm.kind != "ring":
        return 0.0, 0.0  # a ring passes keys on behind the kernel; any other exchange ends before attention can begin
    share = hidden[comm.axis]
    if comm.axis not in {"tp", "cp"}:
        return share * seconds, taken * share * seconds
    if comm.phase == "W":  # a gathered input for the weight gradient runs behind the input gradient's product
        share = max(share, hidden["W"])
    back = comm.phase != "F"
    wanted = share * seconds
    behind = min(wanted, room[back])
    room[back] -= behind
    return behind, max(0.0, taken * wanted - (wanted - behind))  # slower kernels hide more, too


def _frozen(times: KernelTimes, op: Op, shard: Shard) -> KernelTimes:
    """A frozen layer has no weight gradient; its adapter adds two thin products to every pass."""
    share = adapter_params(op, shard) / max(op.params, 1.0)
    return KernelTimes(times.f * (1 + share), times.i * (1 + share), times.w * share)
