"""Questions for the tests of the search: small enough to try every strategy, or real ones to draw from."""

from __future__ import annotations

import random
from dataclasses import replace

from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model, Moe
from shardwise.inputs.strategy import Strategy
from shardwise.search.question import Question
from shardwise.search.wishes import read_wishes

REAL = (
    ("llama-3-70b", "1024xh100", 1024, 8192, "megatron"),
    ("deepseek-v3", "2048xh100", 16384, 4096, "megatron"),
    ("gpt-3-175b", "64xa100", 64, 2048, "megatron"),
    ("llama-3-8b", "64xh100", 256, 8192, "torchtitan"),
    ("mixtral-8x7b", "64xh100", 256, 4096, "megatron"),
    ("gemma-2-9b", "32xh100", 128, 4096, "deepspeed"),
    ("qwen3-30b-a3b", "32xh200", 256, 4096, "megatron"),
    ("deepseek-v3", "512xh100", 2048, 4096, "torchtitan"),
    ("llama-3.1-405b", "512xb200", 512, 8192, "megatron"),
    ("llama-3-8b", "24xa100", 48, 4096, "mindformers"),
    ("gpt-oss-120b", "64xh100", 256, 4096, "megatron"),
)


def asked(model, cluster, batch, seq, runtime="megatron", only=""):
    machines = load_cluster(cluster)
    wishes, other = read_wishes(only)
    base = Strategy(global_batch=batch, seq=seq, runtime=runtime, **other)
    return Question(
        model=load_model(model) if isinstance(model, str) else model,
        cluster=machines,
        runtime=load_runtime(runtime),
        base=base,
        wishes=wishes,
        memory_limit=machines.gpu.memory * 0.96,
    )


def small_model(rng: random.Random) -> Model:
    moe = rng.random() < 0.3
    heads = rng.choice([8, 12, 16])
    model = Model(
        name="small",
        layers=rng.choice([4, 5, 6, 8, 9]),
        hidden=heads * 128,
        heads=heads,
        kv_heads=rng.choice([4, heads]),
        head_size=128,
        ffn=rng.choice([4, 8]) * heads * 64,
        vocab=rng.choice([32000, 128256, 256000]),
        tied=rng.random() < 0.3,
        mtp=rng.choice([0, 0, 1]) if moe else 0,
    )
    experts = Moe(experts=8, top_k=2, expert_ffn=1024, first_dense=rng.choice([0, 1]))
    return replace(model, moe=experts) if moe else model


def small_question(seed: int) -> Question:
    """A few hundred strategies at most."""
    rng = random.Random(seed)  # noqa: S311
    runtime = rng.choice(["megatron", "torchtitan", "mindformers", "zero-bubble"])
    only = rng.choice(
        ["cp=1 mbs<=2 zero<=1 sp=on hsdp=0", "cp<=2 tp<=2 mbs=1 zero=1,2 hsdp=0", "tp<=2 cp=1 mbs=1,4 vpp<=2 zero=0,2"]
    )
    recomputes = rng.sample(["none", "full", "mlp", "attention-norm+mlp-norm", "full:1", "full:auto"], 3)
    only += " recompute=" + ",".join(recomputes)
    question = asked(small_model(rng), rng.choice(["4xh100", "8xa100"]), rng.choice([8, 16]), 2048, runtime, only)
    return replace(question, memory_limit=rng.uniform(6e9, 30e9))
