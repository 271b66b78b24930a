"""What follows the passes: reduction of gradients, the optimizer step, gathering of new weights."""

from __future__ import annotations

from typing import NamedTuple

from shardwise.cost.chunk import Chunk
from shardwise.cost.kernels import Machine
from shardwise.cost.layer import Block
from shardwise.cost.network import Group, Network, all_reduce, collective, ring
from shardwise.cost.states import States, sharding_of
from shardwise.inputs.assumed import ASSUMED
from shardwise.inputs.formats import format_of
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.ops.op import Collective, Op

# What Adam takes as streamed bytes per parameter, times the bytes that it must move and more (H200 probe). One fused
# kernel: 28 bytes take the time of 34, 14 that of 22. Several passes (foreach) move three times as much: 92 and 54.5.
FUSED, UNFUSED = (0.86, 10.0), (2.68, 17.0)
# Beside it, per parameter of the shard: the norm of gradients (read, 5), scaling them (read and written, 9.5), and the
# new weights out of fp32 masters (6 bytes moved, 7.3); per parameter of the rank: zeroing its buffer.
NORM, SCALE, COPY, ZEROING = 5.1, 9.5, 7.3, 3.6
# I and W each take about as long as F: the part of a micro batch's passes that is backward.
BACKWARD = 2 / 3
# Iterations with which Muon orthogonalises a matrix (Jordan et al. 2024).
NEWTON_SCHULZ = 5


class Update(NamedTuple):
    """Seconds after (or hidden behind) the passes; nothing is hidden until `hidden` has seen the passes."""

    reduce: float
    """Whole time of the gradient reduction."""
    reduce_exposed: float
    gather: float
    """Whole time of gathering new weights."""
    gather_exposed: float
    optimizer: float
    slowed: float = 0.0
    """What the passes take longer beside that which hides behind them."""

    @property
    def exposed(self) -> float:
        return self.reduce_exposed + self.gather_exposed + self.optimizer + self.slowed


class Beside(NamedTuple):
    """What reduction and gathering meet where they run behind passes."""

    taken: float
    """Share of their speed that kernels lose."""
    forward: float = 0.0
    """Seconds that a micro batch's own collectives keep the links between nodes busy in its forward pass: on the mean
    rank, since what an update hides behind is that of stages which are alike. New weights wait for them."""
    backward: float = 0.0
    """The same of its backward pass; gradients wait for them."""


class DataGroups(NamedTuple):
    """The groups that gradients are reduced in."""

    dense: Group
    expert: Group
    replicas: Group
    """Copies of a sharded model (HSDP); size 1 where it is sharded over all."""


def data_groups(network: Network, strategy: Strategy) -> DataGroups:
    shard = strategy.shard_group
    whole, far = strategy.dp * strategy.cp, strategy.between_replicas
    # with pp-dp and cp, ranks of one replica are nearer than this says: what they send is a little slower than it is
    return DataGroups(
        network.group(shard if strategy.zero else whole, strategy.tp * far),
        network.group(strategy.expert_dp, strategy.ep * strategy.etp * far),
        network.group(max(1, whole // shard) if strategy.zero else 1, strategy.tp * shard * far),
    )


def update_of(
    chunks: list[Chunk],
    strategy: Strategy,
    runtime: Runtime,
    states: States,
    groups: DataGroups,
    machine: Machine,
    host_bandwidth: float,
    trained: float = 1.0,
) -> Update:
    """Seconds of the update of one pipeline rank. `trained`: share of its parameters that train."""
    dense = trained * sum(chunk.params for chunk in chunks)
    experts = trained * sum(chunk.expert_params for chunk in chunks)
    reduce = gather = 0.0
    if strategy.zero < 3:  # ZeRO 3 reduces and gathers layer by layer inside the passes
        for count, group in ((dense, groups.dense), (experts, groups.expert)):
            one, two = _reduction(count, group, strategy, states, runtime)
            reduce, gather = reduce + one, gather + two
    if experts and runtime.overlap.gathers_twice and not runtime.overlap.param_gather:
        gather *= 2
    # copies of a sharded model (HSDP) agree on their shares, under ZeRO 3 too
    reduce += all_reduce(groups.replicas, states.gradient * dense / max(1, groups.dense.size))
    reduce *= reductions(strategy.zero, strategy.pp, strategy.microbatches, runtime)
    if 1 <= strategy.zero < 3:
        gather += runtime.overheads.owner * (groups.dense.size - 1)
    step = _step(chunks, dense, experts, strategy, runtime, states, machine)
    if strategy.optimizer == "muon":
        step += _newton_schulz(chunks, strategy, machine)
    if strategy.offload == "optimizer":
        step = _host_step(dense, experts, strategy, states, host_bandwidth)
    return Update(reduce, reduce, gather, gather, step)


def reductions(zero: int, pp: int, microbatches: int, runtime: Runtime) -> int:
    """How often gradients are reduced: sharded ones cannot wait for the last micro batch, and go after every one."""
    whole = runtime.memory.whole_gradients_with_pp and pp > 1
    return microbatches if zero == 2 and not whole else 1


def windows(pp: int, vpp: int, microbatches: int, reduced: int) -> tuple[float, float]:
    """What gradients are reduced behind (`reduced` backward passes), and new weights gathered behind (the next forward
    pass): shares of the makespan.

    Where stages are alike, one micro batch's passes take makespan / (m + (pp - 1) / vpp). The shares together are at
    most 1: the passes hide each second once, and makespan + what shows never falls when the makespan rises. Shares of
    each rank's own passes would not do: those of a rank that is not on the longest path may rise alone.
    """
    each = 1 / (microbatches + (pp - 1) / vpp)
    return BACKWARD * reduced * each, (1 - BACKWARD) * each


def hidden(update: Update, beside: Beside, strategy: Strategy, runtime: Runtime, makespan: float) -> Update:
    """The update with what hides behind the passes taken off."""
    reduced = reductions(strategy.zero, strategy.pp, strategy.microbatches, runtime)
    backward, forward = windows(strategy.pp, strategy.vpp, strategy.microbatches, reduced)
    overlap = runtime.overlap
    rooms = max(0.0, backward * makespan - reduced * beside.backward), max(0.0, forward * makespan - beside.forward)
    wanted = overlap.grad_reduce * update.reduce, overlap.param_gather * update.gather
    shown = [max(0.0, one - room) for one, room in zip(wanted, rooms, strict=True)]
    return update._replace(
        reduce_exposed=update.reduce - wanted[0] + shown[0],
        gather_exposed=update.gather - wanted[1] + shown[1],
        slowed=sum(max(0.0, beside.taken * one - part) for one, part in zip(wanted, shown, strict=True)),
    )


def beside_of(groups: DataGroups, strategy: Strategy, forward: float, backward: float) -> Beside:
    """`forward`, `backward`: what all chunks keep the links between nodes busy (`Seconds.wire`)."""
    taken = groups.replicas.taken if strategy.zero == 3 else max(groups.dense.taken, groups.expert.taken)
    out = any(group.out for group in groups) / strategy.pp
    return Beside(taken, out * forward, out * backward)


def _newton_schulz(chunks: list[Chunk], strategy: Strategy, machine: Machine) -> float:
    """Muon's iterations that orthogonalise every matrix: 4 k k l + 2 k k k operations each, k its shorter side."""
    flops = 0.0
    for chunk in chunks:
        for run in chunk.runs:
            for op in run.block.ops:
                if op.kind in {"gemm", "grouped"} and op.params and op.name != "output layer":
                    short, long = sorted(op.shape[1:3])
                    count = op.shape[3] if op.kind == "grouped" else 1.0
                    flops += run.repeat * count * (4 * short * short * long + 2 * short**3)
    return NEWTON_SCHULZ * flops / machine.wide / sharding_of(strategy, expert=False).states


def sharded_traffic(block: Block, groups: DataGroups, size: float) -> float:
    """Seconds to gather (or scatter) a block under ZeRO 3, `size` bytes a parameter; experts over their replicas."""
    seconds = ring(groups.dense, block.params * size)
    return seconds + ring(groups.expert, block.expert_params * size) if block.expert_params else seconds


def _reduction(count: float, group: Group, strategy: Strategy, states: States, runtime: Runtime) -> tuple[float, float]:
    """Seconds to reduce gradients, and to gather new weights where states are sharded."""
    if not count or group.size == 1:
        return 0.0, 0.0
    reduce = collective(reduced_by(strategy, runtime), group, count * states.gradient)
    return reduce, ring(group, count * states.sent) if strategy.zero else 0.0


def reduced_by(strategy: Strategy, runtime: Runtime) -> Collective:
    """The collective that gradients are reduced by."""
    whole = strategy.zero == 1 and runtime.overlap.whole_reduction
    return "all-reduce" if whole or not strategy.zero else "reduce-scatter"


def _host_step(dense: float, experts: float, strategy: Strategy, states: States, host_bandwidth: float) -> float:
    """States in host memory: gradients go there and weights come back, and Adam runs at the host memory's speed."""
    own = dense / sharding_of(strategy, expert=False).states + experts / sharding_of(strategy, expert=True).states
    moved = states.gradient + states.weight
    return own * (moved + states.gradient + 2 * (states.master + states.moments)) / host_bandwidth


def _step(
    chunks: list[Chunk],
    dense: float,
    experts: float,
    strategy: Strategy,
    runtime: Runtime,
    states: States,
    machine: Machine,
) -> float:
    fused = runtime.kernels.fused_optimizer
    factor, more = FUSED if fused else UNFUSED
    moved = factor * (states.gradient + 2 * ((states.master or states.weight) + states.moments)) + more
    spread, spread_e = sharding_of(strategy, expert=False), sharding_of(strategy, expert=True)
    own = dense / spread.states + experts / spread_e.states
    here = dense / spread.gradient + experts / spread_e.gradient
    if states.master:
        moved += COPY
    zeroing = 0.0
    if runtime.memory.gradients == "buffer":
        moved, zeroing = moved + NORM + SCALE, ZEROING
    cast = _cast(strategy, runtime, machine) * (dense / spread.weight + experts / spread_e.weight)
    host = 0.0 if fused else ASSUMED.per_tensor * machine.launch_f * tensors_of(chunks)
    return (own * moved + here * zeroing + cast) / machine.bandwidth + host


def _cast(strategy: Strategy, runtime: Runtime, machine: Machine) -> float:
    """Bytes per weight that bringing new weights into the format of the products moves, where that is done once an
    iteration: from 16 bit, or only the turned copy from the first one.
    """
    narrow = format_of(strategy.dtype, strategy.scaling)
    if narrow is None or not runtime.kernels.fp8_copies:
        return 0.0
    if strategy.fp8_weights and not narrow.sided:
        return 2 * narrow.size * machine.turned
    return narrow.traffic(turned=machine.turned, normed=False)


def tensors_of(chunks: list[Chunk]) -> float:
    """Weights and biases on the rank."""
    return sum(
        run.repeat * sum(1.0 + _biased(op) for op in run.block.ops if op.params)
        for chunk in chunks
        for run in chunk.runs
    )


def _biased(op: Op) -> bool:
    return op.kind == "gemm" and op.params > op.shape[1] * op.shape[2]
