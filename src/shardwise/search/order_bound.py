"""What no cut over one order of passes can beat, for many strategies at once.

A path through the actions of an order runs F of chunk c so many times, and B. No cut is faster than any path, nor than
a mean of paths, which runs F a_c times and B b_c times on average. Over chunk c the mean takes g_c = a_c f + b_c b
seconds for every layer there; so, however L layers are cut into C chunks of one or more,

    makespan >= (L - C) min g + sum of g + what the mean takes of ends, sends and messages

The linear programme of `partition.bound` finds the weights that are best for one strategy. They bound all strategies
over the same order, and nearly as well, since orders decide and costs hardly do.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from shardwise.estimate.passes import order_of
from shardwise.inputs.strategy import Strategy
from shardwise.partition.bound import Bounder
from shardwise.partition.graph import Ready
from shardwise.partition.problem import Choice, End, Kind, KindRun, Problem
from shardwise.pipeline.action import B, F
from shardwise.search.stage_work import Choices, PricedPieces
from shardwise.search.table import Floats, Table

RELAXATIONS = 12
"""Solutions of the linear programme at most."""
PATIENCE = 60.0
"""CPU seconds after which it is given up: far more than it needs."""


class MeanPath(NamedTuple):
    """How often paths run F and B of every chunk, and how many messages they wait for, on average."""

    forward: Floats
    backward: Floats
    messages: float


class Ends(NamedTuple):
    """Forward and backward of a layer, of what stands before all layers and of what stands after them."""

    layer: tuple[float, float]
    first: tuple[float, float]
    last: tuple[float, float]


def mean_path(strategy: Strategy, layers: int, ends: Ends, hop: float, shown: float) -> MeanPath:
    """The mean of paths that bounds a strategy's cuts best, memory aside. `shown`: what a send adds to its pass."""
    f, b = ends.layer
    kind = Kind(name="layer", choices=(Choice(name="", f=f, i=b, w=0.0, activation=0.0),), static=0.0)
    head, tail = (End(f=one[0], i=one[1], w=0.0) for one in (ends.first, ends.last))
    ready = Ready(Problem(
        pp=strategy.pp, vpp=strategy.vpp, microbatches=strategy.microbatches, order=order_of(strategy), hop=hop,
        runs=(KindRun(kind=kind, count=layers),), head=head, tail=tail,
    ))  # fmt: skip
    ready.fixed_time[[F, B]] += shown
    share, longer = divmod(layers, ready.chunks)
    even = share + (np.arange(ready.chunks) < longer)
    bounder = Bounder(
        ready=ready, incumbent=even[:, None].astype(np.int32), deadline=time.process_time() + PATIENCE,
        relaxations=RELAXATIONS, found=lambda _bound, _counts: False,
    )  # fmt: skip
    bounder.relax(ordered=False)
    found = bounder.mean_path()
    if found is None:
        return MeanPath(np.zeros(ready.chunks), np.zeros(ready.chunks), 0.0)
    return MeanPath(found.times[F], found.times[B], found.lag / hop if hop else 0.0)


def ends_of(table: Table, priced: PricedPieces, cell: int) -> Ends:
    """Of a base, nothing recomputed."""
    both = np.stack((priced.forward[cell], priced.backward[cell, :, 0]))
    numbers, kinds = np.array([piece.number for piece in table.pieces]), len(table.layers)
    whole = numbers * both
    layer, last = whole[:, :kinds].sum(axis=1) / numbers[:kinds].sum(), whole[:, kinds + 1 :].sum(axis=1)
    return Ends(*((float(one[0]), float(one[1])) for one in (layer, both[:, kinds], last)))


def least_passes(
    path: MeanPath, table: Table, priced: PricedPieces, cell: int, choices: Choices, hop: float, shown: float
) -> Floats:
    """Seconds of the passes of every cut at least, by choice."""
    numbers, kinds = np.array([piece.number for piece in table.pieces]), len(table.layers)
    plain = (choices.layers > 0) | choices.mix
    forward = np.repeat(priced.forward[cell][:, None], len(choices.recipe), axis=1)
    backward = priced.backward[cell][:, np.where(plain, 0, choices.recipe)]
    again = priced.backward[cell][:, choices.recipe] - priced.backward[cell][:, [0]]
    own = slice(0, kinds)
    of_chunk = forward[own, :, None] * path.forward + backward[own, :, None] * path.backward
    lowest = of_chunk.min(axis=2)
    found = (numbers[own, None] * lowest).sum(axis=0)
    # every chunk has a layer of some kind, one that is recomputed where the first ones are
    found += (of_chunk - lowest[:, :, None]).min(axis=0).sum(axis=1)
    found += np.where(choices.layers > 0, np.maximum(again[own].min(axis=0), 0.0), 0.0) * path.backward.sum()
    for at, chunk in ((slice(kinds, kinds + 1), 0), (slice(kinds + 1, None), -1)):
        ahead, back = ((numbers[at, None] * one[at]).sum(axis=0) for one in (forward, backward))
        found += ahead * path.forward[chunk] + back * path.backward[chunk]
    sends = shown * (path.forward.sum() + path.backward.sum())
    return np.asarray(found + sends + path.messages * hop)
