"""One rank of a plan, run for real on one GPU or counted without any, and held against the prediction."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from shardwise.check.check import ensure
from shardwise.errors import Fault, InputError, MissingExtraError
from shardwise.estimate.predictions import RehearsedLine
from shardwise.inputs.load import load_runtime
from shardwise.inputs.serialise import to_json
from shardwise.inputs.write import write_now, write_text
from shardwise.measure.rehearse.compare import compare, folded
from shardwise.measure.rehearse.megatron import megatron_spec
from shardwise.measure.rehearse.module import count_module, module_spec
from shardwise.measure.rehearse.program import read_result, run_program
from shardwise.measure.rehearse.spec import Spec, rank_number, spec_of
from shardwise.measure.rehearse.torchtitan import torchtitan_spec
from shardwise.plan.file import plan_id
from shardwise.plan.plan import Plan

Device = Literal["cuda", "meta"]
Builder = Literal["megatron", "torchtitan"]
_PACKAGES = {"megatron": "megatron-core", "torchtitan": "torchtitan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a rank did beside what was predicted."""

    rank: int
    device: str
    lines: tuple[RehearsedLine, ...]
    """Memory always; seconds where a GPU measured them."""
    plan: Plan
    """The plan with what was rehearsed among its predictions."""
    result: dict[str, Any]
    """What the program wrote."""


def spec_for(
    plan: Plan, rank: str | None = None, *, device: Device | None = None, builder: Builder | None = None,
    trace: str | None = None,
) -> Spec:  # fmt: skip
    """The share of a rank; `builder`: who builds it, our program where none is given; `trace`: the user's module."""
    ensure(plan.model, plan.cluster, plan.strategy, load_runtime(plan.strategy.runtime))
    if plan.strategy.masked_documents is not None:
        told = "samples of a rehearsal are one document each; rehearse what `estimate --packing unmasked` writes"
        raise InputError(Fault("strategy.documents", told))
    if rank is None and plan.strategy.pp > 1:
        raise InputError(
            Fault("--rank", f"is missing; give pp0 to pp{plan.strategy.pp - 1}, the fullest is a good one")
        )
    number = rank_number(rank or "pp0", plan.strategy.pp)
    if trace or plan.model.traced:
        return _of_module(plan, number, trace, device, builder)
    if builder == "megatron":
        if device == "meta":
            raise InputError(Fault("--device", "is meta, and Megatron's modules need a GPU; leave --with megatron out"))
        return megatron_spec(plan, number)
    spec = torchtitan_spec(plan, number) if builder else spec_of(plan, number)
    if device == "meta" and spec.get("run_only"):
        raise InputError(Fault("--device", f"is meta, and {spec['run_only']}; leave --with torchtitan out"))
    if spec["counted_only"] and device != "meta":
        raise InputError(f"{spec['counted_only']}; use --device meta")
    return spec


def _of_module(plan: Plan, number: int, trace: str | None, device: Device | None, builder: Builder | None) -> Spec:
    if trace is None:
        told = f"is missing; {plan.model.name} is a traced module, give the file it was traced from, my_model.py:build"
        raise InputError(Fault("--trace", told))
    if builder is not None:
        raise InputError(Fault("--with", f"is {builder}, and a traced module is built by its own file; leave it out"))
    if device != "meta":
        told = "of a traced module memory is counted, without a GPU; add --device meta"
        raise InputError(Fault("--device", told))
    return module_spec(plan, number, trace)


def run(
    plan: Plan,
    rank: str | None,
    *,
    device: Device | None,
    builder: Builder | None,
    repeats: int,
    keep: str | Path | None,
    trace: str | None = None,
    executing: Callable[[Path], object] | None = None,
) -> Rehearsal:
    """Run a rank here; `keep`: a file for the program's result; `trace`: the file of a traced module, `executing` is
    called before that runs.
    """
    spec = spec_for(plan, rank, device=device, builder=builder, trace=trace)
    if find_spec("torch") is None:
        raise MissingExtraError("rehearsing a rank", "torch")
    if builder and find_spec(builder) is None:
        told = f"is {builder}, and {_PACKAGES[builder]} is not installed here; use --write FILE"
        raise InputError(Fault("--with", told))
    if device != "meta" and shutil.which("nvidia-smi") is None:
        way = "" if builder == "megatron" or spec.get("run_only") else ", or give --device meta"
        raise InputError(f"this machine has no GPU: write the program for one with --write FILE{way}")
    if trace and executing:
        executing(Path(trace.rpartition(":")[0]))
    result = count_module(spec) if trace else run_program(spec, device=device or "cuda", repeats=repeats)
    if keep:
        write_text(keep, to_json(result))
        write_now()  # minutes of a GPU: kept, whatever is wrong with it
    return held(plan, result)


def read(plan: Plan, path: str | Path, rank: str | None = None) -> Rehearsal:
    """A result that the program wrote elsewhere; it must be of this plan, and of this rank where one is given."""
    result = read_result(path)
    _refuse_stranger(plan, result, path)
    if rank is not None and rank_number(rank, plan.strategy.pp) != result["rank"]:
        told = f"is {rank}, and {path} is a rehearsal of pp{result['rank']}; leave --rank out"
        raise InputError(Fault("--rank", told))
    return held(plan, result)


def held(plan: Plan, result: dict[str, Any]) -> Rehearsal:
    """A result against the plan."""
    lines = compare(plan, result)
    return Rehearsal(
        rank=result["rank"], device=result["device"], lines=tuple(lines), plan=folded(plan, result, lines),
        result=result,
    )  # fmt: skip


def _refuse_stranger(plan: Plan, result: dict[str, Any], path: str | Path) -> None:
    name = f"{plan.model.name}: {plan.strategy}"
    if result["name"] != name:
        why = f"{result['name']!r}, and the plan is {name!r}"
    elif result.get("plan") != plan_id(plan):
        why = f"another plan with the strategy {name!r}: its model, cluster, layers or schedule differ"
    elif result["rank"] >= plan.strategy.pp:
        why = f"rank pp{result['rank']}, and the plan ends at pp{plan.strategy.pp - 1}"
    else:
        return
    raise InputError(f"{path} is a rehearsal of {why}; read it with the plan that it was made from")
