"""A plan as the cost model in use sees it: the figures in its file may be of another version, or edited by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from shardwise.errors import ShardwiseError
from shardwise.estimate.predictions import Figures, Predictions, predictions_of
from shardwise.plan.file import Difference
from shardwise.plan.plan import Plan
from shardwise.plan.predict import asked_limit, estimate_of, provenance_of
from shardwise.plan.proof import check_proof
from shardwise.units import show_bytes, show_percent, show_seconds

TOLD = 1e-3
"""Share by which a figure of a file may differ from today's before that is said."""
SHARES = {"mfu", "mfu_full_attention", "hfu", "bubble", "gap", "fits_probability"}
_NAMED = ("iteration_seconds", "total_bytes", "fits", "mfu", "bubble")
"""The figures that a sentence names first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """A plan predicted anew."""

    plan: Plan
    """Its figures are the cost model's; a bound and a gap only where the proof still holds."""
    outdated: tuple[Difference, ...] = ()
    """Figures of the file (`left`) that are not the cost model's (`right`)."""
    note: str = ""
    """The same in a sentence; or why the plan could not be predicted, and its figures are the file's."""


def renewed(plan: Plan) -> Renewed:
    """The plan predicted anew. A per-operator plan is as it is: its file does not hold what priced its operators."""
    if plan.operators is not None:
        return Renewed(plan=plan)
    try:
        found, proof = estimate_of(plan), check_proof(plan)
    except ShardwiseError as error:
        return Renewed(plan=plan, note=f"the figures are the file's, since the cost model refuses the plan: {error}")
    told = plan.predictions
    kept = {name: getattr(told, name) for name in ("search", "rehearsed")} if told else {}
    kept["memory_limit"] = asked_limit(plan)
    if proof and not proof.fault:
        kept |= {"bound": proof.bound, "gap": proof.gap}
    now = predictions_of(found, **kept)
    differ = outdated(told, now)
    source = replace(provenance_of(found), conditions=plan.conditions or None)
    made = replace(plan, predictions=now, provenance=source)
    return Renewed(plan=made, outdated=differ, note=sentence(differ))


def outdated(then: Predictions | None, now: Figures) -> tuple[Difference, ...]:
    """The figures of a file that are not today's, those first that matter most; ledgers are parts of them."""
    return () if then is None else tuple(_differences(then, now))


def _differences(then: Predictions, now: Figures) -> Iterator[Difference]:
    for name in dict.fromkeys([*_NAMED, *(one.name for one in fields(Figures))]):
        a, b = getattr(then, name), getattr(now, name)
        if a != b if isinstance(a, str) else isinstance(a, int | float) and abs(a - b) > TOLD * max(abs(a), abs(b)):
            yield Difference(path=name, left=a, right=b)


def sentence(differ: tuple[Difference, ...]) -> str:
    """What is outdated, in words; empty: nothing."""
    if not differ:
        return ""
    told = [f"{one.path} {shown(one.path, one.left)} (now {shown(one.path, one.right)})" for one in differ[:2]]
    more = f" and {len(differ) - 2} more" if len(differ) > 2 else ""
    return f"the file's figures are not those of the cost model in use, which are shown: {', '.join(told)}{more}"


def shown(name: str, value: object) -> str:
    """A figure with its unit, which its name says."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("seconds") or name in {"bound", "makespan"}:
        return show_seconds(value)
    if name.endswith("bytes") or name == "memory_limit":
        return show_bytes(value)
    if name in SHARES:
        return show_percent(value, 2)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
