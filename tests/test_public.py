"""The names that people import are a promise: a change here is a change of the interface."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import shardwise

TYPES = (
    "Answer", "BalanceAnswer", "Balanced", "Calibrated", "Cluster", "Costs", "Estimate", "Export", "InfeasibleError",
    "InputError", "Model", "OperatorAnswer", "Plan", "Problem", "Rehearsal", "Replay", "Runtime", "Schedule",
    "Scheduled", "ShardwiseError", "Strategy", "Timeline", "Validation", "WhatIf", "Why",
)  # fmt: skip
VERBS = {
    "advise": "found runtime count",
    "balance": "problem plan time_limit effort seed report",
    "balance_plan": "plan memory_limit",
    "calibrate": "name probe nccl trace log snapshot plan base rank steps",
    "check": "model cluster strategy runtime",
    "diff": "left right",
    "estimate": "model cluster strategy runtime",
    "export": "plan target strict",
    "load_cluster": "source",
    "load_model": "source",
    "load_problem": "path",
    "load_runtime": "name",
    "load_strategy": "source cluster global_batch seq runtime",
    "plan": "model cluster global_batch seq runtime only memory memory_margin base gap time_limit workers executor "
    "address report stop",
    "plan_of": "found plan memory_limit",
    "plan_operators": "model cluster global_batch seq runtime profiles profile layers layer_ops runs_with gpus "
    "gpus_per_node memory microbatches stages most_tp compatible compatible_space zero schedule compare p2p_overlap "
    "method start hops trials measured_memory best time_limit workers executor address report stop",
    "read_plan": "path",
    "read_problem": "problem init peaks peak times model pp vpp microbatches memory low_memory seq_split train "
    "schedule hop empty",
    "rehearse": "plan rank device builder read repeats result",
    "schedule": "name pp vpp microbatches costs hop placement memory_limit free_at_input_grad objective group splits "
    "plan compare runnable effort time_limit report",
    "simulate": "source costs hop memory_limit free_at_input_grad contention",
    "store_calibration": "found",
    "sweep": "model clusters batches sequences runtime only gap tokens price mtbf checkpoint store told",
    "targets": "",
    "timeline": "plan runtime",
    "validate": "files cluster",
    "what_if": "plan gpus net memory gap only report",
    "why": "plan strategy",
    "write_export": "made folder force",
    "write_plan": "plan path",
}


def test_the_public_names():
    assert sorted(shardwise.__all__) == sorted([*TYPES, *VERBS, "__version__"])


@pytest.mark.parametrize("name", VERBS)
def test_the_signatures(name):
    found = inspect.signature(getattr(shardwise, name))
    assert list(found.parameters) == VERBS[name].split()
    assert all(one.kind is not one.VAR_KEYWORD for one in found.parameters.values())
    assert "Any" not in str(found)


@pytest.mark.parametrize("name", [name for name, words in VERBS.items() if len(words.split()) > 2])
def test_every_parameter_is_explained(name):
    """As `word` where it is listed; a function of one or two says them in its sentence."""
    text = inspect.getdoc(getattr(shardwise, name)) or ""
    if "As `estimate` takes them" not in text:
        assert [word for word in VERBS[name].split() if f"`{word}`" not in text] == []


@pytest.mark.parametrize("name", [*TYPES, *VERBS])
def test_every_name_is_there(name):
    found = getattr(shardwise, name)
    assert inspect.isclass(found) if name in TYPES else inspect.isfunction(found)


def test_verbs_stay_verbs_when_rooms_of_their_names_are_imported():
    """`check`, `estimate` and `plan` are rooms too."""
    code = "import shardwise, shardwise.check.check, shardwise.estimate.estimate, shardwise.plan.file; "
    code += "print([type(one).__name__ for one in (shardwise.check, shardwise.estimate, shardwise.plan)])"
    told = subprocess.check_output([sys.executable, "-c", code], text=True).strip()
    assert told == "['function', 'function', 'function']"


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = shardwise.nonsense


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import shardwise, sys; print([n for n in ('numpy', 'pydantic', 'click', 'rich', 'yaml') if n in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: shardwise.plan("llama-3-8b", "8xh100", gap=-1), "gap"),
        (lambda: shardwise.plan("llama-3-8b", "8xh100", gap=float("nan")), "gap"),
        (lambda: shardwise.plan("llama-3-8b", "8xh100", workers=0), "workers"),
        (lambda: shardwise.plan("llama-3-8b", "8xh100", executor="threads"), "executor"),
        (lambda: shardwise.plan("llama-3-8b", "8xh100", time_limit=-1), "time_limit"),
        (lambda: shardwise.schedule("seq-1f1b", pp=2, microbatches=4, costs="1,1,1", splits=0), "splits"),
        (lambda: shardwise.schedule("1f1b", pp=2, microbatches=4, costs="1,1,1", objective="x"), "objective"),
        (lambda: shardwise.schedule("1f1b", pp=2, microbatches=4, costs="1,1,1", memory_limit=12), "memory_limit"),
        (lambda: shardwise.schedule("1f1b", pp=2, microbatches=4, costs="1,1,1", compare="zb-h1"), "compare"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_sentence(call, sentence):
    with pytest.raises(shardwise.InputError, match=sentence):
        call()


def test_a_runtime_may_be_named():
    named, default = (
        shardwise.estimate("llama-3-8b", "8xh100", "tp8 zero0", runtime=r) for r in ("megatron-local", None)
    )
    assert named.iteration_seconds != default.iteration_seconds
