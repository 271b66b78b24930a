"""The pictures that `balance` writes."""

from __future__ import annotations

from pathlib import Path

from shardwise.errors import Fault, InputError
from shardwise.partition.compare import Compared
from shardwise.partition.problem import Answer


def check_pictures(svg: str | None, others: list[Compared]) -> None:
    """Refuse two pictures of one name."""
    names = [Path(svg).name] if svg else []
    for one in others:
        if svg and one.file_name and (name := Path(one.file_name).name) in names:
            raise InputError(
                Fault(f"{one.name}.file_name", f"is {name!r}, where another picture goes; give each its own")
            )
        names.append(Path(one.file_name).name)


def write_pictures(
    svg: str | None, html: str | None, trace: str | None, answer: Answer, compared: list[Compared]
) -> None:
    """The figure of all strategies, one of each that names a file, the page and the trace."""
    from shardwise.inputs.write import write_text
    from shardwise.report.page import page_of
    from shardwise.report.svg import compared_svg, timeline_svg
    from shardwise.report.trace import chrome_trace
    from shardwise.report.view import balance_views

    timeline = answer.best.timeline
    if svg:
        write_text(svg, compared_svg(compared))
        for one in compared[1:]:
            if one.file_name:
                write_text(Path(svg).parent / Path(one.file_name).name, timeline_svg(one.evaluation.timeline, one.name))
    if html:
        write_text(html, page_of(balance_views(answer, compared[1:])))
    if trace:
        write_text(trace, chrome_trace(timeline))
