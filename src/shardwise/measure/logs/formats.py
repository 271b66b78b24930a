"""The lines that frameworks print, each read into the same words.

megatron    iteration, elapsed time, memory and timers (Megatron-LM's training_log, report_memory and Timers)
torchtitan  step, loss, peak reserved memory and tokens a second and device (MetricsProcessor.log)
deepspeed   ThroughputTimer, the wall-clock breakdown, and the pipeline engine's line
trainer     Hugging Face's progress bars and dictionaries
shardwise   `shardwise step=3 seconds=1.2345 ...` of the programs that we write
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Literal, NamedTuple

from shardwise.measure.logs.record import (
    BACKWARD,
    DATA,
    EXCHANGE,
    FORWARD,
    GATHERING,
    OPTIMIZER,
    PASSES,
    REDUCTION,
)

MIB, GIB = 2.0**20, 2.0**30
_DIGITS = rb"[-+]?[0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE][-+]?[0-9]{1,3})?"
_NUMBER = rb"(" + _DIGITS + rb")(?![0-9.])"
_LOSS = rb"(" + _DIGITS + rb"|(?i:[-+]?(?:nan|inf)))(?![0-9.])"
"""A loss may be no number, which is to be told."""


class Said(NamedTuple):
    """What one line says."""

    framework: str
    kind: Literal["step", "more", "facts", "unreadable"]
    """It begins a step, says more of the one that was begun, or of the run; or should begin one and cannot be read."""
    values: dict[str, float]
    parts: dict[str, float] = {}  # noqa: RUF012 - never written to
    runtime: str = ""
    """The framework that a program of ours names as its own."""


def _pattern(before: bytes, after: bytes = b"", number: bytes = _NUMBER) -> re.Pattern[bytes]:
    return re.compile(before + rb"[ \t]*" + number + after)


def _found(patterns: dict[str, re.Pattern[bytes]], line: bytes) -> dict[str, float]:
    matches = {name: pattern.search(line) for name, pattern in patterns.items()}
    return {name: float(match[1].replace(b",", b"")) for name, match in matches.items() if match}


_MEGATRON = {
    "milliseconds": _pattern(rb"elapsed time per iteration \(ms\):"),
    "step": _pattern(rb"\biteration"),
    "steps": _pattern(rb"\biteration[ \t]{1,20}[0-9]{1,15}/"),
    "global_batch": _pattern(rb"global batch size:"),
    "loss": _pattern(rb"lm loss:", number=_LOSS),
}
_MEGATRON_MEMORY = {"allocated": _pattern(rb"max allocated:"), "reserved": _pattern(rb"max reserved:")}
_MEGATRON_TIMERS = {
    b"forward-backward": PASSES,
    b"forward-compute": FORWARD,
    b"backward-compute": BACKWARD,
    b"batch-generator": DATA,
    b"optimizer": OPTIMIZER,
    b"all-grads-sync": REDUCTION,
    b"params-all-gather": GATHERING,
    b"forward-recv": EXCHANGE,
    b"backward-recv": EXCHANGE,
}
_TIMER = re.compile(rb"^[ \t]*([a-z-]{1,40}) \.{2,50}: (?:\([0-9.]{1,18}, ([0-9.]{1,18})\)|([0-9.]{1,18}))")
_MEGATRON_FACTS = {"world": _pattern(rb"using world size:")}
_ON_RANK = re.compile(rb"number of parameters on [^:]{1,80}rank \((?:[0-9]+, ){1,2}([0-9]{1,6})\): ([0-9]{1,15})")


def _megatron(line: bytes) -> Said | None:
    found = _found(_MEGATRON, line)
    if "milliseconds" not in found:
        return None
    facts = {name: found.pop(name) for name in ("steps", "global_batch") if name in found}
    seconds = found.pop("milliseconds") / 1e3
    return Said("megatron", "step", {**found, "seconds": seconds, **{f"fact {k}": v for k, v in facts.items()}})


def _megatron_memory(line: bytes) -> Said:
    return Said("megatron", "more", {name: size * MIB for name, size in _found(_MEGATRON_MEMORY, line).items()})


def _megatron_timer(line: bytes) -> Said | None:
    match = _TIMER.match(line)
    if not match or match[1] not in _MEGATRON_TIMERS or (text := match[2] or match[3]).count(b".") > 1:
        return None
    return Said("megatron", "more", {}, {_MEGATRON_TIMERS[match[1]]: float(text) / 1e3})


def _megatron_facts(line: bytes) -> Said:
    return Said("megatron", "facts", _found(_MEGATRON_FACTS, line))


def _megatron_parameters(line: bytes) -> Said | None:
    match = _ON_RANK.search(line)
    return Said("megatron", "facts", {f"parameters pp{int(match[1])}": float(match[2])}) if match else None


_TORCHTITAN = {
    "step": _pattern(rb"\bstep:"),
    "loss": _pattern(rb"\bloss:", number=_LOSS),
    "reserved": _pattern(rb"\bmemory:", rb"GiB"),
    "tokens_rate": re.compile(rb"\btps:[ \t]*([0-9,]{1,20}(?:\.[0-9]{1,15})?)(?![0-9.])"),
}
_TORCHTITAN_FACTS = {
    "global_batch": _pattern(rb"global batch size"),
    "seq": _pattern(rb"sequence length"),
    "steps": _pattern(rb"total steps"),
}
_SIZE = re.compile(rb"size: ([0-9,]{1,25}) total parameters")


def _torchtitan(line: bytes) -> Said | None:
    found = _found(_TORCHTITAN, line)
    if not found.get("tokens_rate"):
        return None
    if "reserved" in found:
        found["reserved"] *= GIB
    return Said("torchtitan", "step", found)


def _torchtitan_facts(line: bytes) -> Said:
    return Said("torchtitan", "facts", _found(_TORCHTITAN_FACTS, line.replace(b",", b" ")))


def _torchtitan_size(line: bytes) -> Said | None:
    match = _SIZE.search(line)
    digits = match[1].replace(b",", b"") if match else b""
    return Said("torchtitan", "facts", {"parameters": float(digits)}) if digits else None


_DEEPSPEED = {
    "step": _pattern(rb"global_step="),
    "samples_rate": _pattern(rb"CurrSamplesPerSec="),
    "allocated": _pattern(rb"MaxMemAllocated=", rb"GB"),
}
_DEEPSPEED_PIPELINE = {
    "step": _pattern(rb"\bsteps:"),
    "loss": _pattern(rb"\bloss:", number=_LOSS),
    "seconds": _pattern(rb"iter time \(s\):"),
}
_DEEPSPEED_TIMERS = {
    FORWARD: _pattern(rb"\| fwd:"),
    BACKWARD: _pattern(rb"\| bwd:"),
    OPTIMIZER: _pattern(rb"\| step:"),
    REDUCTION: _pattern(rb"\| bwd_allreduce:"),
    DATA: _pattern(rb"\| batch_input:"),
}


def _deepspeed(line: bytes) -> Said | None:
    found = _found(_DEEPSPEED, line)
    if not found.get("samples_rate"):
        return None
    if "allocated" in found:
        found["allocated"] *= GIB
    return Said("deepspeed", "step", found)


def _deepspeed_pipeline(line: bytes) -> Said | None:
    found = _found(_DEEPSPEED_PIPELINE, line)
    return Said("deepspeed", "step", found) if "seconds" in found else None


def _deepspeed_timers(line: bytes) -> Said | None:
    parts = {name: size / 1e3 for name, size in _found(_DEEPSPEED_TIMERS, line).items()}
    return Said("deepspeed", "more", {}, parts) if parts else None


_BAR = re.compile(
    rb"\b([0-9]{1,12})/([0-9]{1,12}) \[[0-9:]{1,12}<[^,\]]{1,20}, {0,4}([0-9]{1,9}(?:\.[0-9]{1,9})?)(s/it|it/s)"
)
_TRAINER = {"loss": re.compile(rb"'loss': '?" + _LOSS)}
_TRAINER_END = {
    name: re.compile(rb"'" + name.encode() + rb"': '?" + _NUMBER)
    for name in ("train_runtime", "train_steps_per_second")
}


def _trainer_bar(line: bytes) -> Said | None:
    match = _BAR.search(line)
    if not match or not float(match[3]):
        return None
    rate = float(match[3])
    seconds = rate if match[4] == b"s/it" else 1 / rate
    return Said("trainer", "step", {"step": float(match[1]), "seconds": seconds, "fact steps": float(match[2])})


def _trainer_loss(line: bytes) -> Said | None:
    found = _found(_TRAINER, line)
    return Said("trainer", "more", found) if found else None


def _trainer_end(line: bytes) -> Said:
    return Said("trainer", "facts", _found(_TRAINER_END, line))


_WORD = re.compile(rb"\b([a-z_]{1,20})=" + _LOSS)
_RUNTIME = re.compile(rb"\bruntime=([a-z][a-z-]{1,30})")
_OWN_PARTS = {b"forward": FORWARD, b"backward": BACKWARD, b"optimizer": OPTIMIZER, b"data": DATA}


def _own(line: bytes) -> Said | None:
    found = {match[1]: float(match[2]) for match in _WORD.finditer(line[:2000])}
    words = {name: value for name, value in found.items() if name == b"loss" or isfinite(value)}
    if b"step" not in words:
        runtime = match[1].decode() if (match := _RUNTIME.search(line)) else ""
        return Said("shardwise", "facts", {name.decode(): value for name, value in words.items()}, runtime=runtime)
    if b"seconds" not in words:
        return None
    parts = {name: words[word] for word, name in _OWN_PARTS.items() if word in words}
    values = {name.decode(): words[name] for name in words if name not in _OWN_PARTS}
    return Said("shardwise", "step", values, parts)


Parser = Callable[[bytes], Said | None]
FORMATS: tuple[tuple[bytes, Parser], ...] = (
    (b"shardwise step=", _own),
    (b"shardwise parameters=", _own),
    (b"elapsed time per iteration (ms):", _megatron),
    (b" memory (MB) ", _megatron_memory),
    (b" ..", _megatron_timer),
    (b"using world size:", _megatron_facts),
    (b"number of parameters on", _megatron_parameters),
    (b"tps:", _torchtitan),
    (b"Trainer is initialized with", _torchtitan_facts),
    (b" total parameters", _torchtitan_size),
    (b"CurrSamplesPerSec=", _deepspeed),
    (b"iter time (s):", _deepspeed_pipeline),
    (b"time (ms) |", _deepspeed_timers),
    (b"/it]", _trainer_bar),
    (b"it/s]", _trainer_bar),
    (b"s/it,", _trainer_bar),
    (b"it/s,", _trainer_bar),
    (b"'loss':", _trainer_loss),
    (b"'train_runtime':", _trainer_end),
)
"""What a line must hold, and what reads it; the first that fits does."""
_STEP = re.compile(
    rb"shardwise step=|elapsed time per iteration \(ms\):|\bstep:.{1,200}\btps:|CurrSamplesPerSec=|iter time \(s\):"
)
"""With what lines begin that have the time of a step."""
LOOKED_FOR = re.compile(b"|".join(re.escape(words) for words, _ in FORMATS))


def said(line: bytes) -> Said | None:
    """What a line says; none: nothing of ours."""
    for words, read in FORMATS:
        if words in line and (found := read(line)) is not None:
            return found
    return Said("", "unreadable", {}) if _STEP.search(line) else None
