"""Seconds of a pass by kind of work, and what a pass takes whose kernels and launches wait for each other."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

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
    calls: float = 0.0
    """The host's seconds where they were counted call by call: it runs ahead of the kernels with them, and shows where
    it takes longer than they do."""

    @property
    def asked(self) -> float:
        """The host's seconds of all kinds: what a wait is shared out by."""
        return self.host + self.calls

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
        return max(meet(self.device, self.host), self.calls)

    @property
    def alone(self) -> float:
        """Without communication: as if all other ranks answered at once."""
        return max(meet(self.compute, self.host), self.calls)


COLUMNS = len(Seconds._fields)
Adds = tuple[tuple[int, float], ...]
"""Columns of `Seconds`, and what is added to each. Not their sums: a layer adds up all of its operators in a row, so
that it costs the same to the last bit whichever of its halves was remembered.
"""
