"""Tables that fit their terminal: bars go first, then a long first column gets its own line, then columns are stacked.

Nothing is cut off; where a program reads (no terminal), a table is as wide as it must be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

_BAR = re.compile("^([█]*)([·]*) +(?=[0-9])")
_NUMBER = re.compile("[-+.]?[0-9█·]|-$")
_BETWEEN = 2
_INDENT = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePiece:
    """A table that is printed in one go."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    hanging: bool = False
    """The first column stands on lines of its own, the others below it."""


def fitted(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[TablePiece]:
    """One table, or the pieces that together say the same in `width` columns; no width: one, however wide.

    A column in which nothing stands is left out.
    """
    whole = TablePiece(heads=tuple(heads), rows=tuple(map(tuple, rows)))
    said = [index for index in range(len(heads)) if not index or any(row[index] for row in whole.rows)]
    whole = _columns(whole, said) if whole.rows else whole
    if width is None or _wide(whole) <= width:
        return [whole]
    bare = TablePiece(heads=whole.heads, rows=tuple(tuple(_BAR.sub("", cell) for cell in row) for row in whole.rows))
    if _wide(bare) <= width:
        return [bare]
    sizes = _sizes(bare)
    if sizes[0] > width // 2 and sum(sizes[1:]) + _BETWEEN * len(sizes) <= width:
        return [TablePiece(heads=bare.heads, rows=bare.rows, hanging=True)]
    return [_columns(bare, chosen) for chosen in _banks(sizes, width)]


def _sizes(piece: TablePiece) -> list[int]:
    from rich.cells import cell_len

    columns = zip(piece.heads, *piece.rows, strict=True) if piece.rows else ((head,) for head in piece.heads)
    return [max(map(cell_len, column)) for column in columns]


def _wide(piece: TablePiece) -> int:
    sizes = _sizes(piece)
    return sum(sizes) + _BETWEEN * (len(sizes) - 1)


def _banks(sizes: list[int], width: int) -> list[list[int]]:
    """Columns in groups that fit, the first column in each; a column that fits nowhere is alone with it."""
    banks: list[list[int]] = [[]]
    room = width - sizes[0]
    for index, size in enumerate(sizes[1:], 1):
        if banks[-1] and sum(sizes[other] + _BETWEEN for other in banks[-1]) + size + _BETWEEN > room:
            banks.append([])
        banks[-1].append(index)
    return [[0, *bank] for bank in banks]


def _columns(piece: TablePiece, chosen: list[int]) -> TablePiece:
    heads, *rows = (tuple(row[index] for index in chosen) for row in (piece.heads, *piece.rows))
    return TablePiece(heads=heads, rows=tuple(rows))


def hung(piece: TablePiece) -> list[str]:
    """The lines of a hanging piece, its heads first: the first cell, and the others aligned below it."""
    sizes = _sizes(piece)[1:]
    lines = list[str]()
    for first, *others in (piece.heads, *piece.rows):
        lines += [
            first,
            _INDENT + (" " * _BETWEEN).join(cell.rjust(size) for cell, size in zip(others, sizes, strict=True)),
        ]
    return lines


def sides(piece: TablePiece) -> list[str]:
    """Where the cells of every column stand: texts to the left, numbers to the right."""
    columns = list(zip(*piece.rows, strict=True))[1:] if piece.rows else [()] * (len(piece.heads) - 1)
    return ["left", *("right" if any(map(_NUMBER.match, cells)) or not any(cells) else "left" for cells in columns)]


def styled(cell: str) -> Text:
    """A cell with its bar coloured: red where it is over the full length."""
    from rich.text import Text

    text, found = Text(cell), _BAR.match(cell)
    if found:
        over = float(re.sub("[^0-9.].*", "", cell[found.end() :]) or 0) > 100
        text.stylize("red" if over else "cyan", *found.span(1))
        text.stylize("dim", *found.span(2))
    return text
