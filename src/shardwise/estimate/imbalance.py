"""What ranks wait for each other because micro batches of packed documents have unequal attention.

Replicas meet where gradients are reduced, once a step: all wait for the largest sum. Those that gather each other's
parameters (ZeRO 3) or send each other tokens (experts) meet in every layer: each micro batch takes as long as the
slowest of them. In a pipeline a long micro batch keeps the ranks behind it waiting: the order is replayed with passes
of unequal length, several times, the lengths in another turn each time. Ranks of context parallel share every document
evenly (ring: pairs of pieces of each document, Transformer Engine's THD layout; all-to-all: whole samples), or pairs of
pieces of the sample whatever lies in them (all-gather; Llama 3, section 3.3.2), and then wait for the busiest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from shardwise.cost.chunk import BlockRun, Chunk
from shardwise.cost.kernels import op_times
from shardwise.cost.layer import Block
from shardwise.cost.ledger import Ledger, ledger
from shardwise.cost.memory import Footprint
from shardwise.cost.overlap import pass_seconds
from shardwise.cost.sequences import SEED, Floats, Loads, Windows, loads_of
from shardwise.estimate.passes import SPLIT, Passes, Seconds, behind_passes, order_of, pass_costs
from shardwise.estimate.setup import Setup
from shardwise.inputs.assumed import ASSUMED
from shardwise.inputs.strategy import Strategy
from shardwise.ops.attention import area
from shardwise.ops.documents import keys_met
from shardwise.ops.indexer import chosen_keys
from shardwise.ops.layer import layer_kinds
from shardwise.ops.op import Op
from shardwise.pipeline.action import B, F, I
from shardwise.pipeline.engine import Prepared, replay

NAME = "waiting for documents"
"""In the ledger of time."""
Grows = TypeVar("Grows", Block, Chunk)
TURNS, LEAST_TURNS, ACTIONS = 48, 8, 2**15
"""Replays of unequal micro batches, and passes that all of them may have together."""


class Varying(NamedTuple):
    """How a chunk's passes grow with the attention of a micro batch: straight from the mean one, which they are priced
    for, to one whose samples are one document each. What hides behind traffic or launches does not show.
    """

    forward: float
    """Seconds for once the mean attention more."""
    backward: float
    most: float
    """Seconds of both passes that a micro batch of samples of one document takes more than the mean one."""
    windows: tuple[tuple[int, float], ...]
    """Seconds of both passes for once the mean attention more, by window, hidden or not."""


def waiting_of(
    setup: Setup, done: Passes, each: Seconds, footprints: Sequence[Footprint]
) -> Ledger | None:  # fmt: skip
    """Seconds of waiting in an iteration, by what is waited for; none: micro batches are all alike."""
    if setup.shard.documents is None or setup.ranks:
        return None
    own = [varying(setup.at(done.busiest), chunk) for chunk in setup.rank_chunks(done.busiest)]
    seconds, most = sum(one.forward + one.backward for one in own), sum(one.most for one in own)
    if not seconds:
        return None
    strategy, count = setup.strategy, setup.strategy.microbatches
    loads = _loads(setup, own)
    ahead, busiest, slowest = _behind(strategy, loads, min(in_step(setup), strategy.dp))
    pipeline, wider = 0.0, 1.0
    if strategy.pp > 1:
        pipeline, wider = _in_the_pipeline(setup, done, each, footprints, slowest, seconds)
    parts = [
        Ledger("replicas", seconds * (ahead + wider * busiest), note=_note(strategy.dp, 1 + (ahead + busiest) / count)),
        Ledger("pipeline", max(0.0, pipeline)),
        Ledger("context parallel", count * seconds * (loads.mean - 1) if _by_piece(strategy) else 0.0),
    ]
    whole = sum(part.value for part in parts)
    # nobody waits longer than samples of one document would take
    kept = min(1.0, count * most / whole) if whole else 1.0
    return ledger(NAME, [part._replace(value=kept * part.value) for part in parts])


def _behind(strategy: Strategy, loads: Loads, step: int) -> tuple[float, float, Loads]:
    """Over the mean micro batch: what those that run in step wait for, all micro batches together; how much more the
    busiest replica has; and the micro batches that a replica then has.
    """
    count, slowest = strategy.microbatches, loads.slowest_of(step)
    if strategy.packing == "balanced":
        return *loads.dealt(count, strategy.dp, step), loads
    busiest = slowest.largest(count, -(-strategy.dp // step)) - count * slowest.mean
    return count * (slowest.mean - loads.mean), busiest, slowest


def _note(replicas: int, busiest: float) -> str:
    return f"the busiest of {replicas:,} replicas has {busiest:.2f}x the mean attention" if replicas > 1 else ""


def _loads(setup: Setup, own: Sequence[Varying]) -> Loads:
    strategy, documents = setup.strategy, setup.shard.documents
    assert documents is not None  # noqa: S101 - for the type checker
    sums: dict[int, float] = {}
    for window, part in (pair for one in own for pair in one.windows):
        sums[window] = sums.get(window, 0.0) + part
    whole = sum(sums.values())
    # to a thousandth, so that strategies share what is drawn
    windows: Windows = tuple((window, round(part / whole, 3)) for window, part in sorted(sums.items()))
    return loads_of(
        documents, strategy.seq, strategy.micro_batch, strategy.cp if _by_piece(strategy) else 1, windows
    )  # fmt: skip


def _by_piece(strategy: Strategy) -> bool:
    """Ranks of context parallel have pieces of a sample, whatever documents lie in them."""
    return strategy.cp > 1 and strategy.cp_kind == "all-gather"


def in_step(setup: Setup) -> int:
    """Replicas that meet in every layer."""
    strategy = setup.strategy
    experts = -(-strategy.ep * strategy.etp // (strategy.tp * strategy.cp)) if setup.model.moe else 1
    sharded = -(-strategy.shard_group // strategy.cp) if strategy.zero == 3 else 1
    return max(1, experts, sharded)


def varying(setup: Setup, chunk: Chunk) -> Varying:
    """What of a chunk's passes grows with attention."""
    windows = {kind.name: kind.window for kind in layer_kinds(setup.model)}
    sums: dict[int, float] = {}
    runs: list[BlockRun] = []
    for block, repeat in chunk.runs:
        f = i = again = 0.0
        for index, op in enumerate(block.ops):
            window = 0 if op.kind == "scan" else chosen_keys(setup.shard) or windows.get(block.name, 0)
            times = _times(setup, window)
            if times <= 1 or not (grown := _longer(op, times)):
                continue
            more_f, more_i = _more(op, grown, setup)
            more_again = more_f if index in block.walk.recomputed else 0.0
            f, i, again = f + more_f, i + more_i, again + more_again
            sums[window] = sums.get(window, 0.0) + repeat * (more_f + more_i + more_again) / (times - 1)
        runs.append(BlockRun(_grown(block, f, i, again), repeat))
    return _slopes(setup, chunk, runs, sums)


def _slopes(setup: Setup, chunk: Chunk, runs: Sequence[BlockRun], sums: dict[int, float]) -> Varying:
    """`runs`: the chunk's blocks for samples of one document."""
    added = [
        sum(
            run.repeat * (getattr(grown.block, name).attention - getattr(run.block, name).attention)
            for run, grown in zip(chunk.runs, runs, strict=True)
        )
        for name in ("f", "i", "recompute")
    ]
    device, slope = sum(added), sum(sums.values())
    if not device:
        return Varying(0.0, 0.0, 0.0, ())
    longest = _grown(chunk, *added)._replace(runs=tuple(runs))
    f, b = (after - before for after, before in zip(_passes(setup, longest), _passes(setup, chunk), strict=True))
    each = slope / device
    return Varying(f * each, b * each, f + b, tuple(sums.items()))


def _passes(setup: Setup, chunk: Chunk) -> tuple[float, float]:
    if setup.strategy.zero == 3:
        return pass_seconds(chunk, behind_passes(setup))
    return chunk.forward_seconds, chunk.backward_seconds


def _grown(one: Grows, f: float, i: float, again: float) -> Grows:
    return one._replace(
        f=one.f._replace(attention=one.f.attention + f), i=one.i._replace(attention=one.i.attention + i),
        recompute=one.recompute._replace(attention=one.recompute.attention + again),
    )  # fmt: skip


def _times(setup: Setup, window: int) -> float:
    """Attention of a sample that is one document, over the mean one's."""
    documents, seq, chunked = setup.shard.documents, setup.strategy.seq, setup.model.chunked
    assert documents is not None  # noqa: S101 - for the type checker
    return seq * area(seq, window, chunked=chunked) / keys_met(documents, seq, window, chunked=chunked)


def _longer(op: Op, times: float) -> Op | None:
    """The operator with so many times the keys; none: they do not change it."""
    if op.kind == "attention" and not op.bytes_f and op.shape[5] == 0.5:
        return op._replace(shape=(*op.shape[:2], op.shape[2] * times, *op.shape[3:]))
    if op.name == "index scores":
        shape = (op.shape[0], op.shape[1] * times, *op.shape[2:])
        return op._replace(shape=shape, bytes_f=op.bytes_f * times, bytes_b=op.bytes_b * times)
    return None


def _more(op: Op, grown: Op, setup: Setup) -> tuple[float, float]:
    """Seconds that the operator takes more, forward and backward."""
    faster = ASSUMED.fp8_attention if op.kind == "attention" and setup.shard.fp8_attention else 1.0
    now, then = op_times(op, setup.machine), op_times(grown, setup.machine)
    return (then.f - now.f) / faster, (then.i - now.i) / faster


def _in_the_pipeline(
    setup: Setup, done: Passes, each: Seconds, footprints: Sequence[Footprint], loads: Loads, seconds: float
) -> tuple[float, float]:  # fmt: skip
    """Seconds by which a pipeline takes longer on average if its micro batches are as unequal as these, and how much
    wider pipelines are spread than the sums of their micro batches; `seconds`: of the mean one, on the busiest rank.
    """
    strategy, count = setup.strategy, setup.strategy.microbatches
    data, slopes = _prepared(setup, done, each, footprints)
    plain, pairs = data.duration.copy(), data.pair
    pieces = data.schedule.microbatches // count
    data.each, spans, sums = True, [], []
    for turn in _turns(strategy, loads, len(data.codes)):
        varied = plain[:, None] + slopes[:, None] * (np.repeat(turn, pieces) - 1)
        data.duration = np.maximum(varied, 0.0).ravel()
        if pairs is not None:
            data.pair = _paired(data, plain, pairs)
        data.next[:] = 0
        replay(data)
        spans.append(float(data.end.max()))
        sums.append(seconds * float(turn.sum()))
    longer = np.array(spans[1:]) - spans[0] - (np.array(sums[1:]) - sums[0])  # of a sum that is the mean
    expected = seconds * loads.spread * count**0.5
    if strategy.packing == "balanced" or not expected:
        return float(longer.mean()), 1.0
    return float(longer.mean()), float(np.std(spans[1:], ddof=1) / expected)


def _prepared(
    setup: Setup, done: Passes, each: Seconds, footprints: Sequence[Footprint]
) -> tuple[Prepared, Floats]:  # fmt: skip
    """The order with its passes, and by kind and chunk how much of each grows with attention."""
    strategy = setup.strategy
    if done.timeline is not None:
        data = Prepared(done.timeline.schedule, done.timeline.costs)
    else:
        order = order_of(strategy)
        assert order is not None  # noqa: S101 - what has no order by name has a timeline
        data = Prepared(order, pass_costs(setup, each, footprints, split=strategy.schedule in SPLIT))
    owners = {id(chunk): rank for rank, chunk in zip(data.schedule.rank_of, setup.chunks, strict=True)}
    known = {key: varying(setup.at(owners[key]), chunk) for key, chunk in setup.distinct.items()}
    own = [known[id(chunk)] for chunk in setup.chunks]
    slopes = np.zeros((B + 1, len(own)))
    slopes[F], slopes[I] = [one.forward for one in own], [one.backward for one in own]
    slopes[B] = slopes[I]
    return data, slopes.ravel() * strategy.microbatches / data.schedule.microbatches


def _paired(data: Prepared, plain: Floats, pairs: Floats) -> Floats:
    """Passes that run together, longer as both are."""
    found, m = pairs.copy(), data.schedule.microbatches
    for k in data.pairs:
        codes = data.codes[k : k + 2]
        alone = plain[codes // m].sum()
        found[k] *= data.duration[codes].sum() / alone if alone else 1.0
    return found


def _turns(strategy: Strategy, loads: Loads, actions: int) -> Iterator[Floats]:
    """What every micro batch has over the mean one: first all alike, then as they are drawn."""
    count = strategy.microbatches
    yield np.full(count, loads.mean)
    if strategy.packing == "balanced":  # the short ones first and last, where others wait for them longest
        values = loads.quantiles(count)
        yield np.concatenate((values[::2], values[1::2][::-1]))
        return
    rng = np.random.default_rng(SEED)
    for _ in range(max(LEAST_TURNS, min(TURNS, ACTIONS // actions))):
        yield loads.drawn(rng, count)
