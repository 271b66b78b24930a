"""What no cut of one strategy into chunks can beat: a lower bound on its passes that a solver proves.

The problem is a relaxation of what the estimate computes, so that its bound holds for the estimate: times are tangents
that add up and are never above it (`table`), a rank's memory is what the bounds of the screen count (`memory_bound`).
One chunk a rank is bounded by the dynamic programme; else by a linear programme with longest paths as cuts, in which
layers may be split and kinds of layers may stand in any order.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

import numpy as np

from shardwise.cost.chunk import BlockRun, chunk_of, combined
from shardwise.cost.layer import PLAIN, Block, Recipe
from shardwise.cost.seconds import Seconds
from shardwise.cost.update import Beside, Update, beside_of, data_groups, hidden
from shardwise.estimate.passes import behind_passes, freed_early, hop_seconds, hops_of, order_of
from shardwise.estimate.setup import Setup, block_of, rank_limits, setup_of
from shardwise.inputs.layers import is_uneven, with_layers
from shardwise.inputs.strategy import Strategy
from shardwise.ops.layer import layer_kinds
from shardwise.partition import dynamic
from shardwise.partition.bound import Bounder
from shardwise.partition.graph import Floats, Ints, Path, Ready
from shardwise.partition.milp import Level
from shardwise.partition.problem import Choice, End, Kind, KindRun, Problem
from shardwise.pipeline.action import B, F, Schedule, W
from shardwise.search.cuts import cuts_freely, ready_of, tail_of
from shardwise.search.frame import Rated, buffers_of, mean_update, rates_of
from shardwise.search.question import Question
from shardwise.search.recomputes import AS_NEEDED
from shardwise.search.table import backward, tangent

GIB = 2.0**30
"""Bytes are given to the solver in these, so that its tolerance means nothing."""
PATIENCE = 60.0
"""CPU seconds after which a solver is given up: far more than it needs."""
RELAXATIONS = {"quick": 8, "whole": 40, "deep": 40}
"""Solutions of the linear programme at most: what is soon ruled out takes two or three."""
ROUNDS = 2
"""Solutions with whole layers."""
DEEP: tuple[tuple[Level, int], ...] = (("ranks", 100), ("chunks", 100))
"""What is made whole, and nodes of one solution."""
SMALL = 512
"""Chunks times micro batches up to which whole layers are tried: beyond, it takes seconds."""
HALVINGS = 40
ROUNDED = 1 - 1e-9
"""Sums are taken in another order than the estimate takes them."""


Paths = dict[Schedule, list[tuple[Floats, float]]]
"""By order, paths that bound other strategies over it: how often they run each pass, and their messages."""
Effort = Literal["quick", "whole", "deep"]
"""How hard to try; deep: with the layers of every rank, then of every chunk whole."""


@dataclass(slots=True)
class Lessons:
    """What proofs teach each other."""

    paths: Paths = field(default_factory=dict)
    passes: dict[Strategy, list[tuple[Rated, float]]] = field(default_factory=dict)
    """By strategy, however its states are sharded: the least passes that were proven, and the bytes they need."""

    def known(self, strategy: Strategy, rates: Rated) -> float:
        """The passes at least, by what a strategy that needs no more memory has."""
        found = self.passes.get(_unsharded(strategy), [])
        return max((passes for bytes_, passes in found if _leaner(bytes_, rates)), default=0.0)

    def learn(self, strategy: Strategy, rates: Rated, passes: float) -> None:
        if strategy.zero <= 1:
            self.passes.setdefault(_unsharded(strategy), []).append((rates, passes))


def _unsharded(strategy: Strategy) -> Strategy:
    """Above ZeRO 1 sharding shows in the passes themselves."""
    return replace(strategy, zero=0, zero_group=0) if strategy.zero <= 1 else strategy


def _leaner(one: Rated, other: Rated) -> bool:
    a, b = ((*rates.static, *rates.gradients, rates.gathered, rates.fixed) for rates in (one, other))
    return all(x <= y for x, y in zip(a, b, strict=True))


def prove(question: Question, strategy: Strategy, enough: float, lessons: Lessons, effort: Effort = "whole") -> float:
    """What no cut of the strategy that fits beats; 0 where its cuts are not the solver's to choose."""
    if strategy.pp == 1 or not cuts_freely(question, strategy):
        return 0.0
    layers = question.model.depth
    even = with_layers(layers, strategy) if is_uneven(layers, strategy) else strategy
    setup = setup_of(question.model, question.cluster, even, question.runtime)
    return least_seconds(setup, question.memory_limit, enough, lessons, effort)


def least_seconds(
    setup: Setup, limit: float, enough: float = float("inf"), lessons: Lessons | None = None, effort: Effort = "whole"
) -> float:
    """Seconds of an iteration that every cut takes which fits; infinite: none fits. Stops once `enough` is proven.

    `lessons` make the next proof shorter, and are added to.
    """
    strategy, kinds, lessons = setup.strategy, setup.kinds or (setup,), lessons or Lessons()
    fixed = setup.runtime.overheads.beside(strategy.microbatches, strategy.zero)
    wholes = [chunk_of(tuple(run for chunk in kind.chunks for run in chunk.runs), 0.0) for kind in kinds]
    updates = [mean_update(kind, strategy, whole) for kind, whole in zip(kinds, wholes, strict=True)]
    update = Update(*map(min, zip(*updates, strict=True)))
    # what is computed again may send, too, but how much is left open
    besides = [
        beside_of(data_groups(kind.network, strategy), strategy, whole.f.wire, whole.i.wire + whole.w.wire)
        for kind, whole in zip(kinds, wholes, strict=True)
    ]
    # on several kinds, how much of the model sends on which is left open, too
    beside = besides[0] if len(kinds) == 1 else Beside(min(one.taken for one in besides))

    def iteration(passes: float) -> float:
        """Never falls when the passes take longer (`screen`)."""
        shown = hidden(update, beside, strategy, setup.runtime, passes).exposed
        return passes * strategy.straggler + shown + fixed

    relaxed = [_Relaxed(kind) for kind in kinds]
    passes = 0.0 if setup.kinds else lessons.known(strategy, relaxed[0].rates)
    # a little more than enough, so that rounding does not leave it a little less
    wanted = _inverse(iteration, enough * (1 + 1e-9))
    if passes < wanted:
        passes = max(passes, _least_passes(setup, relaxed, limit, wanted, lessons.paths, effort))
        if not setup.kinds:
            lessons.learn(strategy, relaxed[0].rates, passes)
    return iteration(passes) if passes < float("inf") else passes


def _least_passes(
    setup: Setup, relaxed: list[_Relaxed], limit: float, enough: float, paths: Paths, effort: Effort
) -> float:
    """Seconds of the passes of every cut that fits; `enough` where that much is proven of longer ones. `relaxed`: of
    every kind of GPU.
    """
    ready, firsts = _ready(setup, relaxed, limit), [_first(one) for one in relaxed]
    if dynamic.applies(ready):  # nothing is left to be made whole
        return ROUNDED * dynamic.least(ready, enough / ROUNDED**2, firsts) if effort != "deep" else 0.0
    if setup.kinds:  # the linear programme knows one time of a layer
        return 0.0
    first = firsts[0]
    longest = _longest(ready, first.layers, enough) if first else 0.0
    bounder = Bounder(
        ready=ready, incumbent=_even(setup, ready), deadline=time.process_time() + PATIENCE, rounds=ROUNDS,
        relaxations=RELAXATIONS[effort], begins=(first.layers, max(longest - first.layers, 1.0)) if first else None,
        found=lambda bound, _: bound * ROUNDED >= enough,
    )  # fmt: skip
    _relax(bounder, paths)
    if effort == "deep" and not bounder.infeasible and ready.chunks * ready.problem.microbatches <= SMALL:
        bounder.tighten(DEEP)
    found = float("inf") if bounder.infeasible else bounder.bound * ROUNDED
    return min(found, enough) if first else found  # longer chunks than were looked at take that long


def _longest(ready: Ready, first: int, passes: float) -> float:
    """Layers that a chunk has at most, where its rank takes no longer than all passes; every other chunk has one."""
    plain, again = (ready.option_time[[F, B], k::2].sum(axis=0).min() for k in (0, 1))
    room = passes / ready.problem.microbatches * (1 + 1e-9) - (ready.problem.vpp - 1) * min(plain, again)
    layers = float(ready.run_counts.sum()) - (ready.chunks - 1)
    return min(layers, float(np.floor((room - first * (again - plain)) / plain))) if plain > 0 else layers


def _inverse(iteration: Callable[[float], float], seconds: float) -> float:
    """The passes, or a little more, with which an iteration takes so long."""
    low, high = 0.0, seconds
    for _ in range(HALVINGS) if seconds < float("inf") else ():
        middle = (low + high) / 2
        low, high = (low, middle) if iteration(middle) >= seconds else (middle, high)
    return high


def _relax(bounder: Bounder, paths: Paths) -> None:
    ready, hop = bounder.ready, bounder.ready.problem.hop
    known = [Path(time=0.0, times=times, lag=messages * hop) for times, messages in paths.get(ready.schedule, [])]
    bounder.relax(ordered=False, known=known)
    binding = bounder.binding()
    if binding:
        paths[ready.schedule] = [(path.times, path.lag / hop if hop else 0.0) for path in binding]


def _even(setup: Setup, ready: Ready) -> Ints:
    """The layers of every chunk as they are, by kind, each run the first way but for the first ones of a block."""
    block = len(ready.run_of) > len(ready.run_counts) and setup.strategy.recompute.layers != AS_NEEDED
    first = setup.strategy.recompute.layers[0] if block else 0
    kinds = layer_kinds(setup.model)[: setup.model.depth]
    place = {kind: index * (ready.options // len(ready.run_counts)) for index, kind in enumerate(dict.fromkeys(kinds))}
    counts = np.zeros((ready.chunks, ready.options), dtype=np.int32)
    owners = np.repeat(np.arange(ready.chunks), setup.layers)
    for owner, kind in zip(owners.tolist(), kinds, strict=True):
        counts[owner, place[kind] + bool(counts[owner].sum() < first)] += 1
    return counts


def _ready(setup: Setup, relaxed: list[_Relaxed], limit: float) -> Ready:
    shares = dict(zip(setup.kind_of, rank_limits(setup, limit), strict=True)) if setup.kind_of else {}
    limits = {id(setup): limit, **{id(setup.kinds[kind]): own for kind, own in shares.items()}}
    of_kind = {id(one.setup): one for one in relaxed}
    ready = ready_of(setup, lambda kind: _plain_ready(of_kind[id(kind)], limits[id(kind)]))
    shows, fused = 1 - setup.runtime.overlap.p2p, relaxed[0].order.fused
    ready.fixed_time[[F, B] if fused else [F, W]] += np.array(hops_of(setup)) * shows
    return ready


def _plain_ready(relaxed: _Relaxed, limit: float) -> Ready:
    setup, order = relaxed.setup, relaxed.order
    strategy, chain = setup.strategy, setup.strategy.vpp == 1 and order.fused
    kinds = layer_kinds(setup.model)[: setup.model.depth]
    runs = [(kind, len(list(same))) for kind, same in groupby(kinds)] if chain else Counter(kinds).items()
    priced = {
        kind: relaxed.kind([block_of(setup, kind, recipe) for recipe in relaxed.recipes])
        for kind in dict.fromkeys(kinds)
    }
    return Ready(Problem(
        pp=strategy.pp, vpp=strategy.vpp, microbatches=strategy.microbatches, order=order, hop=hop_seconds(setup),
        runs=tuple(KindRun(kind=priced[kind], count=count) for kind, count in runs),
        head=relaxed.end((BlockRun(setup.chunks[0].runs[0].block, 1),)), tail=relaxed.end(tail_of(setup)),
        limits=(limit / GIB,), static=relaxed.beside(),
        free_at_input_grad=relaxed.freed,
    ))  # fmt: skip


def _recipes(setup: Setup, *, chain: bool) -> tuple[Recipe, ...]:
    """The ways to run a layer: which ones of a mix recompute is left open; a chain counts its first ones itself."""
    recompute = setup.strategy.recompute
    if not recompute.active or (chain and _begins(setup)):
        return (PLAIN,)
    return (PLAIN, _recipe(setup)) if recompute.layers else (_recipe(setup),)


def _recipe(setup: Setup) -> Recipe:
    recompute = setup.strategy.recompute
    return Recipe(recompute.full, frozenset(recompute.modules), recompute.group)


def _begins(setup: Setup) -> bool:
    """Whether the first N layers of every chunk are recomputed."""
    return setup.strategy.recompute.layers not in {(), AS_NEEDED}


def _first(relaxed: _Relaxed) -> dynamic.First | None:
    """The first N layers of every chunk where those are recomputed: as fast and as lean as any kind of layer has it."""
    setup, recompute = relaxed.setup, relaxed.setup.strategy.recompute
    if not _begins(setup):
        return None
    kinds = dict.fromkeys(layer_kinds(setup.model)[: setup.model.depth])
    pairs = [
        [relaxed.end((BlockRun(block_of(setup, kind, one), 1),)) for one in (PLAIN, _recipe(setup))] for kind in kinds
    ]
    return dynamic.First(
        recompute.layers[0],
        max(0.0, min(again.i + again.w - plain.i - plain.w for plain, again in pairs)),
        max(0.0, *(plain.activation - again.activation for plain, again in pairs)),
    )


def _together(runs: Iterable[BlockRun]) -> list[BlockRun]:
    """The runs of one block as one."""
    found: dict[int, BlockRun] = {}
    for block, count in runs:
        found[id(block)] = BlockRun(block, count + (found[id(block)].repeat if id(block) in found else 0))
    return list(found.values())


def _times(passes: list[Seconds], count: int) -> list[Seconds]:
    return [Seconds(*(count * part for part in one)) for one in passes]


class _Relaxed:
    """Times and bytes of blocks as numbers that add up to no more than the estimate has."""

    def __init__(self, setup: Setup) -> None:
        order = order_of(setup.strategy)
        assert order is not None  # noqa: S101 - only such strategies are cut
        self.setup, self.order, self.split = setup, order, not order.fused
        self.recipes = _recipes(setup, chain=setup.strategy.vpp == 1 and order.fused)
        self.behind = behind_passes(setup)
        kinds = layer_kinds(setup.model)[: setup.model.depth]
        main = block_of(setup, max(dict.fromkeys(kinds), key=kinds.count), PLAIN)
        # at the passes of the whole model: ends of many kernels and few launches count for what they are in its sum
        runs = _together(run for chunk in setup.chunks for run in chunk.runs)
        passes = zip(*(_times(self._covered(block), count) for block, count in runs), strict=True)
        self.tangents = [tangent(combined(*one)) for one in passes]
        self.rates = rates_of(setup, setup.strategy, chunk_of((BlockRun(main, 1),), 0.0))
        self.stretch = 1 + setup.runtime.memory.fragmentation
        self.on_device = 0.0 if setup.strategy.offload == "activations" else 1.0
        blocks = [block_of(setup, kind, recipe) for kind in dict.fromkeys(kinds) for recipe in self.recipes]
        self.freed = max(freed_early((chunk_of((BlockRun(block, 1),), 0.0),)) for block in blocks)
        """Share of a layer's bytes that I frees, at most."""

    def _covered(self, block: Block) -> list[Seconds]:
        """F, I and W (or F and both in one) with the traffic that runs behind them."""
        (gather, scatter), (copy_in, copy_out) = self.behind.traffic(block), self.behind.copied(block)
        again = combined(block.i, block.recompute)
        passes = [(block.f, gather, copy_in), (again, gather, copy_in), (block.w, scatter, copy_out)]
        if not self.split:
            passes[1:] = [(backward(block), gather + scatter, copy_in + copy_out)]
        return [
            Seconds(gemm=self.behind.over(seconds.device + copies, traffic, seconds.wire), host=seconds.host)
            for seconds, traffic, copies in passes
        ]

    def kind(self, blocks: list[Block]) -> Kind:
        """A kind of layer with its ways to run."""
        choices = [self.end((BlockRun(block, 1),)) for block in blocks]
        return Kind(
            name=blocks[0].name, static=choices[0].static,
            choices=tuple(Choice(name="", f=one.f, i=one.i, w=one.w, activation=one.activation) for one in choices),
        )  # fmt: skip

    def end(self, runs: tuple[BlockRun, ...]) -> End:
        """Blocks that stay together."""
        f, i, w = (sum(count * self._passes(block)[k] for block, count in runs) for k in range(3))
        return End(
            f=f, i=i, w=w, static=sum(count * self._static(block) for block, count in runs) / GIB,
            activation=self.stretch * self.on_device * self._kept(runs) / GIB,
        )  # fmt: skip

    def _kept(self, runs: tuple[BlockRun, ...]) -> float:
        """Bytes from F to I; where I frees more of these blocks than of a layer, so few that W finds no more."""
        chunk = chunk_of(runs, 0.0)
        left = chunk.kept * (1 - freed_early((chunk,)))
        return min(chunk.kept, left / (1 - self.freed)) if self.split and self.freed < 1 else chunk.kept

    def _passes(self, block: Block) -> list[float]:
        """F, I and W; where the order runs both backwards as one, all is I."""
        return [line.of(seconds) for line, seconds in zip(self.tangents, self._covered(block), strict=True)] + [0.0]

    def _static(self, block: Block) -> float:
        """Bytes while passes run: of a first micro batch, gradients are not there yet."""
        several = self.stretch if self.setup.strategy.microbatches > 1 else 0.0
        each = [lasts + several * made for lasts, made in zip(self.rates.static, self.rates.gradients, strict=True)]
        return each[0] * (block.params - block.frozen) + each[1] * block.expert_params

    def beside(self) -> tuple[float, ...]:
        """What every rank needs beside its layers, in the unit of the problem; any layer may be its last."""
        setup, tail = self.setup, tail_of(self.setup)
        recipes = {*self.recipes, *([_recipe(setup)] if setup.strategy.recompute.active else [])}
        kinds = layer_kinds(setup.model)[: setup.model.depth]
        layers = [block_of(setup, kind, recipe) for kind in dict.fromkeys(kinds) for recipe in recipes]
        working = self.on_device * max(0.0, min(block.walk.backward - block.walk.kept for block in layers))
        fixed = buffers_of(setup, layers) + self.rates.fixed + self.stretch * self.rates.gathered
        found = [fixed + self.stretch * working] * setup.strategy.pp
        if setup.strategy.vpp == 1:  # the last rank's highest point is in the loss
            loss = tail[-1].block.walk
            found[-1] = fixed + self.stretch * self.on_device * (loss.backward - loss.kept)
        return tuple(one / GIB for one in found)
