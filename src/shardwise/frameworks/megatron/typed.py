"""Megatron's flags where they are typed between ours: told apart, then read as an argument list is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.errors import InputError
from shardwise.frameworks.megatron.names import MEGATRON_NUMBERS, MEGATRON_RECOMPUTED
from shardwise.frameworks.megatron.read import CP_KINDS, GRAPHED, drafted
from shardwise.frameworks.megatron.read_model import MODEL_FLAGS, SWITCHES
from shardwise.frameworks.shell import Flags
from shardwise.inputs.model import Model

_VALUES = (MODEL_FLAGS - SWITCHES) | {
    "recompute-granularity", "recompute-method", "recompute-num-layers", "data-parallel-sharding-strategy",
    "pipeline-model-parallel-layout", "num-layers-per-virtual-pipeline-stage", "attention-backend", "transformer-impl",
    "fp8-format", "fp8-recipe", "fp4-format", "cpu-offloading-num-layers", "num-distributed-optimizer-instances",
    "cuda-graph-impl", "exp-avg-dtype", "offload-modules", "optimizer-offload-fraction", "moe-token-dispatcher-type",
    "moe-flex-dispatcher-backend", "cross-entropy-fusion-impl", "lr", "min-lr", "lr-decay-style", "lr-warmup-iters",
    "train-iters", "train-samples", "weight-decay", "clip-grad", "adam-beta1", "adam-beta2", "init-method-std",
    "tokenizer-model", "data-path", "split", "save", "load", "save-interval", "eval-interval",
    "eval-iters", "log-interval", "seed", "distributed-timeout-minutes",
}  # fmt: skip
_LISTS: dict[str, frozenset[str]] = {
    "recompute-modules": frozenset(MEGATRON_RECOMPUTED),
    "cp-comm-type": frozenset(CP_KINDS),
    "cuda-graph-scope": frozenset(GRAPHED),
    "cuda-graph-modules": frozenset(GRAPHED),
}
"""Flags of several words -> the words; any other that follows is the next argument."""


def split(words: Sequence[str], ours: frozenset[str]) -> tuple[list[str], Flags]:
    """The words of ours, and Megatron's flags among them; a flag that we have under the same name is ours."""
    rest: list[str] = []
    found = Flags()
    index = 0
    while index < len(words):
        name, _, value = words[index].removeprefix("--").partition("=")
        name = name.replace("_", "-")
        if not words[index].startswith("--") or f"--{name}" in ours or not _is_theirs(name):
            rest.append(words[index])
            index += 1
            continue
        taken = [] if value else _values(name, words[index + 1 :])
        found[name] = value or " ".join(taken) or None
        index += 1 + len(taken)
    return rest, found


def _is_theirs(name: str) -> bool:
    return name in SWITCHES or name in _VALUES or name in _LISTS


def _values(name: str, words: Sequence[str]) -> list[str]:
    if name in SWITCHES:
        return []
    if not words or words[0].startswith("--"):
        raise InputError(f"--{name} needs a value after it")
    if name not in _LISTS:
        return [words[0]]
    count = next((n for n, word in enumerate(words) if word not in _LISTS[name]), len(words))
    return list(words[: max(1, count)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What Megatron's flags on our command line say."""

    fields: dict[str, Any]
    """Fields of a strategy that they decide."""
    model: Model | None
    """The model, where they describe one."""
    notes: tuple[str, ...]
    """What was understood and ignored."""


def read_typed(typed: Flags, beside: Mapping[str, Any], layers: int | None) -> Typed:
    """Read flags together with the numbers that were given in our words and the layers of the model."""
    known_names = MEGATRON_NUMBERS.keys() & beside.keys()
    known = {MEGATRON_NUMBERS[name]: str(beside[name]) for name in known_names}
    model = {} if layers is None else {"num-layers": str(layers)}
    flash = {"use-flash-attn": None} if beside.get("flash") else {}
    draft = drafted(Flags({**model, **known, **flash, **typed}))
    if draft.faults:
        raise InputError(draft.faults)
    said_twice = {name for name in known_names if draft.fields.get(name) == beside[name]}
    # --use-flash-attn is ours, too: where Megatron reads it nowhere the runtime stores scores whatever is asked
    idle = {"flash"} if flash and str(draft.fields.get("runtime", "")).startswith("megatron-local") else set()
    decided = draft.fields.keys() - draft.guesses - said_twice - idle
    understood = [line for line in draft.understood if line.startswith(tuple(f"--{name}" for name in typed))]
    beside_flags = tuple(f"--{name} " for name in {**model, **known, **flash} if name not in typed)
    told = {
        "understood": understood,
        "ignored": [line for line in draft.ignored if not f"{line} ".startswith(beside_flags)],
    }
    return Typed(
        fields={name: draft.fields[name] for name in sorted(decided)},
        model=draft.model,
        notes=tuple(f"Megatron's flags, {what}: {'; '.join(lines)}" for what, lines in told.items() if lines),
    )
