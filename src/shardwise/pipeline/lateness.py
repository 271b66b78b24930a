"""Rules that aim at a horizon: every action has a latest start, the horizon less its tail and a bias.

A bias is a sum of simple shapes (one per kind and position of chunk: a constant, a slope over ranks, a slope over micro
batches), for what tails cannot see: queues.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardwise.pipeline.arrays import Floats, OrderArrays
from shardwise.pipeline.bounds import tails
from shardwise.pipeline.build import BuildRule

STARTS = Path(__file__).with_name("starts.json")
"""Rules that long searches found once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatenessPoint:
    """A rule and the bias on the tails, in typical action times."""

    horizon: float
    """Over the bound."""
    reserve: float
    inherit: float
    bias: Floats


class Lateness:
    """The rules of one problem."""

    def __init__(self, problem: OrderArrays, bound: float, lag: Floats) -> None:
        self.problem, self.bound = problem, bound
        self._tail = tails(problem, lag).ravel()
        self._sizes = 9 * problem.vpp

    def rule(self, point: LatenessPoint) -> tuple[BuildRule, Floats]:
        """What the builder takes."""
        scale = self.problem.unit
        tail = self._tail + _shift(self.problem, point.bias) * scale if point.bias.any() else self._tail
        rule = BuildRule(horizon=self.bound * point.horizon, reserve=point.reserve, inherit=point.inherit * scale)
        return rule, tail

    def plain(self) -> Iterator[LatenessPoint]:
        zero = np.zeros(self._sizes)
        for reserve in (1.0, 0.0, 2.0, 3.0) if self.problem.limited else (0.0,):
            for horizon in (1.0, 0.9, 0.97, 1.03, 0.5, 1.1):
                yield LatenessPoint(horizon=horizon, reserve=reserve, inherit=0.0, bias=zero)

    def learned(self) -> Iterator[LatenessPoint]:
        """starts.json knows the first and the last chunk of a rank; those between get what lies between."""
        place = np.linspace(0.0, 1.0, self.problem.vpp)[None, :, None]
        for entry in json.loads(STARTS.read_text())["points"]:
            ends = np.array(entry["bias"]).reshape(3, 2, 3)
            bias = (ends[:, :1] * (1 - place) + ends[:, 1:] * place).ravel()
            reserve = entry["reserve"] if self.problem.limited else 0.0
            yield LatenessPoint(horizon=entry["horizon"], reserve=reserve, inherit=entry["inherit"], bias=bias)

    def fresh(self, dice: random.Random) -> LatenessPoint:
        """A random point."""
        size = dice.choice((0.5, 1, 2, 4, 8))
        bias = np.array([size * dice.gauss(0, 1) for _ in range(self._sizes)])
        if dice.random() < 0.5:
            bias.reshape(-1, 3)[:, 1:] = 0.0
        return LatenessPoint(
            horizon=dice.choice((0.5, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1)),
            reserve=dice.choice((0, 1, 1, 2, 3)) if self.problem.limited else 0.0,
            inherit=dice.choice((0, 0, 0.5, 1, 2, -1)),
            bias=bias,
        )

    def near(self, at: LatenessPoint, dice: random.Random) -> LatenessPoint:
        """A step away."""
        horizon, reserve, inherit = at.horizon, at.reserve, at.inherit
        if dice.random() < 0.3:
            horizon *= 1 + dice.choice((-0.05, -0.02, -0.01, 0.01, 0.02, 0.05))
        if self.problem.limited and dice.random() < 0.2:
            reserve = max(0.0, reserve + dice.choice((-0.5, 0.5)))
        if dice.random() < 0.2:
            inherit += dice.gauss(0, 1)
        size, share = dice.choice((0.1, 0.3, 1, 3)), dice.choice((0.1, 0.3, 0.6))
        moved = np.array([size * dice.gauss(0, 1) if dice.random() < share else 0.0 for _ in at.bias])
        return LatenessPoint(horizon=horizon, reserve=reserve, inherit=inherit, bias=at.bias + moved)


def _shift(problem: OrderArrays, bias: Floats) -> Floats:
    """The sum of the shapes, by code: for each kind and position 1, the rank and the micro batch from -0.5 to 0.5."""
    rank = problem.rank_of / max(1, problem.pp - 1) - 0.5
    batch = np.arange(problem.microbatches) / max(1, problem.microbatches - 1) - 0.5
    constant, by_rank, by_batch = np.moveaxis(bias.reshape(3, problem.vpp, 3)[:, problem.position], 2, 0)
    return np.asarray(((constant + by_rank * rank)[:, :, None] + by_batch[:, :, None] * batch).ravel())
