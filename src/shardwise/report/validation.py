"""What `validate` says: tables of errors by source, GPU and precision, of fits and of regret; and the JSON answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from shardwise.measure.validate import summary
from shardwise.measure.validate.summary import Confusion, Coverage, ErrorRow, Regret, mean_regret
from shardwise.measure.validate.validate import INTERVALS, Outcome, Validation, row_of
from shardwise.report import markdown

HEADS = ("rows", "mean", "median", "max", "bias", "worst row")
PARTS = (
    ("forward_seconds", "forward passes"),
    ("backward_seconds", "backward passes"),
    ("forward_backward_seconds", "both passes of one rank"),
    ("optimizer_seconds", "optimizer step"),
    ("peak_forward_backward_bytes", "peak memory of the passes"),
    ("peak_optimizer_bytes", "peak memory of the optimizer step"),
)


class Listing(NamedTuple):
    """A table with its title, and what is said below it."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    below: str = ""


def validation_data(validation: Validation) -> dict[str, Any]:
    """The JSON answer."""
    outcomes, found = validation.outcomes, summary.regrets(validation.outcomes)
    sources = sorted({one.source for one in found})
    return {
        "rows": [row_of(result) for result in validation.results],
        "summary": {
            "headline": summary.headline(outcomes),
            "iteration_seconds": summary.table(summary.scored(outcomes), "iteration_seconds", summary.by_source),
            "peak_bytes": summary.table(outcomes, "peak_bytes", summary.by_source),
            "whole_jobs": {name: summary.table(_job_rows(outcomes), name, summary.by_job) for name in _JOB_WORDS},
            "fits": summary.confusions(outcomes),
            "regret": {source: mean_regret(found, source) for source in sources},
            "regrets": found,
            "coverage": {name: summary.coverages(outcomes, name) for name in INTERVALS},
        },
    }


def validation_markdown(validation: Validation) -> str:
    """The same tables as Markdown."""
    return listed_markdown("# Predictions held against measured runs", counted(validation), tables(validation))


def listed_markdown(title: str, lines: Iterable[str], listings: Iterable[Listing]) -> str:
    """Sentences as a list, then every table under its title."""
    pieces = [title, "\n".join(f"- {markdown.plain(line.strip())}" for line in lines)]
    for one in listings:
        cells = [[markdown.plain(cell) for cell in row] for row in one.rows]
        pieces += [f"## {markdown.plain(one.title[0].upper() + one.title[1:])}"]
        pieces += [markdown.table([*map(markdown.plain, one.heads)], cells)]
        pieces += [markdown.plain(one.below)] if one.below else []
    return markdown.joined(pieces)


def counted(validation: Validation) -> list[str]:
    """How many rows were predicted, and why others were not."""
    count, skipped = len(validation.results), len(validation.skipped)
    share = f" ({100 * skipped / count:.1f}%)" if skipped else ""
    return [
        f"{count:,} rows: {count - skipped:,} predicted, {skipped:,} skipped{share}",
        "errors are predicted / measured - 1; mean, median and max without their sign, bias with it",
        *reasons(validation),
    ]


def reasons(validation: Validation) -> list[str]:
    """Why rows were skipped, the most frequent reasons first."""
    counts = Counter(" ".join(one.reason.split())[:160] for one in validation.skipped)
    return [f"  skipped {number}: {reason}" for reason, number in counts.most_common(8)]


def tables(validation: Validation) -> Iterator[Listing]:
    """Every table that has a row."""
    outcomes = validation.outcomes
    every = (
        *_time(outcomes), *_memory(outcomes), *_jobs(outcomes), *_parts(outcomes), _fits(outcomes), _regret(outcomes),
        *_coverage(outcomes),
    )  # fmt: skip
    yield from (one for one in every if one.rows)


def _time(outcomes: list[Outcome]) -> Iterator[Listing]:
    known, scored = [one for one in outcomes if one.case.complete], summary.scored(outcomes)
    lines, mean = summary.table(scored, "iteration_seconds", summary.by_source), summary.headline(outcomes)
    title = "iteration time by source: published 16-bit runs whose settings are known"
    below = f"(the mean over sources counts those with at least {summary.ENOUGH} rows, each the same)" if mean else ""
    yield _errors(title, "source", [*lines, *([mean] if mean else [])], below)
    for word, key in (("gpu", summary.by_gpu), ("precision", summary.by_precision)):
        errors = summary.table(known, "iteration_seconds", key)
        yield _errors(f"iteration time by {word}: runs whose settings are known", word, errors)
    seen = {one.case.id for one in scored}
    rest = summary.table([o for o in outcomes if o.case.id not in seen], "iteration_seconds", summary.by_source)
    yield _errors("iteration time by source: other runs", "source", rest)


def _memory(outcomes: list[Outcome]) -> Iterator[Listing]:
    keys = {"source": summary.by_source, "gpu": summary.by_gpu, "precision": summary.by_precision}
    for word, key in keys.items():
        yield _errors(f"peak memory by {word}", word, summary.table(outcomes, "peak_bytes", key))


def _jobs(outcomes: list[Outcome]) -> Iterator[Listing]:
    """Whole jobs of frameworks, by framework and kind."""
    for quantity, word in _JOB_WORDS.items():
        lines = summary.table(_job_rows(outcomes), quantity, summary.by_job)
        yield _errors(f"whole jobs: {word} by framework and kind", "job", lines)


_JOB_WORDS = {"iteration_seconds": "iteration time", "peak_bytes": "peak allocated", "reserved_bytes": "peak reserved"}


def _job_rows(outcomes: list[Outcome]) -> list[Outcome]:
    return [one for one in outcomes if one.case.source.startswith(summary.JOBS)]


def _parts(outcomes: list[Outcome]) -> Iterator[Listing]:
    for quantity, name in PARTS:
        yield _errors(name, "source", summary.table(outcomes, quantity, summary.by_source))


def _errors(title: str, word: str, lines: Iterable[ErrorRow], below: str = "") -> Listing:
    return Listing(title, (word, *HEADS), [(x.name, str(x.rows), *_numbers(x), x.worst) for x in lines], below)


def _numbers(errors: ErrorRow) -> tuple[str, ...]:
    sizes = (f"{100 * value:.1f}%" for value in (errors.mean, errors.median, errors.max))
    return (*sizes, f"{100 * errors.bias:+.1f}%")


def _fits(outcomes: list[Outcome]) -> Listing:
    heads = (
        "source", "rows", "ran: said fits", "ran: said no", "oom: said fits", "oom: said no", "right", "of ran",
        "of oom",
    )  # fmt: skip
    return Listing("fits or out of memory", heads, [_fits_row(one) for one in summary.confusions(outcomes)])


def _fits_row(one: Confusion) -> tuple[str, ...]:
    counts = (one.rows, one.ran_fits, one.ran_oom, one.oom_fits, one.oom_oom)
    shares = (one.right, one.right_of_ran, one.right_of_oom)
    return (one.name, *map(str, counts), *("-" if x is None else f"{100 * x:.1f}%" for x in shares))


def _regret(outcomes: list[Outcome]) -> Listing:
    found = summary.regrets(outcomes)
    sources = sorted({one.source for one in found})
    rows = [_regret_row(source, [one for one in found if one.source == source]) for source in sources]
    heads = ("source", "sets", "runs", "mean", "max", "slowest layout", "refused", "worst choice")
    title = "regret over runs that differ only in layout: measured time of the one ranked first / best - 1"
    return Listing(title, heads, rows)


def _regret_row(source: str, own: list[Regret]) -> tuple[str, ...]:
    worst = max(own, key=lambda one: one.regret)
    shares = (mean_regret(own) or 0.0, worst.regret, sum(one.spread for one in own) / len(own))
    numbers, refused = (len(own), sum(one.rows for one in own)), sum(one.refused for one in own)
    return (source, *map(str, numbers), *(f"{100 * x:.1f}%" for x in shares), str(refused), worst.chosen)


COVERAGE_HEADS = ("regime", "rows", "sources", "inside", "half-width")


def _coverage(outcomes: list[Outcome]) -> Iterator[Listing]:
    words = {"iteration_seconds": "iteration time", "peak_bytes": "peak memory"}
    below = "(the intervals are meant to hold nine runs in ten; half-width: the median, as a share of the figure)"
    for name in INTERVALS:
        rows = coverage_rows(summary.coverages(outcomes, name))
        yield Listing(f"{words[name]} inside the printed interval", COVERAGE_HEADS, rows, below)


def coverage_rows(found: Iterable[Coverage]) -> list[tuple[str, ...]]:
    """A line a regime."""
    return [
        (one.name, str(one.rows), str(one.sources), f"{100 * one.inside:.1f}%", f"{100 * one.half_width:.1f}%")
        for one in found
    ]
