"""One strategy in full: its even cut into stages and the best that the partition solver finds, each estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, islice, pairwise, product
from math import comb
from typing import NamedTuple

from shardwise.cost.memory import Fits
from shardwise.errors import ShardwiseError
from shardwise.estimate.estimate import Estimate, assemble, room, within
from shardwise.estimate.passes import seconds_of
from shardwise.estimate.setup import rank_limits, setup_of
from shardwise.inputs.layers import chunk_rank, is_uneven, spread, with_layers
from shardwise.inputs.mixed import Mixed, replicas_of, shared_batches
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Strategy
from shardwise.search.cuts import Cut, Cutter, cuts_freely, mixed, stand_in
from shardwise.search.question import Candidate, Question
from shardwise.search.recomputes import AS_NEEDED

TRIES = 4
"""Cuts that a solver may try before it is said not to fit."""
LIGHTER = 12
"""Times that the fullest rank is relieved of a layer or more, as long as that is faster."""
NEAR = 1.03
"""Times the goal: how near a quick cut must come for a careful one to be asked for."""
SHARES = 6
"""Ways to share the batch between kinds of GPU that are estimated."""


class Refined(NamedTuple):
    """The best cut of one strategy."""

    strategy: Strategy
    seconds: float
    total_bytes: float
    mfu: float
    allowed: bool
    """It needs no more memory than may be used."""
    fits: Fits
    """As its estimate says."""
    interval: tuple[float, float]
    """Seconds between which nine runs in ten lie."""
    fits_probability: float
    simulated: int
    bound: float = 0.0
    """No cut of the strategy that fits takes less; infinite: none fits; 0: not known."""


def candidate_of(refined: Refined) -> Candidate:
    """What an answer keeps of a simulated strategy."""
    one = refined
    return Candidate(
        strategy=one.strategy, seconds=one.seconds, iteration_seconds_interval=one.interval,
        total_bytes=one.total_bytes, mfu=one.mfu, allowed=one.allowed, fits=one.fits,
        fits_probability=one.fits_probability,
    )  # fmt: skip


def refine(
    question: Question, strategy: Strategy, goal: float = float("inf"), *, thorough: bool = False
) -> Refined | None:
    """The fastest cut that fits; where none does, the leanest. None: the strategy cannot be simulated.

    `goal`: seconds to beat; what comes nowhere near is not cut as well as it could be. `thorough`: what is annealed
    is cut from many starts, and its fullest rank relieved.
    """
    try:
        if shares := _shares(question, strategy):
            return _best_shares(question, strategy, shares)
        found = _Tried(question, _even(question, strategy))
    except ShardwiseError:
        return None
    if strategy.pp > 1 and question.runtime.can.uneven_layers:
        if not cuts_freely(question, strategy):
            found.recompute_as_needed()
        found.cut(goal, thorough=thorough)
        return found.best()
    found.recompute_as_needed()
    return found.only()


def _shares(question: Question, strategy: Strategy) -> list[tuple[int, ...]]:
    """How replicas on different kinds of GPU may share the batch; empty: all have as many."""
    if strategy.pp > 1 or not isinstance(question.cluster, Mixed) or "batches" not in question.runtime.can.mixed:
        return []
    replicas, total = replicas_of(question.cluster, strategy), strategy.global_batch // strategy.micro_batch
    return list(shared_batches(replicas, total)) if strategy.zero < 2 else []


def _best_shares(question: Question, strategy: Strategy, shares: list[tuple[int, ...]]) -> Refined:
    """The fastest of the shares that fits: those whose slowest kind takes least, each estimated."""
    probe = setup_of(question.model, question.cluster, replace(strategy, batches=shares[0]), question.runtime)
    each = [sum(map(sum, seconds_of(kind).values())) for kind in probe.kinds]
    shares.sort(key=lambda counts: max(count * one for count, one in zip(counts, each, strict=True)))
    found = []
    for counts in shares[:SHARES]:
        tried = _Tried(question, replace(strategy, batches=counts if len(set(counts)) > 1 else ()))
        tried.recompute_as_needed()
        found.append(tried.only())
    best = min(found, key=lambda one: (not one.allowed, one.seconds if one.allowed else one.total_bytes))
    # all that were left out take longer, or as long, on their slowest kind
    return best._replace(simulated=sum(one.simulated for one in found))


def plainly(question: Question, strategy: Strategy) -> list[Refined]:
    """The strategy with its layers spread evenly, and of a chain the best cut: several chunks a rank are plain where
    they are even. Empty: it cannot be simulated.
    """
    try:
        tried = _Tried(question, _even(question, strategy))
    except ShardwiseError:
        return []
    even = tried.best()
    if strategy.pp == 1 or strategy.schedule != "1f1b" or not question.runtime.can.uneven_layers:
        return [even]
    tried.cut(float("inf"), thorough=False)
    return [even, tried.best()]


def as_it_is(question: Question, strategy: Strategy) -> Refined:
    """One strategy, cut as it says."""
    return _Tried(question, strategy).best()


def every_cut(question: Question, strategy: Strategy, most: int) -> Refined | None:
    """The fastest of all cuts, each estimated; none where there are more than `most`."""
    layers, chunks = question.model.depth, strategy.chunks
    if strategy.pp == 1 or comb(layers - 1, chunks - 1) > most or not cuts_freely(question, strategy):
        return None
    counts = (_between(ends, layers) for ends in combinations(range(1, layers), chunks - 1))
    cuts = list(islice((Cut(one, again) for one in counts for again in _mixes(strategy, one)), most + 1))
    if len(cuts) > most:
        return None
    found = _Tried(question, _even(question, strategy))
    for cut in cuts:
        found.estimate(found.named(cut))
    best = found.best()
    return best._replace(bound=best.seconds if best.allowed else float("inf"))


def _between(ends: tuple[int, ...], layers: int) -> tuple[int, ...]:
    return tuple(b - a for a, b in pairwise((0, *ends, layers)))


def _mixes(strategy: Strategy, layers: tuple[int, ...]) -> Iterator[Recompute]:
    """What may be recomputed: of a mix, any number of the layers of every chunk."""
    if strategy.recompute.layers != AS_NEEDED:
        yield strategy.recompute
        return
    for again in product(*(range(count + 1) for count in layers)):
        yield mixed(strategy.recompute, again)


def _even(question: Question, strategy: Strategy) -> Strategy:
    layers = question.model.depth
    return with_layers(layers, strategy) if is_uneven(layers, strategy) else strategy


class _Tried:
    """The cuts of one strategy that were estimated."""

    def __init__(self, question: Question, even: Strategy) -> None:
        self.question, self.even = question, even
        self.mixes = even.recompute.layers == AS_NEEDED
        self.found: dict[Strategy, Refined] = {}
        self.estimates: dict[Strategy, Estimate] = {}
        self.first = self.estimate(even)
        self.even_setup = self.setup

    def estimate(self, strategy: Strategy) -> Estimate:
        question = self.question
        if strategy in self.estimates:
            return self.estimates[strategy]
        limit = question.memory_limit
        self.setup = setup_of(question.model, question.cluster, strategy, question.runtime, memory_limit=limit)
        estimate = assemble(self.setup)
        self.estimates[strategy] = estimate
        # a mix without a layer that is recomputed is the strategy without recomputation
        named = replace(strategy, recompute=Recompute()) if strategy.recompute.layers == AS_NEEDED else strategy
        host = estimate.host_bytes <= question.cluster.host_memory
        allowed = host and estimate.total_bytes <= room(estimate, limit)
        told = within(estimate, limit)
        self.found[named] = Refined(
            named, told.iteration_seconds, told.total_bytes, told.mfu, allowed, told.fits,
            told.iteration_seconds_interval, told.fits_probability, 1,
        )  # fmt: skip
        return estimate

    def only(self) -> Refined:
        """The one cut that there is, proven but where it is not sure which layers to recompute."""
        best = self.best()
        if self.mixes and self.even.pp > 1:
            return best
        return best._replace(bound=best.seconds if best.allowed else float("inf"))

    def cut(self, goal: float, *, thorough: bool) -> None:
        """What the partition solver finds: of a chain the best, else a quick answer, and a better one near the goal."""
        question, setup = self.question, stand_in(self.even_setup)
        if setup is None:
            return
        totals = [rank.total for rank in self.first.memory]
        if setup is not self.even_setup:  # an order that is made for the memory may take all that there is
            totals = list(map(min, totals, [rank.total for rank in assemble(setup).memory]))
        cutter = Cutter(setup, totals, question.memory_limit)
        if cutter.chain:  # annealing may end far from the best, and nothing would tell
            self._tried(cutter, cutter.exact)
            if not self.mixes and not setup.kinds:
                self._calm()
        else:
            found = self._tried(cutter, cutter.quick)
            if found is not None and found.iteration_seconds < NEAR * goal:
                self._tried(cutter, cutter.thorough if thorough else cutter.careful)
                if thorough:
                    self._lighten(cutter)
        if self.mixes and not any(one.allowed for one in self.found.values()):
            self.estimate(replace(self.even, recompute=self._all))

    def _lighten(self, cutter: Cutter) -> None:
        """Of cuts whose passes take the same time, the one whose fullest rank has least to update is faster."""
        best = self.best()
        for _ in range(LIGHTER if best.allowed else 0):
            cut = cutter.lighter(Cut(spread(self.question.model.depth, best.strategy), best.strategy.recompute))
            if cut is None:
                return
            self.estimate(self.named(cut))
            if self.best().seconds >= best.seconds:
                return
            best = self.best()

    def _tried(self, cutter: Cutter, solve: Callable[[], Cut | None]) -> Estimate | None:
        """The estimate of what a solver finds; once more where it turns out not to fit."""
        for _ in range(TRIES):
            cut = solve()
            if cut is None:
                return None
            known = self.named(cut) in self.estimates
            estimate = self.estimate(self.named(cut))
            if known or estimate.total_bytes <= room(estimate, self.question.memory_limit):
                return estimate
            cutter.heed(cut, estimate)
        return None

    def _calm(self) -> None:
        """Where one stage decides, many cuts take the same time but for their updates: try equal inner stages."""
        found = self.best().strategy
        cut = found.layers
        if len(cut) < 3 or max(cut) - min(cut) < 2:
            return
        for first in ((), cut[:1]):
            inner = len(cut) - len(first) - 1
            share, rest = divmod(sum(cut) - sum(first) - cut[-1], inner)
            for longer in (range(rest), range(inner - rest, inner)):  # at the front, at the back
                layers = (*first, *(share + (stage in longer) for stage in range(inner)), cut[-1])
                if share:
                    self.estimate(replace(found, layers=layers))

    def named(self, cut: Cut) -> Strategy:
        layers = self.even.layers if cut.layers == spread(self.question.model.depth, self.even) else cut.layers
        return replace(self.even, layers=layers, recompute=cut.recompute)

    @property
    def _all(self) -> Recompute:
        return replace(self.even.recompute, layers=())

    def recompute_as_needed(self) -> None:
        """Stages as they are: the fewest layers of a chunk, rank by rank, that must be recomputed to fit."""
        if not self.mixes or all(self._fitting(self.first)):
            return
        if not all(self._fitting(self.estimate(replace(self.even, recompute=self._all)))):
            return
        low = [-1 if fits else 0 for fits in self._fitting(self.first)]
        high = [0 if one == -1 else max(spread(self.question.model.depth, self.even)) for one in low]
        while any(most - least > 1 for least, most in zip(low, high, strict=True)):
            middle = [(least + most) // 2 if most - least > 1 else most for least, most in zip(low, high, strict=True)]
            estimate = self.estimate(replace(self.even, recompute=replace(self._all, layers=self._counts(middle))))
            for rank, fits in enumerate(self._fitting(estimate)):
                if high[rank] - low[rank] > 1:
                    low[rank], high[rank] = (low[rank], middle[rank]) if fits else (middle[rank], high[rank])
        self.estimate(replace(self.even, recompute=replace(self._all, layers=self._counts(high))))

    def _fitting(self, estimate: Estimate) -> list[bool]:
        """Whether every rank fits."""
        limit, setup = self.question.memory_limit, self.even_setup
        limits = rank_limits(setup, limit) if setup.kind_of else [room(estimate, limit)] * self.even.pp
        return [one.total <= most for one, most in zip(estimate.memory, limits, strict=True)]

    def _counts(self, by_rank: list[int]) -> tuple[int, ...]:
        s, layers = self.even, spread(self.question.model.depth, self.even)
        ranks = [chunk_rank(chunk, s.pp, s.vpp, s.placement) for chunk in range(len(layers))]
        return tuple(min(by_rank[rank], count) for rank, count in zip(ranks, layers, strict=True))

    def best(self) -> Refined:
        def key(one: Refined) -> tuple[object, ...]:
            # times that differ in the last digits only are the same: the leaner one is better
            value = float(f"{one.seconds:.9g}") if one.allowed else one.total_bytes
            return not one.allowed, value, one.total_bytes, one.strategy.layers, one.strategy.recompute.layers

        return min(self.found.values(), key=key)._replace(simulated=len(self.found))
