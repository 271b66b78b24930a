"""The runtime that the rehearsal program is: the kernels it has in place of a framework's own."""

from __future__ import annotations

from dataclasses import replace

from shardwise.estimate.passes import SPLIT
from shardwise.estimate.setup import Setup, setup_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.runtime import Overheads, Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.plan.plan import Plan

# CPU seconds of the program's own modules: an autograd function takes 19 us forward and 20 us backward (the probe's
# host), a fused kernel checks its guards; and the time of one iteration beside its passes.
OVERHEADS = Overheads(launch=20e-6, launch_backward=12e-6, layer=0.8e-3, layer_backward=0.4e-3, iteration=0.3e-3)
UNFUSED_ADAM = 4.0
"""Bytes per parameter that the program's Adam holds in its step where it is not fused."""


def is_plain(runtime: Runtime, strategy: Strategy) -> bool:
    """Whether the program has the rank's layers in plain torch, as Hugging Face and torchtitan write them: on whole
    matrices, with gradients by autograd. Where a rank has a share of each, or makes weight gradients apart, they are
    like Megatron's.
    """
    whole = strategy.tp == strategy.cp == strategy.ep == strategy.etp == 1
    apart = strategy.schedule in SPLIT | {"seq-1f1b", "auto"}
    eager = runtime.kernels.activation != "fused" or runtime.memory.gradients == "lazy"
    return whole and not apart and eager


def rehearsed(runtime: Runtime, strategy: Strategy) -> Runtime:
    """The runtime with the kernels that the program has: torch's own norms, rotary embedding in plain kernels."""
    kernels, memory = runtime.kernels, runtime.memory
    eager = kernels.norm == "eager"
    memory = replace(
        memory, dummy_gradients=False, bucket=0.0, fixed=0.0, workspace=67.1e6, gradient_bytes=0.0,
        half_gradients_beside=False, outputs_kept=False, gathered_layers=2.0,
    )  # fmt: skip
    kernels = replace(
        kernels, norm="eager" if eager else "native", rope="eager", attention="best", turned_output_kept=False,
        gathered_logits=False, expert_loop=False, expert_activation=(1.0, 1.0), experts_autocast=True,
        compiled_branches=False, casts_alone=False, masked_windows=False, fp8_steps=0.0, fp8_output=False,
        optimizer_work=0.0 if kernels.fused_optimizer else UNFUSED_ADAM,
        softmax_bytes=2.0, softmax_work=6.0, softmax_traffic=(16.0, 18.0),
    )  # fmt: skip
    if is_plain(runtime, strategy):
        # its own eager activation and the library's loss; matrix kernels add nothing up
        kernels = replace(
            kernels, activation="eager", gelu_kept=kernels.gelu_kept if eager else 1.0, loss="fp32",
            compiled_full_attention=False, compiled_loss="compiled", weight_grad_fusion=False, qkv="separate",
            expert_output_kept=True, gathered_input_kept=False, reduce_staging=0.0,
        )  # fmt: skip
        overheads = replace(load_runtime("huggingface").overheads, microbatch=0.0)
        return replace(runtime, kernels=kernels, overheads=overheads, memory=memory)
    if kernels.loss not in {"fp32", "in-place"}:
        kernels = replace(kernels, loss="compiled")
    if kernels.activation != "eager":
        kernels = replace(kernels, activation="fused")
    kernels = replace(kernels, gelu_kept=1.0)
    return replace(runtime, kernels=kernels, overheads=OVERHEADS, memory=memory)


def rehearsed_setup(plan: Plan) -> Setup:
    """What is built and what is predicted beside it."""
    runtime = rehearsed(load_runtime(plan.strategy.runtime), plan.strategy)
    return setup_of(plan.model, plan.cluster, plan.strategy, runtime)
