"""Time and memory of one layer (or end) on one rank: the sum of its operators, ready to be stacked into stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from shardwise.cost.activations import Walk, full_walk, plain_walk, selective_walk
from shardwise.cost.kernels import KernelTimes, Machine, op_times
from shardwise.cost.network import Group, exchanged
from shardwise.cost.seconds import COLUMNS, Adds, Seconds
from shardwise.inputs.assumed import ASSUMED
from shardwise.inputs.mixers import Feed, Mixer
from shardwise.ops.cross import received
from shardwise.ops.embedding import embedding, head
from shardwise.ops.layer import (
    LayerKind,
    before_ops,
    behind_ops,
    between_ops,
    feed_forward_ops,
    layer_ops,
    mixer_ops,
)  # fmt: skip
from shardwise.ops.linear import adapter_params, narrow_of
from shardwise.ops.op import Comm, Op
from shardwise.ops.shard import Shard
from shardwise.ops.tower import PLACES, trained
from shardwise.ops.traced import traced_entry

ENDS = frozenset({"embedding", "head", "received"})
"""Blocks that are no layers."""
BESIDE = frozenset({"embedding", "projector"})
"""Modules of a layer's operators that are no part of it."""


class Groups(NamedTuple):
    """The groups that a layer's collectives run in, and how much of each the runtime hides."""

    tp: Group
    cp: Group
    ep: Group
    etp: Group
    hidden: tuple[tuple[str, float], ...]


ALONE = Group(1, (), 0.0)
"""The group of a rank that has nobody to talk to."""


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
    frozen: float = 0.0
    """Parameters of `params` that do not train."""
    ends: float = 0.0
    """Parameters of `params` that belong to no layer, though they stand beside one: embeddings, projectors."""

    @property
    def all_params(self) -> float:
        return self.params + self.expert_params

    @property
    def trained_params(self) -> float:
        """Those that get a gradient, adapters aside."""
        return self.all_params - self.frozen


class Timed(NamedTuple):
    """One operator with the seconds of its passes."""

    op: Op
    f: Seconds
    i: Seconds
    w: Seconds


class PricedOps(NamedTuple):
    """Operators in a row with the seconds of their passes."""

    ops: tuple[Op, ...]
    forwards: tuple[Seconds, ...]
    """The forward pass of every operator."""
    i: Adds
    """What they add to the gradient of their layer's inputs, one after the other."""
    w: Adds


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
        made = _joined(kind.name, _halves(shard, kind, machine, groups), machine, grads)
        return _apart(made) if shard.towers else made
    plain = layer_block(shard, kind, PLAIN, machine, groups, grads)
    if plain.frozen:  # it keeps nothing that could be computed again
        return plain
    return _recomputed(plain, recipe, shard.of(kind.tower), machine, grads)


def layer_afresh(shard: Shard, kind: LayerKind, machine: Machine, groups: Groups) -> Block:
    """The same with nothing remembered or recomputed, for machines that are asked once: a fit tries thousands."""
    return _joined(kind.name, [_priced(layer_ops(shard, kind), shard, machine, groups)], machine, 0.0)


def layer_passes(shard: Shard, kind: LayerKind, machine: Machine, groups: Groups) -> tuple[Seconds, Seconds]:
    """Forward and backward pass of a layer of which nothing is recomputed: its block's, without its memory."""
    f, i, w = _passes(kind.name, _halves(shard, kind, machine, groups), machine)
    return f, _added((i, w))


def _halves(shard: Shard, kind: LayerKind, machine: Machine, groups: Groups) -> list[PricedOps]:
    """The halves of a layer. Attention knows nothing of experts, nor the other half how sequences are split: what they
    do not know is left out of what each is remembered by, so that many strategies share one.
    """
    if kind.traced:
        return [_priced(layer_ops(shard, kind), shard, machine, groups)]
    own = shard.of(kind.tower) if kind.tower else shard
    mixing = _mixer_half(
        own._replace(ep=1, etp=1, dispatcher="", fixed=False, towers=()), kind.mixer, kind.window, machine,
        groups._replace(ep=ALONE, etp=ALONE),
    )  # fmt: skip
    feeding = _feed_forward_half(
        own._replace(samples=1, seq=own.tokens, whole_seq=0, cp=1, cp_kind="", documents=None, towers=()), kind.feed,
        machine, groups._replace(cp=ALONE),
    )  # fmt: skip
    found = [mixing, feeding]
    if kind.crosses:
        found.insert(1, _priced(between_ops(shard, kind), shard, machine, groups))
    if kind.mtp or kind.opens or own.model.condition:
        found.insert(0, _priced(before_ops(shard, kind), shard, machine, groups))
    if kind.closes:
        found.append(_priced(behind_ops(shard, kind), shard, machine, groups))
    return found


@lru_cache(maxsize=4096)
def _mixer_half(shard: Shard, mixer: Mixer, window: int, machine: Machine, groups: Groups) -> PricedOps:
    return _priced(trained(shard, mixer_ops(shard, mixer, window)), shard, machine, groups)


@lru_cache(maxsize=4096)
def _feed_forward_half(shard: Shard, feed: Feed, machine: Machine, groups: Groups) -> PricedOps:
    return _priced(trained(shard, feed_forward_ops(shard, feed)), shard, machine, groups)


@lru_cache(maxsize=1024)
def embedding_block(shard: Shard, machine: Machine, groups: Groups, grads: float) -> Block:
    first = shard.towers[0] if shard.towers else shard
    return _block("embedding", trained(first, embedding(first)), shard, machine, groups, grads)


@lru_cache(maxsize=1024)
def received_block(shard: Shard, machine: Machine, groups: Groups, grads: float) -> Block:
    """An encoder's output on a stage that reads it and did not make it."""
    return _block("received", [received(shard)], shard, machine, groups, grads)


@lru_cache(maxsize=1024)
def head_block(shard: Shard, machine: Machine, groups: Groups, grads: float, *, own_weights: bool) -> Block:
    return _block("head", head(shard, own_weights=own_weights), shard, machine, groups, grads)


def _block(name: str, ops: list[Op], shard: Shard, machine: Machine, groups: Groups, grads: float) -> Block:
    made = _joined(name, [_priced(ops, shard, machine, groups)], machine, grads)
    return _apart(made) if shard.towers else made


def _priced(ops: list[Op], shard: Shard, machine: Machine, groups: Groups) -> PricedOps:
    hidden = dict(groups.hidden)
    found = [_passes_of(op, shard, machine, groups, hidden) for op in ops]
    return PricedOps(
        tuple(ops), tuple(f for f, _, _ in found), tuple(chain.from_iterable(i for _, i, _ in found)),
        tuple(chain.from_iterable(w for _, _, w in found)),
    )  # fmt: skip


def stacked(name: str, parts: Sequence[Timed], machine: Machine, grads: float, *, begins: bool = True) -> Block:
    """Operators in a row, each with the seconds of the split that it has. `begins`: a layer begins with them, and with
    it the framework's own code.
    """
    ops, forwards = tuple(part.op for part in parts), tuple(part.f for part in parts)
    i, w = (
        tuple(add for row in rows for add in enumerate(row)) for rows in ([p.i for p in parts], [p.w for p in parts])
    )
    return _joined(name, [PricedOps(ops, forwards, i, w)], machine, grads, begins=begins)


def _passes(
    name: str, parts: Sequence[PricedOps], machine: Machine, *, begins: bool = True
) -> tuple[Seconds, Seconds, Seconds]:
    """F, I and W of parts in a row, with the framework's own code for a layer."""
    f = _added(forward for part in parts for forward in part.forwards)
    i, w = _summed(part.i for part in parts), _summed(part.w for part in parts)
    if begins and name not in ENDS:
        back = 0.0 if all(op.frozen for part in parts for op in part.ops) else machine.layer_b
        f, i = f._replace(host=f.host + machine.layer_f), i._replace(host=i.host + back)
        if machine.called.layer[0] and not any(op.called for part in parts for op in part.ops):
            called = machine.called.layer[1] * any(not op.frozen for part in parts for op in part.ops)
            f = f._replace(calls=f.calls + machine.called.layer[0])
            i = i._replace(calls=i.calls + called)
    return f, i, w


def _summed(parts: Iterable[Adds]) -> Seconds:
    row = [0.0] * COLUMNS
    for adds in parts:
        for column, seconds in adds:
            row[column] += seconds
    return Seconds(*row)


def _joined(name: str, parts: Sequence[PricedOps], machine: Machine, grads: float, *, begins: bool = True) -> Block:
    f, i, w = _passes(name, parts, machine, begins=begins)
    ops = [op for part in parts for op in part.ops]
    params, expert_params = 0.0, 0.0
    for op in ops:
        if op.expert:
            expert_params += op.params
        else:
            params += op.params
    return Block(
        name=name,
        f=f,
        i=i,
        w=w,
        recompute=Seconds(),
        walk=plain_walk(ops, grads),
        params=params,
        expert_params=expert_params,
        flops=sum(f + i + w for f, i, w in (op.flops() for op in ops)),
        recompute_flops=0,
        ops=tuple(ops),
        forwards=tuple(forward for part in parts for forward in part.forwards),
    )


def _apart(block: Block) -> Block:
    """With what of its parameters does not train, and what belongs to no layer, where a model has towers."""
    ends = () if block.name in ENDS else [op.params for op in block.ops if op.module in BESIDE]
    return block._replace(frozen=sum(op.params for op in block.ops if op.frozen), ends=sum(ends))


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
    entry = traced_entry(shard, plain.name) if shard.model.traced else shard.residual
    return full_walk(list(plain.ops), plain.walk, entry, skip_last=early_stop, group=group)


# Columns of `Seconds`.
_COLUMN = {"gemm": 0, "grouped": 0, "attention": 1, "scan": 1, "memory": 2}
_AXES = {"tp": 3, "cp": 4, "ep": 5, "etp": 5}
_SLOWED, _HOST, _WIRE, _CALLS = 6, 7, 8, 9


def timed(op: Op, shard: Shard, machine: Machine, groups: Groups) -> Timed:
    """An operator with the seconds of its passes, its exposed collectives and its launches."""
    forward, i, w = _passes_of(op, shard, machine, groups, dict(groups.hidden))
    return Timed(op, forward, _summed([i]), _summed([w]))


def _passes_of(
    op: Op, shard: Shard, machine: Machine, groups: Groups, hidden: dict[str, float]
) -> tuple[Seconds, Adds, Adds]:
    """The forward pass of an operator, and what its other passes add to those of its layer."""
    forward = [0.0] * COLUMNS
    product = op.kind in {"gemm", "grouped"}
    narrow = narrow_of(shard, op.name) if product else None
    single = op.single or (shard.autocast and op.kind == "grouped" and not shard.runtime.kernels.experts_autocast)
    times = op_times(op, machine, narrow=narrow is not None, single=single)
    if narrow:
        more = op.shape[3] - 1 if op.kind == "grouped" else 0.0
        fixed = (narrow.kernels + more * narrow.each) * machine.kernel_fixed
        times = times._replace(f=times.f + fixed, i=times.i + fixed)
    elif op.kind == "attention" and shard.fp8_attention:
        times = KernelTimes(*(one / ASSUMED.fp8_attention for one in times))
    if op.frozen:
        times = times._replace(i=0.0, w=0.0)
    if shard.lora and product:
        times = _frozen(times, op, shard)
    column = _COLUMN[op.kind]
    forward[column] = times.f
    launched = op.module not in machine.graphed
    forward[_HOST], forward[_CALLS], launches, calls = (launched * one for one in _hosted(op, machine))
    input_grad, weight_grad = [(column, times.i)], [(column, times.w)]
    for place, seconds in ((_HOST, launches), (_CALLS, calls))[: 2 if calls else 1]:
        input_grad.append((place, seconds / 2 if product else seconds))
        if product:
            weight_grad.append((place, seconds / 2))
    if op.name == "router":
        forward[_HOST] += machine.experts_f
        input_grad.append((_HOST, machine.experts_b))
    room = [times.f, times.i + times.w]
    for comm in op.comms:
        group: Group = getattr(groups, comm.axis)
        seconds = exchanged(comm, group)
        behind, slowed = _behind(comm, seconds, room, hidden, group.taken)
        adds = (
            (_HOST, launched * machine.collective), (_AXES[comm.axis], seconds - behind), (_SLOWED, slowed),
            (_WIRE, group.out * seconds),
        )  # fmt: skip
        if comm.phase == "F":
            for place, more in adds:
                forward[place] += more
        else:
            (input_grad if comm.phase == "I" else weight_grad).extend(adds)
    return Seconds(*forward), tuple(input_grad), tuple(weight_grad)


def _hosted(op: Op, machine: Machine) -> tuple[float, float, float, float]:
    """The host's seconds forward, for launches and call by call where calls are counted; and the same backward. What a
    trace counted counts once.
    """
    if op.called and machine.called.call[0]:
        return 0.0, op.called[0] * machine.called.call[0], 0.0, op.called[1] * machine.called.call[1]
    once = machine.called.tower if op.name == PLACES else 0.0
    return (
        op.kernels_f * machine.launch_f, once + op.kernels_f * machine.called.kernel[0],
        op.kernels_b * machine.launch_b, op.kernels_b * machine.called.kernel[1],
    )  # fmt: skip


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
