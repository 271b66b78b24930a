"""Markdown for pull requests: tables that parse, names that stay text, the same numbers as on the terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import shardwise
from shardwise import api
from shardwise.cli.main import run
from shardwise.plan.plan import ProofPart
from shardwise.plan.predict import plan_of
from shardwise.plan.proof import proof_of
from shardwise.report.markdown import answer_markdown, diff_markdown, estimate_markdown, plan_markdown
from shardwise.units import show_bytes, show_seconds

MODEL, CLUSTER = shardwise.load_model("llama-3-8b"), shardwise.load_cluster("16xh100")
STRATEGY = shardwise.Strategy.parse("tp2 pp4 dp2 mbs1 gbs64 seq4096")
ROOT = Path(__file__).parents[2]
EVIL = "<script>alert(1)</script>|*x*`y`\n# head @user"


@pytest.fixture(scope="module")
def found():
    return shardwise.estimate(MODEL, CLUSTER, STRATEGY)


def tokens(text):
    return MarkdownIt("commonmark").enable("table").parse(text)


def rows(text):
    """Cells of every row of every table that a reader of Markdown finds."""
    cells, parsed = [], tokens(text)
    for index, token in enumerate(parsed):
        if token.type == "tr_open":
            cells.append([])
        if token.type in {"td_open", "th_open"}:
            cells[-1].append(parsed[index + 1].content)
    return cells


def test_an_estimate_says_its_numbers_in_tables(found):
    text = estimate_markdown(found)
    read = rows(text)
    seconds = f"{show_seconds(found.time.value)} ({' to '.join(map(show_seconds, found.iteration_seconds_interval))})"
    assert text.startswith(f"### llama-3-8b on 16xh100: {seconds} per iteration, fits\n")
    assert ["iteration", seconds] in read
    stages = [row for row in read if len(row) == 8]
    assert [row[6] for row in stages[1:]] == [show_bytes(rank.total) for rank in found.memory]
    assert sum(token.content.count("<details>") for token in tokens(text)) == 2
    assert "█" not in text


def test_names_are_text(found):
    evil = replace(found, model=replace(found.model, name=EVIL), cluster=replace(found.cluster, name=EVIL))
    for text in (estimate_markdown(evil), diff_markdown(plan_of(found), plan_of(evil), (EVIL, "b"))):
        html = MarkdownIt("commonmark").enable("table").render(text)
        assert "<script" not in html
        assert "<em>" not in html
        assert html.count("<h1>") == 0
        widths = {len(row) for row in rows(text)}
        assert widths <= {2, 3, 4, 5, 8}


def test_a_plan_carries_its_proof(found):
    plan = plan_of(found)
    bound = found.iteration_seconds / 1.01
    proven = replace(
        plan, predictions=replace(plan.predictions, bound=bound), proof=proof_of(plan, [ProofPart(bound=bound)])
    )
    assert "gap 1.00% (checked" in plan_markdown(proven)
    assert "no proof of it that could be checked" in plan_markdown(replace(proven, proof=None))
    assert "proof" not in plan_markdown(plan)


def test_two_plans_beside_each_other(found):
    other = shardwise.estimate(MODEL, CLUSTER, replace(STRATEGY, tp=4, dp=1))
    text = diff_markdown(plan_of(found), plan_of(other), ("main", "branch"))
    read = rows(text)
    assert ["`strategy.tp`", "`2`", "`4`"] in read
    assert ["iteration", show_seconds(found.iteration_seconds), show_seconds(other.iteration_seconds)] in [
        row[:3] for row in read
    ]
    assert "The inputs are the same." in diff_markdown(plan_of(found), plan_of(found))


def test_a_search_lists_other_layouts():
    answer = shardwise.plan("llama-3-8b", "8xh100", global_batch=32, seq=4096, only="tp<=2 pp<=2", gap=0.05)
    read = rows(answer_markdown(answer, 3))
    assert [f"`{answer.best.strategy}`", show_seconds(answer.best.iteration_seconds)] in [row[:2] for row in read]
    nothing = shardwise.plan("llama-3-70b", "1xh100", global_batch=1, seq=4096)
    assert "nothing fits" in answer_markdown(nothing)
    assert api.why_nothing(nothing) in answer_markdown(nothing)


def test_the_verbs_write_it(tmp_path, capfd):
    plan, page = str(tmp_path / "plan.json"), tmp_path / "plan.md"
    words = ["llama-3-8b", "-c", "16xh100", "-s", str(STRATEGY), "--quiet"]
    assert run(["estimate", *words, "--out", plan, "--md", str(page)]) == 0
    printed = capfd.readouterr().out
    assert printed.startswith("llama-3-8b on 16xh100")
    assert run(["show", plan, "--md", "-"]) == 0
    assert capfd.readouterr().out == page.read_text(encoding="utf-8")
    assert run(["diff", plan, plan, "--md", "-"]) == 0
    assert capfd.readouterr().out.startswith("### plan against plan")
    assert run(["show", plan, "--md", "-", "--json", "-"]) == 2
    assert "standard output" in capfd.readouterr().err
    assert run(["show", plan, "--md", str(tmp_path / "no" / "x.md")]) == 2
    assert "does not exist" in capfd.readouterr().err


def test_pipelines_are_told_too(tmp_path, capfd):
    csv = str(tmp_path / "order.csv")
    words = ["--pp", "4", "--microbatches", "8", "--costs", "10,11,9", "--quiet"]
    assert run(["schedule", "1f1b", *words, "--compare", "zb-h1", "--csv", csv, "--md", "-"]) == 0
    read = rows(capfd.readouterr().out)
    assert ["makespan", "330"] in read
    assert ["zb-h1", "276", "276", "13.04%", "13.04%", "4"] in read
    assert run(["simulate", csv, "--costs", "10,11,9", "--md", "-"]) == 0
    assert ["makespan", "330"] in rows(capfd.readouterr().out)
    problem = str(ROOT / "docs" / "how-to" / "balance-example.json")
    assert run(["balance", "--problem", problem, "--naive", "1", "--quiet", "--md", "-"]) == 0
    text = capfd.readouterr().out
    assert ["0", "18"] in [row[:2] for row in rows(text)]
    assert "  offset: [-2, 0, 2, 0]" in text
