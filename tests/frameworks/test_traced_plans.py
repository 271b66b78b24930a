"""Traced modules under the verbs: a traced Llama is the catalog's, and what a trace does not know is refused."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest

import shardwise
from shardwise.cli.main import run
from shardwise.errors import InfeasibleError, InputError
from shardwise.estimate.setup import setup_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.parameters import count
from shardwise.inputs.serialise import to_dict
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.traced import TracedCut, TracedOp
from shardwise.inputs.traced_model import traced_model
from shardwise.ops.traced import traced_ops

pytest.importorskip("torch")
HERE = Path(__file__).parent


@functools.cache
def traced(source, inputs):
    if "families" in source:
        pytest.importorskip("transformers")
    return shardwise.trace_module(f"{HERE / source}", inputs)


def plain_llama():
    return traced("traced_models.py:llama", "ids=1x4096:int64,labels=1x4096:int64")


def transformers_llama():
    return traced("traced_families.py:llama_8b", "input_ids=1x4096:int64,labels=1x4096:int64")


def small_llama():
    return traced("traced_models.py:small_llama", "ids=1x256:int64,labels=1x256:int64")


def unet():
    return traced("traced_models.py:unet", "x=1x3x64x64")


def estimated(model, strategy, cluster="16xh200", runtime="huggingface"):
    cluster = shardwise.load_cluster(cluster)
    return shardwise.estimate(model, cluster, shardwise.load_strategy(f"{strategy} runtime={runtime}", cluster))


@pytest.mark.parametrize("made", [plain_llama, transformers_llama])
@pytest.mark.parametrize(
    "strategy",
    [
        "dp16 zero3 mbs1 gbs64 seq4096",
        "dp16 zero1 mbs2 gbs128 seq4096",
        "dp16 zero3 mbs4 gbs64 seq4096 recompute=full",
        "dp16 zero3 mbs2 gbs32 seq4096 master=pure",
    ],
)
def test_a_traced_llama_is_the_catalogs(made, strategy):
    model = made()
    own = replace(shardwise.load_model("llama-3-8b"), layers=model.layers)
    traced_run, catalogs = (estimated(one, strategy) for one in (model, own))
    assert traced_run.total_bytes == pytest.approx(catalogs.total_bytes, rel=0.01)
    assert traced_run.iteration_seconds == pytest.approx(catalogs.iteration_seconds, rel=0.03)
    assert model.traced.params == count(own).total


def test_parameters_and_flops_are_those_of_the_chain():
    model = plain_llama()
    own = replace(shardwise.load_model("llama-3-8b"), layers=model.layers)
    ours, theirs = (estimated(one, "dp16 zero3 mbs1 gbs64 seq4096") for one in (model, own))
    assert count(model).total == count(own).total
    assert ours.mfu * ours.iteration_seconds == pytest.approx(theirs.mfu * theirs.iteration_seconds, rel=0.001)


def test_a_file_of_a_traced_model_is_read_back_as_it_was_written(tmp_path):
    file = tmp_path / "model.json"
    assert (
        run(["models", "--trace", f"{HERE}/traced_models.py:unet", "--input", "x=1x3x64x64", "--out", str(file)]) == 0
    )
    assert shardwise.load_model(file) == unet()
    plan = shardwise.plan_of(estimated(file, "dp16 mbs4 gbs64 seq1"))
    shardwise.write_plan(plan, tmp_path / "plan.json")
    assert shardwise.read_plan(tmp_path / "plan.json").model == unet()


def test_the_file_says_that_it_is_executed(capsys):
    assert run(["models", "--trace", f"{HERE}/traced_models.py:toy", "--input", "x=2x64"]) == 0
    printed = capsys.readouterr()
    assert "is executed now: it is your code" in printed.err
    assert "49,671 parameters" in printed.out


@pytest.mark.parametrize(
    "words",
    [
        ["--trace", "nothing.py:build", "--input", "x=1"],
        ["--trace", f"{HERE}/traced_models.py:broken", "--input", "x=1"],
        ["--trace", f"{HERE}/traced_models.py:toy"],
        ["--trace", f"{HERE}/traced_models.py:toy", "--input", "x=2x64", "--dtype", "fp8"],
        ["llama-3-8b", "--trace", f"{HERE}/traced_models.py:toy", "--input", "x=2x64"],
        ["--input", "x=2x64"],
        ["--out", "model.json"],
    ],
)
def test_bad_traces_are_sentences(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["models", *words]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "executed now" not in said or "broken" in words[1]  # nothing is, before all words are right
    assert not list(tmp_path.iterdir())


REFUSED = {
    "dp8 cp2 mbs1 gbs64 seq256": "strategy.cp",
    "dp16 mbs1 gbs64 seq512": "it was traced with ids=1x256:int64,labels=1x256:int64",
    "dp16 mbs1 gbs64 seq256 fp32": "was traced in bf16",
    "dp16 mbs1 gbs64 seq256 master=autocast": "autocast casts inside the module",
    "dp16 mbs1 gbs64 seq256 compile": "drop compile",
    "dp16 mbs1 gbs64 seq256 recompute=attention": "have no names",
    "dp16 mbs1 gbs64 seq256 lora=8": "strategy.lora",
}


@pytest.mark.parametrize("strategy", REFUSED)
def test_what_a_trace_does_not_know_is_refused(strategy):
    with pytest.raises(InputError) as told:
        estimated(small_llama(), strategy)
    assert REFUSED[strategy] in str(told.value)


def test_only_runtimes_of_any_module_take_it():
    with pytest.raises(InputError, match="use deepspeed, fsdp, huggingface, torch-parallel or torch-pipelining"):
        estimated(small_llama(), "dp16 mbs1 gbs64 seq256", runtime="megatron")


@pytest.mark.parametrize("target", ["huggingface", "deepspeed", "torch-pipelining", "megatron"])
def test_no_export_takes_another_model_for_it(target):
    plan = shardwise.plan_of(estimated(small_llama(), "dp16 mbs1 gbs64 seq256"))
    with pytest.raises(InfeasibleError, match="a traced module"):
        shardwise.export(plan, target)


def test_nobody_splits_its_operators():
    with pytest.raises(InputError, match="operators are not split"):
        shardwise.plan_operators(small_llama(), "8xh200", global_batch=64, seq=256)


def test_pipelines_recompute_and_sharding_do_what_they_do():
    model, base = small_llama(), "mbs4 gbs512 seq256"
    plain, again = (estimated(model, f"dp16 zero1 {base}{more}") for more in ("", " recompute=full"))
    assert again.total_bytes < plain.total_bytes
    assert again.iteration_seconds > plain.iteration_seconds
    sharded = estimated(model, f"dp16 zero3 {base}")
    assert sharded.total_bytes < plain.total_bytes
    piped = estimated(model, f"dp8 pp2 {base}", runtime="torch-pipelining")
    assert len(piped.stages) == 2
    split = estimated(model, f"dp16 zero3 {base} hsdp8", runtime="fsdp")
    assert sharded.iteration_seconds != split.iteration_seconds


def test_plan_takes_it_and_proves_its_answer():
    found = shardwise.plan(small_llama(), "8xh200", global_batch=64, seq=256, runtime="torch-pipelining")
    assert found.best.strategy.tp == 1
    assert found.best.iteration_seconds <= estimated(small_llama(), "dp8 mbs1 gbs64 seq256", "8xh200").iteration_seconds


def test_blocks_that_differ_are_cut_between():
    found = estimated(unet(), "dp4 pp4 mbs4 gbs64 seq1", runtime="torch-pipelining")
    assert len({stage.forward for stage in found.stages}) == 4
    assert unet().hidden * 2 > 64 * 64 * 64 * 2  # the first skip crosses every border, beside what follows it


BROKEN = {
    "order": lambda traced: traced["order"].append(99),
    "lines": lambda traced: traced["border"].append(1.0),
    "shape": lambda traced: traced["kinds"][0]["ops"][-1].update(kind="gemm"),
    "kind": lambda traced: traced["kinds"][0]["ops"][0].update(kind="magic"),
    "huge": lambda traced: traced["kinds"][0]["ops"][0].update(kept=[1e300, 0.0]),
    "negative": lambda traced: traced["kinds"][0]["ops"][0].update(params=-1),
    "less than nothing": lambda traced: traced["kinds"][0]["ops"][0].update(bytes_f=[-5.0, -1e12]),
    "backwards": lambda traced: traced["kinds"][0]["ops"][-1].update(kept=[0.0, -1e12]),
    "cut": lambda traced: traced["kinds"][0]["ops"][0].update(cut={"params": 10**14}),
    "text": lambda traced: traced.update(seq="256"),
    "unknown": lambda traced: traced.update(more=1),
    "names": lambda traced: traced["kinds"].append(traced["kinds"][0]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_was_changed_is_refused_with_a_sentence(name, tmp_path):
    data = json.loads(json.dumps(to_dict(unet())))
    BROKEN[name](data["traced"])
    file = tmp_path / "model.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError, match="traced"):
        shardwise.load_model(file)


def test_fields_that_follow_from_the_trace_cannot_say_otherwise(tmp_path):
    data = to_dict(unet()) | {"layers": 3}
    file = tmp_path / "model.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError, match="does not agree with layers"):
        shardwise.load_model(file)
    assert traced_model("unet", unet().traced) == unet()


def test_launches_that_may_bound_a_step_are_told_and_reached_by_the_interval():
    from shardwise.report.estimate import notes

    small = estimated(small_llama(), "dp16 mbs1 gbs16 seq256")
    assert any("launches may bound it" in note for note in notes(small))
    low, high = small.iteration_seconds_interval
    assert high / small.iteration_seconds > 1.5
    large = estimated(plain_llama(), "dp16 mbs4 gbs64 seq4096")
    assert not any("launches may bound it" in note for note in notes(large))
    assert large.iteration_seconds_interval[1] / large.iteration_seconds < 1.2
    assert low < small.iteration_seconds < high


def _more_cut(traced):
    op = next(op for op in traced.kinds[0].ops if op.cut and op.cut.shape)
    cut = replace(op, cut=replace(op.cut, shape=tuple((2 * one, 2 * each) for one, each in op.shape)))
    kind = replace(traced.kinds[0], ops=tuple(cut if one is op else one for one in traced.kinds[0].ops))
    return replace(traced, kinds=(kind, *traced.kinds[1:]))


@pytest.mark.parametrize(
    ("spoiled", "words"),
    [
        (lambda traced: replace(traced, kinds=()), "kinds: are missing: a module has blocks"),
        (lambda traced: replace(traced, kinds=(replace(traced.kinds[0], ops=()),)), "has no operators"),
        (_more_cut, "tensor parallel cuts more of it than there is"),
    ],
)
def test_blocks_that_no_module_has_are_refused(spoiled, words):
    model = small_llama()
    with pytest.raises(InputError, match=words):
        estimated(replace(model, traced=spoiled(model.traced)), "dp16 mbs1 gbs64 seq256")


def test_no_rank_moves_less_than_its_part_of_what_a_trace_measured():
    """Lines through two numbers of samples cross further out: T5's scores would have cost nothing under tp."""
    op = TracedOp(
        name="scores", kind="memory", bytes_f=(0.0, 5e6), kept=(0.0, 8.0), cut=TracedCut(bytes_f=(-170e6, 62e6))
    )
    model = small_llama()
    kind = replace(model.traced.kinds[0], ops=(*model.traced.kinds[0].ops, op))
    made = traced_model("scores", replace(model.traced, kinds=(kind, *model.traced.kinds[1:])))
    shard = setup_of(
        made, shardwise.load_cluster("16xh200"), Strategy.parse("tp2 dp8 mbs16 gbs128 seq256 nosp"),
        load_runtime("huggingface"),
    ).shard  # fmt: skip
    assert next(one for one in traced_ops(shard, kind) if one.name == "scores").bytes_f == 5e6 * 16 / 2
