"""`shardwise validate`: predictions held against measured runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from shardwise.cli.output import Output, output_options
from shardwise.errors import InputError

if TYPE_CHECKING:
    from shardwise.measure.validate.case import Skipped
    from shardwise.measure.validate.summary import Confusion, Errors, Regret
    from shardwise.measure.validate.validate import Outcome

HEADS = ("rows", "mean", "median", "max", "bias", "worst row")
PARTS = (
    ("forward_seconds", "forward passes"),
    ("backward_seconds", "backward passes"),
    ("forward_backward_seconds", "both passes of one rank"),
    ("optimizer_seconds", "optimizer step"),
    ("peak_forward_backward_bytes", "peak memory of the passes"),
    ("peak_optimizer_bytes", "peak memory of the optimizer step"),
)


@click.command("validate")
@click.option("--data", "files", multiple=True, metavar="FILE", help="Measured runs; may be given several times.")
@output_options
def command(files: tuple[str, ...], output: Output) -> None:
    """Predict measured runs and show the errors, by source, GPU and precision.

    Without --data, the published and our own measured runs that come with Shardwise. FILE is JSON in the form of one
    of them, told by its content: a list of published runs, or {"rows": [...]} of steps or ranks measured on one GPU.

    \b
    shardwise validate
    shardwise validate --data my_runs.json --json errors.json
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.measure.validate.summary import regrets
    from shardwise.measure.validate.validate import row_of, validate

    validation = validate(files)
    outcomes, skipped = validation.outcomes, validation.skipped
    found = regrets(outcomes)
    output.answer({"rows": [row_of(result) for result in validation.results], "summary": _summary(outcomes, found)})
    if not outcomes:
        raise InputError(f"none of the {len(skipped):,} rows can be predicted:\n" + "\n".join(_reasons(skipped)))
    _say_rows(len(validation.results), skipped, output)
    _say_time(outcomes, output)
    _say_memory(outcomes, output)
    _say_parts(outcomes, output)
    _say_fits(outcomes, output)
    _say_regret(found, output)


def _say_rows(count: int, skipped: Sequence[Skipped], output: Output) -> None:
    share = f" ({100 * len(skipped) / count:.1f}%)" if skipped else ""
    output.say(f"{count:,} rows: {count - len(skipped):,} predicted, {len(skipped):,} skipped{share}")
    output.say("errors are predicted / measured - 1; mean, median and max without their sign, bias with it")
    for line in _reasons(skipped):
        output.say(line)


def _reasons(skipped: Sequence[Skipped]) -> list[str]:
    counts = Counter(_first_line(one.reason) for one in skipped)
    return [f"  skipped {number}: {reason}" for reason, number in counts.most_common(8)]


def _first_line(text: str) -> str:
    return " ".join(text.split())[:160]


def _say_time(outcomes: list[Outcome], output: Output) -> None:
    from shardwise.measure.validate import summary

    known = [one for one in outcomes if one.case.complete]
    scored = summary.scored(outcomes)
    lines = summary.table(scored, "iteration_seconds", summary.by_source)
    mean = summary.headline(outcomes)
    title = "iteration time by source: published 16-bit runs whose settings are known"
    _errors(output, title, "source", [*lines, *([mean] if mean else [])])
    if mean:
        output.say(f"(the mean over sources counts those with at least {summary.ENOUGH} rows, each the same)")
    for word, key in (("gpu", summary.by_gpu), ("precision", summary.by_precision)):
        errors = summary.table(known, "iteration_seconds", key)
        _errors(output, f"iteration time by {word}: runs whose settings are known", word, errors)
    counted = {one.case.id for one in scored}
    rest = [one for one in outcomes if one.case.id not in counted]
    _errors(
        output, "iteration time by source: other runs", "source",
        summary.table(rest, "iteration_seconds", summary.by_source),
    )  # fmt: skip


def _say_memory(outcomes: list[Outcome], output: Output) -> None:
    from shardwise.measure.validate import summary

    keys = {"source": summary.by_source, "gpu": summary.by_gpu, "precision": summary.by_precision}
    for word, key in keys.items():
        _errors(output, f"peak memory by {word}", word, summary.table(outcomes, "peak_bytes", key))


def _say_parts(outcomes: list[Outcome], output: Output) -> None:
    from shardwise.measure.validate import summary

    for quantity, name in PARTS:
        _errors(output, name, "source", summary.table(outcomes, quantity, summary.by_source))


def _errors(output: Output, title: str, word: str, lines: Iterable[Errors]) -> None:
    rows = [(one.name, str(one.rows), *_numbers(one), one.worst) for one in lines]
    if rows:
        output.say(f"\n{title}")
        output.table((word, *HEADS), rows)


def _numbers(errors: Errors) -> tuple[str, ...]:
    sizes = (f"{100 * value:.1f}%" for value in (errors.mean, errors.median, errors.max))
    return (*sizes, f"{100 * errors.bias:+.1f}%")


def _say_fits(outcomes: list[Outcome], output: Output) -> None:
    from shardwise.measure.validate.summary import confusions

    rows = [_fits_row(one) for one in confusions(outcomes)]
    if rows:
        heads = (
            "source", "rows", "ran: said fits", "ran: said no", "oom: said fits", "oom: said no",
            "right", "of ran", "of oom",
        )  # fmt: skip
        output.say("\nfits or out of memory")
        output.table(heads, rows)


def _fits_row(one: Confusion) -> tuple[str, ...]:
    counts = (one.rows, one.ran_fits, one.ran_oom, one.oom_fits, one.oom_oom)
    shares = (one.right, one.right_of_ran, one.right_of_oom)
    return (one.name, *map(str, counts), *("-" if x is None else f"{100 * x:.1f}%" for x in shares))


def _say_regret(found: list[Regret], output: Output) -> None:
    from shardwise.measure.validate.summary import mean_regret

    rows = []
    for source in sorted({one.source for one in found}):
        own = [one for one in found if one.source == source]
        worst = max(own, key=lambda one: one.regret)
        mean, spread = mean_regret(own) or 0.0, sum(one.spread for one in own) / len(own)
        numbers = (len(own), sum(one.rows for one in own))
        shares = (mean, worst.regret, spread)
        refused = sum(one.refused for one in own)
        rows.append((source, *map(str, numbers), *(f"{100 * x:.1f}%" for x in shares), str(refused), worst.chosen))
    if rows:
        heads = ("source", "sets", "runs", "mean", "max", "slowest layout", "refused", "worst choice")
        output.say("\nregret over runs that differ only in layout: measured time of the one ranked first / best - 1")
        output.table(heads, rows)


def _summary(outcomes: list[Outcome], found: list[Regret]) -> dict[str, object]:
    from shardwise.measure.validate import summary
    from shardwise.measure.validate.summary import mean_regret

    sources = sorted({one.source for one in found})
    return {
        "headline": summary.headline(outcomes),
        "iteration_seconds": summary.table(summary.scored(outcomes), "iteration_seconds", summary.by_source),
        "peak_bytes": summary.table(outcomes, "peak_bytes", summary.by_source),
        "fits": summary.confusions(outcomes),
        "regret": {source: mean_regret(found, source) for source in sources},
        "regrets": found,
    }
