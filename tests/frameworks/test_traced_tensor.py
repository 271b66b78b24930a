"""Tensor parallel of traced modules: a cut module is what one rank's own module is, and a cut Llama the catalog's."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest

import shardwise
from shardwise.cost.activations import plain_walk
from shardwise.errors import InputError
from shardwise.ops.shard import shard_of
from shardwise.ops.traced import traced_first, traced_last, traced_ops

pytest.importorskip("torch")
HERE = Path(__file__).parent
PLANS = "nosp seq4096 runtime="


@functools.cache
def traced(source, inputs):
    if "families" in source:
        pytest.importorskip("transformers")
    return shardwise.trace_module(f"{HERE / source}", inputs)


def of_rank(name, inputs="ids=1x128:int64,labels=1x128:int64"):
    return traced(f"traced_ranks.py:{name}", inputs)


def chain(model, tp, samples=3):
    """All operators of a rank, in a row."""
    runtime = shardwise.load_runtime("torch-parallel")
    strategy = shardwise.load_strategy(f"tp{tp} dp1 mbs{samples} gbs{samples} nosp seq{model.traced.seq}",
                                       shardwise.load_cluster(f"{tp}xh200"))  # fmt: skip
    shard, own = shard_of(model, strategy, runtime), model.traced
    middle = [op for kind in own.order for op in traced_ops(shard, own.kinds[kind])]
    return [*traced_first(shard, own), *middle, *traced_last(shard, own, own_weights=False)]


PAIRS = {"llama": (2, 4), "tied": (2,), "first": (2,), "middle": (2,), "last": (2,)}


@pytest.mark.parametrize(("name", "ranks"), [(name, ranks) for name, tps in PAIRS.items() for ranks in tps])
def test_a_cut_module_is_what_one_ranks_own_module_is(name, ranks):
    inputs = ("ids=1x128:int64,labels=1x128:int64",) if name in {"llama", "tied"} else ("ids=1x128:int64",)
    whole, part = of_rank(f"{name}1", *inputs), of_rank(f"{name}{ranks}", *inputs)
    ours, theirs = chain(whole, ranks), chain(part, 1)
    assert whole.traced.whole == ""
    assert sum(op.params for op in ours) == sum(op.params for op in theirs)
    assert sum(sum(op.flops()) for op in ours) == pytest.approx(sum(sum(op.flops()) for op in theirs), rel=1e-6)
    walks = [plain_walk(ops) for ops in (ours, theirs)]
    assert walks[0].kept == pytest.approx(walks[1].kept, rel=1e-6)
    peaks = [max(walk.forward, walk.backward) for walk in walks]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01)
    moved = [sum(op.bytes_f + op.bytes_b for op in ops) for ops in (ours, theirs)]
    assert moved[0] == pytest.approx(moved[1], rel=0.05)


def test_every_pair_adds_up_once_each_way():
    ops = chain(of_rank("llama1"), 2)
    each = 2.0 * 3 * 128 * 512
    sums = [comm for op in ops for comm in op.comms if comm.bytes == each]
    assert {comm.axis for comm in sums} == {"tp"}
    assert {comm.kind for comm in sums} == {"all-reduce"}
    # the embedding, and of two layers attention and the rest; backward these, and the output layer
    assert [comm.phase for comm in sums].count("F") == 5
    assert [comm.phase for comm in sums].count("I") == 5
    assert [comm.bytes for op in ops for comm in op.comms if comm.bytes != each] == [12.0 * 3 * 128]


@pytest.mark.parametrize("runtime", ["torch-parallel", "deepspeed"])
@pytest.mark.parametrize("strategy", [
    "tp2 dp8 zero2 mbs1 gbs64", "tp4 dp4 zero2 mbs2 gbs64", "tp8 dp2 zero2 mbs4 gbs64", "tp8 dp2 zero2 mbs1 gbs64",
    "tp2 dp8 zero3 mbs2 gbs64 recompute=full",
])  # fmt: skip
@pytest.mark.parametrize(("source", "inputs"), [
    ("traced_models.py:llama", "ids=1x4096:int64,labels=1x4096:int64"),
    ("traced_families.py:llama_8b", "input_ids=1x4096:int64,labels=1x4096:int64"),
])  # fmt: skip
def test_a_traced_llama_is_the_catalogs_under_tensor_parallel(source, inputs, strategy, runtime):
    model, cluster = traced(source, inputs), shardwise.load_cluster("16xh200")
    own = replace(shardwise.load_model("llama-3-8b"), layers=model.layers)
    ours, catalogs = (
        shardwise.estimate(one, cluster, shardwise.load_strategy(f"{strategy} {PLANS}{runtime}", cluster))
        for one in (model, own)
    )
    assert ours.total_bytes == pytest.approx(catalogs.total_bytes, rel=0.01)
    assert ours.iteration_seconds == pytest.approx(catalogs.iteration_seconds, rel=0.03)


def test_pipelines_go_with_it_and_more_ranks_hold_less():
    words = "pp2 dp4 mbs1 gbs64 nosp seq128 runtime=torch-parallel"
    found = [shardwise.estimate(of_rank("llama1"), f"{8 * tp}xh200", f"tp{tp} {words}") for tp in (1, 2, 4)]
    assert len(found[1].stages) == 2
    assert found[0].peak_bytes > found[1].peak_bytes > found[2].peak_bytes


CUT = {
    "traced_families.py:llama input_ids=1x256:int64,labels=1x256:int64": (2, ""),
    "traced_families.py:qwen3_moe input_ids=1x256:int64,labels=1x256:int64": (2, ""),
    "traced_families.py:vit pixel_values=1x3x224x224,labels=1:int64": (3, ""),
    "traced_families.py:t5 input_ids=1x128:int64,labels=1x64:int64": (4, ""),
    "traced_families.py:whisper input_features=1x80x600,labels=1x64:int64": (4, ""),
    "traced_models.py:dit x=1x4x32x32,t=1x256,label=1:int64": (16, "blocks.0.norm"),
    "traced_models.py:tied_llama ids=1x256:int64,labels=1x256:int64": (2, ""),
    "traced_models.py:unet x=1x3x64x64": (1, "no linear layer"),
    "traced_models.py:resnet50 x=1x3x224x224,label=1:int64": (1, "no linear layer"),
    "traced_models.py:mamba2 ids=1x256:int64": (1, "layers.0.conv: convolution"),
    "traced_ranks.py:whole_norm x=1x16x256": (1024, "layers.0.own: native_layer_norm"),
    "traced_ranks.py:sorting x=1x16x64": (1, "layers.0: sort"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CUT)
def test_columns_and_rows_are_found_and_what_is_not_is_named(case):
    found = traced(*case.split()).traced
    assert found.ways == CUT[case][0]
    assert found.whole.startswith(CUT[case][1])


REFUSED = {
    "sorting x=1x16x64 tp2 nosp seq1": "no columns and rows were found in it that 2 ranks could share (layers.0: sort",
    "llama1 ids=1x128:int64,labels=1x128:int64 tp8 nosp seq128": "8 does not divide 4",
    "llama1 ids=1x128:int64,labels=1x128:int64 tp2 seq128": "add nosp",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shared_is_refused(case):
    name, inputs, *words = case.split()
    with pytest.raises(InputError) as told:
        shardwise.estimate(of_rank(name, inputs), "16xh200", f"{' '.join(words)} mbs1 gbs64 runtime=torch-parallel")
    assert REFUSED[case] in str(told.value)


def test_plan_takes_it_where_it_helps():
    model = of_rank("llama1")
    found = shardwise.plan(model, "8xh200", global_batch=8, seq=128, runtime="torch-parallel", only="tp=2")
    assert found.best.strategy.tp == 2
    assert not found.best.strategy.sp


def test_one_matrix_as_a_column_and_as_a_row_stays_whole():
    found = traced("traced_ranks.py:twice", "x=1x16x64").traced
    assert found.ways in {1, 64}
    assert all(op.cut is None or op.cut.params in {0, 64 * 64, 64 * 64 + 64} for kind in found.kinds for op in kind.ops)


def test_layers_that_are_copies_of_one_are_followed_as_any():
    found = traced("traced_ranks.py:copies", "x=1x16x128").traced
    again = traced("traced_ranks.py:made", "x=1x16x128").traced
    assert found.kinds == again.kinds
    assert found.ways == again.ways == 8  # heads, which torch puts beside samples
    model = traced("traced_ranks.py:copies", "x=1x16x128")  # without a vocabulary
    assert (
        shardwise.estimate(model, "16xh200", "tp8 dp2 zero2 mbs1 gbs4 nosp seq1 runtime=torch-parallel").total_bytes > 0
    )
    assert sum(op.kept[0] for op in found.kinds[0].ops) == 0.0  # no weight counts as kept


def test_one_head_of_keys_stays_whole_beside_cut_queries():
    found = traced("traced_ranks.py:one_key", "x=1x16x64").traced
    assert found.ways == 4
    cut = {op.name: op.cut.params for op in found.kinds[0].ops if op.cut}
    assert cut["q"] == cut["o"] == 64 * 64
    assert "k" not in cut or not cut["k"]
