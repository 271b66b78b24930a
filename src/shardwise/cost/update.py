"""What follows the passes: reduction of gradients, the optimizer step, gathering of new weights."""

from __future__ import annotations

from typing import NamedTuple

from shardwise.cost.compute import Machine
from shardwise.cost.layer import Block
from shardwise.cost.network import Group, Network, all_reduce, ring
from shardwise.cost.stage import Chunk
from shardwise.cost.states import States, sharding_of
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy

# A fused Adam step takes as long as streaming this many bytes per parameter more than it moves (H200 probe: 28 bytes
# take the time of 34, 14 that of 21.5); Adam made of several passes moves a multiple (one H200 Megatron rank).
FUSED, UNFUSED = 7.0, 4.2
# Reading gradients for the norm, scaling, zeroing: bytes per parameter on the rank beside the step itself.
CLIPPING = 3.5


class Update(NamedTuple):
    """Seconds after (or hidden behind) the passes."""

    reduce: float
    """Whole time of the gradient reduction."""
    reduce_exposed: float
    gather: float
    """Whole time of gathering new weights."""
    gather_exposed: float
    optimizer: float

    @property
    def exposed(self) -> float:
        return self.reduce_exposed + self.gather_exposed + self.optimizer


class DataGroups(NamedTuple):
    """The groups that gradients are reduced in."""

    dense: Group
    expert: Group
    replicas: Group
    """Copies of a sharded model (HSDP); size 1 where it is sharded over all."""


def data_groups(network: Network, strategy: Strategy) -> DataGroups:
    shard = strategy.shard_group
    whole = strategy.dp * strategy.cp
    return DataGroups(
        network.group(shard if strategy.zero else whole, strategy.tp),
        network.group(strategy.expert_dp, strategy.ep * strategy.etp),
        network.group(max(1, whole // shard) if strategy.zero else 1, strategy.tp * shard),
    )


def update_of(
    chunks: list[Chunk],
    strategy: Strategy,
    runtime: Runtime,
    states: States,
    groups: DataGroups,
    machine: Machine,
    window: float,
    host_bandwidth: float,
    trained: float = 1.0,
) -> Update:
    """Seconds of the update of one pipeline rank. `window`: its last backward pass, which reduction can hide behind;
    `trained`: share of its parameters that train.
    """
    dense = trained * sum(chunk.params for chunk in chunks)
    experts = trained * sum(chunk.expert_params for chunk in chunks)
    reduce = gather = 0.0
    if strategy.zero < 3:  # ZeRO 3 reduces and gathers layer by layer inside the passes
        for count, group in ((dense, groups.dense), (experts, groups.expert)):
            one, two = _reduction(count, group, strategy, states)
            reduce, gather = reduce + one, gather + two
    # copies of a sharded model (HSDP) agree on their shares, under ZeRO 3 too
    reduce += all_reduce(groups.replicas, states.gradient * dense / max(1, groups.dense.size))
    # sharded gradients cannot wait for the last micro batch: they are scattered after every one
    passes = strategy.microbatches if _reduces_each_pass(strategy, runtime) else 1
    reduce *= passes
    overlap = runtime.overlap
    hidden_r = min(overlap.grad_reduce * reduce, passes * window)
    hidden_g = min(overlap.param_gather * gather, window / 2)
    step = _step(dense, experts, strategy, runtime, states, machine)
    if strategy.optimizer == "muon":
        step += _newton_schulz(chunks, strategy, machine)
    if strategy.offload == "optimizer":
        step = _host_step(dense, experts, strategy, states, host_bandwidth)
    return Update(reduce, reduce - hidden_r, gather, gather - hidden_g, step)


def _reduces_each_pass(strategy: Strategy, runtime: Runtime) -> bool:
    whole = runtime.memory.whole_gradients_with_pp and strategy.pp > 1
    return strategy.zero == 2 and not whole


def _newton_schulz(chunks: list[Chunk], strategy: Strategy, machine: Machine) -> float:
    """Muon's five iterations that orthogonalise every matrix: 4 k k l + 2 k k k operations each, k its shorter side."""
    flops = 0.0
    for chunk in chunks:
        for run in chunk.runs:
            for op in run.block.ops:
                if op.kind in {"gemm", "grouped"} and op.params and op.name != "output layer":
                    short, long = sorted(op.shape[1:3])
                    count = op.shape[3] if op.kind == "grouped" else 1.0
                    flops += run.repeat * count * (4 * short * short * long + 2 * short**3)
    return 5 * flops / machine.wide / sharding_of(strategy, expert=False).states


def sharded_traffic(block: Block, groups: DataGroups, size: float) -> float:
    """Seconds to gather (or scatter) a block under ZeRO 3, `size` bytes a parameter; experts over their replicas."""
    seconds = ring(groups.dense, block.params * size)
    return seconds + ring(groups.expert, block.expert_params * size) if block.expert_params else seconds


def _reduction(count: float, group: Group, strategy: Strategy, states: States) -> tuple[float, float]:
    """Seconds to reduce gradients, and to gather new weights where states are sharded."""
    if not count or group.size == 1:
        return 0.0, 0.0
    if strategy.zero == 0:
        return all_reduce(group, count * states.gradient), 0.0
    return ring(group, count * states.gradient), ring(group, count * states.weight)


def _host_step(dense: float, experts: float, strategy: Strategy, states: States, host_bandwidth: float) -> float:
    """States in host memory: gradients go there and weights come back, and Adam runs at the host memory's speed."""
    own = dense / sharding_of(strategy, expert=False).states + experts / sharding_of(strategy, expert=True).states
    moved = states.gradient + states.weight
    return own * (moved + states.gradient + 2 * (states.master + states.moments)) / host_bandwidth


def _step(
    dense: float, experts: float, strategy: Strategy, runtime: Runtime, states: States, machine: Machine
) -> float:
    kept = states.master or states.weight
    plain = states.gradient + 2 * (kept + states.moments) + (states.weight if states.master else 0.0)
    moved = plain + FUSED if runtime.kernels.fused_optimizer else plain * UNFUSED
    spread, spread_e = sharding_of(strategy, expert=False), sharding_of(strategy, expert=True)
    own = dense / spread.states + experts / spread_e.states
    here = dense / spread.gradient + experts / spread_e.gradient
    clipping = CLIPPING if runtime.memory.gradients == "buffer" else 0.0
    return (own * moved + here * clipping) / machine.bandwidth
