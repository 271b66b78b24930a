"""Whether a fit describes the GPU that it was given: numbers at the edge of what is possible must not be stored."""

from __future__ import annotations

from shardwise.errors import InputError
from shardwise.measure.fit.fit import ENOUGH
from shardwise.measure.fit.result import Fit, FittedFamily

FAR = 0.5
"""Median error from which a family does not follow its formula at all."""
TOLD = 3


def astray(fit: Fit) -> list[FittedFamily]:
    """Fitted families whose kernels the best fit still misses by half and more."""
    return [one for one in fit.families if _fitted(one) and one.median > FAR]


def refuse_strange(fit: Fit, base: str) -> None:
    """One odd family is the user's to judge; when most are, it is another GPU or another unit."""
    far = astray(fit)
    if not far or 2 * len(far) < sum(_fitted(one) for one in fit.families):
        return
    ways = {one.bias > 0 for one in far}
    word = "faster" if ways == {True} else "slower" if ways == {False} else "faster or slower"
    some = ", ".join(f"{one.name} {100 * one.bias:+.0f}%" for one in far[:TOLD])
    raise InputError(
        f"these measurements are not of the GPU {base}: even the best fit misses {len(far)} families by half and more "
        f"({some} predicted against measured); they are {word} than {base} can be. Give the GPU that was probed "
        "with --base, and leave the probe's file as it was written (its times are seconds)"
    )


def _fitted(family: FittedFamily) -> bool:
    return family.fitted and len(family.points) >= ENOUGH
