"""Flags of `estimate` on `plan`: they fix a value, as --fix does, and stay out of the help."""

from __future__ import annotations

import json

import pytest

from shardwise.cli.main import run

QUESTION = ["plan", "llama-3-8b", "-c", "8xh100", "--global-batch", "16", "--gap", "20%", "-q", "--json", "-"]
SAME = {
    "--tp 2": "tp=2",
    "--tensor-model-parallel-size 2 --micro-batch 1": "tp=2 mbs=1",
    "--no-sp --tp 2": "tp=2 nosp",
    "--pp 2 --vpp 2 --schedule interleaved": "pp=2 vpp=2 interleaved",
    "--recompute full --zero 1": "recompute=full zero1",
    "--dtype fp8 --optimizer muon": "fp8 muon",
    "--lora 16": "lora16",
}


@pytest.fixture
def asked(capsys):
    def ask(*words):
        assert run([*QUESTION, *words]) == 0
        return json.loads(capsys.readouterr().out)["inputs"]["strategy"]

    return ask


@pytest.fixture
def refused(capsys):
    def ask(*words):
        assert run([*QUESTION, *words]) == 2
        return capsys.readouterr().err

    return ask


@pytest.mark.parametrize("flags", SAME)
def test_a_flag_of_a_strategy_fixes_its_value(asked, flags):
    assert asked(*flags.split()) == asked("--fix", SAME[flags])


def test_what_cannot_be_fixed_is_refused_in_a_sentence(refused):
    assert "is decided by the search" in refused("--layers", "8,8,8,8")
    assert "'two' is not a whole number" in refused("--tp", "two")


def test_the_help_says_it_in_one_line(capsys):
    assert run(["plan", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--pp 4" in " ".join(text.split())
    assert "--tensor" not in text
    assert "--tp " not in text
