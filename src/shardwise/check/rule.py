"""What a rule of `check` is, and the words that rules share.

A rule names the fields that it reads. It is skipped when one of them is already known to be wrong, so that one mistake
is told once and no rule divides by a zero that another rule complains about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from shardwise.errors import Fault
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Abilities, Runtime
from shardwise.inputs.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """The inputs that are checked against each other."""

    model: Model
    cluster: Cluster
    strategy: Strategy
    runtime: Runtime

    @property
    def can(self) -> Abilities:
        return self.runtime.can


_REACH = 20_000
Find = Callable[[Combination], Iterator[Fault]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that must hold between inputs."""

    reads: frozenset[str]
    """Fields; a rule is not asked where one of them is wrong by itself."""
    find: Find


def rule(*reads: str) -> Callable[[Find], Rule]:
    """Mark a function as a rule that reads these fields (`model.heads`; a bare word is a field of the strategy)."""
    paths = frozenset(path if "." in path else f"strategy.{path}" for path in reads)
    return lambda find: Rule(paths, find)


def divisors_near(number: int, wanted: int) -> list[int]:
    """The nearest divisors of a number, below and above the one that was wanted, as far as people would go."""
    start = min(number, wanted)
    below = next((n for n in range(start, max(0, start - _REACH), -1) if number % n == 0), 1)
    above = next((n for n in range(wanted + 1, min(number, wanted + _REACH) + 1) if number % n == 0), None)
    return [below] if above is None else [below, above]


def nearest(values: Iterable[int], wanted: int) -> list[int]:
    """The nearest value at or below and the nearest one above."""
    options = sorted(values)
    below = [n for n in options if n <= wanted][-1:]
    above = [n for n in options if n > wanted][:1]
    return below + above


def multiples_near(step: int, wanted: int) -> list[int]:
    """The nearest positive multiples of a step around the number that was wanted."""
    below = wanted // step * step
    return [n for n in (below, below + step) if n > 0]


def either(values: Iterable[object]) -> str:
    """`2, 4 or 8`."""
    words = [str(value) for value in values]
    return " or ".join(([", ".join(words[:-1])] if words[:-1] else []) + words[-1:])
