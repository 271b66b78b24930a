"""Measure what a cost model of training needs to know about this machine: `python shardwise_probe.py --out gpu.json`.

Needs torch and the standard library only, and is one long file on purpose: it is copied alone to GPU nodes with
locked-down images. With torchrun and several ranks it also measures collectives.

How it times: kernels run in bursts of a millisecond, each after a rest of two (a spinning kernel, which draws little
power and lets launches queue up, so that no launch gap is inside the events). Without the rests a GPU runs into its
power limit, its clock wanders, and medians move by 10% and more from one run to the next; with them it stays at its
full clock and they repeat within 1%. `clock_mhz` is the clock that the rests saw. Training does run into the power
limit: `load: sustained` rows and whole steps, measured for most of a second and after the clock has settled, say by
how much. Inputs rotate over several times the L2 cache (`cache: cold`), since a training step touches far more than
the cache between two uses. A row holds the median over bursts and their spread (interquartile range / median). All
cases are measured in two passes, and in a third where these disagree: `agreement` is the relative range of the
passes' medians.

Every family runs in a child process, which tells each measurement as soon as it has it. A child that dies (a kernel
with an instruction that the CPU lacks, an illegal access on the GPU) costs one case: its row says by which signal, what
was measured is kept, and another child goes on after it.

`--operators request.json` measures the operators of one model instead, for `shardwise plan-operators`.
"""
# ruff: noqa: SLF001  (torch._scaled_mm, torch._grouped_mm and torch.cuda._sleep have no public name in torch 2.11)
# torch leaves events, autograd functions and version queries untyped:
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import os
import platform
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch
import torch.nn.functional as fn
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

SCHEMA = "shardwise/probe/1"
Call = Callable[[], object]
Row = dict[str, Any]

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CYCLES = 1.9e9
"""Spinning cycles that a second of rest is made of: about the clock."""
EMPTY = 3e-6
"""Seconds between two events around a kernel that does nothing."""
READABLE = 1e-4
"""Rests from here on are long enough to read the clock from."""
BURST, REST = 1e-3, 2.0
"""Seconds of work at a time, and rest over work."""
AWAKE, COOLING, TRIES = 0.965, 0.03, 3
"""Share of the highest clock below which bursts do not count, seconds of rest before they are tried again, and how
often."""
SETTLED = 0.015
"""Passes whose medians lie further apart than this are measured again."""
OUT_OF_TIME = "the family's time was used up"
LIVES = 4
"""Children that a family may have: each death but the last is followed by another try."""
SILENCE = 300.0
"""Seconds without a word after which a child counts as hung; most that a case takes is two."""
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32", torch.float8_e4m3fn: "fp8"}


# --- timing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class KernelCase:
    """One thing to measure. `build` returns calls over different buffers, which take turns."""

    fields: Row
    build: Callable[[], Sequence[Call]]
    clock: str = "device"
    """device: bursts of kernels between rests; sustained: without rests; host: CPU seconds to issue; step: events
    without hiding launches and without rests, as a training loop would see it."""
    divide: int = 1
    window: float = 0.05
    count_traffic: bool = False


class PoisonedError(Exception):
    """A case has broken the GPU's context: nothing else can be measured in this process."""


@dataclass(kw_only=True)
class Journal:
    """The cases of a family and what is known of each, record by record as a child tells it."""

    machine: Row = field(default_factory=dict)
    """Hardware and software as a child saw them."""
    cases: dict[int, Row] = field(default_factory=dict)
    """Fields by number: the place in the family's list of cases, which is the same in every child."""
    rows: dict[int, Row] = field(default_factory=dict)
    under_way: int | None = None
    full: float = 0.0
    """The highest clock that any child has seen, in Hz."""
    began: float = 0.0
    """When the last child was started, then when it was ready to measure, by this process's clock."""
    start_up: float = 0.0
    """Seconds between the two."""
    ended: bool = False
    fault: str = ""

    def note(self, record: Row) -> None:
        if "ready" in record:
            self.start_up = time.monotonic() - self.began
            self.began, self.machine = time.monotonic(), self.machine or record["ready"]
        elif "cases" in record:
            self.cases |= enumerate(record["cases"], record["first"])
        elif "begin" in record:
            self.under_way = record["begin"]
        elif "row" in record:
            self.rows[record["number"]], self.under_way = record["row"], None
        else:
            self.ended, self.fault = "full" in record, record.get("fault", "")
            self.full = record.get("full", self.full)

    def bury(self, death: str) -> Row | None:
        """Mark the case that killed a child, if there was one, and give it; a time from an earlier pass stands."""
        number, self.under_way = self.under_way, None
        case = None if number is None else self.cases[number]
        row = self.rows.get(-1 if number is None else number) or (case or {}) | {"skipped": death}
        self.rows[-1 if number is None else number] = row | {"died": death}
        return case

    def leave(self, reason: str) -> None:
        """Cases that were never reached say why."""
        never = self.cases.keys() - self.rows.keys()
        self.rows |= {number: self.cases[number] | {"skipped": reason} for number in never}

    def in_order(self) -> list[Row]:
        return [self.rows[number] for number in sorted(self.rows)]

    def deadly(self) -> list[object]:
        """Kinds of cases that have killed a child."""
        return [kind_of(self.cases[number]) for number, row in self.rows.items() if "died" in row and number >= 0]


@dataclass(kw_only=True)
class Teller(Journal):
    """A child's journal: every entry is also told over the wire, so that the parent has it whatever happens next."""

    wire: TextIO | None = None
    known: Sequence[int] = ()
    """Cases of which an earlier child has told: not measured again."""
    wary: Sequence[object] = ()
    """Kinds of cases that have killed a child: measured last, since their like may well do the same."""

    def tell(self, **record: Any) -> None:  # noqa: ANN401
        self.note(record)
        if self.wire:
            try:
                print(json.dumps(record), file=self.wire, flush=True)
            except BrokenPipeError:  # the parent is gone, and nobody else wants to know
                os._exit(1)

    def enter(self, cases: Sequence[Row]) -> list[int]:
        """Number cases; those that are still to be measured, in the order in which to do so."""
        first = len(self.cases)
        self.tell(first=first, cases=list(cases))
        fresh = [number for number in range(first, first + len(cases)) if number not in self.known]
        return sorted(fresh, key=lambda number: kind_of(self.cases[number]) in self.wary)


def kind_of(fields: Row) -> object:
    """What a case is about: a kernel, a dtype or a phase, whatever its family puts first."""
    return next(iter(fields.values()), None)


@dataclass(kw_only=True)
class KernelBench:
    """The device, what is known of it, and where tensors come from."""

    device: torch.device
    quick: bool
    l2: int
    memory: int
    full: float = 0.0
    """The highest clock that was seen, in Hz."""
    arenas: dict[torch.dtype, Tensor] = field(default_factory=dict)
    cursor: int = 0
    journal: Teller = field(default_factory=Teller)

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def dim(self, size: int) -> int:
        """A size as asked on a GPU; a tiny one on a CPU, where only the program itself is under test."""
        return size if self.cuda else min(size, 16)

    def randn(self, *shape: int, dtype: torch.dtype = BF16, grad: bool = False) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device).normal_().requires_grad_(grad)

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, device=self.device)

    def slice(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """Random values out of a shared arena: no time is lost between GEMMs, so the GPU stays at working power."""
        size = rows * columns
        if dtype not in self.arenas:
            self.arenas.clear()
            size_of_arena = min(2**33, self.memory // 8) if self.cuda else 2**20
            self.arenas[dtype] = self.randn(size_of_arena // dtype.itemsize, dtype=dtype)
        arena = self.arenas[dtype]
        if size > arena.numel():
            raise torch.OutOfMemoryError(f"operand of {size} elements is larger than the arena")
        if self.cursor + size > arena.numel():
            self.cursor = 0
        start, self.cursor = self.cursor, self.cursor + (size + 255) // 256 * 256
        return arena[start : start + size].view(rows, columns)

    def sets(self, size: int, make: Callable[[], Call], *, hot: bool = False) -> list[Call]:
        """Calls over as many buffer sets of `size` bytes as it takes to leave the L2 cache."""
        count = 1 if hot else max(1, min(48, math.ceil(3 * self.l2 / max(size, 1))))
        return [make() for _ in range(count)]

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def once(self, fields: Row, make: Callable[[], Row]) -> None:
        """A case that is measured by one call, which gives the rest of its row."""
        for number in self.journal.enter([fields]):
            self.journal.tell(begin=number)
            try:
                found = make()
            except FAILURES as error:
                refuse_poison(self, error)
                found = {"skipped": reason_of(error)}
            self.journal.tell(number=number, row=fields | found)


def device_batches(calls: Sequence[Call], count: int, batches: int, rest: float) -> tuple[list[float], list[float]]:
    """Seconds per call of each batch by CUDA events, and the clock in Hz that the rest before each of them saw.

    Outputs are kept for one turn, so they rotate as well.
    """
    ring: list[object] = [None] * len(calls)
    turn = itertools.cycle(range(len(calls)))
    cycles = int(rest * CYCLES)
    events = []
    for _ in range(batches):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        if cycles:
            torch.cuda._sleep(cycles)
        marks[1].record()
        for _ in range(count):
            slot = next(turn)
            ring[slot] = calls[slot]()
        marks[2].record()
        events.append(marks)
    torch.cuda.synchronize()
    times = [start.elapsed_time(end) * 1e-3 / count for _, start, end in events]
    rests = [before.elapsed_time(start) * 1e-3 - EMPTY for before, start, _ in events]
    return times, [cycles / seconds for seconds in rests if rest >= READABLE]


def host_batches(calls: Sequence[Call], count: int, batches: int, synchronize: Call) -> list[float]:
    """CPU seconds per call until everything is issued (on a CPU device: until it is done)."""
    ring: list[object] = [None] * len(calls)
    turn = itertools.cycle(range(len(calls)))
    times = []
    for _ in range(batches):
        synchronize()
        start = time.perf_counter()
        for _ in range(count):
            slot = next(turn)
            ring[slot] = calls[slot]()
        times.append((time.perf_counter() - start) / count)
    synchronize()
    return times


class TimedSamples(NamedTuple):
    """Seconds per call of each batch, how many calls they are of, and the device's clock in Hz where it was seen."""

    times: list[float]
    calls: int
    clock: float = 0.0


def guess(calls: Sequence[Call]) -> tuple[float, float]:
    """Rough seconds per call on the GPU and on the CPU, after one warm-up of every buffer set."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    on_device = min(device_batches(calls[:1], 2, 2, 1e-4)[0])
    total = (time.perf_counter() - begin) / 4
    on_host = min(host_batches(calls[:1], 2, 3, torch.cuda.synchronize))
    return on_device, min(total, on_host)


def rested_samples(bench: KernelBench, calls: Sequence[Call], window: float) -> TimedSamples:
    """Bursts between rests; the first two see the clock of what ran before. Where what ran before still holds the
    clock down, the GPU rests more, and once more.
    """
    on_device, on_host = guess(calls)
    count = max(1, int(BURST / on_device))
    rest = REST * max(count * on_device, BURST / 4)
    if on_device < 2 * on_host:  # the rest must last until all launches are queued, and about a thousand can be
        count = max(1, min(count, int(3e-3 / on_host)))
        rest = max(rest, 1.3 * count * on_host)
    batches = max(5, min(13, int(window / (count * on_device + rest))))
    for number in range(TRIES):
        times, clocks = device_batches(calls, count, batches + 2, rest * (1 + number))
        bench.full, clock = max(bench.full, *clocks), statistics.median(clocks)
        if clock > AWAKE * bench.full:
            break
        torch.cuda._sleep(int(COOLING * CYCLES))
    return TimedSamples(times=times[2:], calls=count * batches, clock=clock)


def sustained_samples(calls: Sequence[Call], window: float, lead: float) -> TimedSamples:
    """Without rests; the first half lets the clock settle under the power limit."""
    on_device, on_host = guess(calls)
    batches = max(10, min(40 if lead else 400, int(window / on_device)))
    count = max(1, int(window / batches / on_device)) if lead else 1
    if lead:
        lead = max(lead, min(1.3 * count * on_host, 2e-3))
    times, clocks = device_batches(calls, count, batches, lead or READABLE)
    half = batches // 2
    return TimedSamples(times=times[half:], calls=count * (batches - half), clock=statistics.median(clocks[half:]))


def host_samples(bench: KernelBench, calls: Sequence[Call], window: float) -> TimedSamples:
    host_batches(calls, 2, 2, bench.synchronize)
    once = min(host_batches(calls, 2, 3, bench.synchronize))
    count = max(1, min(200, int(window / 11 / once)))
    batches = max(3, min(11, int(window / once / count)))
    return TimedSamples(times=host_batches(calls, count, batches, bench.synchronize), calls=count * batches)


def samples(bench: KernelBench, case: KernelCase, calls: Sequence[Call], window: float) -> TimedSamples:
    if case.clock == "host" or not bench.cuda:
        return host_samples(bench, calls, window)
    if case.clock in {"sustained", "step"}:
        return sustained_samples(calls, window, READABLE if case.clock == "sustained" else 0.0)
    return rested_samples(bench, calls, window)


def spread_of(times: Sequence[float]) -> float:
    if len(times) < 4:
        return (max(times) - min(times)) / statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / statistics.median(times)


def short(value: float) -> float:
    return float(f"{value:.5g}")


# Ops that write without reading what they are given, and ops that move no data at all.
WRITERS = {"aten::zero_", "aten::fill_", "aten::copy_", "aten::normal_"}
FREE = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::_unsafe_view",
    "aten::detach",
}


class Traffic(TorchDispatchMode):
    """Counts kernels (dispatched ops that are not views) and the bytes they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if not func.is_view and name not in FREE:
            self.kernels += 1
            read = () if name == "aten::zero_" else args[1:] if name in WRITERS else args
            self.bytes += touched(read) + touched(result)
        return result


def touched(values: object) -> int:
    """Bytes behind the tensors in a nest of lists; a broadcast view counts the memory it has."""
    if isinstance(values, Tensor):
        return min(values.numel() * values.element_size(), values.untyped_storage().nbytes())
    if isinstance(values, list | tuple):
        return sum(touched(value) for value in values)
    return 0


def traffic_of(call: Call) -> Row:
    with Traffic() as traffic:
        call()
    return {"kernels": traffic.kernels, "bytes": traffic.bytes}


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One measurement of a case: seconds per call of each batch, or the reason why there are none."""

    times: Sequence[float] = ()
    calls: int = 0
    clock: float = 0.0
    traffic: Row = field(default_factory=dict)
    skipped: str = ""


def measure(bench: KernelBench, case: KernelCase, window: float) -> Pass:
    calls = case.build()
    traffic = traffic_of(calls[0]) if case.count_traffic else {}
    found = samples(bench, case, calls, window)
    times = [value / case.divide for value in found.times]
    return Pass(times=times, calls=found.calls, clock=found.clock, traffic=traffic)


def attempt(bench: KernelBench, case: KernelCase, window: float) -> Pass:
    try:
        return measure(bench, case, window)
    except FAILURES as error:
        refuse_poison(bench, error)
        return Pass(skipped=reason_of(error))


FAILURES = (RuntimeError, ValueError, TypeError, AttributeError)
"""What a kernel that is not there or does not fit raises (out of memory and not implemented are RuntimeErrors)."""


def reason_of(error: Exception) -> str:
    said = str(error).split("\n", 1)[0]
    if isinstance(error, torch.OutOfMemoryError):
        return f"out of memory: {said[:80]}"
    return f"{type(error).__name__}: {said[:140]}"


def refuse_poison(bench: KernelBench, error: Exception) -> None:
    """An illegal access or a failed assertion on the GPU makes every later call fail: leave it to a fresh process."""
    try:
        bench.synchronize()
    except RuntimeError:
        raise PoisonedError(reason_of(error)) from error


def agreement(passes: Sequence[Pass]) -> float:
    """How far the medians of the passes lie apart, relative to their own median."""
    medians = [statistics.median(one.times) for one in passes]
    return (max(medians) - min(medians)) / statistics.median(medians)


def timing(passes: Sequence[Pass]) -> Row:
    """Passes weigh the same, however many batches they had."""
    seconds = statistics.median(statistics.median(one.times) for one in passes)
    found = {"seconds": short(seconds), "spread": short(statistics.median(spread_of(one.times) for one in passes))}
    if len(passes) > 1:
        found |= {"passes": len(passes), "agreement": short(agreement(passes))}
    if clocks := [one.clock for one in passes if one.clock]:
        found["clock_mhz"] = round(statistics.median(clocks) / 1e6)
    return found | {"calls": sum(one.calls for one in passes)}


def row_of(case: KernelCase, passes: Sequence[Pass]) -> Row:
    """The fields with a time, or with the reason why there is none."""
    good = [one for one in passes if one.times]
    if not good:
        return case.fields | {"skipped": passes[0].skipped}
    extra = {key: value for key, value in good[0].traffic.items() if key not in case.fields}
    return case.fields | extra | timing(good)


def thinned(cases: Iterable[KernelCase]) -> list[KernelCase]:
    """The first case of each kind: names and switches, not sizes."""
    kinds: dict[tuple[object, ...], KernelCase] = {}
    for case in cases:
        kind = tuple(value for value in case.fields.values() if isinstance(value, str | bool))
        kinds.setdefault((*kind, case.clock), case)
    return list(kinds.values())


def run_cases(bench: KernelBench, cases: Sequence[KernelCase], budget: float, passes: int = 3) -> None:
    """Every case gets its window in every pass, or less when the family's time is short; from the third pass on only
    cases whose medians disagree are measured again. What was never reached is skipped and says so.
    """
    if bench.quick:
        cases = thinned(cases)
    journal, first = bench.journal, len(bench.journal.cases)
    todo = {number: cases[number - first] for number in journal.enter([case.fields for case in cases])}
    runs: dict[int, list[Pass]] = {number: [] for number in todo}
    end = time.monotonic() + budget
    for turn in range(passes):
        asked = [number for number, found in runs.items() if turn < 2 or unsettled(found)]
        ahead = max(0, min(2, passes) - turn - 1) * len(todo)
        for position, number in enumerate(asked):
            left = end - time.monotonic()
            if left <= 0:
                break
            window = min(0.005 if bench.quick else todo[number].window, 0.6 * left / (len(asked) - position + ahead))
            journal.tell(begin=number)
            runs[number].append(attempt(bench, todo[number], window))
            journal.tell(number=number, row=row_of(todo[number], runs[number]))
            release(bench)


def unsettled(passes: Sequence[Pass]) -> bool:
    good = [one for one in passes if one.times]
    return len(good) > 1 and agreement(good) > SETTLED


def release(bench: KernelBench, limit: float = 0.4) -> None:
    """Give memory back when much is held; optimizers sit in reference cycles, so collect them first."""
    if bench.cuda and torch.cuda.memory_reserved() > limit * bench.memory:
        gc.collect()
        torch.cuda.empty_cache()


# --- gemm -------------------------------------------------------------------------------------------------------

# (k, n) of weights: small to huge hidden sizes, MLPs, GQA projections, and the slices tensor parallelism makes.
WEIGHTS = (
    (768, 768), (768, 2048), (2048, 768), (1024, 1024), (1024, 3072), (1024, 4096), (4096, 1024), (512, 512),
    (2048, 2048), (2048, 256), (2048, 512), (2048, 5632), (5632, 2048), (2048, 8192), (8192, 2048), (2048, 1024),
    (2560, 2560), (2560, 9728), (9728, 2560), (2560, 10240), (10240, 2560), (3072, 3072), (3072, 8192), (8192, 3072),
    (4096, 4096), (4096, 11008), (11008, 4096), (4096, 14336), (14336, 4096), (4096, 6144), (4096, 2048),
    (5120, 5120), (5120, 13824), (13824, 5120), (5120, 7680), (2560, 5120), (5120, 6912), (6912, 5120),
    (8192, 8192), (8192, 1024), (8192, 28672), (28672, 8192), (8192, 1280), (1024, 8192), (8192, 7168), (3584, 8192),
    (6144, 2304), (768, 6144), (6144, 3072), (3072, 6144), (12288, 4608), (1536, 12288), (12288, 6144), (6144, 12288),
    (16384, 2304), (2048, 16384), (16384, 13312), (6656, 16384), (4096, 28672), (7168, 2048), (7168, 18432),
    (2048, 10944), (10944, 2048), (2048, 3072), (2048, 576), (512, 4096), (256, 2048), (2048, 768), (1024, 2048),
)  # fmt: skip
# (k, vocabulary), some split by tensor parallelism, some odd.
HEADS = (
    (768, 32000), (2048, 32000), (4096, 32000), (5120, 32000), (1024, 50257), (1024, 50304), (2560, 51200),
    (2048, 128256), (4096, 128256), (3072, 128256), (8192, 128256), (2560, 151936), (2048, 151936), (2048, 102400),
    (4096, 64128), (4096, 32064), (8192, 16032), (6144, 6400), (12288, 6400),
)  # fmt: skip
TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
SCANNED = ((1024, 4096), (2048, 2048), (4096, 4096), (4096, 14336), (8192, 8192))
CORE = ((2048, 2048), (2048, 5632), (4096, 4096), (4096, 14336), (14336, 4096), (8192, 8192), (8192, 28672))


def operands(bench: KernelBench, layout: str, m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """For y[m,n] = x[m,k] W[n,k]^T: F gives y, I gives dx = dy W, W gives dW = dy^T x; both stored row-major."""
    if layout == "F":
        return bench.slice(m, k, dtype), bench.slice(n, k, dtype).t()
    if layout == "I":
        return bench.slice(m, n, dtype), bench.slice(n, k, dtype)
    return bench.slice(m, n, dtype).t(), bench.slice(m, k, dtype)


def gemm_call(bench: KernelBench, layout: str, m: int, n: int, k: int, dtype: torch.dtype, how: str) -> Call:
    a, b = operands(bench, layout, m, n, k, dtype)
    if how == "bias":
        bias = bench.randn(b.shape[1], dtype=dtype)
        return lambda: torch.addmm(bias, a, b)
    if how == "fp32_out":
        return lambda: torch.mm(a, b, out_dtype=FP32)
    if how == "fp32_accumulate":
        total = bench.randn(a.shape[0], b.shape[1], dtype=FP32)
        return lambda: torch.addmm(total, a, b, out_dtype=FP32, out=total)
    return lambda: torch.mm(a, b)


def with_tf32(call: Call, allowed: bool) -> Call:
    def switched() -> object:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        return call()

    return switched


def gemm_case(
    bench: KernelBench, m: int, n: int, k: int, layout: str, dtype: torch.dtype = BF16, how: str = "plain",
    clock: str = "device", *, tf32: bool = False,
) -> KernelCase:  # fmt: skip
    m, n, k = bench.dim(m), bench.dim(n), bench.dim(k)
    name = "tf32" if tf32 else NAMES[dtype]
    load = {"device": "rested"}.get(clock, clock)
    fields = {"dtype": name, "layout": layout, "m": m, "n": n, "k": k, "how": how, "load": load}
    size = (m * k + n * k + m * n) * dtype.itemsize

    def make() -> Call:
        call = gemm_call(bench, layout, m, n, k, dtype, how)
        return with_tf32(call, tf32) if dtype == FP32 else call

    window = 0.6 if clock == "sustained" else 0.04
    return KernelCase(fields=fields, build=lambda: bench.sets(size, make), clock=clock, window=window)


def gemm_shapes() -> Iterator[tuple[int, int, int, str]]:
    """m, n, k, layout: first the core, then tokens scanned, then each weight at two token counts, then heads."""
    seen = set()
    core = [(4096, n, k) for k, n in CORE]
    scan = [(m, n, k) for k, n in SCANNED for m in TOKENS]
    weights = [(m, n, k) for index, (k, n) in enumerate(WEIGHTS) for m in (4096, (8192, 2048, 16384)[index % 3])]
    heads = [(m, n, k) for index, (k, n) in enumerate(HEADS) for m in (4096, (8192, 2048)[index % 2])]
    for shape in core + scan + weights + heads:
        if shape not in seen:
            seen.add(shape)
            yield from ((*shape, layout) for layout in "FIW")


def gemm_waves() -> Iterator[tuple[int, int, int, str]]:
    """Sizes that step over whole waves of tiles, and sizes that no tile divides."""
    yield from ((4096, n, 4096, "F") for n in range(1024, 7169, 512))
    yield from ((2048, n, 2048, "F") for n in range(512, 3585, 512))
    yield from ((m, 4096, 4096, "F") for m in (3968, 4032, 4095, 4097, 4100, 4104, 4160, 4224))
    yield from ((4096, n, 4096, "F") for n in (4088, 4090, 4092, 4095, 4097, 4104, 4112))
    yield from ((4096, 4096, k, "F") for k in (4080, 4088, 4095, 4097))
    yield from ((4096, n, 4096, layout) for n in (4090, 4097) for layout in "IW")


def gemm_cases(bench: KernelBench) -> Iterator[KernelCase]:
    yield from (gemm_case(bench, *shape) for shape in gemm_shapes())
    yield from (gemm_case(bench, *shape) for shape in gemm_waves())
    for k, n in CORE:
        yield gemm_case(bench, 4096, n, k, "F", how="bias")
        yield gemm_case(bench, 4096, n, k, "W", how="fp32_out")
        yield gemm_case(bench, 4096, n, k, "W", how="fp32_accumulate")
    yield from (gemm_case(bench, m, n, k, x, FP16) for k, n in CORE for m in (1024, 4096) for x in "FIW")
    small = [(m, n, k, x) for k, n in CORE if k * n < 2**26 for m in (1024, 4096) for x in "FIW"]
    for tf32 in (False, True):
        yield from (gemm_case(bench, *shape, FP32, tf32=tf32) for shape in small)


def scaled_case(bench: KernelBench, m: int, n: int, k: int, scaling: str) -> KernelCase:
    """fp8 runs in one layout only (both operands contiguous along k), so I and W are this with dimensions swapped."""
    m, n, k = bench.dim(m), bench.dim(n), bench.dim(k)

    def make() -> Call:
        a = bench.randn(m, k).to(torch.float8_e4m3fn)
        b = bench.randn(n, k).to(torch.float8_e4m3fn).t()
        shapes = ((m, 1), (1, n)) if scaling == "rowwise" else ((), ())
        scale_a, scale_b = (torch.ones(shape, device=bench.device) for shape in shapes)
        return lambda: torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=BF16, use_fast_accum=True)

    fields = {"dtype": "fp8", "layout": "F", "m": m, "n": n, "k": k, "how": scaling, "load": "rested"}
    return KernelCase(fields=fields, build=lambda: bench.sets(m * k + n * k + 2 * m * n, make), window=0.04)


def fp8_cases(bench: KernelBench) -> Iterator[KernelCase]:
    for scaling in ("tensorwise", "rowwise"):
        for k, n in (*CORE, (16384, 16384)):
            yield from (scaled_case(bench, m, n, k, scaling) for m in (1024, 4096, 16384))


def power_trace(bench: KernelBench) -> None:
    """The same GEMM for two seconds: how far the clock falls under the power limit, and how soon."""
    side = 8192

    def trace() -> Row:
        a, b = operands(bench, "F", side, side, side, BF16)
        times, _ = device_batches([lambda: torch.mm(a, b)], 20, 5 if bench.quick else 80, 0.0)
        found = timing([Pass(times=times[len(times) // 2 :], calls=20 * len(times))])
        return {**found, "trace": [short(value) for value in times]}

    if bench.cuda:
        fields = {"dtype": "bf16", "layout": "F", "m": side, "n": side, "k": side, "how": "plain", "load": "trace"}
        bench.once(fields, trace)


def loaded_cases(bench: KernelBench) -> Iterator[KernelCase]:
    """Products without rests: what the power limit leaves of them."""
    loads = [(4096, n, k) for k, n in CORE] + [(16384, 768, 768), (8192, 8192, 8192), (512, 4096, 4096)]
    return (gemm_case(bench, *shape, "F", clock="sustained") for shape in loads)


def gemm(bench: KernelBench, budget: float) -> None:
    run_cases(bench, [*gemm_cases(bench), *fp8_cases(bench)], 0.85 * budget)
    run_cases(bench, list(loaded_cases(bench)), 0.15 * budget)  # last: they leave a slow clock behind
    power_trace(bench)


# --- grouped and batched gemm -----------------------------------------------------------------------------------

# (experts, hidden, out): what each expert's weight maps; rows are tokens x top-k.
EXPERTS = (
    (128, 2048, 1536), (128, 768, 2048), (64, 2048, 2816), (64, 1408, 2048), (8, 4096, 28672), (8, 14336, 4096),
    (16, 2048, 1536), (16, 768, 2048), (8, 2048, 2816), (32, 7168, 4096), (32, 2048, 7168), (8, 7168, 4096),
)  # fmt: skip


def offsets(bench: KernelBench, experts: int, rows: int, balance: str) -> Tensor:
    weights = torch.ones(experts) if balance == "even" else torch.linspace(2.0, 0.05, experts)
    ends = (weights.cumsum(0) / weights.sum() * rows).round().to(torch.int32)
    return ends.to(bench.device)


def grouped_call(bench: KernelBench, experts: int, k: int, n: int, rows: int, layout: str, balance: str) -> Call:
    ends = offsets(bench, experts, rows, balance)
    x, dy = bench.randn(rows, k), bench.randn(rows, n)
    weight = bench.randn(experts, n, k)
    if layout == "F":
        return lambda: torch._grouped_mm(x, weight.transpose(-2, -1), offs=ends)
    if layout == "I":
        return lambda: torch._grouped_mm(dy, weight, offs=ends)
    return lambda: torch._grouped_mm(dy.t(), x, offs=ends)


def grouped_case(bench: KernelBench, experts: int, k: int, n: int, rows: int, layout: str, balance: str) -> KernelCase:
    experts, k, n, rows = (bench.dim(size) for size in (experts, k, n, rows))
    fields: Row = {"kernel": "grouped_mm", "dtype": "bf16", "layout": layout, "balance": balance}
    fields |= {"experts": experts, "rows": rows, "n": n, "k": k}
    size = 2 * (rows * (n + k) + experts * n * k)
    make = lambda: grouped_call(bench, experts, k, n, rows, layout, balance)  # noqa: E731
    return KernelCase(fields=fields, build=lambda: bench.sets(size, make), window=0.04)


def batched_call(bench: KernelBench, kernel: str, batch: int, seq: int, dim: int) -> Call:
    q, k = bench.randn(batch, seq, dim), bench.randn(batch, seq, dim)
    p = bench.randn(batch, seq, seq) if kernel != "bmm_qk" else bench.randn(1, 1, 1)
    if kernel == "bmm_qk":
        return lambda: torch.bmm(q, k.transpose(1, 2))
    if kernel == "baddbmm_qk":
        return lambda: torch.baddbmm(p, q, k.transpose(1, 2), beta=0.0, alpha=0.125)
    if kernel == "bmm_pv":
        return lambda: torch.bmm(p, k)
    return lambda: torch.bmm(p.transpose(1, 2), q)


def batched_case(bench: KernelBench, kernel: str, batch: int, seq: int, dim: int) -> KernelCase:
    batch, seq, dim = bench.dim(batch), bench.dim(seq), bench.dim(dim)
    fields = {"kernel": kernel, "dtype": "bf16", "batch": batch, "seq": seq, "dim": dim}
    size = 2 * batch * seq * (seq + 2 * dim)
    return KernelCase(
        fields=fields, build=lambda: bench.sets(size, lambda: batched_call(bench, kernel, batch, seq, dim))
    )


def grouped_cases(bench: KernelBench) -> Iterator[KernelCase]:
    for experts, k, n in EXPERTS:
        for rows in (8192, 32768) if experts < 32 else (8192, 32768, 49152):
            yield from (grouped_case(bench, experts, k, n, rows, layout, "even") for layout in "FIW")
    for experts, k, n in EXPERTS[::4]:
        yield from (grouped_case(bench, experts, k, n, 32768, layout, "skewed") for layout in "FIW")
    for batch, seq, dim in ((12, 2048, 128), (32, 2048, 96), (128, 1024, 64), (8, 4096, 128), (32, 2048, 64)):
        kernels = ("bmm_qk", "baddbmm_qk", "bmm_pv", "bmm_ptx")
        yield from (batched_case(bench, kernel, batch, seq, dim) for kernel in kernels)


def grouped(bench: KernelBench, budget: float) -> None:
    run_cases(bench, list(grouped_cases(bench)), budget)


# --- attention --------------------------------------------------------------------------------------------------

BACKENDS = {
    "flash": [SDPBackend.FLASH_ATTENTION],
    "cudnn": [SDPBackend.CUDNN_ATTENTION],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
}


@dataclass(frozen=True, kw_only=True)
class Heads:
    batch: int
    seq: int
    heads: int
    kv_heads: int
    dim: int
    v_dim: int
    causal: bool = True
    dropout: float = 0.0
    backend: str = "default"


def attention_forward(shape: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    grouped_query = shape.heads != shape.kv_heads

    def attend() -> Tensor:
        return fn.scaled_dot_product_attention(
            q, k, v, is_causal=shape.causal, dropout_p=shape.dropout, enable_gqa=grouped_query
        )

    if shape.backend == "default":
        return attend()
    with sdpa_kernel(BACKENDS[shape.backend]):
        return attend()


def attention_call(bench: KernelBench, shape: Heads, phase: str) -> Call:
    """q, k, v are views of [batch, seq, heads, dim], as projections leave them."""
    sizes = ((shape.heads, shape.dim), (shape.kv_heads, shape.dim), (shape.kv_heads, shape.v_dim))
    leaves = [bench.randn(shape.batch, shape.seq, heads, dim, grad=True) for heads, dim in sizes]
    q, k, v = (leaf.transpose(1, 2) for leaf in leaves)
    if phase == "forward":
        return lambda: attention_forward(shape, q, k, v)
    out = attention_forward(shape, q, k, v)
    grad = bench.randn(shape.batch, shape.seq, shape.heads, shape.v_dim).transpose(1, 2)
    return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)


def attention_case(bench: KernelBench, phase: str, **sizes: Any) -> KernelCase:  # noqa: ANN401
    sizes = {name: bench.dim(value) if type(value) is int else value for name, value in sizes.items()}
    if not bench.cuda:
        sizes |= {"batch": 1, "heads": 4, "kv_heads": 2}
    shape = Heads(**{"v_dim": sizes["dim"], **sizes})
    fields = {"phase": phase, "dtype": "bf16", **vars(shape)}
    size = 2 * shape.batch * shape.seq * (shape.heads + shape.kv_heads) * (shape.dim + shape.v_dim)
    return KernelCase(
        fields=fields, build=lambda: bench.sets(size, lambda: attention_call(bench, shape, phase)), window=0.04
    )


def attention_shapes() -> Iterator[Row]:
    seqs = (512, 1024, 2048, 4096, 8192, 16384, 32768)
    for dim, causal, seq in itertools.product((64, 128), (True, False), seqs):
        yield {"seq": seq, "batch": max(1, 8192 // seq), "heads": 16, "kv_heads": 16, "dim": dim, "causal": causal}
    models = (
        (16, 1024, 12, 12, 64), (4, 2048, 32, 4, 64), (1, 16384, 32, 4, 64), (2, 4096, 32, 8, 64),
        (4, 4096, 24, 8, 128), (1, 4096, 32, 32, 128), (2, 4096, 32, 8, 128), (1, 4096, 40, 40, 128),
        (1, 4096, 64, 8, 128), (4, 2048, 32, 32, 80), (1, 4096, 8, 1, 128), (1, 8192, 16, 1, 128),
        (1, 8192, 8, 2, 128), (1, 2048, 4, 4, 64), (1, 2048, 16, 16, 64), (1, 2048, 32, 32, 64),
        (1, 2048, 12, 12, 128), (4, 2048, 8, 8, 96), (1, 4096, 32, 4, 128), (8, 1024, 20, 20, 64),
        (1, 8192, 32, 8, 128), (1, 1024, 32, 8, 128), (1, 4096, 20, 20, 128), (1, 2048, 8, 2, 128),
    )  # fmt: skip
    for batch, seq, heads, kv_heads, dim in models:
        yield {"seq": seq, "batch": batch, "heads": heads, "kv_heads": kv_heads, "dim": dim}
    for batch, seq, heads, kv_heads, dim in models[:12]:
        yield {"seq": seq, "batch": batch, "heads": heads, "kv_heads": kv_heads, "dim": dim, "backend": "flash"}
    for backend in ("default", "cudnn", "efficient"):
        for dim, v_dim, seq in (
            (192, 128, 4096),
            (192, 128, 2048),
            (192, 128, 8192),
            (192, 192, 4096),
            (128, 128, 4096),
        ):
            yield {"seq": seq, "batch": 2, "heads": 16, "kv_heads": 16, "dim": dim, "v_dim": v_dim, "backend": backend}
    for batch, seq, heads, dim in ((16, 1024, 16, 64), (4, 2048, 32, 80), (1, 4096, 32, 128)):
        yield {"seq": seq, "batch": batch, "heads": heads, "kv_heads": heads, "dim": dim, "dropout": 0.1}


def attention(bench: KernelBench, budget: float) -> None:
    phases = ("forward", "backward")
    cases = [attention_case(bench, phase, **sizes) for sizes in attention_shapes() for phase in phases]
    run_cases(bench, cases, budget)


# --- memory-bound kernels ---------------------------------------------------------------------------------------

Prepare = Callable[[KernelBench, int, int], Call]


@dataclass(frozen=True, kw_only=True)
class KernelRecipe:
    """A kernel, or the chain of kernels an eager framework runs, over a [rows, width] tensor."""

    kernel: str
    prepare: Prepare
    phase: str = "forward"
    sizes: str = "plain"
    bytes_of: Callable[[int, int], int] | None = None
    """Bytes touched, where counting whole operands would be wrong (gathers)."""


def forward(dtypes: Sequence[torch.dtype], work: Callable[..., object], vectors: int = 0) -> Prepare:
    """Full tensors of these dtypes, then `vectors` bf16 vectors of `width`."""

    def prepare(bench: KernelBench, rows: int, width: int) -> Call:
        tensors = [bench.randn(rows, width, dtype=dtype) for dtype in dtypes]
        tensors += [bench.randn(width) for _ in range(vectors)]
        return lambda: work(*tensors)

    return prepare


def backward(dtypes: Sequence[torch.dtype], work: Callable[..., Tensor], vectors: int = 0) -> Prepare:
    def prepare(bench: KernelBench, rows: int, width: int) -> Call:
        tensors = [bench.randn(rows, width, dtype=dtype, grad=True) for dtype in dtypes]
        tensors += [bench.randn(width, grad=True) for _ in range(vectors)]
        out = work(*tensors)
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, tensors, grad, retain_graph=True)

    return prepare


def both(
    kernel: str, dtypes: Sequence[torch.dtype], work: Callable[..., Tensor], sizes: str, vectors: int = 0
) -> list[KernelRecipe]:
    return [
        KernelRecipe(kernel=kernel, prepare=forward(dtypes, work, vectors), sizes=sizes),
        KernelRecipe(kernel=kernel, prepare=backward(dtypes, work, vectors), phase="backward", sizes=sizes),
    ]


def rms_norm_eager(x: Tensor, weight: Tensor) -> Tensor:
    """Hugging Face's order of kernels: upcast, square, mean, rsqrt, scale, downcast, weigh."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return weight * (wide * scale).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return fn.rms_norm(x, (x.shape[-1],), weight, 1e-5)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return fn.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return fn.silu(gate) * up


def silu_mul_halves(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return fn.silu(gate) * up


def gelu_tanh(x: Tensor) -> Tensor:
    return fn.gelu(x, approximate="tanh")


def gelu_eager(x: Tensor) -> Tensor:
    """The tanh form kernel by kernel, as Hugging Face's GPT-2 computes it."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def rotary(phase: str, order: str) -> Prepare:
    """Eager rotary embedding of heads of 128: `bhsd` on transposed views as Hugging Face, `sbhd` as Megatron."""

    def prepare(bench: KernelBench, rows: int, width: int) -> Call:
        dim = min(128, width)
        leaf = bench.randn(1, rows, width // dim, dim, grad=True) if order == "bhsd" else None
        x = leaf.transpose(1, 2) if leaf is not None else bench.randn(rows, 1, width // dim, dim, grad=True)
        angles = (1, 1, rows, dim) if order == "bhsd" else (rows, 1, 1, dim)
        cos, sin = bench.randn(*angles), bench.randn(*angles)
        if phase == "forward":
            return lambda: turn(x, cos, sin)
        out = turn(x, cos, sin)
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, x, grad, retain_graph=True)

    return prepare


def cross_entropy(phase: str, *, upcast: bool) -> Prepare:
    """Loss over [tokens, vocabulary]; upcast: from bf16 logits through fp32, as frameworks do."""

    def prepare(bench: KernelBench, rows: int, width: int) -> Call:
        logits = bench.randn(rows, width, dtype=BF16 if upcast else FP32, grad=True)
        labels = bench.integers(width, rows)
        if phase == "forward":
            return lambda: fn.cross_entropy(logits.float(), labels)
        loss = fn.cross_entropy(logits.float(), labels)
        return lambda: torch.autograd.grad(loss, logits, retain_graph=True)

    return prepare


def cross_entropy_pieces(bench: KernelBench, rows: int, width: int) -> Call:
    """Forward of a vocabulary-parallel loss, kernel by kernel (Megatron's order), softmax kept for backward."""
    logits, labels = bench.randn(rows, width), bench.integers(width, rows, 1)

    def call() -> object:
        wide = logits.float()
        wide -= wide.max(dim=-1, keepdim=True).values
        picked = wide.gather(1, labels)
        weights = wide.exp_()
        total = weights.sum(dim=-1, keepdim=True)
        return total.log() - picked, weights.div_(total)

    return call


def dropout_add(x: Tensor, residual: Tensor) -> Tensor:
    return residual + fn.dropout(x, 0.1)


def bias_dropout_add(x: Tensor, residual: Tensor, bias: Tensor) -> Tensor:
    return residual + fn.dropout(x + bias, 0.1)


def masked_softmax(bench: KernelBench, rows: int, width: int) -> Call:
    """Unfused attention's scores [heads, seq, seq]: mask, then softmax in fp32 and back."""
    scores = bench.randn(max(1, rows // width), width, width)
    mask = torch.ones(1, width, width, dtype=torch.bool, device=bench.device).triu(1)
    return lambda: torch.softmax(scores.masked_fill(mask, -10000.0).float(), dim=-1).to(BF16)


def masked_fill(bench: KernelBench, rows: int, width: int) -> Call:
    scores = bench.randn(max(1, rows // width), width, width)
    mask = torch.ones(1, width, width, dtype=torch.bool, device=bench.device).triu(1)
    return lambda: scores.masked_fill(mask, -10000.0)


def embedding(phase: str, vocabulary: int) -> Prepare:
    def prepare(bench: KernelBench, rows: int, width: int) -> Call:
        size = bench.dim(vocabulary)
        table, tokens = bench.randn(size, width), bench.integers(size, rows)
        if phase == "forward":
            return lambda: fn.embedding(tokens, table)
        grad = bench.randn(rows, width)
        return lambda: torch.ops.aten.embedding_dense_backward(grad, tokens, size, -1, False)

    return prepare


def gather(kind: str) -> Prepare:
    """Moving tokens to experts and back: each of rows / 4 tokens is wanted by four experts."""

    def prepare(bench: KernelBench, rows: int, width: int) -> Call:
        tokens = max(1, rows // 4)
        index = torch.arange(rows, device=bench.device)[torch.randperm(rows, device=bench.device)] % tokens
        few, many = bench.randn(tokens, width, grad=True), bench.randn(rows, width)
        if kind == "index":
            return lambda: few[index]
        if kind == "index_select":
            return lambda: few.index_select(0, index)
        if kind == "index_add":
            return lambda: torch.zeros_like(few).index_add_(0, index, many)
        if kind == "scatter_add":
            wide = index.unsqueeze(1).expand(-1, width)
            return lambda: torch.zeros_like(few).scatter_add_(0, wide, many)
        out = few[index]
        return lambda: torch.autograd.grad(out, few, many, retain_graph=True)

    return prepare


def moved_bytes(rows: int, width: int) -> int:
    return 2 * 2 * rows * width


def top_k(bench: KernelBench, rows: int, width: int) -> Call:
    logits = bench.randn(rows, width)
    return lambda: torch.topk(torch.softmax(logits.float(), dim=-1), min(8, width), dim=-1)


def sort_rows(bench: KernelBench, rows: int, width: int) -> Call:
    keys = bench.integers(width, rows)
    return lambda: torch.argsort(keys)


def concatenate(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat((a, b), dim=-1)


def swap_heads(x: Tensor) -> Tensor:
    """[seq, heads, 128] to [heads, seq, 128] and made contiguous, as after attention."""
    return x.view(x.shape[0], -1, min(128, x.shape[1])).transpose(0, 1).contiguous()


def simple_recipes() -> list[KernelRecipe]:
    table: list[tuple[str, Sequence[torch.dtype], Callable[..., object], str, int]] = [
        ("clone_bf16", (BF16,), Tensor.clone, "huge", 0),
        ("add_bf16", (BF16, BF16), torch.add, "huge", 0),
        ("cast_bf16_fp32", (BF16,), Tensor.float, "huge", 0),
        ("cast_fp32_bf16", (FP32,), Tensor.bfloat16, "huge", 0),
        ("zero_bf16", (BF16,), Tensor.zero_, "huge", 0),
        ("zero_fp32", (FP32,), Tensor.zero_, "plain", 0),
        ("add_fp32", (FP32, FP32), torch.add, "plain", 0),
        ("mul_bf16", (BF16, BF16), torch.mul, "plain", 0),
        ("mul_fp32", (FP32, FP32), torch.mul, "plain", 0),
        ("square_fp32", (FP32,), lambda x: x.pow(2), "plain", 0),
        ("scale_fp32_", (FP32,), lambda x: x.mul_(1.0), "plain", 0),
        ("row_mean_fp32", (FP32,), lambda x: x.mean(-1, keepdim=True), "plain", 0),
        ("row_scale_fp32", (FP32,), lambda x: x * x[:, :1], "plain", 0),
        ("column_sum_bf16", (BF16,), lambda x: x.sum(0), "plain", 0),
        ("bias_add_bf16", (BF16,), torch.add, "plain", 1),
        ("accumulate_bf16", (BF16, BF16), Tensor.add_, "plain", 0),
        ("accumulate_fp32_bf16", (FP32, BF16), Tensor.add_, "huge", 0),
        ("transpose_bf16", (BF16,), lambda x: x.t().contiguous(), "plain", 0),
        ("swap_heads_bf16", (BF16,), swap_heads, "plain", 0),
        ("cat_bf16", (BF16, BF16), concatenate, "plain", 0),
        ("norm_fp32", (FP32,), torch.linalg.vector_norm, "plain", 0),
        ("max_fp32", (FP32,), lambda x: x.max(dim=-1).values, "plain", 0),
        ("exp_fp32_", (FP32,), Tensor.exp_, "plain", 0),
    ]
    return [KernelRecipe(kernel=name, prepare=forward(dtypes, work, v), sizes=s) for name, dtypes, work, s, v in table]


def fused_recipes() -> list[KernelRecipe]:
    softmax = lambda x: torch.softmax(x, dim=-1)  # noqa: E731
    return [
        *both("silu_mul", (BF16, BF16), silu_mul, "plain"),
        *both("silu_mul_halves", (BF16,), silu_mul_halves, "plain"),
        *both("silu", (BF16,), fn.silu, "plain"),
        *both("gelu_erf", (BF16,), fn.gelu, "plain"),
        *both("gelu_tanh", (BF16,), gelu_tanh, "plain"),
        *both("gelu_eager", (BF16,), gelu_eager, "plain"),
        *both("dropout", (BF16,), lambda x: fn.dropout(x, 0.1), "plain"),
        *both("dropout_add", (BF16, BF16), dropout_add, "plain"),
        *both("bias_dropout_add", (BF16, BF16), bias_dropout_add, "plain", 1),
        *both("rms_norm", (BF16,), rms_norm, "norm", 1),
        *both("rms_norm_eager", (BF16,), rms_norm_eager, "norm", 1),
        *both("layer_norm", (BF16,), layer_norm, "norm", 2),
        *both("rms_norm_eager_fp32", (FP32,), rms_norm_eager, "norm", 1),
        *both("softmax_bf16", (BF16,), softmax, "scores"),
        *both("softmax_fp32", (FP32,), softmax, "scores"),
        KernelRecipe(kernel="masked_softmax", prepare=masked_softmax, sizes="scores"),
        KernelRecipe(kernel="masked_fill", prepare=masked_fill, sizes="scores"),
    ]


def embedding_recipe(size: int, phase: str) -> KernelRecipe:
    def moved(rows: int, width: int) -> int:
        return moved_bytes(rows, width) + (2 * size * width if phase == "backward" else 0)

    work = embedding(phase, size)
    return KernelRecipe(kernel=f"embedding_{size}", prepare=work, sizes="tokens", phase=phase, bytes_of=moved)


def gather_recipe(kind: str) -> KernelRecipe:
    phase = "backward" if kind == "index_backward" else "forward"
    return KernelRecipe(kernel=kind, prepare=gather(kind), phase=phase, sizes="tokens", bytes_of=moved_bytes)


def token_recipes() -> list[KernelRecipe]:
    phases = ("forward", "backward")
    found = [
        KernelRecipe(kernel=f"rotary_{order}", prepare=rotary(phase, order), phase=phase, sizes="plain")
        for order in ("bhsd", "sbhd")
        for phase in phases
    ]
    for upcast, name in ((True, "cross_entropy_bf16"), (False, "cross_entropy_fp32")):
        found += [
            KernelRecipe(kernel=name, prepare=cross_entropy(p, upcast=upcast), phase=p, sizes="logits") for p in phases
        ]
    found += [KernelRecipe(kernel="cross_entropy_pieces", prepare=cross_entropy_pieces, sizes="logits")]
    found += [embedding_recipe(size, phase) for size in (32000, 128256) for phase in phases]
    kinds = ("index", "index_backward", "index_select", "index_add", "scatter_add")
    found += [gather_recipe(kind) for kind in kinds]
    routing = (("top_k", top_k), ("argsort", sort_rows))
    return found + [KernelRecipe(kernel=name, prepare=work, sizes="router") for name, work in routing]


PLAIN = tuple((rows, 4096) for rows in (8192, 32768, 2048, 512, 128, 131072))
SIZES: dict[str, tuple[tuple[int, int], ...]] = {
    "plain": (*PLAIN, (16384, 768)),
    "huge": (*PLAIN, (16, 4096), (524288, 4096)),
    "norm": (
        (8192, 2048), (4096, 4096), (16384, 768), (4096, 8192), (16384, 4096), (8192, 16384), (512, 4096), (1024, 8192),
        (131072, 128), (65536, 2048),
    ),
    "scores": ((24576, 2048), (65536, 2048), (262144, 1024), (32768, 4096), (8192, 512)),
    "logits": (
        (4096, 32000), (8192, 32000), (16384, 50257), (4096, 128256), (8192, 128256), (4096, 151936), (2048, 6400),
    ),
    "tokens": ((4096, 4096), (16384, 1024), (8192, 2048), (32768, 2048), (512, 4096)),
    "router": ((4096, 128), (8192, 64), (4096, 8), (32768, 128)),
}  # fmt: skip


def recipe_case(bench: KernelBench, recipe: KernelRecipe, rows: int, width: int, cache: str) -> KernelCase:
    rows, width = bench.dim(rows), bench.dim(width)
    fields: Row = {"kernel": recipe.kernel, "phase": recipe.phase, "rows": rows, "width": width, "cache": cache}
    if recipe.bytes_of:
        fields["bytes"] = recipe.bytes_of(rows, width)
    make = lambda: recipe.prepare(bench, rows, width)  # noqa: E731
    build = lambda: bench.sets(4 * rows * width, make, hot=cache == "hot")  # noqa: E731
    return KernelCase(fields=fields, build=build, window=0.02, count_traffic=True)


def memory_cases(bench: KernelBench) -> Iterator[KernelCase]:
    """Cold for every size; also hot where the tensors fit the L2 cache, as after the kernel that made them."""
    recipes = simple_recipes() + fused_recipes() + token_recipes()
    longest = max(len(sizes) for sizes in SIZES.values())
    for index in range(longest):  # the first size of everything before the second of anything
        for recipe in recipes:
            sizes = SIZES[recipe.sizes]
            if index < len(sizes):
                rows, width = sizes[index]
                yield recipe_case(bench, recipe, rows, width, "cold")
                if rows * width <= 2**25:
                    yield recipe_case(bench, recipe, rows, width, "hot")


def memory(bench: KernelBench, budget: float) -> None:
    cases = list(memory_cases(bench))
    run_cases(bench, cases if bench.cuda else thinned(cases), budget)


# --- optimizer --------------------------------------------------------------------------------------------------


def parameter_shapes(hidden: int, ffn: int, layers: int, vocabulary: int) -> list[tuple[int, ...]]:
    layer: list[tuple[int, ...]] = [(hidden, hidden)] * 4 + [(ffn, hidden)] * 2 + [(hidden, ffn)] + [(hidden,)] * 2
    return [(vocabulary, hidden)] * 2 + layer * layers + [(hidden,)]


# About 0.1, 1.1 and 4.2 billion parameters.
PARAMETERS = {
    "0.1B": parameter_shapes(768, 2048, 12, 32000),
    "1B": parameter_shapes(2048, 5632, 19, 32000),
    "4B": parameter_shapes(4096, 11008, 20, 32000),
}


def parameters(bench: KernelBench, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    found = [bench.randn(*map(bench.dim, shape), dtype=dtype, grad=True) for shape in shapes]
    for tensor in found:
        tensor.grad = bench.randn(*tensor.shape, dtype=dtype)
    return found


def adam_call(bench: KernelBench, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, how: str) -> Call:
    fused, foreach = how == "fused", how == "foreach"
    return torch.optim.AdamW(parameters(bench, shapes, dtype), lr=1e-4, fused=fused, foreach=foreach).step


def gradient_call(bench: KernelBench, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, how: str) -> Call:
    tensors = parameters(bench, shapes, dtype)
    grads = [tensor.grad for tensor in tensors if tensor.grad is not None]
    if how == "clip":
        return lambda: torch.nn.utils.clip_grad_norm_(tensors, 1.0, foreach=True)
    if how == "norm":
        return lambda: torch.stack([torch.linalg.vector_norm(grad) for grad in grads]).norm()
    if how == "zero":
        return lambda: torch._foreach_zero_(grads)
    if how == "scale":
        return lambda: [grad.mul_(1.0) for grad in grads]
    other = [torch.empty_like(grad, dtype=BF16 if dtype == FP32 else FP32) for grad in grads]
    if how == "copy_foreach":
        return lambda: torch._foreach_copy_(other, grads)
    return lambda: [target.copy_(grad) for target, grad in zip(other, grads, strict=True)]


def optimizer_case(
    bench: KernelBench, size: str, dtype: torch.dtype, how: str, make: Callable[..., Call]
) -> KernelCase:
    shapes = PARAMETERS[size] if bench.cuda else PARAMETERS[size][:6]
    count = sum(math.prod(map(bench.dim, shape)) for shape in shapes)
    kernel = "adamw" if make is adam_call else "gradients"
    fields: Row = {"kernel": kernel, "how": how, "dtype": NAMES[dtype], "size": size}
    fields |= {"parameters": count, "tensors": len(shapes)}
    return KernelCase(fields=fields, build=lambda: [make(bench, shapes, dtype, how)], window=0.1)


def optimizer_cases(bench: KernelBench) -> Iterator[KernelCase]:
    for size in PARAMETERS:
        for dtype, how in itertools.product((BF16, FP32), ("fused", "foreach", "loop")):
            if how != "loop" or size != "4B":
                yield optimizer_case(bench, size, dtype, how, adam_call)
        for how in ("clip", "norm", "zero", "scale", "copy", "copy_foreach"):
            yield optimizer_case(bench, size, FP32, how, gradient_call)
    yield optimizer_case(bench, "1B", BF16, "clip", gradient_call)
    yield optimizer_case(bench, "1B", BF16, "copy", gradient_call)


def optimizer(bench: KernelBench, budget: float) -> None:
    run_cases(bench, list(optimizer_cases(bench)), budget)


# --- launch: what the CPU pays ----------------------------------------------------------------------------------


class Scale(torch.autograd.Function):
    """The smallest autograd function written in Python; Megatron wraps its layers and collectives in such ones."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401
        return x * 2.0

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> Tensor:  # noqa: ANN401
        return grads[0] * 2.0


def chained(step: Callable[[Tensor], Tensor], x: Tensor, count: int = 100) -> Tensor:
    for _ in range(count):
        x = step(x)
    return x


def node_backward(step: Callable[[Tensor], Tensor], x: Tensor, wanted: Sequence[Tensor]) -> Call:
    out = chained(step, x)
    grad = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, wanted, grad, retain_graph=True)


def autocast(bench: KernelBench, call: Call) -> Call:
    def inside() -> object:
        with torch.autocast(bench.device.type, dtype=BF16, cache_enabled=False):
            return call()

    return inside


def launch_calls(bench: KernelBench) -> dict[str, tuple[Call, int]]:
    """Name to (call, ops in it). Tensors are tiny: the GPU keeps up, so the time is the CPU's."""
    side = 64 if bench.cuda else 8
    x, y = bench.randn(side, side), bench.randn(side, side)
    g, weight = bench.randn(side, side, grad=True), bench.randn(side, side, grad=True)
    norm, bias = bench.randn(side, grad=True), bench.randn(side, grad=True)
    linear = nn.Linear(side, side, bias=False, device=bench.device, dtype=BF16)
    wide = nn.Linear(side, side, bias=False, device=bench.device, dtype=FP32)
    identity = nn.Identity()
    many = [bench.randn(side) for _ in range(100)]
    line = lambda t: fn.linear(t, weight)  # noqa: E731
    return {
        "empty": (lambda: torch.empty(side, side, device=bench.device), 1),
        "view": (lambda: x.view(side * side), 1),
        "transpose": (lambda: x.transpose(0, 1), 1),
        "add": (lambda: x + y, 1),
        "add_": (lambda: x.add_(y), 1),
        "cast": (x.float, 1),
        "mm": (lambda: torch.mm(x, y), 1),
        "linear": (lambda: fn.linear(x, y), 1),
        "softmax": (lambda: torch.softmax(x, -1), 1),
        "cat": (lambda: torch.cat((x, y)), 1),
        "module_identity": (lambda: identity(x), 1),
        "module_linear_forward": (lambda: linear(x), 1),
        "autocast_linear_forward": (autocast(bench, lambda: wide(x)), 1),
        "foreach_add_100": (lambda: torch._foreach_add_(many, 1.0), 100),
        "loop_add_100": (lambda: [t.add_(1.0) for t in many], 100),
        "mul_forward_grad": (lambda: chained(lambda t: t * 2.0, g), 100),
        "mul_backward": (node_backward(lambda t: t * 2.0, g, (g,)), 100),
        "linear_forward_grad": (lambda: chained(line, g), 100),
        "linear_backward": (node_backward(line, g, (g, weight)), 100),
        "layer_norm_forward_grad": (lambda: chained(lambda t: layer_norm(t, norm, bias), g), 100),
        "layer_norm_backward": (node_backward(lambda t: layer_norm(t, norm, bias), g, (g, norm, bias)), 100),
        "rms_norm_eager_forward_grad": (lambda: chained(lambda t: rms_norm_eager(t, norm), g), 100),
        "rms_norm_eager_backward": (node_backward(lambda t: rms_norm_eager(t, norm), g, (g, norm)), 100),
        "silu_mul_forward_grad": (lambda: chained(lambda t: fn.silu(t) * t, g), 100),
        "silu_mul_backward": (node_backward(lambda t: fn.silu(t) * t, g, (g,)), 100),
        "function_forward": (lambda: chained(Scale.apply, g), 100),
        "function_backward": (node_backward(Scale.apply, g, (g,)), 100),
        "reshape_forward_grad": (lambda: chained(lambda t: t.view(8, -1, side).view(side, side), g), 200),
        "reshape_backward": (node_backward(lambda t: t.view(8, -1, side).view(side, side), g, (g,)), 200),
    }


def launch_cases(bench: KernelBench) -> Iterator[KernelCase]:
    calls = launch_calls(bench)
    for name, (call, ops) in calls.items():
        yield KernelCase(fields={"op": name, "side": "host"}, build=always(call), clock="host", divide=ops, window=0.25)
    if bench.cuda:  # the GPU's own floor for a kernel that does nothing much, queued back to back
        for name in ("add", "add_", "cast", "mm", "softmax"):
            yield KernelCase(fields={"op": name, "side": "device"}, build=always(calls[name][0]))


def always(call: Call) -> Callable[[], list[Call]]:
    return lambda: [call]


def launch(bench: KernelBench, budget: float) -> None:
    run_cases(bench, list(launch_cases(bench)), budget)


# --- allocator --------------------------------------------------------------------------------------------------


def outside_bytes() -> int:
    """Device memory in use that the caching allocator does not hold: the context, and other processes."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def allocation(size: int) -> Row:
    torch.cuda.empty_cache()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    block = torch.empty(size, dtype=torch.uint8, device="cuda")
    grown = torch.cuda.memory_allocated() - allocated, torch.cuda.memory_reserved() - reserved
    del block
    return {"allocated": grown[0], "reserved": grown[1]}


def workspace(work: Call) -> Row:
    """What stays allocated after a first call: library workspaces."""
    before = torch.cuda.memory_allocated(), outside_bytes()
    work()
    torch.cuda.synchronize()
    after = torch.cuda.memory_allocated(), outside_bytes()
    return {"allocated": after[0] - before[0], "outside": after[1] - before[1]}


def allocator(bench: KernelBench, _budget: float) -> None:
    """The context and the library workspaces must still be untouched: true in a child of its own."""
    once, mib = bench.once, 2**20
    if not bench.cuda:
        return once({"what": "context"}, lambda: {"skipped": "needs a GPU"})
    once({"what": "context", "when": "start"}, lambda: {"outside": outside_bytes()})
    sizes = (1, 512, 513, 4096, mib - 1, mib, mib + 1, 2 * mib, 9 * mib, 10 * mib - 1, 10 * mib, 11 * mib, 20 * mib)
    for size in (*sizes, 21 * mib, 100 * mib + 1):
        once({"what": "allocation", "requested": size}, lambda size=size: allocation(size))  # type: ignore[misc]
    x, q = bench.randn(1024, 1024, grad=True), bench.randn(1, 8, 1024, 128)
    heads = Heads(batch=1, seq=1024, heads=8, kv_heads=8, dim=128, v_dim=128)
    libraries: dict[str, Call] = {
        "cublas": lambda: torch.mm(x, x) is None,
        "cublaslt": lambda: torch.addmm(bench.randn(1024), x, x) is None,
        "cublas in backward": lambda: torch.autograd.grad(torch.mm(x, x).sum(), x) is None,
        "attention": lambda: attention_forward(heads, q, q, q) is None,
    }
    for name, work in libraries.items():
        once({"what": "workspace", "name": name}, lambda work=work: workspace(work))  # type: ignore[misc]
    return None


# --- step: do the parts add up? ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A few decoder layers, as plain as Hugging Face's (`eager`), or with torch's own norm kernel (`native`)."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    layers: int
    seq: int
    batch: int
    vocabulary: int = 0
    norm: str = "eager"
    autocast: bool = False
    dim: int = 0


class NormCase(nn.Module):
    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return (rms_norm_eager if self.kind == "eager" else rms_norm)(x, self.weight)


class Layer(nn.Module):
    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.dim = stack.dim or stack.hidden // stack.heads
        line = lambda k, n: nn.Linear(k, n, bias=False)  # noqa: E731
        self.norm1, self.norm2 = NormCase(stack.hidden, stack.norm), NormCase(stack.hidden, stack.norm)
        self.q = line(stack.hidden, stack.heads * self.dim)
        self.k = line(stack.hidden, stack.kv_heads * self.dim)
        self.v = line(stack.hidden, stack.kv_heads * self.dim)
        self.o = line(stack.heads * self.dim, stack.hidden)
        self.gate, self.up = line(stack.hidden, stack.ffn), line(stack.hidden, stack.ffn)
        self.down = line(stack.ffn, stack.hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.norm1(x)
        heads = (*x.shape[:2], -1, self.dim)
        q, k, v = (project(normed).view(heads).transpose(1, 2) for project in (self.q, self.k, self.v))
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        gqa = q.shape[1] != k.shape[1]
        mixed = fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
        x = x + self.o(mixed.transpose(1, 2).contiguous().flatten(2))
        normed = self.norm2(x)
        out: Tensor = x + self.down(silu_mul(self.gate(normed), self.up(normed)))
        return out


class Decoder(nn.Module):
    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack = stack
        self.layers = nn.ModuleList(Layer(stack) for _ in range(stack.layers))
        self.norm = NormCase(stack.hidden, stack.norm)
        self.head = nn.Linear(stack.hidden, stack.vocabulary, bias=False) if stack.vocabulary else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, labels: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, cos, sin)
        x = self.norm(x)
        if self.head is None:
            return x
        return fn.cross_entropy(self.head(x).float().flatten(0, 1), labels)


def stack_calls(bench: KernelBench, stack: Stack) -> tuple[Callable[[], Tensor], Callable[[Tensor], object]]:
    dtype = FP32 if stack.autocast else BF16
    with torch.device(bench.device):
        model = Decoder(stack).to(dtype)
    dim = stack.dim or stack.hidden // stack.heads
    x = bench.randn(stack.batch, stack.seq, stack.hidden, dtype=dtype, grad=True)
    cos, sin = (bench.randn(1, 1, stack.seq, dim) for _ in range(2))
    labels = bench.integers(max(1, stack.vocabulary), stack.batch * stack.seq)
    grad = None if stack.vocabulary else torch.ones_like(x)
    weights = [x, *model.parameters()]

    def ahead() -> Tensor:
        with torch.autocast(bench.device.type, dtype=BF16, enabled=stack.autocast):
            out: Tensor = model(x, cos, sin, labels)
        return out

    def back(out: Tensor) -> object:
        return torch.autograd.grad(out, weights, grad, retain_graph=True)

    return ahead, back


def step_calls(bench: KernelBench, stack: Stack, phase: str) -> list[Call]:
    ahead, back = stack_calls(bench, stack)
    if phase == "forward":
        return [ahead]
    if phase == "backward":
        out = ahead()
        return [lambda: back(out)]
    return [lambda: back(ahead())]


def step_case(bench: KernelBench, stack: Stack, phase: str, clock: str) -> KernelCase:
    fields: Row = {**vars(stack), "phase": phase, "clock": "host" if clock == "host" else "device"}
    build = lambda: step_calls(bench, stack, phase)  # noqa: E731
    return KernelCase(
        fields=fields, build=build, clock=clock, window=0.25 if clock == "host" else 0.8, count_traffic=True
    )


def stacks(bench: KernelBench) -> list[Stack]:
    tiny = Stack(hidden=64, ffn=128, heads=2, kv_heads=1, layers=4, seq=64, batch=1)
    if not bench.cuda:
        return [tiny]
    sizes = (
        (768, 2048, 12, 12, 6, 1024, 16, 0), (2048, 5632, 32, 4, 4, 2048, 4, 0), (4096, 11008, 32, 32, 3, 4096, 1, 0),
        (4096, 14336, 32, 8, 2, 4096, 2, 0), (8192, 28672, 64, 8, 1, 4096, 1, 0), (1024, 4096, 16, 16, 6, 1024, 8, 0),
        (2048, 5632, 32, 4, 4, 2048, 4, 32000), (2048, 8192, 32, 8, 2, 4096, 2, 128256),
    )  # fmt: skip
    names = ("hidden", "ffn", "heads", "kv_heads", "layers", "seq", "batch", "vocabulary")
    fields: list[Row] = [dict(zip(names, size, strict=True)) for size in sizes]
    eager = [Stack(**values) for values in fields]
    native = [replace(stack, norm="native") for stack in (tiny, *eager[:4])]
    amp = [replace(stack, autocast=True) for stack in (tiny, *eager[1:3])]
    return [*eager, tiny, *native, *amp]


def step(bench: KernelBench, budget: float) -> None:
    phases = ("forward", "backward", "both")
    cases = [step_case(bench, stack, phase, "step") for stack in stacks(bench) for phase in phases]
    small = [stack for stack in stacks(bench) if stack.hidden == 64]
    cases += [step_case(bench, stack, phase, "host") for stack in small for phase in phases]
    run_cases(bench, cases, budget)


# --- collectives (torchrun) -------------------------------------------------------------------------------------


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def groups(world: int) -> Iterator[tuple[str, int, list[list[int]]]]:
    """Neighbours and strided groups of every power of two, as rank layouts make them: (kind, size, groups)."""
    size = 2
    while size <= world:
        if world % size == 0:
            yield "neighbours", size, [list(range(first, first + size)) for first in range(0, world, size)]
            if size < world:
                stride = world // size
                yield "strided", size, [list(range(first, world, stride)) for first in range(stride)]
        size *= 2


def ring_neighbours(group: Any, x: Tensor, y: Tensor) -> object:  # noqa: ANN401
    """Every rank sends to the next of its group and receives from the one before, as a pipeline does."""
    import torch.distributed as dist

    ranks = dist.get_process_group_ranks(group)
    here = ranks.index(rank())
    send = dist.P2POp(dist.isend, x, ranks[(here + 1) % len(ranks)], group)
    receive = dist.P2POp(dist.irecv, y, ranks[here - 1], group)
    return [work.wait() for work in dist.batch_isend_irecv([send, receive])]


def collective_calls(bench: KernelBench, group: Any, size: int, count: int) -> dict[str, Call]:  # noqa: ANN401
    """`count` bf16 elements are the whole tensor: what all_reduce holds, all_gather makes, reduce_scatter takes."""
    import torch.distributed as dist

    whole, other, part = bench.randn(count), bench.randn(count), bench.randn(count // size)
    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "p2p": lambda: ring_neighbours(group, whole, other),
    }


def collective_time(bench: KernelBench, call: Call, nbytes: int) -> Row:
    """A fixed number of repeats: all ranks must issue the same collectives, so nothing here may depend on a clock."""
    repeats = 5 if bench.quick or nbytes >= 2**28 else 20
    host_batches([call], 1, 3, bench.synchronize)
    if bench.cuda:
        times, _ = device_batches([call], 1, repeats, 0.0)
    else:
        times = host_batches([call], 1, repeats, bench.synchronize)
    return {"seconds": short(statistics.median(times)), "spread": short(spread_of(times)), "calls": repeats}


def distributed(bench: KernelBench, _budget: float) -> None:
    import torch.distributed as dist

    once = bench.once
    if world_size() < 2:
        return once({"op": "collectives"}, lambda: {"skipped": "one process; start with torchrun to measure them"})
    dist.init_process_group("nccl" if bench.cuda else "gloo")
    sizes = [2**power for power in ((16, 22) if bench.quick or not bench.cuda else (12, 16, 20, 22, 24, 26, 28, 30))]
    for kind, size, members in groups(world_size()):
        group, _ = dist.new_subgroups_by_enumeration(members)
        for nbytes in sizes:
            for name, call in collective_calls(bench, group, size, nbytes // 2).items():
                fields = {"op": name, "groups": kind, "ranks": size, "bytes": nbytes, "dtype": "bf16"}
                once(fields, lambda call=call, nbytes=nbytes: collective_time(bench, call, nbytes))  # type: ignore[misc]
    dist.barrier()
    dist.destroy_process_group()
    return None


# --- operators of one model -------------------------------------------------------------------------------------

REQUEST, ANSWER = "shardwise-operator-request", "shardwise-operators"
OPERATOR_FIELDS = ("name", "micro_batch", "tp", "variant", "input_bytes", "output_bytes", "weight_bytes")
PART_FIELDS = {
    "gemm": ("m", "n", "k", "batch"),
    "attention": ("batch", "heads", "kv_heads", "seq", "head_dim"),
    "elementwise": ("bytes_read", "bytes_written"),
}
MOST_SIZE = 2**48


class PassTimes(NamedTuple):
    """One part of an operator: seconds of both passes, bytes kept between them, most bytes of results at once."""

    forward: float
    backward: float
    saved: int
    reserved: int


def seconds_of(bench: KernelBench, build: Callable[[], Sequence[Call]], window: float = 0.03) -> float:
    case = KernelCase(fields={}, build=build)
    found = [measure(bench, case, 0.002 if bench.quick else window) for _ in range(1 if bench.quick else 2)]
    release(bench)
    return statistics.median(statistics.median(one.times) for one in found)


def gemm_part(bench: KernelBench, part: Row) -> PassTimes:
    """A product and both of its gradients; `batch` products at once multiply two activations."""
    m, n, k, batch = (part[name] for name in PART_FIELDS["gemm"])
    x, weight, y = 2 * batch * m * k, 2 * batch * n * k, 2 * batch * m * n
    m, n, k, batch = map(bench.dim, (m, n, k, batch))

    def calls(layout: str) -> list[Call]:
        if batch == 1:
            return bench.sets(x + weight + y, lambda: gemm_call(bench, layout, m, n, k, BF16, "plain"))
        return bench.sets(x + weight + y, lambda: batched_gemm(bench, layout, batch, m, n, k))

    forward, inputs, weights = (seconds_of(bench, lambda way=way: calls(way)) for way in "FIW")  # type: ignore[misc]
    return PassTimes(forward, inputs + weights, x + (weight if batch > 1 else 0), max(y, x + weight))


def batched_gemm(bench: KernelBench, layout: str, batch: int, m: int, n: int, k: int) -> Call:
    x, weight, grad = bench.randn(batch, m, k), bench.randn(batch, n, k), bench.randn(batch, m, n)
    if layout == "F":
        return lambda: torch.bmm(x, weight.transpose(1, 2))
    return (lambda: torch.bmm(grad, weight)) if layout == "I" else (lambda: torch.bmm(grad.transpose(1, 2), x))


def attention_part(bench: KernelBench, part: Row) -> PassTimes:
    batch, heads, kv_heads, seq, dim = (part[name] for name in PART_FIELDS["attention"])
    q, k = (2 * batch * seq * dim * count for count in (heads, kv_heads))
    shape = Heads(
        batch=bench.dim(batch), seq=bench.dim(seq), heads=bench.dim(heads), kv_heads=bench.dim(kv_heads),
        dim=bench.dim(dim), v_dim=bench.dim(dim), causal=bool(part.get("causal", True)),
    )  # fmt: skip
    forward, backward = (
        seconds_of(bench, lambda way=way: bench.sets(2 * (q + k), lambda: attention_call(bench, shape, way)))  # type: ignore[misc]
        for way in ("forward", "backward")
    )
    return PassTimes(forward, backward, 2 * q + 2 * k + 4 * batch * heads * seq, q + 2 * k)


def stream(bench: KernelBench, read: int, written: int) -> Call:
    """A kernel that copies, and reads or fills what is left over."""
    source, target = bench.randn(max(1, read // 2)), bench.randn(max(1, written // 2))
    both = min(source.numel(), target.numel())
    here, there, more, rest = source[:both], target[:both], source[both:], target[both:]

    def call() -> object:
        there.copy_(here)
        if rest.numel():
            rest.zero_()
        return more.sum() if more.numel() else None

    return call


def elementwise_part(bench: KernelBench, part: Row) -> PassTimes:
    """Backward reads the result's gradient and what forward read, and writes the gradient of that, unless told."""
    read, written = (part[name] for name in PART_FIELDS["elementwise"])
    back = part.get("backward_read", read + written), part.get("backward_written", read)
    most = MOST_SIZE if bench.cuda else 2**16
    forward, backward = (
        seconds_of(bench, lambda a=a, b=b: bench.sets(a + b, lambda: stream(bench, min(a, most), min(b, most))))  # type: ignore[misc]
        for a, b in ((read, written), back)
    )
    return PassTimes(forward, backward, read, max(written, back[1]))


PARTS: dict[str, Callable[[KernelBench, Row], PassTimes]] = {
    "gemm": gemm_part,
    "attention": attention_part,
    "elementwise": elementwise_part,
}


def whole_number(value: object, *, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_SIZE


def part_fault(part: object) -> str:
    """What is wrong with a part; empty: nothing."""
    if not isinstance(part, dict) or part.get("kind") not in PARTS:
        return f"a part's kind must be one of {', '.join(PARTS)}"
    part.setdefault("batch", 1)
    least = 0 if part["kind"] == "elementwise" else 1
    names = (*PART_FIELDS[part["kind"]], *(name for name in ("backward_read", "backward_written") if name in part))
    wrong = [name for name in names if not whole_number(part.get(name), least=least)]
    if not wrong and part["kind"] == "attention" and part["heads"] % part["kv_heads"]:
        return f"{part['heads']} heads are no multiple of {part['kv_heads']} kv_heads"
    return f"{part['kind']}: {', '.join(wrong)} must be whole numbers of {least} or more" if wrong else ""


def request_faults(request: object) -> list[str]:
    if not isinstance(request, dict) or request.get("format") != REQUEST:
        return [f"it is no request: its format must be {REQUEST!r}"]
    if request.get("version") != 1:
        return [f"its version is {request.get('version')!r}, this program reads 1; update the older of the two"]
    operators = request.get("operators")
    if not isinstance(operators, list) or not operators:
        return ["it asks for no operators"]
    faults = []
    for number, operator in enumerate(operators):
        if not isinstance(operator, dict) or not isinstance(operator.get("parts"), list):
            faults.append(f"operators[{number}] must have a list of parts")
            continue
        missing = [name for name in OPERATOR_FIELDS if name not in operator]
        if missing:
            faults.append(f"operators[{number}] lacks {', '.join(missing)}")
        faults += [f"operators[{number}]: {fault}" for part in operator["parts"] if (fault := part_fault(part))]
    return faults


def operator_row(bench: KernelBench, operator: Row, known: dict[str, PassTimes]) -> Row:
    """The sum of its parts; equal parts are measured once."""
    found = []
    for part in operator["parts"]:
        key = json.dumps(part, sort_keys=True)
        if key not in known:
            known[key] = PARTS[part["kind"]](bench, part)
        found.append(known[key])
    return {
        "forward_seconds": short(sum(one.forward for one in found)),
        "backward_seconds": short(sum(one.backward for one in found)),
        "saved_bytes": sum(one.saved for one in found),
        "reserved_bytes": max((one.reserved for one in found), default=0),
    }


def measure_operators(bench: KernelBench, asked: Sequence[Row]) -> None:
    known: dict[str, PassTimes] = {}
    started = time.monotonic()
    for number, operator in enumerate(asked, start=1):
        fields = {name: operator[name] for name in OPERATOR_FIELDS}
        bench.once(fields, lambda operator=operator: operator_row(bench, operator, known))  # type: ignore[misc]
        if number % 20 == 0 or number == len(asked):
            progress(f"{number} of {len(asked)} operators after {time.monotonic() - started:.0f} s")


def read_request(path: Path) -> Row:
    try:
        request: Row = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(complain(f"{path} cannot be read: {error}")) from None
    faults = request_faults(request)
    if faults:
        raise SystemExit(complain(f"{path}: " + "; ".join(faults[:8])))
    return request


# --- the run ----------------------------------------------------------------------------------------------------

Family = Callable[[KernelBench, float], None]
# Shares divide the time.
FAMILIES: dict[str, tuple[Family, float]] = {
    "allocator": (allocator, 0.01),
    "launch": (launch, 0.05),
    "gemm": (gemm, 0.28),
    "grouped": (grouped, 0.08),
    "attention": (attention, 0.14),
    "memory": (memory, 0.16),
    "optimizer": (optimizer, 0.06),
    "step": (step, 0.21),
    "distributed": (distributed, 0.01),
}


def smi(fields: str) -> list[str]:
    """The command that asks nvidia-smi about the GPU this process uses."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    which = visible[local] if local < len(visible) and visible[local] else str(local)
    return ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", which]


class Telemetry:
    """Clock, power and temperature twice a second by nvidia-smi, where there is one."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the run)
        fields = "clocks.sm,clocks.mem,power.draw,temperature.gpu"
        command = [*smi(fields), "-lms", "500"]
        self.process: subprocess.Popen[bytes] | None
        try:
            self.process = subprocess.Popen(command, stdout=self.file, stderr=subprocess.DEVNULL)  # noqa: S603
        except OSError:
            self.process = None
        self.seen = 0

    def since_last(self) -> Row:
        """Medians over the samples that came since the last call."""
        self.file.seek(0)
        lines = self.file.read().splitlines()[:-1]
        fresh, self.seen = lines[self.seen :], len(lines)
        columns = list(zip(*(parsed for line in fresh if (parsed := numbers(line))), strict=False))
        names = ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c")
        return {name: statistics.median(column) for name, column in zip(names, columns, strict=False)}

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(5)
        self.file.close()


def numbers(line: str) -> list[float]:
    try:
        return [float(part) for part in line.split(",")]
    except ValueError:
        return []


def driver_version() -> str:
    command = smi("driver_version")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
        return done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def hardware(bench: KernelBench) -> Row:
    found: Row = {"device": bench.device.type, "cpu": processor(), "cpu_count": os.cpu_count(), "ranks": world_size()}
    if bench.cuda:
        p = torch.cuda.get_device_properties(0)
        found |= {"gpu": p.name, "capability": f"{p.major}.{p.minor}", "multiprocessors": p.multi_processor_count}
        found |= {"memory": p.total_memory, "l2": bench.l2, "visible_gpus": torch.cuda.device_count()}
    return found


def software(bench: KernelBench) -> Row:
    found: Row = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
    if bench.cuda:
        found |= {"driver": driver_version(), "cudnn": torch.backends.cudnn.version()}
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found | {"system": platform.platform()}


def dumped(result: Row) -> str:
    """JSON with one row a line, so that two probes can be compared with diff."""
    families = result["families"]
    head = json.dumps({key: value for key, value in result.items() if key != "families"}, indent=1)
    parts = []
    for name, family in families.items():
        rows = ",\n".join("   " + json.dumps(row) for row in family["rows"])
        rest = json.dumps({key: value for key, value in family.items() if key != "rows"})[1:-1]
        parts.append(f'  "{name}": {{{rest}, "rows": [\n{rows}\n  ]}}')
    return head.removesuffix("\n}") + ',\n "families": {\n' + ",\n".join(parts) + "\n }\n}\n"


def write_text(path: Path, text: str) -> None:
    """Whole or not at all: a reader never sees half a file."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def write(path: Path, result: Row) -> None:
    write_text(path, dumped(result))


def progress(text: str) -> None:
    if rank() == 0:
        print(text, file=sys.stderr, flush=True)


def summary(rows: Sequence[Row]) -> str:
    skipped = [row["skipped"] for row in rows if "skipped" in row]
    text = f"{len(rows) - len(skipped)} rows"
    if skipped:
        text += f", {len(skipped)} skipped ({statistics.mode(skipped)[:60]})"
    return text


# --- children ---------------------------------------------------------------------------------------------------

CHILD = "--child"


def child(job: Row) -> None:
    """Measure one family and tell it over what was standard output; libraries may print to it, so they get another."""
    wire = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    journal = Teller(wire=wire, known=job["known"], wary=job["wary"])
    try:
        bench = make_bench(job["device"], quick=job["quick"])
        bench.journal, bench.full = journal, job["full"]
        journal.tell(ready={"hardware": hardware(bench), "software": software(bench)} if job["describe"] else {})
        if job["family"] in FAMILIES:
            FAMILIES[job["family"]][0](bench, job["budget"])
        else:
            measure_operators(bench, read_request(Path(job["request"]))["operators"])
        journal.tell(full=bench.full)
    except PoisonedError as error:
        journal.tell(fault=f"died of {error}")
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells it and goes on
        journal.tell(fault=f"died of {reason_of(error)}")
    os._exit(0 if journal.ended else 1)  # libraries that are taken down after a fault can crash or hang


class Listener(threading.Thread):
    """Notes what a child tells, until it ends. Signals reach the main thread alone: no record is lost to Ctrl-C."""

    def __init__(self, process: subprocess.Popen[str], journal: Journal) -> None:
        super().__init__(daemon=True)
        self.process, self.journal = process, journal
        self.beats: queue.Queue[bool] = queue.Queue()  # whether the child goes on
        self.start()

    def run(self) -> None:
        try:
            for line in self.process.stdout or ():
                if line.startswith("{") and line.endswith("}\n"):  # neither a library's nor cut by a death
                    self.journal.note(json.loads(line))
                self.beats.put(True)
        finally:
            self.beats.put(False)

    def wait(self) -> None:
        """Until the child has told all; queue.Empty after too long a silence."""
        while self.beats.get(timeout=SILENCE):
            pass


def watch(job: Row, journal: Journal) -> str:
    """Run one child and note what it tells; how it died, empty where it came to its end."""
    journal.began, journal.ended, journal.fault = time.monotonic(), False, ""
    words = [sys.executable, __file__, CHILD]
    pipe: Row = {"stdout": subprocess.PIPE, "encoding": "utf-8", "errors": "replace"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as asked:  # no pipe: the child may be dead before it reads
        json.dump(job, asked)
        asked.seek(0)
        # a session of its own: Ctrl-C reaches the parent alone, which then ends the child
        process = subprocess.Popen(words, stdin=asked, start_new_session=True, **pipe)  # noqa: S603 - this very program
    listener = Listener(process, journal)
    try:
        listener.wait()
        code = process.wait()
    except queue.Empty:
        return f"was stopped after {SILENCE:g} s of silence"
    finally:
        process.kill()
        process.wait()
        listener.join(timeout=5)  # what the child had told before; a process of its own may still hold the pipe
    return "" if journal.ended else journal.fault or death_of(code)


def death_of(code: int) -> str:
    try:
        return f"died by {signal.Signals(-code).name}" if code < 0 else f"died with exit code {code}"
    except ValueError:
        return f"died by signal {-code}"


def supervise(job: Row, journal: Journal, budget: float) -> None:
    """Have a family measured in children: where one dies, another goes on with the cases after the deadly one."""
    lives = 1 if job["family"] == "distributed" else LIVES  # the other ranks are in the middle of their collectives
    for number in range(1, lives + 1):
        known = {"known": list(journal.rows), "wary": journal.deadly(), "full": journal.full, "budget": budget}
        death = watch({**job, **known, "describe": not journal.machine}, journal)
        if not death:
            return journal.leave(OUT_OF_TIME)
        case = journal.bury(death)
        place = "before any case" if case is None else f"in {described(case)}"
        who = f"rank {rank()}, {job['family']}" if world_size() > 1 else job["family"]
        complain(f"{who}: process {number} of at most {lives} {death} {place}; what it had measured is kept")
        budget -= time.monotonic() - journal.began
        if case is None or budget <= 0:  # without a case to leave out, the next one would die of the same
            break
    return journal.leave(f"not tried: {number} of the family's processes died before")


def described(case: Row) -> str:
    return ", ".join(f"{key} {value}" for key, value in case.items() if key not in {"skipped", "died"})


def job_of(options: argparse.Namespace, family: str) -> Row:
    return {"family": family, "device": options.device, "quick": options.quick, "request": str(options.operators)}


def run_families(
    options: argparse.Namespace, names: Sequence[str], end: float, result: Row, save: Callable[[], None]
) -> None:
    """Each family gets its share of the time that is left; what one does not use goes to the next ones."""
    telemetry = Telemetry() if options.device == "cuda" else None
    journal, start_up = Journal(), 0.0
    try:
        for index, name in enumerate(names):
            shares = sum(FAMILIES[other][1] for other in names[index:])
            left = end - time.monotonic() - start_up * len(names[index:])
            budget = max(0.0, left) * FAMILIES[name][1] / shares
            journal, start = Journal(machine=journal.machine, full=journal.full), time.monotonic()
            try:
                supervise(job_of(options, name), journal, budget)
            finally:
                spent = time.monotonic() - start
                entry: Row = {"seconds": short(spent), "budget": short(budget)}
                if telemetry:
                    entry["telemetry"] = telemetry.since_last()
                result["families"][name] = {**entry, "rows": journal.in_order()}
                result |= journal.machine
            start_up = max(start_up, journal.start_up)
            progress(f"{name}: {spent:.1f} s of {budget:.0f}, {summary(journal.in_order())}")
            save()
    finally:
        if telemetry:
            telemetry.stop()


def run_operators(options: argparse.Namespace, request: Row) -> int:
    """Have a request's operators measured and write them; Ctrl-C and deaths keep what there is."""
    journal, code = Journal(), 0
    try:
        supervise(job_of(options, "operators"), journal, math.inf)
    except KeyboardInterrupt:
        code = 130
    rows = journal.in_order()
    good = [row for row in rows if "skipped" not in row]
    result: Row = {"format": ANSWER, "version": 1, "complete": len(good) == len(request["operators"])}
    result["hardware"] = journal.machine.get("hardware", {}) | journal.machine.get("software", {})
    result["tags"] = {"attention": "flash", "dtype": "bf16", "framework": f"torch {torch.__version__.split('+')[0]}"}
    result |= {"model": request.get("model", ""), "seq": request.get("seq", 0), "operators": good, "collectives": []}
    lost = [f"{described(row)}: {row['skipped']}" for row in rows if "skipped" in row]
    write_text(options.out, json.dumps(result | ({"lost": lost} if lost else {}), indent=1) + "\n")
    for text in lost[:8]:
        complain(f"not measured: {text}")
    return code or int(bool(lost))


def make_bench(device: str, *, quick: bool) -> KernelBench:
    torch.manual_seed(0)
    if device == "cpu":
        return KernelBench(device=torch.device("cpu"), quick=quick, l2=2**10, memory=2**30)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return KernelBench(
        device=torch.device("cuda"), quick=quick, l2=properties.L2_cache_size, memory=properties.total_memory
    )


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure a GPU for shardwise calibrate.")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write; kept up to date after each family")
    parser.add_argument("--minutes", type=float, default=5.5, help="time for everything; families share it (5.5)")
    parser.add_argument("--quick", action="store_true", help="one case of each kind, to see that everything runs")
    parser.add_argument("--families", default="", help=f"comma-separated, of: {', '.join(FAMILIES)} (all)")
    parser.add_argument("--operators", type=Path, help="measure the operators that this request lists, instead")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny sizes, to test the program"
    )
    return parser.parse_args(arguments)


def wanted_families(text: str) -> list[str]:
    asked = [name.strip() for name in text.split(",") if name.strip()] or list(FAMILIES)
    unknown = [name for name in asked if name not in FAMILIES]
    if unknown:
        raise SystemExit(complain(f"unknown family {', '.join(unknown)}; there are {', '.join(FAMILIES)}"))
    return [name for name in FAMILIES if name in asked]


def complain(text: str) -> int:
    print(f"shardwise_probe: {text}", file=sys.stderr)
    return 2


def main(arguments: Sequence[str] | None = None) -> int:
    started = time.monotonic()
    options = parsed(arguments)
    names = wanted_families(options.families)
    if options.device == "cuda" and not torch.cuda.is_available():
        return complain("torch sees no GPU; run it on a GPU node, or with --device cpu to test the program itself")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    request = read_request(options.operators) if options.operators else None
    if request:
        return run_operators(options, request)
    settings = {"minutes": options.minutes, "quick": options.quick, "families": names}
    result: Row = {"schema": SCHEMA, "complete": False, "hardware": {"device": options.device}, "software": {}}
    result |= {"settings": settings, "families": {}}
    save = (lambda: write(options.out, result)) if rank() == 0 else (lambda: None)
    try:
        run_families(options, names, started + 60 * options.minutes - 5, result, save)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second one must not lose what the first one keeps
        save()
        return 130
    result["complete"] = True
    result["settings"]["seconds"] = short(time.monotonic() - started)
    save()
    progress(f"wrote {options.out} after {time.monotonic() - started:.0f} s")
    rows = [row for family in result["families"].values() for row in family["rows"]]
    return int(any("died" in row for row in rows) and all("skipped" in row for row in rows))


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child(json.load(sys.stdin))
    sys.exit(main())
