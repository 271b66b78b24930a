"""Folders start as they are written, with two processes on the CPU, and train the planned model.

The reference of a loss is the whole model in this process, with the weights that the folder's own program draws.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict

import pytest
from start_folder import folder_of, started
from start_models import DENSE, EXPERTS, GQA, small

from shardwise.frameworks.torch.write import MODEL
from shardwise.inputs.parameters import count

torch = pytest.importorskip("torch")


def missing(*names):
    """A skip that says what is not installed."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(absent), reason=f"{', '.join(absent)} not installed: its folders are not started")


def loaded(path, monkeypatch):
    """A program of a folder as a module."""
    monkeypatch.syspath_prepend(str(path.parent))
    for name in ("shardwise_loop", "shardwise_transformers"):
        sys.modules.pop(name, None)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batches(loop, replicas, passes, batch, seq, vocab):
    return [loop.tokens(0, micro, replica, batch, seq, vocab) for replica in range(replicas) for micro in range(passes)]


def falls(run):
    """Tokens are drawn from the same uneven distribution in every step, so a model that trains learns it."""
    return run.losses[-1] < run.losses[0]


HUGGINGFACE = {
    "FSDP of grouped heads": (GQA, "dp2 zero3 fp32 mbs4 gbs16 seq64"),
    "FSDP of experts, recomputed": (EXPERTS, "dp2 zero2 mbs4 gbs16 seq64 recompute=full"),
    "replicas of tied weights": (DENSE, "dp2 zero1 mbs4 gbs16 seq64"),
}


@missing("transformers")
@pytest.mark.parametrize("kind", HUGGINGFACE)
def test_huggingface(kind, tmp_path, monkeypatch):
    model, words = HUGGINGFACE[kind]
    folder = folder_of(model, f"{words} runtime=huggingface", "huggingface", tmp_path / "run")
    run = started(folder, LEARNING_RATE="3e-3")
    assert (run.parameters, run.world) == (count(model).total, 2)
    assert falls(run)
    own = loaded(folder / "shardwise_transformers.py", monkeypatch)
    whole = own.describe({"flash": True, "recompute": "none"})
    own.make(whole, whole, "cpu", torch.float32)
    whole.tie_weights()
    loop = sys.modules["shardwise_loop"]
    with torch.no_grad():
        losses = [float(whole(input_ids=ids, labels=ids).loss) for ids in batches(loop, 2, 2, 4, 64, model.vocab)]
    exact = 2e-6 if "fp32" in words else 5e-3
    assert run.losses[0] == pytest.approx(sum(losses) / len(losses), rel=exact)


@missing("transformers", "accelerate")
def test_huggingfaces_trainer(tmp_path):
    folder = folder_of(GQA, "dp2 zero3 mbs4 gbs16 seq64 runtime=huggingface", "huggingface", tmp_path / "run")
    run = started(folder, TRAINER="1", LEARNING_RATE="3e-3")
    assert (run.parameters, run.world) == (count(GQA).total, 2)
    assert falls(run)


PIPELINES = {
    "grouped heads": (GQA, "pp2 fp32 mbs4 gbs16 seq64"),
    "experts": (EXPERTS, "pp2 fp32 mbs4 gbs16 seq64 recompute=full"),
    "tied weights apart": (DENSE, "pp2 mbs4 gbs16 seq64"),
}


@pytest.mark.parametrize("kind", PIPELINES)
def test_torch_pipelining(kind, tmp_path, monkeypatch):
    model, words = PIPELINES[kind]
    folder = folder_of(model, words, "torch-pipelining", tmp_path / "run")
    run = started(folder, LEARNING_RATE="3e-3")
    assert (run.parameters, run.world) == (count(model).total, 2)
    assert falls(run)
    loop, own = loaded(folder / "shardwise_loop.py", monkeypatch), loaded(MODEL, monkeypatch)
    whole = own.build({**asdict(model), "flash": True}, 0, model.layers, "cpu", torch.float32, loop.SEED)
    with torch.no_grad():
        losses = [float(own.loss_of(whole(ids), ids)) for ids in batches(loop, 1, 4, 4, 64, model.vocab)]
    exact = 2e-6 if "fp32" in words else 5e-3
    assert run.losses[0] == pytest.approx(sum(losses) / len(losses), rel=exact)


ALIKE = {
    "dense": DENSE, "grouped heads": GQA, "experts": EXPERTS, "latent": small("deepseek-v2-lite"),
    "gemma": small("gemma-3-1b", layers=6),
}  # fmt: skip


@missing("transformers")
@pytest.mark.parametrize("kind", ALIKE)
def test_every_program_starts_from_the_same_weights(kind, tmp_path, monkeypatch):
    """The loss of the first step tells whether two frameworks train one model."""
    model, words = ALIKE[kind], "fp32 mbs2 gbs2 seq32"
    theirs = loaded(folder_of(model, words, "huggingface", tmp_path / "a") / "shardwise_transformers.py", monkeypatch)
    whole = theirs.describe({"flash": True, "recompute": "none"})
    theirs.make(whole, whole, "cpu", torch.float32)
    whole.tie_weights()
    own = loaded(folder_of(model, words, "torch-pipelining", tmp_path / "b") / "model.py", monkeypatch)
    loop = sys.modules["shardwise_loop"]
    decoder = own.build({**asdict(model), "flash": True}, 0, model.layers, "cpu", torch.float32, loop.SEED)
    ids = loop.tokens(0, 0, 0, 2, 32, model.vocab)
    with torch.no_grad():
        logits = whole(input_ids=ids).logits
        assert float(own.loss_of(decoder(ids), ids)) == pytest.approx(float(own.loss_of(logits, ids)), rel=1e-6)


def test_replicas_with_unequal_batches_take_the_step_of_all_micro_batches(tmp_path, monkeypatch):
    """Three micro batches on a fast GPU and one on a slow one weigh the same: the loss of step 2 is that of one
    process that takes the mean of all four.
    """
    words = "dp2 zero0 mbs2 gbs8 seq32 fp32 sgd batches=3,1 runtime=torch-pipelining"
    folder = folder_of(GQA, words, "torch-pipelining", tmp_path / "run", cluster="1xh100 + 1xa100")
    run = started(folder, steps=2, LEARNING_RATE="0.1", GPUS_PER_NODE="2", NUM_NODES="1")
    loop, own = loaded(folder / "shardwise_loop.py", monkeypatch), loaded(MODEL, monkeypatch)
    whole = own.build({**asdict(GQA), "flash": True}, 0, GQA.layers, "cpu", torch.float32, loop.SEED)
    plain, seen = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9), []
    for step in range(2):
        ids = [
            loop.tokens(step, micro, replica, 2, 32, GQA.vocab) for replica, micro in ((0, 0), (0, 1), (0, 2), (1, 0))
        ]
        loss = sum(own.loss_of(whole(one), one) for one in ids) / 4
        seen.append(loss.item())
        loss.backward()
        plain.step()
        plain.zero_grad()
    assert run.losses == pytest.approx(seen, rel=1e-5)
    assert seen[1] != pytest.approx(seen[0], rel=1e-3)


def test_one_stage_is_a_pipeline_too(tmp_path):
    folder = folder_of(GQA, "pp1 mbs4 gbs16 seq64", "torch-pipelining", tmp_path / "run")
    run = started(folder, steps=2)
    assert (run.parameters, run.world) == (count(GQA).total, 1)


@missing("deepspeed", "transformers")
@pytest.mark.parametrize("words", ["dp2 zero3 mbs4 gbs16 seq64", "pp2 zero1 mbs4 gbs16 seq64 recompute=full"])
def test_deepspeed(words, tmp_path):
    folder = folder_of(GQA, f"{words} runtime=deepspeed", "deepspeed", tmp_path / "run")
    assert json.loads((folder / "ds_config.json").read_text())["_program"]["runtime"] == "deepspeed"
    run = started(folder, LEARNING_RATE="3e-3")
    assert (run.parameters, run.world) == (count(GQA).total, 2)
    assert falls(run)


def test_a_wrong_number_of_processes_is_told(tmp_path):
    folder = folder_of(GQA, "pp2 mbs4 gbs16 seq64", "torch-pipelining", tmp_path / "run")
    with pytest.raises(AssertionError, match="the plan is for 2 processes and 1 were started; set GPUS_PER_NODE"):
        started(folder, GPUS_PER_NODE="1")
