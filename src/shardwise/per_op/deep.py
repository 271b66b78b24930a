"""Deep models: a coarse model with few thick layers finds the cut, whole layers are moved until the stages balance.

The stages are filled by `patterns`; the bound is that of `layer_bound`. Nothing here is called optimal.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from shardwise.errors import InfeasibleError
from shardwise.per_op.answer import Answer, Report, Standing, nothing_fits, silent
from shardwise.per_op.balance import Balancer, Shape, first_plans
from shardwise.per_op.chain import Chain, chain_of, own_chain
from shardwise.per_op.deadline import Deadline, OutOfTimeError
from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.exact import Search
from shardwise.per_op.layer_bound import layer_bound
from shardwise.per_op.profiles.table import Profile, Samples
from shardwise.per_op.question import Question
from shardwise.per_op.space import micro_batches
from shardwise.per_op.work import plain_bound

COARSE_OPS = 320
"""Operators of the coarse model, about."""


def coarse(question: Question) -> Question:
    """The same model with fewer, thicker layers: work, weights and activations of several in one."""
    chain, profile = question.chain, question.profile
    period = sum(block.period for block in chain.blocks)
    layers = max(8, min(chain.layers, COARSE_OPS // max(period, 1)))
    factor = chain.layers / layers
    rows = sorted({chain.rows[block.start + step] for block in chain.blocks for step in range(block.period)})
    values = profile.values.copy()
    for column in (0, 1, 4, 5):  # forward, backward, weights, activations
        values[column][..., rows] *= factor
    slower = {
        key: Samples(sizes=found.sizes, seconds=tuple(factor * value for value in found.seconds))
        for key, found in profile.collectives.items()
    }
    thick: Profile = replace(profile, values=values, collectives=slower)
    return replace(
        question,
        profile=thick,
        chain=_rechained(thick, chain, layers),
        flavour=replace(question.flavour, update=False),
    )


def _rechained(profile: Profile, chain: Chain, layers: int) -> Chain:
    if profile.runs:
        share = layers / chain.layers
        fewer = (run._replace(repeats=max(2, round(run.repeats * share))) if run.repeats > 1 else run
                 for run in profile.runs)  # fmt: skip
        return own_chain(replace(profile, runs=tuple(fewer)))
    block = chain.blocks[0]
    names = chain.names[block.start], chain.names[block.start + block.period - 1]
    return chain_of(profile, layers, names if len(chain.blocks) == 1 else None)


def search_deep(question: Question, limit: float = float("inf"), keep: int = 8, report: Report = silent) -> Answer:
    """The best plan found for a deep model."""
    deadline = Deadline(limit)
    balancer = Balancer(question, deadline)
    made = first_plans(balancer, most=2)
    bound = _bound(question)
    interrupted = False
    try:
        report(Standing(best=made[0][0] if made else None, bound=bound, solved=len(balancer.filler.known)))
        for shape in _sketched(question, deadline):
            made.append(balancer.balanced(shape))
    except OutOfTimeError:
        pass
    except KeyboardInterrupt:
        if not made:
            raise
        interrupted = True
    made = sorted(item for item in dict.fromkeys(made) if isfinite(item[0]))
    if not made:
        deadline.check()
        raise InfeasibleError(nothing_fits(question))
    plans = list(dict.fromkeys(balancer.plan(shape) for _, shape in made))[:keep]
    return Answer(
        plan=plans[0],
        cost=evaluate(question, plans[0]),
        bound=min(bound, made[0][0]),
        others=tuple(plans[1:]),
        method="coarse cut and balance",
        solved=len(balancer.filler.known),
        cpu_seconds=deadline.used,
        complete=not interrupted and not deadline.over,
        interrupted=interrupted,
    )


def _bound(question: Question) -> float:
    return min(max(layer_bound(question, size), plain_bound(question, size)) for size in micro_batches(question))


def _sketched(question: Question, deadline: Deadline) -> list[Shape]:
    """Cuts of the coarse model under its stage bounds, one per micro batch that may win."""
    thick = coarse(question)
    factor = question.chain.layers / thick.chain.layers
    shapes = []
    for size, gpus, ends in Search(thick, deadline.left).sketch():
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
