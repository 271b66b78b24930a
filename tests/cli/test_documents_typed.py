"""Documents on the command line: every verb that takes a strategy takes them, and says what they change."""

from __future__ import annotations

import json

import pytest

QUESTION = ("llama-3-8b", "-c", "16xh200", "--micro-batch", "1", "--global-batch", "64", "--seq", "8192")
TWO = ("--documents", "512x3,2048,30000x0.2")


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "Lengths of documents.csv"
    path.write_text("length,count\n512,3\n2048,1\n30000,0.2\n", encoding="utf-8")
    return path


def test_an_estimate_says_what_documents_change(shardwise, lengths, tmp_path):
    answer = tmp_path / "answer.json"
    found = shardwise("estimate", *QUESTION, "--documents", lengths, "--explain", "--json", answer)
    assert found.code == 0
    for said in ("keys on average", "waiting for documents", "one document a sample", "balanced", "padded"):
        assert said in found.out
    assert "replicas has" in found.err
    told = json.loads(answer.read_text())
    assert [one["packing"] for one in told["packings"]][:2] == ["one document a sample", "packed"]
    assert told["inputs"]["strategy"]["documents"]["lengths"] == [512, 2048, 30000]
    plain = shardwise("estimate", *QUESTION, "--explain", "--json", answer)
    assert "documents" not in plain.out
    assert "packings" not in json.loads(answer.read_text())


def test_written_plans_are_the_file(shardwise, tmp_path):
    path, again = tmp_path / "plan.json", tmp_path / "again.json"
    assert (
        shardwise(
            "plan", *QUESTION[:3], "--global-batch", "64", "--seq", "8192", *TWO, "--packing", "balanced", "--out", path
        ).code
        == 0
    )
    assert shardwise("estimate", path, "--json", again).code == 0
    seconds = json.loads(path.read_text())["predictions"]["iteration_seconds"]
    assert json.loads(again.read_text())["predictions"]["iteration_seconds"] == seconds
    changed = shardwise("estimate", path, "--packing", "unmasked")
    assert "attention over whole samples" in changed.out
    for verb in (("check",), ("show",), ("why", "tp4"), ("what-if", "--gpus", "32")):
        assert shardwise(verb[0], path, *verb[1:]).code == 0, verb


def test_an_export_names_what_it_does_not_say(shardwise, tmp_path):
    path = tmp_path / "plan.json"
    assert shardwise("estimate", *QUESTION, *TWO, "--out", path).code == 0
    found = shardwise("export", path, "--to", "megatron", "--out", tmp_path / "run")
    assert found.code == 0
    assert "strategy.documents: how documents become samples is not said by this export" in found.err
    assert shardwise("export", path, "--to", "torchtitan", "--out", tmp_path / "titan", "--strict").code == 1
    back = shardwise(
        "estimate", "--from", tmp_path / "run" / "train.sh", "-c", "16xh200", "--json", tmp_path / "back.json"
    )
    assert back.code == 0
    assert "documents" not in json.loads((tmp_path / "back.json").read_text())["inputs"]["strategy"]


def test_rehearsals_refuse_them(shardwise, tmp_path):
    path = tmp_path / "plan.json"
    assert shardwise("estimate", *QUESTION, *TWO, "--out", path).code == 0
    found = shardwise("rehearse", path, "--device", "meta")
    assert found.code == 2
    assert "estimate --packing unmasked" in found.err


def test_stages_add_up(shardwise, tmp_path):
    grid = ("sweep", "llama-3-8b", "-c", "16xh100", "--global-batch", "64", "--gap", "20%", "--only", "vpp=1 pp=1")
    answer = tmp_path / "sweep.json"
    found = shardwise(
        *grid, "--stages", "4096:75%,16384:25%", "--tokens", "1T", "--price", "2/h", *TWO, "--json", answer
    )
    assert found.code == 0, found.err
    assert "all stages, one after the other" in found.out
    told = json.loads(answer.read_text())
    assert [(cell["seq"], cell["global_batch"]) for cell in told["cells"]] == [(4096, 64), (16384, 16)]
    (run,) = told["runs"]
    for name in ("days", "gpu_hours", "cost"):
        assert run["budget"][name] == pytest.approx(sum(cell["budget"][name] for cell in told["cells"]))
    alone = shardwise(*grid, "--seq", "4096", "--tokens", "750B", "--price", "2/h", *TWO, "--json", answer)
    assert alone.code == 0
    assert json.loads(answer.read_text())["cells"][0]["budget"]["days"] == pytest.approx(
        told["cells"][0]["budget"]["days"]
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--stages", "4096:75%"), "have 75.0% of the tokens in all"),
        (("--stages", "4096:50%,4096:50%"), "name 4,096 twice"),
        (("--stages", "4096"), "'4096' is no stage; write 8192:90%"),
        (("--stages", "0:100%"), "0 is too small"),
        (("--stages", "4096:100%", "--seq", "4096"), "both give lengths"),
        (("--stages", "4096:100%"), "say how many tokens"),
        (("--documents", "no/such/file.csv"), "neither a file nor lengths"),
        (("--packing", "padded"), "there are none; give --documents"),
    ],
)
def test_what_is_wrong_is_a_sentence(shardwise, options, said):
    tokens = () if "how many" in said else ("--tokens", "1T")
    found = shardwise("sweep", "llama-3-8b", "-c", "16xh100", *tokens, *options)
    assert found.code in {1, 2}
    assert said in found.err + found.out
