"""The one reader of training logs: bytes in, steps out, as they come."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite
from pathlib import Path

from shardwise.errors import FileError
from shardwise.inputs.streams import blocks
from shardwise.measure.logs.formats import LOOKED_FOR, Said, said
from shardwise.measure.logs.record import BACKWARD, FORWARD, OPTIMIZER, RunLog, StepRecord

LONGEST = 8192
"""Bytes of a line that are looked at."""
MOST_STEPS = 1_000_000
LATE = 2
"""Steps by which a line of a slower rank may come late; further back a run begins anew."""
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


class LogReader:
    """Reads a log piece by piece. A step is given once its last line is sure to have come: with the next, or `close`.

    `tokens_per_gpu`, `samples`: of an iteration, which turn rates into seconds.
    """

    def __init__(self, *, tokens_per_gpu: float, samples: float) -> None:
        self.steps: list[StepRecord] = []
        self.facts: dict[str, float] = {}
        self.framework = ""
        self.runtime = ""
        self.starts = 1
        self.unreadable = 0
        self.not_finite: list[int] = []
        self._scale = {"tokens_rate": tokens_per_gpu, "samples_rate": samples}
        self._open: dict[str, float] | None = None
        self._parts: dict[str, float] = {}
        self._rest = b""

    def feed(self, data: bytes) -> list[StepRecord]:
        """Read on; the steps that are complete now. A last line without its end waits for it."""
        whole, found, rest = (self._rest + data).replace(b"\r", b"\n").rpartition(b"\n")
        self._rest = rest[-LONGEST:] if found else (self._rest + data)[-LONGEST:]
        return [step for line in _lines(whole) for step in self._take(line)] if found else []

    def close(self) -> list[StepRecord]:
        """The end of the log: what was open is complete."""
        last, self._rest = self._rest, b""
        unreadable = self.unreadable
        steps = [*self.feed(last + b"\n"), *self._finish()]
        self.unreadable = unreadable  # a last line without its end is cut off, not odd
        return steps

    @property
    def last_step(self) -> float:
        """The step that was begun last."""
        return self._open["step"] if self._open else float(self.steps[-1].step) if self.steps else 0.0

    def log(self) -> RunLog:
        return RunLog(
            framework=self.framework or ("trainer" if "train_runtime" in self.facts else ""), runtime=self.runtime,
            steps=tuple(self.steps), facts=self.facts, starts=self.starts, unreadable=self.unreadable,
            not_finite=tuple(self.not_finite),
        )  # fmt: skip

    def _take(self, line: bytes) -> Iterator[StepRecord]:
        found = said(line)
        if found and found.kind == "unreadable":
            self.unreadable += 1
            return
        if found is None or not self._is_ours(found):
            return
        self.runtime = found.runtime or self.runtime
        facts = found.values if found.kind == "facts" else {}
        self.facts |= facts | {k.removeprefix("fact "): v for k, v in found.values.items() if k.startswith("fact ")}
        if found.kind == "step":
            yield from self._begin(found)
        elif found.kind == "more":
            yield from self._add(found)

    def _is_ours(self, found: Said) -> bool:
        """The first that says a step is the one that is read; our own lines, which say most, before all others."""
        if found.framework == "shardwise" and self.framework != "shardwise":
            self.framework, self.steps, self._open = "shardwise", [], None
        if found.kind == "step" and not self.framework:
            self.framework = found.framework
        return found.framework == self.framework or (found.kind != "step" and not self.framework)

    def _begin(self, found: Said) -> Iterator[StepRecord]:
        values = self._timed(found.values)
        number = values.get("step")
        last = self.last_step
        if number is None:
            values["step"] = last + 1
        elif (self._open or self.steps) and last - LATE <= number <= last:  # another rank's line of the same step
            if number == last and self._open:
                self._merge(values, found.parts)
            return
        yield from self._finish()
        if self.steps and values["step"] <= last:
            self.steps, self.not_finite, self.starts = [], [], self.starts + 1
        self._open, self._parts = values, dict(found.parts)

    def _timed(self, values: dict[str, float]) -> dict[str, float]:
        for rate, amount in self._scale.items():
            if values.get(rate):
                return {**values, "seconds": amount / values[rate]}
        return dict(values)

    def _merge(self, values: dict[str, float], parts: dict[str, float]) -> None:
        assert self._open is not None  # noqa: S101 - for the type checker
        for mine, theirs in ((self._open, values), (self._parts, parts)):
            mine |= {name: max(value, mine.get(name, value)) for name, value in theirs.items() if name != "step"}

    def _add(self, found: Said) -> Iterator[StepRecord]:
        """More of the step that is open. DeepSpeed's timers alone make a step where nothing else does."""
        alone = found.framework == "deepspeed" and bool(found.parts)
        if alone and (self._open is None or found.parts.keys() & self._parts.keys()):
            self.framework = "deepspeed"
            yield from self._begin(Said("deepspeed", "step", {"seconds": _alone(found.parts)}, found.parts))
        elif self._open is not None:
            self._merge(found.values, found.parts)

    def _finish(self) -> Iterator[StepRecord]:
        if self._open is None:
            return
        values, self._open = self._open, None
        if not values.get("seconds"):
            return
        size = {name: values.get(name) or None for name in ("allocated", "reserved")}
        loss = values.get("loss")
        if loss is not None and not isfinite(loss):
            self.not_finite.append(int(values["step"]))
            loss = None
        record = StepRecord(
            int(values["step"]), values["seconds"], loss, size["allocated"], size["reserved"],
            tuple(sorted(self._parts.items())),
        )  # fmt: skip
        self.steps.append(record)
        yield record


def _alone(parts: dict[str, float]) -> float:
    """Seconds of a step by its timers; the reduction is part of the backward pass."""
    return sum(parts.get(name, 0.0) for name in (FORWARD, BACKWARD, OPTIMIZER))


def _lines(data: bytes) -> Iterator[bytes]:
    """The lines that may say something, without their colours: looking for words first is quick in any log."""
    end = -1
    for match in LOOKED_FOR.finditer(data):
        if match.start() < end:
            continue
        start = data.rfind(b"\n", 0, match.start()) + 1
        end = data.find(b"\n", match.end())
        end = len(data) if end < 0 else end
        line = data[start : min(end, start + LONGEST)]
        yield _COLOUR.sub(b"", line) if b"\x1b" in line else line


def read_log(path: str | Path, *, tokens_per_gpu: float, samples: float) -> RunLog:
    """A whole log; refused where no framework's steps are in it."""
    reader = LogReader(tokens_per_gpu=tokens_per_gpu, samples=samples)
    for block in blocks(path):
        reader.feed(block)
        if len(reader.steps) > MOST_STEPS:
            raise FileError(path, f"holds over {MOST_STEPS:,} iterations; give a part of it")
    reader.close()
    log = reader.log()
    if not log.steps and not log.mean:
        raise FileError(
            path,
            'has no iteration times; Megatron writes "elapsed time per iteration (ms): N", torchtitan "tps: N", '
            'DeepSpeed "CurrSamplesPerSec=N" (steps_per_print 1), Trainer its progress bar '
            "(disable_tqdm=False)",
        )
    return log
