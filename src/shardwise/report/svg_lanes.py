"""Lanes of a whole iteration in a figure: below every rank's passes its traffic, beside them what follows."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.estimate.imbalance import NAME as WAITING
from shardwise.estimate.iteration import SHARDING, Iteration, Lane
from shardwise.pipeline.timeline import Timeline

LANE = 9.0
"""Height of a lane with the gap below it."""
COLOURS = {
    "tp communication": "#56b4e9", "cp communication": "#cc79a7", "ep communication": "#9a8700", SHARDING: "#a6611a",
    "gradient reduction": "#9467bd", "weight gathering": "#ef5675", "optimizer": "#f0e442", "framework": "#8b949e",
    "hidden communication": "#b8c0c8", "stragglers": "#586069", WAITING: "#c9a227",
}  # fmt: skip
"""By part of the ledger; none is a colour of the passes. The page has the same."""
_SHORT = {SHARDING: "zero 3", "gradient reduction": "reduce", "weight gathering": "gather"}
_HOST = ("#586069", "#8b949e")
"""Of the ways to host memory and back."""
HIDDEN = 0.45
"""How strong hidden traffic is drawn."""


def rank_lanes(whole: Iteration, rank: int, y: float, row: float, left: float, scale: float) -> Iterator[str]:
    """The lanes of a rank whose passes are drawn at `y`, `row` high."""
    for part in whole.after(rank):
        yield _bar(part.name, part.start, part.end, y, row, left, scale, exposed=True)
    for index, lane in enumerate(whole.lanes(rank)):
        yield from _lane(lane, y + row + 2.0 + LANE * index, left, scale)


def host_lanes(timeline: Timeline, rank: int, y: float, row: float, left: float, scale: float) -> Iterator[str]:
    """What goes to host memory and comes back, a lane each way."""
    for index, name in enumerate(("to host", "back")):
        top = y + row + 2.0 + LANE * index
        yield f'<text x="{left - 4:g}" y="{top + 6.5:g}" font-size="8" fill="#555" text-anchor="end">{name}</text>'
        for start, end in timeline.host[rank][:, 2 * index : 2 * index + 2].tolist():
            yield (
                f'<rect x="{left + start * scale:.2f}" y="{top:g}" width="{(end - start) * scale:.2f}" '
                f'height="{LANE - 2.0:g}" fill="{_HOST[index]}"><title>{name} {start:g} to {end:g}</title></rect>'
            )


def _lane(lane: Lane, y: float, left: float, scale: float) -> Iterator[str]:
    name = _SHORT.get(lane.name, lane.name.partition(" ")[0])
    yield f'<text x="{left - 4:g}" y="{y + 6.5:g}" font-size="8" fill="#555" text-anchor="end">{name}</text>'
    for start, end, exposed in zip(lane.start.tolist(), lane.end.tolist(), lane.exposed.tolist(), strict=True):
        yield _bar(lane.name, start, end, y, LANE - 2.0, left, scale, exposed=exposed)


def _bar(
    name: str, start: float, end: float, y: float, height: float, left: float, scale: float, *, exposed: bool
) -> str:
    strong = "" if exposed else f' fill-opacity="{HIDDEN}"'
    told = f"{name}{'' if exposed else ' (hidden)'} {end - start:.4g} s"
    return (
        f'<rect x="{left + start * scale:.2f}" y="{y:g}" width="{(end - start) * scale:.2f}" height="{height:g}" '
        f'fill="{COLOURS[name]}"{strong}><title>{told}</title></rect>'
    )


def lanes_legend(whole: Iteration, left: float, y: float) -> Iterator[str]:
    """Every kind that is drawn, and how hidden traffic looks."""
    ranks = range(whole.timeline.schedule.pp)
    names = [lane.name for lane in whole.lanes(0)]
    names += [name for name in COLOURS if any(part.name == name for rank in ranks for part in whole.after(rank))]
    x = left
    for name in names:
        yield f'<rect x="{x:g}" y="{y - 9:g}" width="10" height="10" fill="{COLOURS[name]}"/>'
        yield f'<text x="{x + 14:g}" y="{y:g}">{name}</text>'
        x += 34.0 + 6.0 * len(name)
    yield f'<rect x="{x:g}" y="{y - 9:g}" width="10" height="10" fill="#444" fill-opacity="{HIDDEN}"/>'
    yield f'<text x="{x + 14:g}" y="{y:g}">hidden behind kernels</text>'
