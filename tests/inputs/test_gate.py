"""The gate and its one table: every number of our types has a row, and what is outside is refused with its cure."""

from __future__ import annotations

import dataclasses
import math
import typing

import pytest

from shardwise.check.values import value_faults
from shardwise.errors import InputError
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.calibrations import calibration_names, load_calibration
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.gate import Scalar, held, shown, switch, typed, word
from shardwise.inputs.load import gpu_names, load_runtime, model_names, runtime_names
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.scalars import SCALARS, row_of
from shardwise.inputs.strategy import Strategy

WHOLE = Scalar(kind="whole", least=1, most=100)


def _inside(hint):
    return {hint} | {part for inner in typing.get_args(hint) for part in _inside(inner)}


def _types(kind):
    yield kind
    for hint in typing.get_type_hints(kind).values():
        for part in _inside(hint):
            if dataclasses.is_dataclass(part) and part is not kind:  # towers are models
                yield from _types(part)


@pytest.mark.parametrize("kind", [Model, Cluster, Strategy, Runtime, Calibration])
def test_every_number_of_our_types_has_a_row(kind):
    for one in _types(kind):
        for name, hint in typing.get_type_hints(one).items():
            if {int, float} & _inside(hint):
                assert row_of(one, name) is not None, f"{one.__name__}.{name} is not in the table"


def test_what_is_shipped_is_inside():
    for name in model_names():
        assert not value_faults(load_model(name), name)
    for name in gpu_names():
        assert not value_faults(load_cluster(f"1024x{name}"), name)
    for name in runtime_names():
        assert not value_faults(load_runtime(name), name)
    rows = {name: row_of(Calibration, name) for name in typing.get_type_hints(Calibration)}
    for one in map(load_calibration, calibration_names()):
        for name, row in rows.items():
            if row and isinstance(value := getattr(one, name), int | float):
                assert row.takes(value), f"{one.name}.{name}"


@pytest.mark.parametrize(
    "text", ["²", "٣", "1.0", "1e2", "0x10", "1_000", "", "nan", "True", "9" * 400, "-", "1 2", "∞"]
)
def test_a_whole_number_is_ascii_digits(text):
    with pytest.raises(InputError):
        typed(text, WHOLE, "x")


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400", "²", "1,5", "0x1p3", "9" * 400, "", "infinity"])
def test_a_number_is_finite_and_ascii(text):
    with pytest.raises(InputError):
        typed(text, SCALARS["pipeline.time"], "x")


@pytest.mark.parametrize("value", [True, "8", 2.5, None, [], {}, math.nan, math.inf, 10**400, -1, 0, 101])
def test_a_value_of_a_file_is_of_its_kind_and_in_its_range(value):
    with pytest.raises(InputError):
        held(value, WHOLE, "x")
    assert (held(1, WHOLE, "x"), held(100, WHOLE, "x"), typed(" +8 ", WHOLE, "x")) == (1, 100, 8)


@pytest.mark.parametrize(
    ("row", "value", "offer"),
    [
        ("Gpu.flops", 989, '"989 TFLOP/s"'),
        ("Level.latency", 3, '"3 us"'),
        ("Gpu.memory", 80, '"80 GB"'),
        ("Gpu.bandwidth", 3350, '"3350 GB/s"'),
        ("Level.bandwidth", 50, '"50 GB/s"'),
        ("Overheads.launch", 4, '"4 us"'),
        ("Strategy.global_batch", 4_194_304 * 16, "samples, not tokens"),
        ("Strategy.straggler", 20, "1.05"),
    ],
)
def test_outside_the_plausible_band_the_unit_is_offered(row, value, offer):
    with pytest.raises(InputError, match=r"means|meant") as caught:
        held(value, SCALARS[row], "x")
    assert offer in str(caught.value)


def test_switches_and_words():
    for value in ("false", "true", 0, 1, None, []):
        with pytest.raises(InputError, match="true or false"):
            switch(value, "x")
    with pytest.raises(InputError, match="did you mean ring"):
        word("rign", ["ring", "all-gather"], "x")
    with pytest.raises(InputError, match="one of"):
        word([], ["ring"], "x")


def test_no_number_is_too_long_to_be_told():
    assert len(shown(10**5000)) < 80
    assert (shown(5), shown(10**7), shown(989.0), shown(2.5e-6)) == ("5", "10,000,000", "989", "2.5e-06")


@pytest.mark.parametrize(("row", "text"), [("Gpu.memory", "80 MB"), ("Gpu.flops", "989 GFLOPS")])
def test_no_other_unit_is_offered_for_a_number_that_has_one(row, text):
    with pytest.raises(InputError, match="check its unit"):
        typed(text, SCALARS[row], "x")


def test_too_many_digits_are_told_the_real_limit():
    with pytest.raises(InputError, match="20 digits; it must be at most 10,000,000"):
        typed("9" * 20, SCALARS["Cluster.gpus"], "x")


@pytest.mark.parametrize(
    ("text", "offer"), [("80", "80 GB"), ("40000", "40000 MB"), ("81559", "81559 MB"), ("0.08", "0.08 TB")]
)
def test_the_unit_that_is_offered_makes_a_gpu(text, offer):
    """40000 was offered as 40000 GB."""
    with pytest.raises(InputError, match=f'write "{offer}" if that is meant'):
        typed(text, SCALARS["Gpu.memory"], "--memory")
