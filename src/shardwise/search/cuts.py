"""Where the layers of a pipeline are cut, and how many of each chunk are recomputed: asked of `shardwise.partition`.

The problem is made of the cost model's own blocks. What a rank needs beside layers and ends (context, buffers, working
sets) is what the estimate of the even cut needs more than the problem says, so that both agree there. One chunk a rank
is cut by the dynamic programme, everything else by annealing; the estimate has the last word on time and memory.

Which cuts there are: every one that leaves each chunk a layer or more. The bounds of the screen hold for these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import NamedTuple

import numpy as np

from shardwise.cost.chunk import BlockRun, chunk_of, recomputed_layers
from shardwise.cost.layer import PLAIN, Block, Recipe
from shardwise.cost.memory import footprint_of
from shardwise.cost.overlap import Behind, pass_seconds, split_seconds
from shardwise.estimate.estimate import Estimate
from shardwise.estimate.passes import SPLIT, behind_passes, freed_early, hop_seconds, hops_of, order_of
from shardwise.estimate.setup import Setup, block_of, rank_limits
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Strategy
from shardwise.ops.layer import layer_kinds
from shardwise.partition import dynamic
from shardwise.partition.graph import Ints, Ready
from shardwise.partition.improve import Improved, improve, repaired, starts
from shardwise.partition.least_memory import laid_out
from shardwise.partition.mixed import MixedReady
from shardwise.partition.problem import Choice, End, Kind, KindRun, Problem
from shardwise.pipeline.action import B, F, W
from shardwise.search.question import Question
from shardwise.search.recomputes import AS_NEEDED

STEPS = 1500
"""Annealing steps for one strategy."""
STARTS = 5
"""Starts for the strategy that wins."""
CARE = 20
"""Times as many for a strategy that may win."""
SPARE = 1.02
"""How far all ranks together may be above their memory before cuts are tried: late ranks hold fewer passes."""
LESS = 1 - 1e-6
"""Times the memory of a rank: too little for what it holds."""
HOT, COLD = 3e-3, 3e-5
"""Temperatures as shares of the time."""
STAND_INS = {"zb-1p": "zb-h1", "zb-2p": "zb-h2", "seq-1f1b": "1f1b", "auto": "1f1b"}
"""Orders that follow the costs of the passes, or run them in pieces, and those that their layers are cut for."""
_STATIC = frozenset({"weights", "gradients", "master weights", "optimizer moments", "fp8 weight copies"})


class Cut(NamedTuple):
    """Layers of every chunk, and what is recomputed."""

    layers: tuple[int, ...]
    recompute: Recompute


def cuts_freely(question: Question, strategy: Strategy) -> bool:
    """Whether layers may be cut anywhere, and the solver knows the order: it does not follow the costs."""
    return question.runtime.can.uneven_layers and strategy.schedule not in STAND_INS


def stand_in(setup: Setup) -> Setup | None:
    """The setup in an order that the solver knows: where its own follows the costs, the nearest; none: there is none.

    The cut of such an order is a good guess; the estimate in the strategy's own order says what it is worth.
    """
    strategy = setup.strategy
    if strategy.schedule not in STAND_INS:
        return setup
    if strategy.vpp > 1:  # `auto` alone
        return None
    return setup._replace(strategy=replace(strategy, schedule=STAND_INS[strategy.schedule]))


def mixed(recompute: Recompute, again: tuple[int, ...]) -> Recompute:
    """The recomputation of so many layers of every chunk."""
    if not any(again):
        return Recompute()
    return replace(recompute, layers=again[:1] if len(set(again)) == 1 else again)


class Cutter:
    """The cuts of one strategy; `even`: bytes that every rank needs with the even one."""

    def __init__(self, setup: Setup, even: Sequence[float], limit: float) -> None:
        self.setup, self.limit = setup, np.array(rank_limits(setup, limit))
        self.ready = ready_of(setup, lambda kind: Ready(problem_of(kind)))
        shown = [F, W] if setup.strategy.schedule in SPLIT else [F, B]
        self.ready.fixed_time[shown] += np.array(hops_of(setup)) * (1 - setup.runtime.overlap.p2p)
        beside = np.array(even) - self.ready.peaks(self._counts(setup.layers))
        self.ready.set_limits(self.limit - beside)

    @property
    def chain(self) -> bool:
        """One chunk a rank, backwards in one piece: the dynamic programme is exact."""
        return dynamic.applies(self.ready)

    def quick(self) -> Cut | None:
        """A fast cut that fits, by annealing; none where none was found."""
        return self._annealed(STEPS)

    def careful(self) -> Cut | None:
        """The same with more steps."""
        return self._annealed(CARE * STEPS)

    def thorough(self) -> Cut | None:
        """The same from many starts, for the strategy that wins."""
        found = [self._anneal(one, CARE * STEPS) for one in islice(starts(self.ready), STARTS)]
        best = min(found, key=lambda one: one.time, default=None)
        return self.careful() if best is None else self._cut(best.counts)

    def lighter(self, cut: Cut) -> Cut | None:
        """As fast a cut as is found that leaves the rank with most layers fewer; the limits stay that much tighter."""
        heavy = int((self.ready.on_rank @ np.array(cut.layers)).argmax())
        self.ready.limits[heavy] = self.ready.peaks(self._matrix(cut))[heavy] * LESS
        return self.careful()

    def _annealed(self, steps: int) -> Cut | None:
        shares = None if self._hopeless() else repaired(self.ready, np.array(self.setup.layers))
        return None if shares is None else self._cut(self._anneal(laid_out(self.ready, shares), steps).counts)

    def _anneal(self, start: Ints, steps: int) -> Improved:
        value = float(self.ready.times(start[None])[0])
        return improve(self.ready, start, steps=steps, hot=HOT * value, cold=COLD * value, seed=1)

    def exact(self) -> Cut | None:
        """The fastest cut of a chain that fits, by the dynamic programme; none where nothing fits."""
        cut = None if self._hopeless() else dynamic.best_cut(self.ready)
        return None if cut is None else self._cut(cut.counts)

    def heed(self, cut: Cut, found: Estimate) -> None:
        """Leave more room where the estimate says that ranks need more than the problem does."""
        more = np.array([rank.total for rank in found.memory]) - self.ready.peaks(self._matrix(cut))
        self.ready.set_limits(np.minimum(self.ready.limits, self.limit - more))

    def _hopeless(self) -> bool:
        """Whether all ranks together lack memory, everything recomputed: then no cut helps."""
        limits = self.ready.limits
        if not (limits > 0).all():
            return True
        lean = self.ready.peaks(laid_out(self.ready, np.array(self.setup.layers)))
        return bool(lean.sum() > SPARE * limits.sum())

    def _counts(self, layers: tuple[int, ...]) -> Ints:
        """Layers in model order, each with its first choice."""
        first = [int(np.flatnonzero(self.ready.run_of == run)[0]) for run in range(len(self.ready.run_counts))]
        sequence = np.repeat(first, self.ready.run_counts)
        owner = np.repeat(np.arange(self.ready.chunks), layers)
        counts = np.bincount(owner * self.ready.options + sequence, minlength=self.ready.chunks * self.ready.options)
        return counts.reshape(self.ready.chunks, self.ready.options).astype(np.int32)

    def _matrix(self, cut: Cut) -> Ints:
        counts = self._counts(cut.layers)
        strategy = replace(self.setup.strategy, layers=cut.layers, recompute=cut.recompute)
        if self.setup.strategy.recompute.layers != AS_NEEDED:
            return counts
        for chunk, number in enumerate(cut.layers):
            left = recomputed_layers(strategy, chunk, cut.layers, number)
            for option in range(0, self.ready.options, 2):
                moved = min(left, int(counts[chunk, option]))
                counts[chunk, option] -= moved
                counts[chunk, option + 1] += moved
                left -= moved
        return counts

    def _cut(self, counts: Ints) -> Cut:
        layers = tuple(map(int, counts.sum(axis=1)))
        recompute = self.setup.strategy.recompute
        if recompute.layers != AS_NEEDED:
            return Cut(layers, recompute)
        again = tuple(min(int(k), n) for k, n in zip(counts[:, 1::2].sum(axis=1), layers, strict=True))
        return Cut(layers, mixed(recompute, again))


def ready_of(setup: Setup, made: Callable[[Setup], Ready]) -> Ready:
    """What is made of a setup; of one with stages on several kinds of GPU, of each kind, every stage from its own."""
    hops = hops_of(setup)
    if setup.kind_of:
        return MixedReady([made(kind) for kind in setup.kinds], setup.kind_of, hops)
    ready = made(setup)
    if len(set(hops)) > 1:
        ready.set_hops(hops)
    return ready


def problem_of(setup: Setup) -> Problem:
    """The partition problem of a strategy; memory without limits."""
    strategy, model = setup.strategy, setup.model
    behind = behind_passes(setup)
    kinds = layer_kinds(model)[: model.depth]
    first, last = setup.chunks[0].runs[0].block, tail_of(setup)
    priced = {
        kind: _kind(setup, [block_of(setup, kind, recipe) for recipe in _recipes(setup)], behind)
        for kind in dict.fromkeys(kinds)
    }
    runs = tuple(KindRun(kind=priced[kind], count=len(list(same))) for kind, same in groupby(kinds))
    return Problem(
        pp=strategy.pp, vpp=strategy.vpp, microbatches=strategy.microbatches, runs=runs,
        head=_end(setup, (BlockRun(first, 1),), behind), tail=_end(setup, last, behind), order=order_of(strategy),
        schedule=strategy.schedule, hop=hop_seconds(setup), free_at_input_grad=freed_early(setup.chunks),
    )  # fmt: skip


def _recipes(setup: Setup) -> tuple[Recipe, ...]:
    """The ways to run a layer. The first N of every chunk take the same from all chunks, and so move no cut."""
    recompute = setup.strategy.recompute
    recipe = Recipe(recompute.full, frozenset(recompute.modules), recompute.group)
    if not recompute.active or recompute.layers not in {(), AS_NEEDED}:
        return (PLAIN,)
    return (PLAIN, recipe) if recompute.layers else (recipe,)


def tail_of(setup: Setup) -> tuple[BlockRun, ...]:
    """Output layer, loss and multi-token-prediction layers."""
    return tuple(run for run in setup.chunks[-1].runs if run.block.name == "head" or run.block.name.startswith("mtp "))


def _kind(setup: Setup, blocks: list[Block], behind: Behind) -> Kind:
    choices = [_choice(setup, block, behind) for block in blocks]
    return Kind(name=blocks[0].name, choices=tuple(choices), static=_static(setup, (BlockRun(blocks[0], 1),)))


def _choice(setup: Setup, block: Block, behind: Behind) -> Choice:
    f, i, w = _passes(setup, (BlockRun(block, 1),), behind)
    return Choice(
        name="again" if block.recompute.total else "none", f=f, i=i, w=w, activation=_kept(setup, (BlockRun(block, 1),))
    )


def _end(setup: Setup, runs: tuple[BlockRun, ...], behind: Behind) -> End:
    f, i, w = _passes(setup, runs, behind)
    return End(f=f, i=i, w=w, static=_static(setup, runs), activation=_kept(setup, runs))


def _passes(setup: Setup, runs: tuple[BlockRun, ...], behind: Behind) -> tuple[float, float, float]:
    """Seconds of F, I and W as the estimate has them, recomputation and sharded parameters included."""
    chunk = chunk_of(runs, 0.0)
    f, back = pass_seconds(chunk, behind)
    if setup.strategy.schedule in SPLIT:
        return f, *split_seconds(chunk, behind)
    w = min(chunk.w.total, back)
    return f, back - w, w


def _kept(setup: Setup, runs: tuple[BlockRun, ...]) -> float:
    stretch = 1 + setup.runtime.memory.fragmentation
    return stretch * sum(count * block.walk.kept for block, count in runs)


def _static(setup: Setup, runs: tuple[BlockRun, ...]) -> float:
    """Bytes that blocks take whatever passes are in flight."""
    stretch = 1 + setup.runtime.memory.fragmentation
    found = footprint_of([chunk_of(runs, 0.0)], setup.shard, setup.strategy, setup.runtime, setup.states)
    over = 1 + setup.runtime.memory.lasting_fragmentation
    return over * sum(part.value for part in found.parts if part.name in _STATIC) + stretch * found.kept_gradients
