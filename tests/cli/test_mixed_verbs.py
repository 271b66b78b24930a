"""Every verb takes a plan for several kinds of GPU, or refuses it in one sentence."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mixed")


@pytest.fixture
def plans(shardwise, folder):
    """A plan with stages on different kinds, and one with replicas that share the batch by speed."""
    made = {"stages": "tp4 pp2 gbs16 seq2048 layers=24,8", "replicas": "gbs64 seq2048 batches=6,2 recompute=full"}
    for name, words in made.items():
        if not (folder / f"{name}.json").exists():
            runtime = ("--runtime", "torch-pipelining") if name == "replicas" else ()
            cluster = "8xh100 + 8xa100" if name == "replicas" else "4xh100 + 4xa100"
            out = ("--out", folder / f"{name}.json", "--quiet")
            assert shardwise("estimate", "llama-3-8b", "-c", cluster, "-s", words, *runtime, *out).code == 0
    return {name: folder / f"{name}.json" for name in made}


@pytest.mark.parametrize("kind", ["stages", "replicas"])
@pytest.mark.parametrize(
    "words",
    [
        "show PLAN", "check PLAN", "estimate PLAN --explain", "diff PLAN PLAN", "why PLAN mbs2",
        "schedule 1f1b --plan PLAN",
        "show PLAN --html OUT.html --svg OUT.svg --md OUT.md --trace OUT.json", "estimate PLAN --cluster 8xh100+8xa100",
        "estimate PLAN --json -",
    ],
)  # fmt: skip
def test_verbs_that_take_it(shardwise, plans, kind, words, tmp_path):
    typed = words.replace("PLAN", str(plans[kind])).replace("OUT", str(tmp_path / "out")).split()
    found = shardwise(*typed)
    assert found.code == 0, found.err
    assert found.out


@pytest.mark.parametrize("kind", ["stages", "replicas"])
@pytest.mark.parametrize(
    "words",
    [
        "what-if PLAN --net 2x", "what-if PLAN --gpus 32", "rehearse PLAN --rank pp0 --write OUT.py",
        "launch PLAN --to megatron", "calibrate --name ours --log OUT.log --plan PLAN",
        "export PLAN --to torchtitan --out OUT",
        "export PLAN --to deepspeed --out OUT", "export PLAN --to megatron --launcher slurm --out OUT",
        "plan-operators llama-3-8b --cluster 8xh100+8xa100", "validate --cluster h100+a100",
        "estimate PLAN --cluster 9xPLAN",
    ],
)  # fmt: skip
def test_verbs_that_refuse_it(shardwise, plans, kind, words, tmp_path):
    typed = words.replace("PLAN", str(plans[kind])).replace("OUT", str(tmp_path / "out")).split()
    found = shardwise(*typed)
    assert found.code in {1, 2}, found.err
    errors = [line for line in found.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "kind" in errors[0] or "GPU" in errors[0]
    assert not list(tmp_path.iterdir())


def test_clusters_shows_every_kind_and_what_joins_them(shardwise):
    found = shardwise("clusters", "32xh100 + 64xa100")
    assert "32xh100: 32 x h100" in found.out
    assert "64xa100: 64 x a100" in found.out
    assert "96 GPUs of 2 kinds, joined by" in found.out


def test_json_says_the_kinds_and_what_each_reaches_alone(shardwise):
    words = (
        "--global-batch",
        "16",
        "--seq",
        "2048",
        "--only",
        "tp=1 cp=1 mbs=1 pp=2 recompute=none hsdp=0",
        "--json",
        "-",
        "--quiet",
    )
    data = json.loads(shardwise("plan", "llama-3-8b", "-c", "4xh100 + 4xa100", *words).out)
    assert {kind["gpu"]["name"] for kind in data["inputs"]["cluster"]["kinds"]} == {"h100", "a100"}
    assert data["predictions"]["bound"] <= data["predictions"]["iteration_seconds"]
    assert all(one["seconds"] > 0 for one in data.get("alone", []))
