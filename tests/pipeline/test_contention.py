"""Messages that wait for each other, inside `auto`: never slower than any other order we know, and checked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise
from shardwise.cli.main import run
from shardwise.errors import InputError
from shardwise.pipeline.action import placed
from shardwise.pipeline.certificate import hash_of
from shardwise.pipeline.costs import costs, limit_of
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.faults import find_fault
from shardwise.pipeline.generate import SHAPES, generate
from shardwise.pipeline.optimise import optimise

TIMES = {"f": 10, "i": 11, "w": 9, "hop": 1}


@st.composite
def pipelines(draw):
    vpp, pp = draw(st.integers(1, 2)), draw(st.integers(2, 4))
    placement = draw(st.sampled_from(["loop", "v"])) if vpp > 1 else "loop"
    sizes = st.lists(st.integers(1, 12), min_size=pp * vpp, max_size=pp * vpp)
    times = {name: draw(sizes) for name in "fiw"}
    made = costs(pp=pp, vpp=vpp, **times, hop=draw(st.integers(0, 2)), transfer=draw(st.integers(1, 14)))
    limit = draw(st.sampled_from([None, 0.75, 1.0, 1.5]))
    limits = limit_of(made, placed(pp, vpp, placement), limit) if limit and limit * pp >= 1 else ()
    shape = {"pp": pp, "vpp": vpp, "microbatches": draw(st.integers(1, 2 * pp)), "placement": placement}
    return replace(made, memory_limit=limits, contention=True), shape


def named(made, shape):
    """Every named order of these chunks that runs and fits."""
    for name, one in SHAPES.items():
        alike = (one.vpp or max(2, shape["vpp"])) == shape["vpp"] and one.placement == shape["placement"]
        if not alike or name == "seq-1f1b":
            continue
        try:
            own = {key: shape[key] for key in ("pp", "vpp", "microbatches")}
            order = generate(name, **own, costs=replace(made, contention=False))
        except InputError:
            continue
        if find_fault(order, made) is None:
            yield order


@given(pipelines())
@settings(max_examples=25, deadline=None)
def test_auto_is_never_slower_than_what_is_known(drawn):
    made, shape = drawn
    found = optimise(made, **shape, effort=0.02)
    assert find_fault(found.schedule, made) is None
    assert found.value == pytest.approx(simulate(found.schedule, made).makespan)
    assert found.bound.value <= found.value * (1 + 1e-9)
    plain = optimise(replace(made, contention=False), **shape, effort=0.02)
    assert found.value <= simulate(plain.schedule, made).makespan * (1 + 1e-9)
    for order in named(made, shape):
        assert found.value <= simulate(order, made).makespan * (1 + 1e-9), order.name


def test_polish_makes_up_for_what_waiting_costs():
    made = costs(pp=8, **TIMES, transfer=20)
    made = replace(made, memory_limit=limit_of(made, placed(8, 1, "loop"), 1.0))
    shape = {"pp": 8, "vpp": 1, "microbatches": 16, "placement": "loop", "effort": 0.3}
    plain, contended = optimise(made, **shape), replace(made, contention=True)
    retimed = simulate(plain.schedule, contended).makespan
    found = optimise(contended, **shape)
    assert found.value <= retimed - 20
    assert found.bound.value == plain.bound.value
    assert "even if messages never wait" in found.bound.scope
    assert found.schedule == optimise(contended, **shape).schedule


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "dualpipe-v", "zb-h1"])
def test_full_backwards_taken_apart_are_never_slower(name):
    order = generate(name, pp=4, microbatches=8)
    made = replace(costs(pp=4, vpp=order.vpp, **TIMES, transfer=15), contention=True)
    apart = order.split()
    assert apart.actions == 3 * apart.chunks * apart.microbatches
    assert find_fault(apart) is None
    whole, now = simulate(order, made), simulate(apart, made)
    assert now.makespan <= whole.makespan
    assert max(now.peak) <= max(whole.peak)


def test_the_proof_knows_links(tmp_path, capsys):
    path = tmp_path / "answer.json"
    words = ["auto", "--pp", "4", "--vpp", "1", "--placement", "loop", "--microbatches", "8", "--costs", "10,11,9"]
    words += ["--hop", "1", "--transfer", "20", "--contention", "--memory-limit", "1p", "--effort", "0.1"]
    assert run(["schedule", *words, "--json", str(path), "-q"]) == 0
    assert "even if messages never wait" in capsys.readouterr().out
    answer = json.loads(path.read_text())
    found = shardwise.simulate(path)
    assert found.proof.startswith("proof          holds")
    assert found.timeline.makespan == answer["makespan"]
    assert found.timeline.costs.contention
    proof = answer["proof"]
    proof["question"]["transfer"][0] = 1.0
    proof["hash"] = hash_of(proof["question"])
    path.write_text(json.dumps(answer))
    with pytest.raises(InputError, match="latency and the transfer of a message are not what it takes"):
        shardwise.simulate(path)


def test_a_named_order_is_timed_with_contention(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**TIMES, "transfer": 25}))
    found = {
        flag: shardwise.schedule("gpipe", pp=4, microbatches=8, costs=path, contention=flag) for flag in (False, True)
    }
    assert found[True].value > found[False].value
    order = tmp_path / "order.csv"
    order.write_text(found[True].timeline.schedule.csv())
    again = shardwise.simulate(order, TIMES_TEXT, hop=1, transfer=25, contention=True)
    assert again.timeline.makespan == found[True].value


TIMES_TEXT = "10,11,9"


def test_contention_that_changes_nothing_is_named(capsys):
    words = ["schedule", "1f1b", "--pp", "2", "--microbatches", "4", "--costs", TIMES_TEXT, "--contention"]
    assert run(words) == 0
    assert "contention changes nothing: no message has its link for itself" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--transfer", "x"], ["--transfer", "-1"]])
def test_wrong_transfers_are_a_sentence(words, capsys):
    assert run(["schedule", "1f1b", "--pp", "2", "--microbatches", "4", "--costs", TIMES_TEXT, *words]) == 2
    assert "transfer" in capsys.readouterr().err
