"""Bytes of weights, gradients and optimizer states per parameter, and how ZeRO spreads them."""

from __future__ import annotations

from typing import NamedTuple

from shardwise.inputs.formats import format_of
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy


class States(NamedTuple):
    """Bytes per parameter before any sharding."""

    weight: float
    gradient: float
    master: float
    moments: float
    gathered: float
    """Bytes of a gathered weight under ZeRO 3."""
    sent: float
    """Bytes of a new weight that is gathered under ZeRO 1 and 2."""
    lazy: bool
    """Gradients are made by the backward pass and dropped after the step."""


# Two moments in fp32 or bf16 for Adam; one in fp32 for Muon and SGD.
_MOMENTS = {"adamw": 8.0, "adamw-bf16": 4.0, "muon": 4.0, "sgd": 4.0}


def states_of(strategy: Strategy, runtime: Runtime) -> States:
    """Bytes per parameter: 18 for Megatron's mixed precision, 16 for fp32 masters, 8 for pure 16 bit."""
    lazy = runtime.memory.gradients == "lazy"
    moments = _MOMENTS[strategy.optimizer]
    if strategy.dtype == "fp32":
        return States(4.0, 4.0, 0.0, moments, 4.0, 4.0, lazy)
    narrow = format_of(strategy.dtype, strategy.scaling) if strategy.fp8_weights else None
    gathered = narrow.size if narrow else 2.0
    if strategy.master == "pure":
        return States(2.0, 2.0, 0.0, moments / 2, gathered, 2.0, lazy)
    if strategy.master == "autocast" or (runtime.memory.master_is_parameter and strategy.zero == 3):
        return States(4.0, 4.0, 0.0, moments, gathered, 4.0, lazy)
    gradient = runtime.memory.gradient_bytes or (4.0 if strategy.grad_dtype == "fp32" else 2.0)
    # Megatron-Core gathers new weights of mxfp8 in 16 bit, into the gradients' buffer, and casts them there
    sent = 2.0 if strategy.dtype == "mxfp8" else gathered
    return States(2.0, gradient, 4.0, moments, gathered, sent, lazy)


class Sharding(NamedTuple):
    """Ranks that each kind of bytes is spread over."""

    weight: int
    gradient: int
    states: int


def sharding_of(strategy: Strategy, *, expert: bool) -> Sharding:
    """ZeRO 1 spreads states, 2 gradients too, 3 weights too; experts over their own replicas."""
    group = strategy.expert_dp if expert else strategy.shard_group
    zero = strategy.zero
    return Sharding(group if zero >= 3 else 1, group if zero >= 2 else 1, group if zero >= 1 else 1)
