"""PyTorch's profiler: layers are modules (or record_function ranges) on the CPU; their time is that of their kernels.

A kernel belongs to the range in which it was launched (correlation id). Backward runs on another thread: its operators
carry the sequence number of the forward operator they belong to. A module that runs again inside backward is
recomputed. Numbers are kept in arrays: a trace of gigabytes holds millions of them.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwise.errors import InputError
from shardwise.inputs.trace import kind_of

Floats = npt.NDArray[np.float64]
_KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_RANGES = ("user_annotation", "python_function")
"""What a user marked goes before modules."""
_BACKWARD = "autograd::engine::evaluate_function"
Key = tuple[str, str, str]


class TorchTrace:
    """Fed with events one at a time; then asked for what they show."""

    def __init__(self) -> None:
        self.used = False
        self._threads: dict[object, int] = {}
        self._ranges: dict[str, list[tuple[int, float, float, str, str]]] = defaultdict(list)
        self._launched = array("d")
        """Thread, time, correlation."""
        self._kernel: dict[int, tuple[float, float, bool]] = {}
        self._forward = array("d")
        """Thread, time, sequence number."""
        self._backward = array("d")
        """Thread, begin, end, sequence number."""

    def take(self, event: dict[str, Any], span: tuple[float, float], part: str, layer: str) -> bool:
        """Whether the event is one of PyTorch's profiler."""
        kind = str(event.get("cat", ""))
        given = event.get("args")
        args: dict[str, Any] = given if isinstance(given, dict) else {}
        if kind in _KERNELS:
            self._take_kernel(event, args, span)
        elif kind in {"cuda_runtime", "cuda_driver"} and isinstance(args.get("correlation"), int):
            self._launched.extend((self._thread(event), span[0], args["correlation"]))
        elif kind == "cpu_op":
            self._take_operator(event, args, span)
        elif kind in _RANGES:
            if part:
                self._ranges[kind].append((self._thread(event), *span, part, layer))
        else:
            return kind == "gpu_user_annotation"
        self.used = True
        return True

    def _take_kernel(self, event: dict[str, Any], args: dict[str, Any], span: tuple[float, float]) -> None:
        if isinstance(args.get("correlation"), int):
            self._kernel[args["correlation"]] = (*span, kind_of(str(event.get("name", ""))) == "communication")

    def _take_operator(self, event: dict[str, Any], args: dict[str, Any], span: tuple[float, float]) -> None:
        number = args.get("Sequence number")
        if not isinstance(number, int):
            return
        if str(event.get("name", "")).startswith(_BACKWARD):
            self._backward.extend((self._thread(event), *span, number))
        elif not args.get("Fwd thread id"):
            self._forward.extend((self._thread(event), span[0], number))

    def _thread(self, event: dict[str, Any]) -> int:
        return self._threads.setdefault((event.get("pid"), event.get("tid")), len(self._threads))

    def pieces(self, microbatches: int, path: Path) -> Iterator[dict[str, Any]]:
        """Per part, layer and phase: ms of one pass, passes, and whether it talks and computes."""
        ranges = next((self._ranges[kind] for kind in _RANGES if self._ranges.get(kind)), [])
        backward = _by_thread(self._backward, 4)
        spans: dict[Key, list[tuple[float, float, bool]]] = defaultdict(list)
        passes: dict[Key, int] = defaultdict(int)
        owner: dict[int, tuple[str, str]] = {}
        launched, numbered, taken = _by_thread(self._launched, 3), _by_thread(self._forward, 3), set[int]()
        for thread, begin, end, part, layer in sorted(ranges, key=lambda r: (r[0], r[1], -r[2])):
            again = _within(backward.get(thread), begin)
            key = (part, layer, "recompute" if again else "forward")
            passes[key] += 1
            inside = _between(launched.get(thread), begin, end)
            spans[key] += [self._kernel[c] for c in inside if c in self._kernel and c not in taken]
            taken.update(inside)
            if not self._kernel:
                spans[key].append((begin, end, False))
            if not again:
                owner.update(dict.fromkeys(_between(numbered.get(thread), begin, end), (part, layer)))
        for thread, table in backward.items():
            for begin, end, number in table[:, 1:].tolist():
                if int(number) in owner:
                    inside = [c for c in _between(launched.get(thread), begin, end) if c not in taken]
                    taken.update(inside)
                    spans[*owner[int(number)], "backward"] += [self._kernel[c] for c in inside if c in self._kernel]
        yield from _counted(spans, passes, microbatches, path)


def _counted(
    spans: dict[Key, list[tuple[float, float, bool]]], passes: dict[Key, int], microbatches: int, path: Path
) -> Iterator[dict[str, Any]]:
    for (part, layer, phase), own in sorted(spans.items()):
        times = passes[part, layer, "forward" if phase == "backward" else phase]
        if phase != "recompute" and times % microbatches:
            raise InputError(
                f"{path}: {part} {layer} runs {times} times, which is no multiple of micro_batch_num {microbatches}: "
                "correct micro_batch_num, or profile whole steps"
            )
        if own:
            total = sum(end - begin for begin, end in covered((a, b) for a, b, _ in own)) / 1000
            yield {
                "part": part, "layer": layer, "phase": phase, "time": total / times, "passes": times,
                "talks": any(talks for *_, talks in own), "computes": any(not talks for *_, talks in own),
            }  # fmt: skip


def covered(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The spans joined where they overlap: nested and parallel events count once."""
    joined = list[tuple[float, float]]()
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def _by_thread(numbers: array[float], width: int) -> dict[int, Floats]:
    """Rows of each thread in the order of time."""
    table = np.frombuffer(numbers, dtype=float).reshape(-1, width) if numbers else np.zeros((0, width))
    return {
        int(thread): own[np.argsort(own[:, 1], kind="stable")]
        for thread in np.unique(table[:, 0])
        for own in (table[table[:, 0] == thread],)
    }


def _between(table: Floats | None, begin: float, end: float) -> list[int]:
    """The last column of the rows whose time lies between."""
    if table is None:
        return []
    low, high = np.searchsorted(table[:, 1], (begin, end))
    return [int(x) for x in table[low:high, -1]]


def _within(table: Floats | None, moment: float) -> bool:
    """Whether a backward operator is under way on this thread."""
    if table is None:
        return False
    at = int(np.searchsorted(table[:, 1], moment, side="right")) - 1
    return at >= 0 and moment < float(table[max(0, at - 8) : at + 1, 2].max())
