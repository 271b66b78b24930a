"""Inputs that the tests share: small, whole and valid."""

from __future__ import annotations

from hypothesis import strategies as st

from shardwise.inputs.cluster import Cluster, Gpu, Level
from shardwise.inputs.documents import Documents, documents_of
from shardwise.inputs.model import Mla, Model, Moe
from shardwise.inputs.recompute import MODULES, Recompute
from shardwise.inputs.runtime import Abilities, Runtime
from shardwise.inputs.strategy import SCHEDULES, Lora, Strategy

DENSE = Model(name="dense", layers=32, hidden=4096, heads=32, kv_heads=8, head_size=128, ffn=14336, vocab=128256)
MOE = Model(
    name="moe", layers=28, hidden=2048, heads=16, kv_heads=16, head_size=128, ffn=10944, vocab=102400,
    mla=Mla(kv_rank=512, nope_size=128, rope_size=64, value_size=128),
    moe=Moe(experts=160, top_k=6, expert_ffn=1408, shared_ffn=2816, first_dense=1),
)  # fmt: skip
H100 = Gpu(
    name="h100", memory=80e9, bandwidth=3.35e12, flops={"bf16": 989e12, "fp16": 989e12, "fp8": 1979e12, "fp32": 67e12}
)
V100 = Gpu(name="v100", memory=32e9, bandwidth=0.9e12, flops={"fp16": 125e12, "fp32": 15.7e12})
MEGATRON = Runtime(name="megatron")
TITAN = Runtime(
    name="torchtitan",
    can=Abilities(zero=(2, 3), hsdp=True, cp=("ring",), etp=False, zero_with_pp=(2, 3), recompute=("full", "modules")),
)


def cluster(gpus: int, gpu: Gpu = H100) -> Cluster:
    levels = (
        Level(name="nvlink", size=8, bandwidth=450e9, latency=3e-6),
        Level(name="spine", size=max(16, -(-gpus // 8) * 8), bandwidth=50e9, latency=8e-6),
    )
    return Cluster(name=f"{gpus}x{gpu.name}", gpu=gpu, gpus=gpus, levels=levels)


def recomputes() -> st.SearchStrategy[Recompute]:
    counts = st.lists(st.integers(0, 99), max_size=4).map(tuple)
    whole = st.builds(Recompute, full=st.just(value=True), layers=counts, group=st.integers(1, 9))
    names = st.sets(st.sampled_from(MODULES), min_size=1).map(lambda some: tuple(sorted(some, key=MODULES.index)))
    parts = st.builds(Recompute, modules=names, layers=counts)
    return st.just(Recompute()) | whole | parts


def documents() -> st.SearchStrategy[Documents]:
    """Histograms of a few lengths."""
    tables = st.dictionaries(st.integers(1, 10**6), st.integers(1, 10**6), min_size=1, max_size=5)
    return tables.map(lambda table: documents_of(((one, float(count)) for one, count in table.items()), "documents"))


ANY_NUMBER = st.integers(-3, 4096)


def strategies(numbers: st.SearchStrategy[int] = ANY_NUMBER) -> st.SearchStrategy[Strategy]:
    """Strategies of every shape, most of them wrong."""
    of = st.sampled_from
    targets = st.sets(of(("qkv", "out", "mlp"))).map(lambda some: tuple(sorted(some)))
    return st.builds(
        Strategy,
        **dict.fromkeys(("tp", "pp", "vpp", "dp", "cp", "ep", "etp", "micro_batch", "global_batch", "seq"), numbers),
        **dict.fromkeys(("zero_group", "group", "first_layers", "last_layers"), st.just(0) | numbers),
        **dict.fromkeys(
            ("sp", "flash", "count_embedding", "count_head", "fp8_weights", "fp8_attention"), st.booleans()
        ),
        cp_kind=of(("ring", "all-gather", "all-to-all")),
        zero=of((0, 1, 2, 3)),
        schedule=of(SCHEDULES),
        placement=of(("loop", "v")),
        recompute=recomputes(),
        layers=st.just(()) | st.lists(st.integers(0, 99), min_size=1, max_size=6).map(tuple),
        dtype=of(("fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4")),
        master=of(("mixed", "pure", "autocast")),
        grad_dtype=of(("fp32", "bf16")),
        optimizer=of(("adamw", "adamw-bf16", "muon", "sgd")),
        lora=st.none() | st.builds(Lora, rank=st.integers(-1, 256), targets=targets),
        offload=of(("none", "optimizer", "activations")),
        cuda_graphs=of(("none", "attention", "layer")),
        scaling=of(("tensor", "delayed", "row", "block")),
        documents=st.none() | documents(),
        packing=of(("packed", "balanced", "unmasked", "padded")),
        runtime=of(("megatron", "torchtitan", "my-own_2.0")),
        straggler=st.floats(1, 10, allow_nan=False),
    )
