"""A result as Markdown for a pull request: a short table on top, the ledgers folded away, names taken as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from shardwise.cost.ledger import Ledger
from shardwise.estimate.estimate import Estimate
from shardwise.estimate.intervals import within_error
from shardwise.plan.file import diff
from shardwise.plan.plan import Plan
from shardwise.plan.predict import estimate_of
from shardwise.report import estimate as report
from shardwise.report.data import alone, candidates, other_plans, proven
from shardwise.report.text import ROUNDING
from shardwise.search.nothing_fits import why_nothing
from shardwise.search.question import Answer
from shardwise.units import show_bytes, show_percent, show_seconds

_BAR = re.compile("[█·]+ *")
_DIFFERENCES = 40
"""Values of the inputs that a comparison lists."""


def plan_markdown(plan: Plan, found: Estimate | None = None) -> str:
    """A plan: estimated anew, with the proof it carries."""
    return estimate_markdown(found or estimate_of(plan), report.proven(plan))


def estimate_markdown(found: Estimate, facts: Sequence[tuple[str, str]] = ()) -> str:
    """One strategy: its numbers, its stages, and where time and memory go."""
    return joined([_head(found), facts_table([*report.summary(found), *facts]), _stages(found), *_ledgers(found)])


def answer_markdown(answer: Answer, shown: int = 5) -> str:
    """What a search found: the recommended plan, the fastest and the simplest beside it, and the other layouts."""
    best = answer.best
    if best is None:
        head = f"### {plain(answer.question.model.name)} on {plain(answer.question.cluster.name)}: nothing fits"
        return joined([head, f"```text\n{why_nothing(answer)}\n```"])
    facts = [
        *report.summary(best), ("proof", proven(answer)), *other_plans(answer), *alone(answer),
        *report.searched(answer.counts),
    ]  # fmt: skip
    heads, rows = candidates(answer, shown)
    others = table(heads, [(_code(name), *rest) for name, *rest in rows])
    return joined([_head(best), facts_table(facts), _stages(best), folded("Other layouts", others), *_ledgers(best)])


def diff_markdown(left: Plan, right: Plan, names: tuple[str, str] = ("before", "after")) -> str:
    """Two plans beside each other: what is predicted, and the inputs in which they differ."""
    pair = [estimate_of(plan) for plan in (left, right)]
    rows = [(name, *cells) for name, cells in _compared(*pair)]
    numbers = table(("", *map(plain, names), "change"), rows)
    changed = [one for one in diff(left, right) if one.path.partition(".")[0] in {"model", "cluster", "strategy"}]
    cells = [(_code(one.path), _code(_said(one.left)), _code(_said(one.right))) for one in changed[:_DIFFERENCES]]
    more = f"\n\n{len(changed) - _DIFFERENCES} more values differ." if len(changed) > _DIFFERENCES else ""
    inputs = table(("input", *map(plain, names)), cells) + more if cells else "The inputs are the same."
    gain = pair[1].tokens_per_second_per_gpu / pair[0].tokens_per_second_per_gpu - 1
    near = ", within the error" if within_error(*pair) else ""
    title = f"### {plain(names[1])} against {plain(names[0])}: {gain:+.1%} tokens per second and GPU{near}"
    return joined([title, numbers, inputs])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as GitHub draws it: the first column to the left, the others to the right. Cells are Markdown already."""
    rules = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, rules, *rows))


def _head(found: Estimate) -> str:
    where = f"{plain(found.model.name)} on {plain(found.cluster.name)}"
    fits = {"yes": "fits", "no": "does not fit", "close": "may or may not fit"}[found.fits]
    seconds = f"{show_seconds(found.iteration_seconds)} ({report.between(found)})"
    title = f"### {where}: {seconds} per iteration, {fits}"
    return f"{title}\n\n{_code(str(found.strategy))} with {plain(found.strategy.runtime)}"


def facts_table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and what is said about them."""
    lines = (f"| {plain(name)} | {plain(text)} |" for name, text in rows)
    return "\n".join(["| | |", "|---|---|", *lines])


def _stages(found: Estimate) -> str:
    heads, rows = report.stages(found)
    return table([*map(plain, heads)], [[plain(_BAR.sub("", cell)) for cell in row] for row in rows])


def _ledgers(found: Estimate) -> Iterator[str]:
    rows = [(name, show_seconds(value), show_percent(value / found.time.value)) for name, value in _tree(found.time)]
    yield folded("Where the time goes (busiest pipeline rank)", table(("part", "time", "share"), rows))
    heads, lines = report.memory(found)
    cells = [(_part(name), *map(plain, values)) for name, *values in lines]
    yield folded("Where the memory goes (GiB per pipeline rank)", table([*map(plain, heads)], cells))
    yield f"<sub>Shardwise; calibrated on {plain(found.calibration)}.</sub>"


def _part(name: str) -> str:
    """A name of a drawn tree, moved to the right in place of the drawing."""
    found = re.match("[├└]─ ", name)
    return "&emsp;" + plain(name[found.end() :]) if found else plain(name)


def _tree(ledger: Ledger, depth: int = 0, least: float = 0.0) -> Iterator[tuple[str, float]]:
    yield "&emsp;" * depth + plain(ledger.name), ledger.value
    least = least or abs(ledger.value) * ROUNDING
    for part in sorted(ledger.parts, key=lambda part: -part.value):
        if abs(part.value) > least:
            yield from _tree(part, depth + 1, least)


def folded(title: str, text: str) -> str:
    """Text that is shown on a click."""
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def _compared(left: Estimate, right: Estimate) -> Iterator[tuple[str, tuple[str, str, str]]]:
    rows = {
        "iteration": (left.iteration_seconds, right.iteration_seconds, show_seconds),
        "tokens/s/GPU": (left.tokens_per_second_per_gpu, right.tokens_per_second_per_gpu, "{:,.0f}".format),
        "MFU": (left.mfu, right.mfu, show_percent),
        "synchronous bubble": (left.bubble, right.bubble, show_percent),
        "memory": (left.total_bytes, right.total_bytes, show_bytes),
    }  # fmt: skip
    near = ", within the error" if within_error(left, right) else ""
    for name, (a, b, show) in rows.items():
        change = f"{100 * (b - a):+.1f} points" if show is show_percent else f"{b / a - 1:+.1%}"
        yield name, (show(a), show(b), change + (near if name == "iteration" else ""))
    yield "nine runs in ten", (report.between(left), report.between(right), "")
    yield "fits", (left.fits, right.fits, "" if left.fits == right.fits else "**changed**")
    yield "probability of fitting", (report.chance(left), report.chance(right), "")


def _said(value: object) -> str:
    return "absent" if value is None else str(value)


def plain(text: str) -> str:
    """Text that is neither Markdown nor HTML, on one line."""
    escaped = _line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#@!])", r"\\\1", escaped)


def _code(text: str) -> str:
    """Text as it is typed."""
    inner = _line(text).replace("`", "'").replace("|", "\\|")
    return f"`{inner}`"


def _line(text: str) -> str:
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def joined(parts: Iterable[str]) -> str:
    """Paragraphs; empty ones are left out."""
    return "\n\n".join(part for part in parts if part) + "\n"
