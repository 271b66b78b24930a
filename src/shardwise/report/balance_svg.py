"""Several strategies in one figure: each with its pipeline on top and its memory below, on one time scale apart."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardwise.partition.compare import Compared
from shardwise.report.svg import timeline_svg

_OPEN = re.compile(r'<svg xmlns="[^"]*" viewBox="0 0 ([\d.]+) ([\d.]+)"')


def compared_svg(compared: Iterable[Compared]) -> str:
    """One SVG file, the strategies below each other."""
    parts, y, width = list[str](), 0.0, 0.0
    for one in compared:
        title = one.name if one.evaluation.fits else f"{one.name} (over the memory limit)"
        figure = timeline_svg(one.evaluation.timeline, title)
        found = _OPEN.search(figure)
        wide, tall = (float(found[1]), float(found[2])) if found else (1200.0, 800.0)
        placed = f'<svg y="{y:g}" width="{wide:g}" height="{tall:g}" viewBox="0 0 {wide:g} {tall:g}"'
        parts.append(_OPEN.sub(placed, figure, count=1))
        y, width = y + tall, max(width, wide)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {y:g}">\n{"".join(parts)}</svg>\n'
