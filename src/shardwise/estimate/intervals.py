"""How far a prediction is to be trusted: which causes of error a question has, and the interval that they make.

An error is a factor, so widths are logarithms: nine runs in ten lie between figure / exp(width) and
figure x exp(width). Causes are independent, so their squares add. The widths are fitted to runs whose source was left
out (`inputs/accuracy.py`); what a user's own calibration states of itself counts in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from math import erf, exp, inf, log, pi, sqrt
from typing import TYPE_CHECKING, NamedTuple

from shardwise.cost.ledger import Ledger
from shardwise.inputs.accuracy import Widths, accuracy
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.calibrations import calibration_of, is_shipped, learnt_of
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.mixed import whole_kinds
from shardwise.inputs.model import Model
from shardwise.inputs.site import USUAL, Site
from shardwise.inputs.strategy import Strategy

if TYPE_CHECKING:
    from shardwise.estimate.estimate import Estimate

ANY = "any run"
NODES = "many nodes"
MOE = "mixture of experts"
LOW = "8 or 4 bit"
LAUNCH = "launch-bound"
SOFTWARE = "runtime unseen on the gpu"
GPU = "unseen gpu"
PARTIAL = "settings not all known"
COMPOSED = "composed of parts"
LAYERS = "layers never measured"
TRACED = "traced module"
ASSUMED_WIDTHS = {LAYERS: {"time": 0.25, "memory": 0.12}, TRACED: {"time": 0.105, "memory": 0.04}}
"""Causes that no published run has: recurrences and chosen keys are priced by what their kernels do, no more; nine in
ten of 18 traced steps that nothing was fitted to lie within 12% (`benchmarks/kinds.py`)."""
LATE_HOST = 1.5
"""What a slow hour of a shared host makes of its calls: steps of one sample took up to 1.5 times their mean over four
visits to one kind of machine, and 0.6 of it (`benchmarks/data/h200_host.json`)."""
CAUSES = (ANY, NODES, MOE, LOW, LAUNCH, SOFTWARE, GPU, PARTIAL, COMPOSED)
UNSEEN = frozenset({SOFTWARE, GPU})

ENOUGH = 5
"""Timed runs of a runtime on a GPU family without which the two were not seen together."""
WAITING = 0.1
"""Share of an iteration spent waiting for launches from which on it is launch-bound."""
BARELY = 0.02
"""Share up to which it is not at all; between the two the cause grows, so that no interval jumps, nor does its end rise
where a faster link lets launches be a larger share."""
NORMAL = 1.645
"""A width over a standard deviation: nine draws in ten of a normal error lie inside."""
ALIKE = 1 / NORMAL
"""Errors of a difference, such as nine in ten are below, up to which two layouts are as likely as not to be the faster
one: beyond one standard deviation five in six draws agree on which is the slower one."""
OF_MEAN = NORMAL * sqrt(pi / 2)
"""A width over a mean absolute error, likewise."""

Interval = tuple[float, float]
Seen = Mapping[str, Mapping[str, int]]


class Spread(NamedTuple):
    """Widths of one prediction."""

    time: float
    memory: float


def causes_of(
    model: Model | None,
    cluster: Cluster,
    dtype: str,
    runtime: str,
    calibration: Calibration,
    time: Ledger | None = None,
) -> tuple[str, ...]:
    """The causes of error that a question has; without a time ledger, those that no layout changes.

    `model`: none where operators were profiled and it is not known; `runtime`: its name, with or without values that
    were laid over it.
    """
    there = {
        NODES: cluster.gpus > cluster.node_size and not _nodes_known(cluster, calibration),
        MOE: model is not None and model.moe is not None,
        LOW: dtype in {"fp8", "mxfp8", "nvfp4"},
        LAYERS: model is not None and _unmeasured(model),
        TRACED: model is not None and model.traced is not None,
        LAUNCH: time is not None and launch_bound(time) == 1.0,
    }
    family = calibration.kernels or calibration.name
    ours = not is_shipped(family) or learnt_of(calibration, runtime) is not None
    unseen = () if ours else unseen_of(_base(runtime), family, accuracy().seen)
    return (ANY, *(name for name, holds in there.items() if holds), *unseen)


def _unmeasured(model: Model) -> bool:
    """Whether it has layers that no validated run has: recurrences, chosen keys, towers, tokens that see all others."""
    return model.recurrent is not None or model.sparse is not None or bool(model.towers) or not model.causal


def launch_bound(time: Ledger) -> float:
    """How much of the cause `launch-bound` an iteration has: from 0 to 1, which alone names it."""
    waiting = sum(part.value for part in time.leaves() if part.name == "waiting for launches")
    share = waiting / time.value if time.value else 0.0
    return min(1.0, max(0.0, (share - BARELY) / (WAITING - BARELY)))


def late_host(calls: float, passes: float, seconds: float) -> float:
    """What a slow hour of the host makes of an iteration, over its prediction; 1: its calls do not bound it.

    `calls`: seconds that they take by themselves, where they were counted; `passes`: of the iteration's `seconds`.
    """
    return 1 + max(0.0, LATE_HOST * calls - passes) / seconds if seconds else 1.0


def widened(spread: Spread, late: float) -> Spread:
    """The width up to where a late host would have it."""
    return Spread(spread.time + log(late), spread.memory) if late > 1.0 else spread


def _nodes_known(cluster: Cluster, calibration: Calibration) -> bool:
    """Whether runs of the user's own, or collectives between nodes, say what the network there does."""
    between = {level.name for level in cluster.levels[1:]}
    ran = any(one.nodes for one in calibration.learnt) if calibration.learnt else bool(calibration.corrections)
    return ran or any(line.level in between for line in calibration.collectives)


def unseen_of(runtime: str, family: str, seen: Seen) -> tuple[str, ...]:
    """What of a runtime on a GPU family no measured run supports: the two together, or the GPU at all."""
    if seen.get(runtime, {}).get(family, 0) >= ENOUGH:
        return ()
    gpu = sum(counts.get(family, 0) for counts in seen.values()) >= ENOUGH
    return (SOFTWARE,) if gpu else (SOFTWARE, GPU)


def spread_of(
    causes: tuple[str, ...], runtime: str, calibration: Calibration, site: Site = USUAL, launch: float = 0.0
) -> Spread:
    """The widths of a question's predictions. A runtime's own factor counts where its runs were seen on the GPU, and
    what a site's times are spread more than usual ones, of which the fitted widths know, unless runs there were learnt.

    `launch`: how launch-bound it is (`launch_bound`) where that is not among the causes.
    """
    known = "" if UNSEEN.intersection(causes) else _base(runtime)
    learnt = learnt_of(calibration, runtime)
    measured = (learnt and learnt.time_error) or calibration.time_error or site.error
    own = {"time": measured, "memory": calibration.memory_error}
    part = 0.0 if LAUNCH in causes else launch
    time, memory = (_width(name, causes, known, error, part) for name, error in own.items())
    more = 0.0 if learnt else max(0.0, site.spread**2 - USUAL.spread**2)
    return Spread(sqrt(time**2 + NORMAL**2 * more) if more else time, memory)


def _base(runtime: str) -> str:
    return runtime.partition("+")[0]


@lru_cache(maxsize=1024)
def _width(quantity: str, causes: tuple[str, ...], runtime: str, own: float, launch: float) -> float:
    """`own`: mean error that the user's calibration measured of itself, in place of what any run errs; 0: none."""
    widths: Widths = getattr(accuracy(), quantity)
    factor = widths.runtimes.get(runtime, 1.0)
    fitted = [factor * widths.causes.get(name, 0.0) for name in causes if name != ANY or not own]
    fitted += [ASSUMED_WIDTHS[name][quantity] for name in causes if name in ASSUMED_WIDTHS]
    partly = launch * (factor * widths.causes.get(LAUNCH, 0.0)) ** 2
    return sqrt((own * OF_MEAN) ** 2 + partly + sum(part * part for part in fitted))


def around(value: float, width: float) -> Interval:
    return value / exp(width), value * exp(width)


def probability(total: float, memory: float, width: float) -> float:
    """That what is really needed is no more than the memory, if a normal error of that width is on the logarithm."""
    if total <= 0 or memory <= 0:
        return float(total <= memory)
    off = log(memory / total)
    if not width:
        return float(off >= 0)
    return 0.5 * (1 + erf(off * NORMAL / width / sqrt(2)))


def width_in(value: float, interval: Interval) -> float:
    """The width of an interval around a value."""
    return log(interval[1] / value) if 0 < value < inf and interval[1] > 0 else 0.0


def within_error(left: Estimate, right: Estimate) -> bool:
    """Whether two predictions are nearer to each other than the error of their difference: neither is surely the faster
    one.
    """
    return distance(left, right) <= 1


def likeness(apart: float, *, slower: bool) -> str:
    """A distance in words; empty: one of the two is the faster one."""
    if apart > 1:
        return ""
    words = likely(apart, slower=slower)
    return f"likely {words}, though within the error" if words else "equal within the error"


def likely(apart: float, *, slower: bool) -> str:
    """Whether one of two that are within the error is likely the slower or faster one; empty: nobody can tell."""
    return ("slower" if slower else "faster") if ALIKE < apart <= 1 else ""


def distance(left: Estimate, right: Estimate) -> float:
    """How far two predictions are apart, in errors of their difference (nine in ten such differences err by less).

    Two layouts of one model on one cluster share what is unknown of the software, the GPU and the site, and err apart
    by as much as measured layouts do; predictions of other things err each by itself.
    """
    off = abs(log(left.iteration_seconds / right.iteration_seconds))
    if (left.model, left.cluster, left.strategy.runtime) == (right.model, right.cluster, right.strategy.runtime):
        width = _pair_factor(left.strategy, right.strategy) * max(layout_width(left), layout_width(right))
    else:
        widths = (width_in(one.iteration_seconds, one.iteration_seconds_interval) for one in (left, right))
        width = sqrt(sum(width * width for width in widths))
    return off / width if off else 0.0


def layout_distance(found: Estimate, strategy: Strategy, seconds: float) -> float:
    """The same of another layout of which only the seconds are kept."""
    off = abs(log(seconds / found.iteration_seconds))
    return off / (_pair_factor(found.strategy, strategy) * layout_width(found)) if off else 0.0


def near(left: Strategy, right: Strategy, ratio: float, width: float) -> bool:
    """Whether two layouts of a known own width are within the error of their difference; `ratio`: of their seconds."""
    return abs(log(ratio)) <= _pair_factor(left, right) * width


def _pair_factor(left: Strategy, right: Strategy) -> float:
    """Width of the difference of two layouts over that of either one."""
    return accuracy().pairs["one" if changed_settings(left, right) <= 1 else "several"]


_FOLLOWS = {"dp", "layers", "placement", "group", "global_batch", "first_layers", "last_layers"}
"""Settings that follow from the others of a layout."""


def changed_settings(left: Strategy, right: Strategy) -> int:
    """How many settings of a layout were chosen otherwise."""
    names = (item.name for item in fields(Strategy) if item.name not in _FOLLOWS)
    return sum(getattr(left, name) != getattr(right, name) for name in names)


def pair_width(found: Estimate) -> float:
    """Width of the ratio of this prediction to that of another layout, whatever differs."""
    return accuracy().pairs["several"] * layout_width(found)


def layout_width(found: Estimate) -> float:
    """The width that a layout has of its own: without what is shared by all layouts of the question."""
    return max(_layout_width(found, kind) for kind in whole_kinds(found.cluster))


def _layout_width(found: Estimate, cluster: Cluster) -> float:
    calibration, runtime = calibration_of(cluster.gpu), found.strategy.runtime
    return spread_of(_own_causes(found, cluster), runtime, calibration, launch=launch_bound(found.time)).time


def _own_causes(found: Estimate, cluster: Cluster) -> tuple[str, ...]:
    calibration, runtime = calibration_of(cluster.gpu), found.strategy.runtime
    every = causes_of(found.model, cluster, found.strategy.dtype, runtime, calibration, found.time)
    return tuple(name for name in every if name not in UNSEEN)


def widest_cause(found: Estimate) -> str:
    """The cause that makes most of the width that a layout has of its own."""
    widths = accuracy().time.causes
    causes = (name for kind in whole_kinds(found.cluster) for name in _own_causes(found, kind))
    return max(causes, key=lambda name: widths.get(name, 0.0))
