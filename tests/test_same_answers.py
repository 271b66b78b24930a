"""The command line, its JSON, the page's server and Python give the same numbers for the same question."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from itertools import islice, product
from pathlib import Path

import pytest

import shardwise
from shardwise.cli.main import run
from shardwise.errors import InfeasibleError, ShardwiseError
from shardwise.estimate.predictions import predictions_table
from shardwise.plan.proof import check_proof
from shardwise.units import show_bytes, show_seconds
from shardwise.web import answers
from shardwise.web import search as web_search

COUNT = 20
MANY = 200
"""Questions of the verbs that answer in milliseconds."""
MEASURED = json.loads((Path(__file__).parent / "partition" / "instances.json").read_text(encoding="utf-8"))
PROBLEMS = [one["problem"] for one in MEASURED["instances"]]


@pytest.fixture
def cli(capfd, tmp_path):
    """Run a verb: the text that it prints, and its JSON."""

    def call(*words, code=0):
        file = tmp_path / "answer.json"
        assert run([str(word) for word in (*words, "--json", file)]) == code, capfd.readouterr().err
        return capfd.readouterr().out, json.loads(file.read_text(encoding="utf-8"))

    return call


def page(word, **data):
    """What the page's server answers."""
    return answers.JSON[word](json.dumps(data).encode())


def page_plan(**question):
    """The last event of a search."""
    frames = []
    web_search.run(json.dumps(question).encode(), frames.append, lambda: False)
    return json.loads(frames[-1].body)


def plain(value):
    return json.loads(json.dumps(value))


def drawn(seed, most_gpus=64):
    """Questions without end: a model, a cluster, and the line of a strategy that can run there."""
    rng = random.Random(seed)  # noqa: S311
    while True:
        model = rng.choice(("llama-3-8b", "llama-3.2-3b", "gpt-3-13b", "gemma-2-9b", "qwen3-30b-a3b", "mixtral-8x7b"))
        gpus = rng.choice([n for n in (8, 16, 32, 64) if n <= most_gpus])
        tp, pp, mbs = rng.choice((1, 2, 4)), rng.choice((1, 2, 4)), rng.choice((1, 2))
        schedule = rng.choice(("1f1b", "1f1b", "zb-h1", "interleaved")) if pp > 1 else ""
        vpp = "x2" if schedule == "interleaved" else ""
        batch = mbs * gpus // (tp * pp) * rng.choice((1, 2)) * pp * 2
        words = [f"tp{tp}", f"pp{pp}{vpp}", f"mbs{mbs}", f"gbs{batch}", f"seq{rng.choice((2048, 4096))}", schedule]
        words.append(rng.choice(("", "recompute=full", "zero1", "zero3")))
        runtime = rng.choice(("megatron", "megatron", "torchtitan", "zero-bubble", "huggingface"))
        text = " ".join(filter(None, [*words, f"runtime={runtime}"]))
        cluster = f"{gpus}x{rng.choice(('h100', 'a100-80gb', 'h200'))}"
        try:
            if not shardwise.check(model, cluster, text):
                yield model, cluster, text
        except ShardwiseError:
            continue


@cache
def plans(count, *, piped=False):
    """Plans of drawn questions."""
    found = (shardwise.plan_of(shardwise.estimate(*question)) for question in drawn(7, 16))
    return tuple(islice((plan for plan in found if plan.strategy.pp > 1 or not piped), count))


def written(plan, folder):
    shardwise.write_plan(plan, folder / "plan.json")
    return folder / "plan.json"


def test_estimate(cli):
    for model, cluster, text in islice(drawn(1), MANY):
        found = shardwise.estimate(model, cluster, text)
        said, data = cli("estimate", model, "-c", cluster, "-s", text, code=int(found.fits == "no"))
        s = found.strategy
        question = {"model": model, "cluster": cluster, "global_batch": s.global_batch, "seq": s.seq}
        shown = page("view", question=question, strategy=text)
        for number in ("iteration_seconds", "total_bytes", "mfu", "bubble", "fits"):
            assert data["predictions"][number] == shown["plan"]["predictions"][number] == getattr(found, number), text
        assert [rank["total"] for rank in data["predictions"]["memory"]] == [rank.total for rank in found.memory]
        assert shown["view"]["numbers"]["iteration_seconds"] == found.iteration_seconds
        assert show_seconds(found.iteration_seconds) in said
        assert show_bytes(found.total_bytes) in said


def test_a_plan_is_estimated_in_the_order_that_it_carries(cli, tmp_path):
    """One that was made for less memory than the device has; it was once ordered anew, for all of it."""
    line = "tp1 pp4 dp4 mbs1 gbs64 seq8192 zb-h1 runtime=zero-bubble"
    plan = written(shardwise.plan_of(shardwise.estimate("llama-3-8b", "16xh100", line)), tmp_path)
    made, again = tmp_path / "made.json", tmp_path / "again.json"
    cli("schedule", "auto", "--plan", plan, "--memory-limit", "68GB", "--effort", 0.1, "--out", made)
    told = shardwise.read_plan(made).predictions
    _, data = cli("estimate", made, "--out", again)
    assert data["predictions"] == plain(predictions_table(told))
    assert shardwise.read_plan(again).order == shardwise.read_plan(made).order
    assert shardwise.estimate(made).total_bytes == told.total_bytes <= 68e9
    assert shardwise.what_if(made, net="2x", only="tp=1 pp=4 zero1", gap=0.9).before.total_bytes == told.total_bytes


def test_an_order_made_for_the_memory_keeps_the_plans_limit(cli, tmp_path):
    """Once `auto` filled the whole GPU but for `schedule auto --plan`: a plan for 60 GiB was said not to fit."""
    question = {"model": "llama-3-8b", "cluster": "16xh100", "global_batch": 64, "seq": 4096, "runtime": "zero-bubble"}
    line, limit = "tp1 pp4 dp4 mbs1 gbs64 seq4096 zero1 auto runtime=zero-bubble", 60 * 2.0**30
    plan = shardwise.plan_of(shardwise.estimate("llama-3-8b", "16xh100", line), memory_limit=limit)
    ordered = shardwise.plan_of(shardwise.schedule("auto", plan=plan)).predictions
    found = shardwise.estimate(plan)
    assert found.fits != "no"
    assert found.total_bytes <= limit
    assert found.total_bytes == pytest.approx(ordered.total_bytes)
    assert found.iteration_seconds == pytest.approx(ordered.iteration_seconds)
    assert max(shardwise.timeline(plan).peak) == pytest.approx(found.total_bytes)
    file = written(plan, tmp_path)
    _, said = cli("estimate", file)
    shown = page("view", plan=json.loads(file.read_text(encoding="utf-8")))
    for number in ("iteration_seconds", "total_bytes", "fits"):
        assert said["predictions"][number] == shown["view"]["numbers"][number] == getattr(found, number)
        assert getattr(plan.predictions, number) == getattr(found, number)

    only = "pp=4 tp=1 mbs=1 dp=4 zero=1 schedule=auto"
    margin = shardwise.load_cluster("16xh100").gpu.memory - limit
    answer = shardwise.plan(**question, only=only, memory_margin=margin)
    assert answer.best.iteration_seconds <= found.iteration_seconds
    assert answer.best.total_bytes <= limit
    made = shardwise.plan_of(answer)
    other = shardwise.why(made, "layers=8,8,8,8").other
    assert (other.total_bytes, other.iteration_seconds) == (found.total_bytes, found.iteration_seconds)
    assert check_proof(made).fault == ""


def test_plan(cli, tmp_path):
    rng = random.Random(2)  # noqa: S311
    for _ in range(COUNT):
        model, gpus = rng.choice(("llama-3.2-3b", "llama-3-8b")), 8
        question = {"model": model, "cluster": f"{gpus}x{rng.choice(('h100', 'h200', 'a100-80gb'))}", "gap": 0.3}
        question |= {"global_batch": 4 * gpus, "seq": rng.choice((2048, 8192))}
        question |= {
            "only": rng.choice(
                ("tp=2 pp=1 zero1", "tp=1 pp=1 cp=1", "tp=8 zero1 cp=1", "tp=4 pp=2 vpp=1 recompute=none")
            )
        }
        words = [word for name in ("global_batch", "seq", "only", "gap")
                 for word in (f"--{name.replace('_', '-')}", question[name])]  # fmt: skip
        found = shardwise.plan(**question)
        if found.best is None:
            cli("plan", model, "-c", question["cluster"], *words, code=1)
            assert page_plan(**question)["plan"] is None
            continue
        said, data = cli("plan", model, "-c", question["cluster"], *words, "--out", tmp_path / "plan.json")
        done, ours = (
            page_plan(**question),
            shardwise.api.plan_table(shardwise.read_plan(tmp_path / "plan.json"))["predictions"],
        )
        assert data["predictions"] == done["plan"]["predictions"] == ours
        assert ours["iteration_seconds"] == found.best.iteration_seconds
        assert (ours["bound"], ours["gap"]) == (found.bound, found.gap_of(found.best))
        assert f"recommended   {found.best.strategy}" in said
        assert [one["strategy"] for one in data["top"][:5]] == [str(one.strategy) for one in found.top[:5]]
        assert data["plans"] == done["view"]["plans"]
        assert data["plans"]["fastest"]["iteration_seconds"] == found.fastest.iteration_seconds
        assert data["plans"]["simplest"]["strategy"] == str(found.simplest.strategy)
        assert data["plans"]["nearest"]["id"] == found.nearest.id


def test_schedule_and_simulate(cli, tmp_path):
    rng, names = random.Random(3), ("auto", "1f1b", "zb-h1", "zb-v", "interleaved", "v-half", "gpipe")  # noqa: S311
    for _ in range(MANY):
        pp, costs = rng.choice((2, 4)), ",".join(str(rng.randint(5, 15)) for _ in "fiw")
        name, hop, microbatches = rng.choice(names), rng.choice((0.0, 1.0)), 2 * pp
        asked = {"pp": pp, "microbatches": microbatches, "costs": costs, "hop": hop, "effort": 0.3}
        words = [word for key, value in asked.items() for word in (f"--{key}", value)]
        table = tmp_path / "schedule.csv"
        said, data = cli("schedule", name, *words, "--csv", table)
        found = shardwise.schedule(name, **asked)
        assert (data["makespan"], data["bound"], data["peak"]) == (
            found.timeline.makespan, found.bound.value, list(found.timeline.peak)
        )  # fmt: skip
        assert f"makespan       {found.timeline.makespan:.6g}\n" in said
        again = shardwise.simulate(table, costs, hop=hop)
        said, replayed = cli("simulate", table, "--costs", costs, "--hop", hop)
        assert replayed["makespan"] == again.timeline.makespan == found.timeline.makespan
        assert replayed["bubbles"] == plain(again.timeline.bubbles())


def test_schedule_of_a_plan(cli, tmp_path):
    for plan in plans(MANY, piped=True):
        found = shardwise.schedule("1f1b", plan=plan)
        _, data = cli("schedule", "1f1b", "--plan", written(plan, tmp_path), code=int(bool(found.over_limit)))
        assert (data["makespan"], data["peak"]) == (found.timeline.makespan, list(found.timeline.peak))


def test_balance(cli, tmp_path):
    rng, file = random.Random(5), tmp_path / "problem.json"  # noqa: S311
    for _ in range(2 * COUNT):
        problem = dict(rng.choice([one for one in PROBLEMS if one["pp"] <= 8 and one.get("vp", 1) == 1]))
        problem["mem_limit"] = problem["mem_limit"] * rng.uniform(0.8, 1.2)
        problem |= {"mb": rng.choice((8, 16)), "hop": rng.choice((0.0, 0.1))}
        file.write_text(json.dumps(problem), encoding="utf-8")
        try:
            found = shardwise.balance(file, effort=0.1)
        except InfeasibleError:
            cli("balance", "--problem", file, "--effort", 0.1, code=1)
            continue
        said, data = cli("balance", "--problem", file, "--effort", 0.1)
        assert (data["simulated"], data["bound"]) == (found.simulated, found.bound)
        assert (data["layers"], data["peak"]) == (list(found.best.partition.layers), list(found.best.peak))
        assert f"simulated {found.simulated:,.4f}, bound {found.bound:,.4f}" in said


def test_balance_of_a_plan(cli, tmp_path):
    compared = 0
    for plan in plans(MANY // 2, piped=True):
        file = written(plan, tmp_path)
        try:
            found = shardwise.balance_plan(plan)
        except (InfeasibleError, ShardwiseError) as error:
            cli_code = 1 if isinstance(error, InfeasibleError) else 2
            assert run(["balance", "--plan", str(file)]) == cli_code
            continue
        compared += 1
        _, data = cli("balance", "--plan", file)
        assert (data["seconds"], data["bound"]) == (found.after.iteration_seconds, found.bound)
    assert compared > 5


def test_export(cli, tmp_path):
    rng, targets = random.Random(4), shardwise.api.targets()  # noqa: S311
    compared = 0
    for plan in plans(MANY):
        target, file = rng.choice(targets), written(plan, tmp_path)
        try:
            made = shardwise.export(plan, target)
        except ShardwiseError:
            assert run(["export", str(file), "--to", target, "--out", str(tmp_path / "no")]) in {1, 2}
            with pytest.raises(ShardwiseError):
                page("export", plan=json.loads(file.read_text()), target=target)
            continue
        _, data = cli("export", file, "--to", target, "--out", tmp_path / f"out{plan.strategy.world}", "--force")
        shown = page("export", plan=json.loads(file.read_text()), target=target)
        for name in ("target", "plan", "strategy", "predicted", "as_written", "losses", "by_hand"):
            assert data[name] == shown[name]
        assert (data["predicted"], data["as_written"]) == (made.prediction, made.as_written)
        texts = {one["name"]: one["text"] for one in shown["files"]}
        assert texts == {one.name: one.text for one in made.files}
        own = {Path(one).name: Path(one).read_text(encoding="utf-8") for one in data["files"]}
        assert {name: own[name] for name in texts} == texts
        compared += 1
    assert compared >= COUNT // 2


def test_why(cli, tmp_path):
    compared = 0
    for plan, change in zip(plans(MANY), ("tp4", "recompute=full", "zero3", "mbs1") * MANY, strict=False):
        file = written(plan, tmp_path)
        try:
            found = shardwise.why(plan, change)
        except ShardwiseError:
            assert run(["why", str(file), change]) == 2
            continue
        said, data = cli("why", file, change)
        asked = page("why", plan=json.loads(file.read_text()), strategy=change)
        assert data == plain({"schema": "shardwise/answer/why/1", **asked})
        assert (data["slower"], data["missing_bytes"], data["change"]) == (found.slower, found.missing, found.change)
        assert f"other   {found.other.strategy}" in said
        compared += 1
    assert compared >= COUNT


def test_what_if(cli, tmp_path):
    rng, changes = random.Random(6), (("memory", "141GB"), ("net", "2x"), ("gpus", 4), ("memory", "40GB"))  # noqa: S311
    for _ in range(COUNT):
        batch, (name, value) = rng.choice((8, 16, 24)), rng.choice(changes)
        plan = shardwise.plan_of(shardwise.estimate("gpt-2-124m", "8xh100", f"dp8 mbs1 gbs{batch} seq1024"))
        found = shardwise.what_if(plan, **{name: value}, gap=0.9)
        _, data = cli("what-if", written(plan, tmp_path), f"--{name}", value, "--gap", 0.9)
        assert data["the plan as it is"]["iteration_seconds"] == found.before.iteration_seconds
        assert data["the best there"]["iteration_seconds"] == found.again.best.iteration_seconds
        assert data["the best there"]["strategy"] == str(found.again.best.strategy)


def test_plan_operators(cli):
    for gpus, batch in product((1, 2, 4), (8, 16, 32)):
        found = shardwise.plan_operators("gpt-2-124m", f"{gpus}xh100", global_batch=batch, seq=1024)
        words = ("gpt-2-124m", "-c", f"{gpus}xh100", "--global-batch", batch, "--seq", 1024)
        _, data = cli("plan-operators", *words)
        assert (data["cost"]["seconds"], data["bound"]) == (found.cost.seconds, found.bound)
        best = found.whole and found.whole.fastest
        assert (data["seconds"], data["strategy"]) == (found.seconds, str(best.strategy) if best else None)
        replicas = found.plan.stages[0].layouts[0].dp
        own = shardwise.plan_of(replace(found, whole=None)).strategy.micro_batch
        assert found.plan.samples == replicas * own  # a micro batch is of one replica, samples are of all
        assert data["plan"]["microbatches"] == batch // found.plan.samples


def test_plan_operators_with_all_that_may_be_asked(cli, tmp_path):
    """Values and texts alike; from Aceso's files; the plan of the answer is the one that `--out` writes."""
    asked = {"global_batch": 8, "seq": 1024, "microbatches": (2, 4), "stages": (1, 2), "zero": 0, "memory": 20 * 2**30,
             "schedule": "zb-h1", "p2p_overlap": 0.5, "method": "alleviate", "trials": 2, "best": 2,
             "runtime": "zero-bubble"}  # fmt: skip
    words = ("--global-batch", 8, "--seq", 1024, "--microbatches", "2,4", "--stages", "1-2", "--zero", 0, "--memory",
             "20GiB", "--schedule", "zb-h1", "--p2p-overlap", 0.5, "--method", "alleviate", "--trials", 2, "--best", 2,
             "--runtime", "zero-bubble", "--save-profiles", tmp_path / "set")  # fmt: skip
    found = shardwise.plan_operators("gpt-2-124m", "4xh100", **asked)
    _, data = cli("plan-operators", "gpt-2-124m", "-c", "4xh100", *words, "--out", tmp_path / "plan.json")
    written, made = shardwise.read_plan(tmp_path / "plan.json"), shardwise.plan_of(found)
    assert (data["cost"]["seconds"], data["bound"], data["schedule"]) == (found.cost.seconds, found.bound, "zb-h1")
    assert replace(made, run=None) == replace(written, run=None)
    read = {"profiles": tmp_path / "set", "gpus": 4, "memory": "20GiB", "compatible": True, "global_batch": 8}
    from_files = shardwise.plan_operators(**read, runs_with={"attention": "plain"})
    files = ("--profiles", tmp_path / "set", "--gpus", 4, "--memory", "20GiB", "--compatible", "--global-batch", 8)
    _, data = cli("plan-operators", *files)
    assert data["cost"]["seconds"] == from_files.cost.seconds
    assert any("attention plain" in note for note in from_files.question.notes)
    with pytest.raises(shardwise.InputError, match="give both beside the profiles"):
        shardwise.plan_of(from_files)
