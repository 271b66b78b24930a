"""A plan may come from anybody, and an export is started: no name in it becomes a command."""

from __future__ import annotations

from dataclasses import replace

import pytest
from export_plans import DENSE, plan_of

from shardwise.frameworks.export import TARGETS, export
from shardwise.inputs.strategy import Strategy

NAME = "nice\ntouch /tmp/owned\r\ntouch /tmp/owned\x0btouch /tmp/owned\u2028touch /tmp/owned"


@pytest.mark.parametrize("target", TARGETS)
def test_a_line_break_in_a_name_ends_no_comment(target):
    runtime = TARGETS[target].runtime or "megatron"
    plan = plan_of(
        Strategy(
            pp=1 if target == "huggingface" else 2, zero=0, master="pure", global_batch=4, seq=2048, runtime=runtime
        ),
        replace(DENSE, name=NAME),
    )
    plan = replace(plan, cluster=replace(plan.cluster, name=NAME))
    for file in export(plan, target).files:
        for line in file.text.replace("\r", "\n").split("\n"):
            assert not line.strip().startswith("touch"), f"{file.name}: {line}"
