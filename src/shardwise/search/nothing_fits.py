"""Why nothing fits, or no strategy is valid at all: by how much, which condition, and what would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, zip_longest
from math import ceil

import numpy as np

from shardwise.check.rule import Combination
from shardwise.check.runtime import number_format
from shardwise.estimate.estimate import estimate, room
from shardwise.inputs.load import resized
from shardwise.inputs.mixed import Mixed
from shardwise.inputs.strategy import Strategy
from shardwise.search.mixed_screen import screen_of
from shardwise.search.question import Answer, Closest, Point, Question, Rung
from shardwise.search.refine import Refined, refine
from shardwise.search.space import Space
from shardwise.search.wishes import Condition, Wishes
from shardwise.units import show_bytes, show_seconds

_SHOWN = 12
_COUNTED = {"hsdp": "zero", "cp_kind": "cp"}
"""Axes that are counted under the name of another."""


def why_nothing(answer: Answer) -> str:
    """Why no strategy was found: what stands in the way, by how much, and what would do."""
    near, question = answer.closest, answer.question
    if not answer.finished:
        return "stopped before any strategy was found that fits; give it more time"
    if not answer.counts.strategies:
        return why_empty(question)
    text = f"none of {answer.counts.strategies:,} strategies fits {question.model.name} on {question.cluster.name}"
    if near is None:
        return f"{text}; use more or larger GPUs, or a shorter sequence"
    text += f"; the closest lacks {show_bytes(near.missing)} on its fullest rank{_yardstick(question, near)}:"
    text += f"\n  {near.strategy}\n  {_held(near)}"
    if isinstance(question.cluster, Mixed) and not near.ladder:
        return f"{text}\nuse more GPUs of either kind, or larger ones, or shorten the sequence"
    return f"{text}\n{_ways(near)}"


def _held(near: Closest) -> str:
    """The ledger of the fullest rank, largest part first."""
    parts = sorted(near.ledger.parts, key=lambda part: -part.value)
    shown = ", ".join(
        f"{part.name} {show_bytes(part.value)}" for part in parts if part.value > 0.01 * near.ledger.value
    )
    return f"its peak of {show_bytes(near.ledger.value)}: {shown}"


def _ways(near: Closest) -> str:
    """The ladder, a way out each: what to change, what to type, its price, and the strategy."""
    if near.ladder:
        head = (
            f"ways out, cheapest first (time beside {show_seconds(near.seconds)} of the closest, which does not fit; "
            "prices are from a quick search, so the command may find a faster plan):"
        )
        return "\n".join([head, *(line for rung in near.ladder for line in rung_lines(rung))])
    if near.ladder_finished:
        tried = "no setting that saves memory, no number of these GPUs that was tried and no larger GPU of the catalog"
        return f"{tried} is enough; shorten the sequence, or shrink the model"
    if near.gpus:
        least = f"the smallest number of these GPUs for which one fits is {near.gpus}"
        return f"{least}:\n  {near.at_gpus}"
    return "no number of these GPUs that was tried is enough; shorten the sequence or use larger GPUs"


def rung_lines(rung: Rung) -> tuple[str, str]:
    """A way out in two lines: the change with its price, and the strategy."""
    dearer = f", {rung.dearer:+.0%} GPU-seconds" if abs(rung.dearer - rung.slower) > 1e-9 else ""
    price = f"at most {show_seconds(rung.seconds)} ({rung.slower:+.0%} time{dearer})"
    needs = f"{show_bytes(rung.total_bytes)} of {show_bytes(rung.memory)}"
    conditions = f' --only "{rung.conditions}"' if rung.conditions else ""
    cluster = f'"{rung.cluster}"' if " " in rung.cluster else rung.cluster
    return f"- {rung.change}: {price}, {needs}: -c {cluster}{conditions}", f"    {rung.strategy}"


def _yardstick(question: Question, near: Closest) -> str:
    """What is missing is measured against what may be used, `estimate` measures against the GPU: both are named."""
    from shardwise.search.api import memory_limit  # which asks this module why nothing fits

    if isinstance(question.cluster, Mixed):
        return ""
    limit, memory = question.memory_limit, question.cluster.gpu.memory
    usual = memory_limit(question.model, question.cluster, question.base.dtype, question.runtime)
    needs = near.missing + limit
    needed = f", which needs {show_bytes(needs)} of {show_bytes(memory)}"
    if limit >= memory:
        return needed
    if limit != usual:
        more = "; with the usual margin it would fit" if needs <= usual else ""
        return f"{needed} where {show_bytes(limit)} may be used, as was asked (--memory, --memory-margin){more}"
    kept = f"{show_bytes(memory - limit)} are left free, the margin for the memory model's error"
    return f"{needed} where {kept} (--memory-margin changes it)"


def why_empty(question: Question) -> str:
    """Why no strategy at all is valid, and what to change."""
    base, gpus = question.base, question.cluster.gpus
    text = f"no strategy is valid: {question.model.name} "
    case = Combination(model=question.model, cluster=question.cluster, strategy=base, runtime=question.runtime)
    for fault in number_format.find(case):
        return f"{text}cannot be trained with {base.dtype}: {fault.message}; give the number format as a condition"
    text += (
        f"with global batch {base.global_batch:,} and sequence {base.seq:,} cannot be split over "
        f"{gpus:,} GPU{'s' if gpus > 1 else ''} with {question.runtime.name} under these conditions"
    )
    found = culprits(question)
    if found:
        return "\n  ".join([f"{text}:", *found])
    if question.wishes.conditions:
        return f"{text}; no single one of them stands in the way: loosen several of them, or change the batch"
    if isinstance(question.cluster, Mixed):
        text += "; the GPUs of a stage, or without stages those of a replica, must be of one kind"
    return f"{text}; dp x micro batch must divide the batch: try a batch that is a multiple of {gpus}"


def culprits(question: Question) -> list[str]:
    """For every axis whose conditions alone stand in the way: what it could be under the others."""
    found = []
    for axis in dict.fromkeys(condition.axis for condition in question.wishes.conditions):
        own = [one for one in question.wishes.conditions if one.axis == axis]
        rest = tuple(one for one in question.wishes.conditions if one.axis != axis)
        if exclude_each_other(own):
            found.append(f"{' and '.join(map(_said, own))} exclude each other; keep one")
            continue
        total, axes = Space(question=replace(question, wishes=Wishes(conditions=rest))).count()
        if total:
            values = list(axes[_COUNTED.get(axis, axis)])
            shown = ", ".join(values[:_SHOWN]) + (", ..." if len(values) > _SHOWN else "")
            found.append(f"{' '.join(map(_said, own))}: here {axis} can be {shown}")
    return found


def exclude_each_other(conditions: list[Condition]) -> bool:
    """Whether no value meets all conditions on an axis: if one does, one of theirs does, or a number beside it."""
    named = {value for one in conditions for value in one.values}
    beside = {value + step for value in named if type(value) is int for step in (-1, 1)}
    return len(conditions) > 1 and not any(all(one.holds(value) for one in conditions) for value in named | beside)


def _said(condition: Condition) -> str:
    return f"{condition.axis}{condition.compare}{','.join(map(str, condition.values))}"


TRIED = 24
"""Strategies that are simulated for one number of GPUs."""
MOST = 64
"""Numbers of GPUs that are tried."""


def closest(question: Question, seen: Refined | None) -> Closest | None:
    """The nearest strategy here, and the smallest cluster of whole nodes for which one fits."""
    found = min((one for one in (seen, leanest(question)) if one), key=lambda one: one.total_bytes, default=None)
    if found is None:
        return None
    mixed = isinstance(question.cluster, Mixed)  # how many of which kind to add is not for us to say
    gpus, at_gpus = (0, None) if mixed else smallest(question, found)
    near = estimate(question.model, question.cluster, found.strategy, runtime=question.runtime, checked=True)
    return Closest(
        strategy=found.strategy,
        seconds=found.seconds,
        missing=near.total_bytes - room(near, question.memory_limit),
        ledger=max(near.memory, key=lambda rank: rank.total).peak,
        gpus=gpus,
        at_gpus=at_gpus.strategy if at_gpus else None,
    )


def smallest(question: Question, nearest: Refined | None) -> tuple[int, Refined | None]:
    """Add nodes until something fits, starting where the bytes of all GPUs together would do."""
    needed = nearest.total_bytes if nearest else question.memory_limit
    node = question.cluster.node_size
    start = max(1, ceil(question.cluster.gpus / node * 0.5 * needed / question.memory_limit))
    nodes, step = max(start, question.cluster.gpus // node + 1), 1
    for _ in range(MOST):
        found = leanest(_with_gpus(question, nodes * node))
        if found and found.allowed:
            return nodes * node, found
        # small steps first; where that leads nowhere, larger ones
        nodes += step
        step = step + 1 if nodes > start + 16 else step
    return 0, None


def _with_gpus(question: Question, gpus: int) -> Question:
    return replace(question, cluster=resized(question.cluster, gpus))


def leanest(question: Question, tried: int = TRIED) -> Refined | None:
    """The strategy that needs least memory, or the first found that fits; `tried`: how many are simulated."""
    space = Space(question=question)
    best: Refined | None = None
    for strategy in islice(_lean(space), tried):
        found = refine(question, strategy)
        if found and (best is None or found.total_bytes < best.total_bytes):
            best = found
        if best and best.allowed:
            return best
    return best


def _lean(space: Space) -> Iterator[Strategy]:
    """The leanest by bound of every split of a layer and kind of pipeline, the kinds by turns: the bound of one kind
    may lie further below what is needed than that of another.
    """
    screen = screen_of(space)
    least = min((base.micro_batch for base in space.bases), default=0)
    kinds: dict[int, dict[tuple[int, ...], tuple[float, int, Point]]] = {}
    for order, base in enumerate(base for base in space.bases if base.micro_batch == least):
        bytes_, start = screen.rows(base).bytes, 0
        for layout in space.layouts(base):
            size = len(space.shardings(base, layout)) * len(space.recomputes(base, layout))
            if not size:
                continue
            at = start + int(np.argmin(bytes_[start : start + size]))
            start += size
            split = (base.tp, base.cp, base.ep, base.etp)
            kind = kinds.setdefault((layout.pp > 1) + (layout.vpp > 1), {})
            if split not in kind or bytes_[at] < kind[split][0]:
                kind[split] = (float(bytes_[at]), order, screen.point(base, at))
    queues = [sorted(kind.values(), key=lambda one: one[:2]) for _, kind in sorted(kinds.items())]
    for turn in zip_longest(*queues):
        yield from (space.strategy(one[2]) for one in turn if one)
