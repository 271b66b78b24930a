"""Rows of published training runs (the form of `published.json`) as cases."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from shardwise.errors import UnknownNameError
from shardwise.frameworks.simumax import read as simumax
from shardwise.inputs.layers import own_cut, with_layers
from shardwise.inputs.load import load_runtime, named_model
from shardwise.inputs.model import Mla, Model, Moe
from shardwise.inputs.recompute import MODULES, Recompute
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.site import Site
from shardwise.inputs.strategy import Strategy
from shardwise.measure.validate.case import PRECISIONS, MeasuredRun, Skipped
from shardwise.measure.validate.frameworks import cluster_for, runtime_for, site_for, with_overlap
from shardwise.measure.validate.recipes import dropped, formats_of, own_layers, unprinted
from shardwise.measure.validate.simumax_runs import model_file
from shardwise.measure.validate.unsaid import mildest

Row = dict[str, Any]

SCHEDULES = {
    "zb-1p": "zb-1p",
    "zb-2p": "zb-2p",
    "zb-v": "zb-v",
    "zb-h1": "zb-h1",
    "zb-h2": "zb-h2",
    "gpipe": "gpipe",
    "dualpipe": "dualpipe-v",  # the same passes in half the parameters: two half stages in place of two whole ones
}
V_SHAPED = {"zb-v", "dualpipe-v"}


def read(row: Row) -> MeasuredRun | Skipped:
    """One row, its fields already checked, as a case, or the reason why it cannot be one."""
    return _case(row, {"id": str(row.get("id", "?")), "source": str(row.get("source_key", "?"))})


def _case(row: Row, identity: dict[str, Any]) -> MeasuredRun | Skipped:
    page = str((row.get("source") or {}).get("path", ""))
    runtime = runtime_for(row["framework"], page, str(row["gpu"].get("type", "")))
    if runtime is None:
        return Skipped(**identity, reason=f"no runtime stands for the framework {row['framework']!r}")
    cluster = cluster_for(row["gpu"], int(row["num_gpus"]))
    if cluster is None:
        return Skipped(**identity, reason=f"the catalog has no GPU like {row['gpu'].get('type')!r}")
    notes: list[str] = []
    model = model_of(row)
    runtime = _tuned(row, runtime)
    strategy = _strategy(row, model, runtime, notes)
    if "simumax" in row["source_key"]:
        theirs, settings = simumax_files(model, strategy)
        model, strategy = simumax.read_model(theirs).model, simumax.read_strategy(settings).strategy
        runtime = load_runtime(strategy.runtime)
    strategy = with_layers(model.layers, strategy)
    # only of runtimes whose recipes are known to recompute parts of a layer
    if row["parallel"]["recompute"] is None and "modules" in runtime.can.recompute and _measured(row).get("fits"):
        recompute = mildest(model, cluster, strategy, runtime)
        if recompute != strategy.recompute:
            strategy = replace(strategy, recompute=recompute)
            notes.append(f"recompute not stated: {recompute}, the mildest that fits")
    return MeasuredRun(
        **identity,
        gpu=str(row["gpu"].get("family")),
        precision=str(row["precision"]["compute"]),
        complete=row.get("completeness") in {"full", "minor"},
        composed=str(row.get("notes") or "").startswith("COMPOSED"),
        model=model,
        cluster=replace(cluster, site=_site(row)),
        strategy=strategy,
        runtime=runtime,
        measured=_measured(row),
        memory_kind=_memory_kind(row),
        group=_group(row),
        notes=tuple(notes),
    )


def simumax_files(model: Model, strategy: Strategy) -> tuple[Row, Row]:
    """A run of SimuMax's as the files that its release notes describe, for the importer that everybody uses: fused
    cross entropy, Transformer Engine 2.11, probabilities sent with the tokens, nothing overlapped.
    """
    told = {
        "cross_entropy_loss_fusion": True, "pp_comm_async": False, "te_version": "2.11.0", "dispatch_probs": True,
    }  # fmt: skip
    return model_file(model), {**simumax.write_strategy(strategy), **told}


def model_of(row: Row) -> Model:
    """The model of a row; biases follow the position embedding's age: learned positions come with biases."""
    m = row["model"]
    learned = m["pos_emb"] in {"learned", "learned/alibi", "alibi"}
    biased = learned and "mpt" not in str(m["name"])
    activation = "swiglu" if m["gated_mlp"] else ("gelu" if m.get("activation") != "squared-relu" else "squared-relu")
    return Model(
        name=str(m["name"]),
        layers=int(m["layers"]),
        hidden=int(m["hidden"]),
        heads=int(m["heads"]),
        kv_heads=int(m["kv_heads"] or m["heads"]),
        head_size=int(m.get("head_dim") or m["hidden"] // m["heads"]),
        ffn=int(m["ffn"]),
        vocab=int(m["vocab"]),
        activation=activation,  # type: ignore[arg-type]
        norm="layernorm" if learned else "rmsnorm",
        position="rope"
        if str(m["pos_emb"]).startswith("rope")
        else ("alibi" if m["pos_emb"] == "alibi" else "learned"),
        max_positions=int(m["seq_len"]),
        tied=bool(m["tied_embeddings"]),
        qkv_bias=biased,
        out_bias=biased,
        mlp_bias=biased,
        windows=_windows(m),
        mla=_mla(m.get("mla")),
        moe=_moe(row),
        mtp=int(m.get("mtp_layers") or 0),
    )


def _windows(m: Row) -> tuple[int, ...]:
    """gpt-oss alternates windows of 128 tokens with full attention."""
    return (128, 0) if "sliding" in str(m.get("attention", "")) or "gpt-oss" in str(m["name"]) else ()


def _mla(given: Row | None) -> Mla | None:
    if not given:
        return None
    return Mla(
        kv_rank=int(given["kv_lora_rank"]),
        nope_size=int(given["qk_head_dim"]),
        rope_size=int(given["qk_rope_head_dim"]),
        value_size=int(given["v_head_dim"]),
        q_rank=int(given.get("q_lora_rank") or 0),
    )


@cache
def _groups(name: str) -> tuple[int, int]:
    """Groups of experts, which rows do not say, and how many of them serve a token: as the catalog's model has them."""
    try:
        known = named_model(name).moe
    except UnknownNameError:
        known = None
    return (known.groups, known.top_groups) if known else (1, 1)


def _moe(row: Row) -> Moe | None:
    given, name = row["model"].get("moe"), str(row["model"]["name"])
    if not given:
        return None
    groups, top_groups = _groups(name)
    return Moe(
        groups=groups,
        top_groups=top_groups,
        experts=int(given["experts"]),
        top_k=int(given["topk"]),
        expert_ffn=int(given["moe_ffn"]),
        shared_ffn=int(given.get("shared_ffn") or 0),
        first_dense=int(given.get("dense_layers") or 0),
        capacity=float(given["capacity_factor"]) if given.get("pad_to_capacity") else (1.0 if dropped(row) else None),
    )


def _strategy(row: Row, model: Model, runtime: Runtime, notes: list[str]) -> Strategy:
    p = row["parallel"]
    layers = own_layers(row)
    vpp = int(p.get("vpp") or len(layers) // int(p["pp"] or 1) or 1)
    micro = int(p["micro_batch"] or 0)
    if not micro:
        # torchtitan cuts a replica's batch into as many micro batches as there are stages
        micro = max(1, int(p.get("local_batch") or 1) // int(p["pp"] or 1))
        notes.append(f"micro batch not stated: {micro}")
    schedule, vpp = _schedule(p, vpp)
    zero = 3 if p.get("fsdp") == "FSDP" else int(p["zero_stage"] if p["zero_stage"] is not None else 1)
    degrees: dict[str, Any] = {name: int(p.get(name) or 1) for name in ("tp", "pp", "dp", "cp", "ep")}
    global_batch = int(p["global_batch"])
    if p.get("num_microbatches"):
        global_batch = int(p["num_microbatches"]) * degrees["dp"] * micro
    # Megatron splits experts as it splits layers where nothing else is said; the recipes of its Bridge say 1
    splits = model.moe and runtime.base.startswith("megatron") and "bridge" not in row["framework"].lower()
    etp = int(p.get("etp") or (degrees["tp"] if splits else 1))
    fields: dict[str, Any] = dict(
        **degrees,
        vpp=vpp,
        etp=etp,
        sp=bool(p["sequence_parallel"])
        if p["sequence_parallel"] is not None
        else runtime.name.startswith("torchtitan"),
        cp_kind="all-to-all" if "a2a" in str(p.get("cp_comm", "")).lower() else "ring",
        zero=zero,
        zero_group=_zero_group(p),
        micro_batch=micro,
        global_batch=global_batch,
        seq=int(row["model"]["seq_len"]),
        schedule=schedule,
        placement="v" if schedule in V_SHAPED else "loop",
        recompute=recompute_of(p["recompute"], model),
        layers=layers or _layers(p, model, vpp) or own_cut(model, runtime, int(p["pp"] or 1), vpp),
        dtype=PRECISIONS[row["precision"]["compute"]],
        **formats_of(row),
        runtime=runtime.name,
        flash=row["flash_attention"] is not False,
        compile=bool(row.get("compile")) or runtime.kernels.compiled,
        cuda_graphs="layer" if row.get("cuda_graphs") else "none",
    )
    return Strategy(**{**fields, **unprinted(row, notes)})


def _schedule(p: Row, vpp: int) -> tuple[str, int]:
    text = str(p.get("schedule") or "").lower()
    named = next((name for key, name in SCHEDULES.items() if text.startswith(key)), None)
    if named:
        return named, (2 if named in V_SHAPED else 1)
    if int(p["pp"] or 1) == 1:
        return "1f1b", 1
    return ("interleaved", vpp) if vpp > 1 else ("1f1b", 1)


def _zero_group(p: Row) -> int:
    for key in ("zero1_group", "fsdp_size", "hsdp_shard"):
        if p.get(key):
            whole = int(p["dp"]) * int(p.get("cp") or 1)
            return min(int(p[key]), whole) if str(p[key]).isdigit() else 0
    return 0


def _layers(p: Row, model: Model, vpp: int) -> tuple[int, ...]:
    """Stage sizes; slots that embeddings took are given back where the sum says so."""
    given = p.get("pp_layers_per_stage")
    if isinstance(given, list) and sum(given) == model.layers and len(given) == int(p["pp"]):
        return tuple(int(n) for n in given)
    chunks = int(p["pp"] or 1) * vpp
    each, rest = divmod(model.layers + 2, chunks)
    if chunks > 1 and model.layers % chunks and not rest:
        # embedding and output layer take the place of one layer each
        return (each - 1, *([each] * (chunks - 2)), each - 1)
    return ()


_MODULES = (
    ("mla_up_proj", ("mla-up",)),
    ("moe_act", ("moe-act",)),
    ("mlp", ("mlp",)),
    ("layernorm", ("attention-norm", "mlp-norm")),
)


def recompute_of(text: str | None, model: Model) -> Recompute:
    """A source's words for recompute; what it does not state counts as none here."""
    words = str(text or "none").lower()
    # Megatron's mlp is that of dense layers alone
    named = [ours for theirs, ours in _MODULES if theirs in words and not (theirs == "mlp" and model.moe)]
    modules = sorted({part for ours in named for part in ours}, key=MODULES.index)
    if modules and not words.startswith(("full", "selective")):
        return Recompute(modules=tuple(modules))
    if words.startswith("full") or "every 2nd layer" in words or "block fraction" in words:
        return Recompute(full=True, layers=() if words.startswith("full") else (model.layers // 2,))
    if "op-level" in words:
        return Recompute(modules=("ops",))
    if words.startswith("minimal"):
        return Recompute(modules=("attention-norm", "mlp-norm", "activation"))
    if words.startswith("selective"):
        return Recompute(modules=("core-attention",))
    return Recompute()


def _tuned(row: Row, runtime: Runtime) -> Runtime:
    runtime = with_overlap(runtime, row.get("comm_overlap"))
    kernel = str(row.get("attention_kernel") or "")
    kernels = runtime.kernels
    if kernel and "RMS" not in kernel:
        kernels = replace(kernels, norm="eager")
    if kernel in {"flash_attentionv1.0.8", "flash_attention"}:
        kernels = replace(kernels, attention="flash1")
    if kernel == "torch":
        kernels = replace(kernels, softmax_bytes=6.0, softmax_work=8.0)
    if "megatron bridge" in str(row["framework"]).lower():
        kernels = replace(kernels, loss="fused")  # all its recipes fuse the cross entropy
    if row["parallel"].get("async_tp"):
        runtime = replace(runtime, overlap=replace(runtime.overlap, tp=0.6))
    return replace(runtime, kernels=kernels)


def _measured(row: Row) -> dict[str, float | bool]:
    measured, derived = row["measured"], row.get("derived", {})
    found: dict[str, float | bool] = {}
    seconds = measured.get("iteration_time_s") or derived.get("iteration_time_s")
    if seconds:
        found["iteration_seconds"] = float(seconds)
    if measured.get("peak_memory_gb"):
        found["peak_bytes"] = float(measured["peak_memory_gb"]) * 1e9
    if row["kind"] == "oom" or measured.get("oom"):
        found["fits"] = False
    elif seconds:
        found["fits"] = True
    return found


def _site(row: Row) -> Site:
    return site_for(row["source_key"], str(row["gpu"].get("family", "")), str(row.get("notes") or ""))


def _memory_kind(row: Row) -> str:
    text = str(row["measured"].get("peak_memory_kind", "")).lower()
    if "reserved" in text:
        return "reserved"
    return "device" if "nvidia-smi" in text or "tool not stated" in text else "allocated"


def _group(row: Row) -> str:
    """Runs of one source that differ only in layout: same model, sequence, GPUs and global batch."""
    m, p = row["model"], row["parallel"]
    return "/".join(str(x) for x in (row["source_key"], m["name"], m["seq_len"], row["num_gpus"], p["global_batch"]))
