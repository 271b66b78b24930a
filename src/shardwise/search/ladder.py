"""Ways out where nothing fits: settings that save memory, conditions that stand in the way, more GPUs, other GPUs.

Every rung is a search of its own that found a strategy that fits. What is searched anyway (recompute, ZeRO, the micro
batch, context parallel) is a way out only where a condition forbids it. Where no single change of settings is enough,
all of them together are tried, and what is not needed is taken out again, the dearest first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from shardwise.check.mixed import maker_of
from shardwise.errors import ShardwiseError
from shardwise.estimate.estimate import Estimate
from shardwise.inputs import lookup
from shardwise.inputs.calibrations import family_of
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.load import CLUSTERS, named_cluster, resized
from shardwise.inputs.mixed import Mixed, orders_of
from shardwise.search.api import memory_limit, question_of
from shardwise.search.nothing_fits import leanest, smallest
from shardwise.search.question import Closest, Question, Rung
from shardwise.search.search import Search
from shardwise.search.wishes import without

RUNG_GAP = 0.05
"""How near its bound the price of a rung is."""
SETTINGS = (
    ("grad-bf16", "gradients in bf16"),
    ("adamw-bf16", "moments of the optimizer in bf16"),
    ("offload-optimizer", "the optimizer in host memory"),
    ("offload-activations", "activations in host memory"),
)
"""Words that save memory, cheapest first, and what they do."""
AXES = {
    "recompute": "recompute as needed", "zero": "ZeRO as needed", "mbs": "a smaller micro batch",
    "cp": "context parallel",
}  # fmt: skip
"""Conditions whose removal has a name of its own."""
OTHERS, SIZE = 4, 8 * 2**30
"""Other GPUs that are tried, least memory first, and bytes within which two have as much."""
TIMES = (2, 4, 8)
"""Of a mixed cluster, how many times as many GPUs of a kind are tried: other numbers leave few stages of one kind."""
FEW = 8
"""Lean strategies that are simulated before a change is said not to be enough."""
Stop = Callable[[], bool]


class Way(NamedTuple):
    """A change of the question, not yet known to be enough."""

    change: str
    question: Question
    words: str = ""
    """What is added to the conditions."""
    axis: str = ""
    """The axis whose conditions are taken away."""


def with_ladder(question: Question, near: Closest, stop: Stop | None = None, seconds: float | None = None) -> Closest:
    """What comes nearest, with the ways out: those that keep the cluster first, then those that keep the GPU (seconds
    of another one have another price), each kind cheapest first.

    Once `stop` says yes, the `seconds` are over or Ctrl-C is pressed, the ladder is what was found by then.
    """
    until = None if seconds is None else time.monotonic() + seconds

    def over() -> bool:
        return (stop is not None and stop()) or (until is not None and time.monotonic() > until)

    rungs: list[Rung] = []
    try:
        rungs.extend(_rungs(question, near, over))  # keeps what came before an interruption
        finished = not over()
    except KeyboardInterrupt:
        finished = False
    own = question.cluster
    here, kinds = {one.name for one in orders_of(own)}, sorted(own.gpu.name.split("+"))
    ranked = sorted(
        rungs,
        key=lambda one: (one.cluster not in here, sorted(one.gpu.split("+")) != kinds, one.seconds * one.gpus),
    )
    return replace(near, ladder=tuple(ranked), ladder_finished=finished)


def _rungs(question: Question, near: Closest, over: Stop) -> Iterator[Rung]:
    """Settings and conditions, together only where none is enough alone; then other clusters."""

    def reached(ways: Iterable[Way]) -> Iterator[Rung]:
        return (rung for way in ways if _fits(way.question) and (rung := _rung(question, way, near, over)))

    ways, here = [*_settings(question), *_relaxed(question)], False
    for rung in reached([*ways, *_unlimited(question)]):
        here = True
        yield rung
    if not here:
        for rung in reached(_together(question, ways)):
            here = True
            yield rung
    yield from reached(_elsewhere(question, near, needed=not here))


def _settings(question: Question) -> Iterator[Way]:
    for words, change in SETTINGS:
        if made := _changed(question, f"{question.conditions} {words}"):
            yield Way(change, made, words)


def _relaxed(question: Question) -> Iterator[Way]:
    """Every axis with a condition, freed."""
    for axis in dict.fromkeys(condition.axis for condition in question.wishes.conditions):
        if made := _changed(question, without(question.conditions, axis)):
            yield Way(AXES.get(axis, f"{axis} as needed"), made, axis=axis)


def _unlimited(question: Question) -> Iterator[Way]:
    """All of the memory but the usual margin, where less was asked for."""
    if question.memory_limit < _usual(question):
        yield Way("no limit of memory but the usual margin", replace(question, memory_limit=_usual(question)))


def _together(question: Question, ways: list[Way]) -> Iterator[Way]:
    """All changes at once, one of those that exclude each other at a time, less what is not needed."""
    for left_out in ("offload-activations", "offload-optimizer"):
        kept = [way for way in ways if way.words != left_out]
        made = _joined(question, kept)
        if made is None or not _fits(made):
            continue
        for way in _dearest(kept):
            fewer = [one for one in kept if one is not way]
            if (less := _joined(question, fewer)) and _fits(less):
                kept, made = fewer, less
        yield Way(" and ".join(way.change for way in kept), made)


def _dearest(ways: list[Way]) -> list[Way]:
    """Settings before conditions, the last of each first: a setting changes what is computed or where it lives."""
    return [*(one for one in reversed(ways) if one.words), *(one for one in reversed(ways) if one.axis)]


def _joined(question: Question, ways: Iterable[Way]) -> Question | None:
    conditions = question.conditions
    for way in ways:
        conditions = without(conditions, way.axis) if way.axis else f"{conditions} {way.words}"
    return _changed(question, conditions)


def _changed(question: Question, conditions: str) -> Question | None:
    """The question with other conditions; none where they change nothing, or make no sense."""
    try:
        made = question_of(
            question.model, question.cluster, global_batch=question.base.global_batch, seq=question.base.seq,
            runtime=question.runtime, only=conditions, base=question.base,
            memory_margin=question.cluster.gpu.memory - question.memory_limit,
        )  # fmt: skip
    except ShardwiseError:
        return None
    return None if (made.base, made.wishes) == (question.base, question.wishes) else made


def _fits(question: Question) -> bool:
    """Whether one of the leanest strategies fits: quicker than a search, which would prove that none does."""
    return bool(_fitting(question))


@lru_cache(maxsize=64)
def _fitting(question: Question) -> tuple[Question, ...]:
    """The question with the kinds of a mixed cluster in every order in which something fits; of a plain one itself."""
    orders = (replace(question, cluster=cluster) for cluster in orders_of(question.cluster))
    return tuple(one for one in orders if (found := leanest(one, FEW)) and found.allowed)


def _elsewhere(question: Question, near: Closest, *, needed: bool) -> Iterator[Way]:
    """The smallest number of these GPUs, and so many of the smallest other GPU, for which something fits; `needed`:
    nothing does on the cluster itself, so that settings and GPUs are tried together where GPUs alone are not enough.
    """
    if isinstance(question.cluster, Mixed):
        yield from _other_mixes(question, question.cluster)
        return
    if near.gpus:
        yield Way("more GPUs", _on(question, resized(question.cluster, near.gpus)))
    elif needed:
        saving = _joined(question, [way for way in _settings(question) if way.words != "offload-activations"])
        gpus = smallest(saving, leanest(saving))[0] if saving else 0
        if saving and gpus:
            yield Way("more GPUs, and all settings that save memory", _on(saving, resized(question.cluster, gpus)))
    if _fits(replace(question, memory_limit=_usual(question))):  # these GPUs are large enough
        return
    larger = (_on(question, cluster) for cluster in _larger(question, near.missing + question.memory_limit))
    if (there := next(filter(_fits, larger), None)) is not None:
        yield Way("another GPU", there)


def _other_mixes(question: Question, cluster: Mixed) -> Iterator[Way]:
    """One kind without the others, which may have held it back; and more of one kind, the fewest of `TIMES`."""
    for kind in cluster.kinds:
        yield Way(f"{kind.name} without the others", _on(question, kind))
    for place, kind in enumerate(cluster.kinds):
        for times in TIMES:
            kinds = (*cluster.kinds[:place], resized(kind, times * kind.gpus), *cluster.kinds[place + 1 :])
            more = _on(question, Mixed(kinds=kinds, join=cluster.join))
            if _fits(more):
                yield Way(f"{times} times as many {kind.gpu.name}", more)
                break


def _larger(question: Question, needed: float) -> list[Cluster]:
    """As many GPUs of the catalog, as fast in the number format, that have about the bytes that are needed here.

    Of the same maker, since another one's need other software; those of the own family first, then the smallest; of
    those that have as much memory the fastest.
    """
    own, dtype = question.cluster.gpu, question.base.dtype
    found = [named_cluster(f"{question.cluster.gpus}x{name}") for name in lookup.names(CLUSTERS)]
    enough = [
        one for one in found
        if maker_of(one.gpu) == maker_of(own) and one.gpu.memory > 0.9 * needed
        and one.gpu.peak(dtype) >= own.peak(dtype)
    ]  # fmt: skip
    family = family_of(own)
    ranked = sorted(enough, key=lambda one: (family_of(one.gpu) != family, one.gpu.memory // SIZE,
                                             -one.gpu.peak(dtype), one.gpu.name))  # fmt: skip
    sizes: dict[float, Cluster] = {}
    for one in ranked:
        sizes.setdefault(one.gpu.memory // SIZE, one)
    return list(sizes.values())[:OTHERS]


def _usual(question: Question) -> float:
    """What a rank may need where no limit was asked for."""
    return memory_limit(question.model, question.cluster, question.base.dtype, question.runtime)


def _on(question: Question, cluster: Cluster) -> Question:
    """The same question elsewhere: the margin is the memory model's error again, or what was asked for."""
    model, dtype, runtime = question.model, question.base.dtype, question.runtime
    asked = question.memory_limit != _usual(question)
    margin = question.cluster.gpu.memory - question.memory_limit if asked else None
    return replace(question, cluster=cluster, memory_limit=memory_limit(model, cluster, dtype, runtime, margin))


def _rung(question: Question, way: Way, near: Closest, over: Stop) -> Rung | None:
    """The fastest strategy of a changed question; none where nothing fits there, or the time was up."""
    found: Estimate | None = None
    for one in _fitting(way.question):
        answer = Search(question=one, gap=RUNG_GAP, stop=over).run()
        if answer.interrupted:
            raise KeyboardInterrupt
        best = answer.fastest if answer.finished else None
        if best and (found is None or best.iteration_seconds < found.iteration_seconds):
            found = best
    if found is None:
        return None
    cluster = found.cluster
    return Rung(
        change=way.change,
        conditions=way.question.conditions,
        cluster=cluster.name,
        gpus=cluster.gpus,
        gpu=cluster.gpu.name,
        strategy=found.strategy,
        seconds=found.iteration_seconds,
        total_bytes=found.total_bytes,
        memory=found.device.memory,
        slower=found.iteration_seconds / near.seconds - 1,
        dearer=found.iteration_seconds * cluster.gpus / (near.seconds * question.cluster.gpus) - 1,
        unlimited=way.question.cluster == question.cluster and way.question.memory_limit > question.memory_limit,
    )
