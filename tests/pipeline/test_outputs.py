"""The drawings of a timeline: small, whole, and made of nothing else."""

import json
import xml.etree.ElementTree as ET
from math import floor, log10

import pytest

from shardwise.pipeline.costs import costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.generate import generate
from shardwise.report.svg import timeline_svg
from shardwise.report.text import draw
from shardwise.report.trace import chrome_trace


@pytest.fixture
def timeline():
    given_costs = costs(pp=2, vpp=2, f=10, i=11, w=9, hop=1, memory_limit=4)
    return simulate(generate("zb-v", pp=2, microbatches=4), given_costs)


def test_text_draws_a_line_a_rank(timeline):
    lines = draw(timeline, 100).splitlines()
    assert len(lines) == 2
    assert all(len(line) == 100 for line in lines)
    assert "0F0" in lines[0]
    assert "·" in lines[1]


def test_large_pipelines_are_not_drawn():
    big = simulate(generate("1f1b", pp=128, microbatches=4), costs(pp=128, f=1, i=1, w=1))
    assert draw(big) == ""


def test_svg_is_whole_and_shows_the_limit(timeline):
    root = ET.fromstring(timeline_svg(timeline, "a <b> & c"))  # noqa: S314 - our own text
    rectangles = [node for node in root.iter() if node.tag.endswith("rect")]
    assert len(rectangles) >= timeline.schedule.actions
    assert any("stroke-dasharray" in node.attrib for node in root.iter())


def test_a_time_axis_with_round_numbers(timeline):
    root = ET.fromstring(timeline_svg(timeline))  # noqa: S314 - our own text
    told = [node.text for node in root.iter() if node.attrib.get("text-anchor") == "middle"]
    step = float(told[1])
    assert told == [f"{k * step:g}" for k in range(len(told))]
    assert (len(told) - 1) * step <= timeline.makespan < len(told) * step
    assert step / 10 ** floor(log10(step)) in {1, 2, 5}


def test_trace_has_every_action_and_the_memory(timeline):
    events = json.loads(chrome_trace(timeline, unit=1.0))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == timeline.schedule.actions
    assert max(e["args"]["held"] for e in events if e["ph"] == "C") == max(timeline.peak)
