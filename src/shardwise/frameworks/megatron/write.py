"""A plan as Megatron-LM's arguments: a script that starts it, and the YAML form of Megatron-LM's own tests.

What Megatron-LM takes without a word, and what is done about it here:

- the expert tensor degree is the tensor degree unless it is given: it is always given
- a layout places chunks round and round only: a plan on a v becomes the nearest loop plan
- selective recompute covers all layers, and a block covers the first layers of every chunk alike: lists become the
  smallest choice that frees at least as much
- FSDP must not run with CUDA_DEVICE_MAX_CONNECTIONS=1, tensor and context parallel must
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from shardwise.frameworks.megatron.hybrid import hybrid_flags
from shardwise.frameworks.megatron.names import (
    MEGATRON_CP_KINDS,
    MEGATRON_DISPATCHERS,
    MEGATRON_NUMBERS,
    MEGATRON_OPTIMIZERS,
    MEGATRON_RECOMPUTED,
    MEGATRON_SCALING,
    MEGATRON_SHARDING,
)
from shardwise.frameworks.megatron.write_files import Groups, files
from shardwise.frameworks.megatron.write_model import BRIDGE, Flag, model_flags, model_losses
from shardwise.frameworks.nearest import (
    all_layers,
    choose,
    known_modules,
    known_schedule,
    known_sharding,
    recomputed,
    without,
    without_lora,
)
from shardwise.frameworks.target import ExportDraft, File, runtime_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.runtime import Runtime

_KNOWN = ("core-attention", "attention-norm", "mlp-norm", "mlp", "moe-act", "mla-up")
_WIDER = {"ffn": "mlp", "activation": "mlp"}


def write(draft: ExportDraft) -> tuple[File, ...]:
    """`train.sh` with what starts it, and `model_config.yaml`."""
    settled(draft)
    return files(draft, arguments(draft))


def settled(draft: ExportDraft) -> None:
    """Bend the plan to what Megatron-LM can say."""
    flagless = () if draft.target.name == BRIDGE else (_flagless,)
    for bend in (without_lora, _pipeline, _recompute, _states, _numbers, *flagless, _local, _experts, model_losses):
        bend(draft)
    draft.settle()


def _pipeline(draft: ExportDraft) -> None:
    known_schedule(draft, ("1f1b", "interleaved"))


def _recompute(draft: ExportDraft) -> None:
    recompute = draft.strategy.recompute
    if "comm" in recompute.modules:  # what tensor parallel gathers is always gathered again
        rest = tuple(name for name in recompute.modules if name != "comm")
        draft.strategy = replace(draft.strategy, recompute=replace(recompute, modules=rest) if rest else Recompute())
    known_modules(draft, _WIDER, _KNOWN, "Megatron-LM")
    norms = {"attention-norm", "mlp-norm"}
    modules = set(draft.strategy.recompute.modules)
    if len(modules & norms) == 1:
        both = tuple(name for name in _KNOWN if name in modules | norms)
        recompute = replace(draft.strategy.recompute, modules=both)
        text = "one norm cannot be recomputed without the other; both are, so memory is at most as planned"
        draft.lose("strategy.recompute", text, recompute=recompute)
    recompute = draft.strategy.recompute
    if recompute.modules:
        all_layers(draft, "Megatron-LM's selective recompute has no number of layers")
    elif recompute.full and recompute.group > 1:
        all_layers(draft, "uniform groups cover all layers")
    elif recompute.full and recompute.layers:
        _block(draft)


def _block(draft: ExportDraft) -> None:
    """One number for the first layers of every chunk: the largest of the list."""
    counts, layers = recomputed(draft), draft.layers
    most = max(counts)
    if counts == layers:
        draft.strategy = replace(draft.strategy, recompute=Recompute(full=True))
    elif most == 0:
        draft.strategy = replace(draft.strategy, recompute=Recompute())
    elif counts == tuple(min(most, held) for held in layers):
        draft.strategy = replace(draft.strategy, recompute=Recompute(full=True, layers=(most,)))
    else:
        draft.lose(
            "strategy.recompute",
            f"{draft.strategy.recompute}: --recompute-num-layers is one number for all chunks; {most} is written, the "
            "largest, so memory is at most as planned",
            recompute=Recompute(full=True, layers=(most,)),
        )


def _states(draft: ExportDraft) -> None:
    known_sharding(draft)
    s = draft.strategy
    if s.zero_group and s.dp * s.cp % s.shard_group:
        all_ranks = f"{s.zero_group} does not divide the {s.dp * s.cp} ranks of dp x cp; all of them are written"
        draft.lose("strategy.zero_group", all_ranks, zero_group=0)
    if s.optimizer == "adamw-bf16" and s.zero == 0:
        text = "moments in bf16 need the distributed optimizer (zero 1); adamw is written"
        draft.lose("strategy.optimizer", text, optimizer="adamw")
    if s.zero > 1:
        choose(draft, "optimizer", ("adamw", "sgd", "adamw-bf16"), "adamw", "Megatron-FSDP runs Adam and SGD")
    if s.offload == "activations":
        draft.by_hand.append("--offload-modules: which modules' activations go to host memory; core_attn is written")


def _numbers(draft: ExportDraft) -> None:
    why = "Megatron-LM keeps 16-bit parameters and fp32 copies"
    if draft.strategy.dtype != "fp32":
        choose(draft, "master", ("mixed",), "mixed", why)
    without(draft, compile=(False, "Megatron-LM brings its own fused kernels"))
    _narrow_numbers(draft)


def _narrow_numbers(draft: ExportDraft) -> None:
    """What Megatron-LM refuses of formats below 16 bit, and of CUDA graphs."""
    s = draft.strategy
    if s.dtype == "fp8":
        choose(draft, "scaling", MEGATRON_SCALING, "tensor", "Transformer Engine scales tensors or blocks")
    if s.scaling == "delayed" and {"attention-norm", "mlp-norm", "moe-act"} & set(s.recompute.modules):
        text = "delayed scaling cannot recompute norms and expert activations; tensor is written"
        draft.lose("strategy.scaling", text, scaling="tensor")
    if s.fp8_weights and s.zero == 0:
        draft.lose(
            "strategy.fp8_weights", "needs the distributed optimizer (zero 1); 16-bit weights", fp8_weights=False
        )
    elif s.fp8_weights and s.offload == "optimizer" and (s.dtype != "fp8" or draft.strategy.scaling != "delayed"):
        text = "an optimizer in host memory needs delayed scaling for it; 16-bit weights are written"
        draft.lose("strategy.fp8_weights", text, fp8_weights=False)
    if s.cuda_graphs == "attention" and (s.recompute.full or s.offload == "activations"):
        text = "attention cannot be captured with full recompute or offloaded activations; no graphs are written"
        draft.lose("strategy.cuda_graphs", text, cuda_graphs="none")


def _flagless(draft: ExportDraft) -> None:
    without(draft, fp8_attention=(False, "Megatron-LM has the setting and no flag for it"))


def _is_local(draft: ExportDraft) -> bool:
    return draft.strategy.runtime.partition("+")[0] == "megatron-local"


def _local(draft: ExportDraft) -> None:
    """Without Transformer Engine attention stores its scores, and torch's norms take no sequence parallel."""
    s = draft.strategy
    if not _is_local(draft):
        return
    if s.flash:
        text = "--use-flash-attn is parsed and never read without Transformer Engine: scores are stored"
        draft.lose("strategy.flash", text, flash=False)
    if draft.model.mla:
        text = "is latent attention, whose sizes Megatron-LM's attention without Transformer Engine does not take"
        draft.refuse("model.mla", f"{text}; use the runtime megatron")
    if s.cp > 1:
        text = f"{s.cp}: context parallel is Transformer Engine's alone; use cp 1, or the runtime megatron"
        draft.refuse("strategy.cp", text)
    if s.tp > 1 and draft.model.moe:
        text = f"{s.tp}: experts under tensor parallel need sequence parallel, which torch's norms refuse; use tp 1"
        draft.refuse("strategy.tp", f"{text}, or the runtime megatron")
    elif s.tp > 1 and s.sp:
        draft.lose("strategy.sp", "torch's norms refuse --sequence-parallel; none is written", sp=False)


def _experts(draft: ExportDraft) -> None:
    s = draft.strategy
    if draft.model.moe and s.world % (s.etp * s.ep * s.pp):
        draft.refuse(
            "strategy.ep",
            f"etp {s.etp} x ep {s.ep} x pp {s.pp} = {s.etp * s.ep * s.pp} does not divide {s.world} GPUs",
        )


def arguments(draft: ExportDraft) -> Groups:
    """Every flag, by what it is about."""
    s = draft.strategy
    return {
        "model": [
            *model_flags(draft.model, s.seq, draft.version, _runtime(draft).kernels.vocab_multiple),
            *hybrid_flags(draft.model, draft.layers),
        ],
        "parallel": list(_parallel(draft)),
        "batch": [(MEGATRON_NUMBERS[name], getattr(s, name)) for name in ("micro_batch", "global_batch", "seq")],
        "states": list(_state_flags(draft)),
        "numbers": list(_number_flags(draft)),
        "graphs": list(_graph_flags(draft)),
        "experts": list(_dispatch_flags(draft)),
        "recompute": list(_recompute_flags(draft)),
    }


def _parallel(draft: ExportDraft) -> Iterator[Flag]:
    s = draft.strategy
    yield from ((MEGATRON_NUMBERS[name], getattr(s, name)) for name in ("tp", "pp", "cp"))
    if draft.model.moe:  # the expert tensor degree would be tp if it were left out
        yield from ((MEGATRON_NUMBERS[name], getattr(s, name)) for name in ("ep", "etp"))
    if s.sp and s.tp > 1:
        yield "sequence-parallel", None
    if s.cp > 1:
        yield "cp-comm-type", MEGATRON_CP_KINDS[s.cp_kind]
    if s.rank_order == "pp-dp":
        yield "use-tp-pp-dp-mapping", None
    if draft.model.recurrent:
        pass  # the bars of its pattern say where chunks end
    elif s.pp > 1 and len(set(draft.layers)) > 1:
        yield "pipeline-model-parallel-layout", layout(draft.layers, draft.model.mtp)
    elif s.vpp > 1:
        yield MEGATRON_NUMBERS["vpp"], s.vpp
    if s.group:
        yield MEGATRON_NUMBERS["group"], s.group


def layout(layers: Iterable[int], mtp: int = 0) -> str:
    """`Et*3|(t*4|)*2t*3L`: E embedding, t a layer, m multi-token prediction, L loss; | ends a chunk, in model order."""
    *front, last = [_piece(count) for count in layers]
    pieces = [f"E{front[0]}", *front[1:]] if front else []
    text = ""
    for piece, run in groupby(pieces):
        times = len(list(run))
        text += f"({piece}|)*{times}" if times > 1 else f"{piece}|"
    return f"{text}{'' if front else 'E'}{last}{'m' * mtp}L"


def _piece(count: int) -> str:
    return "t" * count if count < 3 else f"t*{count}"


def _state_flags(draft: ExportDraft) -> Iterator[Flag]:
    s = draft.strategy
    yield "optimizer", MEGATRON_OPTIMIZERS.get(s.optimizer, "adam")
    if s.zero > 1:
        yield from (("use-megatron-fsdp", None), ("data-parallel-sharding-strategy", MEGATRON_SHARDING[s.zero]))
        yield "ckpt-format", "fsdp_dtensor"
    if s.zero:
        yield "use-distributed-optimizer", None
        if s.shard_group < s.dp * s.cp:
            yield "num-distributed-optimizer-instances", s.dp * s.cp // s.shard_group
    if s.optimizer == "adamw-bf16" or s.offload == "optimizer":
        yield "use-precision-aware-optimizer", None
    if s.optimizer == "adamw-bf16":
        yield from (("exp-avg-dtype", "bf16"), ("exp-avg-sq-dtype", "bf16"))
    if s.offload == "optimizer":
        yield "optimizer-cpu-offload", None
    elif s.offload == "activations":
        yield from (("fine-grained-activation-offloading", None), ("offload-modules", "core_attn"))
    if s.tp > 1 and s.sp and _runtime(draft).overlap.tp:
        yield "tp-comm-overlap", None  # the prediction counts on it
    if s.dp * s.cp > 1:
        yield "overlap-grad-reduce", None
        if s.zero:
            yield "overlap-param-gather", None


def _runtime(draft: ExportDraft) -> Runtime:
    return load_runtime(runtime_of(draft.plan, draft.target))


def _number_flags(draft: ExportDraft) -> Iterator[Flag]:
    s = draft.strategy
    if s.dtype != "fp32":
        yield "fp16" if s.dtype == "fp16" else "bf16", None
    if s.dtype in {"fp8", "mxfp8"}:
        yield "fp8-format", "hybrid" if s.dtype == "fp8" else "e4m3"
        yield "fp8-recipe", MEGATRON_SCALING[s.scaling] if s.dtype == "fp8" else "mxfp8"
    if s.dtype == "nvfp4":
        yield "fp4-format", "e2m1"
    if s.fp8_weights:
        yield "fp4-param-gather" if s.dtype == "nvfp4" else "fp8-param-gather", None
        if s.dtype == "mxfp8" and s.zero < 2:
            yield "reuse-grad-buf-for-mxfp8-param-ag", None
    if s.grad_dtype == "bf16":
        yield "grad-reduce-in-bf16", None
    elif s.dtype == "fp16":
        yield "accumulate-allreduce-grads-in-fp32", None
    if _runtime(draft).kernels.loss == "fused":
        yield "cross-entropy-loss-fusion", None
    if _is_local(draft):
        yield "transformer-impl", "local"
        yield from ((name, None) for name in _UNFUSED)
    elif not s.flash:
        yield "attention-backend", "unfused"


_UNFUSED = ("no-persist-layer-norm", "no-masked-softmax-fusion", "no-rope-fusion", "no-gradient-accumulation-fusion")
"""Kernels of Transformer Engine and apex, which Megatron-LM asks for unless it is told not to."""


def _dispatch_flags(draft: ExportDraft) -> Iterator[Flag]:
    s = draft.strategy
    if draft.plan.model.moe:
        if not _is_local(draft):
            yield "moe-grouped-gemm", None
        yield from zip(
            ("moe-token-dispatcher-type", "moe-flex-dispatcher-backend"),
            MEGATRON_DISPATCHERS[s.dispatcher],
            strict=False,
        )
        if s.ep_overlap:
            yield "overlap-moe-expert-parallel-comm", None
        if s.cuda_graphs == "layer" and s.dispatcher == "hybridep" and draft.plan.model.moe.capacity is None:
            # room for half as many tokens again on a rank: what is captured has a fixed size
            yield from (("moe-expert-rank-capacity-factor", 1.5), ("use-transformer-engine-op-fuser", None))


def _graph_flags(draft: ExportDraft) -> Iterator[Flag]:
    """Whole layers are captured where no modules are named; with experts, full recompute or offloading only the whole
    iteration can be.
    """
    s = draft.strategy
    if s.cuda_graphs == "layer" and (draft.model.moe or s.recompute.full or s.offload == "activations"):
        yield "cuda-graph-impl", "full_iteration"
    elif s.cuda_graphs != "none":
        yield "cuda-graph-impl", "transformer_engine"
    if s.cuda_graphs == "attention":
        yield "cuda-graph-modules", "attn"


def _recompute_flags(draft: ExportDraft) -> Iterator[Flag]:
    recompute = draft.strategy.recompute
    if recompute.full:
        yield "recompute-granularity", "full"
        yield "recompute-method", "block" if recompute.layers else "uniform"
        yield "recompute-num-layers", recompute.layers[0] if recompute.layers else recompute.group
    names = recomputed_names(recompute, draft.model)
    if names:
        yield from (("recompute-granularity", "selective"), ("recompute-modules", " ".join(names)))


def recomputed_names(recompute: Recompute, model: Model) -> tuple[str, ...]:
    """Theirs for our modules."""
    chosen = set(recompute.modules)
    names = [name for name, ours in MEGATRON_RECOMPUTED.items() if set(ours) <= chosen]
    dense = any(model.feed_of(index) == "dense" for index in range(model.layers))
    absent = {"shared_experts", *(() if dense else ("mlp",)), *(() if model.moe else ("moe",))}
    return tuple(name for name in names if name not in absent)
