"""One rank's share as torchtitan's own trainer builds it: what the export writes, and the runtime that predicts it."""

from __future__ import annotations

from dataclasses import replace

from shardwise.errors import Fault, InputError
from shardwise.estimate.setup import Setup, setup_of
from shardwise.frameworks.export import export
from shardwise.frameworks.target import Export
from shardwise.frameworks.torchtitan.families import Flavor, flavor
from shardwise.inputs.load import load_runtime
from shardwise.measure.rehearse.spec import SCHEMA, Spec, identity_of
from shardwise.plan.plan import Plan

VERSION = "torchtitan@0.2"
CAUSE = "rehearse --with torchtitan cannot build it; rehearse without --with"
SAME = {"model.norm_eps", "model.rope_scaling", "model.moe"}
"""What the export may lose: it changes values, neither bytes nor seconds."""
FILES = ("torchtitan.toml", "shardwise_model.py")


def torchtitan_spec(plan: Plan, rank: int) -> Spec:
    """The configuration of the job, and the place of the rank's first member in it."""
    _refuse(plan)
    made = _exported(plan)
    found, strategy = flavor(plan.model, plan.strategy.seq), plan.strategy
    assert isinstance(found, Flavor)  # noqa: S101 - the export stops where it is none
    return {
        "schema": SCHEMA,
        **identity_of(plan, rank),
        "with": "torchtitan",
        "style": "torchtitan",
        "counted_only": "",
        "run_only": _run_only(plan),
        "family": found.family,
        "memory": {"workspace": torchtitan_setup(plan).runtime.memory.workspace},
        "world": strategy.world,
        "place": rank * strategy.world // strategy.pp,
        "files": {file.name: file.text for file in made.files if file.name in FILES},
    }


def torchtitan_setup(plan: Plan) -> Setup:
    """Where FSDP mixes no formats, 0.2 runs under autocast."""
    s = plan.strategy
    sharded = s.zero > 0 and s.shard_group > 1
    if s.dtype == "bf16" and s.master != "pure":
        s = replace(s, master="mixed" if sharded or s.cp > 1 else "autocast")
    return setup_of(plan.model, plan.cluster, s, load_runtime("torchtitan"))


def _exported(plan: Plan) -> Export:
    s = plan.strategy
    said = replace(s, master="mixed") if s.master == "autocast" else s  # one file says both
    made = export(replace(plan, strategy=said), VERSION)
    lost = [one for one in made.losses if one.path not in SAME]
    if lost:
        raise InputError([Fault(one.path, f"{one.message}; plan what is written, then rehearse it") for one in lost])
    return made


def _refuse(plan: Plan) -> None:
    """Everything at once that the program cannot build."""
    strategy = plan.strategy
    unfit = {
        "pp": strategy.pp > 1,
        "ep": strategy.ep > 1,
        "zero": strategy.dp > 1 and not strategy.zero,  # DDP waits for what a fake group does not give
        "dtype": strategy.dtype not in {"bf16", "fp32"},
        "offload": strategy.offload != "none",
    }
    faults = [Fault(f"strategy.{name}", f"is {getattr(strategy, name)!s}: {CAUSE}") for name in unfit if unfit[name]]
    if faults:
        raise InputError(faults)


def _run_only(plan: Plan) -> str:
    """Why a share can be run but not counted on `meta`; empty: it can."""
    strategy = plan.strategy
    reasons = {
        "compiled layers": strategy.compile,
        "experts, whose kernels look at where tokens go": plan.model.moe is not None,
        "context parallel, whose attention has kernels on a GPU alone": strategy.cp > 1,
    }
    found = [reason for reason, there in reasons.items() if there]
    return f"torchtitan cannot go without data through {found[0]}" if found else ""
