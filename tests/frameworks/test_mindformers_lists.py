"""MindFormers' recompute lists and its two interleaved orders, read as its own `LayerSetting` reads them.

`by_layer` is a second reading, layer by layer, that shares nothing with the reader.
"""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise
from shardwise.errors import InputError
from shardwise.frameworks.export import export
from shardwise.frameworks.mindformers.read_recompute import kinds_of
from shardwise.frameworks.read import read_content
from shardwise.inputs.recompute import Recompute

CONFIG = """
runner_config: {{batch_size: 1}}
parallel: {{pipeline_config: {{pipeline_interleave: {interleave}, pipeline_scheduler: 1f1b}}}}
parallel_config: {{data_parallel: 2, model_parallel: 1, pipeline_stage: 4, micro_batch_num: 8}}
recompute_config: {recompute}
model: {{model_config: {{type: LlamaConfig, num_layers: {layers}, hidden_size: 512, num_heads: 8, vocab_size: 32000,
  intermediate_size: 1408, seq_length: 512, pp_interleave_num: {vpp}}}}}
"""


def read(recompute, *, vpp=1, layers=24, beside=""):
    text = CONFIG.format(interleave=str(vpp > 1).lower(), recompute=yaml.safe_dump(recompute, default_flow_style=True),
                         vpp=vpp, layers=layers)  # fmt: skip
    return read_content(text + beside, "pretrain.yaml")


def by_layer(config, vpp, layers):
    """Chunk -> what is recomputed of each of its layers."""
    own = layers // (4 * vpp)

    def counted(value):
        if isinstance(value, bool):
            return [[own if value else 0] * 4] * vpp
        if isinstance(value[0], list):
            return [[min(own, item) for item in row] for row in value]
        dealt = [[0] * 4 for _ in range(vpp)]
        for rank, number in enumerate(value):
            for turn in range(min(number, own * vpp)):
                dealt[turn % vpp][rank] += 1
        return dealt

    full, select, comm = (counted(config[name]) for name in ("recompute", "select_recompute", "select_comm_recompute"))
    return [
        [
            "full" if i < full[v][s] else "+".join(
                name for name, lists in (("activation", select), ("comm", comm)) if i < lists[v][s]
            )
            for i in range(own)
        ]
        for v in range(vpp) for s in range(4)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("select", "comm", "told"),
    [
        ([6, 6, 6, 6], [0, 0, 0, 0], "activation:[6,6,6,6]"),
        ([0, 0, 0, 0], [6, 6, 6, 6], "comm:[6,6,6,6]"),
        ([3, 2, 1, 0], [3, 2, 1, 0], "activation+comm:[3,2,1,0]"),
        (True, False, "activation"),
        (False, True, "comm"),
        (True, True, "activation+comm"),
        ([9, 6, 6, 6], False, "activation:[6,6,6,6]"),
        ([True, 2, False, 0], False, "activation:[6,2,0,0]"),
        ({r"feed_forward\.mul": [1, 1, 1, 1], r"feed_forward\.w1\.activation\.silu": [1, 1, 1, 1]}, False,
         "activation:[1,1,1,1]"),
        (["self_attention", "mlp"], {r".*\.norm": True}, "attention+mlp+comm"),
        ([0, 0, 0, 0], [0, 0, 0, 0], "none"),
    ],
)  # fmt: skip
def test_lists_of_one_kind_are_read_exactly(select, comm, told):
    found = read({"recompute": False, "select_recompute": select, "select_comm_recompute": comm})
    assert str(found.strategy.recompute) == told


def test_a_number_of_a_rank_is_dealt_to_its_chunks():
    found = read({"recompute": [3, 2, 1, 0]}, vpp=3)
    assert str(found.strategy.recompute) == "full:[1,1,1,0,1,1,0,0,1,0,0,0]"
    assert any("dealt to the chunks" in line for line in found.understanding.assumed)


@pytest.mark.parametrize(
    ("recompute", "word"),
    [
        ({"select_comm_recompute": [1, 2, 3]}, "select_comm_recompute: must be a list of pp 4 whole numbers"),
        ({"select_recompute": [1, 2, 3, -1]}, "select_recompute"),
        ({"recompute": [[1, 2, 3, 0], [1, 1, 1, 1]]}, "recompute: must be a list of pp 4"),
        ({"recompute": "some"}, "recompute"),
    ],
)
def test_lists_that_cannot_be_meant_are_refused(recompute, word):
    with pytest.raises(InputError, match=word):
        read(recompute)


def test_lists_of_layer_numbers_are_refused():
    with pytest.raises(InputError, match=r"numbers of layers, not counts, as swap_config\.swap is true"):
        read({"recompute": [0, 1, 4, 5]}, beside="swap_config: {swap: true}\n")


def test_unknown_patterns_are_named():
    found = read({"select_recompute": {"rotary": [1, 1, 1, 1]}, "select_comm_recompute": {"all_to_all": True}})
    assert {"select_recompute rotary: not known", "select_comm_recompute all_to_all: not known"} <= set(
        found.understanding.ignored
    )


def _lists(vpp):
    rows = st.lists(st.integers(0, 7), min_size=4, max_size=4)
    shapes = [st.booleans(), rows] + ([st.lists(rows, min_size=vpp, max_size=vpp)] if vpp > 1 else [])
    return st.one_of(*shapes)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), vpp=st.sampled_from([1, 2, 3]))
def test_kinds_are_those_of_every_layer(data, vpp):
    names = ("recompute", "select_recompute", "select_comm_recompute")
    config = {name: data.draw(_lists(vpp)) for name in names}
    wanted = by_layer(config, vpp, 24 * vpp)
    found = read(config, vpp=vpp, layers=24 * vpp)
    mixed = [line for line in found.understanding.assumed if line.startswith("recompute: the file mixes ")]
    named = [found.strategy.recompute] if found.strategy.recompute.active else []
    if mixed:
        named = [Recompute.parse(one) for one in mixed[0].split(" mixes ")[1].split("; a strategy")[0].split("; ")]
    told = {"full" if one.full else "+".join(one.modules): one.layers or (6,) * 4 * vpp for one in named}
    for chunk, layers in enumerate(wanted):
        ours = [kind for kind, counts in told.items() for _ in range(counts[chunk])]
        assert ours + [""] * (6 - len(ours)) == layers


def test_kinds_go_from_the_widest_to_the_narrowest():
    found = kinds_of({"full": (1, 0), "activation": (3, 2), "comm": (2, 4)})
    assert found == {
        frozenset({"full"}): (1, 0),
        frozenset({"activation", "comm"}): (1, 2),
        frozenset({"activation"}): (1, 0),
        frozenset({"comm"}): (0, 2),
    }


LOW = "tp2 pp4x2 dp2 zero1 mbs1 gbs32 seq4096 layers=4,4,4,4,3,3,3,3 {order} runtime=mindformers"


def _exported(order):
    plan = shardwise.plan_of(shardwise.estimate("qwen3-0.6b", "16xascend-910b", LOW.format(order=order)))
    made = export(plan, "mindformers")
    return plan, made, {file.name: file.text for file in made.files}


def test_the_low_memory_order_is_exported_with_mindspores_switch():
    plan, made, texts = _exported("low-memory")
    assert not [fault for fault in made.losses if fault.path.startswith("strategy")]
    assert "export ENABLE_LESS_MEM_VPP=1" in texts["mindformers.sh"].splitlines()
    assert yaml.safe_load(texts["mindformers.yaml"])["context"]["jit_config"] == {"jit_level": "O0"}
    back = read_content(texts["mindformers.yaml"], "mindformers.yaml").strategy
    assert (back.schedule, back.vpp) == ("low-memory", 2)
    assert made.as_written.startswith(made.prediction)
    again = shardwise.estimate(plan.model, plan.cluster, str(back))
    assert again.total_bytes == shardwise.estimate(plan.model, plan.cluster, plan.strategy).total_bytes


def test_the_other_interleaved_order_takes_the_switch_away():
    _, made, texts = _exported("interleaved")
    assert "export ENABLE_LESS_MEM_VPP=0" in texts["mindformers.sh"].splitlines()
    read = read_content(texts["mindformers.yaml"], "mindformers.yaml")
    assert read.strategy.schedule == "interleaved"
    assert any("ENABLE_LESS_MEM_VPP=1" in line for line in read.understanding.assumed)
    assert made.as_written.startswith(made.prediction)


def test_the_switch_has_no_effect_where_whole_graphs_are_handed_over():
    comment = "# start with ENABLE_LESS_MEM_VPP=1\ncontext: {jit_config: {jit_level: O2}}\n"
    found = read({"recompute": False}, vpp=2, beside=comment)
    assert found.strategy.schedule == "interleaved"
    assert any("no effect with jit_level O2" in line for line in found.understanding.assumed)
    assert read({"recompute": False}, vpp=2, beside=comment.replace("O2", "O1")).strategy.schedule == "low-memory"


def test_pynative_has_no_such_order():
    plan = shardwise.plan_of(shardwise.estimate("qwen3-0.6b", "16xascend-910b", LOW.format(order="low-memory")))
    made = export(plan, "mindformers@2.1-pynative")
    assert any("low-memory" in str(fault) and "nearest is interleaved" in str(fault) for fault in made.losses)


def test_offsets_of_an_old_deepseek_count_the_layer_that_predicts_further():
    text = CONFIG.format(interleave="false", recompute="{recompute: false}", vpp=1, layers=13)
    text = text.replace("LlamaConfig", "DeepseekV3Config, mtp_depth: 1, offset: [1, 1, 0, 0]")
    found = read_content(text, "deepseek.yaml")
    assert found.strategy.layers == (4, 4, 3, 2)
    assert any("mtp_depth" in line for line in found.understanding.assumed)
