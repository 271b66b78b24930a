"""Export, read back with a reader that shares nothing with the exporter: the same strategy."""

from __future__ import annotations

import json
from dataclasses import replace

import export_mindformers
import export_readers as readers
import pytest
from export_plans import DENSE, MODELS, plans, said
from hypothesis import HealthCheck, given, settings

from shardwise.errors import InfeasibleError
from shardwise.frameworks.export import export
from shardwise.frameworks.huggingface.read import read_config
from shardwise.frameworks.read import read_content, read_framework

often = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def differences(found, wanted, without=()):
    """Keys of both tables that do not agree."""
    keys = (found.keys() & wanted.keys()) - set(without)
    return {key: (found[key], wanted[key]) for key in keys if found[key] != wanted[key]}


def same(found, made, model, *, without=()):
    wanted = said(made.strategy, model)
    assert differences(found, wanted, without) == {}
    assert wanted.keys() - found.keys() <= set(without)


def exported(plan, to):
    """The export; where it is refused or bent, the sentences say so."""
    try:
        made = export(plan, to)
    except InfeasibleError:
        return None
    assert all(str(fault) for fault in made.losses)
    if made.losses:
        with pytest.raises(InfeasibleError, match="--strict"):
            export(plan, to, strict=True)
    else:
        assert said(made.strategy, plan.model) == said(plan.strategy, plan.model)
    return made


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("round")


@often
@given(plan=plans())
def test_megatron(plan, folder):
    made = exported(plan, "megatron")
    if made is None:
        return
    files = readers.texts(made)
    words = readers.run_script(files, "train.sh", folder, "torchrun")
    from_script = readers.flags_of_words(words)
    same(readers.megatron(from_script, plan.strategy.world), made, plan.model)
    same(readers.megatron(readers.flags_of_yaml(files["model_config.yaml"]), plan.strategy.world), made, plan.model)
    for name in ("train.sh", "model_config.yaml"):
        ours = read_framework(folder / name)
        strategy = ours.strategy if name == "train.sh" else None
        if strategy:
            assert ours.gpus == plan.strategy.world
            assert said(strategy, plan.model) | {"compile": False} == said(made.strategy, plan.model)
        read = ours.model
        assert (read.layers, read.hidden, read.heads, read.ffn, read.moe, read.mla, read.mtp, read.tied) == (
            plan.model.layers, plan.model.hidden, plan.model.heads, plan.model.ffn, plan.model.moe, plan.model.mla,
            plan.model.mtp, plan.model.tied,
        )  # fmt: skip


@often
@given(plan=plans())
def test_megatron_bridge(plan):
    made = exported(plan, "megatron-bridge")
    if made is None:
        return
    text = readers.texts(made)["bridge.yaml"]
    same(readers.bridge(text, plan.strategy.world), made, plan.model)
    read = read_content(text, "bridge.yaml").model
    assert replace(read, name=plan.model.name) == plan.model


@pytest.mark.parametrize("version", ["0.2", "0.3", "main"])
def test_torchtitan(version, folder):
    schedules = ("1f1b", "interleaved", "gpipe", "zb-v", "dualpipe-v")

    @often
    @given(plan=plans(runtime="torchtitan", schedules=schedules, zeros=(0, 2, 3)))
    def law(plan):
        made = exported(plan, f"torchtitan@{version}")
        if made is None:
            return
        files = readers.texts(made)
        found = readers.torchtitan(version, files, plan.model.layers)
        without = {"schedule", "grad_dtype"} | ({"cp_kind", "etp"} if version != "0.2" else set())
        same(found, made, plan.model, without=without)
        name = next(iter(files))
        (folder / name).write_text(files[name])
        ours = said(read_framework(folder / name).strategy, plan.model)
        assert differences(ours, found, without | {"layers", "recompute", "flash"}) == {}

    law()


@often
@given(plan=plans(runtime="mindformers", schedules=("1f1b", "interleaved", "gpipe", "zb-v"), zeros=(0, 1)))
def test_mindformers_graph(plan, folder):
    made = exported(plan, "mindformers@2.1-graph")
    if made is None:
        return
    file = made.files[0]
    found = export_mindformers.mindformers_graph(file.text)
    same(found, made, plan.model)
    (folder / file.name).write_text(file.text)
    ours = said(read_framework(folder / file.name).strategy, plan.model)
    assert differences(ours, found, {"dtype", "flash"}) == {}


@often
@given(plan=plans(zeros=(0, 2, 3)))
def test_mindformers_pynative(plan):
    made = exported(plan, "mindformers@2.1-pynative")
    if made is not None:
        same(export_mindformers.mindformers_pynative(made.files[0].text), made, plan.model, without={"etp"})


@often
@given(plan=plans())
def test_deepspeed(plan):
    made = exported(plan, "deepspeed")
    if made is None:
        return
    found = readers.deepspeed(readers.texts(made)["ds_config.json"], plan.strategy.world)
    interval = found.pop("interval", None)
    recompute = made.strategy.recompute
    assert interval in {None, recompute.group if recompute.full else 0}
    without = {"recompute", "seq", "flash", "ep", "etp", "layers", "grad_dtype"}  # the program's, and said in the notes
    same(found, made, plan.model, without=without)


@often
@given(plan=plans(runtime="paddle", schedules=("1f1b", "interleaved", "gpipe", "zb-h1", "zb-v"), zeros=(0, 1)))
def test_paddle(plan, folder):
    made = exported(plan, "paddle")
    if made is None:
        return
    files = readers.texts(made)
    found = readers.paddle(files["paddle.json"], plan.strategy.world, plan.model.layers)
    same(found, made, plan.model, without={"zero", "shard", "ep", "etp"})
    words = readers.run_script(files, "train.sh", folder, "python3")
    assert words[-1] == "output/run.json"
    assert json.loads(files["config.json"])["rms_norm_eps"] == plan.model.norm_eps


def test_the_models_are_different():
    assert len({model.name for model in MODELS}) == len(MODELS) == 3
    assert DENSE in MODELS


TARGETS = (
    "megatron",
    "megatron-bridge",
    "torchtitan@0.2",
    "mindformers",
    "mindformers@2.1-pynative",
    "deepspeed",
    "paddle",
)


@pytest.mark.parametrize("to", TARGETS)
def test_many_plans_can_be_said(to):
    """The laws above are empty where everything is refused."""
    count = {"said": 0, "bent": 0, "refused": 0}

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(plan=plans())
    def law(plan):
        made = exported(plan, to)
        count["refused" if made is None else "bent" if made.losses else "said"] += 1

    law()
    assert count["said"] > 0, count
    # DeepSpeed runs one of tp, cp and pp, and most draws have two
    assert count["said"] + count["bent"] > (3 if to == "deepspeed" else 15), count


@often
@given(plan=plans(runtime="huggingface", schedules=("1f1b",), zeros=(0, 1, 2, 3)))
def test_huggingface(plan, folder):
    made = exported(plan, "huggingface")
    if made is None:
        return
    (folder / "shardwise_train.json").write_text(readers.texts(made)["shardwise_train.json"])
    read = read_framework(folder / "shardwise_train.json")
    same(said(read.strategy, plan.model), made, plan.model)
    assert (read.gpus, read.strategy.runtime, read.strategy.master) == (
        plan.strategy.world,
        "huggingface",
        plan.strategy.master,
    )
    model = read_config(json.loads(readers.texts(made)["config.json"]), name=plan.model.name).model
    assert model == plan.model
