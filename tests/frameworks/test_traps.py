"""The traps of each target (reference/ecosystem.md, C.1), one test each, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import export_readers as readers
import pytest
import yaml
from export_plans import DENSE, EXPERTS, TALL, plan_of

from shardwise.errors import InfeasibleError, InputError
from shardwise.estimate.estimate import estimate
from shardwise.estimate.predictions import predictions_of
from shardwise.frameworks.export import TARGETS, export, find
from shardwise.frameworks.load import load_cluster
from shardwise.frameworks.megatron.write import layout
from shardwise.frameworks.megatron.write_model import rhythm
from shardwise.frameworks.mindformers.write import offset, rows
from shardwise.inputs.model import Moe
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Lora, Strategy
from shardwise.pipeline.action import Schedule
from shardwise.pipeline.generate import generate
from shardwise.plan.file import plan_id
from shardwise.plan.plan import Balance, Provenance, Recomputed
from shardwise.units import show_bytes, show_seconds

PIPED = Strategy(tp=2, pp=4, dp=2, global_batch=16, seq=2048)
VEE = replace(PIPED, vpp=2, schedule="zb-v", placement="v", zero=0, runtime="zero-bubble")
SHARED = (".csv", "paddle.json", "config.json", "shardwise_loop.py", "shardwise_transformers.py")
"""What holds no comment, or is the same in folders of several targets."""
VERSIONS = [f"{name}@{version}" for name, target in TARGETS.items() for version in target.versions]


def flags(made):
    return readers.flags_of_yaml(readers.texts(made)["model_config.yaml"])


@pytest.mark.parametrize("to", VERSIONS)
def test_1_every_target_states_its_version_and_the_plan(to):
    narrow = {
        "deepspeed": {"tp": 1, "dp": 4},
        "torch-pipelining": {"tp": 1, "dp": 4},
        "huggingface": {"tp": 1, "pp": 1, "dp": 8},
    }
    strategy = replace(PIPED, **narrow.get(to.split("@")[0], {}))
    found = estimate(DENSE, load_cluster(f"{strategy.world}xb200"), strategy)
    stale = replace(predictions_of(found), iteration_seconds=2.5, mfu=0.4, total_bytes=2**30)
    plan = plan_of(strategy, predictions=stale)
    made = export(plan, to)
    name, version = to.split("@")
    heads = [file.text for file in made.files if not file.name.endswith(SHARED)]
    assert heads
    for text in heads:
        assert TARGETS[name].versions[version] in text
        assert f"plan {plan_id(plan)}: dense on {strategy.world}xb200, tp{strategy.tp} pp{strategy.pp}" in text
        assert f"predicted: {show_seconds(found.iteration_seconds)} per iteration" in text
        assert f"at most {show_bytes(found.total_bytes)} of" in text


def test_1_versions_by_name():
    assert find("torchtitan")[1] == "0.2"
    with pytest.raises(InputError, match=r"no target named 'megatron-lm'; did you mean megatron"):
        find("megatron-lm")
    with pytest.raises(InputError, match=r"no version of torchtitan named '0\.9'; did you mean 0\.3 or 0\.2"):
        find("torchtitan@0.9")


def test_the_id_is_that_of_the_decisions():
    plan = plan_of(PIPED)
    assert re.fullmatch(r"[0-9a-f]{12}", plan_id(plan))
    assert plan_id(plan) == plan_id(
        replace(plan, provenance=Provenance(shardwise="1", costs=""), run={"date": "today"})
    )
    assert plan_id(plan) != plan_id(replace(plan, strategy=replace(PIPED, tp=1, dp=4)))
    assert plan_id(plan) != plan_id(replace(plan, order=Schedule.parse("0F0,0B0")))


@pytest.mark.parametrize(("version", "output"), [("0.2", "output"), ("0.3", "lm_head"), ("main", "lm_head")])
def test_2_torchtitans_output_module(version, output):
    files = readers.texts(export(plan_of(replace(PIPED, zero=2, runtime="torchtitan")), f"torchtitan@{version}"))
    parts = readers.torchtitan_settings(version, files)["parallelism"]["module_fqns_per_model_part"]
    assert parts[0][:2] == ["tok_embeddings", "layers.0"]
    assert parts[-1][-3:] == ["layers.23", "norm", output]


@pytest.mark.parametrize(
    ("schedule", "runtime", "name"),
    [
        ("zb-h1", "zero-bubble", "1F1B"),
        ("low-memory", "mindformers", "Interleaved1F1B"),
        ("v-half", "torchtitan", "ZBVZeroBubble"),
        ("zb-v", "torchtitan", "ZBVZeroBubble"),
    ],
)
def test_3_a_csv_goes_with_the_name_that_places_the_chunks(schedule, runtime, name):
    base = (
        replace(VEE, zero=2)
        if schedule in {"v-half", "zb-v"}
        else replace(PIPED, zero=0, vpp=2 if schedule == "low-memory" else 1)
    )
    order = generate(schedule, pp=4, vpp=base.vpp, microbatches=8)
    if schedule == "v-half":  # no runtime of the catalog has it, so it comes as the rows of a plan
        plan = plan_of(replace(base, runtime=runtime), order=order)
    else:
        plan = plan_of(replace(base, schedule=schedule, runtime=runtime))
    files = readers.texts(export(plan, "torchtitan@0.2"))
    parallelism = readers.torchtitan_settings("0.2", files)["parallelism"]
    assert parallelism["pipeline_parallel_schedule"] == name
    assert len(parallelism["module_fqns_per_model_part"]) == 4 * base.vpp
    if schedule == "zb-v":
        assert "schedule.csv" not in files
        return
    assert parallelism["pipeline_parallel_schedule_csv"] == "schedule.csv"
    assert Schedule.parse(files["schedule.csv"]) == order


def test_4_a_v_becomes_the_nearest_loop_plan_in_megatron():
    made = export(plan_of(VEE), "megatron")
    assert (made.strategy.schedule, made.strategy.placement, made.strategy.vpp) == ("interleaved", "loop", 2)
    text = "\n".join(map(str, made.losses))
    assert "zb-v (v placement) is not known here; the nearest is interleaved on chunks placed round and round" in text
    assert re.search(r"\([+-].* and [+-].* by the estimate\)", text)
    with pytest.raises(InfeasibleError, match="cannot say all of this plan"):
        export(plan_of(VEE), "megatron", strict=True)


def test_4_layouts():
    assert layout((3, 4, 4, 3)) == "Et*3|(t*4|)*2t*3L"
    assert layout((0, 2, 2, 1), mtp=1) == "E|(tt|)*2tmL"
    assert layout((1, 2, 2, 0)) == "Et|(tt|)*2L"
    assert readers.unroll(layout((5, 1, 1, 1, 7, 9))) == ["Ettttt", "t", "t", "t", "t" * 7, "t" * 9 + "L"]
    strategy = replace(PIPED, layers=(7, 6, 6, 6))
    assert flags(export(plan_of(strategy, TALL), "megatron"))["pipeline-model-parallel-layout"] == [
        "Et*7|(t*6|)*2t*6mL"
    ]


@pytest.mark.parametrize(
    ("recompute", "written", "cost"),
    [
        ("full:[4,3,0,1]", {"method": "block", "num-layers": "4"}, "4 is written, the largest"),
        ("full:[2,2,2,2]", {"method": "block", "num-layers": "2"}, ""),
        ("full:[6,6,6,6]", {"method": "uniform", "num-layers": "1"}, ""),
        ("core-attention:[1,0,0,0]", {"granularity": "selective"}, "written for every layer"),
        ("full/2", {"method": "uniform", "num-layers": "2"}, ""),
        ("attention-norm", {"modules": "layernorm"}, "one norm cannot be recomputed without the other"),
        ("ops", {"granularity": "full"}, "ops cannot be recomputed apart"),
        ("activation", {"modules": "mlp"}, "activation cannot be recomputed apart"),
        ("comm", {}, ""),
    ],
)
def test_5_megatrons_recompute_is_the_smallest_safe_one(recompute, written, cost):
    runtime = "mindformers" if "[" in recompute else "megatron"  # Megatron-LM's own has no lists
    made = export(plan_of(replace(PIPED, recompute=Recompute.parse(recompute), runtime=runtime)), "megatron")
    found = flags(made)
    assert {name: " ".join(found[f"recompute-{name}"]) for name in written} == written
    assert (cost in "\n".join(map(str, made.losses))) if cost else not made.losses
    if recompute.startswith("core"):
        assert "recompute-num-layers" not in found


def test_6_mindformers_offsets():
    assert offset((7, 6, 6, 6), 4) == [1, 0, 0, 0]
    assert offset((3, 3, 4, 3, 3, 3, 3, 3), 4) == [[0, 0, 1, 0], [0, 0, 0, 0]]
    assert offset((3, 3, 4, 3, 2, 3, 3, 4), 4, "v") == [[0, 0, 1, 0], [1, 0, 0, -1]]
    assert rows((1, 2, 3, 4), 2, "v") == [[1, 2], [4, 3]]
    layers, shape = (4, 3, 3, 3, 2, 3, 3, 3), (2, 4)
    found = offset(layers, 4)
    assert (len(found), len(found[0])) == shape
    assert sum(map(sum, found)) == sum(layers) % 8


def test_6_zero_bubble_v_has_rows_in_rank_order():
    recompute = Recompute(full=True, layers=(1, 0, 2, 0, 3, 0, 1, 0))
    strategy = replace(VEE, runtime="mindformers", layers=(4, 3, 3, 3, 3, 3, 3, 2), recompute=recompute)
    made = export(plan_of(strategy), "mindformers")
    data = yaml.safe_load(made.files[0].text)
    assert data["parallel"]["pipeline_config"] == {"pipeline_interleave": True, "pipeline_scheduler": "zero_bubble_v"}
    assert data["model"]["model_config"]["offset"] == [[1, 0, 0, 0], [-1, 0, 0, 0]]
    assert data["recompute_config"]["recompute"] == [[1, 0, 2, 0], [0, 1, 0, 3]]
    few = replace(strategy, global_batch=8)
    with pytest.raises(InfeasibleError, match="8 is 4 micro batches; zero_bubble_v needs 2 x pp 4 = 8"):
        export(plan_of(few), "mindformers")


KINDS = {"none": (3, 2, 2, 1), "full": (1, 0, 1, 0), "select": (1, 2, 0, 1), "both": (2, 2, 2, 3)}
RUNS = (Recomputed(kind="dense", choices=KINDS), Recomputed(kind="moe", choices={"full": (0, 0, 1, 0)}))


def test_6_a_balanced_partition_has_every_kind_side_by_side():
    strategy = replace(PIPED, runtime="mindformers", layers=(7, 6, 6, 5))
    plan = plan_of(strategy, balance=Balance(problem="", recompute=RUNS))
    made = export(plan, "mindformers")
    data = yaml.safe_load(made.files[0].text)
    assert data["model"]["model_config"]["offset"] == [1, 0, 0, -1]
    assert data["recompute_config"] == {
        "recompute": [1, 0, 2, 0], "select_recompute": [4, 4, 4, 4], "select_comm_recompute": [3, 2, 4, 3]
    }  # fmt: skip
    assert [fault.path for fault in made.losses] == ["model.qk_norm"]
    near = export(plan, "mindformers@2.1-pynative")
    assert any("full, select, both are mixed chunk by chunk" in str(fault) for fault in near.losses)
    assert str(near.strategy.recompute) == "full:[4,4,4,4]"
    kind = Balance(problem="", recompute=(Recomputed(choices={"full": (1, 0, 2, 0)}),))
    one = export(replace(plan, balance=kind), "mindformers")
    assert yaml.safe_load(one.files[0].text)["recompute_config"]["recompute"] == [1, 0, 2, 0]


def test_7_counts_and_sizes_of_micro_batches():
    strategy = replace(PIPED, micro_batch=2, global_batch=32, runtime="mindformers")
    graph = yaml.safe_load(export(plan_of(strategy), "mindformers").files[0].text)
    assert (graph["parallel_config"]["micro_batch_num"], graph["runner_config"]["batch_size"]) == (8, 2)
    flat = yaml.safe_load(export(plan_of(replace(strategy, pp=1)), "mindformers").files[0].text)
    assert flat["parallel_config"]["micro_batch_num"] == 1
    assert flat["runner_config"]["gradient_accumulation_steps"] == 8
    native = yaml.safe_load(export(plan_of(strategy), "mindformers@2.1-pynative").files[0].text)
    assert "pipeline_parallel_microbatch_size" not in native["parallelism"]
    assert flags(export(plan_of(strategy), "megatron"))["micro-batch-size"] == ["2"]
    titan = readers.texts(export(plan_of(strategy), "torchtitan@0.3"))
    settings = readers.torchtitan_settings("0.3", titan)
    assert settings["parallelism"]["pipeline_parallel_microbatch_size"] == 2
    assert settings["training"]["local_batch_size"] == 16


def test_8_deepspeed_has_no_zero_2_with_a_pipeline():
    with pytest.raises(InfeasibleError, match="zero 2 with pp 4: DeepSpeed's pipeline does not run with ZeRO 2 and 3"):
        export(plan_of(replace(PIPED, zero=2, runtime="torchtitan")), "deepspeed")
    made = ds_config(plan_of(replace(PIPED, pp=1, dp=8, zero=2)))
    assert made["zero_optimization"]["stage"] == 2
    piped = ds_config(plan_of(replace(PIPED, tp=1, dp=4)))
    assert (piped["pipeline"]["stages"], piped["_program"]["pp"]) == (4, 4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "strategy.tp: tp 2 with pp 4: AutoTP, Ulysses and the pipeline each take all GPUs"),
        ({"pp": 1, "cp": 4}, "strategy.tp: tp 2 with cp 4"),
        ({"tp": 1, "cp": 2}, "strategy.cp: cp 2 with pp 4"),
    ],
)
def test_8_deepspeeds_axes_exclude_each_other(changes, words):
    with pytest.raises(InfeasibleError, match=words):
        export(plan_of(replace(PIPED, **changes)), "deepspeed")


def ds_config(plan):
    return json.loads(readers.texts(export(plan, "deepspeed"))["ds_config.json"])


def test_8_what_deepspeed_019_stops_at_is_not_written():
    flat = Strategy(dp=8, global_batch=16, seq=2048)
    config = ds_config(plan_of(replace(flat, zero=3, zero_group=4)))
    assert "mics_shard_size" not in config["zero_optimization"]
    made = export(plan_of(replace(flat, zero=0)), "deepspeed")
    assert any("zero 0 keeps bf16 gradients; zero 1 is written" in str(fault) for fault in made.losses)
    tensor = ds_config(plan_of(replace(flat, tp=4, dp=2, sp=False)))
    assert "train_batch_size" not in tensor
    assert tensor["gradient_accumulation_steps"] == 8
    ulysses = ds_config(plan_of(replace(flat, cp=2, dp=4, cp_kind="all-to-all")))
    assert (ulysses["sequence_parallel_size"], ulysses["data_parallel_size"]) == (2, 4)
    experts = ds_config(plan_of(replace(flat, ep=4), EXPERTS))
    assert experts["expert_parallel"] == {"enabled": True, "autoep_size": 4}
    assert ds_config(plan_of(replace(flat, optimizer="sgd")))["zero_allow_untested_optimizer"]


def test_9_torch_needs_losses_in_order_and_no_more_than_stages_and_replicas():
    one = export(plan_of(replace(PIPED, tp=1, pp=1, dp=8)), "torch-pipelining")
    assert readers.texts(one)["schedule.csv"].count("\n") == 1
    with pytest.raises(InfeasibleError, match="tp: 2: the program has stages and replicas alone"):
        export(plan_of(PIPED), "torch-pipelining")
    swapped = ["0F0,0F1,0I0,0W0,0I1,0W1", "1F1,1F0,1I0,1W0,1I1,1W1"]
    order = Schedule.parse("\n".join(swapped))
    plan = plan_of(replace(PIPED, tp=1, pp=2, dp=1, global_batch=2, zero=0), order=order)
    for to in ("torch-pipelining", "torchtitan"):
        with pytest.raises(InputError, match="1F1 before 1F0"):
            export(plan, to)


def test_10_experts():
    strategy = Strategy(tp=4, dp=2, ep=2, etp=1, global_batch=8, seq=2048)
    found = flags(export(plan_of(strategy, EXPERTS), "megatron"))
    assert (found["expert-tensor-parallel-size"], found["expert-model-parallel-size"]) == (["1"], ["2"])
    assert "moe-grouped-gemm" in found
    assert "expert-tensor-parallel-size" not in flags(export(plan_of(PIPED), "megatron"))
    spread_out = replace(strategy, tp=1, dp=8, ep=8, zero=2, zero_group=4, runtime="torchtitan")
    with pytest.raises(InfeasibleError, match="ep 8 x etp 1 must divide dp_shard 4 x cp 1 x tp 1 = 4"):
        export(plan_of(spread_out, EXPERTS), "torchtitan@0.3")
    split = replace(strategy, etp=2)
    for to, words in (
        ("torchtitan@0.3", "splits experts over 1 only"),
        ("mindformers@2.1-pynative", "no tensor parallel"),
    ):
        with pytest.raises(InfeasibleError, match=words):
            export(plan_of(split, EXPERTS), to)


def test_11_sharded_parameters_are_megatrons_own_fsdp():
    made = export(plan_of(replace(PIPED, pp=1, dp=8, zero=3)), "megatron")
    found = flags(made)
    assert found["data-parallel-sharding-strategy"] == ["optim_grads_params"]
    assert "use-torch-fsdp2" not in found
    assert found["ckpt-format"] == ["fsdp_dtensor"]
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in readers.texts(made)["train.env"]
    assert "CUDA_DEVICE_MAX_CONNECTIONS:-1" in readers.texts(export(plan_of(PIPED), "megatron"))["train.env"]


def test_everything_is_told_at_once():
    changes = {"zero": 2, "lora": Lora(rank=8), "dtype": "fp8", "recompute": Recompute(modules=("ops",))}
    strategy = replace(PIPED, **changes, runtime="torchtitan")
    with pytest.raises(InfeasibleError) as caught:
        export(plan_of(strategy), "deepspeed")
    text = str(caught.value)
    assert caught.value.exit_code == 1
    for words in ("strategy.lora: adapters", "strategy.zero: zero 2 with pp 4", "it would lose", "fp8 is not known"):
        assert words in text
    assert "ops cannot be recomputed apart" in text


def test_a_plan_that_is_wrong_is_bad_input():
    with pytest.raises(InputError, match="does not divide"):
        export(plan_of(replace(PIPED, tp=3)), "megatron")


def test_rhythms_of_experts():
    every = replace(EXPERTS, layers=6, moe=replace(EXPERTS.moe, first_dense=0, every=2))
    assert rhythm(EXPERTS) == "([0]*1+[1]*15)"
    assert rhythm(every) == "([0]*1+[1]*1+[0]*1+[1]*1+[0]*1+[1]*1)"
    assert isinstance(every.moe, Moe)


def test_what_flags_cannot_say_of_a_model():
    model = replace(DENSE, activation="geglu", windows=(4096, 0), norms_per_layer=4, head_bias=True)
    made = export(plan_of(PIPED, model), "megatron")
    assert {fault.path for fault in made.losses} == {"model.activation", "model.norms_per_layer", "model.head_bias"}
    assert "quick-geglu" in flags(made)
    assert (flags(made)["window-size"], flags(made)["window-attn-skip-freq"]) == (["4095,0"], ["2"])


def test_10_mindformers_trains_no_parts_of_sequences():
    """Its trainer stops at seq_split_num with the models that the other settings are for."""
    strategy = replace(PIPED, schedule="seq-1f1b", zero=1, runtime="mindformers")
    made = export(plan_of(strategy), "mindformers")
    assert "seq_split_num" not in readers.texts(made)["mindformers.yaml"]
    assert any(fault.path == "strategy.schedule" for fault in made.losses)
