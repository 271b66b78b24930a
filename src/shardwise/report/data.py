"""Answers as plain values and as lines: what `--json` writes, the page's server sends and the terminal says, one maker
for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import TYPE_CHECKING, Any

from shardwise.errors import ShardwiseError
from shardwise.estimate.estimate import Estimate
from shardwise.estimate.intervals import ANY, distance, likely, likeness, pair_width, widest_cause, within_error
from shardwise.estimate.packings import packings
from shardwise.estimate.predictions import ledger_table, predictions_of, predictions_table
from shardwise.estimate.standing import standings
from shardwise.inputs.serialise import Plain, to_plain
from shardwise.plan.file import plan_table
from shardwise.plan.plan import Plan, proof_sentence
from shardwise.plan.predict import provenance_of
from shardwise.report.estimate import Table, between, chance, searched, summary
from shardwise.search.nothing_fits import why_nothing
from shardwise.search.question import GAP, Answer, Candidate, NearestRun, Proposal, slower
from shardwise.search.regret import unshown
from shardwise.search.simplicity import kinds_of
from shardwise.units import show_bytes, show_percent, show_seconds

if TYPE_CHECKING:
    from shardwise.estimate.advice import Change
    from shardwise.estimate.detail import Detail
    from shardwise.frameworks.target import Export
    from shardwise.search.what_if import WhatIf
    from shardwise.search.why import Why


def facts(answer: Answer) -> Iterator[tuple[str, str]]:
    """The lines on top."""
    assert answer.best is not None  # noqa: S101 - for the type checker: an answer without one is told otherwise
    yield from summary(answer.best)
    yield "proof", proven(answer, after="--explain says what the space is")
    yield from other_plans(answer)
    yield from alone(answer)
    for name, text in searched(answer.counts):
        yield name, f"{text}; {answer.cpu_seconds:.1f} CPU s"


def alone(answer: Answer) -> Iterator[tuple[str, str]]:
    """What each kind of a mixed cluster reaches without the others, and whether that is faster or as fast."""
    best = answer.best
    for one in answer.alone if best else ():
        ratio = one.seconds / best.iteration_seconds if best else 1.0
        words = likeness(abs(log(ratio)) / pair_width(best), slower=ratio > 1) if best else ""
        words = words or ("faster: leave the others out" if ratio < 1 else "")
        told = f"{one.cluster} takes {show_seconds(one.seconds)} ({ratio - 1:+.1%}) with {one.strategy}"
        yield "alone", f"{told}; {words}" if words else told


def proven(answer: Answer, *, after: str = "") -> str:
    """Bound and gap, in a sentence: the proof speaks of the fastest."""
    other = answer.best is not answer.fastest
    above = f"of the fastest; the recommended plan is {show_percent(answer.gap_of(answer.best), 2)} above it"
    return proof_sentence(answer.bound, answer.gap, before=above if other else "", after=after)


def other_plans(answer: Answer) -> Iterator[tuple[str, str]]:
    """What is expected of the recommended plan beside the fastest, the simplest and the nearest measured run."""
    best, roles = answer.best, {"fastest": answer.fastest, "simplest": answer.simplest}
    same = [name for name, one in roles.items() if one and best and one.strategy == best.strategy]
    if same:
        yield "it is also", f"the {' and the '.join(same)}" + (_reserve(answer, best) if "simplest" in same else "")
    yield from ((name, _beside(answer, one, best)) for name, one in roles.items() if one and best and name not in same)
    if (own := _proposal(answer, best)) and len(answer.proposals) > 1:
        yield "regret", f"{regret_text(own.regret)} expected{_driver(answer, own)}{_standing(answer, own)}"
    if answer.nearest is not None:
        yield "nearest run", nearest_text(answer.nearest)


def _reserve(answer: Answer, best: Estimate | None) -> str:
    """What must be said of a recommended plan that is called the simplest: how it stands beside the fastest."""
    fastest = answer.fastest
    share = best.iteration_seconds / fastest.iteration_seconds - 1 if best and fastest else 0.0
    if best and fastest and likely(distance(best, fastest), slower=True):
        return f" within the error, but likely slower than the fastest ({share:+.1%})"
    return " within the error"


def regret_text(share: float) -> str:
    """Expected regret: of draws, so that a tenth of a percent says nothing."""
    return "under 1%" if share < 0.005 else show_percent(share, 0)


def _driver(answer: Answer, own: Proposal) -> str:
    """What most of a plan's regret comes from: its predicted time, its kinds, or the error of all predictions."""
    slower = own.candidate.seconds / min(one.candidate.seconds for one in answer.proposals) - 1
    error = own.regret - slower - own.surcharge
    if own.regret < 0.01 or answer.best is None:
        return ""
    if error >= max(slower, own.surcharge):
        cause = widest_cause(answer.best)
        return ", mostly from the error of predictions" + (f" ({cause})" if cause != ANY else "")
    return f", mostly {'since it is predicted to be slower' if slower > own.surcharge else 'from its unusual kinds'}"


def _standing(answer: Answer, own: Proposal) -> str:
    """How a plan's regret compares with those of the others."""
    least, weighed = min(one.regret for one in answer.proposals), f"{len(answer.proposals)} plans weighed"
    if own.regret == least:
        return f", the least of {weighed}"
    # from the fastest to the simplest; `weighed` takes a simpler one where the search cannot tell them apart
    simpler = answer.proposals.index(own) > [one.regret for one in answer.proposals].index(least)
    apart = (1 + own.regret) / (1 + least) - 1
    taken = ", a simpler one is taken" if simpler and apart < GAP else ""
    return f"; the least of {weighed} is {regret_text(least)}{taken}"


def _proposal(answer: Answer, one: Estimate | None) -> Proposal | None:
    return next((p for p in answer.proposals if one is not None and p.candidate.strategy == one.strategy), None)


def _beside(answer: Answer, one: Estimate, best: Estimate) -> str:
    """Another plan of the answer: the fastest beside the recommended one, any other beside the fastest, and what speaks
    against it.
    """
    other, name = (best, "recommended") if one is answer.fastest else (answer.fastest or best, "fastest")
    share = one.iteration_seconds / other.iteration_seconds - 1
    words = likeness(distance(one, other), slower=share > 0) or "more than the error"
    told = f"{one.strategy}: {show_seconds(one.iteration_seconds)} ({share:+.1%} beside the {name} one, {words})"
    found = _proposal(answer, one)
    if found is None:
        return told
    odd = [
        kind for kind in unshown(found.kinds) if kind not in kinds_of(best.strategy, experts=best.model.moe is not None)
    ]
    why = f" ({', '.join(odd)}: unusual, and not measured beside layouts without)" if odd else ""
    return f"{told}, expected regret {regret_text(found.regret)}{why}"


def nearest_text(run: NearestRun) -> str:
    """The measured run, what it reached, and what we predict of it."""
    off = show_percent(abs(run.predicted_seconds / run.seconds - 1))
    side = "more" if run.predicted_seconds > run.seconds else "less"
    differs = f" ({', '.join(run.differs)})" if run.differs else ""
    return (
        f"{run.id}: {run.model} on {run.cluster}{differs}, {run.strategy}: measured {show_seconds(run.seconds)}, "
        f"MFU {show_percent(run.mfu)}; predicted {show_seconds(run.predicted_seconds)}, {off} {side}"
    )


def plans_data(answer: Answer) -> Plain:
    """The plans of an answer by their names."""
    plans = {"recommended": answer.best, "fastest": answer.fastest, "simplest": answer.simplest}
    told: Plain = {name: _plan_data(answer, one) for name, one in plans.items() if one is not None}
    near = answer.nearest
    if near is not None:
        shown = ("id", "source", "model", "cluster", "seconds", "mfu", "predicted_seconds", "predicted_interval")
        told["nearest"] = {
            **{name: getattr(near, name) for name in shown}, "strategy": str(near.strategy), "distance": near.distance,
            "differs": list(near.differs), "sentence": nearest_text(near),
        }  # fmt: skip
    return told


def _plan_data(answer: Answer, one: Estimate) -> Plain:
    found, other = _proposal(answer, one), answer.best if one is answer.fastest else answer.fastest
    told = {"strategy": str(one.strategy), **{name: getattr(one, name) for name in SHORT}, "gap": answer.gap_of(one)}
    if found is not None:
        told |= {"regret": found.regret, "surcharge": found.surcharge, "kinds": list(found.kinds)}
    apart = distance(one, other) if other is not None else float("inf")
    slower = other is not None and one.iteration_seconds > other.iteration_seconds
    return {**told, "within_error": apart <= 1, "likely": likely(apart, slower=slower)}


def candidates(answer: Answer, top: int) -> Table:
    """The best simulated strategy of every layout."""
    rows: list[tuple[str, ...]] = [
        (str(one.strategy), show_seconds(one.seconds), between(one), slower(answer, one), show_percent(one.mfu),
         show_bytes(one.total_bytes), chance(one), ", ".join(answer.roles(one.strategy)))
        for one in answer.shown(top)
    ]  # fmt: skip
    return ("strategy", "iteration", "nine runs in ten", "slower", "MFU", "memory", "fits", "plan"), rows


def space(answer: Answer) -> Iterator[str]:
    """What the bound covers, and the strategies of the space by axis."""
    yield f"\nwhat the bound covers: {answer.counts.covers}"
    yield "\nstrategies of the space by axis"
    for axis, found in answer.counts.axes.items():
        if len(found) > 1:
            yield f"{axis:<11}{', '.join(f'{value}: {n:,}' for value, n in found.items())}"


SHORT = (
    "iteration_seconds", "iteration_seconds_interval", "mfu", "fits", "fits_probability", "total_bytes",
    "total_bytes_interval",
)  # fmt: skip


def _predicted(found: Estimate) -> Plain:
    return predictions_table(predictions_of(found, memory_limit=found.memory_limit))


def estimate_data(found: Estimate, changes: tuple[Change, ...], inside: Detail) -> Plain:
    """An estimate, with the changes that would help and what it is made of."""
    advice = [
        {
            "change": change.text, "strategy": str(change.strategy), "seconds": change.seconds, "bytes": change.bytes,
            "fits": change.fits,
        }
        for change in changes
    ]  # fmt: skip
    inputs = {"model": found.model, "cluster": found.cluster, "strategy": found.strategy}
    packed = {"packings": [one._asdict() for one in packings(found)]} if found.strategy.documents else {}
    ways = standings(found) if found.model.towers else ()
    stood = {"towers": [one._asdict() for one in ways]} if ways else {}
    return {
        "strategy": str(found.strategy), "inputs": inputs, "predictions": _predicted(found),
        "work": [one._asdict() for one in inside.work], "groups": [one._asdict() for one in inside.groups],
        "advice": advice, **packed, **stood, "provenance": provenance_of(found),
    }  # fmt: skip


def answer_data(answer: Answer, plan: Plan, top: int) -> Plain:
    """The plan of a search, the plans of the answer, and the best of every layout."""
    top_layouts = [candidate_data(answer, one) for one in answer.shown(top)]
    kinds = [one._asdict() | {"strategy": str(one.strategy)} for one in answer.alone]
    apart = {"alone": kinds} if kinds else {}
    return {**plan_table(plan), "plans": plans_data(answer), "top": top_layouts, **apart}


def candidate_data(answer: Answer, candidate: Candidate) -> Plain:
    """A simulated strategy of a search."""
    return {
        "strategy": str(candidate.strategy), "iteration_seconds": candidate.seconds,
        "iteration_seconds_interval": candidate.iteration_seconds_interval, "mfu": candidate.mfu,
        "total_bytes": candidate.total_bytes, "fits": candidate.fits, "fits_probability": candidate.fits_probability,
        "within_error": answer.within_error(candidate), "likely": likely(answer.distance(candidate), slower=True),
        "roles": list(answer.roles(candidate.strategy)),
    }  # fmt: skip


def why_lines(found: Why) -> list[str]:
    """Why a strategy lost, in sentences."""
    from shardwise.search.why import sentences

    return list(sentences(found))


def why_data(found: Why) -> Plain:
    """Why a strategy lost."""
    return {
        "sentence": "; ".join(why_lines(found)),
        "change": found.change,
        **({"note": found.note} if found.note else {}),
        "strategy": str(found.other.strategy),
        "fits": "no" if found.missing else found.other.fits,
        "fits_probability": found.other.fits_probability,
        "iteration_seconds": found.other.iteration_seconds,
        "iteration_seconds_interval": found.other.iteration_seconds_interval,
        "plan_iteration_seconds": found.best.iteration_seconds,
        "plan_iteration_seconds_interval": found.best.iteration_seconds_interval,
        "slower": found.slower,
        "within_error": found.within_error,
        "missing_bytes": found.missing,
        "rank": found.rank,
        "parts": [{"name": p.name, "plan": p.best, "other": p.other, "lost": p.lost} for p in found.parts],
    }


def what_if_rows(found: WhatIf) -> list[tuple[str, Estimate | None]]:
    """The estimates that are compared, by their names."""
    return [
        ("the plan as it is", found.before),
        ("the same strategy there", found.kept),
        ("the best there", found.again.best),
    ]


def what_if_data(found: WhatIf) -> Plain:
    """A plan on another cluster: before, kept, and planned again."""
    rows = {name: None if one is None else _short(one, found.before) for name, one in what_if_rows(found)}
    return {**rows, "conditions": found.again.question.conditions}


def kept_note(what: str, conditions: str) -> str:
    """That a plan's own conditions bound what was searched."""
    return f'{what} keeps the conditions of the plan: {conditions} (others on the same axes with --only, as "ep>=1")'


def _short(found: Estimate, before: Estimate) -> dict[str, Any]:
    told = {"strategy": str(found.strategy), **{name: getattr(found, name) for name in SHORT}}
    return told if found is before else {**told, "within_error": within_error(before, found)}


def what_if_table(found: WhatIf) -> Table:
    """The same for people."""
    heads = ("", "iteration", "nine runs in ten", "change", "MFU", "memory", "fits", "strategy")
    return heads, [
        (name, show_seconds(one.iteration_seconds), between(one), _changed(found.before, one), show_percent(one.mfu),
         show_bytes(one.total_bytes), f"{one.fits} ({chance(one)})", str(one.strategy))
        for name, one in what_if_rows(found)
        if one is not None
    ]  # fmt: skip


def _changed(before: Estimate, one: Estimate) -> str:
    if one is before:
        return ""
    share = f"{one.iteration_seconds / before.iteration_seconds - 1:+.1%}"
    return f"{share}, within the error" if within_error(before, one) else share


def nothing_data(answer: Answer) -> Plain:
    """A search that found nothing."""
    near = answer.closest
    told = near and {**to_plain(near), "ledger": ledger_table(near.ledger)}
    return {"fits": "no", "closest": told, "why": why_nothing(answer), "search": answer.counts}


def export_data(made: Export) -> Plain:
    """An export with its files; of a schedule alone, which no plan stands behind, its target only."""
    files = [{"name": file.name, "text": file.text} for file in made.files]
    if not (made.strategy or made.shape):
        return {"target": made.target, "files": files}
    return {
        "target": made.target, "speaks": made.speaks, "plan": made.plan, "strategy": str(made.strategy or made.shape),
        "predicted": made.prediction, "runtime": made.runtime, "as_written": made.as_written,
        "losses": [str(fault) for fault in made.losses], "by_hand": list(made.by_hand), "files": files,
    }  # fmt: skip


LARGEST = 200_000
"""Characters that the files of one target may have inside a page; larger ones are left to `shardwise export`."""


def every_export(plan: Plan) -> list[Plain]:
    """All targets, as far as their files are small; one that cannot say the plan has its refusal as `error`."""
    from shardwise.frameworks.export import target_names

    return [found for target in target_names() if (found := _small(plan, target)) is not None]


def _small(plan: Plan, target: str) -> Plain | None:
    from shardwise.frameworks.export import export

    try:
        found = export_data(export(plan, target))
    except ShardwiseError as error:
        return {"target": target, "error": str(error)}
    return found if sum(len(file["text"]) for file in found["files"]) <= LARGEST else None


def plans_page(plans: Sequence[Plan], views: Sequence[Plain] = (), answer: Answer | None = None) -> str:
    """One page of one plan, or of several side by side, with their plan files and every target's files; a single plan
    with all its single steps, and the strategies of the `answer` that it is of.
    """
    from shardwise.report.page import page_of
    from shardwise.report.view import plan_around, plan_view

    shown = views or [plan_view(plan) for plan in plans]
    files, exports = [plan_table(plan) for plan in plans], [every_export(plan) for plan in plans]
    return page_of(
        shown, plans=files, exports=exports, steps=plan_around(plans[0], answer) if len(plans) == 1 else None
    )
