"""Training steps of models of many kinds on one GPU: `python benchmarks/h200_kinds.py OUT.json [NAME ...]`.

Needs torch and transformers, and this repository's tests beside it. Its functions are what `shardwise models --trace`
follows for the same models; `benchmarks/kinds.py` holds both beside each other. Parameters, gradients and both moments
of AdamW (fused) are bf16; gradients are dropped after the step; attention is torch's; what transformers has no kernel
for on the machine (state spaces, delta nets) runs as its plain torch.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import sys
import time
import traceback
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn.functional as fn
import transformers as tf
from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "tests" / "frameworks"))
import traced_models as plain  # found in the tests

TEXT = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000}
IMAGE = 32001


def _built(kind, config, experts=False):
    """With products of experts in one call, and transformers' own choice of everything else."""
    config.use_cache = False
    if experts:
        config._experts_implementation = "grouped_mm"  # noqa: SLF001 - it has no other name
    return kind(config)


def llama():
    return _built(tf.LlamaForCausalLM, tf.LlamaConfig(**TEXT, intermediate_size=5632, num_hidden_layers=8))


def qwen3_moe():
    config = tf.Qwen3MoeConfig(
        **TEXT, head_dim=128, intermediate_size=6144, moe_intermediate_size=768, num_experts=32, num_experts_per_tok=4,
        num_hidden_layers=6,
    )  # fmt: skip
    return _built(tf.Qwen3MoeForCausalLM, config, experts=True)


def mamba2():
    config = tf.Mamba2Config(
        hidden_size=2048, num_hidden_layers=8, vocab_size=32000, state_size=128, head_dim=64, num_heads=64, n_groups=1,
        chunk_size=128, tie_word_embeddings=False,
    )  # fmt: skip
    return _built(tf.Mamba2ForCausalLM, config)


def falcon_h1():
    config = tf.FalconH1Config(
        **TEXT, intermediate_size=5632, num_hidden_layers=6, mamba_d_ssm=3072, mamba_n_heads=48, mamba_d_head=64,
        mamba_n_groups=1, mamba_d_state=128, mamba_chunk_size=128,
    )  # fmt: skip
    return _built(tf.FalconH1ForCausalLM, config)


def nemotron_h():
    pattern = ["linear_attention", "mlp", "linear_attention", "mlp", "linear_attention", "full_attention", "mlp"]
    config = tf.NemotronHConfig(
        **TEXT, head_dim=128, intermediate_size=8192, layers_block_type=pattern * 2, ssm_state_size=128,
        mamba_num_heads=64, mamba_head_dim=64, n_groups=8, chunk_size=128,
    )  # fmt: skip
    return _built(tf.NemotronHForCausalLM, config)


def granite4():
    config = tf.GraniteMoeHybridConfig(
        **TEXT, num_hidden_layers=8, layer_types=["mamba", "mamba", "mamba", "attention"] * 2, intermediate_size=512,
        shared_intermediate_size=1024, num_local_experts=16, num_experts_per_tok=4, mamba_n_heads=64, mamba_d_head=64,
        mamba_d_state=128, mamba_chunk_size=128,
    )  # fmt: skip
    return _built(tf.GraniteMoeHybridForCausalLM, config, experts=True)


def qwen3_next():
    config = tf.Qwen3NextConfig(
        hidden_size=2048, num_attention_heads=16, num_key_value_heads=2, head_dim=256, vocab_size=32000,
        num_hidden_layers=8, intermediate_size=5120, moe_intermediate_size=512, shared_expert_intermediate_size=512,
        num_experts=32, num_experts_per_tok=4, linear_num_key_heads=16, linear_num_value_heads=32,
    )  # fmt: skip
    return _built(tf.Qwen3NextForCausalLM, config, experts=True)


def kimi_linear():
    config = tf.KimiLinearConfig(
        hidden_size=2048, num_attention_heads=16, num_key_value_heads=16, vocab_size=32000, num_hidden_layers=4,
        intermediate_size=5632, moe_intermediate_size=768, num_local_experts=16, num_experts_per_tok=4,
        linear_num_heads=16, linear_head_dim=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return _built(tf.KimiLinearForCausalLM, config, experts=True)


def minimax():
    config = tf.MiniMaxConfig(
        **TEXT, head_dim=128, num_hidden_layers=8, intermediate_size=2048, num_local_experts=8, num_experts_per_tok=2,
    )  # fmt: skip
    return _built(tf.MiniMaxForCausalLM, config, experts=True)


def lfm2():
    kinds = ["conv", "conv", "full_attention", "conv"] * 3
    config = tf.Lfm2Config(**TEXT, intermediate_size=8192, num_hidden_layers=12, layer_types=kinds)
    return _built(tf.Lfm2ForCausalLM, config)


def deepseek_v32():
    config = tf.DeepseekV32Config(
        hidden_size=2048, num_attention_heads=16, num_key_value_heads=16, vocab_size=32000, num_hidden_layers=4,
        intermediate_size=5632, moe_intermediate_size=768, n_routed_experts=16, n_group=1, topk_group=1,
        num_experts_per_tok=4, q_lora_rank=768, mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
        index_topk=512, index_n_heads=16, index_head_dim=128,
    )  # fmt: skip
    return _built(tf.DeepseekV32ForCausalLM, config, experts=True)


def gemma3_text():
    config = tf.Gemma3TextConfig(
        hidden_size=2048, num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=32000,
        intermediate_size=8192, num_hidden_layers=6, sliding_window=1024,
    )  # fmt: skip
    return _built(tf.Gemma3ForCausalLM, config)


def qwen2_5_vl():
    text = dict(TEXT, vocab_size=32064, intermediate_size=5632, num_hidden_layers=8)
    vision = {
        "depth": 8, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048,
        "fullatt_block_indexes": [3, 7],
    }  # fmt: skip
    ids = {"image_token_id": IMAGE, "vision_start_token_id": 32002, "vision_end_token_id": 32003}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    text["rope_parameters"] = rope
    return _built(
        tf.Qwen2_5_VLForConditionalGeneration, tf.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids)
    )


def qwen3_vl():
    text = dict(TEXT, head_dim=128, vocab_size=32064, intermediate_size=5632, num_hidden_layers=8)
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]}
    vision = {
        "depth": 8, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "out_hidden_size": 2048,
        "deepstack_visual_indexes": [1, 3, 5],
    }  # fmt: skip
    ids = {"image_token_id": IMAGE, "vision_start_token_id": 32002, "vision_end_token_id": 32003}
    return _built(tf.Qwen3VLForConditionalGeneration, tf.Qwen3VLConfig(text_config=text, vision_config=vision, **ids))


def gemma3():
    text = {
        "hidden_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 32064,
        "intermediate_size": 8192, "num_hidden_layers": 6, "sliding_window": 1024,
    }  # fmt: skip
    vision = {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 8, "num_attention_heads": 16,
        "image_size": 896, "patch_size": 14, "vision_use_head": False,
    }  # fmt: skip
    ids = {"image_token_index": IMAGE, "boi_token_index": 32002, "eoi_token_index": 32003}
    return _built(tf.Gemma3ForConditionalGeneration, tf.Gemma3Config(text_config=text, vision_config=vision, **ids))


def internvl():
    text = {"model_type": "qwen2", **TEXT, "vocab_size": 32064, "intermediate_size": 5632, "num_hidden_layers": 8}
    vision = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 16,
        "image_size": [448, 448], "patch_size": [14, 14],
    }  # fmt: skip
    config = tf.InternVLConfig(text_config=text, vision_config=vision, image_token_id=IMAGE)
    return _built(tf.InternVLForConditionalGeneration, config)


def t5():
    config = tf.T5Config(
        d_model=1024, d_kv=64, d_ff=2816, num_layers=12, num_decoder_layers=12, num_heads=16, vocab_size=32128,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.0, pad_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    return _built(tf.T5ForConditionalGeneration, config)


def whisper():
    config = tf.WhisperConfig(
        d_model=1024, encoder_layers=12, decoder_layers=12, encoder_attention_heads=16, decoder_attention_heads=16,
        encoder_ffn_dim=4096, decoder_ffn_dim=4096, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    return _built(tf.WhisperForConditionalGeneration, config)


def bert():
    config = tf.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, vocab_size=30522,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return _built(tf.BertForMaskedLM, config)


def vit():
    config = tf.ViTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=1000
    )
    return _built(tf.ViTForImageClassification, config)


def dit():
    """DiT-XL/2's shape on 32 x 32 latents (Peebles and Xie 2023), its loss made simple."""
    return plain.Dit()


def unet():
    return plain.Unet((128, 256, 512))


def resnet50():
    return plain.ResNet()


def plain_mamba2():
    return plain.Mamba2(8, 1024, 32000)


class Mixer(nn.Module):
    """What somebody writes on an afternoon: a mixer over tokens beside one over channels."""

    def __init__(self, width=1024, tokens=256, layers=12):
        super().__init__()
        self.into = nn.Linear(64, width)
        self.across = nn.ModuleList(nn.Sequential(nn.Linear(tokens, 512), nn.GELU(), nn.Linear(512, tokens))
                                    for _ in range(layers))  # fmt: skip
        self.along = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.out = nn.Linear(width, 1000)

    def forward(self, x, label):
        x = self.into(x)
        for across, along in zip(self.across, self.along, strict=True):
            x = x + across(x.transpose(1, 2)).transpose(1, 2)
            x = x + along(x)
        return fn.cross_entropy(self.out(x.mean(1)).float(), label)


def toy():
    return Mixer()


def _text(samples, seq):
    return f"input_ids={samples}x{seq}:int64,labels={samples}x{seq}:int64"


# name -> inputs; the first number of the first is samples. Pictures: see `_pictures`.
MODELS = {
    "llama": _text(8, 2048), "qwen3_moe": _text(8, 2048), "gemma3_text": _text(6, 2048),
    "mamba2": _text(4, 2048), "falcon_h1": _text(4, 2048), "nemotron_h": _text(4, 2048), "granite4": _text(2, 2048),
    "qwen3_next": _text(8, 2048), "kimi_linear": _text(4, 2048), "minimax": _text(8, 2048), "lfm2": _text(8, 2048),
    "deepseek_v32": _text(4, 2048), "bert": "input_ids=48x512:int64,labels=48x512:int64",
    "t5": "input_ids=48x512:int64,labels=48x256:int64",
    "vit": "pixel_values=128x3x224x224,labels=128:int64",
    "whisper": "input_features=24x80x3000,labels=24x256:int64",
    "dit": "x=64x4x32x32,t=64x256,label=64:int64", "unet": "x=64x3x128x128",
    "resnet50": "x=256x3x224x224,label=256:int64", "plain_mamba2": "ids=16x2048:int64",
    "toy": "x=128x256x64,label=128:int64",
    "qwen2_5_vl": "pictures=12", "qwen3_vl": "pictures=12", "gemma3": "pictures=8", "internvl": "pictures=12",
}  # fmt: skip
SEQ = 2048


def _pictures(name, samples, device):
    """One picture a sample: patches as the model's processor gives them, their places among the tokens."""
    ids = torch.randint(0, 32000, (samples, SEQ), device=device)
    more = {}
    if name in {"qwen2_5_vl", "qwen3_vl"}:
        side = 48  # patches: 672 or 768 pixels a side
        patch = 14 if name == "qwen2_5_vl" else 16
        more["pixel_values"] = torch.randn(samples * side * side, 3 * 2 * patch * patch, device=device).bfloat16()
        more["image_grid_thw"] = torch.tensor([[1, side, side]] * samples, device=device)
        tokens = side * side // 4
        more["mm_token_type_ids"] = torch.zeros(samples, SEQ, dtype=torch.int32, device=device)
        more["mm_token_type_ids"][:, 8 : 8 + tokens] = 1
    elif name == "gemma3":
        more["pixel_values"] = torch.randn(samples, 3, 896, 896, device=device).bfloat16()
        tokens = 256
        more["token_type_ids"] = torch.zeros(samples, SEQ, dtype=torch.int64, device=device)
        more["token_type_ids"][:, 8 : 8 + tokens] = 1
    else:
        more["pixel_values"] = torch.randn(samples, 3, 448, 448, device=device).bfloat16()
        tokens = 256
    ids[:, 8 : 8 + tokens] = IMAGE
    labels = ids.clone()
    labels[ids == IMAGE] = -100
    return {"input_ids": ids, "labels": labels, **more}


def given(name, device, *, least=False):
    """What the model is called with, drawn; `least`: one sample, of 128 tokens, so that the host alone takes time."""
    text = MODELS[name]
    if text.startswith("pictures"):
        return _pictures(name, 1 if least else int(text.split("=")[1]), device)
    if least:
        text = re.sub(r"=\d+(x\d+(?=:int64))?", lambda found: "=1x128" if found[1] else "=1", text)
    drawn = {}
    for part in text.split(","):
        key, rest = part.split("=")
        sizes, _, kind = rest.partition(":")
        shape = tuple(map(int, sizes.split("x")))
        if kind == "int64":
            drawn[key] = torch.randint(1, 1000, shape, device=device)
        else:
            drawn[key] = torch.randn(shape, device=device).bfloat16()
    return drawn


def made(name, device):
    with torch.device(device):
        torch.manual_seed(1)
        module = globals()[name]()
    for part in (*module.parameters(), *module.buffers()):
        if part.is_floating_point():
            part.data = part.data.bfloat16()
    return module.train()


def _loss(out):
    return out if isinstance(out, torch.Tensor) else out.loss


def measured(name, steps=10):
    torch.cuda.empty_cache()
    module = made(name, "cuda")
    inputs = given(name, "cuda")
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True)
    began = time.time()
    _steps(module, inputs, optimizer, 0)
    steps = steps if time.time() - began < 2 else 4
    times, peak, after, value = _steps(module, inputs, optimizer, steps)
    whole = [sum(one) for one in times]
    row = {
        "id": name, "inputs": MODELS[name], "params": sum(one.numel() for one in module.parameters()),
        "step_ms": statistics.median(whole), "least_ms": min(whole),
        "spread": (max(whole) - min(whole)) / statistics.median(whole), **_parts(times), **peak,
        "static": torch.cuda.memory_allocated() - sum(one.nbytes for one in inputs.values()),
        "inputs_bytes": sum(one.nbytes for one in inputs.values()), "after_forward": after, "loss": value,
        "finite": math.isfinite(value), "kernels": _kernels(module, inputs, optimizer),
    }  # fmt: skip
    small = given(name, "cuda", least=True)
    row["host"] = _parts(_steps(module, small, optimizer, steps)[0])
    row["host"]["launches"] = _kernels(module, small, optimizer)["launches"]
    return row


def _steps(module, inputs, optimizer, steps):
    """Milliseconds of forward, backward and the update of every step but the first two; peak bytes, bytes after the
    first forward of the second step, the last loss.
    """
    marks, times, after, value, peak = ("begin", "forward", "backward", "end"), [], 0, 0.0, {}
    for step in range(steps + 2):
        events = {mark: torch.cuda.Event(enable_timing=True) for mark in marks}
        torch.cuda.synchronize()
        if step == 1:
            torch.cuda.reset_peak_memory_stats()
        events["begin"].record()
        loss = _loss(module(**inputs))
        events["forward"].record()
        if step == 1:
            after = torch.cuda.memory_allocated()
        loss.backward()
        events["backward"].record()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        events["end"].record()
        torch.cuda.synchronize()
        if step >= 2:
            times.append([events[a].elapsed_time(events[b]) for a, b in pairwise(marks)])
        value = loss.item()
        del loss
    peak = {
        "peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved()
    }  # fmt: skip
    return times, peak, after, value


def _parts(times):
    names = ("forward_ms", "backward_ms", "optimizer_ms")
    return {name: statistics.median(one[index] for one in times) for index, name in enumerate(names)}


def _kernels(module, inputs, optimizer):
    """Of one profiled pass: launches, and torch's operators by name and shapes: milliseconds, calls."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as found:
        _loss(module(**inputs)).backward()
        torch.cuda.synchronize()
    optimizer.zero_grad(set_to_none=True)
    on_device = (one for one in found.key_averages() if one.self_device_time_total)
    launches = sum(one.count for one in on_device if one.device_type.name == "CUDA")
    rows = sorted(
        (
            (round(one.self_device_time_total / 1e3, 5), one.count, one.key, str(one.input_shapes))
            for one in found.key_averages(group_by_input_shape=True)
            if one.device_type.name == "CPU" and one.self_device_time_total
        ),
        reverse=True,
    )
    return {"launches": launches, "ms": sum(row[0] for row in rows), "operators": rows[:400]}


def main():
    out, names = sys.argv[1], sys.argv[2:] or list(MODELS)
    about = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "transformers": tf.__version__,
        "states": "bf16", "attention": "sdpa",
    }  # fmt: skip
    rows, failed = [], {}
    for name in names:
        began = time.time()
        try:
            row = measured(name)
            rows.append(row)
            host = sum(row["host"][part] for part in ("forward_ms", "backward_ms", "optimizer_ms"))
            print(
                f"{name:14s} {row['step_ms']:9.2f} ms  spread {row['spread']:.3f} "
                f"{row['peak_allocated'] / 2**30:7.2f} GiB  {row['kernels']['launches']} kernels of "
                f"{row['kernels']['ms']:.1f} ms, host {host:.1f} ms  {time.time() - began:.0f} s", flush=True,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the others are measured all the same
            failed[name] = traceback.format_exc()[-1500:]
            print(f"{name:14s} FAILED {type(error).__name__}: {str(error)[:300]}", flush=True)
            error.__traceback__ = None
        Path(out).write_text(json.dumps({"about": about, "rows": rows, "failed": failed}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
