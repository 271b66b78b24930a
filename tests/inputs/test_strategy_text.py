from __future__ import annotations

import pytest
from cases import strategies
from hypothesis import given, settings

from shardwise.errors import InputError
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Lora, Strategy
from shardwise.inputs.strategy_text import build, parse, show
from shardwise.search.wishes import read_wishes

LINE = "tp8 pp4x2 dp16 cp1 ep8 zero1 mbs1 gbs512 seq4096 zb-v"


def test_the_line_of_the_papers():
    strategy = Strategy.parse(LINE)
    expected = {
        "tp": 8,
        "pp": 4,
        "vpp": 2,
        "dp": 16,
        "ep": 8,
        "global_batch": 512,
        "schedule": "zb-v",
        "placement": "v",
    }
    assert strategy == Strategy(**expected)
    assert str(strategy) == LINE


@settings(max_examples=500, deadline=None)
@given(strategies())
def test_every_strategy_prints_and_parses_back(strategy):
    assert Strategy.parse(show(strategy)) == strategy
    assert show(Strategy.parse(show(strategy))) == show(strategy)


def test_defaults_are_left_out_but_for_the_degrees():
    assert str(Strategy()) == "tp1 pp1 dp1 cp1 ep1 zero1 mbs1 gbs1 seq4096"


def test_every_word():
    text = (
        "cp2:all-to-all etp2 hsdp8 group4 first9 last11 nosp noflash count-embedding count-head fp8 autocast muon "
        "grad-bf16 offload-optimizer layers=3,4 recompute=core-attention+mlp:[4,0] lora16:qkv,out straggler1.05 "
        "runtime=torchtitan placement=v graphs=attention scaling=delayed "
        "fp8-weights fp8-attention"
    )
    assert parse(text) == {
        "cp": 2, "cp_kind": "all-to-all", "etp": 2, "zero_group": 8, "group": 4, "first_layers": 9, "last_layers": 11,
        "sp": False, "flash": False, "count_embedding": True, "count_head": True, "dtype": "fp8", "master": "autocast",
        "optimizer": "muon", "grad_dtype": "bf16", "offload": "optimizer", "layers": (3, 4),
        "recompute": Recompute(modules=("core-attention", "mlp"), layers=(4, 0)),
        "lora": Lora(rank=16, targets=("qkv", "out")), "straggler": 1.05, "runtime": "torchtitan", "placement": "v",
        "cuda_graphs": "attention", "scaling": "delayed", "fp8_weights": True, "fp8_attention": True,
    }  # fmt: skip


def test_spellings_that_mean_the_same():
    assert parse("TP=8 pp=4x2") == parse("tp8 pp4x2") == {"tp": 8, "pp": 4, "vpp": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp8 tp4", "strategy.tp: 'tp4' gives it a second time"),
        ("1f1b gpipe", "strategy.schedule: 'gpipe' gives it a second time"),
        ("pp4x2 vpp2", "strategy.vpp"),
        ("tpp8", "did you mean tp"),
        ("zbv", "did you mean zb-v"),
        ("fp4", "did you mean nvfp4, fp8 or fp32"),
        ("tp", "a whole number must follow tp"),
        ("tp8.5", "a whole number must follow tp"),
        ("lora", "a whole number must follow lora"),
        ("cp2:rng", "did you mean ring"),
        ("layers=a,b", "write layers=9,15,15,11"),
        ("straggler=x", "write straggler1.05"),
        ("placement=w", "no placement named 'w'"),
        ("scaling=column", "no scaling of fp8 named 'column'"),
        ("graphs=mlp", "no part that CUDA graphs cover named 'mlp'"),
        ("recompute=fll", "cannot be recomputed"),
        ("recompute=", "is not a recompute choice"),
        ("microbatches0", "at least 1"),
        ("gbs64 dp2 microbatches3", "global_batch is 64; give one of the two"),
    ],
)
def test_wrong_words_teach(text, said):
    with pytest.raises(InputError) as caught:
        Strategy.parse(text)
    assert said in str(caught.value)


def test_all_wrong_words_at_once():
    with pytest.raises(InputError) as caught:
        parse("tpp8 tp8 tp9 zbv")
    assert len(caught.value.faults) == 3


def test_micro_batches_stand_in_for_the_batch():
    assert build(parse("dp4 mbs2 microbatches8")).global_batch == 64


def test_chunks_imply_interleaved_and_a_v_schedule_its_placement():
    assert build({"pp": 4, "vpp": 2}).schedule == "interleaved"
    assert build({"pp": 4, "vpp": 2, "schedule": "zb-v"}).placement == "v"


def test_a_word_may_be_written_with_its_axis_as_conditions_write_it():
    assert Strategy.parse("pp2x2 schedule=zb-v dtype=fp8") == Strategy.parse("pp2x2 zb-v fp8")
    with pytest.raises(InputError, match="no schedule named 'zb-w'"):
        Strategy.parse("schedule=zb-w")


def test_the_field_name_of_the_dispatcher_is_a_word_too():
    assert parse("dispatcher=deepep") == parse("dispatch=deepep") == {"dispatcher": "deepep"}
    wishes = read_wishes("dispatcher=deepep ep-overlap")[0]
    assert (wishes.named("dispatcher"), wishes.named("ep_overlap")) == (("deepep",), (True,))
    with pytest.raises(InputError, match="no dispatcher named 'deep'"):
        parse("dispatcher=deep")
