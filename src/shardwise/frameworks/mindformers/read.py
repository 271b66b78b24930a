"""A MindFormers YAML of graph mode."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.frameworks.imported import ImportDraft, Imported, back
from shardwise.frameworks.mindformers.names import (
    JIT_LEVELS,
    LESS_MEMORY,
    MINDFORMERS_CP_KINDS,
    MINDFORMERS_DEGREES,
    MINDFORMERS_SCHEDULES,
    MINDFORMERS_TYPES,
)
from shardwise.frameworks.mindformers.read_recompute import take_recompute
from shardwise.inputs.foreign import Foreign

_SCHEDULES = back(MINDFORMERS_SCHEDULES)
_CP_KINDS = {**back(MINDFORMERS_CP_KINDS), "hybrid_cp": "all-to-all"}
STARTED = re.compile(rf"#[^\n]*\b{LESS_MEMORY}=1\b")
"""A comment that says how the job is started; the exporter and `balance patch` write one."""
_TYPES = back(MINDFORMERS_TYPES)


def read_mindformers(data: dict[str, Any], *, title: str = "mindformers", text: str = "") -> Imported:
    """Degrees, batch, layers and recompute of every stage, and the model where it is described.

    `text`: the file as it is; a comment may say that the job is started with the switch for the low-memory order.
    """
    draft = ImportDraft(framework="mindformers")
    keys = Foreign(data, "", draft.faults)
    tables = _Tables(keys, less_memory=STARTED.search(text) is not None)
    for ours, theirs in MINDFORMERS_DEGREES.items():
        _degree(draft, tables.config, ours, theirs)
    if "etp" not in draft.fields:
        _degree(draft, tables.model, "etp", MINDFORMERS_DEGREES["etp"])
    for part in (_pipeline, _batch, _sharding, _layers, _recompute, _numbers, _model):
        part(draft, tables)
    draft.take("runtime", "mindformers", "MindFormers")
    draft.gpus = draft.number("dp") * draft.number("tp") * draft.number("pp") * draft.number("cp")
    draft.ignored += [line for table in (*tables, keys) for line in sorted(table.idle())]
    return draft.finish(title)


class _Tables:
    """The tables of the file that are read."""

    def __init__(self, keys: Foreign, *, less_memory: bool) -> None:
        self.less_memory = less_memory
        self.config, self.runner = keys.table("parallel_config"), keys.table("runner_config")
        self.recompute, self.parallel = keys.table("recompute_config"), keys.table("parallel")
        self.pipeline = self.parallel.table("pipeline_config")
        self.optimizer = self.parallel.table("parallel_optimizer_config")
        self.outer = keys.table("model")
        self.model = self.outer.table("model_config")
        self.swap = keys.table("swap_config")
        self.context = keys.table("context")
        self.jit = self.context.table("jit_config")

    def __iter__(self) -> Iterator[Foreign]:
        yield from (self.config, self.runner, self.recompute, self.parallel, self.pipeline, self.optimizer, self.outer)
        yield from (self.swap, self.context, self.jit)


def _degree(draft: ImportDraft, table: Foreign, ours: str, theirs: str) -> None:
    if table.has(theirs):
        table.read.add(theirs)
        draft.take_whole(ours, table.path(theirs), table.data[theirs])


def _batch(draft: ImportDraft, tables: _Tables) -> None:
    size = tables.runner.whole("batch_size", 1, row="Strategy.micro_batch")
    draft.take("micro_batch", size, "runner_config.batch_size")
    # micro_batch_num is a count, and counts only where there is a pipeline.
    passes = (
        tables.config.whole("micro_batch_num", 1, row="Strategy.microbatches")
        if draft.number("pp") > 1
        else tables.runner.whole("gradient_accumulation_steps", 1, row="Strategy.microbatches")
    )
    total = size * passes * draft.number("dp")
    draft.take("global_batch", total, "data_parallel x batch_size x micro_batch_num")
    if tables.model.has("seq_length"):
        draft.take("seq", tables.model.whole("seq_length", row="Strategy.seq"), "model_config.seq_length")


def _sharding(draft: ImportDraft, tables: _Tables) -> None:
    sharded = tables.parallel.switch("enable_parallel_optimizer", default=False)
    draft.take("zero", 1 if sharded else 0, f"parallel.enable_parallel_optimizer {str(sharded).lower()}")
    if sharded:
        group = tables.optimizer.whole("optimizer_weight_shard_size", -1, row="foreign.group")
        if group > 0:
            draft.take("zero_group", group, "optimizer_weight_shard_size")
    if tables.config.has("use_seq_parallel"):
        draft.take("sp", tables.config.switch("use_seq_parallel"), "parallel_config.use_seq_parallel")
    if draft.number("cp") > 1:
        kind = tables.config.text("context_parallel_algo", "colossalai_cp", choices=_CP_KINDS)
        draft.take("cp_kind", _CP_KINDS.get(kind, "ring"), f"context_parallel_algo {kind}")


def _pipeline(draft: ImportDraft, tables: _Tables) -> None:
    if tables.pipeline.switch("pipeline_interleave", default=False):
        draft.take(
            "vpp", tables.model.whole("pp_interleave_num", 1, row="Strategy.vpp"), "model_config.pp_interleave_num"
        )
    name = tables.pipeline.text("pipeline_scheduler", "1f1b").lower()
    if name not in _SCHEDULES:
        ours = "interleaved" if draft.number("vpp") > 1 else "1f1b"
        draft.assume("schedule", ours, f"the nearest to pipeline_scheduler {name}")
        return
    if name == "1f1b" and draft.number("vpp") > 1:
        _interleaved(draft, tables)
    else:
        draft.take("schedule", _SCHEDULES[name], f"pipeline_scheduler {name}")


def _interleaved(draft: ImportDraft, tables: _Tables) -> None:
    """Which of the two interleaved orders: no key says it, the environment of the job does."""
    level = tables.jit.text("jit_level", JIT_LEVELS[0])
    if not tables.less_memory:
        draft.take("schedule", "interleaved", "pipeline_scheduler 1f1b")
        draft.assumed.append(
            f"schedule interleaved: the file does not say whether the job starts with {LESS_MEMORY}=1, which runs the "
            f"low-memory order; if so, give schedule=low-memory, or write # {LESS_MEMORY}=1 into the file"
        )
    elif level in JIT_LEVELS:
        draft.take("schedule", "low-memory", f"a comment with {LESS_MEMORY}=1")
    else:
        why = f"{LESS_MEMORY}=1 (in a comment) has no effect with jit_level {level}; use {' or '.join(JIT_LEVELS)}"
        draft.assume("schedule", "interleaved", why)


def _layers(draft: ImportDraft, tables: _Tables) -> None:
    """`offset` is what every stage holds beyond the even share, one row per chunk of a rank."""
    model, pp, vpp = tables.model, draft.number("pp"), draft.number("vpp")
    offset, extra = model.data.get("offset", 0), predicting_layers(model)
    count = layers_said(model) + extra
    if offset in (0, None, []):
        return
    rows = _rows(draft, offset, "model_config.offset", "pipeline.offset")
    if rows is None:
        return
    if count == extra or len(rows) != vpp:
        message = f"must be {vpp} x {pp} whole numbers (pp_interleave_num x pipeline_stage), and num_layers be given"
        draft.faults.append(Fault("model_config.offset", message))
        return
    even = count // (pp * vpp)
    layers = [[even + item for item in row] for row in rows]
    if draft.fields.get("schedule") == "zb-v" and len(layers) == 2:
        layers[1].reverse()
        draft.assumed.append("offset: the second row is in rank order, so it runs backwards through the model")
    total = sum(map(sum, layers))
    if total != count:
        draft.faults.append(Fault("model_config.offset", f"gives {total} layers, the model has {count}"))
        return
    layers[-1][-1] -= extra
    if extra:
        draft.assumed.append(
            f"offset: counts {extra} layer(s) of mtp_depth with the last chunk; without, it has the rest"
        )
    draft.take("layers", tuple(item for row in layers for item in row), "model_config.offset")


def predicting_layers(model: Foreign) -> int:
    """Layers that predict further tokens: DeepSeek of the old kind counts them among those that `offset` spreads."""
    depth, kind = model.data.get("mtp_depth"), model.data.get("type")
    old = isinstance(kind, str) and kind.lower().startswith("deepseek")
    return depth if old and isinstance(depth, int) and not isinstance(depth, bool) and depth > 0 else 0


def _rows(draft: ImportDraft, value: object, at: str, row: str) -> list[list[int]] | None:
    """A list of one number per stage, or one such list per chunk of a rank; anything else is a fault."""
    pp, vpp = draft.number("pp"), draft.number("vpp")
    rows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    lists = [one for one in rows if isinstance(one, list) and len(one) == pp]
    if len(lists) != len(rows) or len(rows) not in {1, vpp}:
        draft.faults.append(
            Fault(at, f"must be a list of pp {pp} whole numbers, or vpp {vpp} such lists, one per chunk")
        )
        return None
    found = [[draft.whole(f"{at}.{k}", item, row=row) for item in one] for k, one in enumerate(lists)]
    sound = [[item for item in one if item is not None] for one in found]
    return sound if all(len(one) == pp for one in sound) else None


def _recompute(draft: ImportDraft, tables: _Tables) -> None:
    named = tables.swap.switch("swap", default=False)
    take_recompute(draft, tables.recompute, _chunk_layers(draft, tables), named=named)


def _chunk_layers(draft: ImportDraft, tables: _Tables) -> tuple[int, ...] | None:
    """Layers of every chunk, where the file says how many there are."""
    if "layers" in draft.fields:
        return tuple(draft.fields["layers"])
    count, chunks = layers_said(tables.model), draft.number("pp") * draft.number("vpp")
    return (count // chunks,) * chunks if count and count % chunks == 0 else None


def layers_said(model: Foreign) -> int:
    """Layers of the model, by either of its names; 0: the file does not say."""
    count = model.data.get("num_layers") or model.data.get("num_hidden_layers")
    return count if isinstance(count, int) and not isinstance(count, bool) else 0


def _numbers(draft: ImportDraft, tables: _Tables) -> None:
    """Formats of the passes and of the parameters, and whether attention keeps its scores."""
    dtype = _format(draft, tables.model, "compute_dtype")
    if dtype:
        draft.take("dtype", dtype, f"model_config.compute_dtype {tables.model.data['compute_dtype']}")
    params = _format(draft, tables.model, "params_dtype")
    if params and params != "fp32" and params == (dtype or "bf16"):
        draft.take("master", "pure", f"model_config.params_dtype {tables.model.data['params_dtype']}")
    if tables.model.has("use_flash_attention"):
        draft.take("flash", tables.model.switch("use_flash_attention"), "model_config.use_flash_attention")


def _format(draft: ImportDraft, model: Foreign, name: str) -> str:
    """Our word for a format; empty where none is given, or one that we have no word for."""
    if not model.has(name):
        return ""
    theirs = model.text(name).lower()
    if theirs not in _TYPES:
        draft.ignored.append(f"model_config.{name} {theirs}: not known")
    return _TYPES.get(theirs, "")


def _model(draft: ImportDraft, tables: _Tables) -> None:
    """The model's keys are Hugging Face's, with a few spellings of its own."""
    from shardwise.frameworks.huggingface.read import read_config

    model = tables.model
    if not model.data:
        return
    width = {} if model.has("intermediate_size") or not isinstance(model.data.get("hidden_size"), int) else {
        "intermediate_size": _inner_width(model)
    }  # fmt: skip
    kind = model.text("type", "llama").lower().removesuffix("config").rstrip("_") or "llama"
    own = {key: value for key, value in model.data.items() if key not in {*model.read, "offset"}}
    data = {**own, **width, "model_type": kind}
    try:
        read = read_config(data, name="from mindformers")
    except InputError as error:
        draft.assumed.append(f"no model: {error}")
        return
    draft.model = read.model
    draft.understood.append(f"model_config -> {read.model.layers} layers of width {read.model.hidden}")
    draft.ignored += [f"model_config, {note}" for note in read.notes]


def _inner_width(model: Foreign) -> int:
    """Llama's rule: 8/3 of the width, times a factor, rounded up to a multiple."""
    width = int(8 * model.whole("hidden_size", row="Model.hidden") / 3)
    model.read.discard("hidden_size")  # it is the model's, too
    if model.has("ffn_dim_multiplier"):
        width = int((model.number("ffn_dim_multiplier", row="Moe.capacity") + 0.01) * width)
    multiple = model.whole("multiple_of", 256, row="Model.hidden")
    return multiple * ((width + multiple - 1) // multiple)
