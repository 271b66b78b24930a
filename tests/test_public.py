"""The names that people import are a promise: a change here is a change of the interface."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

import shardwise

TYPES = (
    "Advice", "Answer", "BalanceAnswer", "Balanced", "Calibrated", "Cluster", "Costs", "Estimate", "Export",
    "InfeasibleError", "InputError", "Iteration", "Launched", "Model", "OperatorAnswer", "OrderDiff", "Plan", "Problem",
    "Rehearsal", "Replay", "Runtime", "Schedule", "Scheduled", "ShardwiseError", "Strategy", "Timeline", "Validation",
    "Watched", "WhatIf", "Why",
)  # fmt: skip
PROBLEM = json.loads((Path(__file__).parent / "partition" / "instances.json").read_text(encoding="utf-8"))
PROBLEM = next(one["problem"] for one in PROBLEM["instances"] if one["problem"]["pp"] <= 4)
BESIDE = {("balance", "plan"), ("read_problem", "model")}
VERBS = {
    "advise": "found runtime count",
    "balance": "problem plan time_limit effort seed report",
    "balance_plan": "plan memory_limit",
    "calibrate": "name probe nccl trace log snapshot plan base rank steps",
    "check": "model cluster strategy runtime",
    "detail": "found runtime",
    "diff": "left right",
    "diff_orders": "left right costs hop free_at_input_grad",
    "estimate": "model cluster strategy runtime",
    "export": "plan target strict launcher",
    "iteration": "plan runtime",
    "launch": "plan target steps launcher out learn dry_run cpu force follow",
    "load_cluster": "source",
    "load_model": "source",
    "load_problem": "path",
    "load_runtime": "name",
    "load_strategy": "source cluster global_batch seq runtime",
    "plan": "model cluster global_batch seq runtime only memory memory_margin base documents packing fastest gap "
    "time_limit workers executor address report stop",
    "plan_of": "found plan memory_limit",
    "plan_operators": "model cluster global_batch seq runtime profiles profile layers layer_ops runs_with gpus "
    "gpus_per_node memory microbatches stages most_tp compatible compatible_space zero schedule operators_only "
    "compare p2p_overlap method start hops trials measured_memory best time_limit workers executor address report stop",
    "rank_allocations": "plan rank runtime",
    "rank_passes": "plan rank runtime",
    "read_plan": "path",
    "read_problem": "problem init peaks peak times model pp vpp microbatches memory low_memory seq_split train "
    "schedule hop empty confidence",
    "rehearse": "plan rank device builder read repeats result trace executing",
    "schedule": "name pp vpp microbatches costs hop placement memory_limit free_at_input_grad objective group splits "
    "plan compare runnable transfer contention offload effort time_limit report",
    "simulate": "source costs hop memory_limit free_at_input_grad transfer offload contention combine copies",
    "store_calibration": "found",
    "sweep": "model clusters batches sequences runtime only gap tokens price mtbf checkpoint store documents "
    "packing stages told",
    "targets": "",
    "timeline": "plan runtime",
    "trace_module": "source inputs dtype name executing",
    "validate_advice": "files told",
    "validate": "files cluster",
    "watch": "log plan follow tell",
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


ODD = (None, True, 3, -2.5, "", "nonsense", b"x", [], [None], {}, object(), 40e9, "40GB", print)
"""Values of all kinds: right for some argument, and wrong for most."""
GIVEN = {
    "model": "gpt-2-124m", "cluster": "8xh100", "global_batch": 8, "seq": 1024, "only": "tp=1 pp=1 cp=1", "gap": 0.9,
    "gpus": 8, "effort": 0.1, "clusters": ["8xh100"], "batches": (8,), "sequences": (1024,), "target": "megatron",
}  # fmt: skip
OWN: dict[str, dict[str, object]] = {
    "calibrate": {"name": "mine"},
    "check": {"strategy": "dp8 gbs8 seq1024"},
    "estimate": {"strategy": "dp8 gbs8 seq1024"},
    "load_cluster": {"source": "8xh100"},
    "load_model": {"source": "gpt-2-124m"},
    "load_runtime": {"name": "megatron"},
    "load_strategy": {"source": "dp8 gbs8 seq1024"},
    "plan_operators": {"cluster": "2xh100", "gpus": 2, "method": "alleviate", "trials": 1, "hops": 1},
    "schedule": {"name": "1f1b", "pp": 2, "microbatches": 4, "costs": "1,1,1", "plan": None},
    "simulate": {"costs": "1,1,1"},
    "trace_module": {"source": str(Path(__file__).parent / "frameworks/traced_models.py:toy"), "inputs": "x=2x64"},
    "why": {"strategy": "mbs2"},
    "write_plan": {"path": "plan.json"},
    "write_export": {"folder": "made"},
}
"""Arguments that make a good call of a verb."""
INCOMPLETE = {"calibrate", "launch", "rehearse", "store_calibration", "watch"}
"""Verbs that need a GPU, or what one wrote; `launch` a framework, `watch` its log."""


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Arguments that a verb takes, by their names."""
    found = shardwise.estimate("gpt-2-124m", "8xh100", "pp2 dp4 gbs8 seq1024")
    plan = shardwise.plan_of(found)
    file, kept = (tmp_path_factory.mktemp("good") / name for name in ("problem.json", "plan.json"))
    file.write_text(json.dumps(PROBLEM))
    shardwise.write_plan(plan, kept)
    order = shardwise.schedule("1f1b", pp=2, microbatches=4, costs="1,1,1").timeline.schedule
    made = shardwise.export(plan, "megatron")
    return GIVEN | {"found": found, "plan": plan, "left": plan, "right": plan, "source": order, "problem": file,
                    "path": kept, "made": made}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in VERBS if name not in {"targets", "validate", "validate_advice"}])
def test_no_argument_ends_in_an_error_of_pythons(name, good, tmp_path, monkeypatch):
    """Once `why(plan, Strategy(...))`, `plan(base="tp2")`, `export(plan, None)` and their kind."""
    monkeypatch.chdir(tmp_path)
    verb, words = getattr(shardwise, name), VERBS[name].split()
    own = {word: good[word] for word in words if word in good} | OWN.get(name, {})
    if name == "load_problem":
        own["path"] = good["problem"]
    if name in {"balance", "plan_of", "read_problem", "what_if"}:  # what goes beside another argument only
        own = {word: one for word, one in own.items() if (name, word) not in BESIDE}
    if name == "trace_module":
        pytest.importorskip("torch")
    if name == "launch":  # which would ask every Python that is found
        monkeypatch.setenv("PATH", str(tmp_path))
    if name not in INCOMPLETE:
        verb(**own)
    told = []
    for word, value in product(words, ODD):
        try:
            verb(**{**own, word: value})
        except shardwise.ShardwiseError as error:
            told.append(str(error))
        except TypeError as error:
            if "missing" not in str(error):  # Python's own, for want of an argument
                raise
    assert not [text for text in told for word in words if f"--{word.replace('_', '-')}" in text]


def test_what_a_user_means_is_taken(good):
    plan, other = good["plan"], shardwise.load_strategy("pp2 dp4 mbs2 gbs8 seq1024", "8xh100")
    assert (
        shardwise.why(plan, other).other.strategy.micro_batch == shardwise.why(plan, "mbs2").other.strategy.micro_batch
    )
    assert shardwise.advise(plan) == shardwise.advise(good["found"])
    assert (
        shardwise.balance_plan(plan, memory_limit="40GB").after == shardwise.balance_plan(plan, memory_limit=40e9).after
    )
    asked = {"global_batch": 8, "seq": 1024, "only": None, "gap": 0.9}
    found = shardwise.plan("gpt-2-124m", "8xh100", base="fp8", **asked).best
    assert found is not None
    assert found.strategy.dtype == "fp8"
    assert shardwise.timeline(plan, runtime="megatron").makespan == shardwise.timeline(plan).makespan


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda plan: shardwise.export(plan, None), r"export\(\): target: must be a text, not nothing"),
        (lambda plan: shardwise.why(plan, 3), "strategy: must be a Strategy or a text, not 3"),
        (lambda _: shardwise.sweep("llama-3-8b", "8xh100"), "clusters: must be a list, each a text or a table"),
        (lambda _: shardwise.plan("llama-3-8b"), "cluster: is missing"),
        (shardwise.what_if, "give gpus, net or memory"),
        (shardwise.rehearse, "rank: is missing"),
        (lambda plan: shardwise.balance_plan(plan, memory_limit="4 apples"), "memory_limit"),
    ],
)
def test_python_is_told_the_argument_and_not_the_flag(call, sentence, good):
    with pytest.raises(shardwise.InputError, match=sentence) as told:
        call(good["plan"])
    assert "--" not in str(told.value)


def test_numbers_of_numpy_are_numbers():
    numpy = pytest.importorskip("numpy")
    found = shardwise.plan("gpt-2-124m", "8xh100", global_batch=numpy.int64(8), seq=1024, only="tp=1 pp=1", gap=0.9)
    assert found.question.base.global_batch == 8


def test_a_runtime_may_be_named():
    named, default = (
        shardwise.estimate("llama-3-8b", "8xh100", "tp8 zero0", runtime=r) for r in ("megatron-local", None)
    )
    assert named.iteration_seconds != default.iteration_seconds


def test_a_quoted_command_keeps_its_flags():
    words = "pp4 zero2 mbs1 gbs64 seq8192 auto runtime=torchtitan"
    plan = shardwise.plan_of(shardwise.estimate("llama-3-8b", "16xh100", words))
    with pytest.raises(shardwise.InputError, match="shardwise schedule auto --plan PLAN --out FILE"):
        shardwise.export(plan, "torchtitan")


def test_a_name_with_a_nul_byte_is_no_file():
    plan = shardwise.plan_of(shardwise.estimate("llama-3-8b", "8xh100", "tp8 mbs1 gbs8 seq4096"))
    for write in (
        lambda: shardwise.write_plan(plan, "\0"),
        lambda: shardwise.write_export(shardwise.export(plan, "megatron"), "\0"),
    ):
        with pytest.raises(shardwise.ShardwiseError, match="NUL byte; nothing was written"):
            write()
