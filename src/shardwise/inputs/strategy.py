"""How a model is split over a cluster: the degrees of every axis, the batch, and what is kept or recomputed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardwise.inputs.documents import Documents, Packing
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.serialise import later

Zero = Literal[0, 1, 2, 3]
Placement = Literal["loop", "v"]
CpKind = Literal["ring", "all-gather", "all-to-all"]
Dtype = Literal["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
Optimizer = Literal["adamw", "adamw-bf16", "muon", "sgd"]
Scaling = Literal["tensor", "delayed", "row", "block"]
CudaGraphs = Literal["none", "attention", "layer"]
GradDtype = Literal["fp32", "bf16"]
RankOrder = Literal["dp-pp", "pp-dp"]
Offload = Literal["none", "optimizer", "activations"]
Dispatcher = Literal["all-to-all", "all-gather", "deepep", "hybridep"]

SCHEDULES = (
    "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min",
    "dualpipe-v", "seq-1f1b", "low-memory", "auto",
)  # fmt: skip
V_SCHEDULES = frozenset({"zb-v", "v-half", "v-min", "dualpipe-v"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters on a frozen model."""

    rank: int
    """Rank of the adapters."""
    targets: tuple[str, ...] = ("qkv", "out", "mlp")
    """Linear layers that carry an adapter: qkv, out, mlp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way to split and run the training."""

    tp: int = 1
    """Tensor parallel: ranks that share every matrix of a layer."""
    pp: int = 1
    """Pipeline parallel: ranks that hold different layers."""
    vpp: int = 1
    """Chunks of layers on each pipeline rank (virtual pipeline)."""
    dp: int = 1
    """Data parallel: replicas. Derived from the cluster where it is not given."""
    cp: int = 1
    """Context parallel: ranks that share every sequence."""
    ep: int = 1
    """Expert parallel: ranks that hold different experts; taken out of dp x cp x tp."""
    etp: int = 1
    """Expert tensor parallel: ranks that share every expert's matrices."""
    dispatcher: Dispatcher = "all-to-all"
    """How tokens reach the ranks of their experts. all-to-all: a copy for each expert; all-gather: every rank gets all
    tokens; deepep, hybridep: one copy for each node and then for each rank of it, sorted on the way."""
    ep_overlap: bool = False
    """Tokens travel to experts and back behind the compute of another micro batch (Megatron's
    --overlap-moe-expert-parallel-comm)."""
    sp: bool = True
    """Sequence parallel: norms and residuals are sharded over tp as well. Without effect at tp 1."""
    cp_kind: CpKind = "ring"
    """How context parallel moves keys and values."""
    zero: Zero = 1
    """What is sharded over data parallel: 1 optimizer states, 2 and gradients, 3 and parameters (FSDP)."""
    zero_group: int = 0
    """Ranks that one copy of the sharded states is spread over (HSDP); 0: all of dp x cp."""
    micro_batch: int = 1
    """Samples that one pass of a replica takes (mbs)."""
    global_batch: int = 1
    """Samples per iteration over all replicas (gbs)."""
    batches: tuple[int, ...] = later(())
    """Micro batches of a replica on each kind of GPU of a mixed cluster, in the cluster's order; empty: all replicas
    have as many."""
    seq: int = 4096
    """Tokens per sample."""
    documents: Documents | None = later(None)
    """Lengths of the documents that samples are made of: a file (`length,count` lines, one length a line, JSON), or
    512x3,2048. None: every sample is one document of `seq` tokens."""
    packing: Packing = later("packed")
    """How documents become samples. packed: one behind the other, cut where a sample ends, each attending to itself
    alone; balanced: the same, samples of much and of little attention dealt evenly over the replicas; unmasked: packed,
    attention over the whole sample; padded: one document a sample."""
    source: int = later(0)
    """Tokens that an encoder of text reads of every sample; 0: as many as `seq`."""
    images: float = later(1.0)
    """Pictures (or recordings) of a sample, on average; their tokens are among its `seq`."""
    image_imbalance: float = later(1.0)
    """Pictures of the busiest replica's micro batch over the mean; the others wait for it."""
    image_size: int = later(0)
    """Pixels of a picture's side, or frames of a recording; 0: the model's own."""
    frozen: tuple[str, ...] = later(())
    """Towers that do not train: no gradients, no states, nothing kept."""
    schedule: str = "1f1b"
    """Order of the forward and backward passes in the pipeline."""
    placement: Placement = "loop"
    """loop: chunk c on rank c mod pp; v: back and forth."""
    group: int = 0
    """Micro batches that interleaved 1F1B runs through a chunk before the next one; 0: pp."""
    rank_order: RankOrder = later("dp-pp")
    """How ranks are numbered beyond tp and cp. dp-pp: replicas are neighbours and stages far apart; pp-dp: a pipeline
    stays together and replicas are far apart (Megatron's --use-tp-pp-dp-mapping)."""
    recompute: Recompute = Recompute()
    """What is computed again in the backward pass instead of being kept."""
    layers: tuple[int, ...] = ()
    """Layers of every chunk in model order (pp x vpp numbers); empty: spread evenly."""
    first_layers: int = 0
    """Layers of the first stage; the others share the rest. 0: as the others."""
    last_layers: int = 0
    """Layers of the last stage; the others share the rest. 0: as the others."""
    count_embedding: bool = False
    """When layers are spread, count the embedding as one layer."""
    count_head: bool = False
    """When layers are spread, count the output layer as one layer."""
    dtype: Dtype = "bf16"
    """Number format of the matrix products."""
    scaling: Scaling = "tensor"
    """What shares a scale in fp8: a tensor (delayed: with the scale of earlier steps), a row, a block of 128 values."""
    fp8_weights: bool = False
    """Weights are kept and gathered in the format of the products alone, without 16-bit copies (fp8_param_gather)."""
    fp8_attention: bool = False
    """Attention computes in 8 bit too, and keeps its operands so."""
    master: Literal["mixed", "pure", "autocast"] = "mixed"
    """mixed: 16-bit parameters and fp32 copies; pure: all in `dtype`; autocast: fp32 parameters, 16-bit compute."""
    grad_dtype: GradDtype = "fp32"
    """Number format in which gradients are accumulated and reduced."""
    optimizer: Optimizer = "adamw"
    """Optimizer; adamw-bf16 keeps its moments in bf16."""
    lora: Lora | None = None
    """Train low-rank adapters only, everything else frozen."""
    offload: Offload = "none"
    """What lives in host memory."""
    runtime: str = "megatron"
    """Software that will run it."""
    flash: bool = True
    """Attention without stored scores."""
    compile: bool = False
    """Small kernels are fused by a compiler (torch.compile)."""
    cuda_graphs: CudaGraphs = "none"
    """What is captured once and replayed without the host: the attention blocks, or whole layers (or the iteration)."""
    straggler: float = 1.0
    """Time of the slowest rank over the mean; an explicit allowance, 1: none."""

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def between_stages(self) -> int:
        """Ranks from a stage to the next."""
        return self.world // self.pp if self.rank_order == "dp-pp" else self.tp * self.cp

    @property
    def between_replicas(self) -> int:
        """How much further apart replicas are than their own ranks make them."""
        return 1 if self.rank_order == "dp-pp" else self.pp

    @property
    def microbatches(self) -> int:
        """Passes per iteration and replica, the one with most."""
        return max(self.batches) if self.batches else max(1, -(-self.global_batch // (self.dp * self.micro_batch)))

    @property
    def chunks(self) -> int:
        return self.pp * self.vpp

    @property
    def expert_dp(self) -> int:
        """Replicas of every expert."""
        return max(1, self.tp * self.cp * self.dp // (self.ep * self.etp))

    @property
    def masked_documents(self) -> Documents | None:
        """The documents that attention keeps to; none where samples are one document each, or attention knows none."""
        if self.documents is None or self.packing in {"unmasked", "padded"}:
            return None
        return None if self.documents.lattice(self.seq) == self.seq else self.documents

    @property
    def useful_share(self) -> float:
        """Tokens of documents among those that are computed: less than all where they are padded."""
        if self.documents is None or self.packing != "padded":
            return 1.0
        return self.documents.within(self.seq) / self.seq

    @property
    def shard_group(self) -> int:
        """Ranks over which sharded states are spread."""
        return min(self.zero_group or self.dp * self.cp, self.dp * self.cp)

    def __str__(self) -> str:
        from shardwise.inputs.strategy_text import show

        return show(self)

    @classmethod
    def parse(cls, text: str) -> Strategy:
        """`tp8 pp4x2 dp16 zero1 mbs1 gbs512 zb-v` -> Strategy; `str` of it reads back the same."""
        from shardwise.inputs.strategy_text import build, parse

        return build(parse(text, files=True))
