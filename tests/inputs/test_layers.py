from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import InputError
from shardwise.frameworks.load import load_model
from shardwise.inputs.layers import chunk_rank, is_uneven, own_cut, rank_chunks, spread, stage_layers, with_layers
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy


@pytest.mark.parametrize(
    ("layers", "strategy", "expected"),
    [
        (50, Strategy(pp=4, first_layers=9, last_layers=11), (9, 15, 15, 11)),  # seed 003
        (32, Strategy(), (32,)),
        (32, Strategy(pp=4), (8, 8, 8, 8)),
        (32, Strategy(pp=3), (11, 11, 10)),
        (30, Strategy(pp=4), (7, 8, 8, 7)),
        (30, Strategy(pp=4, count_embedding=True, count_head=True), (7, 8, 8, 7)),
        (31, Strategy(pp=4, count_head=True), (8, 8, 8, 7)),
        (126, Strategy(pp=16, vpp=8, count_embedding=True, count_head=True), (0, *[1] * 126, 0)),
        (24, Strategy(pp=4, vpp=2, first_layers=4, last_layers=4), (2, 4, 4, 2, 2, 4, 4, 2)),
        (24, Strategy(pp=4, vpp=2, placement="v", first_layers=4), (2, 4, 4, 3, 3, 3, 3, 2)),
        (20, Strategy(pp=2, first_layers=8), (8, 12)),
        (9, Strategy(pp=3, layers=(4, 3, 2)), (4, 3, 2)),
    ],
)
def test_spread(layers, strategy, expected):
    assert spread(layers, strategy) == expected


@pytest.mark.parametrize(
    ("layers", "strategy", "path", "said"),
    [
        (32, Strategy(pp=2, first_layers=40), "first_layers", "has 32; give at most 31"),
        (32, Strategy(first_layers=8), "first_layers", "pp is 1"),
        (4, Strategy(pp=8), "pp", "make pp x vpp at most 4"),
        (32, Strategy(pp=8, vpp=8), "vpp", "64 chunks"),
        (32, Strategy(pp=2, layers=(16,)), "layers", "the list has 1 number, pp 2 x vpp 1 needs 2"),
        (32, Strategy(pp=2, layers=(16, 15)), "layers", "adds up to 31, the model has 32 layers; add 1"),
        (32, Strategy(pp=3, layers=(16, 0, 16)), "layers", "chunk 1 has no layers"),
        (32, Strategy(pp=2, layers=(16, 16), first_layers=3), "first_layers", "leave one of them out"),
        (32, Strategy(pp=2, first_layers=8, last_layers=8), "first_layers", "is 16, the model has 32"),
        (32, Strategy(pp=4, first_layers=30, last_layers=1), "first_layers", "leaves 1 of 32"),
        (32, Strategy(pp=4, vpp=2, first_layers=7), "first_layers", "use 6 or 8"),
        (32, Strategy(pp=4, first_layers=7, count_embedding=True), "count_embedding", "cannot go with first_layers 7"),
    ],
)
def test_what_cannot_be_is_said_with_numbers(layers, strategy, path, said):
    with pytest.raises(InputError) as caught:
        spread(layers, strategy)
    assert f"strategy.{path}" in {fault.path for fault in caught.value.faults}
    assert said in str(caught.value)


pipelines = st.tuples(st.integers(1, 16), st.integers(1, 4), st.sampled_from(("loop", "v")))


@given(st.integers(1, 130), pipelines, st.booleans(), st.booleans())
def test_layers_are_never_lost_and_even_to_one(layers, pipeline, embedding, head):
    pp, vpp, placement = pipeline
    strategy = Strategy(pp=pp, vpp=vpp, placement=placement, count_embedding=embedding, count_head=head)
    try:
        counts = spread(layers, strategy)
    except InputError:
        assert layers < pp * vpp
        return
    counted = list(counts)
    counted[0] += embedding
    counted[-1] += head
    assert sum(counts) == layers
    assert len(counts) == pp * vpp
    assert max(counted) - min(counted) <= 1
    assert is_uneven(layers, strategy) == (len(set(counted)) > 1)
    assert sum(stage_layers(layers, strategy)) == layers
    assert spread(layers, with_layers(layers, strategy)) == counts


@given(pipelines)
def test_every_chunk_is_on_one_rank(pipeline):
    pp, vpp, placement = pipeline
    held = [chunk for rank in range(pp) for chunk in rank_chunks(rank, pp, vpp, placement)]
    assert sorted(held) == list(range(pp * vpp))
    for rank in range(pp):
        assert {chunk_rank(chunk, pp, vpp, placement) for chunk in rank_chunks(rank, pp, vpp, placement)} == {rank}


def test_back_and_forth():
    assert [chunk_rank(chunk, 4, 2, "v") for chunk in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert [chunk_rank(chunk, 4, 2, "loop") for chunk in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    with pytest.raises(InputError, match="there is no chunk 8"):
        chunk_rank(8, 4, 2)


def test_a_runtime_that_cuts_by_work_gives_the_last_stage_fewer_layers():
    model, runtime = load_model("llama-3-8b"), load_runtime("nanotron")
    assert own_cut(model, runtime, 4) == (9, 9, 8, 6)
    assert sum(own_cut(model, runtime, 2)) == model.layers
    assert own_cut(replace(model, layers=6), runtime, 6) == ()  # a stage would stay empty
    assert own_cut(model, load_runtime("megatron"), 4) == ()


def test_a_runtime_that_cuts_by_parameters_counts_both_ends():
    counts = own_cut(load_model("llama-3-8b"), load_runtime("aleph"), 4)
    assert counts == (7, 9, 9, 7)
