"""The init YAML of seed 001: pipeline, recompute counts and peaks of one or several rounds, times or traces.

Of ours, beyond SAPP: `pipeline_config.kinds: {dense: 3, moe: 58}`, the kinds of layers in the order of the model, with
`time_config.body` and `profiling_config.body_layers` by kind; and `head_memory` and `tail_memory` of every round.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from reprlib import Repr
from typing import Any

from shardwise.errors import Fault, FileError, InputError
from shardwise.inputs.files import parse_mapping, read_text
from shardwise.inputs.gate import fits, wrong
from shardwise.inputs.scalars import SCALARS
from shardwise.partition.decompose import CHOICES, Measured
from shardwise.partition.lists import counted_by_kind, kinds_of_chunks
from shardwise.partition.readers.keys import Place, passed_over, slips

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
    bodies: tuple[tuple[str, ...], ...] = ()
    """The names of every kind of layers, where there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Init:
    """What an init file says."""

    pp: int
    layers: int
    measured: tuple[Measured, ...]
    times: tuple[float, ...] | None
    """Forward of head, a layer of every kind and tail, where they are typed in."""
    profiling: Profiling | None
    kinds: tuple[str, ...]
    """Recompute kinds that were measured."""
    runs: tuple[tuple[str, int], ...]
    """Kinds of layers in the order of the model, and how many there are."""
    unknown: tuple[str, ...] = ()
    """What is said of keys that mean nothing here or are not read."""


def read_init(
    path: str | Path,
    *,
    peaks: Sequence[Mapping[int, float]] = (),
    times: Sequence[float] | None = None,
    timed: bool = True,
) -> Init:
    """Read and check an init file; every fault is told at once.

    `peaks` (of the stages, one mapping per round) and `times` (head, a layer of every kind, tail) go before what the
    file says; `timed`: it must say times.
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
        head, *body, tail = times
        data["time_config"] = {"head": head, "body": body[0] if len(body) == 1 else body, "tail": tail}
    reader = _InitReader(data, timed=timed)
    init = reader.read()
    if reader.faults or init is None:
        raise InputError(reader.faults, title=str(path))
    return init


class _InitReader:
    """Collects faults on the way."""

    def __init__(self, data: Table, *, timed: bool) -> None:
        self.data, self.timed, self.faults = data, timed, list[Fault]()
        self.names: tuple[str, ...] = ("BODY",)
        self.each: tuple[int, ...] = ()

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
        self.faults += slips(_places(self.data))
        pipeline = self.section("pipeline_config")
        pp, layers = (self.count(pipeline, "pipeline_config", name) for name in ("pipeline_num", "num_layer"))
        self.each = (layers,)
        if pipeline.get("kinds") is not None:
            self.of_kinds(pipeline["kinds"], layers)
        times = self.times()
        profiling = self.profiling() if self.timed and not self.data.get("time_config") else None
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
        counts = [self.counts(r, row, lists) for r, row in enumerate(sizes)]
        measured = tuple(self.measured(memory, pp, sizes, counts))
        if self.timed and not (times or profiling):
            self.fault("time_config", "no times: give time_config with head, body and tail, or profiling_config")
        used = [name for k, name in enumerate(CHOICES) if k and any(any(m.counts[k :: len(CHOICES)]) for m in measured)]
        return Init(
            pp=pp, layers=layers, measured=measured, times=times, profiling=profiling, kinds=tuple(used),
            runs=tuple(zip(self.names, self.each, strict=True)), unknown=tuple(self.unused()),
        )  # fmt: skip

    def unused(self) -> Iterator[str]:
        """What is said of keys that mean nothing here, and of traces beside typed times."""
        yield from passed_over(_places(self.data))
        folder = self.section("profiling_config", needed=False).get("folder_path")
        if folder and self.data.get("time_config"):
            yield f"times are given, so the traces in profiling_config.folder_path ({folder}) are not read"

    def of_kinds(self, value: object, layers: int) -> None:
        """Kinds of layers by name."""
        at, row = "pipeline_config.kinds", SCALARS["Model.layers"]
        if not isinstance(value, dict) or not value or not all(fits(count, row) for count in value.values()):
            self.fault(at, f"is {_SHOWN.repr(value)}; write kinds of layers in the order of the model with how many "
                       "there are: {dense: 3, moe: 58}")  # fmt: skip
        elif sum(value.values()) != layers:
            self.fault(at, f"are {sum(value.values())} layers together, num_layer is {layers}; make them equal")
        else:
            self.names, self.each = tuple(map(str, value)), tuple(value.values())

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

    def counts(self, r: int, sizes: list[int], lists: dict[str, list[list[int]]]) -> list[tuple[int, ...]]:
        """Per stage of a round: layers by choice, kind after kind."""
        said = zip(*(lists[name][r] for name in LISTS), strict=True)
        made = zip(kinds_of_chunks(sizes, self.each), said, strict=True)
        return [tuple(chain.from_iterable(counted_by_kind(layers, *three))) for layers, three in made]

    def measured(
        self, memory: Table, pp: int, sizes: list[list[int]], counts: list[list[tuple[int, ...]]]
    ) -> Iterator[Measured]:
        """Head and tail of the first round or of all, and the named stages of every round."""
        for name, stage in (("head_memory", 0), ("tail_memory", pp - 1)):
            value = memory.get(name)
            ends = value if isinstance(value, list) and len(value) == len(sizes) else [value]
            for r, peak in enumerate(ends):
                if self.positive(peak, f"memory_usage.{name}"):
                    yield Measured(
                        stage=stage, layers=sizes[r][stage], counts=counts[r][stage], peak=float(peak), round=r
                    )
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

    def times(self) -> tuple[float, ...] | None:
        table = self.section("time_config", needed=False)
        if not table:
            return None
        values = [("head", table.get("head")), *self.body_times(table.get("body")), ("tail", table.get("tail"))]
        for name, value in values:
            if not fits(value, SCALARS["pipeline.time"]) or (name.startswith("body") and not value):
                self.fault(f"time_config.{name}", f"is {_SHOWN.repr(value)}; write the forward time of one micro batch")
        return None if self.faults else tuple(float(value or 0) for _, value in values)

    def body_times(self, value: object) -> list[tuple[str, Any]]:
        """The time of a layer of every kind, with what it is called."""
        if len(self.each) == 1 and not isinstance(value, dict | list):
            return [("body", value)]
        if isinstance(value, list) and len(value) == len(self.names):
            value = dict(zip(self.names, value, strict=True))
        if not isinstance(value, dict) or value.keys() != set(self.names):
            wanted = ", ".join(f"{name}: ..." for name in self.names)
            self.fault(
                "time_config.body", f"is {_SHOWN.repr(value)}; write the forward time of every kind: {{{wanted}}}"
            )
            return []
        return [(f"body.{name}", value[name]) for name in self.names]

    def profiling(self) -> Profiling | None:
        table = self.section("profiling_config", needed=False)
        if not table:
            return None
        microbatches = self.count(table, "profiling_config", "micro_batch_num")
        folder = table.get("folder_path")
        if not isinstance(folder, str):
            self.fault("profiling_config.folder_path", "is missing; write the folder with the trace_view*.json files")
            return None
        head, tail = (self.words(table.get(f"{key}_layers", list(default)), f"{key}_layers")
                      for key, default in (("head", HEAD), ("tail", TAIL)))  # fmt: skip
        body = table.get("body_layers", list(BODY))
        if len(self.names) == 1:
            return Profiling(folder=folder, microbatches=microbatches, head=head, tail=tail,
                             body=self.words(body, "body_layers"))  # fmt: skip
        if not isinstance(body, dict) or body.keys() != set(self.names):
            wanted = ", ".join(f"{name}: NAME" for name in self.names)
            self.fault("profiling_config.body_layers", f"is {_SHOWN.repr(body)}; write the operators of every kind, "
                       f"{{{wanted}}}; where kinds have the same name, give time_config in its place")  # fmt: skip
            return None
        bodies = tuple(self.words(body[name], f"body_layers.{name}") for name in self.names)
        return Profiling(folder=folder, microbatches=microbatches, head=head, tail=tail, body=bodies[0], bodies=bodies)

    def words(self, value: object, key: str) -> tuple[str, ...]:
        """A name, or a list of names."""
        value = [value] if isinstance(value, str) else value
        if isinstance(value, list) and value and all(isinstance(name, str) and name for name in value):
            return tuple(value)
        self.fault(f"profiling_config.{key}", f"is {_SHOWN.repr(value)}; write a name or a list of names")
        return ()


_KNOWN: dict[str, frozenset[str]] = {
    "pipeline_config": frozenset({"pipeline_num", "num_layer", "offset", "kinds"}),
    "time_config": frozenset({"head", "body", "tail"}),
    "recompute_config": frozenset(LISTS),
    "memory_usage": frozenset({"head_memory", "tail_memory", "body_memories"}),
    "profiling_config": frozenset({"micro_batch_num", "folder_path", "head_layers", "body_layers", "tail_layers"}),
}


def _places(data: Table) -> Iterator[Place]:
    """The tables of an init file, with the keys that are read of each."""
    yield "", data, _KNOWN.keys()
    for name, known in _KNOWN.items():
        if isinstance(table := data.get(name), dict):
            yield f"{name}.", table, known
    usage = data.get("memory_usage")
    if isinstance(usage, dict) and isinstance(body := usage.get("body_memories"), dict):
        yield "memory_usage.body_memories.", body, ("stage_id", "memories")


def _usage(peaks: Sequence[Mapping[int, float]]) -> Table:
    """The memory section that these peaks make."""
    inner = [{stage: peak for stage, peak in one.items() if 0 < stage < max(one)} for one in peaks]
    body = {"stage_id": [list(one) for one in inner], "memories": [list(one.values()) for one in inner]}
    ends = [[one.get(0) for one in peaks], [one[max(one)] for one in peaks]]
    return {"head_memory": ends[0], "tail_memory": ends[1], "body_memories": body}


def _whole(value: object) -> bool:
    return fits(value, SCALARS["pipeline.offset"])


def _nested(value: object) -> list[list[Any]]:
    if not isinstance(value, list) or not value:
        return []
    return value if isinstance(value[0], list) else [value]
