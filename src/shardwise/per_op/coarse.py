"""Models of hundreds of layers: a coarse model with few thick layers finds the cut, whole layers are moved until the
stages balance. The bounds of all stages of such a model would take too long and too much room.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import numpy as np

from shardwise.per_op.answer import Book, Deadline
from shardwise.per_op.chain import Chain, chain_of, own_chain
from shardwise.per_op.profiles.table import Profile
from shardwise.per_op.question import OperatorQuestion
from shardwise.per_op.stages import StageBook
from shardwise.per_op.start import Balancer, Shape, first_plans
from shardwise.per_op.tables import Tables, sample_counts, tables_of
from shardwise.per_op.trial import Trial

COARSE_OPS = 320
"""Operators of the coarse model, about."""
REPAIRS = 4
"""How often stages are filled for less memory, until a plan fits by evaluation as well as by its tables."""
NEAR = 0.05
"""Micro batches so near to the best bound are looked at."""


class _Thick:
    """The tables of a pricing with several layers in one; plans are never evaluated so."""

    def __init__(self, question: OperatorQuestion, factor: float) -> None:
        self.inner, self.question, self.factor = question.pricing, question, factor
        self.name, self.schedule, self.zero = self.inner.name, self.inner.schedule, self.inner.zero
        chain = question.chain
        self.rows = sorted({chain.rows[block.start + step] for block in chain.blocks for step in range(block.period)})
        self.in_flight, self.pace, self.beside = self.inner.in_flight, self.inner.pace, self.inner.beside
        self.evaluate, self.whole_plans = self.inner.evaluate, self.inner.whole_plans
        self.pass_costs, self.iteration = self.inner.pass_costs, self.inner.iteration

    def tables(self, question: OperatorQuestion, samples: int, gpus: int) -> Tables:
        found = tables_of(self.question, samples, gpus)
        changed = {}
        for name in ("forward", "work", "act", "made", "static", "weights"):
            column = getattr(found, name).copy()
            column[:, self.rows] *= self.factor
            changed[name] = column
        cross, back = found.cross * self.factor, found.cross_back * self.factor
        return replace(found, rows=np.array(question.chain.rows), cross=cross, cross_back=back, **changed)


def coarse(question: OperatorQuestion) -> OperatorQuestion:
    """The same model with fewer, thicker layers: work, weights and activations of several in one."""
    chain = question.chain
    period = sum(block.period for block in chain.blocks)
    layers = max(8, min(chain.layers, COARSE_OPS // max(period, 1)))
    thick = _Thick(question, chain.layers / layers)
    return replace(question, chain=_rechained(question.profile, chain, layers), pricing=thick)


def _rechained(profile: Profile, chain: Chain, layers: int) -> Chain:
    if profile.runs:
        share = layers / chain.layers
        fewer = (run._replace(repeats=max(2, round(run.repeats * share))) if run.repeats > 1 else run
                 for run in profile.runs)  # fmt: skip
        return own_chain(replace(profile, runs=tuple(fewer)))
    block = chain.blocks[0]
    names = chain.names[block.start], chain.names[block.start + block.period - 1]
    return chain_of(profile, layers, names if len(chain.blocks) == 1 else None)


def coarse_plans(question: OperatorQuestion, book: Book, deadline: Deadline) -> None:
    """Write down the plans that a coarse cut leads to."""
    tight = question
    for _ in range(REPAIRS):
        balancer = Balancer(tight, deadline)
        shapes = [shape for _, shape in first_plans(balancer)]
        shapes += [shape for value, shape in map(balancer.balanced, _sketched(question, deadline)) if isfinite(value)]
        over = [max(book.keep(balancer.plan(shape)).memory) - question.memory for shape in shapes]
        if min(over, default=0.0) <= 0:
            return
        tight = replace(tight, memory=tight.memory - 1.1 * min(over))


def _sketched(question: OperatorQuestion, deadline: Deadline) -> list[Shape]:
    """Cuts of the coarse model under its stage bounds, one per micro batch that may win."""
    thick = coarse(question)
    factor = question.chain.layers / thick.chain.layers
    shapes = []
    for size, gpus, ends in _cuts(thick, deadline):
        moved = [_thin(question.chain, thick.chain, end, factor) for end in ends]
        spans = [b - a for a, b in zip([0, *moved[:-1]], moved, strict=True)]
        if min(spans) > 0:
            shapes.append((size, gpus, tuple(moved)))
    return shapes


def _cuts(thick: OperatorQuestion, deadline: Deadline) -> list[Shape]:
    """The best cuts under the bounds alone, for micro batches near the best bound."""
    stages = StageBook(thick, deadline)
    trials = [Trial(thick, size, stages, deadline) for size in sample_counts(thick)]
    trials = [trial for trial in trials if np.isfinite(trial.bound)]
    for wider in (0.25, 0.5, 1.0, 3.0, 10.0):
        for trial in trials:
            trial.survey((1 + wider) * trial.bound)
        least = min((trial.bound for trial in trials), default=0.0)
        near = [trial for trial in trials if trial.bound <= (1 + NEAR) * least]
        found = [_shape(trial) for trial in near if trial.open((1 + NEAR) * trial.bound)]
        if any(found):
            return [shape for shape in found if shape]
    return []


def _shape(trial: Trial) -> Shape | None:
    cuts = trial.cuts
    path = [cuts.cut(arc) for arc in cuts.least().arcs] if cuts else []
    return (trial.samples, tuple(c.gpus for c in path), tuple(c.end for c in path)) if path else None


def _thin(chain: Chain, thick: Chain, end: int, factor: float) -> int:
    """The operator of the model where a cut of the coarse model falls, at a whole layer."""
    shift = 0
    for own, coarse_block in zip(chain.blocks, thick.blocks, strict=True):
        if end <= coarse_block.start:
            return end + shift
        if end < coarse_block.end:
            layers = round((end - coarse_block.start) / coarse_block.period * factor)
            return own.start + min(layers, own.repeats) * own.period
        shift = own.end - coarse_block.end
    return end + shift
