"""The operators of one pass as a Chrome trace: lanes of layers, operators and every axis, and memory as a counter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from shardwise.cost.traffic import AXES
from shardwise.estimate.operators import OpRun, PassTrace
from shardwise.plan.inside import RankPasses

Event = dict[str, object]
_LAYERS, _OPERATORS, _AXES = 0, 1, 2
_WORDS = {"F": "", "R": " again", "I": ", inputs", "W": ", weights", "": ""}
_COLOURS = {
    "gemm": "good", "grouped": "good", "attention": "vsync_highlight_color", "scan": "olive", "memory": "yellow",
    "": "grey",
}  # fmt: skip


def operators_trace(found: RankPasses) -> str:
    """JSON text of one forward and one backward pass of every chunk of a rank."""
    events: list[Event] = []
    for trace, base in zip(found.passes, found.held, strict=True):
        name = f"rank {trace.rank}, chunk {trace.chunk}: one forward, one backward (peak at {found.memory.at})"
        events.append({"ph": "M", "pid": trace.chunk, "name": "process_name", "args": {"name": name}})
        names = ("layers", "operators", *(f"{axis} communication" for axis in AXES))
        events += [
            {"ph": "M", "pid": trace.chunk, "tid": lane, "name": "thread_name", "args": {"name": text}}
            for lane, text in enumerate(names)
        ]
        events += _pass(trace, trace.forward, 0.0, base)
        events += _pass(trace, trace.backward, trace.forward[-1].end, base)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")) + "\n"


def _pass(trace: PassTrace, runs: Sequence[OpRun], begin: float, base: float) -> Iterator[Event]:
    for place, group in groupby(runs, key=lambda run: run.place):
        own = list(group)
        if place:
            yield _slice(trace.chunk, _LAYERS, place, begin + own[0].start, begin + own[-1].end, {})
    for run in runs:
        yield from _operator(trace.chunk, run, begin)
        for time, held in ((run.start, run.level), (run.end, run.stays)):
            yield {"ph": "C", "pid": trace.chunk, "name": "memory", "ts": (begin + time) * 1e6,
                   "args": {"allocated": base + held}}  # fmt: skip


def _operator(pid: int, run: OpRun, begin: float) -> Iterator[Event]:
    shown, seconds = sum(run.shown), run.end - run.start
    args = {
        "layer": run.place, "pass": run.part, "kind": run.kind, "kernel seconds": run.kernels,
        "exposed communication": shown, "hidden communication": sum(run.hidden),
        "waiting for launches": max(0.0, seconds - run.kernels - shown) if run.kind else 0.0,
        "bytes": run.level,
    }  # fmt: skip
    name = f"{run.name}{_WORDS[run.part] if run.kind else ''}"
    yield _slice(pid, _OPERATORS, name, begin + run.start, begin + run.end, args) | {"cname": _COLOURS[run.kind]}
    stop = begin + run.end
    for lane, axis in enumerate(AXES, _AXES):
        exposed, hidden = getattr(run.shown, axis), getattr(run.hidden, axis)
        if hidden > 0:
            end = min(begin + run.start + hidden, stop - exposed)
            yield _slice(pid, lane, f"{name} (hidden)", begin + run.start, end, {"seconds": hidden})
        if exposed > 0:
            yield _slice(pid, lane, name, stop - exposed, stop, {"seconds": exposed})
            stop -= exposed


def _slice(pid: int, lane: int, name: str, start: float, end: float, args: dict[str, object]) -> Event:
    return {
        "ph": "X", "pid": pid, "tid": lane, "name": name, "ts": start * 1e6, "dur": max(0.0, end - start) * 1e6,
        "args": args,
    }  # fmt: skip
