"""A timeline as a Chrome trace, for Perfetto or chrome://tracing: a process a rank, with its memory as a counter.

Of a whole iteration every rank has more lanes: traffic by axis, the reduction of gradients, the gathering of weights.
What hides behind kernels says so in its name; `seconds` among its arguments is what it takes, drawn or not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from shardwise.estimate.iteration import Iteration, Lane, Stretch
from shardwise.pipeline.timeline import Timeline

Event = dict[str, object]
_COLOURS = {"F": "good", "I": "bad", "W": "terrible", "B": "bad"}
_SHOWN = {True: "thread_state_iowait", False: "grey"}
"""Of traffic that shows, and of traffic that hides."""
_OUT = 100
"""The lane of what goes to host memory, after all kinds of traffic; the next is the way back."""


def chrome_trace(timeline: Timeline, *, unit: float = 1e6) -> str:
    """JSON text; `unit` is how many microseconds one unit of time is (1e6: seconds)."""
    events: list[Event] = []
    for rank in range(timeline.schedule.pp):
        events += _passes(timeline, rank, unit)
    return _text(events)


def iteration_trace(whole: Iteration) -> str:
    """The same of a whole iteration, in seconds, with a lane for every kind of traffic."""
    events: list[Event] = []
    for rank in range(whole.timeline.schedule.pp):
        events += _passes(whole.timeline, rank, 1e6)
        events.append(_named(rank, 0, "passes and optimizer"))
        events += [_stretch(part, rank) for part in whole.after(rank)]
        for index, lane in enumerate(whole.lanes(rank), 1):
            events.append(_named(rank, index, lane.name))
            events += _traffic(lane, whole, rank, index)
    return _text(events)


def _text(events: list[Event]) -> str:
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")) + "\n"


def _passes(timeline: Timeline, rank: int, unit: float) -> Iterator[Event]:
    yield {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
    yield {"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}}
    yield from _actions(timeline, rank, unit)
    yield from _host(timeline, rank, unit)
    yield from _memory(timeline, rank, unit)


def _named(rank: int, lane: int, name: str) -> Event:
    return {"ph": "M", "pid": rank, "tid": lane, "name": "thread_name", "args": {"name": name}}


def _actions(timeline: Timeline, rank: int, unit: float) -> Iterator[Event]:
    rows = zip(timeline.schedule.codes[rank].tolist(), timeline.start[rank], timeline.end[rank], strict=True)
    pairs = timeline.schedule.pairs[rank] if timeline.schedule.pairs else ()
    together = {*pairs, *(k + 1 for k in pairs)}
    for k, (code, start, end) in enumerate(rows):
        action = timeline.schedule.decode(code)
        more = {"together": True} if k in together else {}
        yield {
            "ph": "X", "pid": rank, "tid": 0, "name": str(action), "cat": action.kind, "cname": _COLOURS[action.kind],
            "ts": float(start) * unit, "dur": float(end - start) * unit,
            "args": {"chunk": action.chunk, "micro batch": action.microbatch} | more,
        }  # fmt: skip


def _host(timeline: Timeline, rank: int, unit: float) -> Iterator[Event]:
    """Activations on their way to host memory and back: a lane each way."""
    if not (timeline.host and len(timeline.host[rank])):
        return
    for lane, name in ((_OUT, "to host memory"), (_OUT + 1, "from host memory")):
        yield _named(rank, lane, name)
        times = timeline.host[rank][:, 2 * (lane - _OUT) :]
        for one, (start, end) in zip(timeline.schedule.offloads[rank], times[:, :2].tolist(), strict=True):
            action = timeline.schedule.decode(int(timeline.schedule.codes[rank][one.forward]))
            yield {
                "ph": "X", "pid": rank, "tid": lane, "name": f"{action.chunk}:{action.microbatch} {name}",
                "cat": "offload", "cname": "grey", "ts": start * unit, "dur": (end - start) * unit,
                "args": {"chunk": action.chunk, "micro batch": action.microbatch},
            }  # fmt: skip


def _stretch(part: Stretch, rank: int) -> Event:
    return {
        "ph": "X", "pid": rank, "tid": 0, "name": part.name, "cat": "after", "ts": part.start * 1e6,
        "dur": (part.end - part.start) * 1e6,
    }  # fmt: skip


def _traffic(lane: Lane, whole: Iteration, rank: int, index: int) -> Iterator[Event]:
    schedule = whole.timeline.schedule
    inside = {one.name: one for one in whole.traffic}.get(lane.name)
    columns = (lane.start.tolist(), lane.end.tolist(), lane.exposed.tolist(), lane.codes.tolist())
    for start, end, exposed, code in zip(*columns, strict=True):
        seconds, name = end - start, lane.name
        if inside and code >= 0:
            seconds = (inside.exposed if exposed else inside.hidden)[code // schedule.microbatches]
            name = f"{lane.name.partition(' ')[0]} of {schedule.decode(code)}"
        yield {
            "ph": "X", "pid": rank, "tid": index, "name": name if exposed else f"{name} (hidden)", "cat": lane.name,
            "cname": _SHOWN[exposed], "ts": start * 1e6, "dur": (end - start) * 1e6,
            "args": {"exposed": exposed, "seconds": seconds},
        }  # fmt: skip


def _memory(timeline: Timeline, rank: int, unit: float) -> Iterator[Event]:
    times, held = timeline.memory(rank)
    for t, h in zip(times, held, strict=True):
        yield {"ph": "C", "pid": rank, "name": "memory", "ts": float(t) * unit, "args": {"held": float(h)}}
