"""Layers of real frameworks on one GPU: how long, how many kernels, how much of it waits for the host.

    python benchmarks/h200_layers.py OUT.json [megatron] [compiled] [products] [few]

megatron   transformer layers of Megatron-Core with Transformer Engine: dense and mixture-of-experts, 16 bit and fp8.
           Needs both, a GPU, and nothing else; other ranks are not faked: experts are those of one rank.
compiled   a Llama block in plain torch, eager and compiled.
products   matrix products in fp8 beside 16 bit, with and without quantising their operands.
few        of Megatron's layers only those of FEW_CASES, to look at their kernels by name.

Every row holds the wall time of forward and backward in a row of passes (the host runs ahead as it does in training),
the same with 64 tokens (the device has next to nothing to do: what is left is the host), the sum of kernel times, and
how many kernels there are of each kind.
"""
# Megatron-Core and Transformer Engine are not installed where this is checked, so their things have no types:
# mypy: ignore-errors
# ruff: noqa: BLE001, SLF001

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

FEW = 64
"""Tokens with which a pass is the host's alone."""
ROUNDS, REPEATS = 5, 6
FEW_CASES = {("llama-8b", 8192, "bf16"), ("llama-8b", 8192, "tensorwise"), ("llama-70b", 4096, "bf16"),
             ("qwen3-30b", 4096, "bf16"), ("deepseek-v3", 4096, "bf16"), ("gpt-oss-120b", 8192, "bf16"),
             ("qwen3-235b", 4096, "bf16")}  # fmt: skip
KINDS = (
    ("attention", ("flash", "fmha", "attn", "sdpa", "cudnn")),
    ("gemm", ("gemm", "cutlass", "nvjet", "matmul", "xmma", "wgmma", "sm90_")),
    ("quantise", ("quantize", "cast", "amax", "scale", "fp8", "block_scaled")),
    ("norm", ("norm", "rmsnorm", "ln_")),
    ("permute", ("permute", "sort", "topk", "scatter", "gather", "index", "histogram")),
    ("copy", ("memcpy", "memset", "copy", "fill", "cat")),
)


def kind_of(name: str) -> str:
    low = name.lower()
    return next((kind for kind, words in KINDS if any(word in low for word in words)), "other")


def wall(step) -> float:
    """Median seconds of a pass; several in a row, so that the host may run ahead."""
    found = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(REPEATS):
            step()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) / REPEATS)
    return statistics.median(found)


def kernels(step) -> dict:
    """Seconds and number of kernels by kind, of one pass."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    seconds, counts, names = defaultdict(float), defaultdict(int), defaultdict(float)
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            seconds[kind_of(event.name)] += event.device_time_total / 1e6
            counts[kind_of(event.name)] += 1
            names[event.name[:120]] += event.device_time_total / 1e6
    longest = dict(sorted(names.items(), key=lambda pair: -pair[1])[:30])
    return {"seconds": dict(seconds), "counts": dict(counts), "longest": longest}


def measured(forward, gradient, *, few) -> dict:
    """A module's forward and whole pass: `forward` makes its output, `few` the same for few tokens."""

    def whole(run, grad):
        def step():
            out = run()
            out.backward(grad if grad is not None else torch.ones_like(out))

        return step

    def only(run):
        def step():
            run()

        return step

    row = {}
    for name, run, grad in (("", forward, gradient), ("host_", few, None)):
        step = whole(run, grad)
        for _ in range(4):
            step()
        row[f"{name}seconds"] = wall(step)
        row[f"{name}forward_seconds"] = wall(only(run))
    row["kernels"] = kernels(whole(forward, gradient))
    row["forward_kernels"] = kernels(only(forward))
    return row


# ---------------------------------------------------------------------------------------------------------------------
DENSE = {
    "llama-8b": {"hidden": 4096, "heads": 32, "kv": 8, "size": 128, "ffn": 14336},
    "llama-70b": {"hidden": 8192, "heads": 64, "kv": 8, "size": 128, "ffn": 28672},
    "llama-1b": {"hidden": 2048, "heads": 32, "kv": 8, "size": 64, "ffn": 8192},
    "llama-70b/8": {"hidden": 8192, "heads": 8, "kv": 1, "size": 128, "ffn": 3584},
}
MOE = {
    "qwen3-30b": {"hidden": 2048, "heads": 32, "kv": 4, "size": 128, "ffn": 6144, "expert": 768, "qk": True},
    "qwen3-235b": {"hidden": 4096, "heads": 64, "kv": 4, "size": 128, "ffn": 12288, "expert": 1536, "qk": True},
    "gpt-oss-120b": {"hidden": 2880, "heads": 64, "kv": 8, "size": 64, "ffn": 2880, "expert": 2880},
    "deepseek-v3": {
        "hidden": 7168, "heads": 128, "kv": 128, "size": 128, "ffn": 18432, "expert": 2048, "shared": 2048, "mla": True,
    },
}  # fmt: skip


def megatron_cases():
    for name, tokens, dtypes in (
        ("llama-8b", (8192, 2048), ("bf16", "delayed", "tensorwise", "blockwise")),
        ("llama-70b", (4096,), ("bf16", "delayed", "tensorwise", "blockwise")),
        ("llama-70b/8", (4096,), ("bf16", "tensorwise")),
        ("llama-1b", (4096, 1024), ("bf16", "tensorwise")),
    ):
        for count in tokens:
            for dtype in dtypes:
                yield {"model": name, "tokens": count, "dtype": dtype, "shape": DENSE[name]}
    for name, experts, top_k, tokens, dtype, more in (
        ("qwen3-30b", 16, 8, 4096, "bf16", {}),
        ("qwen3-30b", 16, 8, 1024, "bf16", {}),
        ("qwen3-30b", 16, 8, 16384, "bf16", {}),
        ("qwen3-30b", 64, 8, 4096, "bf16", {}),
        ("qwen3-30b", 128, 8, 4096, "bf16", {}),
        ("qwen3-30b", 16, 8, 4096, "bf16", {"moe_permute_fusion": False, "moe_router_fusion": False}),
        ("qwen3-30b", 16, 8, 4096, "tensorwise", {"moe_router_fusion": False}),
        ("qwen3-30b", 16, 8, 4096, "blockwise", {"moe_router_fusion": False}),
        ("qwen3-235b", 16, 8, 1024, "bf16", {}),
        ("qwen3-235b", 16, 8, 4096, "bf16", {}),
        ("qwen3-235b", 4, 4, 4096, "bf16", {}),
        ("qwen3-235b", 16, 8, 2048, "tensorwise", {"moe_router_fusion": False}),
        ("gpt-oss-120b", 16, 4, 8192, "bf16", {}),
        ("gpt-oss-120b", 4, 4, 8192, "bf16", {}),
        ("deepseek-v3", 8, 8, 4096, "bf16", {}),
        ("deepseek-v3", 32, 8, 4096, "bf16", {}),
        ("deepseek-v3", 8, 8, 4096, "tensorwise", {"moe_router_fusion": False}),
    ):
        yield {
            "model": name, "experts": experts, "top_k": top_k, "tokens": tokens, "dtype": dtype, "more": more,
            "shape": MOE[name],
        }  # fmt: skip


def megatron_block(case, layers: int):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
    from megatron.core.transformer.transformer_block import TransformerBlock
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    shape, experts = case["shape"], case.get("experts")
    options = {
        "num_layers": layers, "hidden_size": shape["hidden"], "num_attention_heads": shape["heads"],
        "num_query_groups": shape["kv"], "kv_channels": shape["size"], "ffn_hidden_size": shape["ffn"],
        "gated_linear_unit": True, "activation_func": torch.nn.functional.silu, "add_bias_linear": False,
        "normalization": "RMSNorm", "hidden_dropout": 0.0, "attention_dropout": 0.0, "bf16": True,
        "params_dtype": torch.bfloat16, "bias_activation_fusion": True, "bias_dropout_fusion": True,
        "apply_rope_fusion": not shape.get("mla"), "gradient_accumulation_fusion": True,
        "qk_layernorm": bool(shape.get("qk") or shape.get("mla")), "layernorm_epsilon": 1e-5,
    }  # fmt: skip
    if case["dtype"] != "bf16":
        options |= {"fp8": "hybrid", "fp8_recipe": case["dtype"]}
    if experts:
        options |= {
            "num_moe_experts": experts, "moe_router_topk": case["top_k"], "moe_ffn_hidden_size": shape["expert"],
            "moe_grouped_gemm": True, "moe_token_dispatcher_type": "alltoall", "moe_router_dtype": "fp32",
            "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 1e-3, "moe_permute_fusion": True,
            "moe_router_fusion": True, "moe_router_force_load_balancing": True,
            "moe_router_padding_for_fp8": case["dtype"] != "bf16",
        } | case["more"]  # fmt: skip
        if shape.get("shared"):
            options["moe_shared_expert_intermediate_size"] = shape["shared"]
    kind = TransformerConfig
    if shape.get("mla"):
        options.pop("num_query_groups")
        options |= {
            "multi_latent_attention": True, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128,
            "qk_pos_emb_head_dim": 64, "v_head_dim": 128, "rope_type": "rope",
        }  # fmt: skip
        kind = MLATransformerConfig
    config = kind(**options)
    spec = get_gpt_layer_with_transformer_engine_spec(
        num_experts=experts, moe_grouped_gemm=bool(experts), qk_layernorm=options["qk_layernorm"],
        multi_latent_attention=bool(shape.get("mla")),
    )  # fmt: skip
    block = TransformerBlock(config, spec, post_layer_norm=False).cuda()
    for weight in block.parameters():
        weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
        weight.grad_added_to_main_grad = False
        # as Megatron's buffers do: the sum is in main_grad, and what autograd hands over is dropped
        weight.register_post_accumulate_grad_hook(lambda done: setattr(done, "grad", None))
    return block


def megatron_row(case) -> dict:
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

    layers = 2
    block = megatron_block(case, layers)
    shape = case["shape"]
    rotary = RotaryEmbedding(shape["size"], 1.0).cuda() if not shape.get("mla") else None

    def run_with(tokens):
        x = torch.randn(tokens, 1, shape["hidden"], device="cuda", dtype=torch.bfloat16, requires_grad=True)
        angles = rotary(tokens) if rotary else None

        def run():
            return block(x, None, rotary_pos_emb=angles)

        return run, torch.randn_like(x)

    forward, gradient = run_with(case["tokens"])
    few, _ = run_with(FEW)
    return {**case, "framework": "megatron", "layers": layers, **measured(forward, gradient, few=few)}


# ---------------------------------------------------------------------------------------------------------------------
class Llama(torch.nn.Module):
    """A Llama block in plain torch, as torchtitan writes it."""

    def __init__(self, shape) -> None:
        super().__init__()
        hidden, self.heads, self.kv, self.size = (shape[key] for key in ("hidden", "heads", "kv", "size"))

        def linear(a, b):
            return torch.nn.Linear(a, b, bias=False)

        self.q, self.k, self.v = (linear(hidden, n * self.size) for n in (self.heads, self.kv, self.kv))
        self.o = linear(self.heads * self.size, hidden)
        self.up, self.gate, self.down = (
            linear(hidden, shape["ffn"]),
            linear(hidden, shape["ffn"]),
            linear(shape["ffn"], hidden),
        )
        self.first, self.second = torch.nn.RMSNorm(hidden), torch.nn.RMSNorm(hidden)

    def forward(self, x, cos, sin):
        batch, seq, _ = x.shape
        y = self.first(x)
        q, k, v = (layer(y).view(batch, seq, -1, self.size).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, seq, -1))
        y = self.second(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def turned(x, cos, sin):
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


def compiled_row(name: str, tokens: int, *, compile_: bool) -> dict:
    layers, shape = 2, DENSE[name]
    torch._dynamo.reset()
    blocks = [Llama(shape).to("cuda", torch.bfloat16) for _ in range(layers)]
    if compile_:
        for block in blocks:
            block.compile()

    def run_with(count):
        x = torch.randn(1, count, shape["hidden"], device="cuda", dtype=torch.bfloat16, requires_grad=True)
        angles = torch.randn(count, shape["size"] // 2, device="cuda")

        def run():
            y = x
            for block in blocks:
                y = block(y, angles.cos(), angles.sin())
            return y

        return run, torch.randn_like(x)

    forward, gradient = run_with(tokens)
    few, _ = run_with(FEW)
    row = {
        "framework": "torch",
        "compile": compile_,
        "model": name,
        "tokens": tokens,
        "layers": layers,
        "dtype": "bf16",
    }
    return {**row, "shape": shape, **measured(forward, gradient, few=few)}


# ---------------------------------------------------------------------------------------------------------------------
def product_row(rows: int, columns: int, depth: int) -> dict:
    """One product in 16 bit, in fp8 with operands ready, and with one operand quantised by tensor or by row."""
    a = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(columns, depth, device="cuda", dtype=torch.bfloat16)
    one = torch.ones((), device="cuda")
    low = torch.float8_e4m3fn
    a8, b8 = a.to(low), b.to(low)
    scale_a, scale_b = torch.ones(rows, 1, device="cuda"), torch.ones(1, columns, device="cuda")

    def tensorwise(x, y):
        return torch._scaled_mm(x, y.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    def rowwise(x, y):
        return torch._scaled_mm(x, y.t(), scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)

    def quantised():
        largest = a.abs().amax().float()
        return tensorwise((a * (448.0 / largest)).to(low), b8)

    ways = {
        "bf16": lambda: a @ b.t(), "tensorwise": lambda: tensorwise(a8, b8), "rowwise": lambda: rowwise(a8, b8),
        "with_quantising": torch.compile(quantised),
    }  # fmt: skip
    found = {"framework": "product", "rows": rows, "columns": columns, "depth": depth}
    for name, way in ways.items():
        try:
            for _ in range(3):
                way()
            found[name] = wall(way)
        except Exception as fault:
            found[name] = f"{type(fault).__name__}: {str(fault)[:200]}"
    return found


def guarded(out: Path, rows: list, make, label: str) -> None:
    begin = time.perf_counter()
    try:
        rows.append(make())
    except Exception as fault:
        rows.append({"case": label, "failed": f"{type(fault).__name__}: {str(fault)[:400]}"})
    gc.collect()
    torch.cuda.empty_cache()
    told = {key: rows[-1].get(key) for key in ("seconds", "host_seconds", "failed")}
    print(f"{time.perf_counter() - begin:5.1f} s  {label}  {told}", flush=True)
    info = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    out.write_text(json.dumps({"info": info, "rows": rows}, indent=1), encoding="utf-8")


def start_megatron() -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
    torch.distributed.init_process_group("nccl")
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)


def main(out: Path, parts: list[str]) -> None:
    rows: list[dict] = []
    torch.cuda.set_device(0)
    if "megatron" in parts:
        start_megatron()
        for case in megatron_cases():
            if "few" in parts and (case["model"], case["tokens"], case["dtype"]) not in FEW_CASES:
                continue
            label = " ".join(str(case.get(key, "")) for key in ("model", "experts", "tokens", "dtype", "more"))
            guarded(out, rows, lambda case=case: megatron_row(case), label)
    if "compiled" in parts:
        for name, tokens in (("llama-8b", 8192), ("llama-8b", 2048), ("llama-1b", 4096), ("llama-1b", 1024)):
            for compile_ in (False, True):
                label = f"{name} {tokens} {'compiled' if compile_ else 'eager'}"
                guarded(out, rows, lambda n=name, t=tokens, c=compile_: compiled_row(n, t, compile_=c), label)
    if "products" in parts:
        for tokens in (2048, 8192, 16384):
            for columns, depth in (
                (4096, 4096),
                (28672, 4096),
                (4096, 14336),
                (57344, 8192),
                (8192, 28672),
                (1536, 2048),
            ):
                make = lambda t=tokens, c=columns, d=depth: product_row(t, c, d)  # noqa: E731
                guarded(out, rows, make, f"{tokens} {columns} {depth}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["megatron", "compiled", "products"])
