"""One strategy in full: every cut into stages that might pay, each estimated with its pipeline replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from shardwise.errors import ShardwiseError
from shardwise.inputs.layers import is_uneven, with_layers
from shardwise.inputs.strategy import Strategy
from shardwise.plan.estimate import Estimate, assemble
from shardwise.plan.search.cuts import cuts
from shardwise.plan.search.types import Question
from shardwise.plan.setup import setup_of


class Refined(NamedTuple):
    """The best cut of one strategy."""

    strategy: Strategy
    seconds: float
    total_bytes: float
    mfu: float
    fits: bool
    simulated: int


def refine(question: Question, strategy: Strategy) -> Refined | None:
    """The fastest cut that fits; where none does, the leanest. None: the strategy cannot be simulated."""
    even = with_layers(question.model.layers, strategy) if is_uneven(question.model.layers, strategy) else strategy
    try:
        first = _estimated(question, even)
    except ShardwiseError:
        return None
    found = [_refined(question, first)]
    if strategy.pp > 1:
        setup = setup_of(question.model, question.cluster, even, question.runtime)
        held = tuple(rank.in_flight for rank in first.memory)
        for layers in cuts(setup, held, question.memory_limit):
            other = replace(even, layers=layers)
            found.append(_refined(question, _estimated(question, other)))
    best = min(found, key=lambda one: (not one.fits, one.seconds if one.fits else one.total_bytes, one.strategy.layers))
    return best._replace(simulated=len(found))


def _estimated(question: Question, strategy: Strategy) -> Estimate:
    return assemble(setup_of(question.model, question.cluster, strategy, question.runtime))


def _refined(question: Question, estimate: Estimate) -> Refined:
    host = estimate.host_bytes <= question.cluster.host_memory
    fits = host and estimate.total_bytes <= question.memory_limit
    return Refined(estimate.strategy, estimate.iteration_seconds, estimate.total_bytes, estimate.mfu, fits, 1)
