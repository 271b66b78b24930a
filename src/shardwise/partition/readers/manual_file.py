"""Manual strategies (seed 001): named blocks of offset and recompute lists, to be compared with the solver's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.inputs.files import read_mapping
from shardwise.inputs.gate import fits, said, wrong
from shardwise.inputs.scalars import SCALARS
from shardwise.partition.lists import Lists, Table

_KEYS = ("offset", "recompute", "select_recompute", "select_comm_recompute")
_OTHER = frozenset({"interleave_num", "show", "file_name"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Manual:
    """One strategy as its author wrote it."""

    name: str
    lists: Lists
    vpp: int
    show: bool = True
    file_name: str = ""


def read_manual(path: str | Path, *, pp: int, layers: int, vpp: int) -> tuple[Manual, ...]:
    """All blocks of a file; a truth value stands for all or none of the layers."""
    faults, found = list[Fault](), list[Manual]()
    for name, block in read_mapping(path).items():
        if not isinstance(block, dict):
            faults.append(Fault(name, "must be a block with offset and the recompute lists"))
            continue
        faults += [
            Fault(f"{name}.{key}", f"is not known; use {', '.join((*_KEYS, *sorted(_OTHER)))}")
            for key in sorted(set(block) - set(_KEYS) - _OTHER, key=str)
        ]
        turns, file_name = block.get("interleave_num", vpp), block.get("file_name") or ""
        wrong = [*_turn_faults(name, turns, pp, layers, vpp), *_file_faults(name, file_name)]
        if wrong:
            faults += wrong
            continue
        shown = block.get("show", True)
        if not isinstance(shown, bool):
            faults.append(Fault(f"{name}.show", f"must be true or false, not {said(shown)}"))
        lists = _lists(name, block, pp, layers, turns, faults)
        found.append(Manual(
            name=str(name), lists=lists, vpp=turns, show=bool(shown), file_name=file_name,
        ))  # fmt: skip
    if not found and not faults:
        faults.append(Fault("", "holds no strategy"))
    if faults:
        raise InputError(faults, title=str(path))
    return tuple(found)


def _turn_faults(name: str, turns: object, pp: int, layers: int, vpp: int) -> Iterator[Fault]:
    at = f"{name}.interleave_num"
    if message := wrong(turns, SCALARS["Strategy.vpp"]):
        yield Fault(at, message)
    elif isinstance(turns, int) and turns > max(vpp, layers // pp):
        yield Fault(at, f"is {turns:,}: {layers:,} layers cannot fill {pp} stages x {turns:,} chunks")


def _file_faults(name: str, file_name: object) -> Iterator[Fault]:
    if not isinstance(file_name, str) or (file_name and Path(file_name).name in {"", ".."}):
        yield Fault(f"{name}.file_name", f"is {file_name!r}; write the name of a file")


def _lists(name: str, block: dict[str, Any], pp: int, layers: int, turns: int, faults: list[Fault]) -> Lists:
    base = layers // (pp * turns)
    offset = _table(f"{name}.offset", block.get("offset", 0), ((0,) * pp,) * turns, faults)
    sizes = tuple(tuple(base + value for value in row) for row in offset)
    rest = {key: _table(f"{name}.{key}", block.get(key, False), sizes, faults) for key in _KEYS[1:]}
    return Lists(offset=offset, **rest)


def _table(at: str, value: object, everything: Table, faults: list[Fault]) -> Table:
    if value is True:
        return everything
    if value is False or value is None or value == 0:
        return tuple((0,) * len(row) for row in everything)
    rows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    if not all(isinstance(row, list) and all(fits(x, SCALARS["pipeline.offset"]) for x in row) for row in rows):
        faults.append(Fault(at, f"is {value!r}; write true, false, a list of whole numbers, or one list per chunk"))
        return tuple((0,) * len(row) for row in everything)
    return tuple(tuple(int(x) for x in row) for row in rows if isinstance(row, list))
