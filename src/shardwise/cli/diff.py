"""`shardwise diff`: in what two plans differ, or two orders of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise import api
from shardwise.cli.options import Number
from shardwise.cli.output import Output, markdown_option, output_options
from shardwise.errors import Fault, InputError
from shardwise.inputs.write import write_text

if TYPE_CHECKING:
    from shardwise.plan.order_diff import OrderDiff
    from shardwise.plan.plan import Plan


@click.command("diff")
@click.argument("left", metavar="A.json|A.csv")
@click.argument("right", metavar="B.json|B.csv")
@click.option("--all", "everything", is_flag=True, help="Every value of the predictions, or every action, too.")
@click.option("--orders", is_flag=True, help="Of two plans, compare the orders of their passes.")
@click.option("--costs", metavar="F,I,W|FILE", help="Of orders: times of one chunk, or a JSON file.")
@click.option("--hop", type=Number("pipeline.time"), help="Of orders: latency of a message between ranks.")
@click.option("--free-at-input-grad", type=Number("pipeline.share"), help="Of orders: share of memory that I frees.")
@click.option("--html", metavar="FILE", help="Write one HTML page with both side by side, differences marked.")
@markdown_option
@output_options
def command(left: str, right: str, output: Output, *, orders: bool, everything: bool, **options: Any) -> None:  # noqa: ANN401
    """Tell in what two plans differ: inputs first, then what is predicted. Or two orders, action by action.

    \b
    shardwise diff a.json b.json
    shardwise diff a.json b.json --html compared.html
    shardwise diff ours.csv official.csv --costs 10,11,9 --hop 1

    An order is PyTorch's compute-only CSV, an answer of `schedule --json`, or a plan beside one of them.
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    html = options.pop("html")
    if orders or api.hold_orders(left, right):
        _orders(api.diff_orders(left, right, **options), output, html, everything=everything)
        return
    if given := [name for name, value in options.items() if value is not None]:
        raise InputError(
            [Fault(f"--{name.replace('_', '-')}", "is for orders; add --orders, or leave it out") for name in given]
        )
    _plans(left, right, output, html, everything=everything)


def _plans(left: str, right: str, output: Output, html: str | None, *, everything: bool) -> None:
    from shardwise.report.data import plans_page
    from shardwise.report.diff import difference_rows, matters, verdict_of

    pair = api.read_plan(left), api.read_plan(right)
    found, now, names = api.diff(*pair), [api.renewed(plan) for plan in pair], (Path(left).stem, Path(right).stem)
    verdict = verdict_of(*pair)
    told = {"left": now[0].outdated, "right": now[1].outdated}
    output.answer({"differences": found, "within_error": verdict and verdict.within_error, "outdated": told})
    output.markdown(lambda: _markdown(pair, names))
    if html:
        write_text(html, plans_page(pair))
    for name, one in zip((left, right), now, strict=True):
        if one.note:
            output.note(f"{name}: {one.note}")
    if verdict:
        output.say(f"{verdict.text}\n")
    shown = [one for one in found if matters(one.path, everything=everything)]
    if shown:
        output.table(("", *names, "change"), difference_rows(shown))
    if not found:
        output.say("the plans are the same")
    elif more := sum(matters(one.path, everything=True) for one in found) - len(shown):
        output.note(f"{more} more values differ; --all shows them")


def _markdown(pair: tuple[Plan, Plan], names: tuple[str, str]) -> str:
    from shardwise.report.markdown import diff_markdown

    return diff_markdown(*pair, names)


def _orders(found: OrderDiff, output: Output, html: str | None, *, everything: bool) -> None:
    from shardwise.report import order_diff as report

    output.answer(report.order_data(found))
    output.markdown(lambda: report.order_markdown(found))
    if html:
        write_text(html, report.order_page(found))
    for note in report.notes(found):
        output.note(note)
    output.say(f"{report.verdict(found)}\n")
    output.table(*report.figures(found))
    if not found.equal:
        output.say()
        output.table(*report.ranks(found, everything=everything))
