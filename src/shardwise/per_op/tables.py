"""Seconds and bytes of every operator of the chain under every layout of a stage of `gpus` GPUs.

Bounds and searches read these tables and nothing else. They add up, and what they add up to never exceeds what the
evaluation of a plan says, so that a bound of the one is a bound of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from shardwise.per_op.profiles.table import Profile
from shardwise.per_op.question import OperatorLayout, OperatorQuestion

Array = np.ndarray
NEVER = 1e9
"""Seconds of what cannot be done."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tables:
    """[layout, row of the profile] unless said otherwise; SI."""

    layouts: tuple[OperatorLayout, ...]
    gpus: int
    rows: Array
    """Row of the profile per operator of the chain."""
    forward: Array
    work: Array
    """Forward, backward, and the update spread over the micro batches."""
    act: Array
    """Kept from forward to backward for the next operator, sharing counted."""
    made: Array
    """Of it, what is there again at once where a run is recomputed."""
    entry: Array
    """Input, kept by the first operator of a stage."""
    sent: Array
    """Of `act`, what the last operator of a stage does not keep: the next stage does."""
    static: Array
    """Weights, gradients, fp32 weights and optimizer states."""
    weights: Array
    reserved_f: Array
    reserved_b: Array
    starts: Array
    """[row] whether a recomputed run ends before it."""
    may: Array
    """[row] whether it may be recomputed."""
    shared: Array
    """[row] whether sharing rules its activations (matters for one slip of Aceso's)."""
    cross: Array
    """[row, layout before, layout] resharding before the operator, by its consumer; row before: the chain's."""
    cross_back: Array
    """The part of `cross` that runs backward."""
    enter: Array
    """[crossing, layout, row] receiving the stage's input."""
    leave: Array
    """[crossing, layout of the first operator, layout of the last, row] sending the stage's output."""
    fixed: float = 0.0
    """Bytes that every stage takes."""


@lru_cache(maxsize=256)
def _cached(key: _Key) -> Tables:
    return _allowed(key.question.profile, key.question.pricing.tables(key.question, key.samples, key.gpus))


def _allowed(profile: Profile, made: Tables) -> Tables:
    """A split that the profile says an operator cannot have takes for ever."""
    limits = [(row, said["tp"]) for row, name in enumerate(profile.ops)
              if (said := profile.operators.get(name, {})).get("tp")]  # fmt: skip
    if not limits:
        return made
    work = made.work.copy()
    for row, sizes in limits:
        work[[layout.tp not in sizes for layout in made.layouts], row] = NEVER
    return replace(made, work=work)


class _Key:
    """A question is large and holds arrays: its identity is what caches compare."""

    __slots__ = ("gpus", "question", "samples")

    def __init__(self, question: OperatorQuestion, samples: int, gpus: int) -> None:
        self.question, self.samples, self.gpus = question, samples, gpus

    def __hash__(self) -> int:
        return hash((id(self.question), self.samples, self.gpus))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and (self.question is other.question) and (
            (self.samples, self.gpus) == (other.samples, other.gpus)
        )  # fmt: skip


def tables_of(question: OperatorQuestion, samples: int, gpus: int) -> Tables:
    return _cached(_Key(question, samples, gpus))


def layouts_of(question: OperatorQuestion, samples: int, gpus: int) -> tuple[OperatorLayout, ...]:
    """All ways to split an operator over a stage's GPUs that the profile covers.

    At tp 1 nothing is split and the variants are one kernel measured twice: choosing the luckier one would only mine
    noise, so that the first stands for both.
    """
    found = []
    for tp in question.profile.tps:
        dp, rest = divmod(gpus, tp)
        if rest or tp > question.tp_limit or not covers(question, samples, dp):
            continue
        found += [
            OperatorLayout(tp, dp, variant)
            for variant in (question.profile.variants if tp > 1 else question.profile.variants[:1])
        ]
    return tuple(found)


def covers(question: OperatorQuestion, samples: int, dp: int) -> bool:
    """Whether each of dp replicas gets whole samples, as many as the profile knows."""
    micro_batch, rest = divmod(samples, dp) if dp else (0, 1)
    known = question.profile.micro_batches
    if rest or not micro_batch:
        return False
    return micro_batch in known if question.space == "compatible" else known[0] <= micro_batch <= known[-1]


def column(profile: Profile, name: str, micro_batch: float, tp: int, variant: int) -> Array:
    """[row] of one column at a micro batch, interpolated linearly between those that were measured."""
    table = profile.column(name)[:, profile.tps.index(tp), profile.variants.index(variant)]
    known = profile.micro_batches
    if micro_batch in known:
        found: Array = table[known.index(micro_batch)]
        return found
    if len(known) == 1:  # asked for outside what a stage may run: the ideal work of a whole micro batch
        scaled: Array = table[0] * (micro_batch / known[0])
        return scaled
    above = min(max(1, int(np.searchsorted(known, micro_batch))), len(known) - 1)
    low, high = known[above - 1], known[above]
    share = (micro_batch - low) / (high - low)
    mixed: Array = table[above - 1] * (1 - share) + table[above] * share
    return mixed


MOST_MICRO_BATCH = 256


def sample_counts(question: OperatorQuestion) -> tuple[int, ...]:
    """Samples of a micro batch to try: those of the profile, and in the full space what replicas make of them."""
    if question.sample_counts:
        return tuple(sorted(set(question.sample_counts)))
    known = question.profile.micro_batches
    if question.space == "compatible":
        return tuple(size for size in known if size <= question.global_batch)
    made = {size * dp for size in known for dp in range(1, question.gpus + 1)}
    most = min(question.global_batch, MOST_MICRO_BATCH)
    return tuple(sorted(size for size in made if size <= most and question.global_batch % size == 0))


def gpu_counts(question: OperatorQuestion) -> tuple[int, ...]:
    """GPUs that a stage may have."""
    least = question.gpus if question.stages == (1, 1) else 1
    if question.space == "compatible":
        return tuple(count for count in (1, 2, 4, 8) if least <= count <= min(question.gpus, question.node))
    return tuple(range(least, question.gpus + 1))
