"""What no cut of one strategy into chunks can beat: a lower bound on its passes that a solver proves.

The problem is a relaxation of what the estimate computes, so that its bound holds for the estimate: times are tangents
that add up and are never above it (`table`), a rank's memory is what the bounds of the screen count (`memory_bound`).
One chunk a rank is bounded by the dynamic programme; else by a linear programme with longest paths as cuts, in which
layers may be split and kinds of layers may stand in any order.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import groupby

import numpy as np

from shardwise.cost.layer import PLAIN, Block, Recipe
from shardwise.cost.stage import Run, chunk_of
from shardwise.cost.update import data_groups
from shardwise.ops.layer import layer_kinds
from shardwise.partition import dynamic
from shardwise.partition.bound import Bounder
from shardwise.partition.graph import Ints, Ready
from shardwise.partition.problem import Choice, End, Kind, Problem
from shardwise.partition.problem import Run as Layers
from shardwise.plan.estimate import hop_seconds, sharding_seconds
from shardwise.plan.passes import freed_early, order_of
from shardwise.plan.search.frame import buffers_of, rates_of
from shardwise.plan.search.partitions import tail_of
from shardwise.plan.search.table import backward, ceiling, tangent
from shardwise.plan.setup import Setup, block_of
from shardwise.simulate.action import W

GIB = 2.0**30
"""Bytes are given to the solver in these, so that its tolerance means nothing."""
PATIENCE = 60.0
"""CPU seconds after which a solver is given up: far more than it needs."""
ROUNDS = 2
"""Solutions of the linear programme, in twenties."""
ROUNDED = 1 - 1e-9
"""Sums are taken in another order than the estimate takes them."""


def least_passes(setup: Setup, limit: float, enough: float = float("inf")) -> float:
    """Seconds of the passes that every cut takes which fits; infinite: none fits. Stops once `enough` is proven."""
    ready = _ready(setup, limit)
    if dynamic.applies(ready):
        cut = dynamic.best_cut(ready)
        return float("inf") if cut is None else cut.bound * ROUNDED
    bounder = Bounder(
        ready=ready, incumbent=_even(setup, ready), deadline=time.process_time() + PATIENCE, rounds=ROUNDS,
        found=lambda bound, _: bound >= enough,
    )  # fmt: skip
    bounder.relax(ordered=False)
    return float("inf") if bounder.infeasible else bounder.bound * ROUNDED


def _even(setup: Setup, ready: Ready) -> Ints:
    """The layers of every chunk as they are, by kind, each run the first way."""
    kinds = layer_kinds(setup.model)[: setup.model.layers]
    place = {kind: index * (ready.options // len(ready.run_counts)) for index, kind in enumerate(dict.fromkeys(kinds))}
    counts = np.zeros((ready.chunks, ready.options), dtype=np.int32)
    owners = np.repeat(np.arange(ready.chunks), setup.layers)
    np.add.at(counts, (owners, [place[kind] for kind in kinds]), 1)
    return counts


def _ready(setup: Setup, limit: float) -> Ready:
    strategy, recipes = setup.strategy, _recipes(setup)
    order = order_of(strategy)
    assert order is not None  # noqa: S101 - only such strategies are cut
    relaxed, chain = _Relaxed(setup, split=not order.fused), strategy.vpp == 1 and order.fused
    kinds = layer_kinds(setup.model)[: setup.model.layers]
    runs = [(kind, len(list(same))) for kind, same in groupby(kinds)] if chain else Counter(kinds).items()
    ready = Ready(Problem(
        pp=strategy.pp, vpp=strategy.vpp, microbatches=strategy.microbatches, order=order, hop=hop_seconds(setup),
        runs=tuple(
            Layers(kind=relaxed.kind([block_of(setup, kind, recipe) for recipe in recipes]), count=count)
            for kind, count in runs
        ),
        head=relaxed.end((Run(setup.chunks[0].runs[0].block, 1),)), tail=relaxed.end(tail_of(setup)),
        limits=(limit / GIB,), static=relaxed.beside(recipes),
        # of a mix it is not known how much is recomputed: then I frees all that there is
        free_at_input_grad=freed_early(setup.chunks) if len(recipes) == 1 else 1.0,
    ))  # fmt: skip
    ready.fixed_time[np.arange(4) != W] += hop_seconds(setup) * (1 - setup.runtime.overlap.p2p)
    return ready


def _recipes(setup: Setup) -> tuple[Recipe, ...]:
    """The ways to run a layer; which layers of a mix or a block are recomputed is left open."""
    recompute = setup.strategy.recompute
    recipe = Recipe(recompute.full, frozenset(recompute.modules), recompute.group)
    if not recompute.active:
        return (PLAIN,)
    return (PLAIN, recipe) if recompute.layers else (recipe,)


class _Relaxed:
    """Times and bytes of blocks as numbers that add up to no more than the estimate has."""

    def __init__(self, setup: Setup, *, split: bool) -> None:
        self.setup, self.split = setup, split
        kinds = layer_kinds(setup.model)[: setup.model.layers]
        main = block_of(setup, max(dict.fromkeys(kinds), key=kinds.count), PLAIN)
        self.ahead, self.back, self.weights = tangent(main.f), tangent(backward(main)), tangent(main.w)
        self.rates = rates_of(setup, setup.strategy, chunk_of((Run(main, 1),), 0.0))
        self.stretch = 1 + setup.runtime.memory.fragmentation
        self.groups = data_groups(setup.network, setup.strategy)
        self.on_device = 0.0 if setup.strategy.offload == "activations" else 1.0

    def kind(self, blocks: list[Block]) -> Kind:
        """A kind of layer with its ways to run."""
        choices = [self.end((Run(block, 1),)) for block in blocks]
        return Kind(
            name=blocks[0].name, static=choices[0].static,
            choices=tuple(Choice(name="", f=one.f, i=one.i, w=one.w, activation=one.activation) for one in choices),
        )  # fmt: skip

    def end(self, runs: tuple[Run, ...]) -> End:
        """Blocks that stay together."""
        shown = sharding_seconds(self.setup, runs, self.groups)
        passes = np.array([[count] for _, count in runs]).T @ np.array([self._passes(block) for block, _ in runs])
        f, i, w = passes[0].tolist()
        return End(
            f=f + shown[0], i=i + shown[1], w=w,
            static=sum(count * self._lasting(block) for block, count in runs) / GIB,
            activation=self.stretch * self.on_device * sum(count * block.walk.kept for block, count in runs) / GIB,
        )  # fmt: skip

    def _passes(self, block: Block) -> tuple[float, float, float]:
        """F, I and W. I is what W leaves of both at the most; where both are one pass, all of it."""
        back = self.back.of(backward(block))
        if not self.split:
            return self.ahead.of(block.f), back, 0.0
        return self.ahead.of(block.f), back - ceiling(block.w), self.weights.of(block.w)

    def _lasting(self, block: Block) -> float:
        """Bytes while passes run: of a first micro batch, gradients are not there yet."""
        several = self.stretch if self.setup.strategy.microbatches > 1 else 0.0
        each = [lasts + several * made for lasts, made in zip(self.rates.lasting, self.rates.gradients, strict=True)]
        return each[0] * block.params + each[1] * block.expert_params

    def beside(self, recipes: tuple[Recipe, ...]) -> tuple[float, ...]:
        """What every rank needs beside its layers, in the unit of the problem."""
        setup, tail = self.setup, tail_of(self.setup)
        kinds = layer_kinds(setup.model)[: setup.model.layers]
        layers = [block_of(setup, kind, recipe) for kind in dict.fromkeys(kinds) for recipe in recipes]
        working = self.on_device * max(0.0, min(block.walk.backward - block.walk.kept for block in layers))
        fixed = buffers_of(setup, layers) + self.rates.fixed + self.stretch * self.rates.gathered
        found = [fixed + self.stretch * working] * setup.strategy.pp
        if setup.strategy.vpp == 1:  # the last rank's highest point is in the loss
            loss = tail[-1].block.walk
            found[-1] = fixed + self.stretch * self.on_device * (loss.backward - loss.kept)
        return tuple(one / GIB for one in found)
