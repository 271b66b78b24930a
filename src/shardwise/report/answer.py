"""What a search found, as it is said: facts with their proof, the best of every layout, and what the space was."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.report.estimate import Table, searched, summary
from shardwise.search.question import COVERED, Answer
from shardwise.units import show_bytes, show_percent, show_seconds


def facts(answer: Answer) -> Iterator[tuple[str, str]]:
    """The lines on top."""
    assert answer.best is not None  # noqa: S101 - for the type checker: an answer without one is told otherwise
    yield from summary(answer.best)
    yield "proof", f"{proven(answer)} (under the cost model in use; --explain says what the space is)"
    for name, text in searched(answer.counts):
        yield name, f"{text}; {answer.cpu_seconds:.1f} CPU s"


def proven(answer: Answer) -> str:
    """Bound and gap, in a sentence."""
    return f"no strategy of the space takes less than {show_seconds(answer.bound)}: gap {show_percent(answer.gap, 2)}"


def candidates(answer: Answer, top: int) -> Table:
    """The best simulated strategy of every layout."""
    shown = answer.top[:top]
    rows: list[tuple[str, ...]] = [
        (str(one.strategy), show_seconds(one.seconds), f"{one.seconds / shown[0].seconds - 1:+.1%}",
         show_percent(one.mfu), show_bytes(one.total_bytes))
        for one in shown
    ]  # fmt: skip
    return ("strategy", "iteration", "slower", "MFU", "memory"), rows


def space(answer: Answer) -> Iterator[str]:
    """What the bound covers, and the strategies of the space by axis."""
    yield f"\nwhat the bound covers: {COVERED}"
    yield "\nstrategies of the space by axis"
    for axis, found in answer.counts.axes.items():
        if len(found) > 1:
            yield f"{axis:<11}{', '.join(f'{value}: {n:,}' for value, n in found.items())}"
