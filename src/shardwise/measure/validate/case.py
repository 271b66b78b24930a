"""One measured run as a question that `estimate` can answer, with what was measured; and what a row of each form must
hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A measured run."""

    id: str
    source: str
    """Where it was published, or which measurement it belongs to."""
    gpu: str
    """GPU family as the source names it."""
    precision: str
    complete: bool
    """All inputs that matter are known; the others serve as a range check."""
    composed: bool = False
    """Put together from measured parts, never run as a whole."""
    model: Model
    cluster: Cluster
    strategy: Strategy
    runtime: Runtime
    measured: dict[str, float | bool] = field(default_factory=dict)
    """iteration_seconds, peak_bytes, reserved_bytes, fits and, where measured, their parts."""
    rank: int | None = None
    """The one pipeline rank that was measured, the others faked: compute only, no waiting."""
    memory_kind: str = "allocated"
    """allocated, reserved, or device (with context)."""
    group: str = ""
    """Runs of one group differ only in layout."""
    notes: tuple[str, ...] = ()
    """What was assumed where the source is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A row that cannot be predicted, and why."""

    id: str
    source: str
    reason: str


Row = dict[str, Any]

_SHAPE = "layers hidden heads kv_heads ffn vocab seq mbs"
WHOLE: dict[str, str] = {
    "published": (
        "num_gpus model.layers model.hidden model.heads model.ffn model.vocab model.seq_len parallel.global_batch"
    ),
    "h200_huggingface": _SHAPE,
    "h200_megatron_rank": f"{_SHAPE} tp pp dp micro_batches",
    "h200_real_jobs": "strategy.micro_batch strategy.seq",
    "simumax_runs": "layer_num seq_len micro_batch_size micro_batch_num parallel.world",
}
"""Whole numbers above zero that must be there."""
OPEN: dict[str, str] = {
    "published": (
        "model.kv_heads model.head_dim parallel.micro_batch parallel.tp parallel.pp parallel.dp parallel.cp "
        "parallel.ep parallel.etp parallel.vpp parallel.num_microbatches gpu.gpus_per_node model.moe.experts "
        "model.moe.topk model.moe.moe_ffn model.mla.kv_lora_rank model.mla.qk_head_dim model.mla.v_head_dim"
    ),
    "h200_huggingface": "accum experts top_k expert_ffn",
    "h200_megatron_rank": "vpp",
    "h200_real_jobs": "strategy.global_batch strategy.accumulation",
    "simumax_runs": "parallel.tp parallel.cp parallel.pp parallel.ep parallel.etp parallel.vp",
}
"""Whole numbers above zero that may be null or absent."""
COUNTS: dict[str, str] = {
    "published": (
        "parallel.zero_stage model.mtp_layers model.moe.shared_ffn model.moe.dense_layers model.mla.qk_rope_head_dim "
        "model.mla.q_lora_rank"
    ),
    "h200_huggingface": "shared_experts",
    "h200_megatron_rank": "stage",
    "h200_real_jobs": "strategy.zero",
    "simumax_runs": "",
}
"""Whole numbers that may be zero, null or absent."""
MEASURED: dict[str, str] = {
    "published": "measured.iteration_time_s measured.peak_memory_gb derived.iteration_time_s",
    "h200_huggingface": "step_ms forward_ms backward_ms optimizer_ms peak_allocated after_forward static",
    "h200_megatron_rank": (
        "step_ms forward_backward_ms optimizer_ms peak_allocated peak_forward_backward peak_optimizer static"
    ),
    "h200_real_jobs": "iteration_s peak_allocated peak_reserved",
    "simumax_runs": "real_ms real_ms_derived real_peak_gib real_peak_gib_derived",
}
"""Measured times and sizes: above zero where they are there."""
TEXTS: dict[str, str] = {
    "published": "framework source_key kind model.name model.pos_emb precision.compute",
    "h200_huggingface": "id arch",
    "h200_megatron_rank": "id arch recompute",
    "h200_real_jobs": "id framework",
    "simumax_runs": "case model system_config",
}
THERE: dict[str, str] = {
    "published": (
        "model.kv_heads model.gated_mlp model.tied_embeddings parallel.micro_batch parallel.zero_stage parallel.pp "
        "parallel.dp parallel.sequence_parallel parallel.recompute flash_attention"
    ),
    "h200_huggingface": "",
    "h200_megatron_rank": "stage flash",
    "h200_real_jobs": "iteration_s",
    "simumax_runs": "",
}
"""Fields that must be there; null says that the source does not state them."""
TABLES = {
    "published": "gpu model parallel precision measured",
    "h200_huggingface": "",
    "h200_megatron_rank": "",
    "h200_real_jobs": "strategy",
    "simumax_runs": "parallel",
}
FLAGS: dict[str, str] = {
    "published": (
        "cuda_graphs compile flash_attention model.gated_mlp model.tied_embeddings parallel.sequence_parallel "
        "parallel.async_tp"
    ),
    "h200_huggingface": "compile",
    "h200_megatron_rank": "flash",
    "h200_real_jobs": "",
    "simumax_runs": "",
}
"""true or false; null or absent where the source does not say."""
PRECISIONS = {name: name for name in ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32")} | {"fp16/bf16 mixed": "bf16"}
"""precision.compute -> what products are computed in; both halves of a 16-bit mixture run at one speed."""
LONGEST = 86_400.0
"""Seconds of an iteration: none takes over a day."""
_LARGEST = 10**12
_ABSENT = object()


def row_faults(row: Row, form: str) -> list[str]:
    """Everything that is wrong with a row, a sentence each."""
    tables = [f"{name} must be a table of keys and values" for name in TABLES[form].split() if not _is_table(row, name)]
    found = tables or list(_faults(row, form))
    return found or list(_contradictions(row)) if form == "published" else found


def _contradictions(row: Row) -> Iterator[str]:
    """What a published row's values say against each other; a degree that is null counts as 1."""
    given = row["precision"]["compute"]
    if given not in PRECISIONS:
        yield f"precision.compute is {_said(given)}; it must be one of {', '.join(PRECISIONS)}"
    degrees = {name: int(row["parallel"].get(name) or 1) for name in ("tp", "pp", "cp", "dp")}
    gpus, heads = int(row["num_gpus"]), int(row["model"]["heads"])
    if prod(degrees.values()) != gpus:
        told = " x ".join(f"{name} {value}" for name, value in degrees.items())
        yield f"num_gpus is {gpus:,}, and parallel says {told} = {prod(degrees.values()):,}; they must be equal"
    if heads % degrees["tp"]:
        yield f"parallel.tp is {degrees['tp']}, and model.heads {heads} is no multiple of it"


def _is_table(row: Row, name: str) -> bool:
    return isinstance(row.get(name), dict)


def _faults(row: Row, form: str) -> Iterator[str]:
    present = (*TEXTS[form].split(), *WHOLE[form].split(), *THERE[form].split())
    yield from (f"{name} is missing" for name in present if _at(row, name) is _ABSENT)
    for names, lowest, required in ((WHOLE, 1, True), (OPEN, 1, False), (COUNTS, 0, False)):
        for name in names[form].split():
            value = _at(row, name)
            if value is not _ABSENT and (required or value is not None):
                yield from _whole(name, value, lowest)
    for name in TEXTS[form].split():
        if (value := _at(row, name)) is not _ABSENT and not isinstance(value, str):
            yield f"{name} is {_said(value)}; it must be a text"
    for name in FLAGS[form].split():
        if (value := _at(row, name)) is not _ABSENT and value is not None and not isinstance(value, bool):
            yield f"{name} is {_said(value)}; it must be true or false"
    for name in MEASURED[form].split():
        if (value := _at(row, name)) is not _ABSENT and value is not None:
            yield from _positive(name, value)


def _at(row: Row, name: str) -> Any:  # noqa: ANN401 - a row can hold anything
    """The value of a dotted name; a table that is not there has no values."""
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, dict):
            return _ABSENT
        value = value.get(part, _ABSENT)
    return value


def _whole(name: str, value: object, lowest: int) -> Iterator[str]:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        yield f"{name} is {_said(value)}; it must be a whole number"
    elif not lowest <= value <= _LARGEST:
        yield f"{name} is {_said(value)}; it must be from {lowest} to {_LARGEST:,}"


def _positive(name: str, value: object) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield f"{name} is {_said(value)}; it must be a number"
    elif not 0 < value < 1e30:
        yield f"{name} is {_said(value)}; what is measured is above 0"
    elif value > (most := _most(name)):
        yield f"{name} is {_said(value)}; no iteration takes over a day ({most:,.0f})"


def _most(name: str) -> float:
    """By the unit that a field's name ends with."""
    unit = name.removesuffix("_derived").rpartition("_")[2]
    return {"s": LONGEST, "ms": 1e3 * LONGEST}.get(unit, inf)


def _said(value: object) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
