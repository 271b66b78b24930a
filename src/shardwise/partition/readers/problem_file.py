"""`problem` objects and layer models (SAPP's model JSON) as problems; every number is taken as given.

{"pp", "vp", "mb", "layers", "mem_limit", "low_mem", "seq_split", "recompute_kinds", "model": {"stage_const_mem",
"layers_description": [{"name", "type": HEAD | BODY | TAIL, "time" (forward), "nb_layer", "memory_parameter",
"memory_activation", "memory_select_rec", ...}]}}. Where a file says nothing about a time, backward is twice forward and
recomputing adds a share of the backward (SAPP's coefficients). Of ours, beyond SAPP: several BODY entries are several
kinds in model order, `schedule`, `hop`, `mem_limit` and `stage_const_mem` as a list per rank, `empty_chunks`,
`confidence`, and `measured` in the model: the peaks that it comes from (`measured.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, FileError, InputError
from shardwise.inputs.files import read_mapping
from shardwise.inputs.gate import fits, wrong
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import SCHEDULES
from shardwise.partition.problem import CONFIDENCE, MOST_CHUNKS, Choice, End, Kind, KindRun, Problem, check_problem
from shardwise.partition.readers.keys import Place, passed_over, slips
from shardwise.partition.readers.measured import fit_of, measured_faults

RECOMPUTE = {
    "select": ("memory_select_rec", "select_rec", 0.04),
    "comm": ("memory_select_comm", "select_comm", 0.125),
    "both": ("memory_both_comm_select", "both_comm_select", 0.165),
    "full": ("memory_recompute", "recompute", 0.5),
}
"""Choice -> key of its memory, stem of the keys of its time, and SAPP's default share of the backward."""
_KEYS = frozenset({
    "id", "name", "note", "pp", "vp", "vpp", "mb", "microbatches", "layers", "mem_limit", "low_mem", "seq_split",
    "recompute_kinds", "model", "schedule", "hop", "empty_chunks", "confidence",
})  # fmt: skip
_MODEL_KEYS = frozenset({"name", "stage_const_mem", "layers_description", "measured"})
_ENTRY_KEYS = frozenset({
    "name", "type", "model_name", "nb_layer", "time", "forward_time", "backward_time", "backward_coef", "weight_time",
    "memory_parameter", "memory_activation",
    *(key for memory, stem, _ in RECOMPUTE.values() for key in (memory, f"{stem}_time", f"{stem}_coef")),
})  # fmt: skip
_SAME = (("vp", "vpp"), ("mb", "microbatches"))
_COUNTS = {
    "pp": "Strategy.pp", "vp": "Strategy.vpp", "vpp": "Strategy.vpp", "mb": "Strategy.microbatches",
    "microbatches": "Strategy.microbatches", "layers": "Model.layers", "seq_split": "option.splits",
}  # fmt: skip
"""Key of a whole number -> its row."""
_NUMBERS = frozenset({"time", "nb_layer"})
Table = Mapping[str, Any]
_FREE: dict[str, Callable[[int], tuple[int, ...]]] = {
    "ends": lambda chunks: (0, chunks - 1),
    "any": lambda chunks: tuple(range(min(chunks, MOST_CHUNKS))),
}
"""Chunks that may be empty, by word."""


def _read(path: str | Path) -> Table:
    """What a file holds; of an entry of an instance list its `problem`."""
    data: Table = read_mapping(path)
    inner = data.get("problem")
    return inner if isinstance(inner, dict) else data


def problem_notes(path: str | Path) -> list[str]:
    """What is passed over of a problem file."""
    data = _read(path)
    notes = passed_over([("", data, _KEYS), *model_places(data["model"], "model.")])
    entries = data["model"]["layers_description"]
    body = sum(entry.get("nb_layer", 1) for entry in entries if entry["type"] == "BODY")
    if "layers" in data and body != data["layers"]:
        notes.append(f"layers, {data['layers']}, goes before the {body} of nb_layer")
    return notes


def read_problem(path: str | Path, changes: Table | None = None) -> Problem:
    """A problem file; the whole of an entry of an instance list (with `problem` inside) is taken too.

    `changes` (pp, vp, mb, mem_limit, low_mem, ...) go before what the file says.
    """
    changes = changes or {}
    hidden = {same for one, same in _SAME if one in changes}
    try:
        return problem_from({key: value for key, value in _read(path).items() if key not in hidden} | dict(changes))
    except FileError:
        raise
    except InputError as error:
        raise InputError(error.faults, title=str(path)) from None


def problem_from(data: Table) -> Problem:
    """A `problem` object as a problem; raises InputError with all faults."""
    faults = list(_shape_faults(data))
    if faults:
        raise InputError(faults)
    pp, vpp = data["pp"], data.get("vp", data.get("vpp", 1))
    return make_problem(
        data["model"],
        pp=pp,
        vpp=vpp,
        microbatches=data.get("mb", data.get("microbatches")),
        layers=data.get("layers"),
        limits=_numbers(data.get("mem_limit")),
        low_memory=bool(data.get("low_mem", 0)),
        splits=data.get("seq_split", 1),
        kinds=data.get("recompute_kinds"),
        schedule=data.get("schedule"),
        hop=float(data.get("hop", 0.0)),
        empty=_empty(data.get("empty_chunks", ()), pp * vpp),
        name=str(data.get("id", data.get("name", ""))),
        confidence=float(data.get("confidence", CONFIDENCE)),
    )


def make_problem(
    model: Table,
    *,
    pp: int,
    vpp: int,
    microbatches: int,
    layers: int | None = None,
    limits: tuple[float, ...] = (),
    low_memory: bool = False,
    splits: int = 1,
    kinds: list[str] | None = None,
    schedule: str | None = None,
    hop: float = 0.0,
    empty: tuple[int, ...] = (),
    name: str = "",
    confidence: float = CONFIDENCE,
) -> Problem:
    """A layer model with the settings of one run."""
    parts = model_parts(model, kinds)
    runs = parts["BODY"]
    if layers is not None and len(runs) == 1 and runs[0].count != layers:
        runs = (KindRun(kind=runs[0].kind, count=layers),)
    elif layers is not None and sum(run.count for run in runs) != layers:
        raise InputError(Fault("layers", f"is {layers}, the BODY entries have {sum(r.count for r in runs)} together"))
    problem = Problem(
        pp=pp, vpp=vpp, microbatches=microbatches, runs=runs, head=parts["HEAD"], tail=parts["TAIL"],
        limits=limits, static=_numbers(model.get("stage_const_mem", 0.0)), hop=hop, empty=empty, splits=splits,
        schedule=schedule or default_schedule(vpp, splits, low_memory=low_memory), name=name, fit=fit_of(model),
        confidence=confidence,
    )  # fmt: skip
    check_problem(problem)
    return problem


def default_schedule(vpp: int, splits: int = 1, *, low_memory: bool = False) -> str:
    if vpp == 1:
        return "1f1b" if splits == 1 else "seq-1f1b"
    return "low-memory" if low_memory else "interleaved"


def _empty(value: str | list[int], chunks: int) -> tuple[int, ...]:
    return _FREE[value](chunks) if isinstance(value, str) else tuple(value)


def _numbers(value: float | list[float] | None) -> tuple[float, ...]:
    if value is None:
        return ()
    return tuple(map(float, value)) if isinstance(value, list) else (float(value),)


def model_parts(model: Table, kinds: list[str] | None = None) -> dict[str, Any]:
    """HEAD and TAIL as ends, BODY as runs."""
    entries = list(model["layers_description"])
    ends = {name: [e for e in entries if e.get("type") == name] for name in ("HEAD", "TAIL")}
    body = [e for e in entries if e.get("type") == "BODY"]
    runs = tuple(KindRun(kind=_kind(e, kinds), count=int(e.get("nb_layer", 1))) for e in body)
    return {"BODY": runs, **{name: _end(found) for name, found in ends.items()}}


def _end(entries: list[Table]) -> End:
    times = [_times(e) for e in entries]
    return End(
        f=sum(t[0] for t in times), i=sum(t[1] for t in times), w=sum(t[2] for t in times),
        static=sum(float(e.get("memory_parameter", 0.0)) for e in entries),
        activation=sum(float(e.get("memory_activation", 0.0)) for e in entries),
    )  # fmt: skip


def _times(entry: Table) -> tuple[float, float, float]:
    """F, I and W without recomputing. Half of a backward whose parts are not known is taken as W."""
    f = float(entry.get("forward_time", entry.get("time", 0.0)))
    backward = entry.get("backward_time")
    total = float(backward) if backward is not None else 2.0 * f * (1.0 + float(entry.get("backward_coef", 0.0)))
    w = float(entry.get("weight_time", total / 2))
    return f, total - w, w


def _kind(entry: Table, kinds: list[str] | None) -> Kind:
    f, i, w = _times(entry)
    held = float(entry.get("memory_activation", 0.0))
    choices = [Choice(name="none", f=f, i=i, w=w, activation=held)] if _keeps(entry) else []
    for name, (memory, stem, share) in RECOMPUTE.items():
        # SAPP's rule: a kind of recomputing is in the problem when its memory is known (above 0).
        if float(entry.get(memory, 0.0)) > 0 and (kinds is None or name in kinds):
            extra = entry.get(f"{stem}_time")
            more = float(extra) if extra is not None else (i + w) * float(entry.get(f"{stem}_coef", share))
            choices.append(Choice(name=name, f=f, i=i + more, w=w, activation=float(entry[memory])))
    static = float(entry.get("memory_parameter", 0.0))
    return Kind(name=str(entry.get("name", "BODY")), choices=tuple(choices), static=static)


def _keeps(entry: Table) -> bool:
    """Whether a layer may keep everything: not where only recomputed ones were measured."""
    return "memory_activation" in entry or not any(float(entry.get(memory, 0.0)) for memory, _, _ in RECOMPUTE.values())


def _shape_faults(data: Table) -> Iterator[Fault]:
    if "instances" in data:
        yield Fault("instances", "is a list of problems; write one of its `problem` objects into a file of its own")
        return
    yield from slips([("", data, _KEYS)])
    for one, same in _SAME:
        if one in data and same in data and data[one] != data[same]:
            yield Fault(one, f"is {data[one]!r}, but {same}, which means the same, is {data[same]!r}; leave one out")
    low = data.get("low_mem", 0)
    if low is not None and not isinstance(low, bool) and not fits(low, SCALARS["option.switch"]):
        yield Fault("low_mem", f"is {low!r}; write 0 or 1")
    yield from _count_faults(data)
    kinds = data.get("recompute_kinds")
    if kinds is not None and (not isinstance(kinds, list) or set(map(str, kinds)) - RECOMPUTE.keys()):
        yield Fault("recompute_kinds", f"is {kinds!r}; write a list of {', '.join(RECOMPUTE)}")
    limit = data.get("mem_limit")
    if limit is not None and not _is_numbers(limit, "pipeline.limit"):
        yield Fault(
            "mem_limit", f"is {limit!r}; write the memory of a rank, above 0, or a list with one number per rank"
        )
    if data.get("schedule", "1f1b") not in SCHEDULES:
        yield Fault("schedule", f"is none of {', '.join(SCHEDULES)}")
    hop = data.get("hop", 0.0)
    if not fits(hop, SCALARS["pipeline.time"]):
        yield Fault("hop", f"is {hop!r}; write the time of a message between two ranks, 0 or more")
    if message := wrong(data.get("confidence", CONFIDENCE), SCALARS["option.confidence"]):
        yield Fault("confidence", message)
    empty = data.get("empty_chunks", [])
    words = isinstance(empty, str) and empty in _FREE
    if not words and (not isinstance(empty, list) or any(not fits(chunk, SCALARS["option.none"]) for chunk in empty)):
        said = f"is {empty!r}; write a list of chunks that may be without layers, ends or any"
        yield Fault("empty_chunks", said)
    yield from model_faults(data.get("model"))


def model_places(model: Table, at: str = "") -> Iterator[Place]:
    """The tables of a layer model, with the keys that are read of each."""
    yield at, model, _MODEL_KEYS
    for index, entry in enumerate(model["layers_description"]):
        if isinstance(entry, dict):
            yield f"{at}layers_description.{index}.", entry, _ENTRY_KEYS


def _count_faults(data: Table) -> Iterator[Fault]:
    needed = {"pp"} | ({"mb"} if "microbatches" not in data else set())
    for name in _COUNTS:
        if name not in data:
            if name in needed:
                yield Fault(name, "is missing; a problem says pp, vp, mb, layers, mem_limit and its model")
        elif not fits(data[name], SCALARS[_COUNTS[name]]):
            yield Fault(name, wrong(data[name], SCALARS[_COUNTS[name]]))


def model_faults(model: object) -> Iterator[Fault]:
    """What is wrong with a layer model."""
    if not isinstance(model, dict) or not isinstance(model.get("layers_description"), list):
        yield Fault("model", "must hold layers_description, a list of HEAD, BODY and TAIL entries")
        return
    yield from slips(model_places(model, "model."))
    if not _is_numbers(model.get("stage_const_mem", 0.0), "pipeline.bytes"):
        yield Fault("model.stage_const_mem", "must be a number, or a list with one per rank")
    entries = model["layers_description"]
    if not any(isinstance(e, dict) and e.get("type") == "BODY" for e in entries):
        yield Fault("model.layers_description", "has no entry of type BODY; there is nothing to spread")
    if model.get("measured") is not None:
        yield from measured_faults(model["measured"])
    for index, entry in enumerate(entries):
        yield from _entry_faults(entry, f"model.layers_description.{index}")


def _entry_faults(entry: object, at: str) -> Iterator[Fault]:
    if not isinstance(entry, dict) or entry.get("type") not in ("HEAD", "BODY", "TAIL"):
        yield Fault(at, "must be a table with a type of HEAD, BODY or TAIL")
        return
    if not isinstance(entry.get("name", ""), str):
        yield Fault(f"{at}.name", "must be a text")
    if "time" not in entry and "forward_time" not in entry:
        yield Fault(f"{at}.time", "is missing; give the forward time of one layer")
    for key, value in entry.items():
        read = key in _NUMBERS or key.startswith("memory_") or key.endswith(("_time", "_coef"))
        row = SCALARS["pipeline.coefficient" if key.endswith("_coef") else "pipeline.time"]
        if read and (message := wrong(value, row)):
            yield Fault(f"{at}.{key}", message)
    if message := wrong(entry.get("nb_layer", 1), SCALARS["Model.layers"]):
        yield Fault(f"{at}.nb_layer", message)


def _is_numbers(value: object, row: str) -> bool:
    values = value if isinstance(value, list) and value else [value]
    return all(fits(one, SCALARS[row]) for one in values)
