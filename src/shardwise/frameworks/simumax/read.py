"""SimuMax's model and strategy files, read and written back (its system files: `simumax_system`).

What its files hold beyond our fields is kept as it was, so that a file read and written is the same file. Inputs
that SimuMax takes and answers with a wrong number are refused here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwise.frameworks.simumax.switches import (
    NUMBERS,
    TEXTS,
    UNUSED_OF_MODEL,
    UNUSED_OF_STRATEGY,
    check_derived,
    read_recompute,
    read_runtime,
    refreshed,
    without_effect,
    write_recompute,
    write_runtime,
)
from shardwise.frameworks.simumax.system import SimumaxEfficiency, SimumaxSystem, is_system, read_system, write_system
from shardwise.inputs.foreign import Foreign
from shardwise.inputs.model import Mla, Model, Moe
from shardwise.inputs.strategy import Strategy

__all__ = [
    "SimumaxEfficiency", "SimumaxModel", "SimumaxStrategy", "SimumaxSystem", "is_model", "is_strategy", "is_system",
    "read_model", "read_strategy", "read_system", "write_model", "write_strategy", "write_system",
]  # fmt: skip

Raw = dict[str, Any]

_MODEL_KEYS = (
    "hidden_size", "head_num", "kv_head_num", "head_size", "intermediate_size", "layer_num", "vocab_size", "use_swiglu",
    "model_type", "model_name", "attention_type", "expert_num", "topk", "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size", "dense_layers", "moe_pad_expert_input_to_capacity", "capacity",
    "group_linear_mode", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank",
    "make_vocab_size_divisible_by", "padded_vocab_size", "orig_vocab_size",
)  # fmt: skip
_DERIVED = ("_numel", "_elements")
"""Endings of what SimuMax counts itself and writes into its dumps of a model, such as param_numel."""
_STRATEGY_KEYS = (
    "seq_len", "micro_batch_size", "micro_batch_num", "dtype", "fp8", "world_size", "tp_size", "cp_size", "pp_size",
    "ep_size", "etp_size", "cp_comm_type", "cp_a2a_mode", "order_of_paralielism", "moe_dispatcher_policy",
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "enable_sequence_parallel",
    "interleaving_size", "microbatch_group_size_per_vp_stage", "pp_comm_async", "zero_state", "grad_reduce_in_bf16",
    "use_fp32_accum_grad", "attention_sparse_ratio", "use_flash_sdp", "use_math_sdp", "use_fused_norm",
    "use_fused_swiglu", "use_fused_grad_accumulation", "use_accm_weight", "cross_entropy_loss_fusion",
    "overlap_grad_reduce", "enable_dropout", "enable_recompute", "recompute_granularity", "recompute_layer_num",
    "attn_recompute", "mla_rms_recompute", "mlp_recompute", "mlp_rms_recompute", "recompute_variance",
    "megatron_recompute", "megatron_recompute_modules", "cache_groupgemm_col_fp8_inputs",
    "offload_groupgemm_col_inputs", "dispatch_probs", "te_version", "te_dummy_wgrad_min_version",
    "te_cp_a2a_min_version", "te_cp_saved_output_min_version", "tp_net", "cp_net", "pp_net", "dp_net", "ep_net",
    "etp_net", "edp_net", "enable_straggler_model", "mem_factor",
)  # fmt: skip
_CP_KINDS = {"a2a": "all-to-all", "all_gather": "all-gather", "ring": "ring"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimumaxModel:
    """A SimuMax model file."""

    model: Model
    """The model."""
    raw: Raw
    """The file as it was."""
    notes: tuple[str, ...] = ()
    """Sentences for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimumaxStrategy:
    """A SimuMax strategy file."""

    strategy: Strategy
    """The strategy."""
    raw: Raw
    """The file as it was."""
    given: frozenset[str]
    """Our fields that the file gives; dp follows from its world size."""
    notes: tuple[str, ...] = ()
    """Sentences for the user."""


def is_model(data: Raw) -> bool:
    return not is_system(data) and bool({"head_num", "kv_head_num", "layer_num", "use_swiglu"} & data.keys())


def is_strategy(data: Raw) -> bool:
    own = {
        "tp_size",
        "pp_size",
        "world_size",
        "micro_batch_num",
        "seq_len",
        "zero_state",
        "ep_size",
        "enable_recompute",
    }
    return bool(own & data.keys())


def read_model(data: Raw, *, title: str = "model") -> SimumaxModel:
    """A model from SimuMax's keys; everything that is needed in practice must be there."""
    keys = Foreign(data)
    derived = sorted(key for key in data if key.endswith(_DERIVED))
    keys.refuse_unknown([*_MODEL_KEYS, *derived])
    latent = keys.text("attention_type", "mha", choices=("mha", "mla")) == "mla"
    model = Model(
        name=keys.text("model_name", "model"),
        layers=keys.whole("layer_num", row="Model.layers"),
        hidden=keys.whole("hidden_size", row="Model.hidden"),
        heads=keys.whole("head_num", row="Model.heads"),
        kv_heads=keys.whole("kv_head_num", row="Model.kv_heads"),
        head_size=keys.whole("head_size", row="Model.head_size"),
        ffn=keys.whole("intermediate_size", row="Model.hidden"),
        vocab=keys.whole("vocab_size", row="Model.vocab"),
        activation="swiglu" if keys.switch("use_swiglu") else "gelu",
        mla=_mla(keys) if latent else None,
        moe=_moe(keys) if keys.whole("expert_num", 1, row="Moe.experts") > 1 else None,
    )
    if model.moe and model.moe.top_k > model.moe.experts:
        keys.fault("topk", f"{model.moe.top_k} is more than the {model.moe.experts} experts; lower it")
    if model.moe and model.moe.first_dense > model.layers:
        keys.fault("dense_layers", f"{model.moe.first_dense} is more than the {model.layers} layers; lower it")
    if model.heads % model.kv_heads:
        keys.fault("kv_head_num", f"{model.kv_heads} does not divide head_num {model.heads}; make it a divisor")
    unused = keys.unused(UNUSED_OF_MODEL, "simumax.counted")
    keys.finish(title)
    notes = [f"not read, since they follow from the rest: {', '.join(derived)}"] if derived else []
    if latent and model.kv_heads != model.heads:
        notes.append(f"kv_head_num = {model.kv_heads} is without effect: latent attention has keys for every head")
    return SimumaxModel(model=model, raw=dict(data), notes=(*notes, *without_effect(unused)))


def _mla(keys: Foreign) -> Mla:
    return Mla(
        kv_rank=keys.whole("kv_lora_rank", row="Mla.kv_rank"),
        nope_size=keys.whole("qk_head_dim", row="Mla.nope_size"),
        rope_size=keys.whole("qk_pos_emb_head_dim", row="Model.head_size"),
        value_size=keys.whole("v_head_dim", row="Mla.value_size"),
        q_rank=keys.whole("q_lora_rank", 0, row="Mla.q_rank"),
    )


def _moe(keys: Foreign) -> Moe:
    padded = keys.switch("moe_pad_expert_input_to_capacity", default=True)
    capacity = keys.number("capacity", 1.0, row="Moe.capacity")
    return Moe(
        experts=keys.whole("expert_num", row="Moe.experts"),
        top_k=keys.whole("topk", row="Moe.top_k"),
        expert_ffn=keys.whole("moe_ffn_hidden_size", keys.whole("intermediate_size"), row="Moe.expert_ffn"),
        shared_ffn=keys.whole("moe_shared_expert_intermediate_size", 0, row="Moe.shared_ffn"),
        first_dense=keys.whole("dense_layers", 0, row="Moe.first_dense"),
        capacity=capacity if padded else None,
    )


def write_model(model: Model, raw: Raw | None = None) -> Raw:
    """SimuMax's keys for a model; with the file it came from, only what changed since is changed."""
    now = _model_keys(model)
    return now if raw is None else _changed(raw, now, _model_keys(read_model(raw).model))


def _model_keys(model: Model) -> Raw:
    keys: Raw = {
        "model_name": model.name, "model_type": "moe" if model.moe else "dense",
        "attention_type": "mla" if model.mla else "mha", "hidden_size": model.hidden, "head_num": model.heads,
        "kv_head_num": model.kv_heads, "head_size": model.head_size, "intermediate_size": model.ffn,
        "layer_num": model.layers, "vocab_size": model.vocab, "use_swiglu": model.gated,
    }  # fmt: skip
    if model.mla:
        keys |= {
            "kv_lora_rank": model.mla.kv_rank, "qk_head_dim": model.mla.nope_size,
            "qk_pos_emb_head_dim": model.mla.rope_size, "v_head_dim": model.mla.value_size,
            "q_lora_rank": model.mla.q_rank or None,
        }  # fmt: skip
    if model.moe:
        keys |= {
            "expert_num": model.moe.experts, "topk": model.moe.top_k, "moe_ffn_hidden_size": model.moe.expert_ffn,
            "moe_shared_expert_intermediate_size": model.moe.shared_ffn or None, "dense_layers": model.moe.first_dense,
            "moe_pad_expert_input_to_capacity": model.moe.capacity is not None, "capacity": model.moe.capacity or 1,
        }  # fmt: skip
    return keys


def _changed(raw: Raw, now: Raw, then: Raw) -> Raw:
    return {**raw, **{key: value for key, value in now.items() if then.get(key) != value}}


def read_strategy(data: Raw, *, title: str = "strategy") -> SimumaxStrategy:
    """A strategy from SimuMax's keys, all its faults at once."""
    keys = Foreign(data)
    keys.refuse_unknown([*_STRATEGY_KEYS, *NUMBERS, *TEXTS])
    keys.text("order_of_paralielism", "tp-cp-ep-dp-pp", choices=("tp-cp-ep-dp-pp",))
    tp, cp, pp = (keys.whole(f"{axis}_size", 1, row="Strategy.tp") for axis in ("tp", "cp", "pp"))
    world = keys.whole("world_size", 8, row="Cluster.gpus")
    if world % (tp * cp * pp):
        keys.fault(
            "world_size",
            f"{world} is not a multiple of tp {tp} x cp {cp} x pp {pp} = {tp * cp * pp}; change one of them",
        )
    dp = max(1, world // (tp * cp * pp))
    mbs, vpp = (
        keys.whole("micro_batch_size", row="Strategy.micro_batch"),
        keys.whole("interleaving_size", 1, row="Strategy.vpp"),
    )
    zero = keys.whole("zero_state", 1, row="Strategy.zero")
    dtype = keys.text("dtype", "bf16", choices=("bf16", "fp16", "fp32"))
    fp8, bf16_grad = keys.switch("fp8", default=False), keys.switch("grad_reduce_in_bf16", default=False)
    fp32_grad = keys.switch("use_fp32_accum_grad", default=True) and not bf16_grad
    cp_kind = keys.text("cp_comm_type", "a2a", choices=_CP_KINDS)
    fields: Raw = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "vpp": vpp,
        "ep": keys.whole("ep_size", 1, row="Strategy.ep"), "etp": keys.whole("etp_size", 1, row="Strategy.etp"),
        "sp": keys.switch("enable_sequence_parallel", default=True), "cp_kind": _CP_KINDS.get(cp_kind, "all-to-all"),
        "zero": zero, "micro_batch": mbs,
        "global_batch": mbs * keys.whole("micro_batch_num", row="Strategy.microbatches") * dp,
        "seq": keys.whole("seq_len", row="Strategy.seq"), "schedule": "interleaved" if vpp > 1 else "1f1b",
        "group": keys.whole("microbatch_group_size_per_vp_stage", 0, row="Strategy.group"),
        "recompute": read_recompute(keys),
        "first_layers": keys.whole("num_layers_in_first_pipeline_stage", 0, row="Strategy.first_layers"),
        "last_layers": keys.whole("num_layers_in_last_pipeline_stage", 0, row="Strategy.last_layers"),
        "count_embedding": keys.switch("account_for_embedding_in_pipeline_split", default=False),
        "count_head": keys.switch("account_for_loss_in_pipeline_split", default=False),
        "dtype": "fp8" if fp8 else dtype, "grad_dtype": "fp32" if fp32_grad else "bf16",
        "flash": keys.switch("use_flash_sdp", default=True), "runtime": read_runtime(keys),
    }  # fmt: skip
    check_derived(keys, fields, world)
    notes = _strategy_notes(keys, zero, world)
    unused = keys.unused(UNUSED_OF_STRATEGY, "simumax.number")
    unused += keys.given(key for key in (*TEXTS, "megatron_recompute_modules") if key not in keys.read)
    keys.finish(title)
    return SimumaxStrategy(
        strategy=Strategy(**fields), raw=dict(data), given=frozenset(fields), notes=(*notes, *without_effect(unused))
    )


def _strategy_notes(keys: Foreign, zero: int, world: int) -> tuple[str, ...]:
    notes = []
    if zero > 1:
        notes.append(f"zero_state {zero} is taken at its word; SimuMax itself does not model it")
    if world > 8 and keys.switch("enable_straggler_model", default=True):
        notes.append(
            "enable_straggler_model = true: SimuMax's slow-down for many nodes is not taken over; set straggler for an "
            "allowance"
        )
    return tuple(notes)


def write_strategy(strategy: Strategy, raw: Raw | None = None) -> Raw:
    """SimuMax's keys for a strategy; with the file it came from, only what changed since is changed."""
    now = _strategy_keys(strategy)
    if raw is None:
        return now
    written = _changed(raw, now, _strategy_keys(read_strategy(raw).strategy))
    return refreshed(written, raw, {name: getattr(strategy, name) for name in Strategy.__slots__}, strategy.world)


def _strategy_keys(strategy: Strategy) -> Raw:
    theirs = {ours: name for name, ours in _CP_KINDS.items()}
    optional = {
        "num_layers_in_first_pipeline_stage": strategy.first_layers,
        "num_layers_in_last_pipeline_stage": strategy.last_layers,
        "microbatch_group_size_per_vp_stage": strategy.group,
    }
    return {
        "seq_len": strategy.seq, "micro_batch_size": strategy.micro_batch, "micro_batch_num": strategy.microbatches,
        "dtype": "bf16" if "fp8" in strategy.dtype else strategy.dtype, "fp8": "fp8" in strategy.dtype,
        "world_size": strategy.world, "tp_size": strategy.tp, "cp_size": strategy.cp, "pp_size": strategy.pp,
        "ep_size": strategy.ep, "etp_size": strategy.etp, "cp_comm_type": theirs[strategy.cp_kind],
        "enable_sequence_parallel": strategy.sp, "interleaving_size": strategy.vpp, "zero_state": strategy.zero,
        "grad_reduce_in_bf16": strategy.grad_dtype == "bf16", "use_flash_sdp": strategy.flash,
        "account_for_embedding_in_pipeline_split": strategy.count_embedding,
        "account_for_loss_in_pipeline_split": strategy.count_head,
        **write_runtime(strategy.runtime),
        **{key: value or None for key, value in optional.items()},
        **write_recompute(strategy.recompute),
    }  # fmt: skip
