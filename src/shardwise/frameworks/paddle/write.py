"""A plan as the trainer arguments of PaddleNLP, for its auto-parallel pre-training program.

Its parser refuses keys that it does not know, so the header stands in the script beside the JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardwise.frameworks.launcher import PORT, STEPS, starting
from shardwise.frameworks.nearest import (
    choose,
    even_layers,
    gemmas,
    known_modules,
    known_schedule,
    recomputed,
    without,
    without_lora,
)
from shardwise.frameworks.target import ExportDraft, File
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.serialise import to_json

PADDLE_DEGREES = {
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "vpp": "virtual_pp_degree",
}
PADDLE_CP_KINDS = {"ring": "context_parallel_degree", "all-to-all": "sep_parallel_degree"}
PADDLE_SCHEDULES = {"1f1b": "1F1B", "interleaved": "VPP", "gpipe": "FThenB", "zb-h1": "ZBH1", "zb-v": "ZBVPP"}
PADDLE_RECOMPUTED = {"core-attention": "core_attn", "attention": "full_attn"}
"""`recompute_granularity` of one module of ours."""


Settings = dict[str, Any]
_DATA = Path(__file__).parents[1] / "shardwise_data.py"
_RUNNER = (
    "python3 -m paddle.distributed.launch --nnodes $NUM_NODES --rank ${NODE_RANK:-0} \\",
    f"    --master ${{MASTER_ADDR:-127.0.0.1}}:${{MASTER_PORT:-{PORT}}} --nproc_per_node $GPUS_PER_NODE \\",
    "    --log_dir output/log \\",
)


def write(draft: ExportDraft) -> tuple[File, ...]:
    """`paddle.json`, the model's `config.json`, and what starts the program of PaddleNLP's own folder."""
    for bend in (without_lora, _pipeline, _states, _axes, _recompute, _numbers, _model):
        bend(draft)
    draft.settle()
    draft.by_hand.append("TOKENIZER: the folder of a tokenizer, for the first sample that the program prints")
    needs = (
        f"{draft.speaks} and numpy; PADDLENLP names a checkout of it, TOKENIZER the folder of any tokenizer of at most "
        f"{draft.model.vocab} words; no job of it was started here"
    )
    started = starting(
        draft, "train", ['"$PROGRAM" output/run.json'], before=_before(draft), needs=needs, runner=_RUNNER
    )
    return (
        File(name="paddle.json", text=to_json(_arguments(draft))),
        File(name="config.json", text=to_json(_config(draft))),
        *started,
        File(name=_DATA.name, text=draft.header() + _DATA.read_text(encoding="utf-8")),
    )


def _before(draft: ExportDraft) -> list[str]:
    """The program takes one JSON and no flag beside it, so that steps, tokenizer and what was added are put into it."""
    missing = "train.sh: set TOKENIZER to the folder of a PaddleNLP tokenizer, such as that of facebook/llama-7b"
    return [
        f'TOKENIZER=${{TOKENIZER:?"{missing}"}}',
        'PROGRAM="${PADDLENLP:-PaddleNLP}/llm/auto_parallel/llama/run_pretrain_auto.py"',
        '[ -f "$PROGRAM" ] || { echo "train.sh: no $PROGRAM: set PADDLENLP to a checkout of PaddleNLP" >&2; exit 2; }',
        "mkdir -p output data",
        f"python3 {_DATA.name} data/tokens {draft.model.vocab} {draft.strategy.seq} 256",
        'python3 - "$STEPS" "$TOKENIZER" "$@" <<\'END\'',
        "import json, sys",
        "settings = json.load(open('paddle.json'))",
        "steps, tokenizer, *more = sys.argv[1:]",
        "settings |= {'max_steps': int(steps), 'tokenizer_name_or_path': tokenizer}",
        "settings |= {name.lstrip('-'): json.loads(value) for name, value in zip(more[::2], more[1::2])}",
        "json.dump(settings, open('output/run.json', 'w'))",
        "END",
        "set --",
    ]


_NEAREST = {"moe": "megatron, mindformers or torchtitan", "mla": "megatron or mindformers"}


def _model(draft: ExportDraft) -> None:
    """The program trains Llama and nothing else."""
    model = draft.model
    for name, what in (("moe", "experts"), ("mla", "latent attention")):
        if getattr(model, name) is not None:
            draft.refuse(f"model.{name}", f"this program trains Llama, which has no {what}; export to {_NEAREST[name]}")
    strange = {
        "mtp": model.mtp > 0,
        "windows": bool(model.windows), "activation": model.activation != "swiglu",
        "norm": model.norm != "rmsnorm", "qkv_bias": model.qkv_bias,
        "out_bias": model.out_bias, "mlp_bias": model.mlp_bias, "head_bias": model.head_bias,
        "position": model.position != "rope", "qk_norm": model.qk_norm != "none", "sinks": model.sinks,
        "norms_per_layer": model.norms_per_layer != 2, "parallel_residual": model.parallel_residual,
        "rope_scaling": model.rope_scaling is not None, "rotary_share": model.rotary_share < 1,
        **dict.fromkeys(gemmas(model), True),
        "head_size": model.head_size * model.heads != model.hidden,
    }  # fmt: skip
    for name in (name for name, wrong in strange.items() if wrong):
        draft.lose(f"model.{name}", "is not Llama's, the one model of this program; config.json describes the nearest")


def _config(draft: ExportDraft) -> Settings:
    """Keys of PaddleNLP's LlamaConfig."""
    model = draft.model
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": model.vocab,
        "hidden_size": model.hidden, "intermediate_size": model.ffn or model.hidden * 4,
        "num_hidden_layers": model.layers, "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads,
        "max_position_embeddings": draft.strategy.seq, "seq_length": draft.strategy.seq,
        "rms_norm_eps": model.norm_eps, "rope_theta": model.rotary_base, "tie_word_embeddings": model.tied,
    }  # fmt: skip


def _pipeline(draft: ExportDraft) -> None:
    known_schedule(draft, tuple(PADDLE_SCHEDULES))
    s = draft.strategy
    if s.pp == 1:
        return
    if s.schedule == "zb-v" and s.microbatches != s.pp:
        draft.refuse(
            "strategy.schedule", f"Paddle's ZBVPP runs pp micro batches only, {s.pp}; the plan has {s.microbatches}"
        )
    even_layers(draft, "Paddle cuts stages of equal numbers of layers")


def _states(draft: ExportDraft) -> None:
    s = draft.strategy
    if s.pp > 1 and s.zero > 1:
        draft.refuse("strategy.zero", f"zero {s.zero} with pp {s.pp}: only stage 1 goes with a pipeline; use zero 1")
    if s.zero and s.dp % s.shard_group:
        text = f"states are sharded over {s.shard_group} ranks, which do not divide dp {s.dp}; all replicas are written"
        draft.lose("strategy.zero_group", text, zero_group=0 if s.cp == 1 else s.dp)
    choose(draft, "offload", ("none",), "none")


def _axes(draft: ExportDraft) -> None:
    s = draft.strategy
    if s.cp > 1:
        choose(draft, "cp_kind", tuple(PADDLE_CP_KINDS), "ring")
    if draft.model.moe and (s.ep > 1 or s.etp > 1):
        draft.refuse("strategy.ep", f"ep {s.ep}, etp {s.etp}: this program has no expert parallel; use 1")


def _recompute(draft: ExportDraft) -> None:
    recompute = draft.strategy.recompute
    if len(recompute.modules) > 1:
        known_modules(draft, {}, (), "Paddle (one module at most)")
    known_modules(draft, {"mla-up": "attention"}, tuple(PADDLE_RECOMPUTED), "Paddle")
    recompute = draft.strategy.recompute
    if recompute.group > 1:
        text = f"{recompute}: layers are recomputed one by one, so {recompute.group} times as many inputs are kept"
        draft.lose("strategy.recompute", text, recompute=Recompute(full=True, layers=recompute.layers))


def _numbers(draft: ExportDraft) -> None:
    choose(draft, "dtype", ("fp32", "bf16", "fp16"), "bf16")
    if draft.strategy.dtype != "fp32":
        choose(draft, "master", ("mixed", "autocast"), "mixed")
    choose(draft, "optimizer", ("adamw",), "adamw")
    why = "gradients are accumulated in fp32 (amp_master_grad)"
    without(draft, compile=(False, "static graphs are compiled in any case"), grad_dtype=("fp32", why))


def _arguments(draft: ExportDraft) -> Settings:
    s = draft.strategy
    found: Settings = {
        "enable_auto_parallel": True,  # the program stops without it
        "do_train": True,
        "do_eval": False,
        "do_predict": False,
        "evaluation_strategy": "no",
        "save_strategy": "no",
        "model_type": "llama",
        "model_name_or_path": ".",
        "input_dir": "data",
        "output_dir": "output",
        "max_steps": STEPS,
        "logging_steps": 1,
        "learning_rate": 1e-4,
        "seed": 1234,
        "per_device_train_batch_size": s.micro_batch,
        "gradient_accumulation_steps": s.microbatches,
        "max_seq_length": s.seq,
        **{PADDLE_DEGREES[name]: getattr(s, name) for name in ("tp", "pp", "vpp")},
        "sequence_parallel": s.sp and s.tp > 1,
        "use_flash_attention": s.flash,
        "bf16": s.dtype == "bf16",
        "fp16": s.dtype == "fp16",
        "amp_master_grad": s.dtype != "fp32",
        "fp16_opt_level": "O1" if s.master == "autocast" else "O2",
    }
    if s.cp > 1:
        found[PADDLE_CP_KINDS[s.cp_kind]] = s.cp
    if s.pp > 1:
        found["pipeline_schedule_mode"] = PADDLE_SCHEDULES[s.schedule]
    if s.zero and s.dp > 1:
        found |= {"sharding": f"stage{s.zero}", "sharding_parallel_degree": min(s.dp, s.shard_group)}
    return found | _recompute_keys(draft)


def _recompute_keys(draft: ExportDraft) -> Settings:
    """`no_recompute_layers` names the others, so that any list can be said."""
    recompute, counts = draft.strategy.recompute, recomputed(draft)
    if not any(counts):
        return {"recompute": False}
    granularity = "full" if recompute.full else PADDLE_RECOMPUTED[recompute.modules[0]]
    found: Settings = {"recompute": True, "recompute_granularity": granularity}
    kept: list[int] = []
    start = 0
    for count, layers in zip(counts, draft.layers, strict=True):
        kept += range(start + count, start + layers)
        start += layers
    return found | ({"no_recompute_layers": kept} if kept else {})
