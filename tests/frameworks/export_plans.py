"""Plans of every shape that pass the checks, for hypothesis, and what a strategy says in one table."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from shardwise.check.check import check
from shardwise.cost.chunk import recomputed_layers
from shardwise.frameworks.load import load_cluster
from shardwise.inputs.layers import spread
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Mla, Model, Moe
from shardwise.inputs.recompute import MODULES, Recompute
from shardwise.inputs.strategy import V_SCHEDULES, Strategy
from shardwise.plan.plan import Plan

DENSE = Model(name="dense", layers=24, hidden=1024, heads=16, kv_heads=8, head_size=64, ffn=4096, vocab=32000)
TALL = Model(name="tall", layers=25, hidden=1024, heads=16, kv_heads=16, head_size=128, ffn=4096, vocab=32000, mtp=1,
             qkv_bias=True, tied=True, qk_norm="head")  # fmt: skip
EXPERTS = Model(
    name="experts", layers=16, hidden=1024, heads=16, kv_heads=16, head_size=64, ffn=4096, vocab=32000,
    mla=Mla(kv_rank=256, nope_size=64, rope_size=32, value_size=64, q_rank=384),
    moe=Moe(experts=16, top_k=4, expert_ffn=512, shared_ffn=512, first_dense=1),
)  # fmt: skip
MODELS = (DENSE, TALL, EXPERTS)


def plan_of(strategy: Strategy, model: Model = DENSE, **parts) -> Plan:
    return Plan(model=model, cluster=load_cluster(f"{strategy.world}xb200"), strategy=strategy, **parts)


@st.composite
def plans(draw, runtime="megatron", schedules=("1f1b", "interleaved", "zb-h1", "zb-v"), zeros=(0, 1, 2, 3)):
    """A plan that the checks let pass; most draws are made to fit."""
    of = st.sampled_from
    model = draw(of(MODELS))
    pp = draw(of((1, 2, 4)))
    schedule = draw(of(schedules)) if pp > 1 else "1f1b"
    vpp = 2 if schedule in V_SCHEDULES else draw(of((2, 3))) if schedule == "interleaved" else 1
    tp, cp, dp = draw(of((1, 2, 4))), draw(of((1, 2))), draw(of((1, 2, 4)))
    ep = draw(of((1, 2, 4))) if model.moe else 1
    micro, passes = draw(of((1, 2))), draw(of((1, 2, 4))) * (max(1, pp))
    layers = draw(st.just(()) | uneven(model.layers, pp * vpp)) if pp > 1 else ()
    strategy = Strategy(
        tp=tp, pp=pp, vpp=vpp, dp=dp, cp=cp, ep=ep, etp=draw(of((1, tp))) if model.moe else 1,
        sp=draw(st.booleans()), cp_kind=draw(of(("ring", "all-gather", "all-to-all"))), zero=draw(of(zeros)),
        zero_group=draw(of((0, *(n for n in (dp, cp) if n > 1)))), micro_batch=micro,
        global_batch=micro * passes * dp, seq=2048,
        schedule=schedule, placement="v" if schedule in V_SCHEDULES else "loop",
        recompute=draw(recomputes(model, pp, vpp)), layers=layers,
        **draw(st.just({}) | numbers()),
        runtime=runtime,
    )  # fmt: skip
    plan = plan_of(strategy, model)
    assume(not check(plan.model, plan.cluster, strategy, load_runtime(runtime)))
    return plan


def numbers():
    """Formats, optimizers and switches: half of the plans leave them alone, so that some can be said in full."""
    of = st.sampled_from
    return st.fixed_dictionaries(
        {
            "dtype": of(("bf16", "fp16", "fp32", "fp8", "mxfp8")),
            "master": of(("mixed", "pure")),
            "grad_dtype": of(("fp32", "bf16")),
            "optimizer": of(("adamw", "adamw-bf16", "muon", "sgd")),
            "offload": of(("none", "optimizer")),
            "flash": st.booleans(),
            "compile": st.booleans(),
            **dict.fromkeys(("fp8_weights", "fp8_attention"), st.booleans()),
            "scaling": of(("tensor", "delayed", "row", "block")),
            "cuda_graphs": of(("none", "attention", "layer")),
            "dispatcher": of(("all-to-all", "all-gather", "deepep", "hybridep")),
        }
    )


@st.composite
def uneven(draw, layers, chunks):
    """Layers of every chunk: one at least, but for the ends."""
    left = [draw(st.integers(0, 3)) for _ in range(chunks)]
    weights = [weight + (0 < index < chunks - 1) for index, weight in enumerate(left)]
    total = sum(weights) or 1
    counts = [layers * weight // total for weight in weights]
    counts[1 if chunks > 2 else 0] += layers - sum(counts)
    return tuple(counts)


def uneven_layers(chance, layers, chunks):
    """Layers of every chunk, some more than others, each one at least."""
    counts = [layers // chunks] * chunks
    for _ in range(layers - sum(counts)):
        counts[chance.randrange(chunks)] += 1
    if counts[0] > 1:
        counts[0] -= 1
        counts[chance.randrange(1, chunks)] += 1
    return tuple(counts)


@st.composite
def recomputes(draw, model, pp, vpp):
    kind = draw(st.sampled_from(("none", "full", "block", "uniform", "list", "modules", "modules list")))
    most = model.layers // (pp * vpp)
    counts = tuple(draw(st.lists(st.integers(0, most), min_size=pp * vpp, max_size=pp * vpp)))
    names = [name for name in MODULES if name not in {"mla-up", "moe-act"} or model.moe]
    chosen = draw(st.sets(st.sampled_from(names), min_size=1, max_size=3))
    modules = tuple(sorted(chosen, key=MODULES.index))
    return {
        "none": Recompute(),
        "full": Recompute(full=True),
        "block": Recompute(full=True, layers=(draw(st.integers(1, most)),)),
        "uniform": Recompute(full=True, group=2),
        "list": Recompute(full=True, layers=counts),
        "modules": Recompute(modules=modules),
        "modules list": Recompute(modules=modules, layers=counts),
    }[kind]


def said(strategy: Strategy, model: Model) -> dict[str, object]:
    """What a strategy makes a framework do, without the ways to write it."""
    s = strategy
    layers = spread(model.layers, s)
    counts = tuple(recomputed_layers(s, chunk, tuple(layers), count) for chunk, count in enumerate(layers))
    table: dict[str, object] = {
        "tp": s.tp, "pp": s.pp, "dp": s.dp, "cp": s.cp, "micro_batch": s.micro_batch, "global_batch": s.global_batch,
        "seq": s.seq, "dtype": s.dtype, "optimizer": s.optimizer, "offload": s.offload, "flash": s.flash,
        "compile": s.compile, "grad_dtype": s.grad_dtype, "recompute": _recompute(s.recompute, counts),
    }  # fmt: skip
    table |= {name: value for name in ("fp8_weights", "fp8_attention") if (value := getattr(s, name))}
    if s.dtype == "fp8" and s.scaling != "tensor":
        table["scaling"] = s.scaling
    if s.cuda_graphs != "none":
        table["cuda_graphs"] = s.cuda_graphs
    if s.tp > 1:
        table["sp"] = s.sp
    if s.cp > 1:
        table["cp_kind"] = s.cp_kind
    if s.dp * s.cp > 1:
        table |= {"zero": s.zero} | ({"shard": s.shard_group} if s.zero else {})
    if model.moe:
        table |= {"ep": s.ep, "etp": s.etp}
    if model.moe and s.ep > 1 and s.dispatcher != "all-to-all":
        table["dispatcher"] = s.dispatcher
    if s.pp > 1:
        table |= {"vpp": s.vpp, "layers": layers, "schedule": s.schedule, "placement": s.placement}
    return table


def _recompute(recompute: Recompute, counts: tuple[int, ...]) -> object:
    """`comm` is left out: but for MindFormers, what is gathered is gathered again in any case."""
    modules = frozenset(recompute.modules) - {"comm"}
    if not any(counts) or not (recompute.full or modules):
        return None
    return ("full", recompute.group, counts) if recompute.full else (modules, counts)
