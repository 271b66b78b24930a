"""Run one rank's share of a plan with Megatron-Core's own modules: `python rehearse_pp2.py --out result.json`.

Needs torch and megatron-core (0.16 and main of August 2026 are what it was written for); one file, so that it can be
copied alone. Where Transformer Engine is installed its modules are used, else Megatron's own with torch's kernels.
`shardwise rehearse --with megatron` writes SPEC into it. Megatron builds the model, the distributed optimizer and the
schedule over a fake process group: collectives return at once. Tensor parallel gathers and the activations of other
stages are filled with real numbers (unset memory draws less power and runs faster); that time is measured apart and
taken off.
"""
# Megatron-Core is not installed where this is checked, so its things have no types:
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ANN205

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as fn

SCHEMA = "shardwise/rehearsal/1"
SPEC: dict[str, Any] = {}
FUSED_ADD = "fused_weight_gradient_mlp_cuda"
"""Apex's kernel that adds the output layer's weight gradient to its buffer."""


class Fakes:
    """Fills in for other ranks, and remembers what it filled."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, tuple[int, ...], int], int] = {}
        self.random: torch.Tensor | None = None
        self.gather, self.scatter, self.exchange = (
            dist.all_gather_into_tensor, dist.reduce_scatter_tensor, dist.batch_isend_irecv,
        )  # fmt: skip

    def install(self) -> None:
        """Before Megatron is imported: it binds these functions by name."""
        dist.all_gather_into_tensor = self.all_gather
        dist.reduce_scatter_tensor = self.reduce_scatter
        dist.batch_isend_irecv = self.sends

    def all_gather(self, out, x, group=None, async_op=False):
        work = self.gather(out, x, group=group, async_op=async_op)
        if is_tensor_group(group) and out.dtype == torch.bfloat16:
            self.fill("gather", x, out.numel() // x.numel(), out)
        return work

    def reduce_scatter(self, out, x, *rest, group=None, async_op=False, **named):
        work = self.scatter(out, x, *rest, group=group, async_op=async_op, **named)
        if is_tensor_group(group) and out.dtype == torch.bfloat16:
            self.fill("scatter", x, 1, out)
        return work

    def sends(self, operations):
        works = self.exchange(operations)
        for one in operations:
            if one.op is dist.irecv and one.tensor.dtype == torch.bfloat16:
                self.fill("receive", one.tensor, 1, one.tensor)
        return works

    def fill(self, kind: str, x, times: int, out) -> None:
        key = (kind, tuple(x.shape), times)
        self.counts[key] = self.counts.get(key, 0) + 1
        with torch.no_grad():
            self.work(kind, x, times, out)

    def work(self, kind: str, x, times: int, out) -> None:
        if kind == "gather":
            out.view(times, *x.shape).copy_(x.unsqueeze(0).expand(times, *x.shape))
        elif kind == "scatter":
            out.copy_(x.view(-1)[: out.numel()].view(out.shape))
        else:
            if self.random is None or self.random.numel() < out.numel():
                self.random = torch.randn(out.numel(), dtype=out.dtype, device=out.device)
            out.copy_(self.random[: out.numel()].view(out.shape))

    def seconds(self, iterations: int, tp: int) -> float:
        """What filling in took per iteration: the same work again, by itself."""
        total = 0.0
        for (kind, shape, times), count in self.counts.items():
            x = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
            size = {"gather": x.numel() * times, "scatter": x.numel() // tp, "receive": x.numel()}[kind]
            out = torch.empty(size, dtype=x.dtype, device="cuda")
            out = out.view(shape) if kind == "receive" else out
            total += timed(lambda x=x, out=out, k=kind, t=times: self.work(k, x, t, out)) * count / iterations
        return total


def is_tensor_group(group) -> bool:
    from megatron.core import parallel_state

    return group is not None and group is parallel_state.get_tensor_model_parallel_group()


def timed(work: Callable[[], object], repeats: int = 10) -> float:
    for _ in range(3):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3 / repeats


def has_engine() -> bool:
    """Whether Transformer Engine's modules are there, as Megatron sees it."""
    from megatron.core.extensions.transformer_engine import HAVE_TE

    return bool(HAVE_TE)


class PlainNorm:
    """Torch's own norm; Megatron's wrapper of it refuses sequence parallel, whose gradients it would not add up."""

    def __new__(cls, config, hidden_size, eps=1e-5, **_) -> torch.nn.Module:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        norm = kind(hidden_size, eps=eps)
        norm.returns_residual = False
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


def fused_attention():
    """Torch's fused attention as Megatron's core attention: the local one stores its scores."""
    from megatron.core.transformer.module import MegatronModule

    class Core(MegatronModule):
        def __init__(self, config, *_, **__) -> None:
            super().__init__(config=config)

        def forward(self, query, key, value, *_, **__):
            q, k, v = (part.permute(1, 2, 0, 3) for part in (query, key, value))
            mixed = fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
            return mixed.permute(2, 0, 1, 3).reshape(mixed.shape[2], mixed.shape[0], -1)

    return Core


def recompute(spec: dict[str, Any]) -> dict[str, Any]:
    how = spec["recompute"]
    if how["kind"] == "full":
        return {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": how["layers"]}
    if how["kind"] == "core-attention":
        return {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    return {}


def configuration(spec: dict[str, Any]):
    from megatron.core.transformer.transformer_config import TransformerConfig

    m, s = spec["model"], spec["strategy"]
    vpp, engine = s["vpp"] if s["vpp"] > 1 else None, has_engine()
    adds = engine and find_spec(FUSED_ADD) is not None
    layout = {"pipeline_model_parallel_layout": spec["layout"]} if spec["layout"] else {}
    return TransformerConfig(
        num_layers=m["layers"], hidden_size=m["hidden"], num_attention_heads=m["heads"],
        num_query_groups=m["kv_heads"], kv_channels=m["head_size"], ffn_hidden_size=m["ffn"],
        gated_linear_unit=m["gated"], activation_func=fn.silu if m["gated"] else fn.gelu,
        normalization="RMSNorm" if m["norm"] == "rmsnorm" else "LayerNorm", add_bias_linear=m["mlp_bias"],
        add_qkv_bias=m["qkv_bias"], qk_layernorm=m["qk_norm"] == "head", hidden_dropout=0.0, attention_dropout=0.0,
        bias_activation_fusion=True, bias_dropout_fusion=True, masked_softmax_fusion=False, apply_rope_fusion=engine,
        persist_layer_norm=False, gradient_accumulation_fusion=adds, bf16=True, params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16, tensor_model_parallel_size=s["tp"], pipeline_model_parallel_size=s["pp"],
        virtual_pipeline_model_parallel_size=vpp, sequence_parallel=s["sp"], **layout, **recompute(spec),
    )  # fmt: skip


def layers_of(spec: dict[str, Any], config, chunk: int):
    """What a chunk's layers are made of."""
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

    norms = spec["model"]["qk_norm"] == "head"
    if has_engine():
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(qk_layernorm=norms)
    layer = gpt_layer_specs.get_gpt_layer_local_spec(normalization=config.normalization, qk_layernorm=norms)
    parts = layer.submodules
    parts.self_attention.submodules.core_attention = fused_attention()
    parts.input_layernorm = parts.pre_mlp_layernorm = PlainNorm
    if norms:
        parts.self_attention.submodules.q_layernorm = parts.self_attention.submodules.k_layernorm = PlainNorm
    count = get_num_layers_to_build(config, chunk if spec["strategy"]["vpp"] > 1 else None)
    return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=PlainNorm)


def modules(spec: dict[str, Any], config) -> list[Any]:
    """The rank's chunks, wrapped as Megatron's training loop wraps them."""
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.module import Float16Module

    m, s = spec["model"], spec["strategy"]
    buckets = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=s["zero"] > 0)
    found = []
    for chunk in range(s["vpp"]):
        if s["vpp"] > 1:
            parallel_state.set_virtual_pipeline_model_parallel_rank(chunk)
        model = GPTModel(
            config=config, transformer_layer_spec=layers_of(spec, config, chunk),
            vocab_size=m["padded_vocab"] * s["tp"], max_sequence_length=m["max_positions"],
            share_embeddings_and_output_weights=m["tied"], pre_process=spec["rank"] == 0 and chunk == 0,
            post_process=spec["rank"] == s["pp"] - 1 and chunk == s["vpp"] - 1,
            position_embedding_type="rope" if m["position"] == "rope" else "learned_absolute",
            vp_stage=chunk if s["vpp"] > 1 else None,
        ).cuda()  # fmt: skip
        found.append(DistributedDataParallel(config, buckets, Float16Module(config, model)))
    return found


class MegatronRank:
    """Megatron's model, optimizer and schedule of one rank."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from megatron.core import parallel_state, tensor_parallel
        from megatron.core.distributed import finalize_model_grads
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.pipeline_parallel import get_forward_backward_func
        from torch.testing._internal.distributed.fake_pg import FakeStore

        s = spec["strategy"]
        world, place = s["tp"] * s["pp"] * s["dp"], spec["rank"] * s["tp"] * s["dp"]
        dist.init_process_group("fake", rank=place, world_size=world, store=FakeStore())
        vpp = s["vpp"] if s["vpp"] > 1 else None
        parallel_state.initialize_model_parallel(
            s["tp"], s["pp"], virtual_pipeline_model_parallel_size=vpp, create_gloo_process_groups=False
        )
        tensor_parallel.model_parallel_cuda_manual_seed(1)
        self.spec, config = spec, configuration(spec)
        self.chunks = modules(spec, config)
        config.finalize_model_grads_func = finalize_model_grads
        settings = OptimizerConfig(
            optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16, clip_grad=1.0,
            use_distributed_optimizer=s["zero"] > 0,
        )  # fmt: skip
        self.optimizer = get_megatron_optimizer(settings, self.chunks, use_gloo_process_groups=False)
        self.schedule = get_forward_backward_func()
        shape = (s["micro_batch"], s["seq"])
        self.tokens = torch.randint(0, spec["model"]["vocab"], shape, device="cuda")
        self.positions = torch.arange(s["seq"], device="cuda").unsqueeze(0).expand(*shape)

    def passes(self) -> None:
        s = self.spec["strategy"]
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        several = s["vpp"] > 1
        self.schedule(
            forward_step_func=self.forward, data_iterator=[None] * s["vpp"] if several else None,
            model=self.chunks if several else self.chunks[0], num_microbatches=s["microbatches"],
            seq_length=s["seq"], micro_batch_size=s["micro_batch"], forward_only=False,
        )  # fmt: skip

    def forward(self, _, model):
        return model(self.tokens, self.positions, None, labels=self.tokens), self.loss

    @staticmethod
    def loss(out):
        mean = out.float().mean()
        return mean, {"loss": mean.detach()}


def rehearse(spec: dict[str, Any], repeats: int) -> dict[str, Any]:
    fakes = Fakes()
    fakes.install()
    import megatron.core

    rank = MegatronRank(spec)
    memory: dict[str, int] = {}
    times: dict[str, list[float]] = {"passes": [], "optimizer": []}
    for iteration in range(2 + repeats):
        memory["static"] = now(reset=True)
        seconds = {"passes": spent(rank.passes)}
        memory["peak_forward_backward"] = peak(reset=True)
        seconds["optimizer"] = spent(rank.optimizer.step)
        memory["peak_optimizer"] = peak(reset=True)
        if iteration > 1:
            for name, value in seconds.items():
                times[name].append(value)
    memory["peak"] = max(memory["peak_forward_backward"], memory["peak_optimizer"])
    return {
        **identity(spec), "framework": f"megatron-core {megatron.core.__version__}", "engine": has_engine(),
        "memory": memory,
        "parameters": sum(p.numel() for chunk in rank.chunks for p in chunk.parameters()),
        "seconds": {name: statistics.median(values) for name, values in times.items()},
        "spread": {name: (max(v) - min(v)) / statistics.median(v) for name, v in times.items()},
        "faked_seconds": fakes.seconds(2 + repeats, spec["strategy"]["tp"]),
    }  # fmt: skip


def identity(spec: dict[str, Any]) -> dict[str, Any]:
    named = ("rank", "name", "plan")
    device = torch.cuda.get_device_name()
    found = {"schema": SCHEMA, **{name: spec[name] for name in named if name in spec}, "with": "megatron"}
    return {**found, "device": device, "torch": torch.__version__}


def spent(work: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3


def now(*, reset: bool) -> int:
    torch.cuda.synchronize()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def peak(*, reset: bool) -> int:
    torch.cuda.synchronize()
    found = torch.cuda.max_memory_allocated()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", help="a rank's share as JSON, in place of the one written into this file")
    parser.add_argument("--out", help="file for the result; default: standard output")
    parser.add_argument("--repeats", type=int, default=3, help="iterations that count")
    parser.add_argument("--device", choices=("cuda",), default="cuda", help="Megatron needs a GPU")
    return parser.parse_args()


def complain(text: str) -> int:
    sys.stderr.write(f"error: {text}\n")
    return 2


def main() -> int:
    options = parsed()
    spec = json.loads(Path(options.spec).read_text(encoding="utf-8")) if options.spec else SPEC
    if not spec:
        return complain("no rank is written into this file; make one with `shardwise rehearse PLAN --with megatron`")
    if not torch.cuda.is_available():
        return complain("torch sees no GPU, and Megatron's modules need one; run it on a GPU machine")
    began = time.monotonic()
    try:
        result = rehearse(spec, max(1, options.repeats))
    except ModuleNotFoundError as error:
        return complain(f"{error}; install megatron-core here, or rehearse without --with megatron")
    except torch.OutOfMemoryError as error:
        result = {**identity(spec), "error": f"out of memory: {str(error).splitlines()[0]}"}
    result["run_seconds"] = round(time.monotonic() - began, 2)
    text = json.dumps(result, indent=1) + "\n"
    if options.out:
        part = Path(options.out + ".part")
        part.write_text(text, encoding="utf-8")
        part.replace(options.out)
    else:
        sys.stdout.write(text)
    return 1 if "error" in result else 0


if __name__ == "__main__":
    sys.exit(main())
