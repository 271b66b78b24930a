"""Traced models against their training steps on an H200, and what single operators of torch are priced at."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shardwise.frameworks.torch.trace_ops import APART, INDEXED, MIXED, Seen, cost_of, traffic

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def seen(*shape, size=2, stride=None):
    steps, step = [], 1
    for one in reversed(shape):
        steps.insert(0, step)
        step *= one
    return Seen(shape, stride or tuple(steps), size, stride is None)


WIDE = seen(8, 1024)
PLACES = 8 * 1024


def test_operands_that_lie_alike_stream():
    assert traffic("mul", [WIDE, WIDE], [WIDE]) == 6 * PLACES
    turned = seen(8, 1024, stride=(1, 8))
    assert traffic("mul", [turned, turned], [turned]) == 6 * PLACES


def test_places_that_are_worked_out_cost_elements_whatever_their_size():
    for size in (2, 4):
        row, whole = seen(1024, size=size), seen(8, 1024, size=size)
        assert traffic("mul", [whole, row], [whole]) == INDEXED * PLACES


def test_neighbours_that_lie_apart_cost_more():
    turned = seen(8, 1024, stride=(1, 8))
    assert traffic("clone", [turned], [WIDE]) == APART * PLACES
    spread = seen(8, 1024, stride=(1, 0))  # one number a row, spread out: neighbours are the same
    assert traffic("clone", [spread], [WIDE]) == INDEXED * PLACES


def test_several_formats_cost_a_conversion():
    wide = seen(8, 1024, size=4)
    assert traffic("mul", [WIDE, wide], [wide]) == MIXED * PLACES
    assert traffic("_to_copy", [wide], [WIDE]) == 6 * PLACES
    assert traffic("_to_copy", [WIDE], [wide]) == 12 * PLACES


def test_sums_over_short_rows_cost_more_than_over_long_ones():
    long, short = traffic("sum", [seen(64, 4096)], [seen(64, 1)]), traffic("sum", [seen(4096, 64)], [seen(4096, 1)])
    assert short > 2 * long


def test_products_of_32_bit_numbers_and_masked_attention_are_told():
    four = seen(64, 64, size=4)
    assert cost_of("mm", [four, four], [four]).single
    assert not cost_of("mm", [seen(64, 64), seen(64, 64)], [seen(64, 64)]).single
    heads = seen(2, 4, 128, 64)
    assert not cost_of("_scaled_dot_product_flash_attention", [heads] * 3, [heads]).masked
    assert cost_of("_scaled_dot_product_cudnn_attention", [heads] * 4, [heads]).masked


def test_a_convolution_without_steps_is_a_product_and_others_are_turned_beside_it():
    picture, weight, made = seen(2, 64, 56, 56), seen(256, 64, 1, 1), seen(2, 256, 56, 56)
    plain = cost_of("convolution", [picture, weight], [made], unit=True)
    stepped = cost_of("convolution", [picture, weight], [made], unit=False)
    assert plain.shape == stepped.shape == (2 * 56 * 56, 256, 64)
    assert stepped.bytes > 5 * plain.bytes


@pytest.mark.parametrize("name", ["gemma3_text", "lfm2", "bert", "deepseek_v32", "resnet50", "unet"])
@pytest.mark.filterwarnings("ignore")
def test_traced_steps_are_those_of_an_h200(name):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    sys.path.append(str(BENCHMARKS))
    try:
        import kinds
    finally:
        sys.path.remove(str(BENCHMARKS))
    for row in (row for row in kinds.ROWS if row["id"] == name):
        found = kinds.held(row)
        assert found.seconds == pytest.approx(found.step, rel=0.12)
        assert found.bytes == pytest.approx(found.peak, rel=0.06)


def test_models_of_transformers_make_no_mask_that_a_run_does_without():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import shardwise

    found = shardwise.trace_module(
        f"{Path(__file__).parent / 'traced_families.py'}:llama", "input_ids=1x256:int64,labels=1x256:int64"
    ).traced
    attention = [op for kind in found.kinds for op in kind.ops if op.kind == "attention"]
    assert attention
    assert all(not op.masked and op.shape[5][0] == 0.5 for op in attention)
