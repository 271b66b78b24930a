"""SAPP's instances, their plans and what SAPP's readme prints, for the tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from shardwise.partition.graph import Ready
from shardwise.partition.readers.problem_file import problem_from

DATA = json.loads(Path(__file__).with_name("instances.json").read_text(encoding="utf-8"))
INSTANCES = {entry["problem"]["id"][:2]: entry for entry in DATA["instances"]}


def instance(name: str):
    return problem_from(INSTANCES[name]["problem"])


def counts_of(ready: Ready, counts: dict[str, list[list[int]]]):
    names = [choice.name for choice in ready.problem.runs[0].kind.choices]
    table = np.zeros((ready.chunks, ready.options), dtype=np.int32)
    for name, rows in counts.items():
        table[:, names.index(name)] = np.array(rows).ravel()
    return table
