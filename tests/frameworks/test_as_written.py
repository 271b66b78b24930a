"""The header of an export says what its files say: read back by the importer and estimated, it is the same number."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import export_readers as readers
import pytest
from export_plans import plans
from hypothesis import HealthCheck, given, settings

import shardwise
from shardwise.api import ask
from shardwise.cli.main import run
from shardwise.errors import InfeasibleError, InputError
from shardwise.estimate.estimate import estimate
from shardwise.frameworks.export import TARGETS, export
from shardwise.frameworks.folder import write_export
from shardwise.frameworks.read import read_content, read_framework
from shardwise.inputs.strategy_text import complete
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.generate import generate
from shardwise.plan.file import read_plan
from shardwise.plan.predict import plan_of
from shardwise.units import show_bytes, show_seconds

often = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
FILES = {"megatron": "train.sh", "torchtitan@0.2": "torchtitan.toml", "torchtitan@main": "shardwise_config.py",
         "mindformers@2.1-graph": "mindformers.yaml"}  # fmt: skip


@pytest.mark.parametrize("to", FILES)
@often
@given(plan=plans())
def test_the_header_is_the_estimate_of_the_file(plan, to, tmp_path_factory):
    try:
        made = export(plan, to)
    except InfeasibleError:
        return
    if not made.as_written:  # it cannot run on the target's runtime as we know it
        assert any("the checks refuse it for the runtime" in str(fault) for fault in made.losses)
        return
    folder = tmp_path_factory.mktemp("written")
    for file in made.files:
        (folder / file.name).write_text(file.text)
    header = (folder / FILES[to]).read_text()
    assert f"as written: {made.as_written}" in header
    runtime = re.search(r"\(runtime (\S+)\)$", made.as_written)[1]
    read = read_framework(folder / FILES[to])
    strategy = complete({**read.fields, "runtime": runtime}, plan.cluster)
    order, model = _order(made), plan.model if to.startswith("mindformers") else read.model or plan.model
    if order is not None:
        strategy = replace(strategy, schedule="auto")
    found = estimate(model, plan.cluster, strategy, order=order)
    assert made.as_written.startswith(f"{show_seconds(found.iteration_seconds)} per iteration")
    assert f"at most {show_bytes(found.total_bytes)} of" in made.as_written


def _order(made):
    """The order that the files of an export say."""
    rows = [file.text for file in made.files if file.name == "schedule.csv"]
    return Schedule.parse(rows[0]) if rows else None


ZERO_BUBBLE = "tp1 pp4 dp4 mbs1 gbs64 seq8192 zb-h1 runtime=zero-bubble"


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """A plan whose order was made for 60 GB."""
    folder = tmp_path_factory.mktemp("limited")
    words = ["llama-3-8b", "-c", "16xh100", "-s", ZERO_BUBBLE, "-q", "--out", str(folder / "zb.json")]
    assert run(["estimate", *words]) == 0
    words = ["--plan", str(folder / "zb.json"), "--memory-limit", "60GB", "-q", "--out", str(folder / "lim.json")]
    assert run(["schedule", "auto", *words]) == 0
    return read_plan(folder / "lim.json")


@pytest.mark.parametrize("to", ["torchtitan@0.2", "torchtitan@main", "torch-pipelining"])
def test_files_are_estimated_in_the_order_of_their_csv(limited, to):
    """The header told 1F1B's 71.98 GiB, though the file beside it runs other rows; torch pipelining's order was
    optimised anew, without the limit: 75.30 GiB for one of 53.20.
    """
    made = export(limited, to)
    assert show_bytes(limited.predictions.total_bytes) in made.prediction
    strategy = replace(made.strategy, runtime=to.partition("@")[0])
    there = estimate(limited.model, limited.cluster, strategy, order=limited.order)
    assert made.as_written.startswith(f"{show_seconds(there.iteration_seconds)} per iteration")
    assert f"at most {show_bytes(there.total_bytes)} of" in made.as_written


@pytest.mark.parametrize("to", ["torch-pipelining", "torchtitan"])
def test_an_order_that_was_edited_is_predicted_anew(limited, to):
    s = limited.strategy
    made = export(replace(limited, order=generate("gpipe", pp=4, vpp=1, microbatches=s.microbatches)), to)
    assert made.prediction.endswith("232.98 GiB of 55.88 GiB asked for (GPU: 79.20 GiB) on a GPU: does not fit")
    assert "on a GPU: does not fit (runtime" in made.as_written


def test_a_plan_for_another_framework_is_priced_there():
    """A torchtitan file was headed with Megatron's 113.6 s, though it says full recompute: 184.6 s by our estimate."""
    strategy = shardwise.Strategy.parse(
        "tp2 pp2x2 dp4 mbs1 gbs64 seq8192 zero1 interleaved recompute=attention-norm+mlp-norm"
    )
    model, cluster = shardwise.load_model("llama-3-8b"), shardwise.load_cluster("16xh100")
    made = export(plan_of(shardwise.estimate(model, cluster, strategy)), "torchtitan@0.2")
    theirs = made.strategy
    there = shardwise.estimate(model, cluster, theirs)
    assert made.as_written.startswith(f"{show_seconds(there.iteration_seconds)} per iteration")
    assert there.iteration_seconds > 1.3 * float(made.prediction.split()[0])
    assert "by the estimate)" in str(made.losses[0])


@pytest.mark.parametrize("to", FILES)
def test_the_command_line_says_it_too(to, tmp_path, capfd):
    words = ("llama-3-8b", "-c", "16xh100")
    strategy = "tp2 pp2 dp4 mbs1 gbs64 seq8192 zero1"
    assert run(["estimate", *words, "-s", strategy, "-q", "--out", str(tmp_path / "plan.json")]) == 0
    assert run(["export", str(tmp_path / "plan.json"), "--to", to, "--out", str(tmp_path / "run"), "-q"]) == 0
    said = re.search(r"as written +(.*) \(runtime (.*)\)", capfd.readouterr().out)
    file = str(tmp_path / "run" / FILES[to])
    assert run(["estimate", *words, "--from", file, "--runtime", said[2], "--json", "-", "-q"]) == 0
    assert (
        f"{show_seconds(json.loads(capfd.readouterr().out)['predictions']['iteration_seconds'])} per iteration"
        in said[1]
    )


def test_the_base_of_rotary_angles_is_written_and_read_back():
    """Megatron's default is 10,000; a Llama 3 run without the flag would train another model."""
    made = export(plan_of(shardwise.estimate("llama-3-8b", "8xh100", "tp8 gbs8")), "megatron")
    script = next(file.text for file in made.files if file.name == "train.sh")
    assert "--rotary-base 500000" in script
    assert read_content(script, "train.sh").model.rotary_base == 500_000


@pytest.mark.parametrize("words", ["fp32", "noflash", "pure", "fp16"])
def test_mindformers_formats_and_kernels_are_read_back(words):
    """The reader took bf16 and flash attention for all: a file in fp32 was headed with a sixth of its seconds."""
    plan = plan_of(shardwise.estimate("qwen3-0.6b", "8xh100", f"tp2 dp4 mbs1 gbs8 seq4096 {words} runtime=mindformers"))
    made = export(plan, "mindformers")
    read = read_content(made.files[0].text, "mindformers.yaml")
    for name in ("dtype", "master", "flash"):
        assert getattr(read.strategy, name) == getattr(plan.strategy, name)
    assert not [line for line in read.understanding.ignored if "dtype" in line or "flash" in line]
    assert made.as_written == f"{made.prediction} (runtime mindformers)"


def planned(model, cluster, strategy):
    return plan_of(shardwise.estimate(model, cluster, strategy))


def test_experts_of_one_replica_stay_sharded():
    """Zero 3 was written as zero 0, without a word: 136 GiB for a plan of 85."""
    runtime = "torchtitan+can.mixed_alone=true"
    words = "tp4 pp2x2 ep2 mbs1 gbs8 seq4096 interleaved recompute=ops zero3 runtime="
    plan = planned("qwen3-30b-a3b", "8xh200", words + runtime)
    made = export(plan, "torchtitan@main")
    assert made.strategy.zero == 3
    assert [fault.path for fault in made.losses] == ["model.moe"]
    assert made.as_written == f"{made.prediction} (runtime {runtime})"
    whole = replace(plan, strategy=replace(plan.strategy, zero=0))
    losses = export(whole, "torchtitan@main").losses
    assert any("expert parallel ranks always shard" in str(fault) for fault in losses)
    with pytest.raises(InfeasibleError, match=r"strategy\.ep: 2: 0\.2 spreads experts beside FSDP alone"):
        export(plan, "torchtitan@0.2")


def test_torchtitan_02_computes_in_fp32_without_fsdp():
    """It was written and predicted as bf16: mixed precision is FSDP's there (0.2.2, maybe_enable_amp)."""
    plan = planned("llama-3-8b", "8xh200", "tp4 pp2 mbs1 gbs8 seq4096 zero1")
    made = export(plan, "torchtitan@0.2")
    assert made.strategy.dtype == "fp32"
    assert 'mixed_precision_param = "float32"' in made.files[0].text
    assert any(fault.path == "strategy.dtype" and "by the estimate" in fault.message for fault in made.losses)
    for later in ("torchtitan@0.3", "torchtitan@main"):
        made = export(plan, later)
        assert made.strategy.dtype == "bf16"
        assert made.as_written.endswith("(runtime torchtitan+can.mixed_alone=true)")
    with pytest.raises(InputError, match=r"strategy\.dtype: bf16 with tp 4 pp 2 and no sharded states"):
        planned("llama-3-8b", "8xh200", "tp4 pp2 mbs1 gbs8 seq4096 zero2 runtime=torchtitan")


def test_torchtitan_splits_experts_as_tensor_parallel_does():
    """Its own files were refused by the checks: 0.2 has expert tensor parallel of 1 or tp."""
    plan = planned("qwen3-30b-a3b", "16xh200", "tp2 ep4 etp2 zero1 mbs1 gbs16 seq4096")
    made = export(plan, "torchtitan@0.2")
    assert made.strategy.etp == 2
    assert made.as_written


@pytest.mark.parametrize("to", TARGETS)
def test_a_straggler_is_the_sites_and_stays(to):
    strategy = "zero2 mbs1 gbs64 seq8192" if to == "huggingface" else "pp4 zero1 mbs1 gbs64 seq8192"
    slow, plain = (export(planned("llama-3-8b", "16xh100", strategy + more), to) for more in (" straggler1.05", ""))
    if plain.as_written:
        assert slow.as_written.split()[0] > plain.as_written.split()[0]
    assert [fault.path for fault in slow.losses] == [fault.path for fault in plain.losses]


@pytest.mark.parametrize("zero", [2, 3])
def test_megatron_shards_less_beside_stages_and_says_the_price(zero):
    plan = planned("llama-3-8b", "16xh100", f"pp4 zero{zero} mbs1 gbs64 seq8192 runtime=torchtitan")
    made = export(plan, "megatron")
    assert made.strategy.zero == 1
    assert "--use-megatron-fsdp" not in made.files[0].text
    assert f"{zero} does not go with pp 4 in Megatron-LM; zero 1 is written (" in str(made.losses[0])
    assert made.as_written
    with pytest.raises(InfeasibleError, match=r"(?s)--strict.*zero 1 is written"):
        export(plan, "megatron", strict=True)


def test_pynative_which_nothing_predicts_is_told():
    plan = planned("llama-3-8b", "16xh100", "pp4 zero2 mbs1 gbs64 seq8192 runtime=torchtitan")
    made = export(plan, "mindformers@2.1-pynative")
    assert not made.as_written
    assert "nothing predicts it: PyNative shards gradients" in str(made.losses[0])
    assert "the checks refuse" not in made.files[0].text


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("megatron", "pp4 zero3 mbs1 gbs64 seq8192 runtime=torchtitan"),
        ("megatron", "pp4 zb-h1 mbs1 gbs64 seq8192 runtime=zero-bubble"),
        ("torchtitan", "tp2 pp4 zero1 mbs1 gbs64 seq8192"),
        ("mindformers", "tp2 pp4 zero1 mbs1 gbs64 seq8192"),
    ],
)
def test_the_parts_add_up_to_what_is_written(to, words):
    made = export(planned("llama-3-8b", "16xh100", words), to)
    parts = [_priced(text) for text in (made.runtime, *map(str, made.losses)) if " by the estimate" in text]
    before, written = (_figures(text) for text in (made.prediction, made.as_written))
    for index, error in ((0, 2e-3), (1, 0.02)):
        assert before[index] + sum(part[index] for part in parts) == pytest.approx(written[index], rel=error)
    assert f"runtime: {made.runtime}" in made.files[0].text
    assert made.strategy.runtime == to


def _priced(text):
    found = re.search(r"([+-])([\d.]+) (s|ms|us) and ([+-])([\d.]+) (GiB|MiB|B) by the estimate", text)
    seconds = float(found[1] + found[2]) * {"s": 1, "ms": 1e-3, "us": 1e-6}[found[3]]
    return seconds, float(found[4] + found[5]) / {"GiB": 1, "MiB": 2**10, "B": 2**30}[found[6]]


def _figures(text):
    found = re.search(r"^([\d.]+) s per iteration.* at most ([\d.]+) GiB of", text)
    return float(found[1]), float(found[2])


def test_a_difference_that_no_loss_names_is_told():
    """An order that the plan carries beside a name that Megatron has: the files run the name's own."""
    plan = planned("llama-3-8b", "16xh100", "pp4 mbs1 gbs64 seq8192")
    edited = replace(plan, order=generate("gpipe", pp=4, vpp=1, microbatches=plan.strategy.microbatches))
    made = export(edited, "megatron")
    assert "what the files cannot say is not named" in str(made.losses[0])
    assert "56.82 GiB where the plan takes" in str(made.losses[0])
    with pytest.raises(InfeasibleError, match="not named"):
        export(edited, "megatron", strict=True)
    assert not export(plan, "megatron", strict=True).losses


SCRIPT = "tp4 pp2 dp2 mbs1 gbs64 seq8192 zero1 runtime=megatron"


@pytest.mark.parametrize("laid", ["", "+kernels.loss=fused", "+overlap.tp=0", "+kernels.loss=fused+overlap.tp=0"])
def test_megatrons_own_flags_say_what_is_laid_over_its_runtime(laid):
    made = export(planned("llama-3-8b", "16xh100", SCRIPT + laid), "megatron", strict=True)
    script = made.files[0].text
    assert ("--cross-entropy-loss-fusion" in script) == ("loss" in laid)
    assert ("--tp-comm-overlap" in script) == ("overlap" not in laid)
    assert read_content(script, "train.sh").strategy.runtime == f"megatron{laid}"
    assert made.as_written == f"{made.prediction} (runtime megatron{laid})"


@pytest.mark.parametrize(
    ("to", "runtime", "lost"),
    [
        ("megatron", "megatron+overlap.tp=0.9", "overlap.tp=0.9 is no setting of Megatron-LM"),
        ("megatron", "megatron+kernels.loss=in-place", ""),
        ("mindformers", "mindformers+kernels.loss=fp32", "kernels.loss=fp32 is no setting of MindFormers"),
    ],
)
def test_what_no_flag_says_of_a_runtime_is_told(to, runtime, lost):
    plan = planned("qwen3-8b", "16xh100", f"tp4 pp2 dp2 mbs1 gbs64 seq8192 zero1 runtime={runtime}")
    made = export(plan, to)
    assert made.as_written.endswith(f"(runtime {runtime.partition('+')[0]})")
    assert [lost in str(fault) for fault in made.losses] == [True] * bool(lost)
    if lost:
        with pytest.raises(InfeasibleError, match="is no setting of"):
            export(plan, to, strict=True)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("llama-3-8b", "pp4 zero1 mbs1 gbs64 seq8192 recompute=full"),
        ("llama-3-8b", "dp16 zero3 mbs1 gbs64 seq4096 recompute=full offload-optimizer"),
        ("llama-3-8b", "tp8 zero2 mbs1 gbs64 seq4096 nosp"),
        ("llama-3-8b", "cp2:all-to-all zero2 mbs1 gbs64 seq8192"),
        ("llama-3-8b", "dp16 zero2 mbs1 gbs32 seq4096 grad-bf16 recompute=full"),
        ("qwen3-30b-a3b", "dp16 ep8 zero2 mbs1 gbs64 seq4096 recompute=full"),
    ],
)
def test_deepspeeds_file_is_read_back(model, words):
    plan = planned(model, "16xh200", f"{words} runtime=deepspeed")
    made = export(plan, "deepspeed", strict=True)
    read = read_content(readers.texts(made)["ds_config.json"], "ds_config.json")
    for name in ("tp", "pp", "cp", "ep", "zero", "dtype", "grad_dtype", "micro_batch", "seq", "flash", "runtime"):
        assert getattr(read.strategy, name) == getattr(plan.strategy, name)
    assert not made.by_hand
    assert made.as_written == f"{made.prediction} (runtime deepspeed)"


def test_context_parallel_of_later_torchtitans_gathers():
    """Their files have no word for it, and a ring was taken."""
    words = "tp2 cp2:all-gather zero2 mbs1 gbs16 seq8192 recompute=full runtime=torchtitan"
    made = export(planned("llama-3-8b", "16xh100", words), "torchtitan@main", strict=True)
    assert made.as_written == f"{made.prediction} (runtime torchtitan)"


def test_deepspeed_has_no_tensor_parallel_of_experts():
    plan = planned("qwen3-30b-a3b", "4xb200", "tp4 ep1 zero0 mbs1 gbs8 seq2048 nosp recompute=full")
    with pytest.raises(InfeasibleError, match="AutoTP refuses transformers' layouts of experts"):
        export(plan, "deepspeed")


def test_the_order_of_a_torchtitan_csv_is_read_back(tmp_path):
    """`--from torchtitan.toml` ran the schedule that only places the chunks, and said nothing of the CSV."""
    cluster, strategy = "8xh100", "pp4x2 dp2 zero2 mbs1 gbs16 seq4096 zb-v placement=v"
    order = generate("v-half", pp=4, vpp=2, microbatches=8)
    plan = replace(planned("llama-3-8b", cluster, strategy + " runtime=torchtitan"), order=order)
    plan = replace(plan, strategy=replace(plan.strategy, schedule="auto"))
    made = export(plan, "torchtitan@0.2")
    write_export(made, tmp_path)
    asked = ask("llama-3-8b", cluster, source=str(tmp_path / "torchtitan.toml"))
    assert asked.plan is not None
    assert asked.plan.order == order
    assert replace(asked.strategy, layers=()) == plan.strategy
    (tmp_path / "schedule.csv").unlink()
    asked = ask("llama-3-8b", cluster, source=str(tmp_path / "torchtitan.toml"))
    assert any("schedule.csv is not there: the passes run as zb-v" in note for note in asked.notes)
