"""Operators measured by the probe: what it is asked for, and what becomes of its answer."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shardwise.cli.main import run
from shardwise.errors import FileError, InputError
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.load import load_runtime
from shardwise.per_op.profiles.analytic import make_profile
from shardwise.per_op.profiles.operators import measured_profile, read_operators
from shardwise.per_op.profiles.request import operator_request

MODEL, CLUSTER = "llama-3-8b", "2xh200"


def requested(model=MODEL):
    return operator_request(
        load_model(model), load_cluster(CLUSTER), load_runtime("megatron"), seq=512, micro_batches=(1, 2)
    )


def seconds(operator):
    """A GPU of 500 Tflop/s and 3 TB/s."""
    found = 0.0
    for part in operator["parts"]:
        if part["kind"] == "gemm":
            found += 2 * part["batch"] * part["m"] * part["n"] * part["k"] / 5e14
        elif part["kind"] == "attention":
            found += 2 * part["batch"] * part["heads"] * part["seq"] ** 2 * part["head_dim"] / 5e14
        else:
            found += (part["bytes_read"] + part["bytes_written"]) / 3e12
    return found


def measured(request):
    rows = [
        {key: operator[key] for key in operator if key != "parts"}
        | {"forward_seconds": seconds(operator), "backward_seconds": 2 * seconds(operator), "saved_bytes": 1.0,
           "reserved_bytes": 1.0}
        for operator in request["operators"]
    ]  # fmt: skip
    return {
        "format": "shardwise-operators", "version": 1, "complete": True, "hardware": {"gpu": "NVIDIA H200"},
        "tags": {"attention": "flash", "dtype": "bf16", "framework": "torch 2.11"}, "model": request["model"],
        "seq": request["seq"], "operators": rows, "collectives": [],
    }  # fmt: skip


@pytest.fixture
def answer(tmp_path):
    path = tmp_path / "operators.json"

    def write(change=dict):
        data = measured(requested())
        change(data)
        path.write_text(json.dumps(data))
        return str(path)

    return write


@pytest.mark.parametrize("model", [MODEL, "mixtral-8x7b", "deepseek-v2-lite", "gpt-3-13b"])
def test_a_request_lists_every_operator_with_kernels_that_a_gpu_can_run(model):
    from shardwise.measure.probe import shardwise_probe as probe

    request = requested(model)
    assert probe.request_faults(request) == []
    made = make_profile(load_model(model), load_cluster(CLUSTER), load_runtime("megatron"), seq=512)
    assert [operator["name"] for operator in request["operators"][: len(made.ops)]] == list(made.ops)
    assert all(operator["parts"] for operator in request["operators"])


def test_products_have_the_shapes_of_their_shard():
    up = [o for o in requested()["operators"] if o["name"].endswith("mlp.up") and o["micro_batch"] == 2]
    assert [o["parts"][0] for o in up] == [
        {"kind": "gemm", "m": 1024, "n": 2 * 14336 // tp, "k": 4096, "batch": 1} for tp in (1, 2)
    ]
    core = next(o for o in requested()["operators"] if o["parts"][0]["kind"] == "attention" and o["tp"] == 2)
    assert core["parts"][0] == {
        "kind": "attention", "batch": 1, "heads": 16, "kv_heads": 4, "seq": 512, "head_dim": 128, "causal": True,
    }  # fmt: skip


def test_measured_seconds_are_used_collectives_added_and_bytes_kept(answer):
    data = read_operators(answer())
    model, cluster, runtime = load_model(MODEL), load_cluster(CLUSTER), load_runtime("megatron")
    made = measured_profile(data, model, cluster, runtime)
    own = make_profile(model, cluster, runtime, seq=512, micro_batches=(1, 2))
    np.testing.assert_allclose(made.values[2:], own.values[2:])
    expected = {(o["name"], o["micro_batch"], o["tp"]): o["forward_seconds"] for o in data["operators"]}
    for index, name in enumerate(made.ops):
        assert made.column("forward")[1, 0, 0, index] == pytest.approx(expected[name, 2, 1])
    down = made.ops.index("layer/mlp.down")
    alone = expected["layer/mlp.down", 2, 2]
    assert made.column("forward")[1, 1, 0, down] > alone
    assert made.tags["source"] == "measured"
    assert made.runs == own.runs


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(format="other"), "its format is 'other'"),
        (lambda d: d.update(version=2), "version 2"),
        (lambda d: d.update(complete=False), "stopped before its end"),
        (lambda d: d.update(operators=[]), "empty or missing"),
        (lambda d: d.update(seq="long", model=""), "model: is missing"),
        (lambda d: d.update(tags=[]), "tags: must be a table"),
        (lambda d: d["operators"].append(d["operators"][0]), "is there twice"),
        (lambda d: d["operators"].append(7), "must be a table with a name"),
        (lambda d: d["operators"][0].update(forward_seconds=-1.0), "forward_seconds is -1.0"),
        (lambda d: d["operators"][0].update(forward_seconds="1"), "forward_seconds is '1'"),
        (lambda d: d["operators"][0].update(tp=0, backward_seconds=1e9), "backward_seconds is 1000000000.0"),
        (lambda d: d["operators"].pop(), "lacks head/head.loss"),
        (lambda d: d["operators"][3].update(name="conv"), "conv: no operator of this model"),
        (lambda d: [row.update(tp=3) for row in d["operators"] if row["tp"] == 2], "3 was measured"),
        (lambda d: [row.update(variant=1) for row in d["operators"]], "none has variant 0"),
    ],
)
def test_what_is_wrong_with_an_answer_is_told(answer, change, said):
    path = answer(change)
    inputs = load_model(MODEL), load_cluster(CLUSTER), load_runtime("megatron")
    with pytest.raises((InputError, FileError)) as caught:
        measured_profile(read_operators(path), *inputs)
    assert said in str(caught.value)


def test_from_request_to_plan_on_the_command_line(answer, tmp_path, capfd):
    path = str(tmp_path / "request.json")
    words = ["plan-operators", MODEL, "-c", CLUSTER]
    assert run([*words, "--seq", "512", "--micro-batch", "1,2", "--write-operators", path]) == 0
    assert f"probe --operators {path}" in capfd.readouterr().out
    assert json.loads((tmp_path / "request.json").read_text()) == requested()
    given = ["plan-operators", "-c", CLUSTER, "--profiles", answer(), "--global-batch", "8"]
    assert run(given) == 0
    out, err = capfd.readouterr()
    assert "per iteration" in out
    assert "measured on NVIDIA H200 at sequence length 512" in err
    for length in ("1024", "4096"):  # the default as well, once it is typed
        assert run([*given, "--seq", length]) == 2
        assert "measured at 512" in capfd.readouterr().err
    assert run([*given[:1], "gpt-3-13b", *given[1:]]) == 2
    assert "was measured for llama-3-8b" in capfd.readouterr().err
    assert run(["plan-operators", "--profiles", answer()]) == 2
    assert "--cluster" in capfd.readouterr().err
    assert run(["plan-operators", "--write-operators", path]) == 2
