"""A pipeline's timeline as a view, of a schedule or of a balance: columns of numbers, and the memory curve of every
rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from shardwise.estimate.iteration import Iteration, Lane
from shardwise.inputs.serialise import Plain
from shardwise.partition.compare import Compared, bubble_of
from shardwise.partition.problem import BalanceAnswer, Evaluation, Problem
from shardwise.pipeline.action import KINDS
from shardwise.pipeline.timeline import Timeline

_KINDS = {"forward": 0, "inputs": 1, "weights": 2, "backward": 3}
_LEDGER = {"forward": "forward", "inputs": "backward, inputs", "weights": "backward, weights", "backward": "backward"}


def schedule_view(
    timeline: Timeline,
    facts: Mapping[str, str] | None = None,
    *,
    title: str = "",
    seconds: bool = False,
    bound: float | None = None,
    kind: str = "schedule",
) -> Plain:
    """The view of a timeline; `facts` are names of the page's dictionary (or any words) with their text."""
    schedule = timeline.schedule
    name = title or schedule.name or "schedule"
    makespan = timeline.makespan
    limit = max((x for x in timeline.costs.memory_limit if x < float("inf")), default=None)
    return {
        "kind": kind,
        "id": hashlib.sha256(f"{name} {makespan!r} {schedule.actions}".encode()).hexdigest()[:12],
        "title": name,
        "subtitle": f"pp {schedule.pp}, vpp {schedule.vpp}, {schedule.microbatches} micro batches",
        "unit": "seconds" if seconds else "units",
        "strategy": "",
        "axes": {
            "schedule": schedule.name, "pp": schedule.pp, "vpp": schedule.vpp, "microbatches": schedule.microbatches,
        },
        "numbers": {
            "makespan": makespan, "period": timeline.period, "bubble": timeline.bubble, "bound": bound,
            "gap": max(0.0, makespan / bound - 1.0) if bound else None,
            "total_bytes": max(timeline.peak), "memory_limit": limit,
        },
        "facts": [[key, text] for key, text in (facts or {}).items()],
        "stages": [_stage(timeline, rank) for rank in range(schedule.pp)],
        "timeline": timeline_data(timeline),
        "ledger": {"time": _causes(timeline), "memory": []},
        "candidates": [],
        "notes": [note] if (note := too_long(timeline)) else [],
    }  # fmt: skip


def _stage(timeline: Timeline, rank: int) -> Plain:
    kinds, spent = timeline.kinds(rank), timeline.end[rank] - timeline.start[rank]
    times = {name: float(spent[kinds == own].sum()) for name, own in _KINDS.items()}
    limits, static = timeline.costs.memory_limit, timeline.costs.static
    held, peak = static[rank] if static else 0.0, timeline.peak[rank]
    return {
        "rank": rank,
        "layers": [],
        "recomputed": [],
        "time": {**times, "bubble": max(0.0, timeline.makespan - sum(times.values()))},
        "memory": {"static": held, "activations": peak - held},
        "total": peak,
        "limit": limits[rank] if limits and limits[rank] < float("inf") else None,
    }


def _causes(timeline: Timeline) -> Plain:
    """Where the makespan goes, the mean over ranks: work by kind, and the bubble by cause."""
    ranks, makespan = range(timeline.schedule.pp), timeline.makespan
    stages = [_stage(timeline, rank)["time"] for rank in ranks]
    work = [{"name": _LEDGER[name], "value": sum(one[name] for one in stages) / len(stages)} for name in _KINDS]
    waits = [{"name": name, "value": share * makespan} for name, share in timeline.bubbles().items() if share > 0]
    bubble = {"name": "bubble", "value": timeline.bubble * makespan, "parts": waits}
    return {"name": "makespan", "value": makespan, "parts": [part for part in (*work, bubble) if part["value"]]}


MOST_ACTIONS = 200_000
"""Longer timelines are left out: they would make a page of tens of megabytes."""
MOST_SPANS = 120_000
"""So is the traffic of longer ones; a trace has all of it."""


def timeline_data(timeline: Timeline, whole: Iteration | None = None) -> Plain | None:
    """Plain numbers of a timeline; None where it is too long. `whole`: the iteration that it belongs to."""
    schedule = timeline.schedule
    if schedule.actions > MOST_ACTIONS:
        return None
    finite = [limit for limit in timeline.costs.memory_limit if np.isfinite(limit)]
    data: Plain = {
        "pp": schedule.pp, "vpp": schedule.vpp, "chunks": schedule.chunks, "microbatches": schedule.microbatches,
        "makespan": timeline.makespan, "bubble": timeline.bubble, "placement": list(schedule.rank_of),
        "limit": max(finite, default=None), "peak": max(timeline.peak), "peaks": list(timeline.peak),
        "critical": _critical(timeline), "ranks": [_rank(timeline, rank) for rank in range(schedule.pp)],
    }  # fmt: skip
    return data if whole is None else _with_lanes(data, whole)


def _with_lanes(data: Plain, whole: Iteration) -> Plain:
    """With what stands beside the passes; of long iterations without the traffic inside them."""
    lanes = [whole.lanes(rank) for rank in range(data["pp"])]
    drawn = sum(len(lane.start) for own in lanes for lane in own) <= MOST_SPANS
    for rank, (row, own) in enumerate(zip(data["ranks"], lanes, strict=True)):
        row["lanes"] = [_lane(lane) for lane in own] if drawn else []
        row["after"] = [[part.name, part.start, part.end] for part in whole.after(rank)]
    return data | {"seconds": whole.seconds, "lanes": [lane.name for lane in lanes[0]] if drawn else []}


def _lane(lane: Lane) -> Plain:
    return {
        "start": _short(lane.start), "end": _short(lane.end), "hidden": (~lane.exposed).astype(int).tolist(),
        "codes": lane.codes.tolist(),
    }  # fmt: skip


def _critical(timeline: Timeline) -> list[int]:
    """Codes of the chain of actions that the makespan hangs on, first to last."""
    schedule = timeline.schedule
    found = ((KINDS.index(a.kind), a.chunk, a.microbatch) for a in (step.action for step in timeline.critical_path()))
    return [(kind * schedule.chunks + chunk) * schedule.microbatches + microbatch for kind, chunk, microbatch in found]


def too_long(timeline: Timeline) -> str:
    """The note that stands for a timeline that is left out; empty where it is not."""
    actions = timeline.schedule.actions
    if actions <= MOST_ACTIONS:
        return ""
    return f"the timeline has {actions:,} actions and is left out; up to {MOST_ACTIONS:,} are shown (use --trace)"


def _rank(timeline: Timeline, rank: int) -> Plain:
    times, held = timeline.memory(rank)
    return {
        "codes": timeline.schedule.codes[rank].tolist(),
        "start": _short(timeline.start[rank]), "end": _short(timeline.end[rank]),
        "times": _short(times), "held": _short(held),
        "pairs": list(timeline.schedule.pairs[rank]) if timeline.schedule.pairs else [],
    }  # fmt: skip


def _short(values: np.ndarray) -> list[float]:
    """Nine digits: less than a pixel at any zoom, and half the bytes."""
    return [float(f"{value:.9g}") for value in values.tolist()]


def balance_view(answer: BalanceAnswer) -> Plain:
    """The view of a balanced pipeline."""
    proof = "proven" if answer.proven else f"{100 * answer.gap:.2f}%"
    facts = {"gap": proof, "method": answer.method, "bubble": str(bubble_of(answer.problem, answer.best))}
    return _view(answer.problem, answer.best, answer.problem.name or "balanced", facts, answer.bound)


def balance_views(answer: BalanceAnswer, compared: Iterable[Compared] = ()) -> list[Plain]:
    """The balanced pipeline first, then the others, `compared` without it."""
    others = [
        _view(one.problem, one.evaluation, one.name, {"bubble": str(bubble_of(one.problem, one.evaluation))})
        for one in compared
    ]
    return [balance_view(answer), *others]


def _view(problem: Problem, found: Evaluation, title: str, facts: dict[str, str], bound: float | None = None) -> Plain:
    view = schedule_view(found.timeline, facts, title=title, bound=bound, kind="balance")
    chosen = found.partition.chosen(problem)
    again = [sum(counts[c] for name, counts in chosen.items() if name != "none") for c in range(problem.chunks)]
    for stage in view["stages"]:
        rank = stage["rank"]
        own = [chunk for chunk, r in enumerate(problem.rank_of) if r == rank]
        limit = problem.rank_limits[rank]
        stage["layers"] = [found.partition.layers[chunk] for chunk in own]
        stage["recomputed"] = [again[chunk] for chunk in own]
        stage["total"] = found.peak[rank]
        stage["limit"] = limit if limit < float("inf") else None
    view["numbers"] |= {
        "makespan": found.simulated,
        "total_bytes": max(found.peak),
        "fits": "yes" if found.fits else "no",
        "memory_limit": max((x for x in problem.rank_limits if x < float("inf")), default=None),
    }
    return view
