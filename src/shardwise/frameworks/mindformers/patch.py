"""A user's own MindFormers YAML (graph mode, 1.5 to 2.1) given the pipeline of an answer or a plan, in place.

Only what must change is changed: a list that already says the same, in whatever form, stays. What is written is read
back by our own reader and must be the answer, or nothing is given. The keys, the same in all these versions:

- `parallel_config.micro_batch_num` and `seq_split_num`; `pipeline_stage` and other degrees are compared, never changed
- `parallel.pipeline_config.pipeline_interleave` and `.pipeline_scheduler`
- `model.model_config.offset` and `.pp_interleave_num`; an old DeepSeek's `offset` counts `mtp_depth`, too
- `recompute_config.recompute`, `.select_recompute` and `.select_comm_recompute`, with the user's own patterns
- `context.jit_config.jit_level`, and a comment with `LESS_MEMORY`, for the low-memory order, which no key says
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, FileError, InputError
from shardwise.frameworks.imported import ImportDraft
from shardwise.frameworks.mindformers.names import JIT_LEVELS, LESS_MEMORY
from shardwise.frameworks.mindformers.read import STARTED, layers_said, predicting_layers, read_mindformers
from shardwise.frameworks.mindformers.read_recompute import ReadLists
from shardwise.frameworks.mindformers.wanted import LISTS, PipelineSettings, even, flat, settings_from, shape
from shardwise.frameworks.mindformers.write import offset, rows
from shardwise.frameworks.yaml_edit import Value, edited
from shardwise.frameworks.yaml_spans import BREAKS, Way
from shardwise.inputs.files import parse_mapping, read_bytes
from shardwise.inputs.foreign import Foreign
from shardwise.partition.problem import BalanceAnswer
from shardwise.plan.plan import Plan

_MODEL, _PIPELINE, _DEGREES = ("model", "model_config"), ("parallel", "pipeline_config"), "parallel_config"
_AFTER = {
    "offset": ("num_layers", "num_hidden_layers"),
    "pp_interleave_num": ("offset", "num_layers", "num_hidden_layers"),
    "select_recompute": ("recompute",),
    "select_comm_recompute": ("select_recompute", "recompute"),
    "micro_batch_num": ("pipeline_stage",),
    "pipeline_scheduler": ("pipeline_interleave",),
    "recompute_config": ("parallel_config",),
}
"""Behind which neighbours a key goes that is missing."""
_OFF = re.compile(rf"(#[^\n]*\b{LESS_MEMORY}=)0\b")
_SWITCH = f"# low-memory order: start the job with {LESS_MEMORY}=1; no key of this file says it"
_OURS = re.compile(rf"(?:^|(?<=[{BREAKS}])){re.escape(_SWITCH).replace('=1', '=[01]')}(?:\r\n|[{BREAKS}]|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patched:
    """A file before and after."""

    name: str
    before: str
    after: str
    notes: tuple[str, ...] = ()
    """What goes with the change."""

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def diff(self) -> str:
        """What changed, as `diff -u` shows it."""
        before, after = (re.findall(r"[^\n]*\n|[^\n]+$", text) for text in (self.before, self.after))
        shown = difflib.unified_diff(before, after, self.name, f"{self.name} (patched)")
        return "".join(line.rstrip("\r\n") + "\n" for line in shown)


def patch_file(config: str | Path, answer: Plan | BalanceAnswer | str | Path, *, keep_batch: bool = False) -> Patched:
    """A MindFormers YAML with the pipeline of an answer or a plan."""
    text = _text(config)
    return patch(text, settings_from(answer), str(config), keep_batch=keep_batch)


def _text(path: str | Path) -> str:
    """The file as it is, line ends and all."""
    if not re.search(r"\.ya?ml$", str(path), re.IGNORECASE):
        raise FileError(path, "is no YAML by its name; give the MindFormers YAML of the job (.yaml)")
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(path, f"is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def patch(text: str, wanted: PipelineSettings, name: str, *, keep_batch: bool = False) -> Patched:
    """The text with the pipeline that is wanted; `keep_batch`: `micro_batch_num` stays as it is."""
    mark, body = text[: text.startswith("\ufeff")], text.removeprefix("\ufeff")
    data = parse_mapping(body, name)
    _refuse_others(data, wanted, name)
    file = _Beside(data, wanted, name)
    made = edited(body, dict(file.changes(keep_batch=keep_batch)), name, _AFTER)
    after = _switched(made.text, low_memory=wanted.low_memory and wanted.vpp > 1, several=wanted.vpp > 1)
    _read_back(after, file, keep_batch=keep_batch)
    return Patched(name=name, before=text, after=mark + after, notes=(*file.notes, *made.notes))


def _refuse_others(data: Mapping[str, Any], wanted: PipelineSettings, name: str) -> None:
    """A file that is not of graph mode, or of another job than the answer."""
    if "distribute_parallel_config" in data:
        raise InputError("is of MindFormers' form with distribute_parallel_config, which is not read; set "
                         "pipeline_stage_offset, virtual_pipeline_model_parallel_size and the lists by hand",
                         title=name)  # fmt: skip
    if "parallelism" in data and _DEGREES not in data:
        raise InputError("is of PyNative mode, whose stages are ranges of layers; export the plan: --to "
                         "mindformers@2.1-pynative", title=name)  # fmt: skip
    degrees, model = data.get(_DEGREES), data.get("model")
    if not isinstance(degrees, dict) or not isinstance(model, dict) or not isinstance(model.get("model_config"), dict):
        raise InputError(
            "is no MindFormers YAML for training: parallel_config or model.model_config is missing", title=name
        )
    theirs = {"pipeline_stage": wanted.pp, **wanted.degrees}
    faults = [
        Fault(f"{_DEGREES}.{key}", why)
        for key, value in theirs.items()
        if (why := _unlike(degrees.get(key), value, wanted.title))
    ]
    context = data.get("context")
    if isinstance(context, dict) and context.get("mode") in (1, "1", "PYNATIVE_MODE"):
        said = f"is {context['mode']}, PyNative, which runs no pipeline of this form; set 0 (graph mode)"
        faults.append(Fault("context.mode", said))
    own, further = layers_said(Foreign(model["model_config"])), predicting_layers(Foreign(model["model_config"]))
    total = sum(wanted.layers)
    if own and total not in {own, own + further}:
        beside = f", or {own + further} with mtp_depth {further}" if further else ""
        said = f"is {own}{beside}, but {wanted.title} has {total} layers; they must be the same"
        faults.append(Fault("model.model_config.num_layers", said))
    if wanted.pp == 1:
        faults.append(Fault(f"{_DEGREES}.pipeline_stage", "is 1: there is no pipeline to patch"))
    if faults:
        raise InputError(faults, title=name)


def _unlike(now: object, value: int, title: str) -> str:
    """Why a degree is not what it should be; one that is missing is 1 to MindFormers."""
    same = f"{value} in {title}; they must be the same"
    if now is None:
        return "" if value == 1 else f"is missing, which means 1, but {same}"
    if isinstance(now, str):
        return f"is {now!r}, a text; write the number without quotes: it is {same}"
    if not isinstance(now, int) or isinstance(now, bool):
        return f"is {now!r}, no whole number, but {same}"
    return "" if now == value else f"is {now}, but {same}"


class _Beside:
    """A file's values beside those that are wanted."""

    def __init__(self, data: dict[str, Any], wanted: PipelineSettings, name: str) -> None:
        self.data, self.wanted, self.name, self.notes = data, wanted, name, list[str]()
        model = Foreign(data["model"]["model_config"])
        total = sum(wanted.layers)
        self.own = layers_said(model) or total
        self.further = predicting_layers(model)
        add = self.own + self.further - total
        self.spread = (*wanted.layers[:-1], wanted.layers[-1] + add)
        """What `offset` counts."""
        self.layers = (*self.spread[:-1], self.spread[-1] - self.further)
        """What our reader finds."""
        if not layers_said(model):
            self.notes.append(f"the file does not say its number of layers; {total} are taken, as in {wanted.title}")
        self.named = Foreign(data).table("swap_config").switch("swap", default=False)

    def get(self, *way: str) -> Any:  # noqa: ANN401 - what a file holds
        table: Any = self.data
        for key in way:
            table = table.get(key) if isinstance(table, dict) else None
        return table

    def changes(self, *, keep_batch: bool) -> Iterator[tuple[Way, Value]]:
        wanted = self.wanted
        yield from self.pipeline()
        yield from self.offsets()
        now = self.get(_DEGREES, "micro_batch_num")
        if not keep_batch and (1 if now is None else now) != wanted.microbatches:
            yield (_DEGREES, "micro_batch_num"), wanted.microbatches
            self.notes.append(f"micro_batch_num {now} becomes {wanted.microbatches}, and the global batch with it; "
                              "--keep-batch leaves it")  # fmt: skip
        for key in LISTS:
            yield from self.recomputed(key)
        for key in ("select_recompute_exclude", "select_comm_recompute_exclude"):
            if self.get("recompute_config", key):
                self.notes.append(f"recompute_config.{key} takes parts out of the lists and stays as it is")
        level = self.get("context", "jit_config", "jit_level")
        if wanted.low_memory and level not in JIT_LEVELS:
            yield ("context", "jit_config", "jit_level"), JIT_LEVELS[0]

    def pipeline(self) -> Iterator[tuple[Way, Value]]:
        """Chunks of a rank, and the order."""
        wanted, several = self.wanted, self.wanted.vpp > 1
        interleaved = self.get(*_PIPELINE, "pipeline_interleave") or False
        if interleaved != several:
            yield (*_PIPELINE, "pipeline_interleave"), several
        number = self.get(*_MODEL, "pp_interleave_num")
        if (1 if number is None else number) != wanted.vpp and (several or interleaved):
            yield (*_MODEL, "pp_interleave_num"), wanted.vpp
        scheduler = self.get(*_PIPELINE, "pipeline_scheduler")
        if str(scheduler or "1f1b").lower() != wanted.scheduler:
            yield (*_PIPELINE, "pipeline_scheduler"), wanted.scheduler
        pieces = self.get(_DEGREES, "seq_split_num")
        if pieces not in {None, 1}:  # it cuts sequences whatever the scheduler is called
            yield (_DEGREES, "seq_split_num"), 1
            self.notes.append(f"seq_split_num {pieces} becomes 1: {wanted.title} cuts no sequences")

    def offsets(self) -> Iterator[tuple[Way, Value]]:
        table: Value = offset(self.spread, self.wanted.pp, self.wanted.placement)
        now = self.get(*_MODEL, "offset")
        if not any(flat(table)):
            if not now or (isinstance(now, list) and not any(flat(now)) and shape(now) == shape(table)):
                return
            table = table if shape(now) == shape(table) else 0
        if now != table or isinstance(now, bool):
            yield (*_MODEL, "offset"), table

    def recomputed(self, key: str) -> Iterator[tuple[Way, Value]]:
        """One list, or those of the patterns that the file recomputes by."""
        now, value = self.get("recompute_config", key), self.wanted.recompute.get(key, False)
        way: Way = ("recompute_config", key)
        if isinstance(value, dict):
            if now != value:
                yield way, value
        elif isinstance(now, list) and now and all(isinstance(one, str) for one in now):
            if self.counts(True) != self.counts(value):
                yield way, dict.fromkeys(now, self.written(value, None)) if any(self.counts(value)) else False
        elif isinstance(now, dict):
            on = [pattern for pattern, one in now.items() if self.counts(one) is None or any(self.counts(one))]
            for pattern in on or now:
                if self.counts(now[pattern]) != self.counts(value):
                    yield (*way, pattern), self.written(value, now[pattern])
        elif self.counts(now) != self.counts(value):
            yield way, self.written(value, now)

    def counts(self, value: Any) -> tuple[int, ...]:  # noqa: ANN401 - what a file holds
        """Layers of every chunk that a value names, as MindFormers reads it; all -1 where it cannot be read."""
        draft = ImportDraft(framework="mindformers")
        draft.fields |= {"pp": self.wanted.pp, "vpp": self.wanted.vpp}
        draft.fields |= {"schedule": "zb-v"} if self.wanted.placement == "v" else {}
        found = ReadLists(draft, Foreign({}), self.layers, named=self.named).counts(value, "")
        if found is None:
            return (-1,) * len(self.layers)
        return found if isinstance(found, tuple) else self.layers if found else (0,) * len(self.layers)

    def written(self, value: Any, now: Any) -> Value:  # noqa: ANN401 - what a file holds
        """Numbers of every chunk; none at all as false, or as zeros where numbers were."""
        counts = self.counts(value)
        table: Value = rows(counts, self.wanted.pp, self.wanted.placement)
        return table if any(counts) or shape(now) == shape(table) else False


def _switched(text: str, *, low_memory: bool, several: bool) -> str:
    """The comment that says how the job is started, where it must say something else; ours goes with one chunk."""
    started = STARTED.search(text)
    if not several:
        text = _OURS.sub("", text)
    if not low_memory:
        return re.sub(rf"(#[^\n]*\b{LESS_MEMORY}=)1\b", r"\g<1>0", text)
    if started:
        return text
    if _OFF.search(text):
        return _OFF.sub(r"\g<1>1", text, count=1)
    place = re.search(rf"(?:^|(?<=[{BREAKS}]))parallel[ \t]*:", text)
    line = re.search(r"\r\n|[\n\r]", text)
    start = place.start() if place else 0
    return f"{text[:start]}{_SWITCH}{line[0] if line else chr(10)}{text[start:]}"


def _read_back(text: str, file: _Beside, *, keep_batch: bool) -> None:
    """What was written, by our own reader: it must be what is wanted."""
    wanted, name = file.wanted, file.name
    data = parse_mapping(text, name)
    model = data["model"]["model_config"]
    if not layers_said(Foreign(model)):
        model["num_layers"] = file.own
    found = read_mindformers(data, title=name, text=text).strategy
    schedule = "low-memory" if wanted.low_memory else None
    told = [
        ("stages", found.pp, wanted.pp),
        ("chunks", found.vpp, wanted.vpp),
        ("layers", found.layers or even(file.own, found.chunks), file.layers),
        ("micro batches", found.microbatches, found.microbatches if keep_batch else wanted.microbatches),
        ("order", found.schedule, schedule or (found.schedule if found.schedule != "low-memory" else "interleaved")),
    ]
    now = _Beside(data, wanted, name)
    told += [(key, list(now.recomputed(key)), []) for key in LISTS]
    wrong = [f"{what} {left}, not {right}" for what, left, right in told if left != right]
    if wrong:
        raise InputError(
            f"is not what is wanted when it is read back: {'; '.join(wrong)}; nothing is written", title=name
        )
