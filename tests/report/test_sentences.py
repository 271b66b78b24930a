"""The server's sentences in Chinese: a drawn set of steps, views and refusals is said in full by the page's table."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import shardwise
from shardwise.errors import InputError, ShardwiseError
from shardwise.inputs.load import gpu_names, load_runtime, model_names, named_cluster, named_model, runtime_names
from shardwise.report.page import asset_text
from shardwise.report.view import Turning, plan_view, step_view, stepped
from shardwise.web import answers

_TEXT = asset_text("sentences.js").partition("export const WORDS")[0]
TABLE = [json.loads(row) for row in re.findall(r'^  (\[".*"\]),$', _TEXT, re.MULTILINE)]
PATTERNS = [re.compile(re.sub(r"\\\{\d\\\}", "(.+?)", re.escape(english))) for english, _ in TABLE]
KEY = re.compile(r"([\w.-]+|[a-z ]+ (?:communication|and recurrence)): ")
LINES = ("tp2 pp2", "tp8 pp4", "pp4 vpp2", "tp4 cp2", "zero3", "pp8 zb-v", "ep2", "fp8 tp4", "tp64 pp3", "pp2 mbs8")
ASKED = {"model": "llama-3-8b", "cluster": "8xh100", "global_batch": 16, "seq": 4096}
NONSENSE = (
    "nonsense", "tp3.5", "tp2 tp4", "recompute=foo", "fp9", "runtime=foo", "layers=a", "optimizer=foo", "mbs0", "dp3",
    "tp999999999999", "vpp2 pp2 zb-h1",
)  # fmt: skip
WRONG = (
    {"model": "llama-9"}, {"cluster": "8xh101"}, {"cluster": "0xh100"}, {"global_batch": None}, {"global_batch": 0},
    {"seq": 4097.5}, {"seq": 10**10}, {"only": "tp<=foo"}, {"memory_margin": "abc"}, {"memory_margin": "900GiB"},
    {"memory_margin": "6"}, {"gap": 2}, {"time_limit": 0}, {"time_limit": 1e9},
)  # fmt: skip


def left(sentence):
    """The clauses of a sentence that the table has no words for; sentences.js and i18n.js say how it is read."""
    rest = KEY.sub("", sentence, count=1) if KEY.match(sentence) else sentence
    clauses = rest.split(", ") if " -> " in rest else rest.split("; ")
    return [one for one in clauses if not any(pattern.fullmatch(one) for pattern in PATTERNS)]


def notes(ledger):
    yield from filter(None, [ledger.get("note")])
    for part in ledger.get("parts", ()):
        yield from notes(part)


def told_of(model, cluster, strategy):
    at = Turning(model=model, cluster=cluster, runtime=load_runtime(strategy.runtime))
    found = step_view(at, strategy, ways=True)
    yield from found["faults"]
    yield from (way["change"] for way in found.get("ways", ()))
    yield from (choice["fault"] for knob in found["knobs"] for choice in knob["choices"] if "fault" in choice)
    if not found["faults"]:
        view = plan_view(shardwise.plan_of(shardwise.estimate(model, cluster, strategy)))
        yield from view["notes"]
        yield from (text for key, text in view["facts"] if key not in {"cluster", "runtime"})
        for ledger in (view["ledger"]["time"], *view["ledger"]["memory"]):
            yield from notes(ledger)


@pytest.mark.parametrize("seed", range(12))
def test_every_sentence_of_a_drawn_step_has_its_chinese(seed):
    rng = np.random.default_rng(seed)

    def one_of(names):
        return names[rng.integers(len(names))]

    model = named_model(one_of(model_names()))
    cluster = named_cluster(f"{one_of((8, 16, 64))}x{one_of(gpu_names())}")
    runtime = one_of((*runtime_names(), *["megatron"] * len(runtime_names())))
    base = shardwise.load_strategy(one_of(LINES), cluster, global_batch=64, seq=4096, runtime=runtime)
    for change in ("", "tp1", "pp2", "recompute=full"):
        strategy = stepped(base, change, cluster) if change else base
        for sentence in dict.fromkeys(told_of(model, cluster, strategy)):
            assert not left(sentence), sentence


@pytest.mark.parametrize(
    ("verb", "asked"),
    [
        *(("step", {"question": ASKED, "strategy": line}) for line in NONSENSE),
        *(("question", ASKED | wrong) for wrong in WRONG),
    ],
)
def test_every_refusal_of_what_is_typed_has_its_chinese(verb, asked):
    try:
        found = getattr(answers, verb)(json.dumps(asked).encode())
        said = found.get("faults", ())
    except InputError as error:
        said = [fault.message for fault in error.faults]
    except ShardwiseError as error:
        said = [str(error)]
    for sentence in said:
        assert not left(sentence), sentence


def test_places_are_the_same_in_both_languages():
    for english, chinese in TABLE:
        assert set(re.findall(r"\{\d\}", english)) == set(re.findall(r"\{\d\}", chinese)), english
    assert len({english for english, _ in TABLE}) == len(TABLE)
