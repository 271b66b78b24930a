"""What a notebook shows: well-formed, self-contained, escaped, and the same numbers."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise
from shardwise.errors import InputError
from shardwise.plan.file import plan_from, plan_table
from shardwise.plan.plan import Plan
from shardwise.plan.predict import plan_of
from shardwise.units import show_bytes, show_seconds

MODEL, CLUSTER = shardwise.load_model("llama-3-8b"), shardwise.load_cluster("16xh100")
STRATEGY = shardwise.Strategy.parse("tp2 pp4 dp2 mbs1 gbs64 seq4096 recompute=full:2")
JUNK = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text("abc<&\x00", max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
WAYS = [
    ("iteration_seconds",), ("bound",), ("gap",), ("fits",), ("stages",), ("stages", 0), ("stages", 0, "forward"),
    ("memory",), ("memory", 1, "peak"), ("memory", 1, "peak", "parts"), ("memory", 1, "total"), ("time",), ("search",),
]  # fmt: skip


def parsed(html):
    """The tree: HTML of ours is XML as well."""
    assert "<script" not in html
    assert "http" not in html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    return ET.fromstring(html.replace("<br>", "<br/>"))  # noqa: S314 - our own text


@pytest.fixture(scope="module")
def found():
    return shardwise.estimate(MODEL, CLUSTER, STRATEGY)


def test_an_estimate_shows_its_numbers_and_ranks(found):
    html = found._repr_html_()
    texts = list(parsed(html).itertext())
    low, high = map(show_seconds, found.iteration_seconds_interval)
    assert f"{show_seconds(found.iteration_seconds)} ({low} to {high})" in texts
    assert all(f"rank {rank}" in texts for rank in range(4))
    assert all(show_bytes(rank.total) in texts for rank in found.memory)
    assert len(html) < 20_000
    assert plan_of(found)._repr_html_() == html


def test_bars_are_as_long_as_their_numbers(found):
    tree = parsed(found._repr_html_())
    bars = [node for node in tree.iter() if node.tag.endswith("rect") and len(node)]
    memory = sum(float(bar.get("width")) for bar in bars if float(bar.get("x")) > 380)
    limit = CLUSTER.gpu.memory
    assert memory / 270 == pytest.approx(sum(rank.total for rank in found.memory) / limit, rel=0.01)


def test_a_search_shows_its_proof_and_rivals():
    answer = shardwise.plan("llama-3-8b", "8xh100", global_batch=32, seq=4096, only="tp<=2 pp<=2", gap=0.05)
    texts = " ".join(parsed(answer._repr_html_()).itertext())
    assert "no strategy of the space takes less than" in texts
    assert str(answer.top[1].strategy) in texts
    nothing = shardwise.plan("llama-3-70b", "1xh100", global_batch=1, seq=4096)
    assert "fits llama-3-70b on 1xh100" in nothing._repr_html_()


def test_names_are_text(found):
    evil = '<script>alert("x")</script>&\x00'
    html = replace(found, model=replace(MODEL, name=evil), cluster=replace(CLUSTER, name=evil))._repr_html_()
    assert "&lt;script&gt;" in html
    parsed(html)


def test_a_large_pipeline_stays_small(found):
    large = replace(found, stages=found.stages * 200, memory=found.memory * 200)
    assert len(large._repr_html_()) < 80_000


def test_a_plan_without_predictions_shows_its_inputs():
    html = Plan(model=MODEL, cluster=CLUSTER, strategy=STRATEGY)._repr_html_()
    assert str(STRATEGY) in "".join(parsed(html).itertext())


@given(data=st.data())
def test_whatever_a_plan_file_says_of_itself_is_refused_or_shown(found, data):
    """Files are anybody's: what is read is typed, so that nothing after the reader meets junk."""
    table = plan_table(plan_of(found))
    way = data.draw(st.sampled_from(sorted(WAYS)))
    inner = table["predictions"]
    for step in way[:-1]:
        inner = inner[step]
    inner[way[-1]] = data.draw(JUNK)
    with suppress(InputError):  # refused with a sentence
        parsed(plan_from(json.loads(json.dumps(table)), "plan.json")._repr_html_())
