import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from shardwise.cli.schedule import command as schedule
from shardwise.cli.simulate import command as simulate
from shardwise.errors import InfeasibleError, InputError

BASE = ["--pp", "4", "--microbatches", "8", "--costs", "10,11,9", "--hop", "1"]


def run(verb, *arguments):
    result = CliRunner().invoke(verb, list(arguments), catch_exceptions=False, standalone_mode=False)
    return result.output


def test_auto_writes_everything(tmp_path):
    files = {name: str(tmp_path / f"a.{name}") for name in ("csv", "json", "svg", "html", "trace")}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    text = run(schedule, "auto", *BASE, "--memory-limit", "1.5p", *options)
    assert "makespan       513" in text
    assert "optimal, proven" in text
    assert "rank   3" in text
    answer = json.loads((tmp_path / "a.json").read_text())
    assert {"makespan", "period", "bubble", "period_bubble", "seed_rate", "peak", "bound", "gap", "proven"} <= set(
        answer
    )
    assert answer["proven"] is True
    assert answer["run"]["seconds"] >= 0
    again = run(simulate, files["csv"], "--costs", "10,11,9", "--hop", "1")
    assert "makespan       513" in again


def test_compare_prints_one_table_of_the_same_model():
    text = run(schedule, "zb-v", *BASE, "--compare", "auto,1f1b,interleaved,dualpipe-v", "-q")
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.split()[:1]}
    assert rows["auto"][1] == "513"
    assert rows["zb-v"][1] == "526"
    assert rows["1f1b"][1] == "676"


def test_costs_from_a_file_with_alternatives(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({
        "f": 10, "i": 11, "w": [9] * 8, "hop": 1, "free_at_input_grad": 0, "memory_limit": 4,
        "alternatives": [{"i": 21, "activation": 0.2}],
    }))  # fmt: skip
    out = tmp_path / "a.json"
    run(
        schedule,
        "auto",
        "--pp",
        "4",
        "--microbatches",
        "8",
        "--costs",
        str(path),
        "--effort",
        "0.1",
        "--json",
        str(out),
    )
    answer = json.loads(out.read_text())
    assert set(answer["choice"]) == {0, 1}
    assert max(answer["peak"]) <= 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["zbv", *BASE], "did you mean"),
        (["auto", "--pp", "4"], "microbatches: is missing"),
        (["auto", *BASE[:4], "--costs", "10,11"], "has 2 numbers"),
        (["auto", *BASE[:4], "--costs", "ten,11,9"], "neither f,i,w"),
        (["auto", *BASE[:4], "--costs", "none.json"], "no such file"),
        (["auto", *BASE, "--memory-limit", "xp"], "write 1.5p"),
        (["auto", *BASE, "--memory-limit", "0p"], "above 0"),
        (["auto", *BASE, "--memory-limit", "nanp"], "is not a number"),
        (["auto", *BASE[:4], "--costs", "0,0,0"], "nothing to order"),
        (["auto", *BASE[:4], "--costs", "1,nan,1"], "is not a number"),
        (["auto", "--pp", "4096", "--microbatches", "100000", "--costs", "1,1,1"], "actions; up to 20,000,000"),
        (["1f1b", "--pp", "4096", "--microbatches", "100000", "--costs", "1,1,1"], "actions; up to 20,000,000"),
        (["dualpipe-v", "--pp", "4", "--microbatches", "4", "--costs", "1,1,1"], "at least 2 x pp"),
    ],
)
def test_wrong_input_is_a_sentence(arguments, words):
    with pytest.raises(InputError, match=words):
        run(schedule, *arguments)


def test_wrong_cost_file_names_all_faults(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text('{"f": "x", "i": 1, "speed": 3}')
    with pytest.raises(InputError) as error:
        run(schedule, "auto", *BASE[:4], "--costs", str(path))
    assert {fault.path for fault in error.value.faults} == {"f", "w", "speed"}


def test_nothing_fits_says_the_smallest_limit():
    with pytest.raises(InfeasibleError, match="smallest feasible limit is 2"):
        run(schedule, "auto", *BASE, "--memory-limit", "1")


def test_a_published_schedule_over_the_limit_is_infeasible():
    with pytest.raises(InfeasibleError, match="limit: 0F4 takes rank 0 to 5 of 4"):
        run(schedule, "gpipe", "--pp", "4", "--microbatches", "8", "--costs", "1,1,1", "--memory-limit", "1p")


def test_simulate_refuses_a_broken_schedule(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("0F0,0W0,0I0\n")
    with pytest.raises(InputError, match="order: 0W0 comes before 0I0"):
        run(simulate, str(path), "--costs", "1,1,1")


def test_a_plan_is_scheduled_and_exported(tmp_path):
    from shardwise.cli.export import command as export
    from shardwise.frameworks.load import load_cluster, load_model
    from shardwise.inputs.strategy import Strategy
    from shardwise.plan.file import read_plan, write_plan
    from shardwise.plan.plan import Plan

    strategy = Strategy(
        pp=4, vpp=2, dp=2, global_batch=16, schedule="zb-v", placement="v", zero=2, runtime="torchtitan"
    )
    plan = Plan(model=load_model("llama-3-8b"), cluster=load_cluster("8xh100"), strategy=strategy)
    write_plan(plan, tmp_path / "plan.json")
    text = run(
        schedule,
        "auto",
        "--plan",
        str(tmp_path / "plan.json"),
        "--out",
        str(tmp_path / "done.json"),
        "--effort",
        "0.1",
        "-q",
    )
    assert "GiB" in text
    done = read_plan(tmp_path / "done.json")
    assert done.order.pp == 4
    assert 0 < done.predictions.bubble < 0.5
    assert done.strategy.schedule == "auto"
    text = run(export, str(tmp_path / "done.json"), "--to", "torch-pipelining", "--out", str(tmp_path / "run"))
    assert (tmp_path / "run" / "schedule.csv").read_text() == done.order.csv()
    write_plan(replace(plan, strategy=replace(strategy, schedule="auto")), tmp_path / "auto.json")
    with pytest.raises(InputError, match="has no rows of a schedule"):
        run(export, str(tmp_path / "auto.json"), "--to", "torch-pipelining", "--out", str(tmp_path))


def test_out_needs_a_plan():
    with pytest.raises(InputError, match="name the plan to start from"):
        run(schedule, "auto", *BASE, "--out", "x.json")


def test_costs_may_be_fractions():
    text = run(schedule, "1f1b", "--pp", "2", "--microbatches", "4", "--costs", "5,5.5,4.5", "--json", "-")
    assert json.loads(text)["makespan"] == 75


def test_one_schedule_is_one():
    assert "auto: 1 schedule looked at" in run(schedule, "auto", "--pp", "1", "--microbatches", "2", "--costs", "1,1,1")


def test_a_csv_that_cannot_be_written_is_told_before_the_work(tmp_path):
    """It was left out of the files that are looked at first, so one of two under one name was lost."""
    both = str(tmp_path / "both")
    with pytest.raises(InputError, match="and --json both go to"):
        run(schedule, "1f1b", *BASE, "--csv", both, "--json", both)
    with pytest.raises(InputError, match="make it first"):
        run(schedule, "1f1b", *BASE, "--csv", str(tmp_path / "none" / "a.csv"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["zb-v", "--vpp", "3"], "zb-v has 2 chunks a rank: the work of 3 is spread anew"),
        (["1f1b", "--vpp", "2"], "1f1b has 1 chunk a rank: the work of 2 is spread anew"),
        (["v-min", "--placement", "loop"], "v-min lies on a v: --placement loop changes nothing"),
        (["zb-v", "--vpp", "2", "--placement", "v"], ""),
        (["1f1b"], ""),
    ],
)
def test_chunks_that_a_schedule_has_otherwise_are_named(words, told):
    said = run(schedule, *words, *BASE)
    assert told in said
    assert ("spread anew" in said or "changes nothing" in said) == bool(told)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["1f1b", "--group", "4"], "--group 4 changes nothing: only interleaved has groups"),
        (["zb-v", "--splits", "4"], "--splits 4 changes nothing: only seq-1f1b cuts sequences"),
        (["1f1b", "--effort", "0.5"], "--effort 0.5 changes nothing: only auto searches"),
        (["1f1b", "--time-limit", "5"], "--time 5 changes nothing: only auto searches"),
        (["1f1b", "--group", "4", "--compare", "interleaved"], ""),
        (["1f1b", "--effort", "0.1", "--compare", "auto"], ""),
    ],
)
def test_options_that_no_schedule_heeds_are_named(words, told):
    said = run(schedule, *words, *BASE)
    assert told in said
    assert ("changes nothing" in said) == bool(told)


def test_a_compare_that_names_nothing_is_refused():
    with pytest.raises(InputError, match="names no schedule"):
        run(schedule, "1f1b", *BASE, "--compare", ",")


def test_a_way_back_alone_is_refused_and_one_beside_offload_is_kept(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"f": 10, "i": 11, "w": 9, "reload": 7}))
    words = ["1f1b", "--pp", "4", "--microbatches", "8", "--costs", str(path), "--memory-limit", "0.5p"]
    with pytest.raises(InputError, match="nothing takes away; give offload too"):
        run(schedule, *words)
    answer = tmp_path / "answer.json"
    run(schedule, *words, "--offload", "5", "--json", str(answer))
    question = json.loads(answer.read_text())["proof"]["question"]
    assert (question["offload"][0], question["reload"][0]) == (5, 7)


def test_long_times_keep_their_whole_units():
    said = run(schedule, "1f1b", "--pp", "2", "--microbatches", "1000", "--costs", "1234,1111,999")
    assert "makespan       3347344\n" in said


def test_a_search_that_is_cut_short_does_not_say_that_host_memory_gains_nothing():
    words = ["--pp", "8", "--microbatches", "64", "--costs", "10,11,9", "--memory-limit", "1p", "--offload", "100"]
    said = run(schedule, "auto", *words, "--time-limit", "0.01")
    assert "as fast without" not in said
