"""Balance so that every rank holds its limit with a confidence, where the memory of layers was measured.

The margin of a rank depends on its layers, but little. So a partition is balanced within limits less the margins of the
one before, first of one that knows none; where it needs more than was left, that much is left, and it is balanced anew.
Margins only grow, until a partition fits with margins of its own.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from shardwise.errors import InfeasibleError
from shardwise.partition.graph import Floats, Ready
from shardwise.partition.problem import BalanceAnswer, Problem
from shardwise.partition.solver import solve

_GLANCE = 0.1
"""Effort, and share of the time, of a look at which margins will be needed."""
_TRY = 0.7
"""Share of the time left that a whole try gets, as it uses up what it gets, and may need wider margins."""
_TRIES = 12
_LEAST = 1e-9
"""Of a limit is left to balance in, however wide the margin: so it is refused as any other that is too small."""


def solve_surely(
    problem: Problem, *, seconds: float, effort: float | None, seed: int, **follow: Any,  # noqa: ANN401 - report
) -> BalanceAnswer:  # fmt: skip
    """The best partition that holds every limit with the problem's confidence; its bound is within the same margins."""
    if problem.fit is None or not np.isfinite(problem.rank_limits).any():
        return solve(problem, seconds=seconds, effort=effort, seed=seed, **follow)
    began, ready = time.process_time(), Ready(problem)

    def within(kept: Floats, share: float, **more: Any) -> BalanceAnswer:  # noqa: ANN401
        left = max(seconds - (time.process_time() - began), 0.1)
        whole = share == 1
        found = solve(_less(problem, kept), seconds=_TRY * left if whole else share * seconds,
                      effort=None if effort is None else effort * share, seed=seed, prove=whole, **more)  # fmt: skip
        return replace(found, problem=problem, best=ready.evaluate(ready.matrix(found.best.partition)))

    known = within(np.zeros(problem.pp), _GLANCE)
    kept = np.array(known.best.margin)
    for share in (_GLANCE, *(1.0,) * _TRIES):
        try:
            found = within(kept, share, **(follow if share == 1 else {}))
        except InfeasibleError as error:
            raise _too_wide(error, problem, kept, known) from None
        if found.best.fits and (share == 1 or found.interrupted):
            spent = time.process_time() - began
            return replace(found, seconds=spent, if_known=min(known.simulated, found.simulated))
        if found.interrupted:
            raise KeyboardInterrupt
        kept = np.where(np.array(found.best.over) > 0, np.maximum(kept, found.best.margin), kept)
    raise InfeasibleError(f"no partition was found that holds its margins in {_TRIES} tries; use another --seed")


def _less(problem: Problem, kept: Floats) -> Problem:
    limits = np.array(problem.rank_limits)
    left = np.where(np.isfinite(limits), np.maximum(limits - kept, _LEAST * limits), limits)
    return replace(problem, limits=tuple(left.tolist()), fit=None)


def _too_wide(error: InfeasibleError, problem: Problem, kept: Floats, known: BalanceAnswer) -> InfeasibleError:
    return InfeasibleError(
        f"{error}; these limits are less margins of {kept.min():,.0f} to {kept.max():,.0f}, which hold them at "
        f"{100 * problem.confidence:g}%; were the memory known exactly, {known.simulated:,.2f} would fit. Measure "
        "one more round (`balance guide --after`), or lower --confidence"
    )
