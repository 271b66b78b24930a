"""A Megatron-LM launch script or argument list (flags as in its main branch of August 2026)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from shardwise.errors import Fault, InputError
from shardwise.frameworks.imported import ImportDraft, Imported, back
from shardwise.frameworks.megatron.hybrid import PATTERN, chunk_layers
from shardwise.frameworks.megatron.names import (
    MEGATRON_ALSO,
    MEGATRON_CP_KINDS,
    MEGATRON_DISPATCHERS,
    MEGATRON_NUMBERS,
    MEGATRON_OPTIMIZERS,
    MEGATRON_RECOMPUTED,
    MEGATRON_SCALING,
    MEGATRON_SHARDING,
    MEGATRON_SWITCHES,
)
from shardwise.frameworks.megatron.read_model import SWITCHES, read_model
from shardwise.frameworks.shell import Flags, flags
from shardwise.inputs.recompute import MODULES, Recompute

_NUMBERS = {
    **back(MEGATRON_NUMBERS),
    **{theirs: ours for ours, names in MEGATRON_ALSO.items() for theirs in names},
}
CP_KINDS = {**back(MEGATRON_CP_KINDS), "allgather": "all-gather", "a2a+p2p": "all-to-all"}
_IMPLEMENTATIONS = ("transformer_engine", "local", "inference_optimized")
_BACKENDS = ("auto", "flash", "fused", "unfused", "local")
_SCALING = back(MEGATRON_SCALING)
_OPTIMIZERS = {**back(MEGATRON_OPTIMIZERS), "dist_muon": "muon"}
_GRAPHS = ("none", "local", "transformer_engine", "full_iteration")
GRAPHED = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full", "full_iteration")
_ON = frozenset({"true", "false", "yes", "no", "on", "off", "0", "1"})


def read_arguments(text: str, *, title: str = "megatron", beside: Iterable[str] = ()) -> Imported:
    """The strategy and the model of a script or argument list; `beside`: what else its file holds, to be named."""
    draft = drafted(flags(text))
    draft.ignored += beside
    return finished(draft, title)


def finished(draft: ImportDraft, title: str) -> Imported:
    """With Megatron's own defaults for what is left open."""
    _defaults(draft)
    return draft.finish(title)


def drafted(found: Flags) -> ImportDraft:
    """What flags say; what they leave open is marked as a guess."""
    draft = ImportDraft(framework="megatron")
    _drop_unresolved(draft, found)
    for flag, ours in _NUMBERS.items():
        if flag in found:
            draft.take_whole(ours, f"--{flag}", found[flag])
    for flag, (ours, value) in MEGATRON_SWITCHES.items():
        if flag in found:
            draft.take(ours, value, f"--{flag}")
    for part in (
        _world,
        _precision,
        _sharding,
        _context,
        _kernels,
        _graphs,
        _pipeline,
        _recompute,
        _experts,
        _dispatch,
    ):
        part(draft, found)
    draft.model = read_model(draft, found)
    draft.ignored += [
        f"--{flag} {value or ''}".strip() for flag, value in sorted(found.items()) if flag not in found.read
    ]
    return draft


def _drop_unresolved(draft: ImportDraft, found: Flags) -> None:
    """Flags whose value only the shell knows are named; a word after a switch is none of its own."""
    for flag, value in list(found.items()):
        if not value:
            continue
        if flag in SWITCHES:
            if value.lower() in _ON:
                draft.faults.append(
                    Fault(f"--{flag}", f"takes no value, but {value} follows; leave it out, or the flag")
                )
            elif "$" not in value:
                draft.ignored.append(f"{value} after --{flag}, which takes no value")
            found[flag] = None
        elif "$" in value:
            del found[flag]
            draft.ignored.append(f"--{flag} {value}: the value is not set in the script")


def _world(draft: ImportDraft, found: Flags) -> None:
    if "nproc-per-node" not in found:
        return
    node = draft.whole("--nproc-per-node", found["nproc-per-node"], row="Cluster.gpus")
    if "nnodes" not in found:
        draft.assumed.append(f"the number of GPUs is the cluster's: {node} per node, and --nnodes is not given")
        return
    nodes = draft.whole("--nnodes", found["nnodes"], row="Cluster.gpus")
    if node and nodes:
        draft.gpus = node * nodes
        draft.understood.append(f"--nproc-per-node {node} x --nnodes {nodes} -> {draft.gpus} GPUs")
        draft.derive_dp()


def _precision(draft: ImportDraft, found: Flags) -> None:
    if "fp4-format" in found:
        draft.word("--fp4-format", found["fp4-format"], ("e2m1",))
        draft.take("dtype", "nvfp4", "--fp4-format")
    elif "fp8-format" in found:
        recipe = draft.word("--fp8-recipe", found.get("fp8-recipe", "delayed"), (*_SCALING, "mxfp8"))
        draft.word("--fp8-format", found["fp8-format"], ("hybrid", "e4m3"))
        draft.take("dtype", "mxfp8" if recipe == "mxfp8" else "fp8", f"--fp8-format {found['fp8-format']}")
        if "fp8-recipe" in found and recipe in _SCALING:
            draft.take("scaling", _SCALING[recipe], f"--fp8-recipe {recipe}")
        elif recipe in _SCALING:
            draft.assume("scaling", _SCALING[recipe], "--fp8-recipe is not given")
    elif "dtype" not in draft.fields:
        draft.assume("dtype", "fp32", "neither --bf16 nor --fp16 is given")


def _sharding(draft: ImportDraft, found: Flags) -> None:
    if "use-torch-fsdp2" in found:
        draft.take("zero", 3, "--use-torch-fsdp2")
    elif "use-megatron-fsdp" in found:
        flag = "data-parallel-sharding-strategy"
        kind = draft.word(f"--{flag}", found.get(flag, MEGATRON_SHARDING[3]), MEGATRON_SHARDING)
        draft.take("zero", MEGATRON_SHARDING.index(kind), f"--{flag} {kind}")
    elif "use-distributed-optimizer" in found:
        draft.take("zero", 1, "--use-distributed-optimizer")
    else:
        draft.assume("zero", 0, "--use-distributed-optimizer is not given")
    flag = "num-distributed-optimizer-instances"
    copies = draft.whole(f"--{flag}", found[flag], row="Strategy.dp") if flag in found else 1
    ranks = draft.number("dp") * draft.number("cp")
    if copies and copies > 1 and "dp" not in draft.fields:
        draft.assumed.append(f"--{flag} {copies}: not taken over, as dp is left open; --zero-group sets the group")
    elif copies and ranks % copies:
        draft.faults.append(Fault(f"--{flag}", f"{copies} do not divide dp x cp = {ranks}; change one of them"))
    elif copies and copies > 1:
        draft.take("zero_group", ranks // copies, f"--{flag} {copies}")


def _context(draft: ImportDraft, found: Flags) -> None:
    if draft.number("cp") == 1:
        return  # the flag is named as without effect
    if "cp-comm-type" not in found:
        draft.assume("cp_kind", CP_KINDS["p2p"], "--cp-comm-type is not given")
        return
    kinds = [draft.word("--cp-comm-type", kind, CP_KINDS) for kind in (found["cp-comm-type"] or "").split() or [""]]
    if len(set(kinds)) > 1:
        draft.faults.append(
            Fault("--cp-comm-type", f"{', '.join(kinds)} differ by layer, which cannot be said; keep one")
        )
    draft.take("cp_kind", CP_KINDS[kinds[0]], f"--cp-comm-type {kinds[0]}")


def _kernels(draft: ImportDraft, found: Flags) -> None:
    impl = draft.word("--transformer-impl", found.get("transformer-impl", "transformer_engine"), _IMPLEMENTATIONS)
    local = impl == "local"
    laid = "".join(_laid(draft, found))
    if "transformer-impl" in found:
        draft.take("runtime", f"megatron-local{laid}" if local else f"megatron{laid}", f"--transformer-impl {impl}")
    else:
        draft.assume("runtime", f"megatron{laid}", "--transformer-impl is not given")
    backend = draft.word("--attention-backend", found.get("attention-backend", "auto"), _BACKENDS)
    if local and "use-flash-attn" in found:  # parsed there and never read
        draft.assumed.append("--use-flash-attn has no effect without Transformer Engine: attention stores its scores")
    if backend in {"unfused", "local"} or local:
        draft.take(
            "flash", False, "--attention-backend" if "attention-backend" in found else "--transformer-impl local"
        )
    optimizer = _OPTIMIZERS[draft.word("--optimizer", found.get("optimizer", "adam"), _OPTIMIZERS)]
    moments = draft.word("--exp-avg-dtype", found.get("exp-avg-dtype", "fp32"), ("fp32", "bf16", "fp16", "fp8"))
    if optimizer != "adamw":
        draft.take("optimizer", optimizer, f"--optimizer {found['optimizer']}")
    elif moments == "bf16":
        draft.take("optimizer", "adamw-bf16", "--exp-avg-dtype bf16")
    elif moments != "fp32":
        draft.faults.append(Fault("--exp-avg-dtype", f"{moments} moments are not modelled; use fp32 or bf16"))
    flag = "cpu-offloading-num-layers"
    if flag in found and draft.whole(f"--{flag}", found[flag], row="Strategy.layers"):
        draft.take("offload", "activations", f"--{flag}")


def _graphs(draft: ImportDraft, found: Flags) -> None:
    """Scopes without the feed-forward block are `attention`; any with it, and none at all, are `layer`."""
    older = {"enable-cuda-graph": "local", "external-cuda-graph": "transformer_engine"}
    given = next((impl for flag, impl in older.items() if flag in found), "none")
    impl = draft.word("--cuda-graph-impl", found.get("cuda-graph-impl", given), _GRAPHS)
    older_typed = next((f"--{flag}" for flag in older if flag in found and "cuda-graph-impl" not in found), "")
    names = (found.get("cuda-graph-scope") or found.get("cuda-graph-modules") or "").replace(",", " ").split()
    scope = {draft.word("--cuda-graph-scope", name, GRAPHED) for name in names}
    if impl != "none":
        names = [] if impl == "full_iteration" else names
        part = "attention" if scope and not scope & {"mlp", "moe", "full", "full_iteration"} else "layer"
        draft.take("cuda_graphs", part, f"{older_typed or f'--cuda-graph-impl {impl}'} {' '.join(names)}".rstrip())


def _laid(draft: ImportDraft, found: Flags) -> Iterator[str]:
    """What is laid over a runtime: a fused loss, and tensor parallel whose collectives are all shown."""
    if "cross-entropy-loss-fusion" in found:
        draft.understood.append("--cross-entropy-loss-fusion -> runtime kernels.loss fused")
        yield "+kernels.loss=fused"
    if draft.number("tp") > 1 and draft.fields.get("sp") and "tp-comm-overlap" not in found:
        draft.assumed.append("runtime overlap.tp 0: --tp-comm-overlap is not given")
        yield "+overlap.tp=0"


def _pipeline(draft: ImportDraft, found: Flags) -> None:
    _chunks(draft, found)
    if found.get("pipeline-model-parallel-layout"):
        _layout(draft, str(found["pipeline-model-parallel-layout"]), draft.number("pp"))
    if cut := chunk_layers(str(found.get(PATTERN) or "")):
        draft.fields["vpp"] = max(1, len(cut) // draft.number("pp"))
        draft.take("layers", cut, f"--{PATTERN}")
    if "zero-bubble-v-schedule" in found:
        draft.take("schedule", "zb-v", "--zero-bubble-v-schedule")
        draft.fields["vpp"] = 2
    elif "enable-zero-bubble" in found:
        draft.take("schedule", "zb-h1", "--enable-zero-bubble")
    else:
        draft.fields["schedule"] = "interleaved" if draft.number("vpp") > 1 else "1f1b"
        draft.guesses.add("schedule")


def _chunks(draft: ImportDraft, found: Flags) -> None:
    """Chunks of a rank from the layers of one."""
    flag, pp = "num-layers-per-virtual-pipeline-stage", draft.number("pp")
    if flag not in found:
        return
    size = draft.whole(f"--{flag}", found[flag], row="Model.layers")
    if "num-layers" not in found:
        message = "needs the layers of the model; give --num-layers, or --num-virtual-stages-per-pipeline-rank"
        draft.faults.append(Fault(f"--{flag}", message))
        return
    layers = draft.whole("--num-layers", found["num-layers"], row="Model.layers")
    if not size or not layers:
        return
    chunks = layers // size
    if chunks % pp or layers % size:
        message = f"{layers} layers in chunks of {size} do not fill pp {pp} evenly; change one of them"
        draft.faults.append(Fault(f"--{flag}", message))
    else:
        draft.take("vpp", chunks // pp, f"--{flag} {size}")


def _layout(draft: ImportDraft, text: str, pp: int) -> None:
    """Count the layers of every chunk of a layout such as Et*3|(tt|)*29,m|L."""
    pieces = expand_layout(text).split("|")
    strange = set("".join(pieces)) - set("EtmL")
    if strange or len(pieces) % pp:
        why = (
            f"letters {sorted(strange)} are not known"
            if strange
            else f"{len(pieces)} pieces are no multiple of pp {pp}"
        )
        draft.faults.append(Fault("--pipeline-model-parallel-layout", f"{text!r}: {why}"))
        return
    draft.fields["vpp"] = len(pieces) // pp
    draft.take("layers", tuple(piece.count("t") for piece in pieces), "--pipeline-model-parallel-layout")


def expand_layout(text: str) -> str:
    """Write out the repetitions of a layout."""
    text = text.strip("\"' ").replace(",", "").replace(" ", "")
    group = re.compile(r"\(([^()]*)\)\*([0-9]+)|\(([^()]*)\)|([A-Za-z])\*([0-9]+)")
    while (found := group.search(text)) is not None:
        times = int((found[2] or found[5] or "1")[:9])
        if times * len(found[1] or found[3] or "x") > 100_000:
            raise InputError(f"--pipeline-model-parallel-layout {text!r} repeats more than any model has layers")
        text = text[: found.start()] + (found[1] or found[3] or found[4]) * times + text[found.end() :]
    return text


def _recompute(draft: ImportDraft, found: Flags) -> None:
    granularity = found.get("recompute-granularity") or ("selective" if "recompute-activations" in found else None)
    if granularity is None:
        return
    if granularity == "full":
        value = _full(draft, found)
    elif granularity == "selective":
        names = (found.get("recompute-modules") or "core_attn").replace(",", " ").split()
        unknown = [name for name in names if name not in MEGATRON_RECOMPUTED]
        draft.ignored += [f"--recompute-modules {name}: not known" for name in unknown]
        modules = {module for name in names for module in MEGATRON_RECOMPUTED.get(name, ())}
        value = Recompute(modules=tuple(sorted(modules, key=MODULES.index)))
    else:
        draft.faults.append(Fault("--recompute-granularity", f"{granularity!r} is neither full nor selective"))
        return
    draft.take("recompute", value, f"--recompute-granularity {granularity}")


def _full(draft: ImportDraft, found: Flags) -> Recompute:
    flag = "recompute-num-layers"
    number = draft.whole(f"--{flag}", found[flag], row="Recompute.layers") or 0 if flag in found else 1
    method = draft.word("--recompute-method", found.get("recompute-method", "uniform"), ("uniform", "block"))
    if method == "block":
        return Recompute(full=True, layers=(number,)) if number else Recompute()
    return Recompute(full=True, group=max(1, number))


_DISPATCH = ("moe-token-dispatcher-type", "moe-flex-dispatcher-backend", "moe-enable-deepep")


def _dispatch(draft: ImportDraft, found: Flags) -> None:
    """Megatron gathers all tokens where no type is given, and takes DeepEP where a flexible one has no backend, or by
    the older `--moe-enable-deepep`.
    """
    named = "num-layers" not in found  # a model by its name beside the flags, which may have experts
    if "overlap-moe-expert-parallel-comm" in found and ("num-experts" in found or named):
        draft.take("ep_overlap", value=True, theirs="--overlap-moe-expert-parallel-comm")
    if "num-experts" not in found and not (named and any(flag in found for flag in _DISPATCH)):
        return
    kinds = sorted({words[0] for words in MEGATRON_DISPATCHERS.values()})
    older = "moe-enable-deepep" in found
    given = found.get("moe-token-dispatcher-type", "flex" if older else "allgather")
    kind = draft.word("--moe-token-dispatcher-type", given, kinds)
    if older and kind != "flex":
        message = f"needs --moe-token-dispatcher-type flex, but {kind} is given; give flex, or leave it out"
        draft.faults.append(Fault("--moe-enable-deepep", message))
    backends = [words[1] for words in MEGATRON_DISPATCHERS.values() if words[1:]]
    backend = draft.word("--moe-flex-dispatcher-backend", found.get("moe-flex-dispatcher-backend", "deepep"), backends)
    words = (kind, backend) if kind == "flex" else (kind,)
    ours = next(name for name, theirs in MEGATRON_DISPATCHERS.items() if theirs == words)
    typed = [f"--{flag} {found[flag] or ''}".rstrip() for flag in _DISPATCH if flag in found]
    draft.take("dispatcher", ours, " ".join(typed) or f"--moe-token-dispatcher-type {kind}")


def _experts(draft: ImportDraft, found: Flags) -> None:
    if "num-experts" in found and "etp" not in draft.fields and draft.number("tp") > 1:
        draft.assume("etp", draft.number("tp"), "Megatron takes tp where --expert-tensor-parallel-size is not given")


def _defaults(draft: ImportDraft) -> None:
    if "sp" not in draft.fields:
        draft.assume("sp", value=False, why="--sequence-parallel is not given")
    if "micro_batch" not in draft.fields:
        draft.assume("micro_batch", 1, "--micro-batch-size is not given")
    if "global_batch" not in draft.fields:
        draft.assume_batch(1, "one micro batch per replica: --global-batch-size is not given")
    if "seq" not in draft.fields:
        draft.assumed.append("seq 4096: --seq-length is not given")
