"""One line on standard error while a search runs, and Ctrl-C that keeps the best answer so far."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwise.search.search import Search

_PERIOD = 0.1


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a search is: how many were evaluated, the best, a lower bound and the gap between them."""

    title: str
    """What is being done."""
    total: int = 0
    """How many there are to evaluate; 0: not known."""
    show: Callable[[float], str] = "{:.4g}".format
    """How a value is printed."""
    live: bool = False
    """Whether the line is drawn: on a terminal only."""
    evaluated: int = 0
    """How many were evaluated."""
    pruned: int = 0
    """How many were proven not to be worth evaluating."""
    best: float | None = None
    """The best value, the smallest."""
    bound: float | None = None
    """A value that nothing can be below, under the cost model in use."""
    interrupted: bool = False
    """Ctrl-C was pressed: the answer is the best so far."""
    drawn: float = 0.0
    """When the line was last drawn."""

    @property
    def gap(self) -> float | None:
        return None if self.best is None or not self.bound else self.best / self.bound - 1

    def update(self, *, evaluated: int = 1, best: float | None = None, bound: float | None = None) -> None:
        """Count evaluations and take over a better value or a tighter bound."""
        self.evaluated += evaluated
        if best is not None and (self.best is None or best < self.best):
            self.best = best
        if bound is not None and (self.bound is None or bound > self.bound):
            self.bound = bound
        now = time.monotonic()
        if self.live and now - self.drawn >= _PERIOD:
            self.drawn = now
            print(f"\r\x1b[K{self.line(_width())}", end="", file=sys.stderr, flush=True)

    def follow(self, search: Search) -> None:
        """Take over the state of a search of strategies."""
        self.evaluated, self.pruned = search.points, search.pruned
        self.update(evaluated=0, best=search.best.seconds if search.best else None, bound=search.bound)

    def count(self, _done: object, total: int) -> None:
        """One more of so many is done."""
        self.total = total
        self.update()

    def close(self) -> None:
        if self.live and self.drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def line(self, width: int) -> str:
        """What fits into one line: details go before the best and the gap, so that the line is never broken."""
        words = self._words()
        for name in ("pruned", "bound", "total"):
            if len(", ".join(words.values())) < width:
                break
            words.pop(name, None)
        return ", ".join(words.values())[: width - 1]

    def __str__(self) -> str:
        return ", ".join(self._words().values())

    def _words(self) -> dict[str, str]:
        words = {
            "total": f"{self.title}: {self.evaluated:,}" + (f" of {self.total:,}" if self.total else "") + " evaluated"
        }
        if self.pruned:
            words["pruned"] = f"{self.pruned:,} pruned"
        if self.best is not None:
            words["best"] = f"best {self.show(self.best)}"
        if self.bound:
            words["bound"] = f"bound {self.show(self.bound)}"
        if self.gap is not None:
            words["gap"] = f"gap {100 * self.gap:.1f}%"
        return words


def _width() -> int:
    """Columns of the terminal that standard error goes to."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


@contextmanager
def progress(
    title: str, *, total: int = 0, quiet: bool = False, show: Callable[[float], str] = "{:.4g}".format
) -> Iterator[Progress]:
    """Follow a search. Ctrl-C ends the block; with a best so far it goes on after it, `interrupted` set."""
    state = Progress(title=title, total=total, show=show, live=not quiet and sys.stderr.isatty())
    try:
        yield state
    except KeyboardInterrupt:
        if state.best is None:
            raise
        state.interrupted = True
    finally:
        state.close()
