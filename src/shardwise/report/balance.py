"""What `balance` prints: the block for MindFormers' YAML, tables of a plan, of a fit, of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from shardwise.frameworks.megatron.write import layout
from shardwise.frameworks.mindformers.names import JIT_LEVELS, LESS_MEMORY
from shardwise.partition.balance import mixes
from shardwise.partition.compare import Compared, bubble_of
from shardwise.partition.decompose import MemoryFit
from shardwise.partition.lists import Table, can_say, to_lists
from shardwise.partition.problem import BalanceAnswer, Evaluation, Problem
from shardwise.partition.spread import spread_of
from shardwise.plan.plan import Plan
from shardwise.search.balance_plan import Balanced
from shardwise.units import show_bytes, show_percent, show_seconds

Rows = list[tuple[str, ...]]
_LISTS = ("offset", "recompute", "select_recompute", "select_comm_recompute")


def paste_block(problem: Problem, evaluation: Evaluation) -> str:
    """The lines for MindFormers' YAML: one list, or one per chunk."""
    lists = to_lists(problem, evaluation.partition)
    return "\n".join(f"  {name}: {_shown(getattr(lists, name))}" for name in _LISTS)


def _shown(table: Table) -> str:
    rows = [list(row) for row in table]
    return str(rows[0] if len(rows) == 1 else rows)


def plan_rows(problem: Problem, evaluation: Evaluation) -> tuple[list[str], Rows]:
    """Per rank: layers and choices of its chunks, peak and what is left."""
    chosen = evaluation.partition.chosen(problem)
    used = [name for name, counts in chosen.items() if any(counts)]
    rows = []
    for rank in range(problem.pp):
        own = [chunk for chunk, r in enumerate(problem.rank_of) if r == rank]
        layers = [str(evaluation.partition.layers[chunk]) for chunk in own]
        counts = [" ".join(str(chosen[name][chunk]) for chunk in own) for name in used]
        limit, peak, margin = problem.rank_limits[rank], evaluation.peak[rank], evaluation.margin[rank]
        left = "" if limit == float("inf") else f"{limit - peak - margin:,.0f}"
        own_margin = [f"{margin:,.0f}"] if problem.fit else []
        rows.append((str(rank), " ".join(layers), *counts, f"{peak:,.0f}", *own_margin, left))
    return ["stage", "layers", *used, "peak MB", *(["margin MB"] if problem.fit else []), "left MB"], rows


def compared_rows(compared: Iterable[Compared]) -> tuple[list[str], Rows]:
    rows: Rows = []
    for one in compared:
        bubble = bubble_of(one.problem, one.evaluation)
        shares = (f"{share:.4f}" for share in (bubble.real, bubble.ideal, bubble.imbalance, bubble.recompute))
        rows.append(
            (one.name, f"{one.evaluation.simulated:,.2f}", *shares, f"{max(one.evaluation.peak):,.0f}", _fitting(one))
        )
    return ["strategy", "simulated", "bubble", "ideal", "imbalance", "recompute", "largest peak MB", "fits"], rows


def _fits(problem: Problem, found: Evaluation) -> str:
    """Whether every stage fits; close: only without its margin."""
    if found.fits:
        return "yes"
    surely = any(peak > limit for peak, limit in zip(found.peak, problem.rank_limits, strict=True))
    return "no" if surely else "close"


def _fitting(one: Compared) -> str:
    """Whether a strategy fits, or the stages that are over and by how much."""
    found, fits = one.evaluation, _fits(one.problem, one.evaluation)
    over = [rank for rank, missing in enumerate(found.over) if missing]
    if fits == "yes":
        return fits
    stages = f"stage {', '.join(map(str, over[:4]))}{' ...' * (len(over) > 4)}, {max(found.over):,.0f} over"
    return f"no: {stages}" if fits == "no" else f"not surely: {stages} with its margin"


def plan_facts(found: Balanced) -> list[tuple[str, str]]:
    """What balancing a plan gained, and what is proven."""
    was, now = found.before.iteration_seconds, found.after.iteration_seconds
    said = f"{show_percent(1 - now / was, 2)} less than {show_seconds(was)}" if now < was else "as fast as it was"
    proof = f"no cut that fits takes less than {show_seconds(found.bound)}: gap {show_percent(found.gap, 2)}"
    proof = f"{proof} (under the cost model in use)" if found.bound else "no bound is known"
    limit = found.after.memory_limit
    asked = [("limit", f"{show_bytes(limit)} ({limit / 1e6:,.0f} MB of 10^6 bytes) of every rank")] if limit else []
    return [("balanced", said), ("proof", proof), *asked]


def plan_data(found: Balanced) -> dict[str, Any]:
    """The JSON answer where a plan was balanced."""
    return {
        "strategy": str(found.after.strategy), "seconds": found.after.iteration_seconds,
        "before": found.before.iteration_seconds, "bound": found.bound, "gap": found.gap,
        "total_bytes": found.after.total_bytes, "fits": found.after.fits,
    }  # fmt: skip


def fit_rows(fit: MemoryFit) -> Rows:
    errors = spread_of(fit).errors
    return [(name, f"{value:,.1f}", f"{errors[name]:,.0f}") for name, value in fit.values.items()]


def fit_line(fit: MemoryFit) -> str:
    """How well a fit explains its peaks, and how much there is to judge it by."""
    judged = f"{fit.spare} degrees of freedom" if fit.spare else "no degree of freedom: nothing to judge it by"
    noise = f"a peak is taken to be off by {spread_of(fit).noise:,.0f}"
    return f"residual {fit.rms:,.0f} rms, {judged}; {noise}; condition {fit.condition:.1f}"


def residual_rows(fit: MemoryFit) -> tuple[list[str], Rows]:
    """In the order of rounds and stages, whatever the order in the file; several rounds are numbered."""
    odd = spread_of(fit).odd
    order = sorted(range(len(fit.measured)), key=lambda k: (fit.measured[k].round, fit.measured[k].stage))
    several = any(m.round for m in fit.measured)
    rows = []
    for k in order:
        m, rest = fit.measured[k], round(fit.residuals[k]) or 0
        head = (str(m.round + 1),) if several else ()
        said = "does not fit" if k in odd else ""
        rows.append((*head, str(m.stage), str(m.layers), f"{m.peak:,.0f}", f"{rest:+,}" if rest else "0", said))
    return [*(["round"] if several else []), "stage", "layers", "measured", "residual", ""], rows


def beside(answer: BalanceAnswer, others: Iterable[Compared]) -> list[Compared]:
    """The answer first, then what it is compared with."""
    return [Compared(name="balanced", problem=answer.problem, evaluation=answer.best), *others]


def plan_notes(plan: Plan, problem: Problem) -> Iterator[str]:
    """What differs between a plan that gets the layers and the problem that they are of."""
    if plan.strategy.microbatches != problem.microbatches:
        theirs = f"{plan.strategy.microbatches} in the plan, but {problem.microbatches} in what is balanced"
        yield f"micro batches are {theirs}: another split may be best for the plan"


def answer_lines(answer: BalanceAnswer) -> Iterator[str]:
    """What is said below the table: how good it is, and how to hand it over."""
    problem, best = answer.problem, answer.best
    said = "proven optimal" if answer.proven else f"gap {100 * answer.gap:.2f}%"
    under = f"under these costs and this order{', within limits less these margins' if problem.fit else ''}"
    yield f"simulated {answer.simulated:,.4f}, bound {answer.bound:,.4f}: {said} {under}"
    if problem.fit:
        yield _confidence_line(answer)
    yield f"{answer.evaluations:,} partitions looked at in {answer.seconds:.1f} CPU s; bound by {answer.method}"
    yield f"bubble {bubble_of(problem, best)}"
    if can_say(problem, best.partition):
        yield "to paste into MindFormers' YAML:"
        yield paste_block(problem, best)
        if best.timeline.schedule.name == "low-memory":
            levels = " or ".join(JIT_LEVELS)
            yield f"start the job with {LESS_MEMORY}=1 and jit_level {levels}: so MindSpore runs the low-memory order"
    if problem.rank_of == tuple(chunk % problem.pp for chunk in range(problem.chunks)):
        yield f"Megatron --pipeline-model-parallel-layout {layout(best.partition.layers)}"


def _confidence_line(answer: BalanceAnswer) -> str:
    """With what confidence limits are held, and what that costs."""
    held = f"every stage holds its limit at {100 * answer.problem.confidence:g}% (margins by Student's t)"
    held += _unmeasured(answer)
    if answer.if_known is None:
        return held
    cost = show_percent(answer.simulated / answer.if_known - 1, 2)
    return f"{held}; were the memory known exactly, {answer.if_known:,.4f} would do: the margins cost {cost}"


def _unmeasured(answer: BalanceAnswer) -> str:
    """What that confidence takes for granted: no measured run had so many chunks or stages."""
    problem, fit = answer.problem, answer.problem.fit
    if fit is None or any(m.held for m in fit.measured):
        return ""
    if problem.vpp > 1:
        order = answer.best.timeline.schedule.name
        return f", if {order} holds as many micro batches as modelled: only one chunk a stage was measured"
    return f", if it runs as the {fit.pp} stages that were measured do" if fit.pp != problem.pp else ""


def answer_notes(answer: BalanceAnswer) -> Iterator[str]:
    """What a reader of the answer must know beside it."""
    problem, used = answer.problem, answer.best.timeline.schedule.name
    if mixes(answer):
        if len(problem.runs) == 1:
            mixed = "some chunks mix select alone and comm alone"
            yield f"{mixed}, which MindFormers' lists cannot say; they say both and none"
        else:
            yield "some chunks recompute layers of several kinds as MindFormers' lists cannot say: no lists are given"
    if problem.order is None and used != problem.schedule:
        yield f"{problem.schedule} would stop with {problem.microbatches} micro batches: {used} was used"
    if answer.out_of_time:
        yield (
            "not proven within the time limit: another machine may give another answer; --effort 1 counts steps instead"
        )
    if answer.interrupted:
        yield "interrupted: this is the best so far"


def answer_data(answer: BalanceAnswer, compared: Iterable[Compared] = ()) -> dict[str, Any]:
    """The JSON answer."""
    problem, best = answer.problem, answer.best
    data: dict[str, Any] = {
        "name": problem.name, "simulated": answer.simulated, "bound": answer.bound, "gap": answer.gap,
        "proven": answer.proven, "seconds": answer.seconds, "method": answer.method,
        "evaluations": answer.evaluations, "interrupted": answer.interrupted, "out_of_time": answer.out_of_time,
        "schedule": best.timeline.schedule.name, "pp": problem.pp, "vpp": problem.vpp,
        "microbatches": problem.microbatches, "splits": problem.splits, "layers": best.partition.layers,
        "counts": best.partition.chosen(problem), "counts_by_kind": _by_kind(problem, best), "peak": best.peak,
        "margin": best.margin, "confidence": problem.confidence if problem.fit else None, "if_known": answer.if_known,
        "fits": _fits(problem, best),
        "limits": None if float("inf") in problem.rank_limits else problem.rank_limits,
        "bubble": asdict(bubble_of(problem, best)),
    }  # fmt: skip
    if can_say(problem, best.partition):
        lists = to_lists(problem, best.partition)
        data["mindformers"] = {name: getattr(lists, name) for name in _LISTS}
        data["mindformers_environment"] = {LESS_MEMORY: int(data["schedule"] == "low-memory")}
    data["compared"] = [
        {
            "name": one.name,
            "simulated": one.evaluation.simulated,
            "bubble": asdict(bubble_of(one.problem, one.evaluation)),
            "peak": one.evaluation.peak,
            "fits": _fits(one.problem, one.evaluation),
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
