"""Seconds by kind of kernel from a Chrome trace: PyTorch's profiler, or Ascend's trace_view.json; gzip or plain.

Events are taken one by one from a sliding buffer, so that a trace of gigabytes needs a few megabytes.
"""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from shardwise.errors import Fault, FileError, InputError
from shardwise.inputs.gate import held, said, typed
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.streams import streamed

PIECE = 1 << 20
LONGEST = 1 << 24
"""Characters of one event beyond which a file is no trace."""
MOST_EVENTS, MOST_NAMES = 10_000_000, 1_000_000
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_STEP = re.compile(r"ProfilerStep#(\d+)|^Step (\d+)|Iteration[ #_]*(\d+)")
# The first that fits names the kind; kernels of cuBLAS, CUTLASS, Triton, cuDNN, NCCL, HCCL, CANN.
_KINDS = (
    ("communication", re.compile(r"nccl|hccl|hcom|allreduce|allgather|reducescatter|alltoall|sendrecv", re.IGNORECASE)),
    ("attention", re.compile(r"flash|fmha|sdpa|attention", re.IGNORECASE)),
    ("gemm", re.compile(r"gemm|cutlass|nvjet|cublas|wgmma|xmma|matmul|_mm_|^mm|bmm|linear|gmm", re.IGNORECASE)),
)
_DEVICE_PROCESS = re.compile(r"ascend hardware|^npu|hccl|communication|gpu|stream", re.IGNORECASE)
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Device seconds of a trace."""

    seconds: dict[str, float] = field(hash=False)
    """gemm, attention, memory, communication: sums over all steps and streams."""
    steps: int
    """Iterations that the trace marks; 0: it marks none."""
    events: int
    """Device events."""
    top: tuple[tuple[str, str, float], ...]
    """The ten longest kernels: name, kind, seconds."""


def kind_of(name: str) -> str:
    """The kind of a kernel by its name; what is no product, attention or collective moves memory."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "memory")


def read_trace(path: str | Path) -> Trace:
    """Sum up the device events of a trace."""
    by_process: dict[Any, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    counts: dict[Any, int] = defaultdict(int)
    processes: dict[Any, str] = {}
    steps: set[str] = set()
    for event in events(path):
        if event.get("ph") == "M" and event.get("name") == "process_name":
            processes[event.get("pid")] = str(event["args"].get("name", ""))
        name, length = event.get("name", ""), event.get("dur")
        if found := _STEP.search(name):
            steps.add(next(part for part in found.groups() if part))
        elif event.get("ph") == "X" and length is not None:
            where = "device" if event.get("cat") in _DEVICE else ("pid", event.get("pid"))
            by_process[where][name] += length * 1e-6
            counts[where] += 1
            if len(by_process[where]) > MOST_NAMES or len(by_process) > MOST_NAMES:
                raise FileError(path, f"names over {MOST_NAMES:,} kernels or processes; it is no trace of a model")
    chosen = _device(by_process, processes)
    if not chosen:
        raise FileError(path, "holds no events of a device; profile with CUDA (or NPU) activities switched on")
    return _summed([by_process[where] for where in chosen], len(steps), sum(counts[where] for where in chosen))


def _device(by_process: dict[Any, dict[str, float]], processes: dict[Any, str]) -> list[Any]:
    """PyTorch marks device events by their category; other profilers by the name of their process."""
    if "device" in by_process:
        return ["device"]
    named = [pid for pid, name in processes.items() if _DEVICE_PROCESS.search(name)]
    return [("pid", pid) for pid in named if ("pid", pid) in by_process]


def _summed(parts: list[dict[str, float]], steps: int, count: int) -> Trace:
    kernels: dict[str, float] = defaultdict(float)
    for part in parts:
        for name, seconds in part.items():
            kernels[name] += seconds
    kinds: dict[str, float] = dict.fromkeys(("gemm", "attention", "memory", "communication"), 0.0)
    for name, seconds in kernels.items():
        kinds[kind_of(name)] += seconds
    longest = sorted(kernels.items(), key=lambda item: (-item[1], item[0]))[:10]
    return Trace(
        seconds=kinds, steps=steps, events=count, top=tuple((name, kind_of(name), value) for name, value in longest)
    )


def events(path: str | Path) -> Iterator[dict[str, Any]]:
    """The events of a trace, one at a time: names are texts, times finite numbers, `args` a table."""
    with streamed(path) as file, io.TextIOWrapper(file, encoding="utf-8", errors="replace") as text:
        for count, event in enumerate(_objects(text, path)):
            if count == MOST_EVENTS:
                raise FileError(path, f"holds over {MOST_EVENTS:,} events; trace fewer iterations")
            try:
                _settle(event)
            except InputError as error:
                raise FileError(path, f"event {count}: {error}") from None
            yield event


def _settle(event: dict[str, Any]) -> None:
    """Refuse an event that no profiler writes; times that are written as texts become numbers."""
    for name in ("name", "ph", "cat"):
        if not isinstance(event.get(name, ""), str):
            raise InputError(Fault(name, f"must be a text, not {said(event[name])}"))
    for name in ("pid", "tid"):
        if isinstance(event.get(name), dict | list):
            raise InputError(Fault(name, f"must be a number or a text, not {said(event[name])}"))
    for name in ("ts", "dur"):
        value = event.get(name)
        if value is not None:
            event[name] = float((typed if isinstance(value, str) else held)(value, SCALARS[f"trace.{name}"], name))
    args = event.setdefault("args", {})
    if not isinstance(args, dict):
        event["args"] = {}
    for name in ("correlation", "Sequence number"):
        if isinstance(args, dict) and isinstance(args.get(name), int):
            held(args[name], SCALARS["trace.number"], f"args.{name}")


def _objects(file: IO[str], path: str | Path) -> Iterator[dict[str, Any]]:
    decoder, text, at = json.JSONDecoder(), _to_events(file, path), 0
    while True:
        between = _BETWEEN.match(text, at)
        at = between.end() if between else at
        if text.startswith("]", at):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except RecursionError:
            raise FileError(path, "is no Chrome trace: an event is nested too deeply") from None
        except json.JSONDecodeError:
            more, rest = file.read(PIECE), text[at:]
            if not more:
                if rest:
                    raise FileError(path, "ends in the middle of an event; was the profiler cut short?") from None
                return
            if len(rest) > LONGEST:
                raise FileError(path, "is no Chrome trace: one event would be over 16 million characters") from None
            text, at = rest + more, 0
            continue
        except ValueError:
            raise FileError(path, "is no Chrome trace: an event holds a number of thousands of digits") from None
        if isinstance(value, dict):
            yield value


def _to_events(file: IO[str], path: str | Path) -> str:
    """Text from the first event on: a bare list, or the list under `traceEvents`."""
    text = file.read(PIECE)
    if text.lstrip("\ufeff \t\r\n").startswith("["):
        return text.lstrip("\ufeff \t\r\n")[1:]
    while '"traceEvents"' not in text:
        more = file.read(PIECE)
        if not more:
            raise FileError(path, 'is no Chrome trace: it is no list and has no "traceEvents"')
        text = text[-20:] + more
    after = text[text.index('"traceEvents"') :]
    while "[" not in after:
        more = file.read(PIECE)
        if not more:
            raise FileError(path, "has no list under traceEvents")
        after += more
    return after[after.index("[") + 1 :]
