"""The passes of one iteration: what each takes and holds, how long all take, and what every pipeline rank needs.

`pass_costs` is the one maker of a pipeline's costs from a model: whoever orders, replays, draws or balances passes asks
it. Every order, 1F1B too, is replayed by the event simulator; the flat form of a schedule is kept, so that a replay of
another strategy with the same shape costs microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from shardwise.cost.chunk import Chunk
from shardwise.cost.layer import Block
from shardwise.cost.memory import Footprint, footprint_of, pass_bytes, spread_params
from shardwise.cost.network import hand_over
from shardwise.cost.overlap import Behind, behind_of, pass_seconds, split_seconds
from shardwise.cost.update import data_groups
from shardwise.errors import InfeasibleError
from shardwise.estimate.setup import Setup
from shardwise.inputs.strategy import Strategy
from shardwise.pipeline.action import Schedule, placed
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.engine import Prepared, replay, simulate
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.generate import generate, split_costs
from shardwise.pipeline.optimise import OrderAnswer, bound_of, optimise, published, value_of
from shardwise.pipeline.timeline import Timeline

Seconds = dict[int, tuple[float, float]]
"""The forward and backward pass of every distinct chunk, by its identity."""
SEQUENCE_PIECES = 2
"""Pieces of a sample in seq-1f1b: the fewest that there can be."""
EFFORT = 0.2
"""Of the optimiser, for an estimate: a fifth of what a schedule asked for alone takes."""
_REPLICAS = 64
"""Replicas whose places on the nodes are looked at."""
SPLIT = frozenset({"zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "dualpipe-v"})
"""Orders that run I and W apart, each as long as it takes alone; in the others a backward pass runs whole."""


class Passes(NamedTuple):
    """All forward and backward passes of an iteration."""

    makespan: float
    busiest: int
    """Rank with the most work."""
    held: tuple[float, ...]
    """Chunk passes (weighed by their bytes) whose activations a rank keeps at most."""
    work: float = 0.0
    """Mean busy seconds of a rank."""
    timeline: Timeline | None = None
    """Where the passes were replayed in another order than 1F1B's."""


def passes_of(setup: Setup, seconds: Seconds, footprints: Sequence[Footprint], order: Schedule | None = None) -> Passes:
    """Replay an iteration; `order`: in another order than the strategy's."""
    strategy, count = setup.strategy, setup.strategy.microbatches
    if strategy.pp == 1:
        work = count * sum(sum(seconds[id(chunk)]) for chunk in setup.chunks)
        return Passes(work, 0, (1.0,), work)
    if order is None and strategy.schedule == "1f1b":
        forward, backward, hops = _shown(setup, seconds)
        busy = [f + b for f, b in zip(forward, backward, strict=True)]
        held = tuple(float(min(count, strategy.pp - rank)) for rank in range(strategy.pp))
        makespan = one_f_one_b(forward, backward, hops[:-1], count)
        return Passes(makespan, busy.index(max(busy)), held, count * sum(busy) / strategy.pp)
    return _replayed(setup, timeline_of(setup, order, seconds, footprints))


@lru_cache(maxsize=256)
def _flat_1f1b(pp: int, microbatches: int) -> Prepared:
    zeros = (0.0,) * pp
    return Prepared(_schedule("1f1b", pp, 1, microbatches, 0), Costs(f=zeros, i=zeros, w=zeros))


def one_f_one_b(forward: list[float], backward: list[float], hop: float | list[float], microbatches: int) -> float:
    """Makespan of 1F1B over stages of unequal length. `hop`: of all, or of each but the last."""
    pp = len(forward)
    flat = _flat_1f1b(pp, microbatches)
    flat.duration[:pp], flat.duration[3 * pp :] = forward, backward
    flat.latency[: pp - 1] = hop
    flat.next[:] = 0
    replay(flat)
    return float(flat.end.max())


def _replayed(setup: Setup, timeline: Timeline) -> Passes:
    costs, pp, count = timeline.costs, setup.strategy.pp, timeline.schedule.microbatches
    owned = [setup.rank_indices(rank) for rank in range(pp)]
    busy = [count * sum(costs.f[c] + costs.i[c] + costs.w[c] for c in own) for own in owned]
    # of seq-1f1b a piece is one of several of a micro batch
    whole = [sum(map(costs.held, own)) / len(own) * count / setup.strategy.microbatches for own in owned]
    held = [float(timeline.levels(rank).max()) - costs.static[rank] for rank in range(pp)]
    passes = tuple(kept / mean if mean else 0.0 for kept, mean in zip(held, whole, strict=True))
    return Passes(timeline.makespan, busy.index(max(busy)), passes, sum(busy) / pp, timeline)


def timeline_of(
    setup: Setup,
    order: Schedule | None = None,
    seconds: Seconds | None = None,
    footprints: Sequence[Footprint] | None = None,
) -> Timeline:
    """The times of every pass of an iteration, in the strategy's order or another, with the device's bytes.

    Where kinds of GPU hold replicas, of the kind that takes longest.
    """
    setup = longest(setup)
    strategy = setup.strategy
    if order is None and strategy.schedule == "auto":
        try:
            return best_order(setup).timeline
        except InfeasibleError:
            return best_order(setup, _leanest(setup)).timeline
    split = strategy.schedule in SPLIT if order is None else not order.fused
    costs = pass_costs(setup, seconds, footprints, split=split)
    if strategy.schedule == "seq-1f1b":
        costs = split_costs(costs, SEQUENCE_PIECES)
    order = order or order_of(strategy)
    if order is None:
        order = generate(strategy.schedule, pp=strategy.pp, microbatches=strategy.microbatches, costs=costs)
    return simulate(order, costs)


def longest(setup: Setup) -> Setup:
    """The setup, or where kinds of GPU hold replicas, of the kind whose passes take longest."""
    if not setup.kinds or setup.kind_of:
        return setup
    return max(setup.kinds, key=lambda kind: kind.strategy.microbatches * sum(map(sum, seconds_of(kind).values())))


def order_of(strategy: Strategy) -> Schedule | None:
    """The order of work; none where it follows the costs. The same shape gives the same object."""
    if strategy.schedule in {"zb-1p", "zb-2p", "auto"}:
        return None
    return _schedule(strategy.schedule, strategy.pp, strategy.vpp, strategy.microbatches, strategy.group or strategy.pp)


@lru_cache(maxsize=512)
def _schedule(name: str, pp: int, vpp: int, microbatches: int, group: int) -> Schedule:
    return generate(name, pp=pp, vpp=vpp, microbatches=microbatches, group=group, splits=SEQUENCE_PIECES)


def pass_costs(
    setup: Setup,
    seconds: Seconds | None = None,
    footprints: Sequence[Footprint] | None = None,
    *,
    split: bool,
) -> Costs:
    """Seconds and bytes of every chunk's passes, and what every rank's device must have beside them.

    `split`: I and W run apart. `seconds` and `footprints` where they are known already.
    """
    setup = longest(setup)
    forward, backward, hops = _shown(setup, seconds or seconds_of(setup))
    if split:
        i, w = _apart(setup, hops)
    else:
        whole = {key: chunk.w.total for key, chunk in setup.distinct.items()}
        w = [min(whole[id(chunk)], back) for chunk, back in zip(setup.chunks, backward, strict=True)]
        i = [back - weights for back, weights in zip(backward, w, strict=True)]
    freed = {key: freed_early((chunk,)) for key, chunk in setup.distinct.items()}
    ranks = [pass_bytes(one) for one in footprints or footprints_of(setup)]
    kept = [chunk.kept for chunk in setup.chunks]
    for rank, one in enumerate(ranks):
        for index in setup.rank_indices(rank):
            kept[index] *= one.stretch
    return Costs(
        f=tuple(forward),
        i=tuple(i),
        w=tuple(w),
        hop=tuple(hops[:-1]),
        activation=tuple(kept),
        # a mean over all chunks would free less of the ends' bytes when layers keep less
        free_at_input_grad=tuple(freed[id(chunk)] for chunk in setup.chunks),
        static=tuple(one.static for one in ranks),
        step=tuple(one.step for one in ranks),
        memory_limit=tuple(map(setup.limit_of, range(setup.strategy.pp))),
        # what a pass that runs together with another hides behind its kernels: the experts' traffic
        traffic_f=tuple(chunk.f.ep for chunk in setup.chunks) if setup.model.moe else (),
        traffic_b=tuple(chunk.i.ep + chunk.w.ep + chunk.recompute.ep for chunk in setup.chunks)
        if setup.model.moe
        else (),
        in_bytes=True,
    )


def seconds_of(setup: Setup) -> Seconds:
    """With what sharded parameters show of themselves."""
    if setup.strategy.zero < 3:
        return plain_seconds(setup)
    if setup.kinds:
        return {key: found for kind in setup.kinds for key, found in seconds_of(kind).items()}
    behind = behind_passes(setup)
    return {key: pass_seconds(chunk, behind) for key, chunk in setup.distinct.items()}


def sharding_slowed(setup: Setup, chunks: list[Chunk]) -> float:
    """What passes of these chunks take longer for the collectives of sharded parameters that hide behind them."""
    behind = behind_passes(setup)
    if not behind.gathered:
        return 0.0
    free = behind._replace(taken=0.0)
    return sum(sum(pass_seconds(one, behind)) - sum(pass_seconds(one, free)) for one in chunks)


def plain_seconds(setup: Setup) -> Seconds:
    """Without it."""
    return {key: (chunk.forward_seconds, chunk.backward_seconds) for key, chunk in setup.distinct.items()}


def footprints_of(setup: Setup) -> list[Footprint]:
    """What every rank's chunks take; ranks with equal chunks share one."""

    def made(rank: int) -> Footprint:
        splits, own = setup.splits(rank), setup.at(rank)
        pairs = [pair for split in splits for pair in spread_params(split.chunks, split.strategy)]
        return footprint_of(
            setup.rank_chunks(rank), splits[0].shard, splits[0].strategy, own.runtime, own.states,
            own.cluster.gpu.reserved, pairs,
        )  # fmt: skip

    return setup.by_contents(made)


def _shown(setup: Setup, seconds: Seconds) -> tuple[list[float], list[float], list[float]]:
    """Every chunk's forward and backward seconds with what shows of its sends, and its whole sends."""
    hops = hops_of(setup)
    shows = 1 - setup.runtime.overlap.p2p
    both = [(*seconds[id(chunk)], hop * shows) for chunk, hop in zip(setup.chunks, hops, strict=True)]
    return [forward + shown for forward, _, shown in both], [backward + shown for _, backward, shown in both], hops


def hops_of(setup: Setup) -> list[float]:
    """Seconds to hand a micro batch from every chunk to the next, and to the last from the one before."""
    if setup.ranks:
        return [rank.hop for rank in setup.ranks]
    if setup.kind_of:
        ranks = [setup.kind_of[rank] for rank in placed(setup.strategy.pp, setup.strategy.vpp, setup.placement)]
        own = [hop_seconds(kind) for kind in setup.kinds]
        hops = [own[one] if one == other else _across(setup, one, other) for one, other in pairwise(ranks)]
    else:
        far = _distances(setup.strategy, setup.placement, setup.network.sizes)
        known = {distance: hop_seconds(setup, distance) for distance in dict.fromkeys(far)}
        hops = [known[distance] for distance in far]
    return [*hops, hops[-1] if hops else hop_seconds(setup)]


def _distances(strategy: Strategy, placement: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """How far each chunk's rank is from the next chunk's: from one stage to the next, or, where a node (or a larger
    group of devices) ends between them, the size of what ends. Of several replicas, the farthest.
    """
    stride, block = strategy.between_stages, strategy.tp * strategy.cp * strategy.pp
    replicas = 1 if strategy.rank_order == "dp-pp" else min(strategy.dp, _REPLICAS)
    begins = tuple(k * block for k in range(replicas))
    return _farthest(strategy.pp, strategy.vpp, placement, stride, begins, sizes)


@lru_cache(maxsize=4096)
def _farthest(
    pp: int, vpp: int, placement: str, stride: int, begins: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[int, ...]:
    ranks = placed(pp, vpp, placement)
    return tuple(
        max(_away(begin + stride * one, begin + stride * other, stride, sizes) for begin in begins)
        for one, other in pairwise(ranks)
    )


def _away(one: int, other: int, near: int, sizes: tuple[int, ...]) -> int:
    """`near`, or the size of the largest group that a message leaves; given are the first devices of two stages. One
    that begins inside a group is neighbour to the one before it there.
    """
    beside = abs(one - other) <= near
    left = [size for size in sizes if (max(one, other) % size == 0 if beside else one // size != other // size)]
    return max([near, *(left if one != other else [])])


def _across(setup: Setup, *kinds: int) -> float:
    """The slower of both ends of a message from one kind of GPU to another."""
    ends = [setup.kinds[kind] for kind in kinds]
    return max(hand_over(end.network, end.cluster.gpus - 1, end.shard) for end in ends)


def hop_seconds(setup: Setup, distance: int = 0) -> float:
    """Seconds to hand a micro batch's hidden state to a pipeline rank, all GPUs being alike; `distance`: how far away
    it is, 0: as far as the next one inside a node.
    """
    strategy = setup.strategy
    if strategy.pp == 1:
        return 0.0
    return hand_over(setup.network, distance or strategy.between_stages, setup.shard)


def behind_passes(setup: Setup) -> Behind:
    """What runs behind the passes of a strategy."""
    groups = data_groups(setup.network, setup.strategy)
    bandwidths = setup.cluster.host_bandwidth, setup.machine.bandwidth
    return behind_of(setup.strategy, setup.runtime, setup.states, groups, *bandwidths)


def _apart(setup: Setup, hops: list[float]) -> tuple[list[float], list[float]]:
    """Every chunk's I, and W with what shows of the send: the message leaves as I ends, the rank is free later."""
    found = {
        key: split_seconds(one, behind)
        for kind in setup.kinds or (setup,)
        for behind in (behind_passes(kind),)
        for key, one in kind.distinct.items()
    }
    shows = 1 - setup.runtime.overlap.p2p
    both = [(*found[id(chunk)], hop * shows) for chunk, hop in zip(setup.chunks, hops, strict=True)]
    return [inputs for inputs, _, _ in both], [weights + shown for _, weights, shown in both]


def freed_early(chunks: tuple[Chunk, ...]) -> float:
    """Share of a chunk's kept bytes that is free after I: W still needs the linear layers' inputs, and the gradients
    of their outputs have come to stay until then.
    """
    kept = sum(chunk.kept for chunk in chunks)
    needed = sum(run.repeat * _needed_by_weights(run.block) for chunk in chunks for run in chunk.runs)
    return min(1.0, max(0.0, 1.0 - needed / kept)) if kept else 0.0


def _needed_by_weights(block: Block) -> float:
    linear = [op for op in block.ops if op.kind in {"gemm", "grouped"}]
    return sum(2.0 * op.shape[0] * (op.shape[1] + op.shape[2]) for op in linear if op.name != "output layer")


def best_order(setup: Setup, limits: tuple[float, ...] = (), **options: Any) -> OrderAnswer:  # noqa: ANN401 - of optimise
    """The best order that the memory of every rank allows; `limits`: another memory than the setup's.

    Orders that run I and W apart, and no passes together, are searched. Those that keep backwards whole, which take
    less so, are the named ones.
    """
    strategy = setup.strategy
    shape: Any = {
        "pp": strategy.pp, "vpp": strategy.vpp, "microbatches": strategy.microbatches, "placement": setup.placement,
    }  # fmt: skip
    apart, whole = (pass_costs(setup, split=split) for split in (True, False))
    apart, whole = (replace(one, memory_limit=limits or one.memory_limit) for one in (apart, whole))
    best = optimise(apart.alone(), **shape, **{"effort": EFFORT, **options})
    for order in published(whole, **shape):
        if order.fused and find_fault(order, whole) is None:
            timeline = simulate(order, whole)
            value = value_of(timeline, best.objective)
            if value < best.value:
                bound = bound_of(whole, schedule=order, objective=best.objective)
                best = replace(best, timeline=timeline, value=value, bound=bound)
    return best


def _leanest(setup: Setup) -> tuple[float, ...]:
    """Limits that the order with least memory keeps, where the setup's are too small for any."""
    costs = pass_costs(setup, split=True)
    own = [setup.rank_indices(rank) for rank in range(setup.strategy.pp)]
    least = [base + sum(map(costs.held, each)) for base, each in zip(costs.static, own, strict=True)]
    return tuple(map(max, costs.memory_limit, least))
