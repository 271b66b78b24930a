"""The fitted layer model (`-m NAME`): SAPP's model JSON, written from an init file and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import InputError
from shardwise.inputs.files import read_mapping
from shardwise.inputs.serialise import to_json
from shardwise.inputs.write import write_text
from shardwise.partition.decompose import ACTIVATIONS, MemoryFit, decompose
from shardwise.partition.readers.init_file import Init, read_init
from shardwise.partition.readers.measured import fit_of, kept
from shardwise.partition.readers.problem_file import RECOMPUTE, model_faults
from shardwise.partition.readers.traces import read_times
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
    times: tuple[float, float, float] | None = None,
) -> LayerModel:
    """Read an init file, take its memory apart and its times from traces or the file."""
    init = read_init(path, peaks=peaks, times=times)
    fit = decompose(init.measured, init.pp)
    found, extra, notes = _times(init)
    body = {
        "name": "BODY", "type": "BODY", "model_name": name, "time": found[1], "nb_layer": init.layers, **extra["BODY"],
        **memory_of(fit),
    }  # fmt: skip
    ends = [
        {"name": word, "type": word, "model_name": name, "time": found[k], "nb_layer": 1, **extra[word],
         "memory_parameter": fit.values.get(word.lower(), 0.0)}
        for word, k in (("HEAD", 0), ("TAIL", 2))
    ]  # fmt: skip
    data = {
        "name": name, "stage_const_mem": fit.values.get("const", 0.0), "layers_description": [ends[0], body, ends[1]],
        "measured": kept(fit),
    }  # fmt: skip
    unknown = (f"{path}: {', '.join(init.unknown)} mean nothing here and are passed over",) if init.unknown else ()
    return LayerModel(data=data, fit=fit, notes=(*unknown, *fit.notes, *spread_notes(fit), *notes))


def memory_of(fit: MemoryFit, kind: int = 0) -> dict[str, float]:
    """What a layer model says of the memory of a kind of layers; every choice that was measured stays one."""
    of_kind = f" {fit.kinds[kind]}" if len(fit.kinds) > 1 else ""
    parts = {_KEYS[choice]: fit.values.get(f"{part}{of_kind}") for choice, part in ACTIVATIONS.items()}
    found = {key: max(value, _SOME) for key, value in parts.items() if value is not None}
    return {"memory_parameter": fit.values[f"par{of_kind}"], "memory_activation": 0.0} | found


def _times(init: Init) -> tuple[tuple[float, float, float], dict[str, dict[str, float]], tuple[str, ...]]:
    """Forward times, what else was measured of head, body layer and tail, and notes."""
    if init.times is not None:
        return init.times, {"HEAD": {}, "BODY": {}, "TAIL": {}}, ()
    assert init.profiling is not None  # noqa: S101 - the reader made sure of one of the two
    found = read_times(init.profiling, init.kinds)
    extra: dict[str, dict[str, float]] = {part: {} for part in ("HEAD", "BODY", "TAIL")}
    for part, backward in (
        ("HEAD", found.head_backward), ("BODY", found.body_backward), ("TAIL", found.tail_backward)
    ):  # fmt: skip
        if backward is not None:
            extra[part]["backward_time"] = backward
    extra["BODY"] |= {f"{RECOMPUTE[kind][1]}_time": time for kind, time in found.recompute.items()}
    return (found.head, found.body, found.tail), extra, found.notes


def save_model(model: LayerModel, path: str | Path) -> None:
    write_text(path, to_json(model.data))


def load_model(path: str | Path) -> LayerModel:
    data = read_mapping(path)
    faults = list(model_faults(data))
    if faults:
        raise InputError(faults, title=str(path))
    fit = fit_of(data)
    return LayerModel(data=data, fit=fit, notes=tuple(spread_notes(fit)) if fit else ())
