"""What runs behind the kernels of a pass: parameters gathered and gradients scattered (ZeRO 3), copies to the host.

A second of kernels hides a second of traffic once, and takes longer for it: a collective holds compute units while it
runs (`Group.taken`). Traffic between nodes waits for the pass's own collectives there. More work never makes a pass
shorter, whatever runs behind it. The host launches all of it, and is met last.
"""

from __future__ import annotations

from typing import NamedTuple

from shardwise.cost.chunk import Chunk, combined
from shardwise.cost.layer import Block
from shardwise.cost.seconds import meet
from shardwise.cost.states import States
from shardwise.cost.update import DataGroups, sharded_traffic
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy


class Behind(NamedTuple):
    """How parameters and activations travel behind the passes."""

    groups: DataGroups
    gathered: float
    """Bytes that gathering a parameter moves; 0 where parameters are whole."""
    scattered: float
    """Bytes that scattering its gradient moves."""
    overlap: float
    host_bandwidth: float
    taken: float = 0.0
    """Share of their speed that kernels lose beside it."""
    copies: tuple[float, float] = (0.0, 0.0)
    """Seconds a parameter that the device's own memory is busy with gathering it, and with scattering its gradient."""

    def over(self, kernels: float, traffic: float, wire: float) -> float:
        """Seconds of kernels with traffic behind them; `wire`: what they keep the links between nodes busy."""
        return covered(kernels, traffic, self.overlap, self.taken, wire if self.groups.dense.out else 0.0)

    def traffic(self, block: Block) -> tuple[float, float]:
        """Seconds to gather a block's parameters, and to scatter its gradients."""
        if not self.gathered:
            return 0.0, 0.0
        gather, scatter = (sharded_traffic(block, self.groups, size) for size in (self.gathered, self.scattered))
        return gather, scatter

    def copied(self, block: Block) -> tuple[float, float]:
        """Seconds of the copies that go with each; parameters that no other rank shares are not moved."""
        dense, expert = self.groups.dense.size > 1, self.groups.expert.size > 1
        count = dense * block.params + expert * block.expert_params
        return count * self.copies[0], count * self.copies[1]


def behind_of(
    strategy: Strategy,
    runtime: Runtime,
    states: States,
    groups: DataGroups,
    host_bandwidth: float,
    device_bandwidth: float,
) -> Behind:
    overlap, rate = runtime.overlap.fsdp, runtime.overlap.fsdp_rate
    if strategy.zero < 3:
        return Behind(groups, 0.0, 0.0, overlap, host_bandwidth)
    taken = max(groups.dense.taken, groups.expert.taken)
    scattered = 4.0 if strategy.grad_dtype == "fp32" else 2.0
    gather, scatter = runtime.overlap.fsdp_copies
    copies = gather / device_bandwidth, scatter / device_bandwidth
    return Behind(groups, states.gathered / rate, scattered / rate, overlap, host_bandwidth, taken, copies)


def covered(kernels: float, traffic: float, overlap: float, taken: float = 0.0, wire: float = 0.0) -> float:
    """Seconds of kernels with traffic behind them as far as the runtime lets it. What takes longer decides: kernels
    that lose `taken` of their speed while it runs, or links that are busy with both. Never less for more of any.
    """
    if not traffic:
        return kernels
    behind = overlap * traffic
    return max(kernels + taken * behind, wire + behind) + traffic - behind


def pass_seconds(chunk: Chunk, behind: Behind) -> tuple[float, float]:
    """A chunk's forward and whole backward pass."""
    forward = backward = 0.0
    for block, repeat in chunk.runs:
        gather, scatter = behind.traffic(block)
        copy_in, copy_out = behind.copied(block)
        back = combined(block.i, block.w, block.recompute)
        forward += repeat * behind.over(block.f.device + copy_in, gather, block.f.wire)
        backward += repeat * behind.over(back.device + copy_in + copy_out, gather + scatter, back.wire)
    copied = chunk.offloaded / behind.host_bandwidth
    host = chunk.i.host + chunk.w.host + chunk.recompute.host
    calls = chunk.i.calls + chunk.w.calls + chunk.recompute.calls
    passes = meet(max(forward, copied), chunk.f.host), meet(max(backward, copied), host)
    return max(passes[0], chunk.f.calls), max(passes[1], calls)


def split_seconds(chunk: Chunk, behind: Behind) -> tuple[float, float]:
    """A chunk's I, with what is computed again, and its W, where an order runs them apart.

    Each meets the host and hides traffic for itself: parameters come behind I, gradients leave behind W. Together they
    take the whole pass or more, and neither is shorter where the other is longer.
    """
    inputs = weights = 0.0
    for block, repeat in chunk.runs:
        gather, scatter = behind.traffic(block)
        copy_in, copy_out = behind.copied(block)
        again = combined(block.i, block.recompute)
        inputs += repeat * behind.over(again.device + copy_in, gather, again.wire)
        weights += repeat * behind.over(block.w.device + copy_out, scatter, block.w.wire)
    copied = chunk.offloaded / behind.host_bandwidth
    passes = meet(max(inputs, copied), chunk.i.host + chunk.recompute.host), meet(weights, chunk.w.host)
    return max(passes[0], chunk.i.calls + chunk.recompute.calls), max(passes[1], chunk.w.calls)
