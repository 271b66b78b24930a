"""Seconds and bytes of every operator of the chain under every layout of a stage of `gpus` GPUs.

Evaluation, bounds and searches read these tables and nothing else, so that they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shardwise.per_op.flavour import Flavour
from shardwise.per_op.lookups import collective_seconds, send_seconds
from shardwise.per_op.profiles.table import Band, Profile
from shardwise.per_op.question import Layout, Question
from shardwise.per_op.rules import Rule, change, spec

Array = np.ndarray
NEVER = 1e9
"""Seconds of what cannot be done."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tables:
    """[layout, row of the profile] unless said otherwise; SI."""

    layouts: tuple[Layout, ...]
    gpus: int
    rows: Array
    """Row of the profile per operator of the chain."""
    forward: Array
    work: Array
    """Forward, backward, and the update spread over the micro batches."""
    act: Array
    """Kept from forward to backward, sharing counted."""
    entry: Array
    """Input, kept by the first operator of a stage."""
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


@lru_cache(maxsize=256)
def _cached(key: _Key) -> Tables:
    return _build(key.question, key.micro_batch, key.gpus)


class _Key:
    """A question is large and holds arrays: its identity is what caches compare."""

    __slots__ = ("gpus", "micro_batch", "question")

    def __init__(self, question: Question, micro_batch: int, gpus: int) -> None:
        self.question, self.micro_batch, self.gpus = question, micro_batch, gpus

    def __hash__(self) -> int:
        return hash((id(self.question), self.micro_batch, self.gpus))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and (self.question is other.question) and (
            (self.micro_batch, self.gpus) == (other.micro_batch, other.gpus)
        )  # fmt: skip


def tables_of(question: Question, micro_batch: int, gpus: int) -> Tables:
    return _cached(_Key(question, micro_batch, gpus))


def layouts_of(question: Question, micro_batch: int, gpus: int) -> tuple[Layout, ...]:
    """All ways to split an operator over a stage's GPUs that the profile covers.

    At tp 1 nothing is split and the variants are one kernel measured twice: choosing the luckier one would only mine
    noise, so that the first stands for both.
    """
    found = []
    for tp in question.profile.tps:
        dp, rest = divmod(gpus, tp)
        if rest or tp > question.tp_limit or not covers(question, micro_batch, dp):
            continue
        found += [
            Layout(tp, dp, variant)
            for variant in (question.profile.variants if tp > 1 else question.profile.variants[:1])
        ]
    return tuple(found)


def covers(question: Question, micro_batch: int, dp: int) -> bool:
    """Whether each of dp replicas gets whole samples, as many as the profile knows."""
    samples, rest = divmod(micro_batch, dp) if dp else (0, 1)
    known = question.profile.micro_batches
    if rest or not samples:
        return False
    return samples in known if question.space == "compatible" else known[0] <= samples <= known[-1]


def column(profile: Profile, name: str, samples: float, tp: int, variant: int) -> Array:
    """[row] of one column at a micro batch, interpolated linearly between those that were measured."""
    table = profile.column(name)[:, profile.tps.index(tp), profile.variants.index(variant)]
    known = profile.micro_batches
    if samples in known:
        found: Array = table[known.index(samples)]
        return found
    if len(known) == 1:  # asked for outside what a stage may run: the ideal work of a whole micro batch
        scaled: Array = table[0] * (samples / known[0])
        return scaled
    above = min(max(1, int(np.searchsorted(known, samples))), len(known) - 1)
    low, high = known[above - 1], known[above]
    share = (samples - low) / (high - low)
    mixed: Array = table[above - 1] * (1 - share) + table[above] * share
    return mixed


def _build(question: Question, micro_batch: int, gpus: int) -> Tables:
    profile, flavour = question.profile, question.flavour
    layouts = layouts_of(question, micro_batch, gpus)
    rules = [flavour.rule(name) for name in profile.ops]

    def stacked(name: str, *, size: bool = True) -> Array:
        rows = [column(profile, name, micro_batch // u.dp, u.tp, u.variant) for u in layouts]
        found = np.array(rows).reshape(len(layouts), len(profile.ops))
        return np.maximum(found, 0.0) if size and flavour.clamp_sizes else found

    forward, weights = stacked("forward", size=False), stacked("weights")
    dps = np.array([u.dp for u in layouts], dtype=float)[:, None]
    passes = max(1, question.global_batch // micro_batch)
    update = _update(question, layouts, weights) / passes if flavour.update else 0.0
    inputs, outputs = stacked("input"), stacked("output")
    share = np.array([rule.share for rule in rules])
    sharded = dps if flavour.zero else 1.0
    forth, back = _crossings(question, layouts, rules, inputs)
    return Tables(
        layouts=layouts,
        gpus=gpus,
        rows=np.array(question.chain.rows),
        forward=forward,
        work=forward + stacked("backward", size=False) + update,
        act=stacked("activations") * share,
        entry=inputs,
        static=weights * (2.0 + (flavour.master + flavour.moments) / sharded),
        weights=weights,
        reserved_f=stacked("reserved_f"),
        reserved_b=stacked("reserved_b"),
        starts=np.array([rule.starts_layer for rule in rules]),
        may=np.array([rule.recompute for rule in rules]),
        shared=share != 1.0,
        cross=forth + back,
        cross_back=back,
        enter=_enter(question, layouts, inputs),
        leave=_leave(question, layouts, outputs, micro_batch),
    )


def _update(question: Question, layouts: tuple[Layout, ...], weights: Array) -> Array:
    """Reduction of fp32 gradients over the replicas, and the optimizer's traffic (30 bytes for 2 of weights)."""
    profile, flavour = question.profile, question.flavour
    rows = []
    for layout, row in zip(layouts, weights, strict=True):
        shards = layout.dp if flavour.zero else 1
        reduce = [collective_seconds("all_reduce", layout.dp, 2 * size, profile, flavour) for size in row]
        rows.append(np.array(reduce) + 15.0 * row / flavour.update_rate / shards)
    return np.array(rows).reshape(weights.shape)


def _crossings(
    question: Question, layouts: tuple[Layout, ...], rules: list[Rule], inputs: Array
) -> tuple[Array, Array]:
    """Forward and backward seconds of resharding before every row. The row before is the one before it in the
    profile, or the last of the layer where the layer repeats; both have equal forms in every known family.
    """
    profile, flavour = question.profile, question.flavour
    count, size = len(profile.ops), len(layouts)
    forth, back = np.zeros((count, size, size)), np.zeros((count, size, size))
    if flavour.exact_lookups and "t5-post-process" in profile.ops:
        return forth, back  # Aceso turns resharding off for T5
    for row in range(1, count):
        for a, have in enumerate(layouts):
            before = spec(rules[row - 1].outputs, *have)
            for b, want in enumerate(layouts):
                step = change(before, spec(rules[row].inputs, *want))
                if step is None:
                    forth[row, a, b] = NEVER
                    continue
                forth[row, a, b] = collective_seconds(step.forward, step.gpus, inputs[b, row], profile, flavour)
                back[row, a, b] = collective_seconds(step.backward, step.gpus, inputs[b, row], profile, flavour)
    return forth, back


def _bands(question: Question) -> tuple[Band, Band]:
    return question.profile.intra, question.profile.inter or question.profile.intra


def _enter(question: Question, layouts: tuple[Layout, ...], inputs: Array) -> Array:
    profile, flavour = question.profile, question.flavour
    found = np.zeros((2, *inputs.shape))
    for crossing, band in enumerate(_bands(question)):
        for index, layout in enumerate(layouts):
            for row, size in enumerate(inputs[index]):
                found[crossing, index, row] = (
                    _both_ways(size, layout, band, profile, flavour)
                    if flavour.both_ways
                    else send_seconds(size, band, flavour)
                )
    return found


def _both_ways(size: float, layout: Layout, band: Band, profile: Profile, flavour: Flavour) -> float:
    """Slices over tp are sent and gathered on arrival (Megatron's scatter-gather), there and back."""
    slices = send_seconds(size / layout.tp, band, flavour)
    gather = collective_seconds("all_gather", layout.tp, size, profile, flavour)
    return (1.0 - flavour.overlap) * (2 * slices + gather)


def _leave(question: Question, layouts: tuple[Layout, ...], outputs: Array, micro_batch: int) -> Array:
    profile, flavour = question.profile, question.flavour
    size = len(layouts)
    found = np.zeros((2, size, size, outputs.shape[1]))
    for a, first in enumerate(layouts):
        for b, last in enumerate(layouts):
            tp = first.tp if flavour.first_tp_leaves else last.tp
            sizes = column(profile, "output", micro_batch // last.dp, tp, last.variant)
            sizes = np.maximum(sizes, 0.0) if flavour.clamp_sizes else sizes
            for crossing, band in enumerate(_bands(question)):
                found[crossing, a, b] = [
                    _both_ways(value, last, band, profile, flavour)
                    if flavour.both_ways
                    else send_seconds(value, band, flavour)
                    for value in sizes
                ]
    return found
