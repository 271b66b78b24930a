"""SimuMax's switches of a strategy and ours, both ways: what is recomputed, which kernels run, what overlaps; what it
counts itself and writes into its dumps, checked and kept up to date; and what changes nothing here, named.

A dump whose numbers do not follow from its settings was edited or cut: SimuMax would ignore them without a word.
"""

from __future__ import annotations

import re
from typing import Any

from shardwise.inputs.foreign import Foreign
from shardwise.inputs.recompute import MODULES, Recompute

Raw = dict[str, Any]
TEXTS = (
    "parallelism", "recompute_status", "net", "is_recompute", "is_megatron_selective_recompute",
    "use_variance_tail_model", "megatron_recompute_module_set", "te_dummy_wgrad_memory_enabled",
    "te_grouped_linear_dummy_wgrad_memory_enabled", "te_cp_a2a_saves_pre_posta2a_output",
    "te_cp_a2a_save_pre_posta2a_min_version", "te_grouped_linear_dummy_wgrad_min_version",
    "valid_recompute_granularity", "valid_megatron_recompute_modules", "valid_cp_a2a_modes",
)  # fmt: skip
"""Derived keys that say nothing of ours: summaries, and what its own versions switch."""
UNUSED_OF_MODEL = {
    "text": ("model_type", "group_linear_mode"),
    "number": (
        "make_vocab_size_divisible_by", "padded_vocab_size", "orig_vocab_size", "capacity", "topk",
        "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "dense_layers", "qk_head_dim",
        "qk_pos_emb_head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank",
    ),
    "switch": ("moe_pad_expert_input_to_capacity",),
}  # fmt: skip
UNUSED_OF_STRATEGY = {
    "number": ("attention_sparse_ratio",),
    "switch": (
        "use_math_sdp", "use_accm_weight", "overlap_grad_reduce", "enable_dropout", "recompute_variance",
        "cache_groupgemm_col_fp8_inputs", "offload_groupgemm_col_inputs", "enable_straggler_model",
    ),
    "text": (
        "cp_a2a_mode", "moe_dispatcher_policy", "te_dummy_wgrad_min_version", "te_cp_a2a_min_version",
        "te_cp_saved_output_min_version", "tp_net", "cp_net", "pp_net", "dp_net", "ep_net", "etp_net", "edp_net",
    ),
}  # fmt: skip
"""Keys that SimuMax knows and that change nothing here, where nothing else reads them, by kind."""
NUMBERS = ("shard_size", "dp_size", "edp_size", "global_batch_size")


def derived(fields: Raw, world: int) -> dict[str, int]:
    """The numbers that follow from our fields and the world size, by SimuMax's names."""
    inner = fields["tp"] * fields["cp"] * fields["pp"]
    return {
        "shard_size": inner,
        "dp_size": fields["dp"],
        "edp_size": max(1, world // (fields["ep"] * fields["etp"] * fields["pp"])),
        "global_batch_size": fields["global_batch"],
    }


def check_derived(keys: Foreign, fields: Raw, world: int) -> None:
    """A fault for every derived number that does not follow from the settings."""
    for key, value in derived(fields, world).items():
        if keys.has(key) and keys.data[key] != value:
            text = f"is {keys.data[key]}, but {value} follows from the other keys; remove it, or mend the others"
            keys.fault(key, text)


def refreshed(written: Raw, raw: Raw, fields: Raw, world: int) -> Raw:
    """A written strategy without summaries of another one, and with its derived numbers."""
    if written == raw:
        return written
    now = derived(fields, world)
    kept = {key: value for key, value in written.items() if key not in TEXTS}
    return {key: now.get(key, value) for key, value in kept.items()}


def without_effect(unused: list[str]) -> list[str]:
    """The note that names keys which change nothing here."""
    return [f"SimuMax's settings without effect here: {', '.join(unused)}"] if unused else []


_WHOLE = {"attn_only": ("attention",), "mlp_only": ("mlp-norm", "ffn"), "sdp_only": ("core-attention",)}
_SWITCHES = {
    "attn_recompute": "attention",
    "mla_rms_recompute": "attention-norm",
    "mlp_recompute": "ffn",
    "mlp_rms_recompute": "mlp-norm",
}
_MEGATRON = {
    "layernorm": ("attention-norm", "mlp-norm"),
    "mla_up_proj": ("mla-up",),
    "moe_act": ("moe-act",),
    "mlp": ("mlp",),
    "moe": ("mlp",),
    "core_attn": ("core-attention",),
}


def read_recompute(keys: Foreign) -> Recompute:
    """What is recomputed, and in how many leading layers of each stage."""
    granularities = ("full_block", *_WHOLE, "selective_recompute")
    granularity = (
        keys.text("recompute_granularity", "", choices=granularities) if keys.has("recompute_granularity") else ""
    )
    count = keys.whole("recompute_layer_num", 0, row="Recompute.layers")
    modules = _switched(keys)
    if keys.switch("megatron_recompute", default=False):
        return _recompute(False, _megatron(keys), ())
    if not keys.switch("enable_recompute", default=True) or not granularity or not count:
        return Recompute()
    if granularity == "selective_recompute" and not modules:
        keys.fault(
            "recompute_granularity",
            f"selective_recompute needs at least one of {', '.join(_SWITCHES)} to be true, or nothing is recomputed",
        )
    full = granularity == "full_block"
    return _recompute(full, () if full else _WHOLE.get(granularity, modules), (count,))


def _recompute(full: bool, modules: tuple[str, ...], layers: tuple[int, ...]) -> Recompute:
    ordered = tuple(sorted(set(modules), key=MODULES.index))
    return Recompute(full=full, modules=ordered, layers=layers) if full or ordered else Recompute()


def _switched(keys: Foreign) -> tuple[str, ...]:
    on = {name: keys.switch(name, default=False) for name in _SWITCHES}
    for norm, block in (("mla_rms_recompute", "attn_recompute"), ("mlp_rms_recompute", "mlp_recompute")):
        if on[norm] and not on[block]:
            keys.fault(norm, f"is true without {block}; set {block} to true as well, or this to false")
    return tuple(_SWITCHES[name] for name, value in on.items() if value)


def _megatron(keys: Foreign) -> tuple[str, ...]:
    names = keys.data.get("megatron_recompute_modules") or []
    keys.read.add("megatron_recompute_modules")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        keys.fault("megatron_recompute_modules", f"must be a list of {', '.join(_MEGATRON)}")
        return ()
    for name in names:
        if name not in _MEGATRON:
            keys.fault("megatron_recompute_modules", f"{name!r} is none of {', '.join(_MEGATRON)}")
    return tuple(module for name in names for module in _MEGATRON.get(name, ()))


def write_recompute(recompute: Recompute) -> dict[str, Any]:
    """SimuMax's switches; one number of layers for all stages is all that it can say."""
    if not recompute.active:
        return {"enable_recompute": False}
    # 1,000 layers: more than any stage holds, so all of them.
    found: dict[str, Any] = {"enable_recompute": True, "recompute_layer_num": max(recompute.layers, default=1000)}
    if recompute.full:
        return {**found, "recompute_granularity": "full_block"}
    whole = next((name for name, modules in _WHOLE.items() if modules == recompute.modules), "selective_recompute")
    switches = {name: module in recompute.modules for name, module in _SWITCHES.items()}
    return {**found, "recompute_granularity": whole, **(switches if whole == "selective_recompute" else {})}


_RUNTIME_SWITCHES: dict[str, tuple[bool, dict[str, str]]] = {
    "cross_entropy_loss_fusion": (False, {"kernels.loss": "fused"}),
    "use_fused_norm": (True, {"kernels.norm": "eager"}),
    "use_fused_swiglu": (True, {"kernels.activation": "eager"}),
    "use_fused_grad_accumulation": (True, {"kernels.weight_grad_fusion": "false"}),
    "pp_comm_async": (True, {"overlap.p2p": "0"}),
}
"""Its switches: what SimuMax takes where they are not given, and what the other value changes."""
_NEVER = {
    f"overlap.{kind}": "0" for kind in ("tp", "cp", "weight_gather", "grad_reduce", "param_gather")
}  # fmt: skip
"""SimuMax charges this communication in full, whatever its switches say, and its measured runs hid none of it."""


_BEFORE_020 = {"memory.output_gradient": "false"}
"""Its model and its measured runs are of a Megatron-Core that makes the output layer's unused gradient anew."""


def read_runtime(keys: Foreign) -> str:
    """The runtime by name, with what the file changes about it."""
    base = _base(keys)
    changes = dict(_NEVER) | (_BEFORE_020 if base == "megatron" else {})
    for name, (usual, found) in _RUNTIME_SWITCHES.items():
        if keys.switch(name, default=usual) != usual:
            changes |= found
    kept = not keys.switch("dispatch_probs", default=False)
    if kept == (base == "megatron"):  # the catalog's `megatron` sends probabilities with the tokens, the older does not
        changes["kernels.expert_output_kept"] = str(kept).lower()
    if keys.has("mem_factor"):
        lost = f"{1 / keys.number('mem_factor', row='simumax.mem_factor') - 1:.6g}"
        # one figure for all: no gaps beside it
        changes |= {"memory.fragmentation": lost, "memory.lasting_fragmentation": lost, "memory.loss_gaps": "0"}
    return "+".join((base, *(f"{path}={value}" for path, value in changes.items())))


def _base(keys: Foreign) -> str:
    """Transformer Engine from 2.3 on keeps unused weight gradients. SimuMax leaves them out where te_version is not
    given; the runs on A100 that its files of no version describe have them.
    """
    version = keys.text("te_version", "") if keys.has("te_version") else ""
    digits = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", version)
    if version and not digits:
        keys.fault("te_version", f"{version!r} is not a version; write for example 2.8.0")
    return "megatron-2024" if digits and (int(digits[1]), int(digits[2])) < (2, 3) else "megatron"


def write_runtime(name: str) -> dict[str, Any]:
    """SimuMax's switches for a runtime."""
    base, *texts = name.split("+")
    changes = dict(text.partition("=")[::2] for text in texts)
    found: dict[str, Any] = {"te_version": "2.3.0" if base == "megatron" else "2.2.0"}
    found |= {key: usual != (own.items() <= changes.items()) for key, (usual, own) in _RUNTIME_SWITCHES.items()}
    found["dispatch_probs"] = changes.get("kernels.expert_output_kept", str(base != "megatron").lower()) == "false"
    if "memory.lasting_fragmentation" in changes:
        found["mem_factor"] = round(1 / (1 + float(changes["memory.lasting_fragmentation"])), 6)
    return found
