"""Costs of a pipeline as people write them: `10,11,9` or a JSON file, and a memory limit such as `1.5p` or `40GB`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.inputs.files import read_mapping
from shardwise.inputs.gate import Scalar, held, listed, typed
from shardwise.inputs.scalars import SCALARS
from shardwise.pipeline.costs import Costs, costs, limit_of
from shardwise.units import parse_bytes

_TOGETHER = ("traffic_f", "traffic_b", "together")
_HOST = ("offload", "reload")
_FIELDS = (
    "f", "i", "w", "hop", "transfer", "activation", "free_at_input_grad", "static", "memory_limit", "alternatives",
    *_TOGETHER, *_HOST,
)  # fmt: skip
_CHUNK_FIELDS = ("f", "i", "w", "activation")
_ROWS = {
    **dict.fromkeys(("f", "i", "w", "hop", "transfer", *_TOGETHER, *_HOST), "pipeline.time"),
    "activation": "pipeline.bytes", "static": "pipeline.bytes", "memory_limit": "pipeline.limit",
    "free_at_input_grad": "pipeline.share",
}  # fmt: skip
"""Field -> its row of the one table."""


def costs_of(
    given: Costs | Sequence[Costs] | str,
    pp: int,
    vpp: int,
    hop: float | None = None,
    free: float | None = None,
    *,
    chunks: int = 0,
) -> tuple[Costs, ...]:
    """The alternatives that are given: costs as they are, or those that a text or a file describes.

    `chunks`: of all ranks, where these hold different numbers of them.
    """
    if isinstance(given, str):
        return read_costs(given, pp, vpp, hop, free, chunks=chunks)
    found = (given,) if isinstance(given, Costs) else tuple(given)
    if not found:
        raise InputError(Fault("costs", "are none; give those of every chunk, such as 10,11,9"))
    if odd := [one.chunks for one in found if one.chunks != (chunks or pp * vpp)]:
        told = f"the schedule has {chunks}" if chunks else f"pp {pp} x vpp {vpp} are {pp * vpp}"
        raise InputError(Fault("costs", f"are of {odd[0]} chunks; {told}"))
    return found


def read_costs(
    text: str, pp: int, vpp: int, hop: float | None, free: float | None, *, chunks: int = 0
) -> tuple[Costs, ...]:
    """The alternatives that a text or a file describes; one where it names no others."""
    if not text.strip():
        raise InputError("--costs is empty; write f,i,w such as 10,11,9, or name a JSON file")
    if not re.match(r"[-+.0-9]", text.strip()) or Path(text).is_file():
        if Path(text).suffix or Path(text).exists():
            return _from_file(text, pp, vpp, hop, free, chunks)
        raise InputError(f"--costs {text!r} is neither f,i,w such as 10,11,9 nor a file ending in .json")
    numbers = listed(text, SCALARS["pipeline.time"], "--costs")
    if len(numbers) != 3:
        raise InputError(f"--costs {text!r} has {len(numbers)} numbers; write f,i,w of one chunk, such as 10,11,9")
    f, i, w = numbers
    share = 0.5 if free is None else free
    return (costs(pp=pp, vpp=vpp, f=f, i=i, w=w, hop=hop or 0.0, free_at_input_grad=share, chunks=chunks),)


def _from_file(path: str, pp: int, vpp: int, hop: float | None, free: float | None, chunks: int) -> tuple[Costs, ...]:
    data = read_mapping(path)
    unknown = sorted(set(data) - set(_FIELDS))
    faults = [Fault(key, f"is not a cost; the keys are {', '.join(_FIELDS)}") for key in unknown]
    faults += [Fault(key, "is missing; give one number or one per chunk") for key in "fiw" if key not in data]
    others = data.pop("alternatives", [])
    if not isinstance(others, list) or any(not isinstance(other, dict) for other in others):
        faults.append(Fault("alternatives", "must be a list of tables with f, i, w and activation"))
        others = []
    faults += [
        Fault(f"alternatives[{k}].{key}", f"is not a cost of a chunk; the keys are {', '.join(_CHUNK_FIELDS)}")
        for k, other in enumerate(others)
        for key in sorted(set(other) - set(_CHUNK_FIELDS))
    ]
    tables = {"": data, **{f"alternatives[{k}].": other for k, other in enumerate(others)}}
    faults += [fault for at, table in tables.items() for key, value in table.items() if key in _ROWS
               for fault in _number_faults(f"{at}{key}", value, SCALARS[_ROWS[key]])]  # fmt: skip
    if faults:
        raise InputError(faults, title=path)
    data |= {"hop": hop} if hop is not None else {}
    data |= {"free_at_input_grad": free} if free is not None else {}
    return tuple(costs(pp=pp, vpp=vpp, chunks=chunks, **(data | other)) for other in ({}, *others))


def _number_faults(at: str, value: Any, row: Scalar) -> Iterator[Fault]:  # noqa: ANN401 - what a file holds
    """A number, or a list of them; a share is one for all."""
    if value == []:
        yield Fault(at, "is an empty list; give one number, one per chunk or rank, or leave it out")
    for item in value if isinstance(value, list) and row is not SCALARS["pipeline.share"] else [value]:
        try:
            held(item, row, at)
        except InputError as error:
            yield from error.faults


def limited(found: tuple[Costs, ...], text: str | None, rank_of: tuple[int, ...]) -> tuple[Costs, ...]:
    """The costs with the memory limit of the command line, `1.5p` or bytes; the same for every alternative."""
    if text is None:
        return found
    if text.strip().lower() == "none":
        return tuple(replace(one, memory_limit=()) for one in found)
    try:
        limits = _limits(found[0], text.strip(), rank_of)
    except InputError as error:
        raise InputError(f"--memory {text!r}: {error.faults[0].message}; {_FORMS}") from None
    if not 0 < min(limits) < float("inf"):
        raise InputError(f"--memory {text!r} leaves a rank nothing; {_FORMS}")
    return tuple(replace(one, memory_limit=limits) for one in found)


_FORMS = "write 1.5p, 40GB, a number or none"


def _limits(costs: Costs, text: str, rank_of: tuple[int, ...]) -> tuple[float, ...]:
    if text.endswith(("p", "P")):
        return limit_of(costs, rank_of, typed(text[:-1], SCALARS["option.times"], ""))
    bare = re.fullmatch(r"[-+.0-9eE]+", text)
    value = typed(text, SCALARS["pipeline.limit"], "") if bare else parse_bytes(text)
    return (value,) * (1 + max(rank_of))
