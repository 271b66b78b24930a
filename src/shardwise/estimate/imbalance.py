"""What ranks wait for each other because micro batches of packed documents have unequal attention.

Replicas meet where gradients are reduced, once a step: all wait for the largest sum. Those that gather each other's
parameters (ZeRO 3) or send each other tokens (experts) meet in every layer: each micro batch takes as long as the
slowest of them. In a pipeline a long micro batch keeps the ranks behind it waiting: the order is replayed with passes
of unequal length, several times, the lengths in another turn each time. Ranks of context parallel share every document
evenly (ring: pairs of pieces of each document, Transformer Engine's THD layout; all-to-all: whole samples), or pairs of
pieces of the sample whatever lies in them (all-gather; Llama 3, section 3.3.2), and then wait for the busiest.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from typing import NamedTuple, TypeVar

import numpy as np

from shardwise.cost.chunk import BlockRun, Chunk, combined
from shardwise.cost.layer import Block, timed
from shardwise.cost.ledger import Ledger, ledger
from shardwise.cost.memory import Footprint
from shardwise.cost.overlap import pass_seconds, split_seconds
from shardwise.cost.seconds import Seconds
from shardwise.cost.sequences import Floats, Loads, Windows, loads_of
from shardwise.estimate.passes import SPLIT, Passes, behind_passes, order_of, pass_costs
from shardwise.estimate.passes import Seconds as PassSeconds
from shardwise.estimate.setup import Setup, layer_groups
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
    most: tuple[float, float]
    """Seconds that the passes of a micro batch whose samples are one document take more than those of the mean one."""
    windows: tuple[tuple[int, float], ...]
    """Seconds of both passes for once the mean attention more, by window, hidden or not."""


class Pipelines(NamedTuple):
    """Pipelines whose micro batches are unequal."""

    longer: float
    """Seconds that they take more than those of equal micro batches with the same sum, on average."""
    wider: float = 1.0
    """How much wider they are spread than the sums of their micro batches."""
    most: float = 0.0
    """Seconds that those of samples of one document take more."""


def waiting_of(
    setup: Setup, done: Passes, each: PassSeconds, footprints: Sequence[Footprint]
) -> Ledger | None:  # fmt: skip
    """Seconds of waiting in an iteration, by what is waited for; none: micro batches are all alike."""
    if setup.shard.documents is None or setup.ranks:
        return None
    own = [varying(setup.at(done.busiest), chunk) for chunk in setup.rank_chunks(done.busiest)]
    seconds = sum(one.forward + one.backward for one in own)
    if not seconds:
        return None
    strategy, count = setup.strategy, setup.strategy.microbatches
    loads = _loads(setup, own)
    ahead, busiest, slowest = _behind(strategy, loads, min(in_step(setup), strategy.dp))
    found = Pipelines(0.0, 1.0, count * sum(sum(one.most) for one in own))
    if strategy.pp > 1:
        found = _in_the_pipeline(setup, done, each, footprints, slowest, seconds)
    parts = [
        Ledger(
            "replicas", seconds * (ahead + found.wider * busiest), (), _note(strategy.dp, (ahead + busiest) / count)
        ),
        Ledger("pipeline", found.longer),
        Ledger("context parallel", count * seconds * (loads.mean - 1) if _by_piece(strategy) else 0.0),
    ]
    whole = sum(part.value for part in parts)
    # nobody waits longer than samples of one document would take
    kept = min(1.0, found.most / whole) if whole else 1.0
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


def _note(replicas: int, more: float) -> str:
    return f"the busiest of {replicas:,} replicas has {1 + more:.2f}x the mean attention" if replicas > 1 else ""


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
    known: dict[int, tuple[Block, tuple[tuple[int, float], ...]]] = {}
    sums: dict[int, float] = {}
    runs: list[BlockRun] = []
    for block, repeat in chunk.runs:  # kinds of layers may take turns: a few blocks in many runs
        if id(block) not in known:
            known[id(block)] = _longest(setup, block, windows.get(block.name, 0))
        grown, slopes = known[id(block)]
        runs.append(BlockRun(grown, repeat))
        for window, seconds in slopes:
            sums[window] = sums.get(window, 0.0) + repeat * seconds
    return _slopes(setup, chunk, runs, sums)


def _longest(setup: Setup, block: Block, window: int) -> tuple[Block, tuple[tuple[int, float], ...]]:
    """A block for samples of one document, and its seconds for once the mean attention more, by window."""
    slopes = []
    for index, op in enumerate(block.ops):
        if (op.kind == "attention" and not op.bytes_f and op.shape[5] == 0.5) or op.name == "index scores":
            own = 0 if op.kind == "scan" else chosen_keys(setup.shard) or window
            times = _times(setup, own)
            if times > 1:
                f, i = _more(op, _longer(op, times), setup)
                again = f if index in block.walk.recomputed else Seconds()
                block = _grown(block, f, i, again)
                slopes.append((own, (f.device + i.device + again.device) / (times - 1)))
    return block, tuple(slopes)


def _slopes(setup: Setup, chunk: Chunk, runs: Sequence[BlockRun], sums: dict[int, float]) -> Varying:
    """`runs`: the chunk's blocks for samples of one document."""
    longest = chunk._replace(runs=tuple(runs))
    for plain, grown in zip(chunk.runs, runs, strict=True):
        if grown.block is plain.block:
            continue
        parts = ((getattr(grown.block, name), getattr(plain.block, name)) for name in ("f", "i", "recompute"))
        f, i, again = (Seconds(*(plain.repeat * (x - y) for x, y in zip(*both, strict=True))) for both in parts)
        longest = _grown(longest, f, i, again)
    device = sum(part.device for part in (longest.f, longest.i, longest.recompute))
    device -= sum(part.device for part in (chunk.f, chunk.i, chunk.recompute))
    if device <= 0:
        return Varying(0.0, 0.0, (0.0, 0.0), ())
    (forth, back), (now_f, now_b) = _passes(setup, longest), _passes(setup, chunk)
    most, each = (forth - now_f, back - now_b), sum(sums.values()) / device
    return Varying(most[0] * each, most[1] * each, most, tuple(sums.items()))


def _passes(setup: Setup, chunk: Chunk) -> tuple[float, float]:
    """The forward pass, and what of the backward pass attention is in: I where W runs apart."""
    covers, split = setup.strategy.zero == 3 or chunk.offloaded > 0, setup.strategy.schedule in SPLIT
    behind = behind_passes(setup) if covers or split else None
    f, b = pass_seconds(chunk, behind) if behind and covers else (chunk.forward_seconds, chunk.backward_seconds)
    return f, split_seconds(chunk, behind)[0] if behind and split else b


def _grown(one: Grows, f: Seconds, i: Seconds, again: Seconds) -> Grows:
    return one._replace(f=combined(one.f, f), i=combined(one.i, i), recompute=combined(one.recompute, again))


def _times(setup: Setup, window: int) -> float:
    """Attention of a sample that is one document, over the mean one's."""
    documents, seq, chunked = setup.shard.documents, setup.strategy.seq, setup.model.chunked
    assert documents is not None  # noqa: S101 - for the type checker
    return seq * area(seq, window, chunked=chunked) / keys_met(documents, seq, window, chunked=chunked)


def _longer(op: Op, times: float) -> Op:
    """The operator with so many times the keys."""
    if op.kind == "attention":
        return op._replace(shape=(*op.shape[:2], op.shape[2] * times, *op.shape[3:]))
    shape = (op.shape[0], op.shape[1] * times, *op.shape[2:])
    return op._replace(shape=shape, bytes_f=op.bytes_f * times, bytes_b=op.bytes_b * times)


def _more(op: Op, longer: Op, setup: Setup) -> tuple[Seconds, Seconds]:
    """Seconds that the operator takes more, forward and backward: what hides behind it shows less."""
    groups = layer_groups(setup.network, setup.strategy, setup.runtime)
    now, then = (timed(one, setup.shard, setup.machine, groups) for one in (op, longer))
    f, i = (Seconds(*map(sub, a, b)) for a, b in ((then.f, now.f), (then.i, now.i)))
    return f, i


def _in_the_pipeline(
    setup: Setup, done: Passes, each: PassSeconds, footprints: Sequence[Footprint], loads: Loads, seconds: float
) -> Pipelines:  # fmt: skip
    """A pipeline whose micro batches are as unequal as these; `seconds`: of the mean one's attention, on the busiest
    rank.
    """
    strategy, (data, slopes, most) = setup.strategy, _prepared(setup, done, each, footprints)
    plain, pairs, pieces = data.duration, data.pair, data.schedule.microbatches // setup.strategy.microbatches
    data.each = True

    def span(durations: Floats) -> float:
        data.duration = np.ascontiguousarray(durations).ravel()
        if pairs is not None:
            data.pair = _paired(data, plain, pairs)
        data.next[:] = 0
        replay(data)
        return float(data.end.max())

    alike = np.ones(data.schedule.microbatches)
    even, begin, end = (
        span(np.outer(one, alike)) for one in (plain, plain + slopes * (loads.mean - 1), plain + most)
    )  # fmt: skip
    turns = _turns(strategy, loads, len(data.codes))
    spans = np.array([span(plain[:, None] + slopes[:, None] * (np.repeat(turn, pieces) - 1)) for turn in turns])
    sums = seconds * turns.sum(axis=1)
    longer = float((spans - sums).mean()) - begin + seconds * strategy.microbatches * loads.mean
    wider = float(spans.std() / sums.std()) if sums.std() else 1.0
    return Pipelines(max(0.0, longer), wider, max(0.0, end - even))


def _prepared(
    setup: Setup, done: Passes, each: PassSeconds, footprints: Sequence[Footprint]
) -> tuple[Prepared, Floats, Floats]:  # fmt: skip
    """The order with its passes, and by kind and chunk how each grows with attention: for once the mean more, and for
    samples of one document.
    """
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
    grown = np.zeros((2, B + 1, len(own)))
    grown[:, F] = [[one.forward for one in own], [one.most[0] for one in own]]
    grown[:, I] = grown[:, B] = [[one.backward for one in own], [one.most[1] for one in own]]
    slopes, most = grown.reshape(2, -1) * strategy.microbatches / data.schedule.microbatches
    return data, np.minimum(slopes, data.duration), most


def _paired(data: Prepared, plain: Floats, pairs: Floats) -> Floats:
    """Passes that run together, longer as both are."""
    found, m = pairs.copy(), data.schedule.microbatches
    for k in data.pairs:
        codes = data.codes[k : k + 2]
        alone = plain[codes // m].sum()
        found[k] *= data.duration[codes].sum() / alone if alone else 1.0
    return found


def _turns(strategy: Strategy, loads: Loads, actions: int) -> Floats:
    """[turn, micro batch]: what every micro batch has over the mean one."""
    count = strategy.microbatches
    if strategy.packing == "balanced":  # the short ones first and last, where others wait for them longest
        values = loads.quantiles(count)
        return np.concatenate((values[::2], values[1::2][::-1]))[None, :]
    return loads.drawn(max(LEAST_TURNS, min(TURNS, ACTIONS // actions)), count)
