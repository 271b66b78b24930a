"""Activations in host memory: lanes by hand, memory that holds whatever the times are, orders that fit so."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise
from shardwise.cli.main import run
from shardwise.errors import InfeasibleError, InputError
from shardwise.pipeline.action import Offload, Schedule, placed
from shardwise.pipeline.bubbles import PARTS
from shardwise.pipeline.certificate import check, hash_of
from shardwise.pipeline.costs import costs, limit_of
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.generate import SHAPES, generate
from shardwise.pipeline.offload import offloaded
from shardwise.pipeline.offload_search import weights_early
from shardwise.pipeline.optimise import optimise
from shardwise.pipeline.timeline import place_bytes

TIMES = {"f": 10, "i": 11, "w": 9, "hop": 1}
ALONE = "0F0,0F1,0F2,0B0,0B1,0B2\n"


def moved(*moves):
    return replace(Schedule.parse(ALONE), offloads=(tuple(Offload(*move) for move in moves),))


def test_one_rank_by_hand():
    """0F0 leaves from 10 to 14, under way while 0F1 runs; 0F2 runs without it; it is back before 0B0 may begin."""
    made = costs(pp=1, f=10, i=10, w=10, offload=4, reload=6, memory_limit=2)
    line = simulate(moved((0, 2, 3, 3)), made)
    assert line.host[0].tolist() == [[10, 14, 30, 36]]
    assert line.start[0].tolist() == [0, 10, 20, 36, 56, 76]
    assert line.cause[0].tolist() == [0, 1, 1, 3, 1, 1]
    assert line.peak == (3,)  # 0F1, 0F2 and 0F0 on its way back
    assert line.levels(0).tolist() == [1, 2, 2, 3, 2, 1]
    assert line.memory(0)[0].tolist() == [0, 0, 10, 14, 20, 30, 56, 76, 96]
    assert line.memory(0)[1].tolist() == [0, 1, 2, 1, 2, 3, 2, 1, 0]
    assert line.bubbles()["memory-limit"] == pytest.approx(6 / 96)
    assert [step.waited_for for step in line.critical_path()] == ["start", "rank", "rank", "host", "rank", "rank"]


def test_lanes_take_one_at_a_time_and_actions_wait_for_them():
    made = costs(pp=1, f=10, i=10, w=10, offload=15, memory_limit=2)
    line = simulate(moved((0, 2, 3, 3), (1, 3, 4, 4)), made)
    # 0F0 leaves 10-25, 0F1 25-40; 0F2 waits for the first, 0B0 for the second and for its own way back, 40-55
    assert line.host[0].tolist() == [[10, 25, 40, 55], [25, 40, 75, 90]]
    assert line.start[0].tolist() == [0, 10, 25, 55, 90, 110]
    assert max(line.peak) <= float(place_bytes(line.schedule, 0, made).max()) == 2


@pytest.mark.parametrize(
    "moves", [[(0, 0, 3, 3)], [(0, 2, 1, 3)], [(0, 2, 3, 4)], [(3, 4, 4, 5)], [(0, 2, 3, 3)] * 2, [(0, 2, 3, 9)]]
)
def test_moves_that_make_no_sense_are_refused(moves):
    with pytest.raises(InputError, match="is not from a forward to its own backward, once"):
        simulate(moved(*moves), costs(pp=1, f=1, i=1, w=1, offload=1))


def test_the_order_says_what_is_held_whatever_the_times_are():
    """The same offloads under other times: slower lanes make others wait, and never hold more."""
    made = replace(costs(pp=4, **TIMES, offload=5), memory_limit=(2.0,) * 4)
    line = offloaded(generate("1f1b", pp=4, microbatches=8), made)
    assert line is not None
    assert line.makespan == 346  # 1F1B's own: nothing waits
    for seconds in (0, 1, 20, 300):
        other = simulate(line.schedule, replace(made, offload=(float(seconds),) * 4))
        assert max(other.peak) <= 2
        assert find_fault(line.schedule, made) is None


@st.composite
def orders(draw):
    name = draw(st.sampled_from(["1f1b", "interleaved", "zb-v", "zb-h1", "gpipe", "v-half", "dualpipe-v"]))
    pp = draw(st.integers(2, 4))
    order = generate(name, pp=pp, microbatches=2 * pp + draw(st.integers(0, 3)) * (name != "interleaved"))
    n = order.chunks
    sizes = st.lists(st.integers(1, 12), min_size=n, max_size=n)
    made = costs(
        pp=pp, chunks=n, f=draw(sizes), i=draw(sizes), w=draw(sizes), hop=draw(st.integers(0, 3)),
        activation=draw(st.lists(st.integers(1, 3), min_size=n, max_size=n)), offload=draw(st.integers(0, 20)),
        reload=draw(st.sampled_from([(), 3])), free_at_input_grad=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )  # fmt: skip
    limit = limit_of(made, order.rank_of, draw(st.sampled_from([0.3, 0.5, 0.75, 1.0])))
    return order, replace(made, memory_limit=limit, contention=draw(st.booleans()))


@given(orders())
@settings(max_examples=80, deadline=None)
def test_what_is_offloaded_fits_and_keeps_the_order(drawn):
    order, made = drawn
    line = offloaded(order, made)
    if line is None:
        return
    assert all(np.array_equal(a, b) for a, b in zip(line.schedule.codes, order.codes, strict=True))
    assert find_fault(line.schedule, made) is None
    assert all(peak <= limit * (1 + 1e-9) for peak, limit in zip(line.peak, made.memory_limit, strict=True))
    assert line.makespan >= simulate(order, made).makespan * (1 - 1e-9)
    assert sum(line.bubbles().values()) == pytest.approx(line.bubble)
    assert set(line.bubbles()) == set(PARTS)
    for own, times in zip(line.schedule.offloads, line.host, strict=True):
        assert len(own) == len(times)
        assert (times[:, 1] <= times[:, 2] + 1e-9).all()
        for lane in (0, 2):  # one at a time on a lane
            ends = sorted(times[:, lane : lane + 2].tolist())
            assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(ends))


@given(st.integers(2, 4), st.integers(1, 2), st.sampled_from([0.3, 0.5, 0.75]), st.integers(1, 20))
@settings(max_examples=12, deadline=None)
def test_auto_is_never_slower_than_without_or_a_named_order_with(pp, vpp, times, seconds):
    placement = "v" if vpp == 2 else "loop"
    made = costs(pp=pp, vpp=vpp, **TIMES, offload=seconds)
    made = replace(made, memory_limit=limit_of(made, placed(pp, vpp, placement), times))
    shape = {"pp": pp, "vpp": vpp, "microbatches": 2 * pp, "placement": placement, "effort": 0.02}
    try:
        found = optimise(made, **shape)
    except InfeasibleError:
        return
    assert find_fault(found.schedule, made) is None
    assert found.bound.value <= found.value * (1 + 1e-9)
    with suppress(InfeasibleError):
        assert found.value <= optimise(replace(made, offload=()), **shape).value * (1 + 1e-9)
    for name in ("1f1b", "zb-h1", "zb-v", "dualpipe-v"):
        if SHAPES[name].vpp == vpp:
            line = offloaded(generate(name, pp=pp, microbatches=2 * pp), made)
            assert line is None or found.value <= line.makespan * (1 + 1e-9), name


def test_below_1p_it_is_faster_and_the_proof_holds():
    shape = {"pp": 8, "vpp": 2, "microbatches": 16, "costs": "10,11,9", "hop": 1, "memory_limit": "0.25p"}
    without = shardwise.schedule("auto", **shape, effort=0.05)
    found = shardwise.schedule("auto", **shape, offload=5, effort=0.05)
    assert found.value < 0.6 * without.value
    assert max(found.timeline.peak) <= 4
    assert not check(found.proof)
    assert "whatever goes to host memory" in found.bound.scope
    wrong = json.loads(json.dumps(found.proof))
    wrong["offloads"][0] = wrong["offloads"][0][1:]
    assert any("holds" in fault or "takes" in fault for fault in check(wrong))
    wrong = json.loads(json.dumps(found.proof))
    wrong["question"]["offload"] = [50.0] * 16
    wrong["hash"] = hash_of(wrong["question"])
    assert any("the order takes" in fault for fault in check(wrong))
    wrong = json.loads(json.dumps(found.proof))
    wrong["offloads"][0][0][3] += 1
    assert "offloads what is not a forward's" in check(wrong)[0]


def test_w_right_after_its_i_frees_what_late_ones_hold():
    order = generate("zb-h2", pp=8, microbatches=32)
    early = weights_early(order)
    assert find_fault(early) is None
    assert early.actions == order.actions
    made = replace(costs(pp=8, **TIMES, offload=5), memory_limit=(4.0,) * 8)
    assert offloaded(order, made) is None  # what its late W hold cannot leave
    assert offloaded(early, made) is not None


def test_the_verbs_tell_of_it(tmp_path, capsys):
    files = {name: str(tmp_path / f"a.{name}") for name in ("json", "csv", "svg", "html", "trace")}
    words = [word for name, path in files.items() for word in (f"--{name}", path)]
    asked = ["--pp", "4", "--microbatches", "8", "--costs", "10,11,9", "--hop", "1", "--offload", "5"]
    assert run(["schedule", "1f1b", *asked, "--memory-limit", "0.5p", *words]) == 0
    out = capsys.readouterr()
    assert "makespan       346" in out.out
    assert "activations go to host memory and back" in out.out
    assert "the CSV is PyTorch's, compute only" in out.err
    answer = json.loads((tmp_path / "a.json").read_text())
    assert answer["offloads"][0] > 0
    lanes = [
        event
        for event in json.loads((tmp_path / "a.trace").read_text())["traceEvents"]
        if event.get("cat") == "offload"
    ]
    assert len(lanes) == 2 * sum(answer["offloads"])
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.count("<title>to host ") == drawn.count("<title>back ") == sum(answer["offloads"])
    again = shardwise.simulate(files["json"])
    assert again.timeline.schedule.offloads
    assert again.timeline.makespan == answer["makespan"]
    anew = shardwise.simulate(files["csv"], "10,11,9", hop=1, offload=5, memory_limit="0.5p")
    assert anew.timeline.makespan == answer["makespan"]
    assert run(["simulate", files["csv"], "--costs", "10,11,9", "--hop", "1", "--offload", "5"]) == 0
    assert "offload changes nothing: there is no limit" in capsys.readouterr().err


def test_too_little_even_so_says_what_is_there(capsys):
    words = ["schedule", "auto", "--pp", "2", "--microbatches", "4", "--costs", "1,1,1", "--offload", "1"]
    assert run([*words, "--memory-limit", "0.5", "--effort", "0.1"]) == 1
    assert "rank 0 has room for 0.5 of them and one forward of the largest chunk leaves 1" in capsys.readouterr().err


def test_offload_beside_alternatives_or_a_plan_is_refused(tmp_path, capsys):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**TIMES, "offload": 3, "alternatives": [{"i": 21, "activation": 0.2}]}))
    assert run(["schedule", "auto", "--pp", "2", "--microbatches", "4", "--costs", str(path)]) == 2
    assert "stands beside alternatives" in capsys.readouterr().err
    found = shardwise.plan_of(shardwise.estimate("llama-3-8b", "8xh100", "pp4 gbs16 seq4096"))
    with pytest.raises(InputError, match="is not a plan's to say"):
        shardwise.schedule("auto", plan=found, offload=1.0, contention=True)


def test_a_time_limit_holds_with_host_memory():
    """With 0.01 s given, this took 1.3: every named order was tried after the time was up."""
    made = costs(pp=8, vpp=2, **TIMES, offload=9, memory_limit=5)
    answer = optimise(made, pp=8, vpp=2, microbatches=32, time_limit=0.01)
    assert answer.out_of_time
    assert answer.seconds < 0.6


@pytest.mark.parametrize("more", ["offload", "transfer"])
def test_an_interrupt_within_stops_the_search_around_it(more):
    """Ctrl-C ended one of the searches within, and those after it went on."""
    seen = []

    def report(*_):
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt

    made = replace(costs(pp=4, vpp=2, **TIMES, memory_limit=4, **{more: 9}), contention=more == "transfer")
    answer = optimise(made, pp=4, vpp=2, microbatches=8, report=report)
    assert answer.interrupted
    assert len(seen) == 2
