"""A balanced pipeline as a view, and the strategies it is compared with beside it."""

from __future__ import annotations

from collections.abc import Iterable

from shardwise.inputs.serialise import Plain
from shardwise.partition.compare import Compared, bubble_of
from shardwise.partition.problem import Answer, Evaluation, Problem
from shardwise.report.view.schedule import schedule_view


def balance_view(answer: Answer) -> Plain:
    """The view of a balanced pipeline."""
    proof = "proven" if answer.proven else f"{100 * answer.gap:.2f}%"
    facts = {"gap": proof, "method": answer.method, "bubble": str(bubble_of(answer.problem, answer.best))}
    return _view(answer.problem, answer.best, answer.problem.name or "balanced", facts, answer.bound)


def balance_views(answer: Answer, compared: Iterable[Compared] = ()) -> list[Plain]:
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
