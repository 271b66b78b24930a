"""A Megatron-LM launch script or argument list (flags as in its main branch of August 2026)."""

from __future__ import annotations

import re

from shardwise.errors import Fault, InputError
from shardwise.inputs.frameworks.imported import Draft, Imported
from shardwise.inputs.frameworks.megatron_model import MODEL_FLAGS, read_model
from shardwise.inputs.frameworks.shell import Flags, flags
from shardwise.inputs.names import (
    MEGATRON_ALSO,
    MEGATRON_CP_KINDS,
    MEGATRON_NUMBERS,
    MEGATRON_RECOMPUTED,
    MEGATRON_SHARDING,
    MEGATRON_SWITCHES,
    back,
)
from shardwise.inputs.recompute import MODULES, Recompute

_NUMBERS = {
    **back(MEGATRON_NUMBERS),
    **{theirs: ours for ours, names in MEGATRON_ALSO.items() for theirs in names},
}
CP_KINDS = {**back(MEGATRON_CP_KINDS), "allgather": "all-gather", "a2a+p2p": "all-to-all"}
_USED = {
    "recompute-granularity", "recompute-method", "recompute-num-layers", "recompute-modules", "recompute-activations",
    "use-distributed-optimizer", "use-megatron-fsdp", "use-torch-fsdp2", "data-parallel-sharding-strategy",
    "cp-comm-type", "pipeline-model-parallel-layout", "num-layers-per-virtual-pipeline-stage", "attention-backend",
    "use-flash-attn", "transformer-impl", "fp8-format", "fp8-recipe", "fp4-format", "optimizer", "enable-zero-bubble",
    "zero-bubble-v-schedule", "nproc-per-node", "nnodes", "cpu-offloading-num-layers",
    "num-distributed-optimizer-instances", "exp-avg-dtype",
}  # fmt: skip


def read_arguments(text: str, *, title: str = "megatron") -> Imported:
    """The strategy and the model of a script or argument list."""
    draft = drafted(flags(text))
    _defaults(draft)
    return draft.finish(title)


def drafted(found: Flags) -> Draft:
    """What flags say; what they leave open is marked as a guess."""
    draft = Draft(framework="megatron")
    _drop_unresolved(draft, found)
    for flag, ours in _NUMBERS.items():
        if flag in found:
            draft.take_whole(ours, f"--{flag}", found[flag])
    for flag, (ours, value) in MEGATRON_SWITCHES.items():
        if flag in found:
            draft.take(ours, value, f"--{flag}")
    for part in (_world, _precision, _sharding, _context, _kernels, _pipeline, _recompute, _experts):
        part(draft, found)
    draft.model = read_model(draft, found)
    known = _NUMBERS.keys() | MEGATRON_SWITCHES.keys() | _USED | MODEL_FLAGS
    draft.ignored += [f"--{flag} {value or ''}".strip() for flag, value in sorted(found.items()) if flag not in known]
    return draft


def _drop_unresolved(draft: Draft, found: Flags) -> None:
    for flag, value in list(found.items()):
        if value and "$" in value:
            del found[flag]
            draft.ignored.append(f"--{flag} {value}: the value is not set in the script")


def _world(draft: Draft, found: Flags) -> None:
    if "nproc-per-node" not in found:
        return
    node = draft.whole("--nproc-per-node", found["nproc-per-node"])
    nodes = draft.whole("--nnodes", found.get("nnodes") or 1)
    if node and nodes:
        draft.gpus = node * nodes
        draft.understood.append(f"--nproc-per-node {node} x --nnodes {nodes} -> {draft.gpus} GPUs")
        draft.derive_dp()


def _precision(draft: Draft, found: Flags) -> None:
    if "fp4-format" in found:
        draft.take("dtype", "nvfp4", "--fp4-format")
    elif "fp8-format" in found:
        recipe = found.get("fp8-recipe")
        draft.take("dtype", "mxfp8" if recipe == "mxfp8" else "fp8", f"--fp8-format {found['fp8-format']}")
    elif "dtype" not in draft.fields:
        draft.assume("dtype", "fp32", "neither --bf16 nor --fp16 is given")


def _sharding(draft: Draft, found: Flags) -> None:
    if "use-torch-fsdp2" in found:
        draft.take("zero", 3, "--use-torch-fsdp2")
    elif "use-megatron-fsdp" in found:
        kind = found.get("data-parallel-sharding-strategy") or MEGATRON_SHARDING[3]
        if kind not in MEGATRON_SHARDING:
            message = f"{kind!r} is none of {', '.join(MEGATRON_SHARDING)}"
            draft.faults.append(Fault("--data-parallel-sharding-strategy", message))
        else:
            draft.take("zero", MEGATRON_SHARDING.index(kind), f"--data-parallel-sharding-strategy {kind}")
    elif "use-distributed-optimizer" in found:
        draft.take("zero", 1, "--use-distributed-optimizer")
    else:
        draft.assume("zero", 0, "--use-distributed-optimizer is not given")
    copies = draft.whole("--num-distributed-optimizer-instances", found.get("num-distributed-optimizer-instances") or 1)
    ranks = draft.number("dp") * draft.number("cp")
    if copies and copies > 1 and ranks % copies == 0:
        draft.take("zero_group", ranks // copies, f"--num-distributed-optimizer-instances {copies}")


def _context(draft: Draft, found: Flags) -> None:
    kind = (found.get("cp-comm-type") or "p2p").split()[0]
    if kind not in CP_KINDS:
        draft.faults.append(Fault("--cp-comm-type", f"{kind!r} is none of {', '.join(CP_KINDS)}"))
    elif draft.number("cp") > 1 and "cp-comm-type" in found:
        draft.take("cp_kind", CP_KINDS[kind], f"--cp-comm-type {kind}")
    elif draft.number("cp") > 1:
        draft.assume("cp_kind", CP_KINDS[kind], "--cp-comm-type is not given")


def _kernels(draft: Draft, found: Flags) -> None:
    local = found.get("transformer-impl") == "local"
    if "transformer-impl" in found:
        draft.take(
            "runtime", "megatron-local" if local else "megatron", f"--transformer-impl {found['transformer-impl']}"
        )
    else:
        draft.assume("runtime", "megatron", "--transformer-impl is not given")
    unfused = found.get("attention-backend") in {"unfused", "local"} or (local and "use-flash-attn" not in found)
    if unfused:
        draft.take(
            "flash", False, "--attention-backend" if "attention-backend" in found else "--transformer-impl local"
        )
    optimizer = found.get("optimizer")
    if optimizer in {"sgd", "muon", "dist_muon"}:
        draft.take("optimizer", "sgd" if optimizer == "sgd" else "muon", f"--optimizer {optimizer}")
    elif found.get("exp-avg-dtype") == "bf16":
        draft.take("optimizer", "adamw-bf16", "--exp-avg-dtype bf16")
    if (found.get("cpu-offloading-num-layers") or "0") != "0":
        draft.take("offload", "activations", "--cpu-offloading-num-layers")


def _pipeline(draft: Draft, found: Flags) -> None:
    pp = draft.number("pp")
    per_chunk, layers = found.get("num-layers-per-virtual-pipeline-stage"), found.get("num-layers")
    number = re.compile(r"[1-9][0-9]{0,5}")
    if per_chunk and layers and number.fullmatch(per_chunk) and number.fullmatch(layers):
        chunks = int(layers) // int(per_chunk)
        if chunks % pp or int(layers) % int(per_chunk):
            message = f"{layers} layers in chunks of {per_chunk} do not fill pp {pp} evenly; change one of them"
            draft.faults.append(Fault("--num-layers-per-virtual-pipeline-stage", message))
        else:
            draft.take("vpp", chunks // pp, f"--num-layers-per-virtual-pipeline-stage {per_chunk}")
    if found.get("pipeline-model-parallel-layout"):
        _layout(draft, str(found["pipeline-model-parallel-layout"]), pp)
    if "zero-bubble-v-schedule" in found:
        draft.take("schedule", "zb-v", "--zero-bubble-v-schedule")
        draft.fields["vpp"] = 2
    elif "enable-zero-bubble" in found:
        draft.take("schedule", "zb-h1", "--enable-zero-bubble")
    else:
        draft.fields["schedule"] = "interleaved" if draft.number("vpp") > 1 else "1f1b"
        draft.guesses.add("schedule")


def _layout(draft: Draft, text: str, pp: int) -> None:
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
    group = re.compile(r"\(([^()]*)\)\*(\d+)|\(([^()]*)\)|([A-Za-z])\*(\d+)")
    while (found := group.search(text)) is not None:
        times = int((found[2] or found[5] or "1")[:9])
        if times * len(found[1] or found[3] or "x") > 100_000:
            raise InputError(f"--pipeline-model-parallel-layout {text!r} repeats more than any model has layers")
        text = text[: found.start()] + (found[1] or found[3] or found[4]) * times + text[found.end() :]
    return text


def _recompute(draft: Draft, found: Flags) -> None:
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


def _full(draft: Draft, found: Flags) -> Recompute:
    number = draft.whole("--recompute-num-layers", found.get("recompute-num-layers") or 1, lowest=0) or 0
    if found.get("recompute-method") == "block":
        return Recompute(full=True, layers=(number,)) if number else Recompute()
    return Recompute(full=True, group=max(1, number))


def _experts(draft: Draft, found: Flags) -> None:
    if "num-experts" in found and "etp" not in draft.fields and draft.number("tp") > 1:
        draft.assume("etp", draft.number("tp"), "Megatron takes tp where --expert-tensor-parallel-size is not given")


def _defaults(draft: Draft) -> None:
    if "sp" not in draft.fields:
        draft.assume("sp", value=False, why="--sequence-parallel is not given")
    if "micro_batch" not in draft.fields:
        draft.assume("micro_batch", 1, "--micro-batch-size is not given")
    if "global_batch" not in draft.fields:
        draft.assume_batch(1, "one micro batch per replica: --global-batch-size is not given")
    if "seq" not in draft.fields:
        draft.assumed.append("seq 4096: --seq-length is not given")
