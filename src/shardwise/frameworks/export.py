"""The targets, and the way of a plan to one of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

from shardwise.check.check import ensure
from shardwise.errors import Fault, InfeasibleError, InputError, UnknownNameError
from shardwise.frameworks.launcher import check_launcher
from shardwise.frameworks.nearest import without
from shardwise.frameworks.operators import lowered
from shardwise.frameworks.partition import mixture
from shardwise.frameworks.target import Export, ExportDraft, File, Target, runtime_of, settings_of
from shardwise.frameworks.written import read_back
from shardwise.inputs.files import read_text
from shardwise.inputs.load import load_runtime
from shardwise.inputs.mixed import Mixed
from shardwise.pipeline.action import Schedule
from shardwise.plan.plan import Plan

TORCH = "torch-pipelining@2.13"
SPEAKS = "torch 2.13, torch.distributed.pipelining (CSV and runner)"

TARGETS = {
    target.name: target
    for target in (
        Target(
            name="megatron",
            title="Megatron-LM",
            versions={
                "main": "Megatron-LM, main of August 2026 (d98e8a6)",
                "0.19": "Megatron-LM core_v0.19.0",
                "0.18": "Megatron-LM core_v0.18.2",
            },
            module="shardwise.frameworks.megatron.write",
            runtime="megatron",
            settings=("kernels.loss=fused", "overlap.tp=0"),
        ),
        Target(
            name="megatron-bridge",
            title="Megatron Bridge",
            versions={"0.6": "Megatron Bridge 0.6.0"},
            module="shardwise.frameworks.megatron.write_bridge",
            runtime="megatron",
            settings=("kernels.loss=fused", "overlap.tp=0"),
        ),
        Target(
            name="torchtitan",
            title="torchtitan",
            versions={
                "0.2": "torchtitan 0.2.2 (TOML)",
                "0.3": "torchtitan 0.3.0 (Python)",
                "main": "torchtitan, main of August 2026 (b5bcd76, Python)",
            },
            module="shardwise.frameworks.torchtitan.write",
            runtime="torchtitan",
            settings=("can.mixed_alone=true",),
        ),
        Target(
            name="huggingface",
            title="Hugging Face transformers",
            versions={"5": "transformers 5.17 with torch's FSDP (plain loop, and Trainer)"},
            module="shardwise.frameworks.huggingface.write",
            runtime="huggingface",
        ),
        Target(
            name="deepspeed",
            title="DeepSpeed",
            versions={"0.19": "DeepSpeed 0.19.8 (JSON)"},
            module="shardwise.frameworks.deepspeed.write",
            runtime="deepspeed",
        ),
        Target(
            name="mindformers",
            title="MindFormers",
            versions={
                "2.1-graph": "MindFormers 2.1.0, graph mode (YAML)",
                "2.1-pynative": "MindFormers 2.1.0, PyNative (YAML)",
            },
            module="shardwise.frameworks.mindformers.write",
            runtime="mindformers",
        ),
        Target(
            name="paddle",
            title="PaddleNLP",
            versions={"3.0": "PaddleNLP 3.0 trainer, auto-parallel (JSON)"},
            module="shardwise.frameworks.paddle.write",
            runtime="paddle",
        ),
        Target(
            name="torch-pipelining",
            title="torch.distributed.pipelining",
            versions={"2.13": SPEAKS},
            module="shardwise.frameworks.torch.write",
            runtime="torch-pipelining",
        ),
    )
}


def find(text: str) -> tuple[Target, str]:
    """`torchtitan@0.3` -> the target and its version; without a version its default."""
    name, _, version = text.partition("@")
    if name not in TARGETS:
        raise UnknownNameError("target", name, TARGETS)
    target = TARGETS[name]
    if version and version not in target.versions:
        raise UnknownNameError(f"version of {target.title}", version, target.versions)
    return target, version or next(iter(target.versions))


def export(plan: Plan, to: str, *, strict: bool = False, launcher: str = "torchrun") -> Export:
    """A plan in the words of a target; `launcher`: what starts the job.

    Raises InfeasibleError where the target cannot say it; with `strict` also where it can only say something near.
    """
    target, version = find(to)
    check_launcher(launcher)
    _refuse_mixed(plan, target, launcher)
    told: tuple[Fault, ...] = ()
    if plan.operators is not None:
        if target.name == "torch-pipelining":
            from shardwise.frameworks.torch.write_operators import OperatorDraft, export_operators

            return export_operators(
                OperatorDraft(plan=plan, target=target, version=version, launcher=launcher, strict=strict)
            )
        plan, told = lowered(plan)
    _refuse_beyond(plan, target, version)
    ensure(plan.model, plan.cluster, plan.strategy, load_runtime(plan.strategy.runtime))
    write = cast("Callable[[ExportDraft], tuple[File, ...]]", importlib.import_module(target.module).write)
    first = _draft(plan, target, version, launcher, told)
    files = write(first)
    draft = _draft(
        plan, target, version, launcher, told, strict=strict
    )  # once more, with what the files say in their headers
    draft.written, found = read_back(files, first)
    draft.losses += found
    return draft.export(write(draft))


MIXING = ("megatron", "torch-pipelining")
"""Targets whose ranks are known to stand as a plan for several kinds of GPU has them."""


def _refuse_mixed(plan: Plan, target: Target, launcher: str) -> None:
    if not isinstance(plan.cluster, Mixed):
        return
    if target.name not in MIXING:
        said = f"the plan is for several kinds of GPU ({plan.cluster.name}), which we do not write for {target.title}"
        raise InfeasibleError(f"{said}; export it to {' or '.join(MIXING)}, or plan for one kind")
    if launcher != "torchrun":
        said = f"{launcher} gives nodes their ranks by itself, and a plan for several kinds of GPU says which is which"
        raise InfeasibleError(f"{said}; use --launcher torchrun and set NODE_RANK on every node")


_ANY_LAYER = frozenset({"huggingface", "deepspeed"})
"""Targets whose own writer says what kinds of layers it knows."""


def _refuse_beyond(plan: Plan, target: Target, version: str) -> None:
    """Layers that no flag of the target makes would be trained as ordinary ones."""
    if plan.model.traced:
        told = f"{plan.model.name} is a traced module, whose program is your own"
        raise InfeasibleError(
            f"{told}: no file of {target.title} holds it; start it with this strategy: {plan.strategy}"
        )
    if plan.model.towers or plan.model.stem or not plan.model.causal:
        told = f"{plan.model.name} has {', '.join(plan.model.beyond)}, which we write for no framework yet"
        raise InfeasibleError(f"{told}; start your own program of it with this strategy: {plan.strategy}")
    if not plan.model.beyond or target.name in _ANY_LAYER:
        return
    why = "which we do not write for it yet"
    if target.name == "megatron":
        from shardwise.frameworks.megatron.hybrid import unwritten

        why = unwritten(plan.model, version)
        if not why:
            return
    said = f"{plan.model.name} has {', '.join(plan.model.beyond)}; {target.title}: {why}"
    raise InfeasibleError(f"{said}; export to huggingface, or write the model there by hand and take the strategy")


def export_schedule(schedule: Schedule | str | Path, to: str) -> Export:
    """A schedule, or its CSV, without a plan: only PyTorch's pipelining can take it."""
    from shardwise.frameworks.torch.write import schedule_export

    target, _ = find(to)
    if target.name != "torch-pipelining":
        name = schedule.name if isinstance(schedule, Schedule) else schedule
        raise InputError(f"{name} is a schedule, not a plan; {target.title} needs a plan: give a plan.json")
    if not isinstance(schedule, Schedule):
        schedule = Schedule.parse(read_text(schedule), name=Path(schedule).stem)
    return schedule_export(schedule)


def _draft(
    plan: Plan, target: Target, version: str, launcher: str, told: tuple[Fault, ...], *, strict: bool = False
) -> ExportDraft:
    draft = ExportDraft(plan=plan, target=target, version=version, launcher=launcher, strict=strict, losses=[*told])
    _say_mixture(draft)
    _say_documents(draft)
    _say_settings(draft)
    if not target.name.startswith("megatron"):
        lost = _MEGATRONS.keys() - _SAID.get(target.name, set())
        without(draft, **{name: (_MEGATRONS[name], f"no setting of {target.title}") for name in sorted(lost)})
    return draft


_MEGATRONS = {
    "cuda_graphs": "none", "scaling": "tensor", "fp8_weights": False, "fp8_attention": False,
    "dispatcher": "all-to-all", "ep_overlap": False, "rank_order": "dp-pp",
}  # fmt: skip
"""Fields that Megatron-LM has flags for, with what others do."""
_SAID = {"torchtitan": {"dispatcher"}}
"""Of these, what another target's own writer says."""


def _say_mixture(draft: ExportDraft) -> None:
    """MindFormers' lists hold every kind of recompute side by side; no other target's words do."""
    text = mixture(draft.plan)
    if text and draft.version != "2.1-graph":
        draft.lose("balance.recompute", text)


def _say_documents(draft: ExportDraft) -> None:
    """Packing is the data loader's, which reads the user's own files."""
    if draft.strategy.documents is not None:
        told = f"how documents become samples is not said by this export: set {_LOADERS[draft.target.name]}"
        draft.lose("strategy.documents", told, documents=None, packing="packed")


_LOADERS = {
    "megatron": "what its data loader packs; --reset-position-ids and --reset-attention-mask keep attention inside "
    "documents by a mask over the whole sample, which saves nothing",
    "megatron-bridge": "packed sequences in its data set",
    "torchtitan": "block-causal attention in its model (it is none of the trainer's options)",
    "huggingface": "a collator without padding, with positions that begin anew, and flash attention",
}
_LOADERS |= dict.fromkeys(("deepspeed", "mindformers", "paddle", "torch-pipelining"), "it in the data loader")


def _say_settings(draft: ExportDraft) -> None:
    """Values laid over a runtime that is the target's own, and that no setting of the target stands for."""
    plan, target = draft.plan, draft.target
    if not target.runtime or runtime_of(plan, target) != plan.strategy.runtime:
        return
    base, laid = settings_of(plan.strategy.runtime)
    for one in laid:
        if one not in target.settings:
            draft.lose("strategy.runtime", f"{one} is no setting of {target.title}; {base} is written as it is")
    kept = "+".join((base, *(one for one in laid if one in target.settings)))
    draft.strategy = replace(draft.strategy, runtime=kept)


def target_names() -> tuple[str, ...]:
    """Every target with every version: `torchtitan@0.3`."""
    return tuple(f"{name}@{version}" for name, target in TARGETS.items() for version in target.versions)
