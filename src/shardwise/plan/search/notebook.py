"""The answer of a search as a piece of HTML for notebooks."""

from __future__ import annotations

from html import escape

from shardwise.inputs.html import plan_html
from shardwise.plan.search.api import plan_file_of
from shardwise.plan.search.types import Answer
from shardwise.units import show_bytes, show_percent, show_seconds

_SHOWN = 10
_HEADS = ("strategy", "iteration", "slower", "MFU", "memory")


def answer_html(answer: Answer) -> str:
    """The best strategy with its proof, and the best of the other layouts folded below it."""
    if answer.best is None:
        return _nothing(answer)
    fastest = answer.best.iteration_seconds
    rows = [
        (str(one.strategy), show_seconds(one.seconds), f"{one.seconds / fastest - 1:+.1%}", show_percent(one.mfu),
         show_bytes(one.total_bytes))
        for one in answer.top[:_SHOWN]
    ]  # fmt: skip
    return plan_html(plan_file_of(answer), [_HEADS, *rows])


def _nothing(answer: Answer) -> str:
    question, near = answer.question, answer.closest
    text = f"none of {answer.counts.space:,} strategies fits {question.model.name} on {question.cluster.name}"
    if near is not None:
        text += f"; the closest lacks {show_bytes(near.missing)} on its fullest rank: {near.strategy}"
        text += f"; {near.gpus} of these GPUs would do" if near.gpus else ""
    return f"<div>{escape(text)}</div>"
