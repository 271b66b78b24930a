"""Flags of `estimate` on `plan`: they fix a value, as --fix does, and stay out of the help."""

from __future__ import annotations

import json

import click
import pytest

from shardwise.cli.main import run
from shardwise.cli.program import group

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


def test_a_sweep_takes_the_same_flags(capsys):
    words = ["sweep", "llama-3-8b", "-c", "8xh100", "--global-batch", "16", "--gap", "20%", "-q", "--json", "-"]
    assert run([*words, "--tp", "2", "--fix", "pp=1"]) == 0
    assert "tp2 pp1" in json.loads(capsys.readouterr().out)["cells"][0]["strategy"]


@pytest.mark.parametrize(
    ("verb", "old", "new"),
    [
        ("schedule", "--memory-limit", "--memory"), ("schedule", "--time-limit", "--time"),
        ("simulate", "--memory-limit", "--memory"), ("balance", "--time-limit", "--time"),
        ("balance", "--write-plan", "--out"), ("plan-operators", "--time-limit", "--time"),
        ("plan", "--global-batch-size", "--global-batch"),
    ],
)  # fmt: skip
def test_one_name_for_one_option_and_the_old_ones_still_work(verb, old, new):
    command = group.get_command(click.Context(group), verb)
    option = next(param for param in command.params if new in param.opts)
    assert old in option.opts
    told = command.get_help(click.Context(command))
    assert f"{new} " in told
    assert f"{old} " not in told


def test_the_help_of_plan_is_grouped_and_leaves_nothing_out():
    command = group.get_command(click.Context(group), "plan")
    context = click.Context(command, max_content_width=110, terminal_width=110)
    told = command.get_help(context)
    assert told.index("What to train") < told.index("Which strategies") < told.index("What to write")
    assert all(
        param.opts[0] in told for param in command.params if isinstance(param, click.Option) and not param.hidden
    )
    assert len(told.splitlines()) <= 55
