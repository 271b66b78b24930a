"""SimuMax's list of bad inputs, in its own file forms: each is refused with a sentence or answered rightly.

Of its 47 cases, 43 to 46 are calls of its Python interface that have no counterpart here, and 29 (does not fit) and
27 (simulate) are questions for `estimate` and `simulate`; the others are below under its own words.
"""

from __future__ import annotations

import copy
import json

import pytest

STRATEGY = {
    "seq_len": 4096, "micro_batch_size": 1, "micro_batch_num": 8, "dtype": "bf16", "world_size": 8, "tp_size": 1,
    "pp_size": 2, "ep_size": 1, "etp_size": 1, "zero_state": 1, "enable_recompute": True, "recompute_granularity": None,
}  # fmt: skip
DENSE = {
    "model_type": "dense", "model_name": "llama3_8b", "hidden_size": 4096, "head_num": 32, "kv_head_num": 8,
    "head_size": 128, "intermediate_size": 14336, "layer_num": 32, "vocab_size": 128257, "use_swiglu": True,
}  # fmt: skip
MOE = {
    "model_type": "moe", "model_name": "deepseek_v2", "attention_type": "mla", "hidden_size": 5120, "head_num": 128,
    "kv_head_num": 128, "head_size": 128, "intermediate_size": 12288, "layer_num": 4, "vocab_size": 102400,
    "use_swiglu": True, "expert_num": 160, "topk": 6, "moe_ffn_hidden_size": 1536, "v_head_dim": 128,
    "moe_shared_expert_intermediate_size": 3072, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "dense_layers": 1,
}  # fmt: skip
_OPS = {
    "all_reduce": {"scale": 2, "offset": -1}, "all_gather": {"scale": 1, "offset": -1},
    "p2p": {"scale": 1, "offset": 0},
    "reduce_scatter": {"scale": 1, "offset": -1}, "all2all": {"scale": 1, "offset": -1},
}  # fmt: skip
SYSTEM = {
    "sys_name": "a100", "num_per_node": 8,
    "accelerator": {
        "backend": "cuda", "mem_gbs": 80, "mode": "roofline",
        "op": {
            "default": {"tflops": 312, "efficient_factor": 0.75}, "matmul": {"tflops": 312, "efficient_factor": 0.75},
            "sdp_fwd": {"tflops": 312, "efficient_factor": 0.75}, "sdp_bwd": {"tflops": 312, "efficient_factor": 0.75},
        },
        "bandwidth": {"default": {"efficient_factor": 0.91, "gbps": 1600, "latency_us": 40}},
    },
    "networks": {
        "intra_with_pcie": False,
        "high_intra_node": {"bandwidth": {"efficient_factor": 0.5, "gbps": 300, "latency_us": 10}, "op": _OPS},
        "inter_node": {"bandwidth": {"efficient_factor": 0.6, "gbps": 25, "latency_us": 40}, "op": _OPS},
    },
}  # fmt: skip

DROP = object()

REFUSED = [
    (2, "typo in a strategy key", {"strategy.tp_sizee": 2}, "tp_sizee", "tp_size"),
    (3, "no seq_len", {"strategy.seq_len": DROP}, "seq_len", "missing"),
    (4, "no micro_batch_size", {"strategy.micro_batch_size": DROP}, "micro_batch_size", "missing"),
    (5, "world 8 with tp 3", {"strategy.tp_size": 3, "strategy.pp_size": 1}, "world_size", "tp 3"),
    (6, "world 10 with pp 3", {"strategy.world_size": 10, "strategy.pp_size": 3}, "world_size", "10"),
    (7, "tp 16 on 8 kv heads", {
        "strategy.tp_size": 16, "strategy.pp_size": 1, "strategy.world_size": 16,
    }, "strategy.tp", "kv_heads 8"),
    (8, "ep 3 with 160 experts", {"model": MOE, "strategy.ep_size": 3, "strategy.world_size": 12}, "ep", "160 experts"),
    (9, "ep 2 on a dense model", {"strategy.ep_size": 2}, "ep", "no experts"),
    (10, "32 layers on pp 3", {"strategy.pp_size": 3, "strategy.world_size": 12}, "pp", "11,11,10"),
    (11, "first stage of 40 of 32", {"strategy.num_layers_in_first_pipeline_stage": 40}, "first_layers", "at most 31"),
    (12, "no micro batches", {"strategy.micro_batch_num": 0}, "micro_batch_num", "0"),
    (13, "micro batch of -1", {"strategy.micro_batch_size": -1}, "micro_batch_size", "-1"),
    (14, "tp as a text", {"strategy.tp_size": "2"}, "tp_size", "'2'"),
    (15, "tp 0", {"strategy.tp_size": 0}, "tp_size", "0"),
    (16, "dtype fp4", {"strategy.dtype": "fp4"}, "dtype", "fp4"),
    (18, "recompute 'selective'", {"strategy.recompute_granularity": "selective"}, "recompute_gran", "selective"),
    (19, "selective without a switch", {
        "strategy.recompute_granularity": "selective_recompute", "strategy.recompute_layer_num": 4,
    }, "recompute_granularity", "attn_recompute"),
    (20, "mlp_rms without mlp", {
        "strategy.recompute_granularity": "selective_recompute", "strategy.mlp_rms_recompute": True,
    }, "mlp_rms_recompute", "mlp_recompute"),
    (21, "recompute 1000 of 16 layers", {
        "strategy.recompute_granularity": "full_block", "strategy.recompute_layer_num": 1000,
    }, "recompute", "16"),
    (25, "zero 3 in Megatron", {"strategy.zero_state": 3}, "zero", "use"),
    (31, "16 GPUs, no network between nodes", {
        "system.networks.inter_node": DROP, "strategy.world_size": 16,
    }, "networks", "inter_node"),
    (32, "no accelerator.mode", {"system.accelerator.mode": DROP}, "accelerator.mode", "missing"),
    (33, "unknown key in a network operation", {"system.networks.inter_node.op.p2p.bw": 3}, "bw", "known"),
    (34, "unknown key at the top of the system", {"system.num_per_nod": 8}, "num_per_nod", "num_per_node"),
    (35, "efficiency 0", {"system.accelerator.op.matmul.efficient_factor": 0}, "efficient_factor", "0"),
    (36, "efficiency 7.5", {"system.accelerator.op.matmul.efficient_factor": 7.5}, "efficient_factor", "7.5"),
    (37, "no layer_num", {"model.layer_num": DROP}, "layer_num", "missing"),
    (38, "no use_swiglu", {"model.use_swiglu": DROP}, "use_swiglu", "missing"),
    (39, "no vocab_size", {"model.vocab_size": DROP}, "vocab_size", "missing"),
    (40, "no head_size", {"model.head_size": DROP}, "head_size", "missing"),
    (41, "experts without topk", {"model": MOE, "model.topk": DROP}, "topk", "missing"),
]  # fmt: skip
ANSWERED = [
    (17, "fp32 has its own peak", {"strategy.dtype": "fp32"}),
    (22, "context parallel by all-gather", {"strategy.cp_size": 2, "strategy.cp_comm_type": "all_gather"}),
    (23, "context parallel by ring", {"strategy.cp_size": 2, "strategy.cp_comm_type": "ring"}),
    (24, "latent attention with tp 2", {"model": MOE, "strategy.tp_size": 2}),
    (26, "zero 0", {"strategy.zero_state": 0}),
    (28, "a virtual pipeline", {"strategy.interleaving_size": 2}),
    (42, "3 dense layers, first stage of 1", {
        "model": MOE, "model.dense_layers": 3, "strategy.num_layers_in_first_pipeline_stage": 1,
    }),
]  # fmt: skip


def written(folder, changes):
    files = {
        "model": copy.deepcopy(changes.get("model", DENSE)),
        "strategy": copy.deepcopy(STRATEGY),
        "system": copy.deepcopy(SYSTEM),
    }
    for path, value in changes.items():
        *way, last = path.split(".")
        if way:
            at = files
            for step in way:
                at = at[step]
            at.pop(last, None) if value is DROP else at.__setitem__(last, value)
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    return ("check", folder / "model.json", "--cluster", folder / "system.json", "--strategy", folder / "strategy.json")


@pytest.mark.parametrize(
    ("number", "case", "changes", "field", "said"), REFUSED, ids=[f"{c[0]} {c[1]}" for c in REFUSED]
)
def test_refused_with_the_field_and_the_fix(shardwise, tmp_path, number, case, changes, field, said):
    result = shardwise(*written(tmp_path, changes))
    assert result.code == 2, f"{number} {case}: {result.out}"
    assert result.out == ""
    assert field in result.err
    assert said in result.err
    assert "Traceback" not in result.err
    assert "unexpected error" not in result.err


@pytest.mark.parametrize(("number", "case", "changes"), ANSWERED, ids=[f"{c[0]} {c[1]}" for c in ANSWERED])
def test_answered_where_simumax_fails(shardwise, tmp_path, number, case, changes):
    result = shardwise(*written(tmp_path, changes))
    assert result.code == 0, f"{number} {case}: {result.err}"
    assert result.out.startswith("valid: ")


def test_the_base_case_is_valid(shardwise, tmp_path):
    assert shardwise(*written(tmp_path, {})).code == 0


def test_30_fp8_where_the_gpu_has_it(shardwise):
    assert shardwise("check", "llama-3-8b", "-c", "8xb200", "--tp", 8, "--dtype", "fp8", "--global-batch", 8).code == 0


def test_0_a_missing_file(shardwise):
    result = shardwise("check", "llama-3-8b", "-c", "8xh100", "--strategy", "nope.json")
    assert result.code == 2
    assert "nope.json: there is no such file" in result.err


def test_1_comments_in_json(shardwise, tmp_path):
    path = tmp_path / "strategy.json"
    path.write_text('{\n  "tp_size": 1, // tensor parallel\n  "pp_size": 2\n}')
    result = shardwise("check", "llama-3-8b", "-c", "8xh100", "--strategy", path)
    assert result.code == 2
    assert "JSON has no comments" in result.err
