"""The passes of one iteration: how long they take together and what each pipeline rank holds at most meanwhile.

Every order, 1F1B too, is replayed by the event simulator; the flat form of a schedule is kept, so that a replay of
another strategy with the same shape costs microseconds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from shardwise.cost.behind import behind_of, split_seconds
from shardwise.cost.layer import Block
from shardwise.cost.stage import Chunk
from shardwise.cost.update import data_groups
from shardwise.inputs.strategy import Strategy
from shardwise.plan.setup import Setup
from shardwise.schedule.generate import generate, split_costs
from shardwise.schedule.optimise import Answer, optimise
from shardwise.simulate import Costs, Schedule, simulate
from shardwise.simulate.engine import Prepared, replay
from shardwise.simulate.timeline import Timeline

SEQUENCE_PIECES = 2
SPLIT = frozenset({"zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "dualpipe-v"})
"""Orders that run I and W apart. `auto` may keep them together: there both take what a whole backward pass takes, so
that it is never slower than a named order."""


class Passes(NamedTuple):
    """All forward and backward passes of an iteration."""

    makespan: float
    busiest: int
    """Rank with the most work."""
    held: tuple[float, ...]
    """Chunk passes (weighed by their bytes) whose activations a rank keeps at most."""
    work: float = 0.0
    """Mean busy seconds of a rank."""
    bound: float = 0.0
    """Lower bound of the makespan under this cost model, where the schedule was optimised; 0: none computed."""
    schedule: Schedule | None = None


def passes_of(setup: Setup, forward: list[float], backward: list[float], hop: float) -> Passes:
    """Replay an iteration. `forward` and `backward` are every chunk's seconds per micro batch."""
    strategy = setup.strategy
    count = strategy.microbatches
    if strategy.pp == 1:
        work = count * (sum(forward) + sum(backward))
        return Passes(work, 0, (1.0,), work)
    if strategy.schedule == "1f1b":
        work = count * (sum(forward) + sum(backward)) / strategy.pp
        busiest = max(range(strategy.pp), key=lambda rank: forward[rank] + backward[rank])
        held = tuple(float(min(count, strategy.pp - rank)) for rank in range(strategy.pp))
        return Passes(one_f_one_b(forward, backward, hop, count), busiest, held, work)
    return _replayed(setup, pipeline_costs(setup, forward, backward, hop))


@lru_cache(maxsize=256)
def _flat_1f1b(pp: int, microbatches: int) -> Prepared:
    zeros = (0.0,) * pp
    return Prepared(_schedule("1f1b", pp, 1, microbatches, 0), Costs(f=zeros, i=zeros, w=zeros))


def one_f_one_b(forward: list[float], backward: list[float], hop: float, microbatches: int) -> float:
    """Makespan of 1F1B over stages of unequal length."""
    pp = len(forward)
    flat = _flat_1f1b(pp, microbatches)
    flat.duration[:pp], flat.duration[3 * pp :] = forward, backward
    flat.latency[: pp - 1] = hop
    flat.next[:] = 0
    replay(flat)
    return float(flat.end.max())


def _replayed(setup: Setup, costs: Costs) -> Passes:
    strategy = setup.strategy
    chunks = [f + i + w for f, i, w in zip(costs.f, costs.i, costs.w, strict=True)]
    busy = [sum(chunks[index] for index in setup.rank_indices(rank)) for rank in range(strategy.pp)]
    busiest = max(range(strategy.pp), key=busy.__getitem__)
    work = strategy.microbatches * sum(busy) / strategy.pp
    if strategy.schedule == "auto":
        return _optimised(setup, costs, busiest)._replace(work=work)
    timeline = timeline_of(setup, costs)
    means = _means(setup)
    held = tuple(peak / mean if mean else 0.0 for peak, mean in zip(timeline.peak, means, strict=True))
    return Passes(timeline.makespan, busiest, held, work, schedule=timeline.schedule)


def timeline_of(setup: Setup, costs: Costs) -> Timeline:
    """The times of every pass of an iteration in the strategy's order."""
    strategy = setup.strategy
    if strategy.schedule == "auto":
        return _best(setup, costs).timeline
    if strategy.schedule == "seq-1f1b":
        costs = split_costs(costs, SEQUENCE_PIECES)
    order = order_of(strategy)
    if order is None:
        order = generate(strategy.schedule, pp=strategy.pp, microbatches=strategy.microbatches, costs=costs)
    return simulate(order, costs)


def order_of(strategy: Strategy) -> Schedule | None:
    """The order of work; none where it follows the costs. The same shape gives the same object."""
    if strategy.schedule in {"zb-1p", "zb-2p", "auto"}:
        return None
    return _schedule(strategy.schedule, strategy.pp, strategy.vpp, strategy.microbatches, strategy.group or strategy.pp)


@lru_cache(maxsize=512)
def _schedule(name: str, pp: int, vpp: int, microbatches: int, group: int) -> Schedule:
    return generate(name, pp=pp, vpp=vpp, microbatches=microbatches, group=group, splits=SEQUENCE_PIECES)


def pipeline_costs(setup: Setup, forward: list[float], backward: list[float], hop: float) -> Costs:
    """Seconds and bytes per chunk for the simulator."""
    if setup.strategy.schedule in SPLIT:
        i, w = _apart(setup, hop)
    else:
        whole = {key: chunk.w.total for key, chunk in setup.distinct.items()}
        w = [min(whole[id(chunk)], back) for chunk, back in zip(setup.chunks, backward, strict=True)]
        i = [back - weights for back, weights in zip(backward, w, strict=True)]
    freed = {key: freed_early((chunk,)) for key, chunk in setup.distinct.items()}
    return Costs(
        f=tuple(forward),
        i=tuple(i),
        w=tuple(w),
        hop=(hop,) * (len(forward) - 1),
        activation=tuple(chunk.kept for chunk in setup.chunks),
        # a mean over all chunks would free less of the ends' bytes when layers keep less
        free_at_input_grad=tuple(freed[id(chunk)] for chunk in setup.chunks),
    )


def _apart(setup: Setup, hop: float) -> tuple[list[float], list[float]]:
    """Every chunk's I, and W with what shows of the send: the message leaves as I ends, the rank is free later."""
    groups = data_groups(setup.network, setup.strategy)
    behind = behind_of(setup.strategy, setup.runtime, setup.states, groups, setup.cluster.host_bandwidth)
    found = {key: split_seconds(one, behind) for key, one in setup.distinct.items()}
    shown = hop * (1 - setup.runtime.overlap.p2p)
    both = [found[id(chunk)] for chunk in setup.chunks]
    return [inputs for inputs, _ in both], [weights + shown for _, weights in both]


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


def _means(setup: Setup) -> list[float]:
    """Mean kept bytes of a rank's chunks."""
    strategy = setup.strategy
    owned = [setup.rank_chunks(rank) for rank in range(strategy.pp)]
    return [sum(chunk.kept for chunk in own) / len(own) for own in owned]


def _best(setup: Setup, costs: Costs) -> Answer:
    """The best order that the GPU's memory allows, found by the optimiser with a small effort."""
    strategy = setup.strategy
    return optimise(
        costs,
        pp=strategy.pp,
        vpp=strategy.vpp,
        microbatches=strategy.microbatches,
        placement=setup.placement,
        effort=0.2,
    )


def _optimised(setup: Setup, costs: Costs, busiest: int) -> Passes:
    answer = _best(setup, costs)
    means = _means(setup)
    held = tuple(peak / mean if mean else 0.0 for peak, mean in zip(answer.timeline.peak, means, strict=True))
    return Passes(answer.value, busiest, held, bound=answer.bound.value, schedule=answer.schedule)
