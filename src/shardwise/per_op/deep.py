"""Deep models: a coarse model with few thick layers finds the cut, whole layers are moved until the stages balance.

The stages are filled by `patterns`; the bound is that of `layer_bound`. Nothing here is called optimal.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import numpy as np

from shardwise.errors import InfeasibleError
from shardwise.per_op.answer import (
    Book,
    Deadline,
    OperatorAnswer,
    OutOfTimeError,
    Report,
    Standing,
    nothing_fits,
    silent,
)
from shardwise.per_op.chain import Chain, chain_of, own_chain
from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.exact import ExactSearch
from shardwise.per_op.layer_bound import layer_bound, plain_bound
from shardwise.per_op.profiles.table import Profile
from shardwise.per_op.question import OperatorQuestion
from shardwise.per_op.start import Balancer, Shape, first_plans
from shardwise.per_op.tables import Tables, sample_counts, tables_of

COARSE_OPS = 320
"""Operators of the coarse model, about."""
REPAIRS = 4
"""How often stages are filled for less memory, until a plan fits by evaluation as well as by its tables."""


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


def search_deep(
    question: OperatorQuestion, limit: float = float("inf"), keep: int = 8, report: Report = silent
) -> OperatorAnswer:
    """The best plan found for a deep model."""
    deadline = Deadline(limit)
    book, bound, interrupted, solved = Book(question, keep), _bound(question), False, 0
    for plan in question.pricing.whole_plans(question):
        book.keep(plan)
    tight = question
    try:
        for _ in range(REPAIRS):
            balancer = Balancer(tight, deadline)
            made = [balancer.plan(shape) for _, shape in first_plans(balancer, most=2)]
            over = [max(book.keep(plan).memory) - question.memory for plan in made]
            report(Standing(best=book.best if book.plans else None, bound=bound, solved=len(balancer.filler.known)))
            for value, shape in map(balancer.balanced, _sketched(question, deadline)):
                over += [max(book.keep(balancer.plan(shape)).memory) - question.memory] if isfinite(value) else []
            solved += len(balancer.filler.known)
            if min(over, default=0.0) <= 0:
                break
            tight = replace(tight, memory=tight.memory - 1.1 * min(over))
    except OutOfTimeError:
        pass
    except KeyboardInterrupt:
        if not book.plans:
            raise
        interrupted = True
    if not book.plans:
        deadline.check()
        raise InfeasibleError(nothing_fits(question))
    plan = book.plans[0][1]
    return OperatorAnswer(
        question=question, plan=plan, cost=evaluate(question, plan), bound=min(bound, book.best),
        others=tuple(other for _, other in book.plans[1:]), method="coarse cut and balance", solved=solved,
        cpu_seconds=deadline.used, complete=not interrupted and not deadline.over, interrupted=interrupted,
    )  # fmt: skip


def _bound(question: OperatorQuestion) -> float:
    return min(max(layer_bound(question, size), plain_bound(question, size)) for size in sample_counts(question))


def _sketched(question: OperatorQuestion, deadline: Deadline) -> list[Shape]:
    """Cuts of the coarse model under its stage bounds, one per micro batch that may win."""
    thick = coarse(question)
    factor = question.chain.layers / thick.chain.layers
    shapes = []
    for size, gpus, ends in ExactSearch(thick, deadline.left).sketch():
        moved = [_thin(question.chain, thick.chain, end, factor) for end in ends]
        spans = [b - a for a, b in zip([0, *moved[:-1]], moved, strict=True)]
        if min(spans) > 0:
            shapes.append((size, gpus, tuple(moved)))
    return shapes


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
