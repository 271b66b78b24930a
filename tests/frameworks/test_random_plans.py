"""Random plans of the catalog's models for every target: read back the same, or refused with the field to change."""

from __future__ import annotations

import random
import re

import export_mindformers
import export_readers as readers
import pytest
from export_plans import said, uneven_layers

from shardwise.check.check import check
from shardwise.errors import InfeasibleError
from shardwise.frameworks.export import TARGETS, export
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.frameworks.read import read_content
from shardwise.inputs.load import load_runtime
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import V_SCHEDULES, Strategy
from shardwise.pipeline.action import Schedule
from shardwise.plan.plan import Plan

MODELS = (
    "llama-3-8b", "llama-3-70b", "llama-3.1-405b", "gpt-3-175b", "mixtral-8x7b", "qwen3-235b-a22b", "qwen3-8b",
    "qwen3-30b-a3b", "deepseek-v3", "gemma-2-9b", "gpt-oss-20b", "qwen2.5-7b", "falcon-180b", "nemotron-4-340b",
)  # fmt: skip
RECOMPUTE = ("none", "full", "full:2", "full/2", "core-attention", "attention-norm+mlp-norm", "mlp", "ops")
RUNTIMES = {
    "megatron": ("1f1b", "interleaved"),
    "torchtitan": ("1f1b", "interleaved", "gpipe", "zb-v"),
    "mindformers": ("1f1b", "interleaved", "zb-v"),
    "deepspeed": ("1f1b",),
}
VERSIONS = [f"{name}@{version}" for name, target in TARGETS.items() for version in target.versions]


def drawn(chance: random.Random) -> Plan | None:
    """A plan, or none where the draw is not valid."""
    of = chance.choice
    model, runtime = load_model(of(MODELS)), of(tuple(RUNTIMES))
    pp = of((1, 1, 2, 4))
    schedule = of(RUNTIMES[runtime]) if pp > 1 else "1f1b"
    vpp = 2 if schedule in V_SCHEDULES | {"interleaved"} else 1
    tp, cp, dp = of((1, 1, 2, 8)), of((1, 1, 2)), of((1, 2, 4, 8))
    strategy = Strategy(
        tp=tp, cp=cp, pp=pp, dp=dp, vpp=vpp, ep=of((1, 4, 8)) if model.moe else 1,
        etp=of((1, tp)) if model.moe else 1, zero=of((0, 1, 2, 3)), zero_group=of((0, 0, dp)), sp=of((True, False)),
        cp_kind=of(("ring", "all-gather", "all-to-all")), micro_batch=of((1, 2)),
        global_batch=2 * dp * pp * of((2, 4)), seq=4096, schedule=schedule,
        placement="v" if schedule in V_SCHEDULES else "loop", recompute=Recompute.parse(of(RECOMPUTE)),
        layers=uneven_layers(chance, model.layers, pp * vpp) if pp > 1 and of((True, False)) else (),
        dtype=of(("bf16", "bf16", "fp16", "fp32", "fp8")), optimizer=of(("adamw", "adamw", "sgd")), runtime=runtime,
    )  # fmt: skip
    plan = Plan(model=model, cluster=load_cluster(f"{strategy.world}xh100"), strategy=strategy)
    return None if check(model, plan.cluster, strategy, load_runtime(runtime)) else plan


def plans(count: int) -> list[Plan]:
    chance, found = random.Random(5), []  # noqa: S311 - the same plans every time
    while len(found) < count:
        plan = drawn(chance)
        found += [plan] if plan else []
    return found


PLANS = plans(40)


def test_the_plans_are_of_many_kinds():
    assert len({plan.model.name for plan in PLANS}) >= 10
    assert {plan.strategy.runtime for plan in PLANS} == set(RUNTIMES)
    assert sum(bool(plan.strategy.layers) for plan in PLANS) >= 5
    assert sum(plan.model.moe is not None for plan in PLANS) >= 5


def read(to: str, made, plan: Plan):  # noqa: PLR0911 - a case for every target
    """What the files say, and what this target leaves to the program."""
    name, _, version = to.partition("@")
    files = readers.texts(made)
    if name == "megatron":
        return readers.megatron(readers.flags_of_yaml(files["model_config.yaml"]), plan.strategy.world), set()
    if name == "megatron-bridge":
        return readers.bridge(files["bridge.yaml"], plan.strategy.world), set()
    if name == "torchtitan":
        later = {"cp_kind", "etp"} if version != "0.2" else set()
        return readers.torchtitan(version, files, plan.model.layers), {"schedule", "grad_dtype", *later}
    if name == "deepspeed":
        found = readers.deepspeed(files["ds_config.json"], plan.strategy.world)
        found.pop("interval", None)
        if plan.strategy.ep == 1:
            found["ep"] = 1
        return found, {"recompute", "seq", "flash", "ep", "etp", "layers", "grad_dtype"} - (found.keys() & {"ep"})
    if name == "paddle":
        return readers.paddle(files["paddle.json"], plan.strategy.world, plan.model.layers), {
            "zero",
            "shard",
            "ep",
            "etp",
        }
    if name == "huggingface":
        return said(read_content(files["shardwise_train.json"], "shardwise_train.json").strategy, plan.model), set()
    if version == "2.1-graph":
        return export_mindformers.mindformers_graph(files["mindformers.yaml"]), set()
    return export_mindformers.mindformers_pynative(files["mindformers.yaml"]), {"etp"}


def exported(plan: Plan, to: str):
    try:
        return export(plan, to), ""
    except InfeasibleError as error:
        return None, str(error)


@pytest.mark.parametrize("to", VERSIONS)
def test_every_plan_reads_back_or_is_refused_by_name(to):
    outcome = {"said": 0, "bent": 0, "refused": 0}
    for plan in PLANS:
        made, refusal = exported(plan, to)
        if made is None:
            outcome["refused"] += 1
            assert re.search(r"  - (strategy|model)\.\w+: ", refusal)
            continue
        outcome["bent" if made.losses else "said"] += 1
        assert all(fault.path for fault in made.losses)
        if to.startswith("torch-pipelining"):
            s = plan.strategy
            schedule = Schedule.parse(readers.texts(made)["schedule.csv"])
            assert (len(schedule.codes), schedule.chunks, schedule.microbatches) == (s.pp, s.pp * s.vpp, s.microbatches)
            continue
        found, without = read(to, made, plan)
        wanted = said(made.strategy, plan.model)
        wrong = {key: (found[key], wanted[key]) for key in found.keys() & wanted.keys() - without
                 if found[key] != wanted[key]}  # fmt: skip
        assert wrong == {}, (plan.model.name, str(plan.strategy))
        assert wanted.keys() - found.keys() <= without
    least = {"huggingface": 2}.get(to.partition("@")[0], 5)  # most plans have axes that it has not
    assert outcome["said"] + outcome["bent"] >= least, outcome
