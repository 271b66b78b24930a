"""How well a calibration fits, as a picture: one panel a family, error against measured time."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import ceil, floor, log10

from shardwise.measure.fit.result import Family, Fit, Point

_WIDE, _HIGH, _COLUMNS, _PAD = 330.0, 190.0, 3, 42.0
_MOST = 0.5
"""Errors beyond this are drawn at the edge."""
COLOURS = {False: "#4c78a8", True: "#e45756"}


def fit_svg(fit: Fit) -> str:
    """A stand-alone SVG file."""
    families = [family for family in fit.families if family.points]
    rows = ceil(len(families) / _COLUMNS)
    width, height = _COLUMNS * _WIDE + 20, rows * _HIGH + 60
    title = escape(f"{fit.calibration.name}: {fit.calibration.source}")
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            'font-family="sans-serif" font-size="10">'
        ),
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
        f'<text x="12" y="20" font-size="13">{title}</text>',
        (
            f'<text x="12" y="36">predicted / measured - 1 against measured time; '
            f'<tspan fill="{COLOURS[False]}">fitted or checked</tspan>, '
            f'<tspan fill="{COLOURS[True]}">kept out of the fit</tspan></text>'
        ),
    ]
    for index, family in enumerate(families):
        x, y = 10 + index % _COLUMNS * _WIDE, 50 + index // _COLUMNS * _HIGH
        lines += _panel(family, x, y)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(family: Family, x: float, y: float) -> Iterator[str]:
    low = floor(log10(min(point.measured for point in family.points)))
    high = max(low + 1, ceil(log10(max(point.measured for point in family.points))))
    wide, tall = _WIDE - _PAD - 14, _HIGH - 56
    left, top = x + _PAD, y + 20
    share = "" if family.held_out is None else f", kept out {100 * family.held_out:.1f}%"
    yield f'<text x="{left:g}" y="{y + 12:g}">{escape(family.name)}: mean {100 * family.mean:.1f}%{share}</text>'
    for error in (-_MOST, -0.1, 0.0, 0.1, _MOST):
        at = top + tall * (0.5 - error / _MOST / 2)
        colour = "#333" if error == 0 else "#ccc"
        yield f'<line x1="{left:g}" x2="{left + wide:g}" y1="{at:.1f}" y2="{at:.1f}" stroke="{colour}"/>'
        yield f'<text x="{left - 4:g}" y="{at + 3:.1f}" text-anchor="end">{100 * error:+.0f}%</text>'
    for power in range(low, high + 1):
        at = left + wide * (power - low) / (high - low)
        yield f'<text x="{at:.1f}" y="{top + tall + 14:g}" text-anchor="middle">1e{power} s</text>'
    for point in family.points:
        yield _dot(point, left + wide * (log10(point.measured) - low) / (high - low), top, tall)


def _dot(point: Point, x: float, top: float, tall: float) -> str:
    error = max(-_MOST, min(_MOST, point.error))
    told = escape(f"{point.label}: {point.measured:.3g} s, {100 * point.error:+.1f}%")
    return (
        f'<circle cx="{x:.1f}" cy="{top + tall * (0.5 - error / _MOST / 2):.1f}" r="2.2" fill-opacity="0.6" '
        f'fill="{COLOURS[point.held_out]}"><title>{told}</title></circle>'
    )
