from __future__ import annotations

from dataclasses import replace

import pytest
from cases import DENSE, H100, MEGATRON, MOE, TITAN, V100, cluster, strategies
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from shardwise.check.check import check, ensure, with_dp
from shardwise.errors import InputError
from shardwise.frameworks.load import load_model
from shardwise.inputs.cluster import Level
from shardwise.inputs.load import load_runtime
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Strategy

RANKED = load_runtime("megatron")


def faults_of(text, *, gpus=8, model=DENSE, gpu=H100, runtime=MEGATRON):
    strategy = Strategy.parse(text)
    if " dp" not in f" {text}":
        strategy = with_dp(strategy, cluster(gpus))
    return check(model, cluster(gpus, gpu), strategy, runtime)


@pytest.mark.parametrize(
    ("text", "extra"),
    [
        ("tp8 gbs8", {}),
        ("tp2 pp2x2 dp2 gbs16", {}),
        ("pp2x2 dp4 gbs16 zb-v", {}),
        ("cp2 dp4 gbs8", {}),
        ("tp2 cp2:all-to-all dp2 gbs8", {}),
        ("dp8 ep8 gbs8", {"model": MOE}),
        ("tp2 dp4 ep4 etp2 gbs8", {"model": MOE}),
        ("dp8 gbs8 zero3 hsdp4", {"runtime": TITAN}),
        ("dp8 gbs8 recompute=full:32", {}),
        ("pp2 dp4 gbs8 recompute=full:[16,0]", {}),
        ("dp8 gbs8 recompute=mla-up+moe-act", {"model": MOE}),
        ("dp8 gbs8 fp16", {"gpu": V100}),
        ("pp2 dp4 gbs8 layers=20,12", {}),
        ("pp2x2 dp4 gbs24 group6", {}),
        ("dp8 gbs8 fp8 lora8:qkv", {}),
        ("tp8 nosp gbs8 seq4097", {}),
    ],
)
def test_what_can_run_has_no_fault(text, extra):
    assert faults_of(text, **extra) == ()


@pytest.mark.parametrize(
    ("text", "path", "said", "extra"),
    [
        ("tp0 dp8", "tp", "at least 1", {}),
        ("mbs-1 dp8", "micro_batch", "-1 is too small", {}),
        ("tp3 dp1", "tp", "does not divide 8 GPUs; make the product 2 or 4", {}),
        ("pp3 dp3 gbs3", "pp", "write the list: layers 11,11,10", {"gpus": 9}),
        ("dp4 gbs4", "dp", "use dp 8 or leave it out", {}),
        ("tp16 dp1", "tp", "kv_heads 8", {"gpus": 16}),
        ("tp3 dp1", "tp", "heads 32, kv_heads 8", {"gpus": 3}),
        ("ep3 dp3 gbs3", "ep", "does not divide 160 experts; use ep 2 or 4", {"gpus": 3, "model": MOE}),
        ("ep2 dp8 gbs8", "ep", "has no experts; use ep 1", {}),
        ("etp2 tp2 gbs8", "etp", "has no experts", {}),
        ("etp3 dp3 gbs3", "etp", "expert_ffn 1408", {"gpus": 3, "model": MOE}),
        ("dp8 ep16 gbs8", "ep", "does not divide tp 1 x cp 1 x dp 8 = 8", {"model": MOE}),
        ("dp8 gbs12", "global_batch", "use 8 or 16", {}),
        ("dp8 gbs8 seq4097 cp2", "seq", "use 4096 or 4100", {"gpus": 16}),
        ("tp8 seq4097", "seq", "4096 or 4104", {}),
        ("cp4:all-to-all tp4 gbs1", "cp", "use cp 2, or cp_kind ring", {"gpus": 16}),
        ("pp1x2 dp8 gbs8", "vpp", "pp is 1", {}),
        ("pp2x2 dp4 gbs12 interleaved", "global_batch", "use 8 or 16", {}),
        ("pp2 dp4 gbs8 interleaved", "vpp", "use 2, or 1f1b", {}),
        ("pp2x2 dp4 gbs8 1f1b", "vpp", "use interleaved or vpp 1", {}),
        ("pp2x4 dp4 gbs8 zb-v", "vpp", "use vpp 2", {}),
        ("pp2x2 dp4 gbs8 zb-v placement=loop", "placement", "use v", {}),
        ("pp2x2 dp4 gbs8 interleaved placement=v", "placement", "use loop", {}),
        ("pp2x2 dp4 gbs8 dualpipe-v", "global_batch", "use 16", {}),
        ("pp2x2 dp4 gbs16 group1", "group", "between pp 2", {}),
        ("dp8 gbs8 group4", "group", "only interleaved has groups", {}),
        ("dp8 gbs8 order=pp-dp", "rank_order", "means nothing with pp 1; drop order=pp-dp", {"runtime": RANKED}),
        (
            "pp2 dp4 ep4 gbs8 order=pp-dp",
            "rank_order",
            "ep 4 x etp 1 = 4 must be tp 1 x cp 1 = 1",
            {"model": MOE, "runtime": RANKED},
        ),
        ("pp2 dp4 gbs8 order=pp-dp", "rank_order", "pp-dp is not in runtime torchtitan", {"runtime": TITAN}),
        ("dp8 gbs8 nvfp4", "dtype", "h100 has no nvfp4 hardware", {}),
        ("dp8 gbs8 mxfp8", "dtype", "h100 has no mxfp8 hardware", {}),
        ("dp8 gbs8 fp8", "dtype", "v100 has no fp8 hardware; use fp32 or fp16", {"gpu": V100}),
        ("dp8 gbs8", "dtype", "v100 has no bf16 hardware", {"gpu": V100}),
        ("dp8 gbs8 recompute=full:1000", "recompute.layers", "use at most 32", {}),
        ("pp2 dp4 gbs8 recompute=full:[17,3]", "recompute.layers", "stage 0 has 16", {}),
        ("pp2 dp4 gbs8 recompute=full:[1,1,1]", "recompute.layers", "3 numbers for pp 2 x vpp 1; give 1 or 2", {}),
        ("dp8 gbs8 recompute=mla-up", "recompute.modules", "no latent attention", {}),
        ("dp8 gbs8 recompute=moe-act", "recompute.modules", "has no experts", {}),
        ("dp8 gbs8 recompute=mlp/2", "recompute.group", "need whole layers", {}),
        ("dp8 gbs8 recompute=full/64", "recompute.group", "use at most 32", {}),
        ("dp8 gbs8 recompute=full:4", "recompute", "of kind block", {"runtime": TITAN}),
        ("pp2 dp4 gbs8 first40", "first_layers", "give at most 31", {}),
        ("pp2 dp4 gbs8 layers=16,17", "layers", "take away 1", {}),
        ("dp8 gbs8 zero3", "zero", "use 0 or 1", {}),
        ("dp8 gbs8 zero1", "zero", "use 2 or 3", {"runtime": TITAN}),
        ("dp8 gbs8 zero3 hsdp3", "zero_group", "use 2 or 4", {"runtime": TITAN}),
        ("dp8 gbs8 hsdp4", "zero_group", "shards over all of them", {}),
        ("dp8 gbs8 zero0 hsdp8", "zero_group", "shards nothing", {}),
        ("dp8 gbs8 straggler0.5", "straggler", "at least 1", {}),
        ("dp8 gbs8 lora8:", "lora.targets", "choose qkv, out, mlp", {}),
        ("cp2:all-gather dp4 gbs4 zero3", "cp_kind", "use ring", {"runtime": TITAN}),
    ],
)
def test_every_rule_names_the_field_the_numbers_and_the_fix(text, path, said, extra):
    faults = faults_of(text, **extra)
    assert any(fault.path == f"strategy.{path}" and said in fault.message for fault in faults), faults


def test_all_faults_are_told_at_once_and_each_once():
    faults = faults_of("tp0 mbs0 dp8 nvfp4 recompute=mla-up zero3")
    assert {fault.path for fault in faults} == {
        "strategy.tp", "strategy.micro_batch", "strategy.dtype", "strategy.recompute.modules", "strategy.zero",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"kv_heads": 5}, "model.kv_heads"),
        ({"layers": 0}, "model.layers"),
        ({"hidden": -1}, "model.hidden"),
        ({"ffn": 0}, "model.ffn"),
        ({"position": "learned"}, "model.max_positions"),
        ({"head_size": 127}, "model.head_size"),
        ({"norms_per_layer": 3}, "model.norms_per_layer"),
        ({"dropout": 1.5}, "model.dropout"),
        ({"activation": "sigmoid"}, "model.activation"),
    ],
)
def test_a_model_that_cannot_be(change, path):
    faults = check(replace(DENSE, **change), cluster(8), Strategy(dp=8, global_batch=8), MEGATRON)
    assert path in {fault.path for fault in faults}


def test_a_moe_model_that_cannot_be():
    model = replace(MOE, moe=replace(MOE.moe, top_k=200, first_dense=99))
    paths = {fault.path for fault in check(model, cluster(8), Strategy(dp=8, global_batch=8), MEGATRON)}
    assert {"model.moe.top_k", "model.moe.first_dense"} <= paths


def test_a_cluster_that_cannot_be():
    bad = replace(cluster(32), levels=(Level(name="node", size=8, bandwidth=0, latency=0),))
    paths = {fault.path for fault in check(DENSE, bad, Strategy(dp=32, global_batch=32), MEGATRON)}
    assert paths == {"cluster.levels.0.bandwidth"}
    short = replace(cluster(32), levels=cluster(32).levels[:1])
    (fault,) = check(DENSE, short, Strategy(dp=32, global_batch=32), MEGATRON)
    assert "reaches 8 GPUs, the cluster has 32" in fault.message
    odd = replace(cluster(12), levels=(cluster(8).levels[0], replace(cluster(8).levels[1], size=12)))
    assert any(
        "not a multiple of the 8" in f.message for f in check(DENSE, odd, Strategy(dp=12, global_batch=12), MEGATRON)
    )


def test_values_of_the_wrong_type_from_python():
    wrong = Strategy(tp="2", dtype="fp4", layers=[16], straggler=float("nan"), schedule="2f2b", recompute="full")
    paths = {fault.path for fault in check(DENSE, cluster(8), wrong, MEGATRON)}
    names = ("tp", "dtype", "layers", "straggler", "schedule", "recompute")
    assert {f"strategy.{name}" for name in names} <= paths


def test_recompute_that_says_two_things():
    strategy = Strategy(dp=8, global_batch=8, recompute=Recompute(full=True, modules=("mlp",)))
    (fault,) = check(DENSE, cluster(8), strategy, MEGATRON)
    assert fault.path == "strategy.recompute.modules"


def test_ragged_batches_where_the_runtime_has_them():
    strategy = Strategy(dp=8, global_batch=12)
    assert check(DENSE, cluster(8), strategy, replace(MEGATRON, name="mosaic")) == ()


def test_dp_is_derived():
    assert with_dp(Strategy(tp=4, pp=2), cluster(64)).dp == 8
    with pytest.raises(InputError, match="does not divide 64 GPUs"):
        with_dp(Strategy(tp=3), cluster(64))


def test_ensure_raises_all():
    with pytest.raises(InputError) as caught:
        ensure(DENSE, cluster(8), Strategy(tp=3, dtype="nvfp4"), MEGATRON)
    assert len(caught.value.faults) >= 3


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(strategies(st.sampled_from((-1, 0, 1, 2, 3, 4, 5, 8, 16, 48, 64, 512, 4096))), st.sampled_from((DENSE, MOE)))
def test_wrong_strategies_give_sentences_that_name_a_field(strategy, model):
    faults = check(model, cluster(64), strategy, MEGATRON)
    assume(faults)
    for fault in faults:
        assert fault.path.split(".")[0] == "strategy"
        assert fault.path.split(".")[1] in Strategy.__dataclass_fields__
        assert "\n" not in fault.message
        assert 20 < len(fault.message) < 400


@pytest.mark.parametrize(
    "text", ["tp{0}", "pp{0}", "pp2x{0}", "dp{0}", "gbs{0}", "seq{0}", "ep{0}", "mbs-{0}", "group{0}"]
)
@pytest.mark.parametrize("number", [10**7, 10**14, 10**400])
def test_absurd_numbers_are_refused_at_once(text, number):
    try:
        faults = check(MOE, cluster(8), Strategy.parse(text.format(number)), MEGATRON)
    except InputError as error:
        faults = error.faults
    assert faults
    assert all(len(fault.message) < 400 for fault in faults)


def test_many_wrong_entries_of_a_list_are_one_fault(tmp_path):
    moe = replace(MOE.moe, loads=(-1.0,) * MOE.moe.experts)
    (fault,) = (one for one in check(replace(MOE, moe=moe), cluster(8), Strategy(dp=8, global_batch=8), MEGATRON)
                if "loads" in one.path)  # fmt: skip
    assert fault.message.startswith(
        f"{MOE.moe.experts} of {MOE.moe.experts} entries are wrong; the first, model.moe.loads.0"
    )
    path = tmp_path / "own.toml"
    path.write_text(f'base = "qwen3-30b-a3b"\n[moe]\nloads = {[-1] * 128}\n')
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    assert len(caught.value.faults) == 1
    assert "128 of 128 entries" in str(caught.value)


def test_eight_bit_parts_are_told_in_grammar():
    (fault,) = faults_of("dp8 gbs8 fp8-attention")
    assert fault.message.startswith("attention in 8 bit goes with products below 16 bit")
