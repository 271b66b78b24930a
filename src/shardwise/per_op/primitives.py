"""The primitives of bottleneck alleviation, each with its signature: what it does to time, memory and communication.

After Aceso (Liu et al., EuroSys 2024, doi 10.1145/3627703.3629554, section on reconfiguration primitives); the code is
ours. Recompute has no primitive: it follows from memory after every change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from shardwise.per_op.evaluate import PerOpCost
from shardwise.per_op.question import OperatorLayout, OperatorQuestion
from shardwise.per_op.tables import layouts_of, sample_counts
from shardwise.per_op.workshop import PlanDraft, StagePart


class Situation(NamedTuple):
    """What a primitive sees: the draft, its cost, and the stage that is the bottleneck."""

    question: OperatorQuestion
    draft: PlanDraft
    cost: PerOpCost
    stage: int


class Primitive(NamedTuple):
    """A way to change a draft; + raises, - lowers, 0 leaves alone."""

    name: str
    time: str
    memory: str
    communication: str
    apply: Callable[[Situation], Iterator[tuple[str, PlanDraft]]]


def move_operators(bench: Situation) -> Iterator[tuple[str, PlanDraft]]:
    """Operators leave the bottleneck for the stages with most room, through all stages between."""
    over = max(bench.cost.memory) > bench.question.memory
    room = [-memory for memory in bench.cost.memory] if over else list(bench.cost.spare)
    order = sorted((index for index in range(len(room)) if index != bench.stage), key=lambda i: (-room[i], i))
    for partner in order[:3]:
        count = 1
        while count < len(bench.draft.parts[bench.stage].layouts):
            moved = shifted(bench.draft, bench.stage, partner, count)
            if moved is not None:
                yield f"moved {count} operators from stage {bench.stage} to stage {partner}", moved
            count = count + 1 if count < 4 else count * 2


def shifted(draft: PlanDraft, source: int, target: int, count: int) -> PlanDraft | None:
    """Every boundary between two stages shifts by `count` operators; newcomers take their neighbour's layout."""
    parts = list(draft.parts)
    step = 1 if target > source else -1
    for index in range(source, target, step):
        own, other = parts[index], parts[index + step]
        if len(own.layouts) <= count:
            return None
        if step == 1:
            parts[index] = own._replace(layouts=own.layouts[:-count])
            parts[index + 1] = other._replace(layouts=(other.layouts[0],) * count + other.layouts)
        else:
            parts[index] = own._replace(layouts=own.layouts[count:])
            parts[index - 1] = other._replace(layouts=other.layouts + (other.layouts[-1],) * count)
    return draft._replace(parts=tuple(parts))


def _scaled(part: StagePart, dimension: str, *, up: bool) -> StagePart | None:
    """A stage with twice or half its GPUs, in tp or dp of every operator."""
    made = []
    for tp, dp, variant in part.layouts:
        size = tp if dimension == "tp" else dp
        if not up and size % 2:
            return None
        size = size * 2 if up else size // 2
        tp, dp = (size, dp) if dimension == "tp" else (tp, size)  # noqa: PLW2901 - the same names for the same things
        made.append(OperatorLayout(tp, dp, variant if tp > 1 else 0))
    return StagePart(part.gpus * 2 if up else part.gpus // 2, tuple(made))


def _regrouped(bench: Situation, dimension: str, *, up: bool) -> Iterator[tuple[str, PlanDraft]]:
    """Double (or halve) the bottleneck's GPUs and let others give (or take) as many."""
    own = _scaled(bench.draft.parts[bench.stage], dimension, up=up)
    if own is None:
        return
    needed = abs(own.gpus - bench.draft.parts[bench.stage].gpus)
    spare = bench.cost.spare
    order = sorted(range(len(spare)), key=lambda i: ((-spare[i] if up else spare[i]), i))
    for first in range(len(order)):
        draft, left, told = bench.draft.changed(bench.stage, own), needed, []
        for index in order[first:]:
            part = draft.parts[index]
            change = part.gpus // 2 if up else part.gpus
            if index == bench.stage or change == 0 or change > left:
                continue
            names = ("dp", "tp") if up else (dimension, "dp", "tp")
            other = next((made for name in names if (made := _scaled(part, name, up=not up)) is not None), None)
            if other is not None:
                draft, left = draft.changed(index, other), left - change
                told.append(str(index))
            if left == 0:
                verb = "took GPUs from" if up else "gave GPUs to"
                yield f"{'doubled' if up else 'halved'} {dimension} of stage {bench.stage} and {verb} stage " + (
                    " and ".join(told)
                ), draft  # fmt: skip
                break


def more_tp(bench: Situation) -> Iterator[tuple[str, PlanDraft]]:
    return _regrouped(bench, "tp", up=True)


def more_dp(bench: Situation) -> Iterator[tuple[str, PlanDraft]]:
    return _regrouped(bench, "dp", up=True)


def less_tp(bench: Situation) -> Iterator[tuple[str, PlanDraft]]:
    return _regrouped(bench, "tp", up=False)


def less_dp(bench: Situation) -> Iterator[tuple[str, PlanDraft]]:
    return _regrouped(bench, "dp", up=False)


def _next_batch(bench: Situation, step: int) -> Iterator[tuple[str, PlanDraft]]:
    """The next or previous micro batch; every stage picks its fastest uniform layout anew."""
    sizes = sample_counts(bench.question)
    place = sizes.index(bench.draft.samples) + step if bench.draft.samples in sizes else -1
    if not 0 <= place < len(sizes):
        return
    size = sizes[place]
    choices = {part.gpus: layouts_of(bench.question, size, part.gpus) for part in bench.draft.parts}
    widest = max((len(found) for found in choices.values()), default=0)
    for pick in range(widest):
        parts = []
        for part in bench.draft.parts:
            found = choices[part.gpus]
            if not found:
                return
            layout = found[min(pick, len(found) - 1)]
            parts.append(StagePart(part.gpus, (layout,) * len(part.layouts)))
        yield (
            f"set micro batches of {size} samples, tp {parts[bench.stage].layouts[0].tp}",
            PlanDraft(size, tuple(parts)),
        )


def larger_batch(bench: Situation) -> Iterator[tuple[str, PlanDraft]]:
    return _next_batch(bench, 1)


def smaller_batch(bench: Situation) -> Iterator[tuple[str, PlanDraft]]:
    return _next_batch(bench, -1)


def _exchange(bench: Situation, towards: str) -> Iterator[tuple[str, PlanDraft]]:
    part = bench.draft.parts[bench.stage]
    more = _scaled(part, towards, up=True)
    made = _scaled(more, "dp" if towards == "tp" else "tp", up=False) if more else None
    if made is not None:
        yield (
            f"exchanged {'dp for tp' if towards == 'tp' else 'tp for dp'} in stage {bench.stage}",
            (bench.draft.changed(bench.stage, made)),
        )


def dp_for_tp(bench: Situation) -> Iterator[tuple[str, PlanDraft]]:
    return _exchange(bench, "tp")


def tp_for_dp(bench: Situation) -> Iterator[tuple[str, PlanDraft]]:
    return _exchange(bench, "dp")


PRIMITIVES = (
    Primitive("move operators", "-", "-", "0", move_operators),
    Primitive("more dp", "-", "-", "+", more_dp),
    Primitive("more tp", "-", "-", "+", more_tp),
    Primitive("less dp", "+", "+", "-", less_dp),
    Primitive("less tp", "+", "+", "-", less_tp),
    Primitive("larger micro batch", "-", "+", "0", larger_batch),
    Primitive("smaller micro batch", "+", "-", "0", smaller_batch),
    Primitive("dp for tp", "+", "-", "+", dp_for_tp),
    Primitive("tp for dp", "-", "+", "-", tp_for_dp),
)
