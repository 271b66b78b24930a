"""Intervals: they hold their figure, grow with what is unknown, and decide what can be told apart."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import InputError
from shardwise.estimate.estimate import estimate, within
from shardwise.estimate.intervals import (
    ANY,
    CAUSES,
    GPU,
    LAUNCH,
    LOW,
    MOE,
    NODES,
    SOFTWARE,
    around,
    causes_of,
    layout_distance,
    probability,
    spread_of,
    unseen_of,
    width_in,
    within_error,
)
from shardwise.inputs.accuracy import accuracy
from shardwise.inputs.calibrations import calibration_names, calibration_of, load_calibration
from shardwise.inputs.load import load_runtime, named_cluster, named_model, runtime_names
from shardwise.inputs.strategy_text import build, parse
from shardwise.plan.file import plan_from, plan_table
from shardwise.plan.predict import plan_of

MODEL, CLUSTER = named_model("llama-3-8b"), named_cluster("64xh100")
SIZES = st.floats(1e6, 1e13)
WIDTHS = st.floats(0.0, 2.0)


def strategy(text):
    return build(parse(text))


def found(text="tp2 pp2 dp16 mbs1 gbs128 seq4096", model=MODEL, cluster=CLUSTER):
    return estimate(model, cluster, strategy(text))


def causes(model="llama-3-8b", cluster="64xh100", dtype="bf16", runtime="megatron"):
    machines = named_cluster(cluster)
    return causes_of(named_model(model), machines, dtype, runtime, calibration_of(machines.gpu))


class TestInterval:
    @pytest.mark.parametrize(
        "text", ["tp8 dp8 mbs1 gbs64 seq4096", "tp2 pp4 dp8 mbs1 gbs128 seq8192", "dp64 zero1 mbs1 gbs64 seq1024 fp8"]
    )
    def test_it_holds_the_figure(self, text):
        one = found(text)
        for value, (low, high) in (
            (one.iteration_seconds, one.iteration_seconds_interval),
            (one.total_bytes, one.total_bytes_interval),
        ):
            assert low < value < high
            assert low * high == pytest.approx(value**2)

    @given(SIZES, WIDTHS)
    def test_its_width_is_read_back(self, value, width):
        assert width_in(value, around(value, width)) == pytest.approx(width, abs=1e-9)


class TestFits:
    @given(SIZES, SIZES, SIZES, WIDTHS)
    def test_more_memory_is_never_less_likely_to_fit(self, total, memory, other, width):
        low, high = sorted((memory, other))
        assert 0 <= probability(total, low, width) <= probability(total, high, width) <= 1

    @given(SIZES, st.floats(0.01, 2.0))
    def test_the_upper_end_is_needed_by_one_in_twenty(self, total, width):
        assert probability(total, total, width) == pytest.approx(0.5)
        assert probability(total, around(total, width)[1], width) == pytest.approx(0.95, abs=1e-3)

    @pytest.mark.parametrize(("size", "said"), [(1.2, "yes"), (1.0, "close"), (0.8, "no")])
    def test_the_ends_decide_what_is_close(self, size, said):
        one = found()
        gpu = replace(CLUSTER.gpu, memory=one.total_bytes * size)
        there = found(cluster=replace(CLUSTER, gpu=gpu))
        assert there.fits == said
        assert (there.fits_probability > 0.95, there.fits_probability < 0.05) == (said == "yes", said == "no")

    def test_a_host_that_is_too_small_is_sure(self):
        small = replace(CLUSTER, host_memory=2e9)
        assert found("tp2 dp32 mbs1 gbs64 seq4096 offload=optimizer", cluster=small).fits_probability == 0

    def test_a_limit_within_the_error_is_what_close_says(self):
        one = found()
        memory = one.total_bytes * 1.5
        roomy = found(cluster=replace(CLUSTER, gpu=replace(CLUSTER.gpu, memory=memory)))
        assert within(roomy, one.total_bytes * 0.9).fits == "no"
        assert within(roomy, memory * 0.999).fits == "yes"


class TestCauses:
    def test_a_question_has_those_that_it_names(self):
        assert causes(cluster="8xh100") == (ANY,)
        assert causes() == (ANY, NODES)
        assert causes("mixtral-8x7b", dtype="fp8") == (ANY, NODES, MOE, LOW)

    def test_what_no_run_supports_is_named(self):
        assert causes(runtime="mindformers") == (ANY, NODES, SOFTWARE)
        assert causes(cluster="8xascend-910b") == (ANY, SOFTWARE, GPU)
        assert unseen_of("a", "x", {"a": {"x": 4}, "b": {"x": 1}}) == (SOFTWARE,)
        assert unseen_of("a", "x", {"a": {"x": 5}}) == ()

    def test_small_layers_are_launch_bound(self):
        small = named_model("gpt-2-124m")
        one = estimate(small, named_cluster("1xh100"), strategy("mbs1 gbs8 seq128 runtime=huggingface"))
        calibration = calibration_of(one.cluster.gpu)
        assert LAUNCH in causes_of(small, one.cluster, "bf16", "huggingface", calibration, one.time)

    def test_waiting_for_launches_makes_no_cliff(self):
        """The ends of the interval move as the time does, over sequence lengths that make it launch-bound or not."""
        node = named_cluster("8xh100")
        every = [found(f"tp2 dp4 mbs1 gbs64 seq{seq}", cluster=node) for seq in range(1024, 8193, 256)]
        widths = [width_in(one.iteration_seconds, one.iteration_seconds_interval) for one in every]
        assert widths[0] > 2 * widths[-1]
        assert all(0 <= left - right < 0.03 for left, right in pairwise(widths))

    def test_a_faster_fabric_raises_no_end(self):
        ends = []
        for share in range(4, 41):
            levels = (CLUSTER.levels[0], replace(CLUSTER.levels[1], bandwidth=share * 2.5e9))
            one = found("tp2 dp32 mbs1 gbs64 seq2048", cluster=replace(CLUSTER, levels=levels))
            ends.append(one.iteration_seconds_interval)
        assert all(slow[0] >= fast[0] and slow[1] >= fast[1] for slow, fast in pairwise(ends))

    def test_each_makes_it_wider(self):
        h100 = load_calibration("hopper")
        plain, every = spread_of((ANY,), "new", h100), spread_of(CAUSES, "new", h100)
        assert plain.time < spread_of((ANY, MOE), "new", h100).time < every.time
        assert spread_of((ANY, SOFTWARE, GPU), "new", h100).time > plain.time

    def test_a_calibration_of_the_users_own_is_a_known_site(self):
        theirs = replace(load_calibration("generic"), name="mine", time_error=0.02, memory_error=0.01)
        machines = replace(CLUSTER, gpu=replace(CLUSTER.gpu, calibration=theirs))
        measured, unseen = causes_of(MODEL, machines, "bf16", "megatron", theirs), causes(cluster="8xascend-910b")
        assert not {SOFTWARE, GPU} & set(measured)
        narrow, wide = spread_of(measured, "megatron", theirs), spread_of(unseen, "megatron", theirs)
        shipped = spread_of(causes(), "megatron", load_calibration("hopper"))
        assert narrow.time < shipped.time < wide.time
        assert narrow.memory < shipped.memory

    def test_a_log_of_the_users_own_runs_makes_it_narrower(self):
        theirs = replace(load_calibration("hopper"), name="our-h100", corrections={"gemm": 1.03})
        machines = replace(CLUSTER, gpu=replace(CLUSTER.gpu, calibration=theirs))
        measured = causes_of(MODEL, machines, "bf16", "megatron", theirs)
        assert measured == (ANY,)
        shipped = spread_of(causes(), "megatron", load_calibration("hopper"))
        assert spread_of(measured, "megatron", theirs).time < shipped.time


class TestData:
    def test_it_speaks_of_what_there_is(self):
        data = accuracy()
        for widths in (data.time, data.memory):
            assert widths.causes.keys() <= set(CAUSES)
            assert min(widths.causes.values()) > 0
            assert {*widths.rows, *widths.sources} <= set(CAUSES)
            assert widths.runtimes.keys() <= set(runtime_names())
        assert {name for counts in data.seen.values() for name in counts} <= set(calibration_names())
        assert 0 < data.pairs["one"] <= data.pairs["several"]

    def test_it_is_read_without_what_is_slow_to_import(self):
        assert load_runtime("megatron").name in accuracy().seen


class TestDifferences:
    def test_the_same_is_within_the_error_and_twice_as_long_is_not(self):
        one = found()
        longer = replace(one, iteration_seconds=2 * one.iteration_seconds)
        assert within_error(one, one)
        assert not within_error(one, longer)
        assert not within_error(longer, one)

    def test_one_setting_is_told_apart_sooner_than_several(self):
        one = found("tp2 pp2 dp16 mbs1 gbs128 seq4096")
        near, far = strategy("tp4 pp2 dp8 mbs1 gbs128 seq4096"), strategy("tp4 pp4 dp4 mbs2 gbs128 seq4096")
        shares = [exp(step / 1000) for step in range(1000)]

        def most(other):
            return max(x for x in shares if layout_distance(one, other, x * one.iteration_seconds) <= 1)

        assert 1 < most(near) < most(far)

    def test_layouts_share_what_is_unknown_of_their_gpu(self):
        """Two layouts on a GPU that nobody measured are told apart as well as on a known one."""
        machines = named_cluster("8xascend-910b")
        one = found("tp2 dp4 mbs1 gbs64 seq4096 runtime=mindformers", cluster=machines)
        width = log(one.iteration_seconds_interval[1] / one.iteration_seconds)
        other = replace(one, iteration_seconds=one.iteration_seconds * exp(0.8 * width))
        assert not within_error(one, other)
        elsewhere = replace(other, cluster=replace(machines, name="another"))
        assert within_error(one, elsewhere)


def test_files_from_before_are_read():
    plan = plan_of(found())
    table = json.loads(json.dumps(plan_table(plan)))
    told = table["predictions"]
    del told["total_bytes_interval"], told["fits_probability"]
    told["memory_error"] = 0.03
    read = plan_from(table, "plan.json").predictions
    assert read.total_bytes_interval == pytest.approx((told["total_bytes"] / 1.03, told["total_bytes"] * 1.03))
    assert read.fits_probability == 0.95
    told["memory_error"] = "much"
    with pytest.raises(InputError, match="memory_error: is not a known key"):
        plan_from(table, "plan.json")
