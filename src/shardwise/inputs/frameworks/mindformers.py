"""A MindFormers YAML of graph mode."""

from __future__ import annotations

from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.inputs.foreign import Foreign
from shardwise.inputs.frameworks.imported import Draft, Imported
from shardwise.inputs.names import (
    MINDFORMERS_CP_KINDS,
    MINDFORMERS_DEGREES,
    MINDFORMERS_PATTERNS,
    MINDFORMERS_SCHEDULES,
    back,
)
from shardwise.inputs.recompute import MODULES, Recompute

_SCHEDULES = back(MINDFORMERS_SCHEDULES)
_CP_KINDS = {**back(MINDFORMERS_CP_KINDS), "hybrid_cp": "all-to-all"}
_PATTERNS = back(MINDFORMERS_PATTERNS)


def read_mindformers(data: dict[str, Any], *, title: str = "mindformers") -> Imported:
    """Degrees, batch, layers and recompute of every stage, and the model where it is described."""
    draft = Draft(framework="mindformers")
    keys = Foreign(data, "", draft.faults)
    config = keys.table("parallel_config")
    for ours, theirs in MINDFORMERS_DEGREES.items():
        if config.has(theirs):
            draft.take_whole(ours, f"parallel_config.{theirs}", config.data[theirs])
    model = keys.table("model").table("model_config")
    if model.has(MINDFORMERS_DEGREES["etp"]) and "etp" not in draft.fields:
        name = MINDFORMERS_DEGREES["etp"]
        draft.take_whole("etp", f"model_config.{name}", model.data[name])
    _pipeline(draft, keys, model)
    _batch(draft, keys, config, model)
    _sharding(draft, keys, config)
    _recompute(draft, keys.table("recompute_config"))
    _model(draft, model.data)
    _layers(draft, model)
    draft.take("runtime", "mindformers", "MindFormers")
    draft.gpus = draft.number("dp") * draft.number("tp") * draft.number("pp") * draft.number("cp")
    used = {"parallel_config", "model", "runner_config", "recompute_config", "parallel"}
    draft.ignored += [key for key in sorted(data) if key not in used]
    return draft.finish(title)


def _batch(draft: Draft, keys: Foreign, config: Foreign, model: Foreign) -> None:
    runner = keys.table("runner_config")
    size = draft.whole("runner_config.batch_size", runner.data.get("batch_size", 1)) or 1
    number = draft.whole("parallel_config.micro_batch_num", config.data.get("micro_batch_num", 1)) or 1
    draft.take("micro_batch", size, "runner_config.batch_size")
    # micro_batch_num is a count, and counts only where there is a pipeline.
    steps = draft.whole("runner_config.gradient_accumulation_steps", runner.data.get("gradient_accumulation_steps", 1))
    passes = number if draft.number("pp") > 1 else steps or 1
    total = size * passes * draft.number("dp")
    draft.take("global_batch", total, "data_parallel x batch_size x micro_batch_num")
    if model.has("seq_length"):
        draft.take_whole("seq", "model_config.seq_length", model.data["seq_length"])


def _sharding(draft: Draft, keys: Foreign, config: Foreign) -> None:
    parallel = keys.table("parallel")
    sharded = parallel.data.get("enable_parallel_optimizer") is True
    draft.take("zero", 1 if sharded else 0, f"parallel.enable_parallel_optimizer {str(sharded).lower()}")
    group = parallel.table("parallel_optimizer_config").data.get("optimizer_weight_shard_size", -1)
    if sharded and group not in {-1, None}:
        draft.take_whole("zero_group", "optimizer_weight_shard_size", group)
    if config.has("use_seq_parallel"):
        draft.take("sp", config.data["use_seq_parallel"] is True, "parallel_config.use_seq_parallel")
    kind = config.data.get("context_parallel_algo")
    if draft.number("cp") > 1:
        draft.take("cp_kind", _CP_KINDS.get(str(kind), "ring"), f"context_parallel_algo {kind}")


def _pipeline(draft: Draft, keys: Foreign, model: Foreign) -> None:
    pipeline = keys.table("parallel").table("pipeline_config")
    if pipeline.data.get("pipeline_interleave") is True:
        draft.take_whole("vpp", "model_config.pp_interleave_num", model.data.get("pp_interleave_num", 1))
    name = str(pipeline.data.get("pipeline_scheduler", "1f1b")).lower()
    if name not in _SCHEDULES:
        ours = "interleaved" if draft.number("vpp") > 1 else "1f1b"
        draft.assume("schedule", ours, f"the nearest to pipeline_scheduler {name}")
        return
    ours = "interleaved" if name == "1f1b" and draft.number("vpp") > 1 else _SCHEDULES[name]
    draft.take("schedule", ours, f"pipeline_scheduler {name}")


def _layers(draft: Draft, model: Foreign) -> None:
    """`offset` is what every stage holds beyond the even share, one row per chunk of a rank."""
    offset, pp, vpp = model.data.get("offset", 0), draft.number("pp"), draft.number("vpp")
    count = model.data.get("num_layers") or model.data.get("num_hidden_layers")
    if offset in {0, None} if not isinstance(offset, list) else not offset:
        return
    rows = offset if isinstance(offset[0], list) else [offset]
    flat = [item for row in rows for item in (row if isinstance(row, list) else [None])]
    if not isinstance(count, int) or len(flat) != pp * vpp or not all(isinstance(item, int) for item in flat):
        message = f"{offset} must be {vpp} x {pp} whole numbers (pp_interleave_num x pipeline_stage)"
        draft.faults.append(Fault("model_config.offset", message))
        return
    even = count // (pp * vpp)
    layers = [[even + item for item in row] for row in rows]
    if draft.fields.get("schedule") == "zb-v" and len(layers) == 2:
        layers[1].reverse()
        draft.assumed.append("offset: the second row is in rank order, so it runs backwards through the model")
    total = sum(map(sum, layers))
    if total != count:
        draft.faults.append(Fault("model_config.offset", f"{offset} gives {total} layers, the model has {count}"))
        return
    draft.take("layers", tuple(item for row in layers for item in row), "model_config.offset")


def _recompute(draft: Draft, keys: Foreign) -> None:
    full, selective = keys.data.get("recompute", False), keys.data.get("select_recompute", False)
    comm = keys.data.get("select_comm_recompute", False)
    modules = (*_selected(draft, selective), *(("comm",) if comm else ()))
    if full:
        draft.take("recompute", Recompute(full=True, layers=_counts(draft, full)), f"recompute_config.recompute {full}")
        draft.ignored += [f"select_recompute {selective}: full recompute covers it"] if selective is True else []
        if isinstance(full, list) and selective:
            draft.assumed.append("select_recompute beside a list for full recompute cannot be said; the list is taken")
    elif modules:
        chosen = next(iter(selective.values()), True) if isinstance(selective, dict) else selective or comm
        value = Recompute(modules=tuple(sorted(modules, key=MODULES.index)), layers=_counts(draft, chosen))
        draft.take("recompute", value, "recompute_config.select_recompute")


def _selected(draft: Draft, selective: Any) -> set[str]:  # noqa: ANN401 - a truth value, lists, or patterns of cells
    if not isinstance(selective, dict):
        return {"activation"} if selective else set()
    draft.ignored += [f"select_recompute {pattern}: not known" for pattern in selective if pattern not in _PATTERNS]
    return {_PATTERNS[pattern] for pattern in selective if pattern in _PATTERNS}


def _counts(draft: Draft, value: Any) -> tuple[int, ...]:  # noqa: ANN401 - a truth value, a number, a list or rows
    if isinstance(value, bool) or value is None or isinstance(value, dict):
        return ()
    rows = [row if isinstance(row, list) else [row] for row in value] if isinstance(value, list) else [[value]]
    if draft.fields.get("schedule") == "zb-v" and len(rows) == 2:
        rows[1] = rows[1][::-1]  # in rank order, as the offsets are
    flat = [item for row in rows for item in row]
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in flat):
        return ()
    return tuple(flat)


def _model(draft: Draft, config: dict[str, Any]) -> None:
    """The model's keys are Hugging Face's, with a few spellings of its own."""
    from shardwise.inputs.huggingface import read_config

    if not config:
        return
    data = {
        **config,
        "model_type": str(config.get("type", "llama")).lower().removesuffix("config").rstrip("_") or "llama",
    }
    if "intermediate_size" not in data and isinstance(data.get("hidden_size"), int):
        data["intermediate_size"] = _inner_width(data)
    try:
        read = read_config(data, name="from mindformers")
    except InputError as error:
        draft.assumed.append(f"no model: {error}")
        return
    draft.model = read.model
    draft.understood.append(f"model_config -> {read.model.layers} layers of width {read.model.hidden}")


def _inner_width(data: dict[str, Any]) -> int:
    """Llama's rule: 8/3 of the width, times a factor, rounded up to a multiple."""
    width = int(8 * data["hidden_size"] / 3)
    factor, multiple = data.get("ffn_dim_multiplier"), data.get("multiple_of", 256)
    if isinstance(factor, int | float):
        width = int((factor + 0.01) * width)
    return int(multiple * ((width + multiple - 1) // multiple)) if isinstance(multiple, int) and multiple > 0 else width
