"""What no cut of one strategy into chunks can beat: a lower bound on its passes that a solver proves.

The problem is a relaxation of what the estimate computes, so that its bound holds for the estimate: times are tangents
that add up and are never above it (`table`), a rank's memory is what the bounds of the screen count (`memory_bound`).
One chunk a rank is bounded by the dynamic programme; else by a linear programme with longest paths as cuts, in which
layers may be split and kinds of layers may stand in any order.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import groupby

import numpy as np

from shardwise.cost.chunk import BlockRun, chunk_of, combined
from shardwise.cost.layer import PLAIN, Block, Recipe, Seconds
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
from shardwise.pipeline.action import B, F, I, Schedule, W
from shardwise.search.cuts import cuts_freely, ready_of, tail_of
from shardwise.search.frame import buffers_of, mean_update, rates_of
from shardwise.search.question import Question
from shardwise.search.space import AS_NEEDED
from shardwise.search.table import backward, tangent

GIB = 2.0**30
"""Bytes are given to the solver in these, so that its tolerance means nothing."""
PATIENCE = 60.0
"""CPU seconds after which a solver is given up: far more than it needs."""
ROUNDS = 2
"""Solutions of the linear programme, in twenties."""
DEEP: tuple[tuple[Level, int], ...] = (("ranks", 100), ("chunks", 100))
"""What is made whole, and nodes of one solution."""
SMALL = 512
"""Chunks times micro batches up to which whole layers are tried: beyond, it takes seconds."""
HALVINGS = 40
ROUNDED = 1 - 1e-9
"""Sums are taken in another order than the estimate takes them."""


Paths = dict[Schedule, list[tuple[Floats, float]]]
"""By order, paths that bound other strategies over it: how often they run each pass, and their messages."""


def prove(question: Question, strategy: Strategy, enough: float, paths: Paths, *, deep: bool) -> float:
    """What no cut of the strategy that fits beats; 0 where its cuts are not the solver's to choose.

    `deep`: with the layers of every rank, then of every chunk whole.
    """
    if strategy.pp == 1 or not cuts_freely(question, strategy):
        return 0.0
    layers = question.model.layers
    even = with_layers(layers, strategy) if is_uneven(layers, strategy) else strategy
    setup = setup_of(question.model, question.cluster, even, question.runtime)
    return least_seconds(setup, question.memory_limit, enough, paths, deep=deep)


def least_seconds(
    setup: Setup, limit: float, enough: float = float("inf"), paths: Paths | None = None, *, deep: bool = False
) -> float:
    """Seconds of an iteration that every cut takes which fits; infinite: none fits. Stops once `enough` is proven.

    `paths` makes the next proof over the same order shorter, and is added to.
    """
    strategy, kinds = setup.strategy, setup.kinds or (setup,)
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

    ready, firsts = _ready(setup, limit), [_first(kind) for kind in kinds]
    first = firsts[0]
    if dynamic.applies(ready):
        if deep:  # nothing is left to be made whole
            return 0.0
        passes = dynamic.least(ready, _inverse(iteration, enough) / ROUNDED, firsts)
        return iteration(passes * ROUNDED) if passes < float("inf") else passes
    if setup.kinds:  # the linear programme knows one time of a layer
        return 0.0
    if first:  # every chunk has one such layer or more
        ready.fixed_time[[I, B]] += first.time
        ready.fixed_held -= first.layers * first.held
    bounder = Bounder(
        ready=ready, incumbent=_even(setup, ready), deadline=time.process_time() + PATIENCE, rounds=ROUNDS,
        found=lambda bound, _: iteration(bound * ROUNDED) >= enough,
    )  # fmt: skip
    _relax(bounder, {} if paths is None else paths)
    if deep and not bounder.infeasible and ready.chunks * strategy.microbatches <= SMALL:
        bounder.tighten(DEEP)
    return float("inf") if bounder.infeasible else iteration(bounder.bound * ROUNDED)


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
    """The layers of every chunk as they are, by kind, each run the first way."""
    kinds = layer_kinds(setup.model)[: setup.model.layers]
    place = {kind: index * (ready.options // len(ready.run_counts)) for index, kind in enumerate(dict.fromkeys(kinds))}
    counts = np.zeros((ready.chunks, ready.options), dtype=np.int32)
    owners = np.repeat(np.arange(ready.chunks), setup.layers)
    for owner, kind in zip(owners.tolist(), kinds, strict=True):
        counts[owner, place[kind]] += 1
    return counts


def _ready(setup: Setup, limit: float) -> Ready:
    order = order_of(setup.strategy)
    assert order is not None  # noqa: S101 - only such strategies are cut
    shares = dict(zip(setup.kind_of, rank_limits(setup, limit), strict=True)) if setup.kind_of else {}
    limits = {id(setup): limit, **{id(setup.kinds[kind]): own for kind, own in shares.items()}}
    ready = ready_of(setup, lambda kind: _plain_ready(kind, order, limits[id(kind)]))
    shows = 1 - setup.runtime.overlap.p2p
    ready.fixed_time[[F, B] if order.fused else [F, W]] += np.array(hops_of(setup)) * shows
    return ready


def _plain_ready(setup: Setup, order: Schedule, limit: float) -> Ready:
    strategy, recipes = setup.strategy, _recipes(setup)
    relaxed, chain = _Relaxed(setup, split=not order.fused), strategy.vpp == 1 and order.fused
    kinds = layer_kinds(setup.model)[: setup.model.layers]
    runs = [(kind, len(list(same))) for kind, same in groupby(kinds)] if chain else Counter(kinds).items()
    return Ready(Problem(
        pp=strategy.pp, vpp=strategy.vpp, microbatches=strategy.microbatches, order=order, hop=hop_seconds(setup),
        runs=tuple(
            KindRun(kind=relaxed.kind([block_of(setup, kind, recipe) for recipe in recipes]), count=count)
            for kind, count in runs
        ),
        head=relaxed.end((BlockRun(setup.chunks[0].runs[0].block, 1),)), tail=relaxed.end(tail_of(setup)),
        limits=(limit / GIB,), static=relaxed.beside(),
        free_at_input_grad=relaxed.freed,
    ))  # fmt: skip


def _recipes(setup: Setup) -> tuple[Recipe, ...]:
    """The ways to run a layer: which ones of a mix are recomputed is left open."""
    recompute = setup.strategy.recompute
    if not recompute.active or recompute.layers not in {(), AS_NEEDED}:
        return (PLAIN,)
    return (PLAIN, _recipe(setup)) if recompute.layers else (_recipe(setup),)


def _recipe(setup: Setup) -> Recipe:
    recompute = setup.strategy.recompute
    return Recipe(recompute.full, frozenset(recompute.modules), recompute.group)


def _first(setup: Setup) -> dynamic.First | None:
    """The first N layers of every chunk where those are recomputed: as fast and as lean as any kind of layer has it."""
    recompute = setup.strategy.recompute
    if recompute.layers in {(), AS_NEEDED}:
        return None
    relaxed = _Relaxed(setup, split=False)
    kinds = dict.fromkeys(layer_kinds(setup.model)[: setup.model.layers])
    pairs = [
        [relaxed.end((BlockRun(block_of(setup, kind, one), 1),)) for one in (PLAIN, _recipe(setup))] for kind in kinds
    ]
    return dynamic.First(
        recompute.layers[0],
        max(0.0, min(again.i - plain.i for plain, again in pairs)),
        max(0.0, *(plain.activation - again.activation for plain, again in pairs)),
    )


def _times(passes: list[Seconds], count: int) -> list[Seconds]:
    return [Seconds(*(count * part for part in one)) for one in passes]


class _Relaxed:
    """Times and bytes of blocks as numbers that add up to no more than the estimate has."""

    def __init__(self, setup: Setup, *, split: bool) -> None:
        self.setup, self.split = setup, split
        self.behind = behind_passes(setup)
        kinds = layer_kinds(setup.model)[: setup.model.layers]
        main = block_of(setup, max(dict.fromkeys(kinds), key=kinds.count), PLAIN)
        # at the passes of the whole model: ends of many kernels and few launches count for what they are in its sum
        runs = [run for chunk in setup.chunks for run in chunk.runs]
        passes = zip(*(_times(self._covered(block), count) for block, count in runs), strict=True)
        self.tangents = [tangent(combined(*one)) for one in passes]
        self.rates = rates_of(setup, setup.strategy, chunk_of((BlockRun(main, 1),), 0.0))
        self.stretch = 1 + setup.runtime.memory.fragmentation
        self.on_device = 0.0 if setup.strategy.offload == "activations" else 1.0
        blocks = [block_of(setup, kind, recipe) for kind in dict.fromkeys(kinds) for recipe in _recipes(setup)]
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
        return each[0] * block.params + each[1] * block.expert_params

    def beside(self) -> tuple[float, ...]:
        """What every rank needs beside its layers, in the unit of the problem; any layer may be its last."""
        setup, tail = self.setup, tail_of(self.setup)
        recipes = {*_recipes(setup), *([_recipe(setup)] if setup.strategy.recompute.active else [])}
        kinds = layer_kinds(setup.model)[: setup.model.layers]
        layers = [block_of(setup, kind, recipe) for kind in dict.fromkeys(kinds) for recipe in recipes]
        working = self.on_device * max(0.0, min(block.walk.backward - block.walk.kept for block in layers))
        fixed = buffers_of(setup, layers) + self.rates.fixed + self.stretch * self.rates.gathered
        found = [fixed + self.stretch * working] * setup.strategy.pp
        if setup.strategy.vpp == 1:  # the last rank's highest point is in the loss
            loss = tail[-1].block.walk
            found[-1] = fixed + self.stretch * self.on_device * (loss.backward - loss.kept)
        return tuple(one / GIB for one in found)
