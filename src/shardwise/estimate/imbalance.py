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
from typing import NamedTuple

import numpy as np

from shardwise.cost.chunk import Chunk
from shardwise.cost.kernels import op_times
from shardwise.cost.ledger import Ledger, ledger
from shardwise.cost.memory import Footprint
from shardwise.cost.sequences import SEED, Floats, Loads, Windows, loads_of
from shardwise.estimate.passes import SEQUENCE_PIECES, SPLIT, Passes, Seconds, order_of, pass_costs
from shardwise.estimate.setup import Setup
from shardwise.inputs.assumed import ASSUMED
from shardwise.inputs.strategy import Strategy
from shardwise.ops.indexer import chosen_keys
from shardwise.ops.layer import layer_kinds
from shardwise.ops.op import Op
from shardwise.pipeline.action import B, F, I
from shardwise.pipeline.engine import Prepared, replay

NAME = "waiting for documents"
"""In the ledger of time."""
LONGER = 1.01
"""Keys over those of the mean, to see by how much attention takes longer."""
TURNS, ACTIONS = 8, 2**15
"""Replays of unequal micro batches, and passes that all of them may have together."""


class Varying(NamedTuple):
    """Seconds of a chunk's passes that grow with the keys that its tokens meet."""

    forward: float
    backward: float
    windows: tuple[tuple[int, float], ...]
    """The same of both passes, by window."""


def waiting_of(
    setup: Setup, done: Passes, each: Seconds, footprints: Sequence[Footprint]
) -> Ledger | None:  # fmt: skip
    """Seconds of waiting in an iteration, by what is waited for; none: micro batches are all alike."""
    if setup.shard.documents is None or setup.ranks:
        return None
    own = [varying(setup.at(done.busiest), chunk) for chunk in setup.rank_chunks(done.busiest)]
    seconds = sum(one.forward + one.backward for one in own)
    if not seconds:
        return None
    strategy, count = setup.strategy, setup.strategy.microbatches
    loads = _loads(setup, own, seconds)
    step = min(in_step(setup), strategy.dp)
    slowest = loads.slowest_of(step)
    if strategy.packing == "balanced":
        ahead, busiest = loads.dealt(count, strategy.dp, step)
    else:
        groups = -(-strategy.dp // step)
        ahead, busiest = count * (slowest.mean - loads.mean), slowest.largest(count, groups) - count * slowest.mean
    room = count * seconds * (loads.most - loads.mean)
    replicas = min(seconds * (ahead + busiest), room)
    pipeline = min(_in_the_pipeline(setup, done, each, footprints, slowest), room - replicas) if strategy.pp > 1 else 0.0
    parts = [
        Ledger("replicas", replicas, note=_note(strategy.dp, 1 + (ahead + busiest) / count)),
        Ledger("pipeline", max(0.0, pipeline)),
        Ledger("context parallel", count * seconds * (loads.mean - 1)),
    ]
    return ledger(NAME, parts)


def _note(replicas: int, busiest: float) -> str:
    return f"the busiest of {replicas:,} replicas has {busiest:.2f}x the mean attention" if replicas > 1 else ""


def _loads(setup: Setup, own: Sequence[Varying], seconds: float) -> Loads:
    strategy, documents = setup.strategy, setup.shard.documents
    assert documents is not None  # noqa: S101 - for the type checker
    sums: dict[int, float] = {}
    for window, part in (pair for one in own for pair in one.windows):
        sums[window] = sums.get(window, 0.0) + part
    # to a thousandth, so that strategies share what is drawn
    windows: Windows = tuple((window, round(part / seconds, 3)) for window, part in sorted(sums.items()))
    cp = strategy.cp if strategy.cp_kind == "all-gather" else 1
    return loads_of(documents, strategy.seq, strategy.micro_batch, cp, windows)


def in_step(setup: Setup) -> int:
    """Replicas that meet in every layer."""
    strategy = setup.strategy
    experts = -(-strategy.ep * strategy.etp // (strategy.tp * strategy.cp)) if setup.model.moe else 1
    sharded = -(-strategy.shard_group // strategy.cp) if strategy.zero == 3 else 1
    return max(1, experts, sharded)


def varying(setup: Setup, chunk: Chunk) -> Varying:
    """What of a chunk's passes grows with the keys that a token meets."""
    windows = {kind.name: kind.window for kind in layer_kinds(setup.model)}
    sums: dict[int, float] = {}
    forward = backward = 0.0
    for block, repeat in chunk.runs:
        for index, op in enumerate(block.ops):
            if grown := _longer(op):
                f, i = _slope(op, grown, setup)
                again = f if index in block.walk.recomputed else 0.0
                window = 0 if op.kind == "scan" else chosen_keys(setup.shard) or windows.get(block.name, 0)
                forward, backward = forward + repeat * f, backward + repeat * (i + again)
                sums[window] = sums.get(window, 0.0) + repeat * (f + i + again)
    return Varying(forward, backward, tuple(sums.items()))


def _longer(op: Op) -> Op | None:
    """The operator with a few more keys; none: they do not change it."""
    if op.kind == "attention" and not op.bytes_f and op.shape[5] == 0.5:
        return op._replace(shape=(*op.shape[:2], op.shape[2] * LONGER, *op.shape[3:]))
    if op.name == "index scores":
        shape = (op.shape[0], op.shape[1] * LONGER, *op.shape[2:])
        return op._replace(shape=shape, bytes_f=op.bytes_f * LONGER, bytes_b=op.bytes_b * LONGER)
    return None


def _slope(op: Op, grown: Op, setup: Setup) -> tuple[float, float]:
    faster = ASSUMED.fp8_attention if op.kind == "attention" and setup.shard.fp8_attention else 1.0
    now, then = op_times(op, setup.machine), op_times(grown, setup.machine)
    f, i = ((b - a) / (LONGER - 1) / faster for a, b in zip(now[:2], then[:2], strict=True))
    return f, i


def _in_the_pipeline(
    setup: Setup, done: Passes, each: Seconds, footprints: Sequence[Footprint], loads: Loads
) -> float:  # fmt: skip
    """Seconds by which a pipeline takes longer if its micro batches are as unequal as these, on average."""
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
    pieces = data.schedule.microbatches // strategy.microbatches
    slopes = np.zeros((B + 1, len(own)))
    slopes[F] = [one.forward / pieces for one in own]
    slopes[I] = slopes[B] = [one.backward / pieces for one in own]
    plain, pairs = data.duration.copy(), data.pair
    data.each, spans = True, []
    for turn in _turns(strategy, loads, len(data.codes)):
        excess = np.repeat(turn, pieces)
        varied = plain[:, None] + slopes.reshape(-1, 1) * (excess - 1)
        data.duration = np.maximum(varied, 0.0).ravel()
        if pairs is not None:
            data.pair = _paired(data, plain, pairs)
        data.next[:] = 0
        replay(data)
        spans.append(float(data.end.max()))
    return float(np.mean(spans[1:])) - spans[0]


def _paired(data: Prepared, plain: Floats, pairs: Floats) -> Floats:
    """Passes that run together, longer as both are."""
    found, m = pairs.copy(), data.schedule.microbatches
    for k in data.pairs:
        codes = data.codes[k : k + 2]
        alone = plain[codes // m].sum()
        found[k] *= data.duration[codes].sum() / alone if alone else 1.0
    return found


def _turns(strategy: Strategy, loads: Loads, actions: int) -> Iterator[Floats]:
    """What every micro batch has over the mean one: first all alike, then as unequal as they are in other turns."""
    count = strategy.microbatches
    values = loads.quantiles(count)
    yield np.full(count, values.mean())
    if strategy.packing == "balanced":  # every replica has its own in the order in which they are dealt
        yield values
        return
    rng = np.random.default_rng(SEED)
    for _ in range(max(1, min(TURNS, ACTIONS // actions))):
        yield rng.permutation(values)
