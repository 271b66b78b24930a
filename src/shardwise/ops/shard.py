"""The share of the work that one rank has: tokens, widths and element sizes after every axis has cut."""

from __future__ import annotations

from typing import NamedTuple

from shardwise.inputs.cluster import Gpu
from shardwise.inputs.documents import Documents
from shardwise.inputs.formats import Format, format_of
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy


class Shard(NamedTuple):
    """What the operators of one rank are built from."""

    model: Model
    runtime: Runtime
    samples: int
    """Samples of one micro batch."""
    seq: float
    """Tokens of one sample on this rank, outside attention."""
    whole_seq: int
    """Tokens of one sample."""
    tokens: float
    """Tokens of one micro batch on this rank."""
    tp: int
    cp: int
    ep: int
    etp: int
    sp: bool
    cp_kind: str
    dispatcher: str
    fixed: bool
    """Experts get the same number of tokens in every pass: padded, or captured whole by CUDA graphs."""
    element: float
    """Bytes of an activation."""
    stream: float
    """Bytes of an element of the residual stream (fp32 under autocast)."""
    weight: float
    """Bytes of a weight as stored."""
    autocast: bool
    casts_alone: bool
    """Weights are fp32 on every rank, beside 16-bit activations, and not under autocast's own rules."""
    flash: bool
    narrow: Format | None
    """Format of the products below 16 bit."""
    turned: bool
    """The GPU multiplies 8-bit operands along their rows only: turned copies are made."""
    fp8_weights: bool
    fp8_attention: bool
    grad_temporary: float
    """Bytes per weight of the temporary that holds a weight gradient; 0 where it is added in place."""
    lora: int
    """Rank of adapters on a frozen model; 0: all weights train."""
    lora_targets: tuple[str, ...]
    """Which linear layers carry adapters: qkv, out, mlp."""
    documents: Documents | None = None
    """What attention keeps to inside a sample; none: a sample is one document."""
    frozen: bool = False
    """Nothing of it trains, and nothing behind it wants a gradient of it."""
    whole: bool = True
    """With towers: all layers stand on one rank, where an encoder's table of tokens is the decoder's."""
    towers: tuple[Shard, ...] = ()
    """Those of the model's towers, in their order."""

    def of(self, tower: str) -> Shard:
        """Of a tower by its name; of the model itself without one."""
        return next(one for one in self.towers if one.model.name == tower) if tower else self

    @property
    def residual(self) -> float:
        """Bytes of the residual stream on this rank."""
        return self.stream * self.tokens * self.model.hidden / (self.tp if self.sp else 1)

    @property
    def hidden(self) -> float:
        """Bytes of a hidden state in compute precision, sharded as the residual stream is."""
        return self.element * self.tokens * self.model.hidden / (self.tp if self.sp else 1)

    @property
    def handed(self) -> float:
        """Bytes that cross from one stage to the next at most: with towers, of the widest border, and an encoder's
        output on its way to all layers that read it.
        """
        if not self.towers:
            return self.hidden
        crossed = sum(one.hidden for one in self.towers if one.model.projector is None)
        return max([self.hidden + crossed, *(one.hidden for one in self.towers)])

    @property
    def gathered(self) -> float:
        """Bytes of a hidden state in compute precision over all of the rank's tokens."""
        return self.element * self.tokens * self.model.hidden


def shard_of(model: Model, strategy: Strategy, runtime: Runtime, gpu: Gpu | None = None) -> Shard:
    """What a rank's operators are built from; without a `gpu`, 8-bit operands are turned."""
    narrow = format_of(strategy.dtype, strategy.scaling)
    autocast = strategy.master == "autocast"
    element = 4.0 if strategy.dtype == "fp32" else 2.0
    weight = 4.0 if autocast else element
    lazy = runtime.memory.gradients == "lazy" or not runtime.kernels.weight_grad_fusion
    shard = Shard(
        model=model,
        runtime=runtime,
        samples=strategy.micro_batch,
        seq=strategy.seq / strategy.cp,
        whole_seq=strategy.seq,
        tokens=strategy.micro_batch * strategy.seq / strategy.cp,
        tp=strategy.tp,
        cp=strategy.cp,
        ep=strategy.ep,
        etp=strategy.etp,
        sp=strategy.sp and strategy.tp > 1,
        cp_kind=strategy.cp_kind,
        dispatcher=strategy.dispatcher,
        fixed=strategy.cuda_graphs == "layer" or bool(model.moe and model.moe.capacity),
        element=element,
        stream=4.0 if autocast else element,
        weight=weight,
        autocast=autocast,
        casts_alone=_casts_alone(strategy, runtime),
        flash=strategy.flash and runtime.kernels.flash and not _stores_scores(model, runtime),
        narrow=narrow,
        turned=gpu is None or "fp4" not in gpu.flops,
        fp8_weights=narrow is not None and strategy.fp8_weights,
        fp8_attention=narrow is not None and strategy.fp8_attention,
        grad_temporary=weight if lazy and not strategy.lora else 0.0,
        lora=strategy.lora.rank if strategy.lora else 0,
        lora_targets=strategy.lora.targets if strategy.lora else (),
        documents=strategy.masked_documents,
    )
    if not model.towers:
        return shard
    shard = shard._replace(whole=strategy.pp == 1)
    return shard._replace(towers=tuple(_tower(shard, tower, strategy) for tower in model.towers))


def tokens_read(tower: Model, strategy: Strategy) -> tuple[float, int]:
    """What a tower reads of a sample at most: how many pictures, recordings or texts, and the tokens of each."""
    if tower.stem is None:
        return 1.0, strategy.source or strategy.seq
    return strategy.images * strategy.image_imbalance, tower.stem.tokens(strategy.image_size)


def _tower(shard: Shard, tower: Model, strategy: Strategy) -> Shard:
    """Its tokens are those of a micro batch's pictures, recordings or texts; every picture attends to itself."""
    pictures, each = tokens_read(tower, strategy)
    return shard._replace(
        model=tower, samples=strategy.micro_batch * pictures, seq=each, whole_seq=each,  # type: ignore[arg-type]
        tokens=strategy.micro_batch * pictures * each, documents=None, frozen=tower.name in strategy.frozen,
        flash=strategy.flash and shard.runtime.kernels.flash and not _stores_scores(tower, shard.runtime),
    )  # fmt: skip


def _stores_scores(model: Model, runtime: Runtime) -> bool:
    told = {
        "sinks": model.sinks,
        "relative": model.position == "relative",
        "alibi": model.position == "alibi",
        "score_cap": model.score_cap > 0,
    }
    return any(told[one] for one in runtime.kernels.stores_scores)


def _casts_alone(strategy: Strategy, runtime: Runtime) -> bool:
    sharded = strategy.zero and strategy.shard_group > 1
    return runtime.kernels.casts_alone and not sharded and strategy.master != "pure" and strategy.dtype != "fp32"
