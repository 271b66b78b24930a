"""The one table of numbers: the kind, the range and the plausible band of every one that Shardwise takes.

Rows of our types are `Type.field`; their fields are declared, typed and explained where the type is. Rows of options
that are no field stand under `option`, those of other tools' files that become no field of ours under the tool's name.
`gate.py` says what becomes of a number outside.
"""

from __future__ import annotations

from typing import Any, get_args

from shardwise.inputs.gate import Scalar
from shardwise.inputs.recompute import MODULES
from shardwise.inputs.strategy import SCHEDULES, CpKind, Dtype

RANKS, LAYERS, WIDTH, TOKENS = 10**7, 10_000, 10**8, 10**9
"""More GPUs, layers, columns of a matrix and tokens than anything has: beyond them only typing errors are."""


def _whole(least: int, most: int, **more: Any) -> Scalar:  # noqa: ANN401 - the other fields of a row
    return Scalar(kind="whole", least=least, most=most, **more)


def _number(least: float, most: float, **more: Any) -> Scalar:  # noqa: ANN401
    return Scalar(kind="number", least=least, most=most, **more)


def _positive(most: float, **more: Any) -> Scalar:  # noqa: ANN401
    return Scalar(kind="number", least=0.0, most=most, above=True, **more)


def _size(
    low: float, high: float, *, zero: bool = False, likely: tuple[float, float] | None = None
) -> Scalar:  # fmt: skip
    return Scalar(kind="bytes", least=0.0, most=1e18, above=not zero, usual=(low, high), likely=likely)


def _rate(low: float, high: float) -> Scalar:
    return Scalar(kind="rate", least=0.0, most=1e18, above=True, usual=(low, high))


def _seconds(high: float) -> Scalar:
    return Scalar(kind="seconds", least=0.0, most=1e9, usual=(1e-12, high))


_SHARE, _FRACTION = _number(0, 1), _positive(1)
_LINE = _number(-1e18, 1e18)
_ERROR = _number(0, 1, usual=(0, 0.99), hint="it is a share: 0.1 is 10%")

SCALARS: dict[str, Scalar] = {
    # strategy
    **{f"Strategy.{axis}": _whole(1, RANKS) for axis in ("tp", "dp", "cp", "ep", "etp")},
    "Strategy.pp": _whole(1, LAYERS),
    "Strategy.vpp": _whole(1, LAYERS),
    "Strategy.zero": _whole(0, 3),
    "Strategy.zero_group": _whole(0, RANKS),
    "Strategy.group": _whole(0, RANKS),
    "Strategy.micro_batch": _whole(1, 10**6),
    "Strategy.global_batch": _whole(1, 10**9, usual=(1, 10**7), hint="it counts samples, not tokens"),
    "Strategy.microbatches": _whole(1, 10**7),
    "Strategy.batches": _whole(1, 10**7),
    "Strategy.seq": _whole(1, TOKENS, usual=(1, 10**8), hint="it is the length of one sample"),
    **{f"Strategy.{name}": _whole(0, LAYERS) for name in ("layers", "first_layers", "last_layers")},
    "Strategy.source": _whole(0, TOKENS),
    "Strategy.images": _positive(1e6, usual=(1e-3, 1e4), hint="it is pictures of a sample"),
    "Strategy.image_imbalance": _number(1, 1000, usual=(1, 100), hint="write 1.3 for 30% more than the mean"),
    "Strategy.image_size": _whole(0, 10**6),
    "Strategy.straggler": _number(1, 1000, usual=(1, 10), hint="write 1.05 for 5% slower"),
    "Documents.lengths": _whole(1, TOKENS),
    "Documents.counts": _positive(1e18),
    "Recompute.group": _whole(1, LAYERS),
    "Recompute.layers": _whole(0, LAYERS),
    "Lora.rank": _whole(1, 10**5),
    # model
    "Model.layers": _whole(1, LAYERS),
    **{f"Model.{name}": _whole(1, WIDTH) for name in ("hidden", "heads", "kv_heads", "head_size")},
    "Model.ffn": _whole(0, WIDTH),
    "Model.vocab": _whole(0, TOKENS),
    "Model.rotary_base": _number(1, 1e12),
    "Model.rotary_share": _FRACTION,
    "Model.window_rotary_base": _number(0, 1e12),
    "Model.query_scalar": _whole(0, WIDTH),
    **{f"Model.{name}": _number(0, 1e6) for name in ("score_cap", "logit_cap")},
    "Model.norm_eps": _positive(0.1, usual=(1e-12, 1e-2), hint="it is added to a variance"),
    "RopeScaling.factor": _number(1, 1e6, usual=(1, 1e4), hint="it is how many times longer sequences get"),
    "RopeScaling.original": _whole(0, TOKENS),
    **{f"RopeScaling.{name}": _positive(1e6) for name in ("low", "high", "beta_fast", "beta_slow")},
    **{f"RopeScaling.{name}": _number(0, 1000) for name in ("mscale", "mscale_all")},
    "Model.max_positions": _whole(0, TOKENS),
    "Model.norms_per_layer": _whole(1, 4),
    "Model.embedding_size": _whole(0, WIDTH),
    "Model.windows": _whole(0, TOKENS),
    "Model.mtp": _whole(0, 100),
    **{f"Model.{name}": _whole(0, TOKENS) for name in ("token_types", "classes")},
    "Model.condition": _whole(0, WIDTH),
    **{f"Stem.{name}": _whole(1, 10**6) for name in ("size", "patch", "channels", "frames")},
    **{f"Stem.{name}": _whole(0, 10**6) for name in ("kernel", "leading")},
    "Projector.merge": _whole(1, 1000),
    "Projector.inner": _whole(1, WIDTH),
    "Projector.taps": _whole(0, LAYERS),
    "Traced.seq": _whole(1, TOKENS),
    "Traced.order": _whole(0, LAYERS),
    **{f"Traced.{name}": _whole(0, 10**15) for name in ("buffers", "idle", "tied", "tied_cut")},
    "Traced.ways": _whole(1, WIDTH),
    **{f"Traced.{name}": _LINE for name in ("border", "tables", "logits")},
    "TracedBlock.entry": _LINE,
    "TracedOp.params": _whole(0, 10**15),
    **{f"TracedOp.{name}": _LINE for name in ("shape", "bytes_f", "bytes_b", "kept", "extra_f", "extra_b")},
    "TracedCut.params": _whole(0, 10**15),
    **{
        f"TracedCut.{name}": _LINE
        for name in ("shape", "bytes_f", "bytes_b", "kept", "extra_f", "extra_b", "sums_f", "sums_b")
    },
    **{f"TracedOp.{name}": _number(0, 1e6) for name in ("kernels_f", "kernels_b", "calls_f", "calls_b")},
    "Model.dropout": _number(0, 1, usual=(0, 0.999), hint="it is a probability below 1"),
    **{f"Mla.{name}": _whole(1, WIDTH) for name in ("kv_rank", "nope_size", "value_size")},
    **{f"Mla.{name}": _whole(0, WIDTH) for name in ("rope_size", "q_rank")},
    **{f"Recurrent.{name}": _whole(1, WIDTH) for name in ("heads", "head_size", "chunk")},
    **{f"Recurrent.{name}": _whole(0, WIDTH) for name in ("state", "key_heads", "rank")},
    "Recurrent.conv": _whole(0, 1000),
    **{f"Sparse.{name}": _whole(1, WIDTH) for name in ("heads", "head_size")},
    "Sparse.top_k": _whole(1, TOKENS),
    **{f"Moe.{name}": _whole(1, 10**6) for name in ("experts", "top_k", "groups", "top_groups")},
    "Moe.expert_ffn": _whole(1, WIDTH),
    "Moe.shared_ffn": _whole(0, WIDTH),
    "Moe.first_dense": _whole(0, LAYERS),
    "Moe.every": _whole(1, LAYERS),
    "Moe.scale": _positive(1e6, usual=(1e-3, 1e3), hint="it multiplies the weights of experts"),
    "Moe.balance_loss": _number(0, 1e6, usual=(0, 100), hint="it is the coefficient of a loss"),
    "Moe.capacity": _positive(1e6, usual=(1e-3, 1000), hint="it is a factor: 1.25 leaves a quarter of room"),
    "Moe.loads": _number(0, 1e18, usual=(0, 1e15), hint="it is how many tokens an expert gets"),
    "Moe.imbalance": _number(1, 1e6, usual=(1, 1000), hint="it is the busiest rank over the mean"),
    # cluster
    "Cluster.gpus": _whole(1, RANKS),
    "Cluster.host_bandwidth": _rate(1e7, 1e14),
    "Cluster.host_memory": _size(1e8, 1e16, zero=True),
    "Gpu.memory": _size(1e8, 1e14, likely=(1e9, 1e12)),
    "Gpu.bandwidth": _rate(1e9, 1e15),
    "Gpu.flops": Scalar(kind="flops", least=0.0, most=1e21, above=True, usual=(1e12, 1e18)),
    "Gpu.sms": _whole(1, 10**5),
    "Gpu.l2": _size(1e4, 1e12, zero=True),
    "Gpu.reserved": _size(1e3, 1e13, zero=True),
    "Site.slowdown": _positive(1000, usual=(0.1, 10), hint="it is a factor: 1.2 is a fifth slower"),
    "Site.fabric": _positive(1000, usual=(0.01, 2), hint="it is a share: 0.5 is half of the bandwidth"),
    "Site.host": _positive(1000, usual=(0.05, 20), hint="it is a factor: 0.5 is half as fast"),
    "Site.spread": _number(0, 10, usual=(0, 1), hint="0.08 is 8% either way"),
    "Site.jitter": _number(0, 1, usual=(0, 0.2), hint="0.007 is 0.7% of a step"),
    "Site.pod": _whole(0, RANKS),
    "Site.oversubscription": _number(1, 1e6, usual=(1, 1000), hint="7 is a seventh of the bandwidth between pods"),
    "Site.error": _number(0, 10, usual=(0, 1), hint="0.02 is 2%"),
    "Level.size": _whole(1, RANKS),
    "Level.bandwidth": _rate(1e6, 1e14),
    "Level.latency": _seconds(0.1),
    "Level.oversubscription": _number(1, 1e6, usual=(1, 1000), hint="3 is a network of a third of its traffic"),
    # runtime
    "Abilities.zero": _whole(0, 3),
    "Abilities.zero_with_pp": _whole(0, 3),
    "Abilities.zero_with_ep_cp": _whole(0, 3),
    "Abilities.zero_with_cp": _whole(0, 3),
    "Abilities.v_microbatches": _whole(0, LAYERS),
    "Kernels.vocab_multiple": _whole(1, 10**6),
    "Kernels.reduce_staging": _size(1e3, 1e13, zero=True),
    **{f"Kernels.{name}": _number(0, 1000)
       for name in ("gelu_kept", "softmax_bytes", "softmax_work", "softmax_traffic", "optimizer_work", "fp8_copies",
                    "fp8_steps", "expert_activation")},
    **{f"Memory.{name}": _size(1e3, 1e13, zero=True) for name in ("workspace", "fixed", "context", "bucket")},
    "Memory.gradient_bytes": _number(0, 16),
    "Memory.fragmentation": _number(0, 10),
    "Memory.compiled_fragmentation": _number(0, 10),
    "Memory.lasting_fragmentation": _number(0, 10),
    "Memory.loss_gaps": _number(0, 100, usual=(0, 4), hint="it is times the logits of a micro batch"),
    "Memory.gathered_layers": _number(0, LAYERS),
    **{f"Overlap.{name}": _SHARE
       for name in ("grad_reduce", "param_gather", "fsdp", "tp", "weight_gather", "p2p", "cp", "ep", "ep_behind")},
    "Overlap.fsdp_rate": _FRACTION,
    "Overlap.fsdp_copies": _number(0, 1000, usual=(0, 100), hint="it is bytes a parameter"),
    **{f"Overheads.{name}": _seconds(0.1)
       for name in ("launch", "launch_backward", "layer", "layer_backward", "experts", "experts_backward",
                    "collective", "call", "called_kernel", "called_layer", "tower")},
    **{f"Overheads.{name}": _seconds(0.5) for name in ("iteration", "microbatch", "owner", "sharded")},
    **{f"Overheads.{name}": _positive(1000, usual=(0.01, 100), hint="it is a factor: 1.1 is 10% slower")
       for name in ("slowdown", "tensor")},
    # calibration: shares of a peak may pass 1 a little, since peaks are data sheets' and clocks boost
    **{f"Reach.{name}": _whole(0, RANKS) for name in ("within", "size", "stride", "nodes")},
    "Reach.share": _positive(2),
    "Reach.sizes": _positive(2.0**50),
    "Reach.seconds": _positive(1e3),
    "Calibration.operators": _positive(1e4),
    **{f"Reach.{name}": _seconds(1) for name in ("latency", "fixed")},
    **{f"Calibration.{name}": _positive(2)
       for name in ("gemm", "grouped", "bandwidth", "attention", "flash1", "flash2", "narrow_head", "network")},
    "Calibration.shapes": _positive(2),
    "Calibration.gemm_depth": _number(0, 10**6),
    **{f"Calibration.{name}": _seconds(0.1) for name in ("gemm_fixed", "kernel_fixed", "collective_fixed")},
    "Calibration.wave": _SHARE,
    "Calibration.contended": _SHARE,
    "Calibration.misaligned": _number(1, 1000),
    "Calibration.attention_half": _number(0, 10**7),
    "Calibration.host": _positive(1000),
    "Calibration.corrections": _positive(1e6),
    "Learnt.corrections": _positive(1e6),
    "Learnt.time_error": _ERROR,
    "Calibration.probed": _number(0, 2.0**50),
    "Calibration.time_error": _ERROR,
    "Calibration.memory_error": _ERROR,
    # options that are no field
    "option.count": _whole(1, 10**9),
    "option.confidence": _number(-1e18, 1e18, usual=(0.5, 0.9999), hint="it is a probability: write 95% or 0.95"),
    "option.gap": _number(0, 1, usual=(0, 0.9999), hint="it is a share: write 0.5% or 0.005"),
    "option.time": Scalar(kind="seconds", least=0.0, most=3.2e7, above=True),
    "option.seconds": Scalar(kind="seconds", least=0.0, most=3.2e7),  # 0: what is found at once
    "option.room": _size(1e6, 1e14, likely=(1e9, 1e12)),
    "option.effort": _number(0.01, 100),
    "option.share": _SHARE,
    "option.margin": _size(1e3, 1e14, zero=True),
    "option.tokens": Scalar(kind="count", least=0.0, most=1e18, above=True),
    "option.price": _number(0, 1e6),
    "option.days": _number(0, 1e6, above=True),
    "option.mtbf": Scalar(kind="seconds", least=0.0, most=1e13, above=True, usual=(1.0, 1e12)),
    "option.checkpoint": Scalar(kind="seconds", least=0.0, most=1e9),
    "option.store": _rate(1e4, 1e15),
    "option.times": _number(0, 1e6, above=True),
    "option.workers": _whole(1, 4096),
    "option.top": _whole(1, 10_000),
    "option.best": _whole(1, 64),
    "option.steps": _whole(1, 10**6),
    "option.seed": _whole(0, 2**31),
    "option.none": _whole(0, RANKS),
    "option.switch": _whole(0, 1),
    "option.vpp": _whole(1, 32),
    "option.splits": _whole(1, 1024),
    "option.copies": _whole(1, 64),
    "option.port": _whole(0, 65535),
    "option.searches": _whole(1, 256),
    "option.minutes": _number(0.1, 60),
    # a pipeline in the user's own units, whatever they are
    "pipeline.time": _number(0, 1e15),
    "pipeline.bytes": _number(0, 1e18),
    "pipeline.limit": _positive(1e18),
    "pipeline.share": _SHARE,
    "pipeline.coefficient": _number(0, 1000),
    "pipeline.count": _whole(1, 10**6),
    "pipeline.offset": _whole(-LAYERS, LAYERS),
    # SimuMax's system files, in its units; causal attention counted in full reaches 1.1 of a peak in its tables, a link
    # counted one way 1.5
    "simumax.tflops": _positive(1e9, usual=(0.1, 1e6), hint="it is in TFLOP/s"),
    "simumax.gbps": _positive(1e9, usual=(1e-3, 1e6), hint="it is in GiB/s"),
    "simumax.mem_gbs": _positive(1e9, usual=(0.1, 1e5), hint="it is in GiB"),
    "simumax.latency_us": _number(0, 1e9, usual=(0, 1e6), hint="it is in microseconds"),
    "simumax.operator_share": _positive(1.3),
    "simumax.network_share": _positive(2.0),
    "simumax.mem_factor": _positive(1, usual=(0.1, 1), hint="it is allocated over reserved bytes"),
    "simumax.number": _number(-1e6, 1e6),
    "simumax.counted": _number(0, TOKENS),
    # what a plan says of itself, where it is computed with
    "Predictions.iteration_seconds": _positive(1e30),
    **{f"Predictions.{name}": _number(0, 1e30) for name in (
        "tokens_per_second_per_gpu", "mfu", "peak_bytes", "total_bytes", "host_bytes", "bound", "gap",
        "memory_limit", "iteration_seconds_interval", "total_bytes_interval")},
    "Predictions.fits_probability": _SHARE,
    **{name: _number(-1e30, 1e30) for name in (
        "Ledger.value", "Stage.forward", "Stage.backward", "Stage.recompute", "Stage.alone", "RankMemory.total",
        "OperatorStage.seconds", "OperatorStage.memory", "Operators.seconds", "Operators.bound")},
    "ProofPart.bound": _number(0, 1e30),
    "Recomputed.choices": _whole(0, LAYERS),
    # what profilers, logs and dry runs write: microseconds since some start, numbers of launches
    "trace.ts": _number(-1e17, 1e17),
    "trace.dur": _number(0, 1e12),
    "trace.number": _whole(-(2**63), 2**63),
    "snapshot.bytes": _number(0, 2.0**50),
    "snapshot.device": _whole(0, 1023),
    "log.iteration": Scalar(kind="seconds", least=0.0, most=1e9, above=True),
    "log.peak": _positive(1e9),
    # numbers whose own range is looked at later, together with all other faults
    "any.whole": _whole(-(10**15), 10**15),
    "any.number": _number(-1e15, 1e15),
    # anything else that another tool counts
    "foreign.count": _whole(1, 10**12),
    "foreign.none": _whole(0, 10**12),
    "foreign.batch": _whole(-1, 10**9),  # -1: left open
    "foreign.tokens": _whole(-1, 10**13),
    "foreign.group": _whole(-1, RANKS),  # -1: as large as can be
}  # fmt: skip


def row_of(kind: type, name: str) -> Scalar | None:
    """The row of a field of one of our types; none: it is no number."""
    return SCALARS.get(f"{kind.__name__}.{name}")


WORDS: dict[str, tuple[str, ...]] = {
    "Strategy.schedule": SCHEDULES,
    "Recompute.modules": MODULES,
    "Abilities.schedules": SCHEDULES,
    "Abilities.cp": get_args(CpKind),
    "Abilities.dtypes": get_args(Dtype),
    "Abilities.modules": MODULES,
    "Abilities.modules_alone": MODULES,
    "Abilities.recompute": ("full", "block", "uniform", "modules", "per-stage"),
}
"""Words that a field takes, where its type does not say them."""


def words_of(kind: type, name: str) -> tuple[str, ...]:
    """The words that a field takes; none: any, or its type says them."""
    return WORDS.get(f"{kind.__name__}.{name}", ())
