"""What `schedule` and `simulate` say: the numbers by their names in the JSON, and the lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise.pipeline.bounds import Bound
from shardwise.pipeline.generate import SHAPES
from shardwise.pipeline.timeline import Timeline
from shardwise.report.text import draw_ends
from shardwise.search.schedule import Refused, Scheduled
from shardwise.units import show_bytes, show_percent, show_seconds

HEADS = ("schedule", "makespan", "period", "bubble", "period bubble", "peak", "note")


def figures(timeline: Timeline, bound: Bound, value: float) -> dict[str, object]:
    """The numbers of an answer."""
    schedule = timeline.schedule
    return {
        "schedule": schedule.name, "pp": schedule.pp, "vpp": schedule.vpp,
        "microbatches": schedule.microbatches * schedule.copies,
        "makespan": timeline.makespan, "period": timeline.period, "bubble": timeline.bubble,
        "period_bubble": timeline.period_bubble, "seed_rate": timeline.seed_rate, "peak": list(timeline.peak),
        "bubbles": timeline.bubbles(), "period_bubbles": timeline.period_bubbles(), "bound": bound.value,
        "gap": max(0.0, value / bound.value - 1.0), "proven": value <= bound.value * (1 + 1e-9),
        **({"copies": schedule.copies} if schedule.copies > 1 else {}),
        **({"offloads": [len(own) for own in schedule.offloads]} if any(schedule.offloads) else {}),
    }  # fmt: skip


def schedule_data(found: Scheduled) -> dict[str, object]:
    """The JSON answer of `schedule`."""
    data = figures(found.timeline, found.bound, found.value)
    data |= {"objective": found.objective, "choice": found.choice, "proof": found.proof}
    if found.others:
        data["compare"] = [
            {"schedule": one.name, "error": one.why} if isinstance(one, Refused)
            else figures(one.timeline, one.bound, one.value) | {"schedule": one.name}
            for one in (found, *found.others)
        ]  # fmt: skip
    return data


def time_text(value: float, *, seconds: bool) -> str:
    """Six digits, or as many as whole units have."""
    return show_seconds(value) if seconds else f"{value:.{max(6, len(str(int(value))))}g}"


def bytes_text(value: float, *, seconds: bool) -> str:
    return show_bytes(value) if seconds else f"{value:g}"


def timeline_lines(timeline: Timeline, *, seconds: bool, width: int) -> Iterator[str]:
    """Times, bubbles with their causes, memory, and the drawing where it fits."""
    parts = timeline.bubbles()
    causes = ", ".join(f"{name} {show_percent(share, 2)}" for name, share in parts.items() if share > 5e-5)
    yield f"makespan       {time_text(timeline.makespan, seconds=seconds)}"
    yield f"period         {time_text(timeline.period, seconds=seconds)}"
    yield f"bubble         {show_percent(timeline.bubble, 2)} synchronous ({causes or 'none'})"
    yield f"               {show_percent(timeline.period_bubble, 2)} period, {timeline.seed_rate:.4f} seed rate"
    peaks = [bytes_text(peak, seconds=seconds) for peak in timeline.peak]
    shown = peaks if len(peaks) <= 16 else [*peaks[:8], "...", *peaks[-4:]]
    yield f"peak memory    {' '.join(shown)}"
    if told := host_line(timeline, seconds=seconds):
        yield told
    if picture := draw_ends(timeline, width):
        yield "\n" + picture


def pair_notes(timeline: Timeline, *, asked: bool) -> Iterator[str]:
    """What was given for passes that run together and changes nothing; `asked`: they were asked for."""
    costs = timeline.costs
    if timeline.schedule.pairs:
        return
    if asked:
        yield "no forward stands right before a full backward of another micro batch: nothing runs together"
    elif names := [name for name in ("traffic_f", "traffic_b", "together") if getattr(costs, name)]:
        yield f"{', '.join(names)} change nothing: no passes of this order run together (--combine)"


def link_notes(timeline: Timeline) -> Iterator[str]:
    """Contention that was asked for and changes nothing."""
    if timeline.costs.contention and not any(timeline.costs.transfer):
        yield "contention changes nothing: no message has its link for itself (--transfer, or transfer in the costs)"


def host_notes(timeline: Timeline, *, csv: bool, cut: bool = False) -> Iterator[str]:
    """Host memory that changes nothing, and a CSV that does not tell of it; `cut`: the search was cut short."""
    if timeline.costs.offload and not timeline.costs.memory_limit:
        yield "offload changes nothing: there is no limit that asks for it (--memory)"
    elif timeline.costs.offload and not any(timeline.schedule.offloads):
        told = "what was found so far sends nothing there" if cut else "the order is as fast without"
        yield f"nothing goes to host memory: {told}"
    elif csv and any(timeline.schedule.offloads):
        yield "the CSV is PyTorch's, compute only: what goes to host memory is not in it (--json has it)"


def unused_notes(
    names: Sequence[str], *, group: int, splits: int, effort: float, time_limit: float | None
) -> Iterator[str]:
    """Options that none of the schedules that are asked for heeds."""
    told = {
        "--group": (group, 0, "interleaved", "only interleaved has groups"),
        "--splits": (splits, 2, "seq-1f1b", "only seq-1f1b cuts sequences"),
        "--effort": (effort, 1.0, "auto", "only auto searches"),
        "--time": (time_limit, None, "auto", "only auto searches"),
    }
    for option, (given, default, name, why) in told.items():
        if given != default and name not in names:
            yield f"{option} {given:g} changes nothing: {why}"


def shape_notes(found: Scheduled) -> Iterator[str]:
    """Chunks and their places that were asked for, and that the schedule has otherwise."""
    shape, asked = SHAPES.get(found.name), found.pipeline
    if shape is None or asked.setup is not None:
        return
    if shape.vpp and shape.vpp != asked.vpp:
        own = f"{shape.vpp} chunk{'s' * (shape.vpp > 1)} a rank"
        yield f"{found.name} has {own}: the work of {asked.vpp} is spread anew"
    if shape.vpp != 1 and asked.placement in {"loop", "v"} and asked.placement != shape.placement:
        yield f"{found.name} lies on a {shape.placement}: --placement {asked.placement} changes nothing"


def copy_notes(timeline: Timeline, *, csv: bool) -> Iterator[str]:
    """A CSV that does not tell of several copies."""
    if csv and timeline.schedule.copies > 1:
        yield f"the CSV does not say that its chunks are {timeline.schedule.copies} copies: replay it with --copies"


def host_line(timeline: Timeline, *, seconds: bool) -> str:
    """What goes to host memory; empty: nothing does."""
    counts = [len(own) for own in timeline.schedule.offloads]
    if not any(counts):
        return ""
    forwards = timeline.schedule.chunks * timeline.schedule.microbatches
    busy = [float(max((own[:, 1] - own[:, 0]).sum(), (own[:, 3] - own[:, 2]).sum())) for own in timeline.host]
    most = max(range(len(busy)), key=busy.__getitem__)
    return (
        f"offload        {sum(counts)} of {forwards} activations go to host memory and back; the busiest lane, of rank "
        f"{most}, works {time_text(busy[most], seconds=seconds)} ({show_percent(busy[most] / timeline.makespan)})"
    )


def bound_line(bound: Bound, value: float, *, seconds: bool) -> str:
    gap = max(0.0, value / bound.value - 1.0)
    proof = "optimal, proven" if gap <= 1e-9 else f"gap {show_percent(gap, 2)}"
    return (
        f"bound          {time_text(bound.value, seconds=seconds)} for {bound.scope} ({proof}; "
        f"under this cost model, rank {bound.rank}, {bound.kind})"
    )


def compared_row(found: Scheduled | Refused) -> tuple[str, ...]:
    """A line of the table of schedules; one that cannot run says why instead."""
    if isinstance(found, Refused):
        return (found.name, "-", "-", "-", "-", "-", found.why.splitlines()[0][:70])
    line, seconds = found.timeline, found.pipeline.seconds
    over = "over the limit" if found.over_limit and seconds else found.over_limit  # bytes are in the column before
    return (
        found.name, time_text(line.makespan, seconds=seconds), time_text(line.period, seconds=seconds),
        show_percent(line.bubble, 2), show_percent(line.period_bubble, 2), bytes_text(max(line.peak), seconds=seconds),
        over,
    )  # fmt: skip
