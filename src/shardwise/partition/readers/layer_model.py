"""The fitted layer model (`-m NAME`): SAPP's model JSON, written from an init file and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwise.errors import InputError
from shardwise.inputs.files import read_mapping
from shardwise.inputs.serialise import to_json
from shardwise.inputs.write import write_text
from shardwise.partition.decompose import ACTIVATIONS, CHOICES, MemoryFit, MemoryPart, called, decompose
from shardwise.partition.readers.init_file import Init, read_init
from shardwise.partition.readers.keys import passed_over
from shardwise.partition.readers.measured import fit_of, kept
from shardwise.partition.readers.problem_file import RECOMPUTE, model_faults, model_places
from shardwise.partition.readers.traces import LayerTimes, read_times
from shardwise.partition.spread import spread_notes

_KEYS = {"none": "memory_activation", **{name: key for name, (key, _, _) in RECOMPUTE.items()}}
"""Choice -> where a layer model keeps its activation."""
_SOME = 1e-3
"""MB that stand for none: a choice of 0 MB is read as one that there is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerModel:
    """A layer model with the fit it came from."""

    data: dict[str, Any]
    fit: MemoryFit | None = None
    notes: tuple[str, ...] = ()


def model_of_init(
    path: str | Path,
    name: str = "model",
    *,
    peaks: Sequence[Mapping[int, float]] = (),
    times: Sequence[float] | None = None,
) -> LayerModel:
    """Read an init file, take its memory apart and its times from traces or the file."""
    init = read_init(path, peaks=peaks, times=times)
    fit = decompose(init.measured, init.pp, [kind for kind, _ in init.runs])
    found, notes = _times(init)
    layers = [("HEAD", "HEAD", 1), *((kind, "BODY", count) for kind, count in init.runs), ("TAIL", "TAIL", 1)]
    entries = [
        {"name": word, "type": of, "model_name": name, "nb_layer": count, **timed, **_memory(fit, of, place - 1)}
        for place, ((word, of, count), timed) in enumerate(zip(layers, found, strict=True))
    ]
    data = {
        "name": name, "stage_const_mem": fit.values.get("const", 0.0), "layers_description": entries,
        "measured": kept(fit),
    }  # fmt: skip
    unknown = (f"{path}: {note}" for note in init.unknown)
    return LayerModel(data=data, fit=fit, notes=(*unknown, *fit.notes, *spread_notes(fit), *notes))


def memory_of(fit: MemoryFit, kind: int = 0) -> dict[str, float]:
    """What a layer model says of the memory of a kind of layers: every choice that was measured, and no other."""
    used = [any(m.counts[kind * len(CHOICES) + c] for m in fit.measured) for c in range(len(CHOICES))]
    made = [choice for choice, is_used in zip(CHOICES, used, strict=True) if is_used]
    held = {_KEYS[choice]: max(_value(fit, ACTIVATIONS[choice], kind), _SOME) for choice in made}
    return {"memory_parameter": _value(fit, "par", kind)} | held


def _memory(fit: MemoryFit, of: str, kind: int) -> dict[str, float]:
    """The same, or of the head or the tail."""
    return memory_of(fit, kind) if of == "BODY" else {"memory_parameter": fit.values.get(of.lower(), 0.0)}


def _value(fit: MemoryFit, part: str, kind: int) -> float:
    return fit.values.get(called(MemoryPart(part, kind), fit.kinds), 0.0)


def _times(init: Init) -> tuple[list[dict[str, float]], tuple[str, ...]]:
    """Times of head, a layer of every kind and tail, as the keys of a layer model, and notes."""
    if init.times is not None:
        return [{"time": time} for time in init.times], ()
    assert init.profiling is not None  # noqa: S101 - the reader made sure of one of the two
    bodies = init.profiling.bodies or (init.profiling.body,)
    read = [read_times(replace(init.profiling, body=body), init.kinds) for body in bodies]
    made = [_entry(read[0].head, read[0].head_backward), *map(_body, read), _entry(read[0].tail, read[0].tail_backward)]
    return made, tuple(dict.fromkeys(note for found in read for note in found.notes))


def _body(found: LayerTimes) -> dict[str, float]:
    again = {f"{RECOMPUTE[kind][1]}_time": time for kind, time in found.recompute.items()}
    return _entry(found.body, found.body_backward) | again


def _entry(forward: float, backward: float | None) -> dict[str, float]:
    return {"time": forward} if backward is None else {"time": forward, "backward_time": backward}


def save_model(model: LayerModel, path: str | Path) -> None:
    write_text(path, to_json(model.data))


def load_model(path: str | Path) -> LayerModel:
    data = read_mapping(path)
    faults = list(model_faults(data))
    if faults:
        raise InputError(faults, title=str(path))
    fit = fit_of(data)
    unknown = (f"{path}: {note}" for note in passed_over(model_places(data)))
    return LayerModel(data=data, fit=fit, notes=(*unknown, *(spread_notes(fit) if fit else ())))
