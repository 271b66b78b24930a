"""How sure a fit is, the margins that follow, and balancing within them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwise.errors import InfeasibleError, InputError
from shardwise.partition.confident import solve_surely
from shardwise.partition.decompose import Measured, decompose
from shardwise.partition.graph import Ready
from shardwise.partition.margin import margins as rank_margins
from shardwise.partition.problem import Choice, End, Kind, KindRun, Problem
from shardwise.partition.solver import solve
from shardwise.partition.spread import ASSUMED, spread_notes, spread_of, student
from shardwise.report.balance import answer_lines

TRUTH = {"const": 900.0, "par": 1700.0, "act": 990.0, "full": 60.0, "head": 3400.0, "tail": 4700.0}
LAYERS, FULL = (5, 6, 4, 7, 5, 3, 6, 4), (5, 3, 0, 2, 4, 1, 0, 0)


def measured(stages=range(8), off=()):
    """Peaks of a round of 8 stages, each off by its share."""
    made, off = [], dict(off)
    for s in stages:
        counts = (LAYERS[s] - FULL[s], 0, 0, 0, FULL[s])
        peak = TRUTH["const"] + LAYERS[s] * TRUTH["par"] + TRUTH["head"] * (s == 0) + TRUTH["tail"] * (s == 7)
        peak += (8 - s) * (counts[0] * TRUTH["act"] + counts[4] * TRUTH["full"])
        share = off.get(s, 0.0)
        made.append(Measured(stage=s, layers=LAYERS[s], counts=counts, peak=peak * (1 + share)))
    return made


def problem(fit=None, *, limit=45000.0, **more):
    values = fit.values if fit else TRUTH
    choices = (
        Choice(name="none", f=10, i=10, w=10, activation=values["act"]),
        Choice(name="full", f=10, i=20, w=10, activation=values["full"]),
    )
    run = KindRun(kind=Kind(name="BODY", choices=choices, static=values["par"]), count=40)
    return Problem(
        pp=8, microbatches=16, runs=(run,), head=End(f=1, i=1, w=1, static=values["head"]),
        tail=End(f=11, i=11, w=11, static=values["tail"]), limits=(limit,), static=(values["const"],), fit=fit, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("degrees", "wanted"), [(1, 6.3138), (2, 2.9200), (3, 2.3534), (4, 2.1318), (7, 1.8946), (8, 1.8595), (30, 1.6973)]
)
def test_students_t(degrees, wanted):
    assert student(0.95, degrees) == pytest.approx(wanted, abs=1e-4)
    assert student(0.5, degrees) == pytest.approx(0, abs=1e-9)


def test_the_covariance_is_what_many_rounds_scatter_by():
    chance, made = np.random.default_rng(1), []
    for _ in range(400):
        fit = decompose(measured(off=enumerate(chance.normal(0, 0.005, 8))), 8)
        made.append((fit.values["par"], fit.values["head"]))
    relative = spread_of(decompose(measured(), 8)).noises[1]
    scatter = np.sqrt(np.diag(relative.covariance)) * 0.005 / relative.size
    assert np.std(made, axis=0) == pytest.approx(scatter[[1, 4]], rel=0.15)


def test_no_degree_of_freedom_is_said_and_never_exact():
    fit = decompose(measured(stages=(0, 1, 2, 3, 4, 7)), 8)
    assert fit.spare == 0
    assert min(spread_of(fit).errors.values()) > 0
    assert any(f"assumed to be off by {100 * ASSUMED:g}%" in note for note in spread_notes(fit))
    assert min(solve_surely(problem(fit), seconds=5, effort=0.1, seed=1).best.margin) > ASSUMED * 20000


def test_more_peaks_and_less_noise_make_margins_smaller():
    off = dict(enumerate((0.02, -0.02, 0.02, -0.02, 0.01, 0.02, -0.02, 0.01)))
    thin, noisy, sound = (
        decompose(measured((0, 1, 2, 3, 4, 7)), 8),
        decompose(measured(off=off), 8),
        decompose(measured(), 8),
    )
    counts = np.array([[3, 2]] * 8, dtype=np.int32)
    wide = [np.array(Ready(problem(fit)).margins(counts)) for fit in (thin, noisy, sound)]
    assert (wide[0] > wide[2]).all()
    assert (wide[1] > wide[2]).all()
    surer = np.array(Ready(problem(noisy, confidence=0.99)).margins(counts))
    assert (surer > wide[1]).all()


def test_what_is_balanced_holds_with_its_margins_and_loses_to_what_is_known():
    fit = decompose(measured(off={1: 0.01, 3: -0.01}.items()), 8)
    answer = solve_surely(problem(fit), seconds=5, effort=0.1, seed=1)
    assert answer.best.fits
    assert all(p + m <= 45000 * (1 + 1e-9) for p, m in zip(answer.best.peak, answer.best.margin, strict=True))
    assert answer.if_known is not None
    assert solve(problem(limit=45000.0), seconds=5).simulated <= answer.simulated
    assert answer.if_known < answer.simulated
    known = solve_surely(problem(), seconds=5, effort=0.1, seed=1)
    assert (known.best.margin, known.if_known) == ((0.0,) * 8, None)


def test_margins_that_leave_nothing_are_told():
    fit = decompose(measured((0, 1, 2, 3, 4, 7)), 8)
    least = 12700.0
    assert solve(problem(limit=least), seconds=5).best.fits
    with pytest.raises(InfeasibleError, match="lower --confidence"):
        solve_surely(problem(fit, limit=least), seconds=5, effort=0.1, seed=1)


def test_a_stage_that_is_off_keeps_that_much_more():
    fit = decompose(measured(off={5: 0.15}.items()), 8)
    spread = spread_of(fit)
    assert [fit.measured[k].stage for k in spread.odd] == [5]
    assert spread.extra[5] == pytest.approx(fit.residuals[5])
    counts = np.array([[3, 2]] * 8, dtype=np.int32)
    margins = Ready(problem(fit)).margins(counts)
    plain = rank_margins(Ready(problem(fit)), counts, fit, replace(spread, extra=(0.0,) * 8), 0.95)
    assert np.subtract(margins, plain).tolist() == pytest.approx(list(spread.extra))
    assert max(spread_of(decompose(measured(off={5: -0.15}.items()), 8)).extra) == 0


def test_peaks_that_contradict_each_other_are_refused_by_stage():
    with pytest.raises(InputError, match=r"stage 4 most: it was measured at 42,960, 28,640 more than the others"):
        decompose(measured(off={4: 2.0}.items()), 8)


def test_one_peak_more_than_parts_names_no_stage_that_contradicts():
    """A sound stage was named, measured at 14,540 and "141,590 more than the others explain"."""
    with pytest.raises(InputError, match="7 peaks for 6 parts of memory cannot tell which"):
        decompose(measured((0, 1, 2, 3, 4, 5, 7), off={4: 2.0}.items()), 8)


def test_confidence_of_what_no_run_measured_is_conditional():
    fit = decompose(measured(), 8)

    def said(**more):
        answer = solve_surely(problem(fit, **more), seconds=1, effort=0.05, seed=1)
        return next(line for line in answer_lines(answer) if "holds its limit at" in line)

    assert ", if" not in said()
    assert ", if interleaved holds as many micro batches as modelled: only one chunk a stage was measured" in said(
        vpp=2, schedule="interleaved"
    )


def test_confidence_is_a_probability():
    with pytest.raises(InputError, match="probability"):
        solve(replace(problem(), confidence=1.0))
