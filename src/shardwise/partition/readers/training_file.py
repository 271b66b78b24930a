"""The training YAML (`-train`): what pieces of a sequence hold that is no share of the whole (seed 001's `-seq`).

MindFormers keeps the keys and values of a whole sequence beside every piece, and buffers for them and their gradients
with every layer; of the loss at the end only a piece is held at a time. With K one such tensor in 16 bits and G the
logits in 32, both as one rank holds them, q pieces change (SAPP's rule)

    activation of a piece = (activation - 2 K) / q + 2 K,   parameters + 4 K,   tail - 2 G (1 - 1 / q).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.inputs.files import read_mapping
from shardwise.inputs.gate import wrong
from shardwise.inputs.scalars import SCALARS
from shardwise.partition.readers.problem_file import RECOMPUTE

_MIB = 2.0**20
_MODEL, _PARALLEL = ("num_heads", "hidden_size", "seq_length", "vocab_size"), ("model_parallel", "context_parallel")
_HELD = ("memory_activation", *(key for key, _, _ in RECOMPUTE.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Sizes of one micro batch on one rank, in MB."""

    keys: float
    """K: the keys (or the values) of a whole sequence, 16 bits each."""
    logits: float
    """G: the logits of a whole sequence, 32 bits each."""


def read_training(path: str | Path) -> Training:
    data = read_mapping(path)
    model = _table(_table(data, "model"), "model_config") or _table(data, "model_config")
    parallel, runner = _table(data, "parallel_config"), _table(data, "runner_config")
    faults = [*_faults(model, _MODEL, "model.model_config", needed=True),
              *_faults(parallel, _PARALLEL, "parallel_config", needed=False)]  # fmt: skip
    batch = runner.get("batch_size", model.get("batch_size", 1))
    faults += _faults({"batch_size": batch}, ("batch_size",), "runner_config", needed=True)
    if not faults and model["hidden_size"] % model["num_heads"]:
        faults.append(Fault("model.model_config.num_heads", f"{model['num_heads']} do not divide hidden_size"))
    if faults:
        raise InputError(faults, title=str(path))
    share = parallel.get("model_parallel", 1) * parallel.get("context_parallel", 1)
    tokens = batch * model["seq_length"] / share
    return Training(keys=2 * tokens * model["hidden_size"] / _MIB, logits=4 * tokens * model["vocab_size"] / _MIB)


def _table(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _faults(table: Mapping[str, Any], names: tuple[str, ...], at: str, *, needed: bool) -> Iterator[Fault]:
    for name in names:
        value = table.get(name)
        if value is None and not needed:
            continue
        if message := "is missing; add it" if value is None else wrong(value, SCALARS["foreign.count"]):
            yield Fault(f"{at}.{name}", message)


def in_pieces(model: Mapping[str, Any], training: Training, splits: int) -> dict[str, Any]:
    """A layer model (numbers of the whole sequence) as it is when sequences run in pieces."""
    entries = [_changed(entry, training, splits) for entry in model["layers_description"]]
    return {**model, "layers_description": entries}


def _changed(entry: Mapping[str, Any], training: Training, splits: int) -> dict[str, Any]:
    made = dict(entry)
    if entry.get("type") == "BODY":
        made["memory_parameter"] = float(entry.get("memory_parameter", 0.0)) + 4 * training.keys
        for key in _HELD:
            if float(entry.get(key, 0.0)) > 0:
                made[key] = _held(float(entry[key]), key, training, splits)
    if entry.get("type") == "TAIL":
        less = 2 * training.logits * (1 - 1 / splits)
        made["memory_parameter"] = max(float(entry.get("memory_parameter", 0.0)) - less, 0.0)
    return made


def _held(whole: float, key: str, training: Training, splits: int) -> float:
    """What all pieces of a sequence hold together."""
    if key == RECOMPUTE["full"][0]:
        return whole  # keeps the input of a layer, no keys and values
    if whole < 2 * training.keys:
        raise InputError(
            Fault(key, f"is {whole:,.0f} MB, but keys and values of a sequence alone take {2 * training.keys:,.0f}; "
                  "check batch_size, seq_length and hidden_size of the training file, or measure again")
        )  # fmt: skip
    return whole + 2 * training.keys * (splits - 1)
