"""`shardwise diff`: in what two plans differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardwise import api
from shardwise.cli.output import Output, markdown_option, output_options
from shardwise.inputs.write import write_text

if TYPE_CHECKING:
    from shardwise.plan.plan import Plan


@click.command("diff")
@click.argument("left", metavar="A.json")
@click.argument("right", metavar="B.json")
@click.option("--all", "everything", is_flag=True, help="Every value of the predictions too.")
@click.option("--html", metavar="FILE", help="Write one HTML page with both side by side, differences marked.")
@markdown_option
@output_options
def command(left: str, right: str, output: Output, *, everything: bool, html: str | None) -> None:
    """Tell in what two plans differ: inputs first, then what is predicted.

    \b
    shardwise diff a.json b.json
    shardwise diff a.json b.json --html compared.html
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
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
