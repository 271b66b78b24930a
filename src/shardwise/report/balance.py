"""What `balance` prints: the block for MindFormers' YAML, tables of a plan, of a fit, of a comparison."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardwise.partition.compare import Compared, bubble_of
from shardwise.partition.decompose import Fit
from shardwise.partition.lists import Table, to_lists
from shardwise.partition.problem import Answer, Evaluation, Problem

Rows = list[tuple[str, ...]]
_LISTS = ("offset", "recompute", "select_recompute", "select_comm_recompute")


def paste_block(problem: Problem, evaluation: Evaluation) -> str:
    """The lines for MindFormers' YAML: one list, or one per chunk."""
    lists = to_lists(problem, evaluation.partition)
    return "\n".join(f"  {name}: {_shown(getattr(lists, name))}" for name in _LISTS)


def _shown(table: Table) -> str:
    rows = [list(row) for row in table]
    return str(rows[0] if len(rows) == 1 else rows)


def has_lists(problem: Problem) -> bool:
    """Whether MindFormers' lists can say a partition of this problem."""
    known = {"none", "select", "comm", "both", "full"}
    loop = problem.rank_of == tuple(c % problem.pp for c in range(problem.chunks))
    return loop and all(choice.name in known for run in problem.runs for choice in run.kind.choices)


def plan_rows(problem: Problem, evaluation: Evaluation) -> tuple[list[str], Rows]:
    """Per rank: layers and choices of its chunks, peak and what is left."""
    chosen = evaluation.partition.chosen(problem)
    used = [name for name, counts in chosen.items() if any(counts)]
    rows = []
    for rank in range(problem.pp):
        own = [chunk for chunk, r in enumerate(problem.rank_of) if r == rank]
        layers = [str(evaluation.partition.layers[chunk]) for chunk in own]
        counts = [" ".join(str(chosen[name][chunk]) for chunk in own) for name in used]
        limit = problem.rank_limits[rank]
        left = "" if limit == float("inf") else f"{limit - evaluation.peak[rank]:,.0f}"
        rows.append((str(rank), " ".join(layers), *counts, f"{evaluation.peak[rank]:,.0f}", left))
    return ["stage", "layers", *used, "peak", "left"], rows


def compared_rows(compared: Iterable[Compared]) -> tuple[list[str], Rows]:
    rows: Rows = []
    for one in compared:
        over = [rank for rank, missing in enumerate(one.evaluation.over) if missing]
        worst = max(one.evaluation.over)
        fits = (
            "yes"
            if not over
            else f"no: stage {', '.join(map(str, over[:4]))}{' ...' * (len(over) > 4)}, {worst:,.0f} over"
        )
        bubble = bubble_of(one.problem, one.evaluation)
        rows.append((one.name, f"{one.evaluation.simulated:,.2f}", f"{bubble.real:.4f}",
                     f"{max(one.evaluation.peak):,.0f}", fits))  # fmt: skip
    return ["strategy", "simulated", "bubble", "largest peak", "fits"], rows


def fit_rows(fit: Fit) -> Rows:
    return [(name, f"{value:,.1f}", f"{fit.errors[name]:,.0f}") for name, value in fit.values.items()]


def residual_rows(fit: Fit) -> Rows:
    """In the order of rounds and stages, whatever the order in the file."""
    order = sorted(range(len(fit.measured)), key=lambda k: (fit.measured[k].round, fit.measured[k].stage))
    shown = ((fit.measured[k], fit.residuals[k], "does not fit" if k in fit.odd else "") for k in order)
    return [(str(m.stage), str(m.layers), f"{m.peak:,.0f}", f"{rest:+,.0f}", odd) for m, rest, odd in shown]


def answer_data(answer: Answer, compared: Iterable[Compared] = ()) -> dict[str, Any]:
    """The JSON answer."""
    problem, best = answer.problem, answer.best
    bubble = bubble_of(problem, best)
    data: dict[str, Any] = {
        "name": problem.name, "simulated": answer.simulated, "bound": answer.bound, "gap": answer.gap,
        "proven": answer.proven, "seconds": answer.seconds, "method": answer.method,
        "evaluations": answer.evaluations, "interrupted": answer.interrupted, "out_of_time": answer.out_of_time,
        "schedule": best.timeline.schedule.name, "pp": problem.pp, "vpp": problem.vpp,
        "microbatches": problem.microbatches, "layers": best.partition.layers,
        "counts": best.partition.chosen(problem), "counts_by_kind": _by_kind(problem, best), "peak": best.peak,
        "fits": best.fits,
        "limits": None if float("inf") in problem.rank_limits else problem.rank_limits,
        "bubble": {"real": bubble.real, "ideal": bubble.ideal, "imbalance": bubble.imbalance,
                   "recompute": bubble.recompute},
    }  # fmt: skip
    if has_lists(problem):
        lists = to_lists(problem, best.partition)
        data["mindformers"] = {name: getattr(lists, name) for name in _LISTS}
    data["compared"] = [
        {
            "name": one.name,
            "simulated": one.evaluation.simulated,
            "peak": one.evaluation.peak,
            "fits": one.evaluation.fits,
        }
        for one in compared
    ]
    return data


def _by_kind(problem: Problem, best: Evaluation) -> list[dict[str, Any]]:
    """Per run of layers: its kind and, per choice, the layers of every chunk."""
    return [
        {"kind": run.kind.name, "choices": {
            choice.name: [chunk[k][j] for chunk in best.partition.counts] for j, choice in enumerate(run.kind.choices)
        }}
        for k, run in enumerate(problem.runs)
    ]  # fmt: skip
