"""In what two orders differ, as `diff` says it: the JSON, and tables for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardwise.errors import Fault, InputError
from shardwise.inputs.serialise import Plain
from shardwise.pipeline.action import Action
from shardwise.pipeline.compare import Moved, RankDiff
from shardwise.pipeline.timeline import Timeline
from shardwise.plan.order_diff import OrderDiff, OrderSide
from shardwise.report.markdown import joined, plain, table
from shardwise.report.page import page_of
from shardwise.report.pipeline import bytes_text, time_text
from shardwise.report.view import schedule_view
from shardwise.units import show_percent

_NAMED = 6
"""Actions that are named of a rank where not all of them are asked for."""


def order_data(found: OrderDiff) -> Plain:
    """The JSON answer."""
    return {
        "equal": found.equal,
        "left": _side_data(found.left),
        "right": _side_data(found.right),
        "costs": found.costs or None,
        "ranks": [_rank_data(one) for one in found.ranks],
    }


def _side_data(side: OrderSide) -> Plain:
    schedule, timeline = side.schedule, side.timeline
    told: Plain = {
        "name": side.name, "pp": schedule.pp, "vpp": schedule.vpp, "microbatches": schedule.microbatches,
        "actions": schedule.actions, "fault": side.fault or None, "makespan": None, "period": None, "bubble": None,
        "peak": None,
    }  # fmt: skip
    if timeline is None:
        return told
    return told | {
        "makespan": timeline.makespan, "period": timeline.period, "bubble": timeline.bubble,
        "peak": list(timeline.peak),
    }  # fmt: skip


def _rank_data(one: RankDiff) -> Plain:
    return {
        "rank": one.rank,
        "equal": one.equal,
        "first": one.first,
        "left": str(one.left) if one.left else None,
        "right": str(one.right) if one.right else None,
        "moved": [{"action": str(m.action), "left": m.left, "right": m.right, "by": m.by} for m in one.moved],
        "only_left": [str(action) for action in one.only_left],
        "only_right": [str(action) for action in one.only_right],
        "together_left": [[*map(str, pair)] for pair in one.together_left],
        "together_right": [[*map(str, pair)] for pair in one.together_right],
    }


def verdict(found: OrderDiff) -> str:
    """The answer in a line."""
    count = found.left.schedule.actions
    if found.equal:
        return f"the orders are equal: {len(found.ranks)} ranks, {count:,} actions"
    unlike = [one for one in found.ranks if not one.equal]
    moved, lost, new = (sum(len(getattr(one, name)) for one in unlike) for name in ("moved", "only_left", "only_right"))
    parts = [f"{moved:,} actions moved"] if moved else []
    parts += [f"{lost:,} only in {found.left.name}"] if lost else []
    parts += [f"{new:,} only in {found.right.name}"] if new else []
    for name, side in (("together_left", found.left), ("together_right", found.right)):
        pairs = sum(len(getattr(one, name)) for one in unlike)
        parts += [f"{pairs:,} pairs run together only in {side.name}"] if pairs else []
    return f"the orders differ on {len(unlike)} of {len(found.ranks)} ranks: {', '.join(parts)}"


def notes(found: OrderDiff) -> list[str]:
    """What cannot run, and what is not timed."""
    told = [f"{side.name} cannot run: {side.fault}" for side in (found.left, found.right) if side.fault]
    if not found.costs:
        told.append("times and memory need costs: --costs F,I,W of one chunk, such as 10,11,9")
    elif found.costs != "given":
        told += [
            f"{side.name} is another pipeline than the costs of {found.costs} are of: it is not timed"
            for side in (found.left, found.right)
            if side.timeline is None and not side.fault
        ]
    return told


def figures(found: OrderDiff) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Both orders beside each other: sizes, and what they take where costs are known."""
    sides = (found.left, found.right)
    rows = [
        ("ranks, chunks a rank", *(f"{one.schedule.pp}, {one.schedule.vpp}" for one in sides)),
        ("micro batches", *(f"{one.schedule.microbatches:,}" for one in sides)),
        ("actions", *(f"{one.schedule.actions:,}" for one in sides)),
    ]
    if any(one.timeline for one in sides):
        rows += _times([one.timeline for one in sides], seconds=found.seconds)
    return ("", found.left.name, found.right.name), rows


def _times(pair: list[Timeline | None], *, seconds: bool) -> list[tuple[str, ...]]:
    """A line a figure, `-` for an order that is not timed."""
    shown: dict[str, Callable[[Timeline], str]] = {
        "makespan": lambda one: time_text(one.makespan, seconds=seconds),
        "period": lambda one: time_text(one.period, seconds=seconds),
        "bubble": lambda one: show_percent(one.bubble, 2),
        "peak": lambda one: bytes_text(max(one.peak), seconds=seconds),
    }
    return [(name, *("-" if one is None else text(one) for one in pair)) for name, text in shown.items()]


def ranks(found: OrderDiff, *, everything: bool = False) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Every rank that differs: where first, and what is elsewhere. `everything`: all actions by name."""
    most = None if everything else _NAMED
    lost, new = (any(getattr(one, name) for one in found.ranks) for name in ("only_left", "only_right"))
    heads = ["rank", "first difference", found.left.name, found.right.name, "moved"]
    heads += [f"only in {found.left.name}"] * lost + [f"only in {found.right.name}"] * new
    rows = [
        (
            str(one.rank), f"action {one.first}", _at(one.left, one.together_left), _at(one.right, one.together_right),
            _listed([_shift(m) for m in one.moved], most),
            *([_listed([str(a) for a in one.only_left], most)] * lost),
            *([_listed([str(a) for a in one.only_right], most)] * new),
        )
        for one in found.ranks
        if not one.equal
    ]  # fmt: skip
    return heads, rows


def _at(action: Action | None, together: tuple[tuple[Action, Action], ...]) -> str:
    """What a row has where the rows differ, with what runs together with it in this row only."""
    pair = next((pair for pair in together if pair[0] == action), None)
    return f"({pair[0]};{pair[1]})" if pair else str(action or "end")


def _shift(moved: Moved) -> str:
    return f"{moved.action} {moved.by:+d}"


def _listed(texts: list[str], most: int | None) -> str:
    shown = texts if most is None or len(texts) <= most else texts[: most - 1]
    more = len(texts) - len(shown)
    return ", ".join([*shown, *([f"{more} more"] if more else [])])


def order_markdown(found: OrderDiff) -> str:
    """Both orders beside each other, and every rank that differs."""
    shown = [figures(found)] if found.equal else [figures(found), ranks(found, everything=True)]
    tables = [table([*map(plain, heads)], [[*map(plain, row)] for row in rows]) for heads, rows in shown]
    return joined([f"### {plain(verdict(found))}", *tables, "\n".join(f"- {plain(note)}" for note in notes(found))])


def order_page(found: OrderDiff) -> str:
    """One HTML page with the timelines of both."""
    timed = [(side.name, side.timeline) for side in (found.left, found.right) if side.timeline]
    if len(timed) < 2:
        raise InputError(Fault("--html", f"shows the times of both orders; {'; '.join(notes(found))}"))
    facts = {"orders": verdict(found)}
    return page_of([schedule_view(one, facts, title=name, seconds=found.seconds) for name, one in timed])
