"""Steps that the host bounds, with its speed beside each: `python benchmarks/h200_host.py OUT.json [NAME=INPUTS ...]`.

Needs torch and transformers, and `h200_kinds.py` beside this file: its models, and small ones of this file, each with a
given batch and with one sample. Before and behind every step the same small sum is launched sixty times, and sixty
small products run backward: hosts that are shared take 6.5 to 16 us for a sum, and their steps as much longer.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
import transformers as tf

import h200_kinds as kinds

built, text, loss_of = kinds._built, kinds._text, kinds._loss  # noqa: SLF001 - one set of programs
NARROW = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "intermediate_size": 3072}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def small_llama():
    config = tf.LlamaConfig(**{**NARROW, "intermediate_size": 2048}, num_key_value_heads=4, vocab_size=32000)
    return built(tf.LlamaForCausalLM, config)


def small_gpt2():
    config = tf.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return built(tf.GPT2LMHeadModel, config)


def small_bert():
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return built(tf.BertForMaskedLM, tf.BertConfig(**NARROW, vocab_size=30522, **none))


def small_vit():
    config = tf.ViTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536, num_labels=1000
    )
    return built(tf.ViTForImageClassification, config)


def small_t5():
    config = tf.T5Config(
        d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_decoder_layers=8, num_heads=6, vocab_size=32128,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.0, pad_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    return built(tf.T5ForConditionalGeneration, config)


def small_whisper():
    config = tf.WhisperConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, **IDS,
    )  # fmt: skip
    return built(tf.WhisperForConditionalGeneration, config)


def small_mamba2():
    return kinds.plain.Mamba2(6, 512, 32000)


def small_mixer():
    return kinds.Mixer(width=512, tokens=128, layers=16)


SMALL = {
    "small_llama": text(4, 512), "small_gpt2": text(4, 512), "small_bert": text(8, 128),
    "small_vit": "pixel_values=16x3x224x224,labels=16:int64", "small_t5": "input_ids=8x256:int64,labels=8x128:int64",
    "small_whisper": "input_features=4x80x3000,labels=4x128:int64", "small_mamba2": "ids=2x1024:int64",
    "small_mixer": "x=16x128x64,label=16:int64",
}  # fmt: skip


def sums():
    """Microseconds of the host for a small sum, and for one of a chain of products in backward, another thread's."""
    x = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = x
    for _ in range(60):
        out = out * 2.0
    found = []
    for call in (lambda: [x + x for _ in range(60)], out.sum().backward):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        found.append(round((time.perf_counter() - began) / 60 * 1e6, 2))
    torch.cuda.synchronize()
    return found


def steps(module, inputs, optimizer, count):
    """Milliseconds of forward, backward and update of every step, and `sums` before and behind it."""
    times, refs = [], []
    for step in range(count + 3):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        before = sums()
        if step == 3:
            torch.cuda.reset_peak_memory_stats()
        events[0].record()
        loss = loss_of(module(**inputs))
        events[1].record()
        loss.backward()
        events[2].record()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        events[3].record()
        torch.cuda.synchronize()
        del loss
        if step >= 3:
            times.append([round(a.elapsed_time(b), 3) for a, b in pairwise(events)])
            refs.append([before, sums()])
    return {"step_ms": median(map(sum, times)), "times": times, "sums": refs,
            "peak_allocated": torch.cuda.max_memory_allocated()}  # fmt: skip


def measured(name, inputs):
    torch.cuda.empty_cache()
    kinds.MODELS[name] = inputs
    if not hasattr(kinds, name):
        setattr(kinds, name, globals()[name])
    module = kinds.made(name, "cuda")
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True)
    row = {"id": name, "inputs": inputs, "params": sum(one.numel() for one in module.parameters())}
    for key in ("batch", "one"):
        given = kinds.given(name, "cuda", least=key == "one")
        row[key] = steps(module, given, optimizer, 12)
        row[key]["inputs_bytes"] = sum(one.nbytes for one in given.values())
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            loss_of(module(**given)).backward()
            torch.cuda.synchronize()
        events = [one for one in found.events() if one.device_type.name == "CUDA"]
        row[key] |= {"launches": len(events), "device_ms": sum(one.device_time for one in events) / 1e3}
        optimizer.zero_grad(set_to_none=True)
    return row


def main():
    out, asked = sys.argv[1], dict(one.split("=", 1) for one in sys.argv[2:]) or {**SMALL}
    rows = []
    for name, inputs in asked.items():
        row = measured(name, inputs or kinds.MODELS.get(name) or SMALL[name])
        rows.append(row)
        told = (f"{key} {row[key]['step_ms']:.1f} ms of {row[key]['device_ms']:.1f}" for key in ("batch", "one"))
        print(name, *told, row["batch"]["sums"][6], flush=True)
        Path(out).write_text(json.dumps({"torch": torch.__version__, "rows": rows}), encoding="utf-8")


if __name__ == "__main__":
    main()
