"""Models with towers, encoders and diffusion transformers: against an H200, against their traces, and by laws."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import combinations
from operator import sub
from pathlib import Path

import pytest

import shardwise
from shardwise.errors import InfeasibleError, InputError
from shardwise.estimate.advice import difference
from shardwise.estimate.setup import setup_of
from shardwise.estimate.standing import COPIED, EVEN, FIRST, OWN, standings
from shardwise.inputs.load import load_runtime
from shardwise.inputs.parameters import count
from shardwise.inputs.strategy import Strategy
from shardwise.report.estimate import presumed

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
try:
    import towers
finally:
    sys.path.remove(str(BENCHMARKS))
SMALL = towers.MODELS["qwen3_vl"][0]


def estimated(model, text, cluster="16xh200"):
    found = shardwise.load_cluster(cluster)
    return shardwise.estimate(model, found, shardwise.load_strategy(text, found))


@pytest.mark.parametrize("row", towers.ROWS, ids=lambda row: f"{row['id']} {row['inputs'][:24]}")
def test_steps_of_an_h200(row):
    found = towers.held(row)
    assert found.bytes == pytest.approx(found.peak, rel=0.03)
    if "host" not in found.group:
        assert found.seconds == pytest.approx(found.step, rel=0.15)
    else:
        assert found.seconds < found.step


@pytest.mark.parametrize("name", ["bert", "t5"])
@pytest.mark.filterwarnings("ignore")
def test_what_is_described_is_what_is_traced(name):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    row = next(row for row in towers.ROWS if row["id"] == name and row["params"])
    text = row["inputs"].replace(row["inputs"].split("=")[1].split("x")[0] + "x", "1x")
    traced = shardwise.trace_module(f"{BENCHMARKS / 'h200_kinds.py'}:{name}", text)
    model, line = towers.MODELS[name]
    cluster = shardwise.load_cluster("1xh200")
    own = f"dp1 mbs32 gbs32 {line} master=pure runtime=huggingface"
    theirs = (
        " ".join(word for word in own.split() if not word.startswith(("seq", "source"))) + f" seq{traced.traced.seq}"
    )
    ours = shardwise.estimate(model, cluster, shardwise.load_strategy(own, cluster))
    other = shardwise.estimate(traced, cluster, shardwise.load_strategy(theirs, cluster))
    assert count(model).total == traced.traced.params
    assert ours.peak_bytes == pytest.approx(other.peak_bytes, rel=0.02)
    assert ours.iteration_seconds == pytest.approx(other.iteration_seconds, rel=0.12)


@pytest.mark.parametrize("name", ["qwen2.5-vl-7b", "llama-4-scout-vision", "flan-t5-xl", "whisper-large-v3"])
def test_all_parameters_stand_on_some_stage(name):
    model = shardwise.load_model(name)
    cuts = f"layers={model.depth - 3},1,1,1"
    seq = 448 if name.startswith("whisper") else 4096
    whole, cut = (
        sum(stage.parameters for stage in estimated(model, f"mbs1 gbs8 seq{seq} {more}", "4xh200").stages)
        for more in ("pp1", f"pp4 {cuts}")
    )
    assert whole == pytest.approx(count(model).total, rel=2e-3)  # vocabularies are padded
    tables = model.vocab * model.hidden
    assert whole * (1 - 1e-9) <= cut <= (whole + 2 * tables) * (1 + 1e-9)  # tied ends, and a table of either part


def test_frozen_towers_take_less_of_everything_and_keep_nothing():
    for more in ("", "pp4 ", "recompute=full ", "zero2 runtime=torchtitan pp2 "):
        both = [estimated(SMALL, f"{more}mbs2 gbs64 seq8192 images=6 {one}") for one in ("", "frozen=vision")]
        trained, frozen = both
        assert frozen.iteration_seconds < trained.iteration_seconds
        assert max(one.total for one in frozen.memory) <= max(one.total for one in trained.memory)
        assert frozen.tflops_per_gpu * frozen.iteration_seconds < trained.tflops_per_gpu * trained.iteration_seconds


def test_more_pictures_and_larger_ones_take_longer():
    texts = ("images=1", "images=2", "images=2:1.5", "images=4", "images=4 pixels1024")
    found = [estimated(SMALL, f"mbs1 gbs16 seq8192 {text}") for text in texts]
    seconds, memory = [one.iteration_seconds for one in found], [one.peak_bytes for one in found]
    assert seconds == sorted(seconds)
    assert memory == sorted(memory)
    assert found[2].tflops_per_gpu * seconds[2] == pytest.approx(found[1].tflops_per_gpu * seconds[1])


def test_operations_of_the_model_are_those_of_its_operators():
    for name, (model, line) in towers.MODELS.items():
        found = estimated(model, f"dp1 mbs8 gbs8 {line} master=pure runtime=huggingface", "1xh200")
        setup = setup_of(model, found.cluster, found.strategy, load_runtime("huggingface"))
        computed = sum(chunk.flops for chunk in setup.chunks)
        needed = found.mfu_full_attention * found.iteration_seconds * found.cluster.gpu.peak("bf16")
        assert 0.9 < needed / computed < 1.1, name


def test_where_towers_may_stand_is_compared_with_the_reason():
    model = shardwise.load_model("qwen2.5-vl-7b")
    found = estimated(model, "tp2 pp4 mbs1 gbs64 seq8192 images=8", "64xh200")
    ways = {one.towers: one for one in standings(found)}
    assert list(ways) == ["as asked", FIRST, OWN, EVEN, COPIED]
    assert ways["as asked"].seconds == found.iteration_seconds
    assert ways[FIRST].layers[0] > 32
    assert sum(ways[OWN].layers) == model.depth
    assert 32 in (ways[OWN].layers[0], sum(ways[OWN].layers[:2]))
    assert ways[EVEN].seconds < ways["as asked"].seconds
    assert sum(ways[COPIED].layers) == model.layers
    assert all(one.why for one in ways.values())
    for name in (FIRST, OWN, EVEN):  # each is what an estimate of its cut says
        cut = replace(found.strategy, layers=ways[name].layers)
        assert shardwise.estimate(model, found.cluster, cut).iteration_seconds == ways[name].seconds


@pytest.mark.parametrize("line", ["pp4 layers=34,18,19,18", "pp8 layers=27,9,9,9,9,9,9,8"])
def test_a_cut_that_the_model_alone_cannot_have_is_compared_too(line):
    found = shardwise.estimate("gemma-3-27b-vision", "64xh200", f"{line} mbs1 gbs256 seq8192")
    rows = standings(found)
    assert sum(rows[-1].layers) == found.model.layers
    assert rows[-1].towers == COPIED


def test_a_pipeline_longer_than_the_model_alone_is_compared_without_copies():
    found = shardwise.estimate("qwen2.5-vl-7b", "60xh200", "pp30 mbs1 gbs256 seq8192")
    assert all(row.towers != COPIED for row in standings(found))


def test_what_changes_is_said_in_words():
    base = Strategy(global_batch=8, seq=4096, images=8.0)
    assert difference(base, replace(base, frozen=("vision",))) == "frozen nothing -> vision"
    assert difference(base, replace(base, images=4.0, image_size=896)) == (
        "images 8 -> 4, image size the model's own -> 896"
    )


def test_where_there_is_nothing_to_compare():
    assert standings(estimated(SMALL, "pp1 mbs1 gbs16 seq4096")) == ()
    assert standings(estimated(shardwise.load_model("llama-3-8b"), "pp4 mbs1 gbs16 seq4096")) == ()
    assert COPIED not in [one.towers for one in standings(estimated(towers.MODELS["t5"][0], "pp2 mbs1 gbs16 seq512"))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seq4096 source512", "has no encoder of text"),
        ("seq4096 images=0", "must be above 0|above 0"),
        ("seq512 images=8", "tokens do not hold 4,608 of vision"),
        ("seq4096 images=6:1.5", r"do not hold 5,184 of vision in the fullest micro batch \(6 x 1.5\)"),
        ("seq4096 pixels100", "no multiple of the patch 16"),
        ("seq4096 frozen=sight", "is no tower of qwen3_vl; choose vision"),
        ("seq4096 frozen=vision,vision", "says vision twice; keep one"),
        ("seq4096 pixels0", "pixels0 says nothing; give a number, or leave pixels out"),
        ("seq4096 offload", "write which, as in offload=activations"),
        ("seq4096 cp2", "is not split by context parallel"),
        ("seq4096 pp2 seq-1f1b", "cuts samples into pieces"),
        ("seq4096 documents=512x3,2048", "are not known of models with towers"),
    ],
)
def test_what_cannot_be_is_said(text, words):
    with pytest.raises(InputError, match=words):
        estimated(SMALL, f"mbs1 gbs64 {text}")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("source512", "no encoder of text"), ("images=99", "do not hold"), ("images=9:2", "in the fullest"),
        ("frozen=sight", "is no tower"), ("pixels100", "no multiple of the patch"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_before_a_search(asked, words):
    with pytest.raises(InputError, match=words):
        shardwise.plan(SMALL, "8xh100", global_batch=64, seq=4096, only=asked)


def test_pictures_of_another_size_stretch_the_positions_they_have():
    found = estimated("vit-l-16", "dp16 mbs4 gbs64 seq577 pixels384")
    assert found.model.max_positions == 197
    with pytest.raises(InputError, match="a picture of 384 is 577 tokens of vit-l-16; use seq 577"):
        estimated("vit-l-16", "dp16 mbs4 gbs64 seq197 pixels384")


def test_what_a_tower_must_be():
    tower = SMALL.towers[0]
    wrong = {
        "share": replace(tower, heads=16, kv_heads=5), "named": replace(tower, name=""),
        "as frozen= says": replace(tower, name="my eyes,two"),
        "a projector": replace(tower, towers=(tower,)),
        "does not divide": replace(tower, stem=replace(tower.stem, size=752)),
    }  # fmt: skip
    for one in wrong.values():
        with pytest.raises(InputError):
            estimated(replace(SMALL, towers=(one,)), "mbs1 gbs16 seq4096")
    with pytest.raises(InputError, match="vocab: is missing"):
        estimated(replace(SMALL, vocab=0), "mbs1 gbs16 seq4096")
    with pytest.raises(InputError, match="this is no tower"):
        estimated(replace(SMALL, projector=tower.projector), "mbs1 gbs16 seq4096")


def test_a_line_says_towers_and_reads_back():
    text = "tp1 pp1 dp16 cp1 ep1 zero1 mbs1 gbs16 seq4096 source512 pixels896 images=2:1.3 frozen=vision,audio"
    found = Strategy.parse(text)
    assert (found.source, found.image_size, found.images, found.image_imbalance) == (512, 896, 2.0, 1.3)
    assert found.frozen == ("vision", "audio")
    assert str(found) == text
    assert Strategy.parse(str(found)) == found


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "huggingface", "deepspeed", "mindformers", "paddle"])
def test_what_no_export_can_say_is_refused(target):
    runtime = target if target in {"megatron", "mindformers", "paddle"} else "torchtitan zero3"
    found = estimated(SMALL, f"mbs1 gbs16 seq4096 runtime={runtime}")
    with pytest.raises((InfeasibleError, InputError), match=r"towers|runtime"):
        shardwise.export(shardwise.plan_of(found), target)


def test_a_plan_with_towers_is_written_and_read_back(tmp_path):
    found = estimated(SMALL, "pp4 mbs1 gbs64 seq4096 images=2:1.2 frozen=vision layers=8,3,3,2")
    file = tmp_path / "plan.json"
    shardwise.write_plan(shardwise.plan_of(found), file)
    again = shardwise.read_plan(file)
    assert (again.model, again.strategy) == (SMALL, found.strategy)
    assert shardwise.estimate(again).iteration_seconds == found.iteration_seconds


def test_an_average_of_pictures_takes_what_lies_between_their_numbers():
    """One picture of this tower is 1,025 tokens: their number, odd or not whole, is no reason to be slow."""
    few, mean, more = (
        estimated("internvl3-8b", f"tp1 pp1 dp16 mbs1 gbs32 seq4096 images={images}").iteration_seconds
        for images in (1, 1.5, 2)
    )  # fmt: skip
    assert mean == pytest.approx((few + more) / 2, rel=1e-3)


@pytest.mark.parametrize("images", ["images=1", "images=2 frozen=vision"])
def test_towers_stand_at_their_best_cut(images):
    """Of a small model, where launches count as much as kernels, against every cut that there is."""
    tower = replace(SMALL.towers[0], layers=3)
    model = replace(SMALL, layers=6, vocab=128256, towers=(tower,))
    found = estimated(model, f"pp4 mbs1 gbs64 seq4096 {images} layers=6,1,1,1")
    borders = [(0, *cut, 9) for cut in combinations(range(1, 9), 3)]
    every = {ends: replace(found.strategy, layers=tuple(map(sub, ends[1:], ends))) for ends in borders}
    seconds = {ends: shardwise.estimate(model, found.cluster, one).iteration_seconds for ends, one in every.items()}
    ways = {one.towers: one.seconds for one in standings(found)}
    assert ways[FIRST] <= 1.005 * min(seconds[ends] for ends in borders if ends[1] > 3)
    assert ways[OWN] <= 1.005 * min(seconds[ends] for ends in borders if 3 in ends)
    assert ways[EVEN] <= 1.005 * min(seconds.values())


def test_what_is_presumed_is_said():
    t5 = estimated(towers.MODELS["t5"][0], "pp1 mbs1 gbs16 seq512")
    assert [one.partition(",")[0] for one in presumed(t5.model, t5.strategy)] == [
        "the encoder of t5 reads 512 tokens", "t5 is timed as megatron would run it",
    ]  # fmt: skip
    assert not [*presumed(t5.model, replace(t5.strategy, source=64, runtime="huggingface"))]
    assert not [*presumed(shardwise.load_model("llama-3-8b"), t5.strategy)]


def test_two_that_do_not_do_the_same_work_are_compared_with_a_note():
    plan = shardwise.plan_of(estimated(SMALL, "mbs1 gbs16 seq4096 images=2"))
    assert (
        "the same work (images 2 -> 3, frozen nothing -> vision)" in shardwise.why(plan, "images=3 frozen=vision").note
    )
    assert not shardwise.why(plan, "mbs1 zero2").note
