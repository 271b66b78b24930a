"""The software that runs the plan: what it can do, which kernels it fuses, what it keeps and what it overlaps.

A runtime is data (`catalog/runtimes/*.toml`), not branches in the code: the cost model reads these switches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardwise.inputs.recompute import MODULES
from shardwise.inputs.strategy import SCHEDULES


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a runtime can run at all; `check` refuses the rest with a sentence."""

    zero: tuple[int, ...] = (0, 1)
    """ZeRO stages."""
    hsdp: bool = False
    """Sharded states may be spread over fewer ranks than dp x cp."""
    tp: bool = True
    """Tensor parallel."""
    pp: bool = True
    """Pipeline parallel."""
    cp: tuple[str, ...] = ("ring", "all-gather", "all-to-all")
    """Kinds of context parallel; empty: none."""
    ep: bool = True
    """Expert parallel."""
    dispatchers: tuple[str, ...] = ("all-to-all",)
    """How tokens may reach their experts."""
    ep_overlap: bool = False
    """Tokens can travel behind another micro batch's compute."""
    graphs: tuple[str, ...] = ("none",)
    """What CUDA graphs may cover."""
    rank_orders: tuple[str, ...] = ("dp-pp",)
    """How ranks may be numbered."""
    etp: bool = True
    """Expert tensor parallel other than 1."""
    schedules: tuple[str, ...] = SCHEDULES
    """Pipeline schedules."""
    zero_with_pp: tuple[int, ...] = (0, 1)
    """ZeRO stages that go with pipeline parallel."""
    uneven_layers: bool = True
    """Stages may hold different numbers of layers."""
    cut: Literal["even", "work", "parameters"] = "even"
    """How layers that are not given as a list are cut: evenly, or by the work of weights (the output layer counts) or
    the parameters (both ends count) of every stage."""
    recompute: tuple[str, ...] = ("full", "block", "uniform", "modules", "per-stage")
    """Kinds of recompute: full, block (first N of each stage), uniform groups, modules, per-stage lists."""
    modules: tuple[str, ...] = tuple(name for name in MODULES if name != "ops")
    """Parts of a layer that its own settings can recompute; `plan` proposes no others."""
    modules_alone: tuple[str, ...] = ()
    """Parts of a layer beside which no others can be recomputed; `plan` heeds it."""
    dtypes: tuple[str, ...] = ("fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4")
    """Number formats."""
    compile: tuple[bool, ...] = (False,)
    """Compiling small kernels, for `plan` to choose from: off, on, or either."""
    sp: tuple[bool, ...] = (True, False)
    """Sequence parallel beside tensor parallel: on, off, or either; `plan` proposes no other."""
    together: bool = True
    """tp, cp and pp go together; where they do not, `plan` proposes one of them above 1."""
    replicas: bool = True
    """Several ranks may each hold all states (zero 0); where not, `plan` proposes to shard them."""
    shards_over_cp: bool = True
    """Sharded states are spread over context parallel ranks, too; where not, `plan` proposes replicas alone."""
    zero_with_ep_cp: tuple[int, ...] = (0, 1, 2, 3)
    """ZeRO stages that go with expert and context parallel at once; `plan` proposes no others."""
    zero_with_cp: tuple[int, ...] = (0, 1, 2, 3)
    """ZeRO stages that go with context parallel; `plan` proposes no others."""
    cp_plain: bool = False
    """Context parallel is for plain attention, neither latent nor with windows; `plan` heeds it."""
    tp_experts: bool = True
    """Tensor parallel goes with experts; where not, `plan` proposes it for dense models alone."""
    ep_with_pp: bool = True
    """Expert and pipeline parallel go together; where not, `plan` proposes one of them above 1."""
    mixed_alone: bool = True
    """Formats are mixed whatever is sharded; where not, tp or pp without sharded states computes in fp32 (mixing is
    FSDP's), and `plan` proposes no such strategy in 16 bits."""
    tied_with_pp: bool = True
    """A pipeline's two ends may share the embedding's weights; where not, `plan` cuts no model with tied ones."""
    mesh: bool = False
    """One mesh for all axes: a group that shards holds whole context parallel groups and whole groups of experts, and
    experts are split as tp is where ep is 1; `plan` heeds it."""
    any_module: bool = False
    """It runs whatever module it is given, in plain torch, as traced ones are."""
    mixed: tuple[Literal["stages", "replicas", "batches"], ...] = ("stages", "replicas")
    """What different kinds of GPU may hold: stages of a pipeline, replicas without one, and these with different
    numbers of micro batches; `plan` proposes no other."""
    v_microbatches: tuple[int, ...] = ()
    """Micro batches that a v schedule runs with, least and most, in units of pp; `plan` heeds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Which kernels run and what each keeps for the backward pass."""

    norm: Literal["fused", "native", "eager"] = "fused"
    """fused: one tuned kernel that keeps its input; native: torch's own, slower; eager: a chain of fp32 kernels that
    keeps two copies (RMS norm only; a layer norm is then native)."""
    casts_alone: bool = False
    """Where nothing shards them, weights are fp32 beside 16-bit activations: experts' weights are cast in every pass,
    and norms of queries and keys fall back to a chain of plain kernels unless compiled (torch's RMS norm)."""
    attention: Literal["best", "flash2", "flash1"] = "best"
    """Attention kernels: the fastest for the GPU, or FlashAttention 2 or 1 as older software has them."""
    flash: bool = True
    """There is a kernel that stores no scores; where there is none, a strategy's `flash` changes nothing."""
    stores_scores: tuple[Literal["sinks", "alibi", "score_cap", "relative"], ...] = ()
    """What of a model no kernel knows but those that store scores, whatever a strategy's `flash`."""
    rope: Literal["fused", "unfused", "eager"] = "fused"
    """unfused: sines and cosines are kept per layer; eager: plain kernels, sines and cosines shared."""
    qkv: Literal["separate", "mixed"] = "separate"
    """mixed: values stay a view of the projection's whole output, which is kept beside rotated queries and keys."""
    turned_output_kept: bool = False
    """Attention puts samples first, layers put tokens first: with several samples a turned copy of its output stays."""
    activation: Literal["fused", "eager", "compiled"] = "fused"
    """fused: only the inputs are kept; eager: each step's result too; compiled: inputs and the product."""
    gelu_kept: float = 1.0
    """Copies of the inner activation that an eager GELU in steps keeps beside the product; torch's own keeps one."""
    loss: Literal["fp32", "in-place", "fused", "compiled", "compiled-fp32"] = "in-place"
    """fp32: log-softmax kept, gradients in fresh fp32 copies; in-place: one fp32 copy; fused: 16-bit logits only;
    compiled: 16-bit logits and their 16-bit gradient; compiled-fp32: the gradient comes in fp32 first."""
    logits_kept: bool = False
    """Logits of 16 bit stay until the backward pass beside what the loss keeps."""
    vocab_multiple: int = 1
    """The vocabulary is padded to a multiple of this times tp; 1: padded only so that tp divides it."""
    gathered_input_kept: bool = False
    """A column-parallel layer keeps its gathered input (DTensor) rather than gathering it again in backward."""
    gathered_logits: bool = False
    """Every tensor parallel rank gathers all logits and computes the whole loss."""
    softmax_bytes: float = 5.0
    """Bytes kept per attention score where attention is not flash (scores, probabilities, dropout mask)."""
    softmax_work: float = 10.0
    """Bytes per attention score that its backward needs on top of what is kept."""
    softmax_traffic: tuple[float, float] = (14.0, 15.0)
    """Weighted traffic per stored attention score, forward and backward: scale, mask, softmax, dropout."""
    compiled_loss: Literal["", "compiled", "compiled-fp32"] = "compiled-fp32"
    """What the loss becomes where a strategy compiles; empty: compiling leaves it alone."""
    compiled_full_attention: bool = False
    """Compiled, the runtime hands attention an explicit mask, and the whole square is computed."""
    compiled_branches: bool = True
    """Compiled, the output of a branch is kept beside the sum that the next norm reads."""
    masked_windows: bool = False
    """A window shorter than the sequence comes as an explicit mask, and the whole square is computed."""
    reduce_staging: float = 0.0
    """Largest buffer that summing a bias gradient over the tokens takes, bytes; 0: fused into another kernel."""
    weight_grad_fusion: bool = True
    """Weight gradients are added into the gradient buffer by the matrix kernel; else through a temporary."""
    fused_optimizer: bool = True
    """One pass over the states; else several, with temporaries."""
    optimizer_work: float = 0.0
    """Bytes of temporaries per parameter of the optimizer's shard."""
    experts_autocast: bool = True
    """Under autocast the experts' products run in 16 bit; where they do not, in fp32."""
    expert_loop: bool = False
    """Products of experts are launched one by one (Transformer Engine), else all of a layer in one kernel."""
    expert_activation: tuple[float, float] = (1.0, 1.0)
    """Time of the experts' activation over that of a dense layer's, forward and backward, where the number of tokens
    changes from pass to pass."""
    expert_output_kept: bool = True
    """Experts' outputs are kept to scale them by the router's weights; else the weights travel with the tokens."""
    fp8_copies: float = 0.0
    """Most copies of a weight in the format of the products, one for each layout, that are kept from pass to pass; 0:
    cast in every pass."""
    fp8_steps: float = 0.0
    """Weighted bytes an element of casting an operand to 8 bit where that is a chain of plain kernels, and both passes
    cast both operands anew (torchao, not compiled); 0: fused, or by the kernel that makes it."""
    fp8_output: bool = False
    """The output layer's product runs in 8 bit, too, and its casts are compiled with nothing."""
    fp8_inputs: bool = False
    """Linear layers keep their inputs in the format of the products."""
    compiled: bool = False
    """Small kernels are fused by a compiler: fewer launches and less traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the framework allocates beside tensors of the model."""

    gradients: Literal["buffer", "lazy"] = "buffer"
    """buffer: allocated once for all; lazy: made by the backward pass and dropped after the step."""
    master_is_parameter: bool = False
    """The fp32 copies are the parameters themselves and 16-bit ones exist only while gathered (FSDP)."""
    outputs_kept: bool = False
    """The output of a pipeline stage stays allocated until its backward pass."""
    gather_buffer: bool = False
    """One lasting buffer for gathered activations of tensor parallel layers."""
    dummy_gradients: bool = False
    """One unused 16-bit weight gradient per distinct matrix shape of a layer is kept (Transformer Engine 2.3 and
    later)."""
    output_gradient: bool = False
    """The output layer's is kept with them (Megatron-Core 0.20); else it is made anew."""
    workspace: float = 67e6
    """Matrix library's workspaces."""
    fixed: float = 0.0
    """Other lasting allocations."""
    whole_gradients_with_pp: bool = False
    """With pipeline parallel, sharded gradients are reduced once an iteration and are whole until then."""
    half_gradients_beside: bool = False
    """16-bit gradients of a micro batch stand whole beside fp32 ones before they are added (DeepSpeed's bf16)."""
    gradient_bytes: float = 0.0
    """Bytes per gradient where the runtime fixes it; 0: as the strategy says."""
    fragmentation: float = 0.08
    """Reserved over allocated bytes, less one, of what comes and goes (activations, temporaries)."""
    compiled_fragmentation: float = 1.0
    """The same at most where a strategy compiles: compiled passes allocate the same blocks every time."""
    loss_gaps: float = 0.0
    """Reserved beside the rest on the rank with the loss, over the logits of a micro batch in 16 bit: these largest
    blocks come and go first, and what follows breaks them up."""
    lasting_fragmentation: float = 0.0
    """The same of what lasts (weights, states), where one figure is given for all (SimuMax's mem_factor)."""
    context: float = 0.0
    """Bytes that it takes outside the allocator beside the GPU's own context and the communicators."""
    bucket: float = 0.0
    """Communication buffer of gradients or gathered parameters, bytes."""
    gathered_layers: float = 2.0
    """Layers whose parameters are gathered at once under ZeRO 3: the one at work and those prefetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Share of each kind of communication that is hidden behind compute where there is compute to hide it."""

    grad_reduce: float = 0.0
    """Reduction of gradients, behind the backward pass."""
    param_gather: float = 0.0
    """Gathering of updated parameters (ZeRO 1), behind the next forward pass."""
    gathers_twice: bool = False
    """Experts have an optimizer of their own, and each of the two gathers all new weights unless that is hidden."""
    fsdp: float = 0.97
    """Gathering and scattering of sharded parameters (ZeRO 3), behind the neighbouring layers: all but what stands at
    both ends of the model."""
    fsdp_rate: float = 1.0
    """Share of the network's bandwidth that gathering and scattering sharded parameters reaches."""
    fsdp_copies: tuple[float, float] = (0.0, 0.0)
    """Traffic on the device's own memory, bytes a parameter, of gathering it and of scattering its gradient: kernels
    that no overlap hides."""
    tp: float = 0.0
    """Tensor parallel communication, by splitting matrix products."""
    weight_gather: float = 1.0
    """Gathering a column layer's input again for its weight gradient (sequence parallel), behind the layer's backward
    products as long as they last."""
    p2p_shares: bool = False
    """Without sequence parallel, tensor parallel ranks send a share of the hidden state each and gather it."""
    whole_reduction: bool = False
    """ZeRO 1 reduces whole gradients on every rank rather than scattering them."""
    p2p: float = 0.0
    """Sends between pipeline stages."""
    ep: float = 0.0
    """Tokens on their way to experts and back."""
    ep_behind: float = 0.37
    """The same where another micro batch's compute runs beside it (`ep_overlap`). A trace of Qwen3-30B on 16 H100s had
    37% hidden (Megatron Bridge, 2026-07): copies and products contend for the same compute units."""
    cp: float = 0.8
    """Context parallel exchanges, behind attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What the framework's own code costs, whatever the GPU."""

    launch: float = 4.0e-6
    """Seconds of CPU per kernel in the forward pass."""
    launch_backward: float = 4.0e-6
    """Seconds of CPU per kernel in the backward pass, and in a recomputed forward pass."""
    layer: float = 0.0
    """Seconds of CPU per layer and forward pass beside the kernels: Python, hooks, checks."""
    layer_backward: float = 0.0
    """The same for the backward pass."""
    experts: float = 0.0
    """Seconds of CPU that a layer with experts adds to its forward pass beside the kernels: router, dispatcher,
    sorting."""
    experts_backward: float = 0.0
    """The same for the backward pass."""
    call: tuple[float, float] = (17e-6, 14e-6)
    """Seconds of CPU per call of torch's operators of a traced module, forward and backward: Python, dispatcher and
    launch. The host runs ahead of the kernels with them; a compiler leaves none."""
    called_kernel: tuple[float, float] = (0.0, 0.0)
    """The same of a model that was not traced, per kernel, with the views and modules between kernels; 0: what launches
    take is said by `launch` alone."""
    called_layer: tuple[float, float] = (0.0, 0.0)
    """The same per layer beside its kernels."""
    tower: float = 0.0
    """The same forward of a tower beside its layers: finding positions, masks and the places of pictures."""
    tensor: tuple[float, float] = (1.0, 1.0)
    """What tensor parallel makes of these seconds, eager and compiled: DTensor looks at every operand."""
    iteration: float = 2e-3
    """Seconds per iteration: data, logging, synchronisation."""
    collective: float = 20e-6
    """Seconds of CPU per collective."""
    microbatch: float = 0.0
    """Seconds per micro batch."""
    sharded: tuple[float, float] = (0.0, 0.0)
    """The same that ZeRO 2 and 3 add: hooks of parameters, and waiting for what they began."""
    owner: float = 0.0
    """Seconds per rank that states are spread over, where new weights are sent owner by owner and not gathered."""
    slowdown: float = 1.0
    """Time of all kernels over that of the calibrated ones; older kernels are slower."""

    def beside(self, microbatches: int, zero: int) -> float:
        """Seconds of an iteration beside its kernels."""
        return self.iteration + (self.microbatch + (0.0, 0.0, *self.sharded)[zero]) * microbatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """One training framework, as far as time and memory are concerned."""

    name: str
    """Catalog name."""
    title: str = ""
    """One line about it."""
    can: Abilities = Abilities()
    """What it can run."""
    kernels: Kernels = Kernels()
    """Its kernels."""
    memory: Memory = Memory()
    """Its allocations."""
    overlap: Overlap = Overlap()
    """Its overlap of communication with compute."""
    overheads: Overheads = Overheads()
    """Its own costs."""

    @property
    def base(self) -> str:
        """Its name without the values that were laid over it (`megatron` of `megatron+kernels.loss=fused`)."""
        return self.name.partition("+")[0]

    def __hash__(self) -> int:
        """Of the fields that tell runtimes apart; caches hash one for every layer."""
        return hash((self.name, self.overheads))
