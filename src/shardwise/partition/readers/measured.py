"""The measured peaks that a layer model keeps (`measured`), so that its margins are known when it is read again.

{"pp": stages, "kinds": [names], "peaks": [{"stage", "counts": layers by choice, kind after kind, "peak", "round",
"held"}]}; round and held only where they say something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.errors import Fault
from shardwise.inputs.gate import fits
from shardwise.inputs.scalars import SCALARS
from shardwise.partition.decompose import CHOICES, Measured, MemoryFit, decompose

_AT = "model.measured"
_COUNT, _STAGES = SCALARS["option.none"], SCALARS["Strategy.pp"]


def kept(fit: MemoryFit) -> dict[str, Any]:
    """What a layer model keeps of its fit."""
    return {"pp": fit.pp, "kinds": list(fit.kinds), "peaks": [_row(m) for m in fit.measured]}


def _row(m: Measured) -> dict[str, Any]:
    more = {name: value for name, value in (("round", m.round), ("held", list(m.held))) if value}
    return {"stage": m.stage, "counts": list(m.counts), "peak": m.peak, **more}


def fit_of(model: Mapping[str, Any]) -> MemoryFit | None:
    """The fit of a layer model without faults; None: its numbers are exact."""
    data = model.get("measured")
    if data is None:
        return None
    measured = [
        Measured(
            stage=row["stage"], layers=sum(row["counts"]), counts=tuple(row["counts"]), peak=float(row["peak"]),
            round=row.get("round", 0), held=tuple(map(float, row.get("held", ()))),
        )
        for row in data["peaks"]
    ]  # fmt: skip
    return decompose(measured, data["pp"], data["kinds"])


def measured_faults(data: object) -> Iterator[Fault]:
    """What is wrong with the measured peaks of a layer model."""
    if not isinstance(data, dict) or not fits(data.get("pp"), _STAGES):
        yield Fault(_AT, "must hold pp, kinds and peaks, as `balance --init ... -m NAME` writes them; or leave it out")
        return
    kinds, rows = data.get("kinds"), data.get("peaks")
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, str) for kind in kinds):
        yield Fault(f"{_AT}.kinds", "must be a list of names, one a kind of layers")
    elif not isinstance(rows, list) or not rows:
        yield Fault(f"{_AT}.peaks", "must be a list of measured peaks")
    else:
        for k, row in enumerate(rows):
            yield from _row_faults(row, data["pp"], len(kinds) * len(CHOICES), f"{_AT}.peaks.{k}")


def _row_faults(row: object, pp: int, width: int, at: str) -> Iterator[Fault]:
    if not isinstance(row, dict) or not fits(row.get("stage"), _COUNT) or row["stage"] >= pp:
        yield Fault(at, f"must be a table with a stage from 0 to {pp - 1}, counts and a peak")
        return
    counts, held = row.get("counts"), row.get("held", [0] * width)
    if not isinstance(counts, list) or len(counts) != width or not all(fits(n, _COUNT) for n in counts):
        yield Fault(f"{at}.counts", f"must be {width} whole numbers: layers by {', '.join(CHOICES)}, for each kind")
    if not isinstance(held, list) or len(held) != width or not all(fits(n, SCALARS["pipeline.bytes"]) for n in held):
        yield Fault(f"{at}.held", f"must be {width} numbers, one for each of counts")
    if not fits(row.get("peak"), SCALARS["log.peak"]):
        yield Fault(f"{at}.peak", "must be the measured peak in MB, above 0")
    if not fits(row.get("round", 0), _COUNT):
        yield Fault(f"{at}.round", "must be a whole number")
