"""Rules for little memory: few micro batches under way, admitted at a pace, and urgency by kind and place of an action.

Below 1F1B's memory an order is slow when activations wait: each waits in memory that the next micro batch needs. So a
rank runs what is most urgent, gradients before forwards before weights on the whole, is patient with what will soon
arrive, and no more micro batches are admitted than can go through without waiting for each other. Such an order falls
into a steady state by itself, with warm-up and drain around it; which window, pace and urgencies are best depends on
the costs and is searched for.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from shardwise.pipeline.arrays import NEVER, Floats, OrderArrays
from shardwise.pipeline.build import BuildRule
from shardwise.pipeline.lateness import STARTS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdmissionPoint:
    """Times are in the busiest rank's work for one micro batch."""

    window: float
    """Micro batches under way at most."""
    pace: float
    patience: float
    """In typical action times."""
    reserve: float
    age: float
    """How much less urgent the next micro batch is."""
    urgency: Floats
    """By kind and position of a chunk, smaller first."""
    slope: Floats
    """The same, from the first rank to the last."""


class Admission:
    """The rules of one problem."""

    def __init__(self, problem: OrderArrays) -> None:
        self.problem = problem
        held = problem.held[problem.chunk_of].sum(axis=1)
        ways = problem.room[held > 0] / held[held > 0]
        self.room = float(min(problem.microbatches, ways.min(initial=NEVER)))
        """Micro batches that the fullest rank holds whole."""
        self.work = float((problem.f + problem.i + problem.w)[problem.chunk_of].sum(axis=1).max())

    def rule(self, point: AdmissionPoint) -> tuple[BuildRule, Floats]:
        """What the builder takes: tails that make the latest start of every action its urgency."""
        problem = self.problem
        place, rank = problem.position, problem.rank_of / max(1, problem.pp - 1) - 0.5
        stream = self.work * (point.urgency[:, place] + point.slope[:, place] * rank)
        keys = stream[:, :, None] + point.age * self.work * np.arange(problem.microbatches)
        tail = -keys.reshape(3 * problem.chunks, -1) - problem.duration[:, None]
        rule = BuildRule(
            horizon=0.0, reserve=point.reserve, inherit=-NEVER, window=max(1.0, point.window),
            pace=point.pace * self.work, patience=point.patience * problem.unit,
        )  # fmt: skip
        return rule, np.ascontiguousarray(tail.ravel())

    def plain(self) -> Iterator[AdmissionPoint]:
        """Gradients first, later chunks' forwards before earlier ones', weights last."""
        place = np.arange(self.problem.vpp)
        urgency = np.stack((1.0 - 0.1 * place, -1.0 + 0.1 * place, np.full(self.problem.vpp, 99.0)))
        for window in (1.0, 0.75, 1.5):
            yield AdmissionPoint(
                window=round(window * self.room), pace=0.0, patience=0.5, reserve=1.0, age=0.0, urgency=urgency,
                slope=np.zeros_like(urgency),
            )  # fmt: skip

    def learned(self) -> Iterator[AdmissionPoint]:
        """starts.json knows the first and the last chunk of a rank; those between get what lies between."""
        place = np.linspace(0.0, 1.0, self.problem.vpp)
        for entry in json.loads(STARTS.read_text())["admission"]:
            ends = np.array(entry.pop("urgency"))
            urgency = ends[:, :1] * (1 - place) + ends[:, 1:] * place
            slope = np.repeat(np.array(entry.pop("slope"))[:, None], self.problem.vpp, axis=1)
            window = self.room * entry.pop("window")
            yield AdmissionPoint(**entry, window=window, urgency=urgency, slope=slope)

    def fresh(self, dice: random.Random) -> AdmissionPoint:
        """A random point."""
        place, depth = np.arange(self.problem.vpp), 0.5 * dice.choice((0, 1, 1, 3, -1))
        forward = dice.choice((0, 1, 2)) - depth * place
        gradient = dice.choice((-2, -1, 0)) + depth * dice.choice((0, 1, 1)) * place
        weight = np.full(self.problem.vpp, float(dice.choice((0.5, 3, 30, 300))))
        return AdmissionPoint(
            age=dice.choice((0, 0, 0.01, 0.1, 0.5, 1)),
            patience=dice.choice((0, 0.2, 0.5, 0.5, 0.5, 0.8, 1, 1.2)),
            window=dice.uniform(0.8 * self.room, min(self.problem.microbatches, 1.6 * self.room * self.problem.vpp)),
            reserve=dice.choice((0, 0, 1, 0.5)),
            pace=dice.choice((0, 0, 0, 0.5, 0.8, 0.95)),
            urgency=np.stack((forward, gradient, weight)),
            slope=np.zeros((3, self.problem.vpp)),
        )

    def near(self, at: AdmissionPoint, dice: random.Random) -> AdmissionPoint:
        """A step away, and sometimes another along the ranks."""
        step = dice.random()
        if step < 0.4:
            at = replace(at, urgency=_nudged(at.urgency, dice, (0.05, 0.2, 1)))
        elif step < 0.6:
            at = replace(at, patience=max(0.0, at.patience + dice.gauss(0, 0.15)))
        elif step < 0.8:
            at = replace(at, window=max(0.5 * self.room, at.window + dice.choice((-2, -1, 1, 2))))
        elif step < 0.87:
            at = replace(at, reserve=max(0.0, at.reserve + dice.choice((-0.5, 0.5))))
        elif step < 0.94:
            at = replace(at, age=max(0.0, at.age + dice.gauss(0, 0.1)))
        else:
            at = replace(at, pace=max(0.0, at.pace + dice.gauss(0, 0.1)))
        return replace(at, slope=_nudged(at.slope, dice, (0.1, 0.5, 2))) if dice.random() < 0.3 else at


def _nudged(values: Floats, dice: random.Random, sizes: tuple[float, ...]) -> Floats:
    changed = values.copy()
    changed[dice.randrange(len(values)), dice.randrange(values.shape[1])] += dice.gauss(0, 1) * dice.choice(sizes)
    return changed
