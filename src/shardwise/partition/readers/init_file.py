"""The init YAML of seed 001: pipeline, recompute counts and peaks of one or several rounds, times or traces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any

from shardwise.errors import Fault, FileError, InputError
from shardwise.inputs.files import parse_mapping, read_text
from shardwise.inputs.gate import fits, wrong
from shardwise.inputs.scalars import SCALARS
from shardwise.partition.decompose import Measured
from shardwise.partition.lists import counted

LISTS = ("recompute", "select_recompute", "select_comm_recompute")
HEAD, BODY, TAIL = ("LlamaEmbedding",), ("LLamaDecodeLayer",), ("lm_head-Linear", "LlamaRMSNorm")
"""Operator names where a file names none: MindFormers' Llama."""
Table = dict[str, Any]
_SHOWN = Repr()
_SHOWN.maxlist, _SHOWN.maxlevel, _SHOWN.maxstring, _SHOWN.maxother = 64, 2, 80, 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """Where the traces are and what to look for in them."""

    folder: str
    microbatches: int
    head: tuple[str, ...] = HEAD
    body: tuple[str, ...] = BODY
    tail: tuple[str, ...] = TAIL


@dataclass(frozen=True, slots=True, kw_only=True)
class Init:
    """What an init file says."""

    pp: int
    layers: int
    measured: tuple[Measured, ...]
    times: tuple[float, float, float] | None
    """Forward of head, body layer and tail, where they are typed in."""
    profiling: Profiling | None
    kinds: tuple[str, ...]
    """Recompute kinds that were measured."""
    unknown: tuple[str, ...] = ()
    """Keys that mean nothing here, to be named."""


def read_init(
    path: str | Path, *, peaks: Sequence[Mapping[int, float]] = (), times: tuple[float, float, float] | None = None
) -> Init:
    """Read and check an init file; every fault is told at once.

    `peaks` (of the stages, one mapping per round) and `times` (head, body, tail) go before what the file says.
    """
    text = read_text(path)
    tab = re.search(r"^ *\t", text, re.MULTILINE)
    if tab:
        line = text.count("\n", 0, tab.start()) + 1
        raise FileError(path, f"line {line} is indented with a tab; YAML wants spaces")
    data = parse_mapping(text, path)
    if peaks:
        data["memory_usage"] = _usage(peaks)
    if times:
        data["time_config"] = dict(zip(("head", "body", "tail"), times, strict=True))
    reader = _InitReader(data)
    init = reader.read()
    if reader.faults or init is None:
        raise InputError(reader.faults, title=str(path))
    return init


class _InitReader:
    """Collects faults on the way."""

    def __init__(self, data: Table) -> None:
        self.data, self.faults = data, list[Fault]()

    def fault(self, path: str, message: str) -> None:
        self.faults.append(Fault(path, message))

    def section(self, name: str, *, needed: bool = True) -> Table:
        value = self.data.get(name)
        if value is None and not needed:
            return {}
        if not isinstance(value, dict):
            self.fault(name, "is missing; the file needs pipeline_config, recompute_config and memory_usage")
            return {}
        return value

    def count(self, table: Table, section: str, name: str) -> int:
        value = table.get(name)
        row = SCALARS[{"pipeline_num": "Strategy.pp", "num_layer": "Model.layers"}.get(name, "Strategy.microbatches")]
        if message := "is missing; add it" if value is None else wrong(value, row):
            self.fault(f"{section}.{name}", message)
            return 0
        return int(value or 0)

    def read(self) -> Init | None:
        pipeline = self.section("pipeline_config")
        pp, layers = (self.count(pipeline, "pipeline_config", name) for name in ("pipeline_num", "num_layer"))
        times, profiling = self.times(), self.profiling()
        recompute, memory = self.section("recompute_config"), self.section("memory_usage")
        if self.faults:
            return None
        if pp == 2:
            self.fault("pipeline_config.pipeline_num", "is 2: no stage lies between head and tail, so memory cannot be "
                       "taken apart; use `shardwise balance quick`")  # fmt: skip
            return None
        if pp > layers:
            said = f"is {pp:,}, num_layer is {layers:,}; every stage needs a layer"
            self.fault("pipeline_config.pipeline_num", said)
            return None
        sizes = self.sizes(pipeline.get("offset", 0), pp, layers)
        if self.faults:
            return None
        lists = {name: self.rounds(recompute.get(name, False), name, sizes, pp) for name in LISTS}
        if self.faults:
            return None
        counts = [[self.counts(r, s, n, lists) for s, n in enumerate(row)] for r, row in enumerate(sizes)]
        measured = tuple(self.measured(memory, pp, sizes, counts))
        if not (times or profiling):
            self.fault("time_config", "no times: give time_config with head, body and tail, or profiling_config")
        used = [
            name for k, name in enumerate(("select", "comm", "both", "full"), 1) if any(m.counts[k] for m in measured)
        ]
        return Init(
            pp=pp, layers=layers, measured=measured, times=times, profiling=profiling, kinds=tuple(used),
            unknown=tuple(_unknown(self.data)),
        )  # fmt: skip

    def sizes(self, offset: object, pp: int, layers: int) -> list[list[int]]:
        """Layers per round and stage."""
        at, base = "pipeline_config.offset", layers // pp
        rows = [[0] * pp] if offset in (0, None, False) else offset
        if isinstance(rows, list) and rows and not isinstance(rows[0], list):
            rows = [rows]
        if not isinstance(rows, list) or not all(isinstance(row, list) and all(map(_whole, row)) for row in rows):
            self.fault(
                at, f"is {_SHOWN.repr(offset)}; write 0, a list of {pp} whole numbers, or one such list per round"
            )
            return []
        found = []
        for k, row in enumerate(rows):
            where = f"{at}.{k}" if len(rows) > 1 else at
            if len(row) != pp:
                self.fault(where, f"has {len(row)} numbers, pipeline_num is {pp}; write one per stage")
                continue
            made = [base + value for value in row]
            if sum(made) != layers:
                self.fault(
                    where,
                    f"gives {sum(made)} layers, num_layer is {layers}; the offsets must sum to {layers - base * pp}",
                )
            if min(made) < 1:
                self.fault(
                    where, f"leaves stage {made.index(min(made))} with {min(made)} layers; every stage needs one"
                )
            found.append(made)
        return found

    def rounds(self, value: object, name: str, sizes: list[list[int]], pp: int) -> list[list[int]]:
        """One list per round from a truth value, a list, or one of either per round."""
        per_round = (
            isinstance(value, list) and len(value) == len(sizes) and (len(sizes) > 1 or isinstance(value[0], list))
        )
        entries = value if per_round and isinstance(value, list) else [value] * len(sizes)
        return [self.row(entry, name, sizes[k], pp) for k, entry in enumerate(entries)]

    def row(self, entry: object, name: str, sizes: list[int], pp: int) -> list[int]:
        if entry is None or isinstance(entry, bool):
            return list(sizes) if entry else [0] * pp
        if entry == 0:
            return [0] * pp
        if not isinstance(entry, list) or not all(map(_whole, entry)):
            self.fault(
                f"recompute_config.{name}",
                f"holds {_SHOWN.repr(entry)}; write true, false or a list of {pp} whole numbers",
            )
            return [0] * pp
        if len(entry) != pp:
            self.fault(
                f"recompute_config.{name}", f"has {len(entry)} numbers, pipeline_num is {pp}; write one per stage"
            )
            return [0] * pp
        for stage, count in enumerate(entry):
            if not 0 <= count <= sizes[stage]:
                self.fault(
                    f"recompute_config.{name}",
                    f"recomputes {count} of the {sizes[stage]} layers of stage {stage}; write 0 to {sizes[stage]}",
                )
        return entry

    def counts(self, r: int, s: int, n: int, lists: dict[str, list[list[int]]]) -> tuple[int, ...]:
        full, select, comm = (lists[name][r][s] for name in LISTS)
        return counted(n, full, select, comm)

    def measured(
        self, memory: Table, pp: int, sizes: list[list[int]], counts: list[list[tuple[int, ...]]]
    ) -> Iterator[Measured]:
        """Head and tail of the first round, and the named stages of every round."""
        for name, stage in (("head_memory", 0), ("tail_memory", pp - 1)):
            if self.positive(memory.get(name), f"memory_usage.{name}"):
                yield Measured(stage=stage, layers=sizes[0][stage], counts=counts[0][stage], peak=float(memory[name]))
        body = memory.get("body_memories")
        stages, peaks = (
            (_nested(body.get(key)) for key in ("stage_id", "memories")) if isinstance(body, dict) else ([], [])
        )
        if not stages or not peaks:
            self.fault("memory_usage.body_memories", "must hold stage_id and memories, lists of the same length")
            return
        if len(stages) != len(sizes) or len(peaks) != len(sizes):
            said = f"stage_id and memories have {len(stages)} and {len(peaks)} rounds, offset has {len(sizes)}"
            self.fault("memory_usage.body_memories", f"{said}; give one list per round in each")
            return
        for r, (ids, values) in enumerate(zip(stages, peaks, strict=True)):
            yield from self._round(r, ids, values, pp, sizes[r], counts[r])

    def _round(
        self, r: int, ids: list[Any], values: list[Any], pp: int, sizes: list[int], counts: list[tuple[int, ...]]
    ) -> Iterator[Measured]:
        at = "memory_usage.body_memories"
        if len(ids) != len(values):
            self.fault(at, f"has {len(ids)} stages but {len(values)} memories in round {r + 1}; give one each")
            return
        if len(set(map(str, ids))) != len(ids):
            self.fault(f"{at}.stage_id", "names a stage twice; keep one")
        for stage, peak in zip(ids, values, strict=True):
            if not _whole(stage) or not 0 < stage < pp - 1:
                self.fault(f"{at}.stage_id", f"holds {stage!r}; stages between head and tail are 1 to {pp - 2}")
            elif self.positive(peak, f"{at}.memories"):
                yield Measured(stage=stage, layers=sizes[stage], counts=counts[stage], peak=float(peak), round=r)

    def positive(self, value: object, at: str) -> bool:
        if fits(value, SCALARS["log.peak"]):
            return True
        said = "is missing" if value is None else f"is {_SHOWN.repr(value)}"
        self.fault(at, f"{said}; write the measured peak in MB, above 0")
        return False

    def times(self) -> tuple[float, float, float] | None:
        table = self.section("time_config", needed=False)
        if not table:
            return None
        values = [table.get(name) for name in ("head", "body", "tail")]
        for name, value in zip(("head", "body", "tail"), values, strict=True):
            if not fits(value, SCALARS["pipeline.time"]) or (name == "body" and not value):
                self.fault(f"time_config.{name}", f"is {_SHOWN.repr(value)}; write the forward time of one micro batch")
        return None if self.faults else (float(values[0] or 0), float(values[1] or 0), float(values[2] or 0))

    def profiling(self) -> Profiling | None:
        table = self.section("profiling_config", needed=False)
        if not table:
            return None
        microbatches = self.count(table, "profiling_config", "micro_batch_num")
        folder = table.get("folder_path")
        if not isinstance(folder, str):
            self.fault("profiling_config.folder_path", "is missing; write the folder with the trace_view*.json files")
            return None
        names = {}
        for key, default in (("head", HEAD), ("body", BODY), ("tail", TAIL)):
            value = table.get(f"{key}_layers", list(default))
            value = [value] if isinstance(value, str) else value
            if not isinstance(value, list) or not value or not all(isinstance(name, str) and name for name in value):
                self.fault(f"profiling_config.{key}_layers", f"is {value!r}; write a name or a list of names")
                value = list(default)
            names[key] = tuple(value)
        return Profiling(folder=folder, microbatches=microbatches, **names)


_KNOWN: dict[str, frozenset[str]] = {
    "pipeline_config": frozenset({"pipeline_num", "num_layer", "offset"}),
    "time_config": frozenset({"head", "body", "tail"}),
    "recompute_config": frozenset(LISTS),
    "memory_usage": frozenset({"head_memory", "tail_memory", "body_memories"}),
    "profiling_config": frozenset({"micro_batch_num", "folder_path", "head_layers", "body_layers", "tail_layers"}),
}


def _unknown(data: Table) -> Iterator[str]:
    for name, table in data.items():
        if name not in _KNOWN:
            yield str(name)
        elif isinstance(table, dict):
            yield from (f"{name}.{key}" for key in table if key not in _KNOWN[name])


def _usage(peaks: Sequence[Mapping[int, float]]) -> Table:
    """The memory section that these peaks make: head and tail of the first round, the stages between of all."""
    inner = [{stage: peak for stage, peak in one.items() if 0 < stage < max(one)} for one in peaks]
    body = {"stage_id": [list(one) for one in inner], "memories": [list(one.values()) for one in inner]}
    return {"head_memory": peaks[0].get(0), "tail_memory": peaks[0][max(peaks[0])], "body_memories": body}


def _whole(value: object) -> bool:
    return fits(value, SCALARS["pipeline.offset"])


def _nested(value: object) -> list[list[Any]]:
    if not isinstance(value, list) or not value:
        return []
    return value if isinstance(value[0], list) else [value]
