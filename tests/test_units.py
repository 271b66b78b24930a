from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise import units
from shardwise.errors import InputError


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_bytes, "80GB", 80e9),
        (units.parse_bytes, "80GiB", 80 * 2**30),
        (units.parse_bytes, "8b", 1),
        (units.parse_bytes, 5, 5.0),
        (units.parse_rate, "400Gb/s", 50e9),
        (units.parse_rate, "900GB/s", 900e9),
        (units.parse_rate, "400Gbps", 50e9),
        (units.parse_flops, "989TFLOPS", 989e12),
        (units.parse_flops, "1.5PFLOP/s", 1.5e15),
        (units.parse_seconds, "5us", 5e-6),
        (units.parse_seconds, "2 min", 120),
        (units.parse_count, "15T", 15e12),
        (units.parse_count, "2B", 2e9),
    ],
)
def test_text_becomes_a_number(parse, text, value):
    assert parse(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_bytes, "80"),
        (units.parse_bytes, "80GB/s"),
        (units.parse_bytes, True),
        (units.parse_rate, "900GB"),
        (units.parse_flops, "989T"),
        (units.parse_seconds, "5 parsecs"),
        (units.parse_count, "many"),
        (units.parse_bytes, "-5GB"),
    ],
)
def test_the_wrong_unit_is_refused_with_an_example(parse, text):
    with pytest.raises(InputError, match="write for example"):
        parse(text)


@given(st.floats(1e3, 1e15))
def test_bytes_are_shown_and_read_back(value):
    assert units.parse_bytes(units.show_bytes(value)) == pytest.approx(value, rel=0.006)


@given(st.floats(1e-6, 1e5))
def test_seconds_are_shown_and_read_back(value):
    assert units.parse_seconds(units.show_seconds(value)) == pytest.approx(value, rel=1e-3)


def test_what_people_read():
    assert units.show_bytes(80 * 2**30) == "80.00 GiB"
    assert units.show_seconds(0.0123) == "12.3 ms"
    assert units.show_seconds(0) == "0 s"
    assert units.show_count(70.6e9) == "70.6B"
    assert units.show_rate(450e9) == "450 GB/s"
    assert units.show_flops(989.4e12) == "989.4 TFLOPS"
    assert units.show_percent(0.1234) == "12.3%"


def test_seconds_take_the_unit_that_rounding_reaches():
    assert units.show_seconds(0.99997e-3) == "1 ms"
    assert units.show_seconds(0.9994e-3) == "999.4 us"
