"""One rank's share as Megatron-Core's own modules build it, and the runtime that predicts it."""

from __future__ import annotations

from shardwise.errors import Fault, InputError
from shardwise.estimate.setup import Setup, setup_of
from shardwise.inputs.load import load_runtime
from shardwise.measure.rehearse.spec import SCHEMA, Spec, identity_of, model_values, short, strategy_values
from shardwise.plan.plan import Plan

LOCAL, ENGINE = "megatron-modules", "megatron"
"""The runtimes of Megatron-Core without and with Transformer Engine: the program builds what is installed there."""
CAUSE = "rehearse --with megatron cannot build it; rehearse without --with"
SCHEDULES = {"1f1b", "interleaved"}
FIELDS = ("pp", "vpp", "dp", "zero", "microbatches")


def megatron_spec(plan: Plan, rank: int) -> Spec:
    """The share of one pipeline rank in Megatron's words; Megatron cuts the layers and orders the passes itself."""
    setup = megatron_setup(plan)
    refuse(setup)
    strategy = {**strategy_values(setup), **{name: getattr(setup.strategy, name) for name in FIELDS}}
    return {
        "schema": SCHEMA,
        **identity_of(plan, rank),
        "style": "megatron",
        "model": {**model_values(setup), "layers": setup.model.layers},
        "strategy": strategy,
        "recompute": _recompute(setup),
        "layout": _layout(setup),
    }


def megatron_setup(plan: Plan, *, engine: bool = False) -> Setup:
    """`engine`: with Transformer Engine's modules."""
    return setup_of(plan.model, plan.cluster, plan.strategy, load_runtime(ENGINE if engine else LOCAL))


def _layout(setup: Setup) -> str:
    """Layers of every chunk in Megatron's words; empty: as many in each, which it finds for itself."""
    if len(set(setup.layers)) == 1:
        return ""
    stages = ["t" * count for count in setup.layers]
    return "|".join(["E" + stages[0], *stages[1:-1], stages[-1] + "L"])


def refuse(setup: Setup) -> None:
    """Everything at once that the program cannot build."""
    model, strategy = setup.model, setup.strategy
    unfit = {
        "cp": strategy.cp > 1,
        "flash": not strategy.flash,
        "lora": strategy.lora is not None,
        "dtype": strategy.dtype != "bf16",
        "zero": strategy.zero > 1,
        "schedule": strategy.pp > 1 and strategy.schedule not in SCHEDULES,
        "recompute": not _expressible(setup),
    }
    odd = {
        "moe": model.moe is not None,
        "mla": model.mla is not None,
        "mtp": model.mtp > 0,
        "windows": bool(model.windows),
        "parallel_residual": model.parallel_residual,
        "norms_per_layer": model.norms_per_layer != 2,
        "dropout": model.dropout > 0,
        "activation": model.activation not in {"swiglu", "gelu"},
        "qk_norm": model.qk_norm == "full",
        "out_bias": model.out_bias != model.mlp_bias,
    }
    faults = [Fault(f"strategy.{name}", f"is {getattr(strategy, name)!s}: {CAUSE}") for name in unfit if unfit[name]]
    faults += [Fault(f"model.{name}", f"is {short(getattr(model, name))}: {CAUSE}") for name in odd if odd[name]]
    if faults:
        raise InputError(faults)


def _expressible(setup: Setup) -> bool:
    recompute = setup.strategy.recompute
    return set(recompute.modules) <= {"core-attention"} and recompute.group == 1 and len(recompute.layers) <= 1


def _recompute(setup: Setup) -> Spec:
    recompute = setup.strategy.recompute
    if recompute.full:
        return {"kind": "full", "layers": min((recompute.layers or setup.layers)[0], setup.layers[0])}
    return {"kind": "core-attention" if recompute.modules else "none"}
