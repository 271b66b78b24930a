"""One schedule, built action by action in the order of time, under a rule.

Every action has a latest start: the horizon aimed at, less its tail (bounds.py). When a rank is free it takes the
candidate after which the worst lateness is least, looking one action ahead; waiting for a message that is under way is
a candidate too. A forward is taken only if it fits and if the first micro batch that still needs the rank can pass,
so memory never locks the pipeline; when memory blocks an urgent forward, what frees memory inherits its urgency.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import numpy as np

from shardwise.kernels import library
from shardwise.pipeline.arrays import Floats, Ints, Objective, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How the builder decides; see build.c."""

    horizon: float
    """End aimed at."""
    reserve: float = 0.0
    """Room kept free for a rank's later chunks before an earlier one may start, in units of their bytes."""
    inherit: float = 0.0
    """How much more urgent than a blocked forward is what frees its memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Built:
    """Rows of codes, one rank after the other, and what they reach; `value` is infinite when the rule got stuck."""

    value: float
    rows: Ints


class _Problem(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("ranks", "chunks", "microbatches", "vpp")),
        *((name, ctypes.c_void_p) for name in ("rank_of", "position", "chunk_of", "duration", "hop", "held", "freed")),
        ("room", ctypes.c_void_p),
    )


class _Rule(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_double) for name in ("horizon", "reserve", "inherit"))


class Builder:
    """A problem made ready for many builds."""

    def __init__(self, problem: Problem, objective: Objective = "makespan", *, lag: Floats | None = None) -> None:
        self.problem, self.objective = problem, objective
        self.lag = np.zeros(problem.pp) if lag is None else lag
        self.kernel = _kernel()
        self.start = np.empty(problem.actions)
        self._arrays = (
            problem.rank_of, problem.position, np.ascontiguousarray(problem.chunk_of), problem.duration, problem.hop,
            problem.held, problem.freed, problem.room,
        )  # fmt: skip
        sizes = (problem.pp, problem.chunks, problem.microbatches, problem.vpp)
        self._view = _Problem(*sizes, *(array.ctypes.data for array in self._arrays))

    def build(self, rule: Rule, tail: Floats) -> Built:
        """A schedule by this rule; `tail` by code."""
        rows = np.zeros(self.problem.actions, dtype=np.int32)
        if self.kernel is None:
            from shardwise.pipeline.build_slowly import build_slowly

            ended = build_slowly(self.problem, rule, tail, self.lag, rows, self.start)
        else:
            view = _Rule(rule.horizon, rule.reserve, rule.inherit)
            pointers = (tail, self.lag, rows, self.start)
            ended = self.kernel.build(
                ctypes.addressof(self._view), ctypes.addressof(view), *(array.ctypes.data for array in pointers)
            )
        return Built(value=float("inf") if ended < 0 else self._value(ended, rows), rows=rows)

    def anneal(self, built: Built, *, target: float, work: float, heat: float, anywhere: float, seed: int) -> Built:
        """Moves along the critical path, a share of them anywhere; without kernels the schedule stays as it is."""
        if self.kernel is None:
            return built
        rows, period = built.rows.copy(), int(self.objective == "period")
        view, at = ctypes.addressof(self._view), rows.ctypes.data
        value = self.kernel.anneal(view, at, period, target, work, heat, anywhere, seed)
        return Built(value=value, rows=rows) if value < built.value else built

    def _value(self, ended: float, rows: Ints) -> float:
        if self.objective == "makespan":
            return ended
        grid = rows.reshape(self.problem.pp, -1)
        length = self.problem.duration[grid[:, -1] // self.problem.microbatches]
        return float((self.start[grid[:, -1]] + length - self.start[grid[:, 0]]).max())


@functools.cache
def _kernel() -> ctypes.CDLL | None:
    kernel = library()
    if kernel is None:
        return None
    pointer, number, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_double
    kernel.build.restype, kernel.build.argtypes = real, [pointer] * 6
    kernel.anneal.restype = real
    kernel.anneal.argtypes = [pointer, pointer, number, real, real, real, real, number]
    return kernel
