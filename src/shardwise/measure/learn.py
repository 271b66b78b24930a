"""What whole runs teach: a few factors of one runtime, such that its predictions take as long as its runs did.

A run gives one time, and there are several things that a prediction can be wrong about. So every factor starts at 1
with a width that says how far it is mostly off, and moves as far as the runs pull it (Student's t on the logarithms of
factors, normal errors of runs, solved by Gauss-Newton): where the GPU is busy throughout, a run moves its kernels and
leaves the host alone; where kernels wait for launches, mostly the host; of a model with experts, mostly what is
peculiar to those. Several runs tell kinds of kernels apart. Times of passes, where a log has them, count as runs of
their own. Memory is not learnt: what allocators of one run held beside its tensors did not tell what those of the next
held (33 jobs on an H200: 3.2% before, 3.3% after).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log, sqrt
from statistics import fmean

import numpy as np

from shardwise.errors import InputError
from shardwise.estimate.estimate import Estimate, assemble
from shardwise.estimate.intervals import launch_bound
from shardwise.estimate.setup import setup_of
from shardwise.inputs.calibration import Calibration, Learnt
from shardwise.inputs.calibrations import calibration_of
from shardwise.measure.validate.case import MeasuredRun

WIDTHS = {"common": 0.04, "gemm": 0.04, "attention": 0.04, "memory": 0.04, "host": 0.3, "experts": 0.15}
"""How far each factor is mostly from 1, as a logarithm; `common` is of all kernels."""
TAIL = 2.0
"""Degrees of freedom of Student's t that the factors follow: most are near 1, and one that is far off is believed."""
NOISE, PART_NOISE = 0.02, 0.04
"""What stays between a run, or a pass of one, and a model whose factors are right."""
OF_SPREAD = 0.25
"""A standard deviation over the range of a few iterations."""
PARTS = ("forward_seconds", "backward_seconds")
STEP = 0.02
ROUNDS = 8
LEAST, MOST = 0.02, 50.0
"""Corrections beyond these are no corrections: it is another run, or another unit."""
REACHED = 0.05
"""Share of the measured iteration within which a learnt one must come, if it is alone."""
ENOUGH = 3
"""Plans from which on leaving one out says how well the runs of the others predict it."""
LEAST_ERROR = 0.025
"""No fewer than 33 jobs on an H200 were off from one another once their runtime's mean was taken out."""

Theta = dict[str, float]


def learn(runs: Sequence[MeasuredRun], base: Calibration | None = None) -> Learnt:
    """What runs of one runtime teach. `base`: the calibration that they correct, by default that of their GPU."""
    found = _fitted(runs, base)
    if len(runs) == 1:
        _refuse_far(runs[0], found, base)
    return replace(found, time_error=_left_out(runs, base))


def with_learnt(base: Calibration, learnt: Learnt) -> Calibration:
    """The calibration with what was learnt in place of what was known of that runtime."""
    others = tuple(one for one in base.learnt if one.runtime != learnt.runtime)
    return replace(base, learnt=(*others, learnt))


def predicted(run: MeasuredRun, learnt: Learnt | None = None, base: Calibration | None = None) -> Estimate:
    """A run as it is predicted with what was learnt."""
    calibration = base or calibration_of(run.cluster.gpu)
    if learnt is not None:
        calibration = with_learnt(calibration, learnt)
    return assemble(setup_of(run.model, run.cluster, run.strategy, run.runtime, calibration))


def _fitted(runs: Sequence[MeasuredRun], base: Calibration | None) -> Learnt:
    found = _learnt(runs[0], _solved(runs, base))
    return replace(
        found,
        corrections={kind: float(f"{factor:.4g}") for kind, factor in found.corrections.items()},
        runs=tuple(told(run) for run in runs),
        nodes=any(run.cluster.gpus > run.cluster.node_size for run in runs),
    )


def told(run: MeasuredRun) -> str:
    """A run in a few words."""
    return f"{run.model.name} {run.strategy} on {run.cluster.name}"


def _learnt(run: MeasuredRun, theta: Theta) -> Learnt:
    kernels = {kind: exp(theta["common"] + theta[kind]) for kind in ("gemm", "attention", "memory")}
    factors = {**kernels, "host": exp(theta["host"]), "experts": exp(theta["experts"])}
    return Learnt(runtime=run.runtime.base, corrections=factors)


def _solved(runs: Sequence[MeasuredRun], base: Calibration | None) -> Theta:
    """The likeliest factors."""
    widths = np.array(list(WIDTHS.values()))
    theta = np.zeros(len(widths))
    for _ in range(ROUNDS):
        doubt = (TAIL + 1) / (TAIL * widths**2 + theta**2)
        matrix, right = np.diag(doubt), -theta * doubt
        for run in runs:
            off, noise = _residuals(run, theta, base)
            slopes = np.empty((len(off), len(widths)))
            for index in range(len(widths)):
                near = theta.copy()
                near[index] += STEP
                slopes[:, index] = (_residuals(run, near, base)[0] - off) / STEP
            weighed = slopes / noise[:, None]
            matrix += weighed.T @ weighed
            right -= weighed.T @ (off / noise)
        theta = np.clip(theta + np.linalg.solve(matrix, right), log(LEAST), log(MOST))
    return dict(zip(WIDTHS, map(float, theta), strict=True))


def _residuals(run: MeasuredRun, theta: np.ndarray, base: Calibration | None) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of predicted over measured times, and how far each may be off."""
    named = dict(zip(WIDTHS, map(float, theta), strict=True))
    found = predicted(run, _learnt(run, named), base)
    spread = OF_SPREAD * float(run.measured.get("spread") or 0.0)
    names = [name for name in PARTS if run.measured.get(name)]
    off = [log(getattr(found, name) / float(run.measured[name])) for name in ("iteration_seconds", *names)]
    return np.array(off), np.array([sqrt(own**2 + spread**2) for own in (NOISE, *(PART_NOISE for _ in names))])


def _refuse_far(run: MeasuredRun, found: Learnt, base: Calibration | None) -> None:
    seconds, spread = (float(run.measured.get(name) or 0.0) for name in ("iteration_seconds", "spread"))
    near = abs(predicted(run, found, base).iteration_seconds / seconds - 1) <= REACHED + spread
    if near and all(LEAST < factor < MOST for factor in found.corrections.values()):
        return
    before = predicted(run, None, base).iteration_seconds
    raise InputError(
        f"an iteration of the log: {seconds:.3g} s where the plan says {before:.3g} s, and no correction from "
        f"x{LEAST:g} to x{MOST:g} explains that; is it a run of this plan, with as many iterations as said?"
    )


def _left_out(runs: Sequence[MeasuredRun], base: Calibration | None) -> float:
    """Mean error of each run by what runs of all other plans teach; 0: there are too few plans to tell."""
    if len({(run.model, run.strategy) for run in runs}) < ENOUGH:
        return 0.0
    plain = [run for run in runs if not run.model.moe and not launch_bound(predicted(run, None, base).time)]
    errors = []
    for run in plain or runs:  # intervals of the others have causes of their own
        others = [one for one in runs if (one.model, one.strategy) != (run.model, run.strategy)]
        seconds = predicted(run, _learnt(run, _solved(others, base)), base).iteration_seconds
        errors.append(abs(seconds / float(run.measured["iteration_seconds"]) - 1))
    return float(f"{max(LEAST_ERROR, fmean(errors)):.3g}")
