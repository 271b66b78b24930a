"""What `balance loop` prints: prediction beside peak, round by round, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwise.measure.dry_loop import WORTH, DryRound, Looped

_STATES = {
    "within": "within its limits, but prediction and peaks did not agree in so many rounds",
    "over": "no plan was measured within its limits in so many rounds; allow --rounds more, or more memory",
    "waiting": "waiting for a dry run",
    "interrupted": "interrupted: this is the best so far",
}
_FIRST = "interrupted before a plan was measured within its limits; the same command goes on where this one stopped"
_UNMEASURED = "the plan so far, which no dry run has measured: simulated"


def round_rows(one: DryRound) -> tuple[list[str], list[tuple[str, ...]]]:
    """Per stage: what was predicted, kept free and measured."""
    rows = []
    for stage, (said, free, peak, limit) in enumerate(
        zip(one.predicted, one.margin, one.measured, one.limits, strict=True)
    ):
        word = "over its limit" if peak > limit else "off" if stage in one.surprised else ""
        numbers = (f"{value:,.0f}" for value in (said, free, peak))
        rows.append((str(stage), *numbers, f"{peak - said:+,.0f}", f"{limit - peak:,.0f}", word))
    return ["stage", "predicted MB", "margin", "measured", "off", "left", ""], rows


def round_line(one: DryRound) -> str:
    worst = max(range(len(one.off)), key=lambda stage: abs(one.off[stage]))
    said = "every stage fits" if one.fits else "does not fit"
    off, share = one.off[worst], abs(one.off[worst]) / one.predicted[worst]
    beside = f"{'more than' if worst in one.surprised else 'within'} its margin of {one.margin[worst]:,.0f} MB"
    if share <= one.tolerance:
        beside = f"within {100 * one.tolerance:.3g}%"
    return f"{said}; stage {worst} is furthest off: {off:+,.0f} MB ({100 * share:.1f}%), {beside}"


def loop_lines(found: Looped) -> Iterator[str]:
    """The plan, how far it is to be trusted, and where its YAML is."""
    best = found.best
    if found.waiting:
        script = Path(found.waiting.folder) / "dryrun.sh"
        yield f"round {found.waiting.number} is written, simulated {found.waiting.simulated:,.2f}"
        yield f"run bash {script} where MindFormers is, then give the same command again"
        return
    yield _ended(found)
    if best is None and found.interrupted and found.unmeasured:
        yield f"{_UNMEASURED} {found.unmeasured.simulated:,.2f}"
        yield from _lists(found.unmeasured)
    if best is None:
        return
    left = min(limit - peak for limit, peak in zip(best.limits, best.measured, strict=True))
    simulated = f"simulated {best.simulated:,.2f}, {left:,.0f} MB left"
    yield f"the fastest plan that was measured within its limits is that of round {best.number}: {simulated}"
    yield from _lists(best)
    yield f"your YAML with it is in {best.folder}"


def _lists(one: DryRound) -> Iterator[str]:
    for name, table in one.lists.items():
        rows = [list(row) for row in table]
        yield f"  {name}: {rows[0] if len(rows) == 1 else rows}"


def _agreed(tolerance: float) -> str:
    """What the end of the loop means."""
    near = f"within its margin or {100 * tolerance:.3g}% of what was predicted"
    return f"every stage of the last round is {near}, and no plan is predicted to be faster by {100 * WORTH:.3g}%"


def _ended(found: Looped) -> str:
    """Why the loop is over, and what to do where it did not get there."""
    if found.interrupted and not found.best:
        return _FIRST
    if found.state == "agreed":
        return _agreed(found.rounds[0].tolerance)
    if found.further:
        more = f"a plan of {found.further.simulated:,.2f} is predicted: give --rounds {found.further.number}"
        return f"ended by --rounds {len(found.rounds)}; {more}"
    if not found.contradicted or found.interrupted:
        return _STATES[found.state]
    last = found.rounds[-1]
    said = "within its limits" if found.best else "no plan was measured within its limits"
    return (
        f"{said}, but round {last.number} contradicts those before, so no further round can be planned: look at its "
        f"logs; to dry-run it again, remove {last.folder}/logs and give the same command"
    )


def loop_data(found: Looped) -> dict[str, Any]:
    """The JSON answer."""
    best = found.best
    return {
        "state": found.state, "best": best.number if best else None, "simulated": best.simulated if best else None,
        "contradicts": found.contradicted, "further": found.further.simulated if found.further else None,
        "fits": "yes" if best else "no", "mindformers": best.lists if best else None,
        "waiting": found.waiting.folder if found.waiting else None,
        "rounds": [
            {"number": one.number, "folder": one.folder, "simulated": one.simulated, "layers": one.layers,
             "predicted": one.predicted, "margin": one.margin, "measured": one.measured, "limits": one.limits,
             "fits": "yes" if one.fits else "no", "agrees": one.agrees}
            for one in found.rounds
        ],
    }  # fmt: skip
