"""Aceso's own JSON of its three families, both ways; and what an out-of-memory run teaches the next search."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import shardwise
from shardwise import api
from shardwise.frameworks.aceso.ask import corrected
from shardwise.frameworks.aceso.plan_file import from_aceso, lacks, to_aceso
from shardwise.frameworks.aceso.shapes import known_layers, layers_of, missing_keys, shape_of
from shardwise.frameworks.aceso.write_profile import write_profile
from shardwise.per_op.chain import chain_of
from shardwise.per_op.start import balanced

from .conftest import question, random_profile

LAYER = ("1st-layernorm", "attention-qkv", "post-MLP-dropout")
T5_OPS = ("encoder-embedding", *(f"enc-{name}" for name in LAYER), "enc-final-layernorm", "decoder-embedding",
          "dec-1st-layernorm", "dec-attention-qkv-1", "dec-post-MLP-dropout", "t5-post-process")  # fmt: skip
PARTS = ("conv1", "bn1", "conv2", "bn2", "conv3", "bn3", "downsample", "relu")
BLOCKS = ((0, 0), (1, 0), (1, 1))
RESNET_OPS = ("conv1", "bn1", "relu1", "maxpool", *(f"block-{group}-{block}-{part}" for group, block in BLOCKS
              for part in PARTS), "avgpool", "fc")  # fmt: skip
ROOM = 4000 * 2.0**20
STAGES = ("num_stages", "num_gpus", "checkpoint_activations", "resharding_stages", "num_ops_in_each_stage",
          "model_parallel_size_of_each_op", "data_parallel_size_of_each_op", "recompute_ops",
          "algo_of_each_op")  # fmt: skip
"""What the runtime reads of every plan (its load of the configuration, runtime/megatron/arguments.py)."""


def family(name, ops, **tags):
    return replace(random_profile(5, ops=ops), name=name, layer_ops=None, tags=tags, whole=ops is RESNET_OPS)


FAMILIES: dict[str, Any] = {
    "t5": (family("t5_3B", T5_OPS),
           {"num_layers": 24, "encoder_seq_length": 2048, "decoder_seq_length": 512, "max_position_embeddings": 2048,
            "num_attention_heads": 32, "kv_channels": 128, "hidden_size": 1024, "ffn_hidden_size": 16384}),
    "resnet": (family("resnet_500M", RESNET_OPS), {"num_layers": [1, 2], "in_channels": 224, "width_factor": 2}),
    "gpt": (replace(random_profile(5), name="gpt_1_3B"),
            {"num_layers": 24, "seq_length": 2048, "max_position_embeddings": 2048, "num_attention_heads": 32,
             "hidden_size": 2048}),
}  # fmt: skip


def asked(profile, **more):
    return replace(question(profile, **more), chain=chain_of(profile, known_layers(profile), profile.layer_ops))


@pytest.mark.parametrize("name", FAMILIES)
def test_aceso_reads_all_that_it_asks_of_a_family(name):
    profile, wanted = FAMILIES[name]
    here = asked(profile)
    plan = balanced(here, 2)
    told = to_aceso(here, plan)
    assert told["model_name"] == name
    assert {key: told[key] for key in wanted} == wanted
    assert not {*STAGES, "model_size", "global_batch_size", "micro_batch_size"} - told.keys()
    assert from_aceso(json.loads(json.dumps(told)), here) == plan
    own = {key: value for key, value in told.items() if key != "shardwise"}  # as Aceso's search writes it
    assert from_aceso(own, here) == plan
    assert not missing_keys(profile)


def test_layers_of_a_plan_are_those_of_the_question():
    profile, _ = FAMILIES["resnet"]
    here = asked(profile)
    told = to_aceso(here, balanced(here, 2)) | {"num_layers": [3, 4, 6, 3]}
    with pytest.raises(shardwise.InputError, match=r"num_layers: is \[3, 4, 6, 3\], resnet_500M is planned with"):
        from_aceso(told, here)
    assert layers_of(profile, here.chain) == [1, 2]


def test_shapes_of_other_sizes_are_asked_for_by_name_and_taken_from_tags():
    strange = family("t5_tiny", T5_OPS)
    assert shape_of(strange) == {}
    assert known_layers(strange) == 0
    (said,) = lacks(question(strange))
    assert "Aceso's runtime reads encoder_seq_length, decoder_seq_length" in said
    assert 'kv_channels = "..."' in said
    tagged = family("resnet_tiny", RESNET_OPS, in_channels="16", width_factor="2", layers="1")
    assert shape_of(tagged) == {"in_channels": 16, "width_factor": 2}
    assert not [*lacks(question(tagged))]


def test_layers_come_from_the_option_the_file_a_tag_or_the_name(tmp_path):
    """In this order; without any of them they are asked for."""
    file = tmp_path / "start.json"
    file.write_text(json.dumps({"num_layers": 3}))

    def layers(name, tags=None, **given):
        write_profile(family(name, T5_OPS, **(tags or {})), tmp_path / name)
        open_ = ("model", "cluster", "seq", "profile", "layer_ops", "runs_with", "stages", "gpus_per_node",
                 "microbatches", "zero", "p2p_overlap", "layers")  # fmt: skip
        more = dict.fromkeys(open_) | {
                 "global_batch": 8, "runtime": "megatron", "profiles": tmp_path / name, "gpus": 2,
                 "memory": "4000MiB", "most_tp": 0, "compatible": True, "compatible_space": False,
                 "schedule": "1f1b"}  # fmt: skip
        return api.operator_question(**(more | given)).chain.layers

    assert layers("t5_770M") == 24
    assert layers("t5_770M", start=file) == 3
    assert layers("t5_770M", start=file, layers=2) == 2
    assert layers("t5_mine", tags={"layers": "4"}) == 4
    assert layers("t5_own", start=file) == 3
    with pytest.raises(shardwise.InputError, match="--layers: is missing; how many layers has t5_none"):
        layers("t5_none")


@pytest.mark.parametrize(("held", "more"), [(0.97, 0.02), (0.97, 0.05), (1.3, 0.4)])
def test_a_stage_that_ran_out_does_not_come_back_unchanged(tmp_path, held, more):
    """The example of seed 000: 58.81 GiB were held and 2.13 GiB asked for, on a GPU of 60.97 GiB."""
    here = question(random_profile(3), layers=3, gpus=4, node=4, memory=ROOM)
    first = api.plan_operators(here, method="exact")
    file = tmp_path / "start.json"
    file.write_text(json.dumps(to_aceso(here, first.plan)))
    worst = max(range(len(first.cost.memory)), key=first.cost.memory.__getitem__)
    peak = first.cost.memory[worst]
    again = corrected(here, str(file), f"stage{worst}={held * peak:.0f}B+{more * peak:.0f}B")
    assert api.plan_operators(again, method="exact").plan.stages[worst] != first.plan.stages[worst]
    assert again.memory_factor >= max(1.0, held + more) - 1e-6
    assert f"stage {worst}" in " ".join(again.notes)


def test_a_peak_of_a_run_that_went_through_corrects_both_ways(tmp_path):
    here = question(random_profile(3), layers=3, gpus=4, node=4)
    plan = balanced(here, 2)
    file = tmp_path / "start.json"
    file.write_text(json.dumps(to_aceso(here, plan)))
    peak = here.pricing.evaluate(here, plan).memory[0]
    assert corrected(here, str(file), f"stage0={peak / 2:.3f}B").memory_factor == pytest.approx(0.5)
    assert corrected(here, str(file), f"stage0={peak / 2:.3f}B").memory == here.memory
    with pytest.raises(shardwise.InputError, match="holds more than nothing"):
        corrected(here, str(file), "stage0=0B")
