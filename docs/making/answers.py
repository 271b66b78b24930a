"""The page of the JSON answers: every verb is run once, and what it writes is listed with the fields' own meanings."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from making import DOCS, MARK, cell
from shardwise.cli.main import run
from shardwise.cost.memory import RankMemory
from shardwise.cost.update import Update
from shardwise.cost.work import StageWork
from shardwise.estimate.advice import Change
from shardwise.estimate.detail import GroupRate
from shardwise.estimate.goodput import Budget
from shardwise.estimate.predictions import Predictions, Searched, Stage
from shardwise.inputs.cluster import Level
from shardwise.inputs.describe import texts_of
from shardwise.pipeline.compare import Moved, RankDiff
from shardwise.plan.file import Difference
from shardwise.plan.plan import Plan, Proof, ProofPart, Provenance, Subject
from shardwise.search.question import Candidate, NearestRun, Proposal
from shardwise.search.sweep import Cell

LEAD = """`--json FILE` writes the answer of a verb for programs; `--json -` writes it to standard output in place of
the text. Times are seconds, sizes bytes, shares plain numbers; ledgers are `{"name", "value", "note", "parts"}`. What
is not known is absent or null. `schema` names the verb and a version, which goes up when a key goes away or means
something else; new keys may come at any time, and the answers of `plan` and `show` are plan files. The same question
gives the same bytes, but for times of computation. Below: what
each verb writes for one small question (lists show their first entry)."""
RUNS: dict[str, str] = {
    "estimate": "estimate llama-3-8b -c 8xh100 -s 'tp2 pp2 gbs16 seq4096' --explain --out plan.json",
    "plan": "plan llama-3-8b -c 8xh100 --global-batch 16 --only 'tp<=2 pp<=2' --gap 5% --out best.json",
    "show": "show plan.json",
    "diff": "diff plan.json best.json",
    "why": "why plan.json 'tp4 pp1'",
    "what-if": "what-if plan.json --gpus 16 --gap 20%",
    "sweep": "sweep llama-3-8b -c 8xh100 --global-batch 16 --seq 4096 --only 'tp<=2 pp1' --tokens 1T",
    "balance": "balance --problem docs/how-to/balance-example.json",
    "schedule": "schedule 1f1b --pp 2 --microbatches 4 --costs 10,11,9 --csv order.csv",
    "simulate": "simulate order.csv --costs 10,11,9",
    "diff of orders": "diff order.csv docs/how-to/their-order.csv --costs 10,11,9",
    "export": "export plan.json --to megatron --out run",
    "check": "check llama-3-8b -c 8xh100 -s 'tp2 pp2 gbs16 seq4096'",
    "models": "models llama-3-8b",
    "clusters": "clusters 8xh100",
}
LEFT_OUT = """`validate` writes a row for every measured run and a summary ([how](../how-to/validate.md)); `calibrate`,
`probe`, `rehearse`, `launch` and `watch` write what they fitted or measured ([calibrate](../how-to/calibrate.md),
[rehearse](../how-to/rehearse.md), [launch and watch](../how-to/launch.md)). Where nothing fits, `plan` writes
`{"fits": "no", "closest", "why", "search"}`, with the ways out in `closest.ladder`, and the exit code is 1. The
`seconds`, `slower` and `dearer` of a way out are what it costs at most: planning it again may find a faster one."""
TYPES: dict[str, type] = {
    "": Plan, "predictions": Predictions, "predictions.stages[]": Stage, "predictions.memory[]": RankMemory,
    "predictions.update": Update, "predictions.search": Searched, "provenance": Provenance, "proof": Proof,
    "proof.of": Subject, "proof.parts[]": ProofPart, "advice[]": Change, "top[]": Candidate,
    "plans.recommended": Proposal, "plans.nearest": NearestRun,
    "work[]": StageWork, "groups[]": GroupRate, "differences[]": Difference, "outdated[]": Difference, "cells[]": Cell,
    "cells[].budget": Budget, "levels[]": Level, "ranks[]": RankDiff, "ranks[].moved[]": Moved,
}  # fmt: skip
"""Where a table stands -> the type whose fields it holds."""
OWN = {
    "strategy": "The [strategy in one line](strategy-text.md).",
    "inputs": "Model, cluster and strategy in full.",
    "work": "Operations and bytes accessed of one micro batch on one GPU, one entry a pipeline rank.",
    "groups": "What every communication group reaches with its largest message of a kind.",
    "groups[].ranks": "Members of the group.",
    "groups[].collective": "all-gather, reduce-scatter, all-reduce, all-to-all, ring (keys passed on) or send.",
    "advice": "Changes that would help, the best first.",
    "advice[].change": "What to change.",
    "outdated": "Figures of a file (`left`) that are not the cost model's (`right`, and shown here) by over 0.1%.",
    "outdated.left": "Of the first plan's file.",
    "outdated.right": "Of the second plan's.",
    "schema": "Whose answer it is and how its keys are meant; of a plan see [the plan file](plan-file.md).",
    "top": "The best strategies, one for every layout, and the answer's own plans.",
    "top[].roles": "Which plan of the answer it is: recommended, fastest, simplest.",
    "plans": "The [plans of the answer](../explain/advice.md).",
    "plans.recommended": "That of least expected regret; the fastest with `--fastest`.",
    "plans.fastest": "The fastest of the space, which the bound is about; keys as of `recommended`.",
    "plans.simplest": "The simplest that is as fast as far as can be told; likewise.",
    "plans.recommended.likely": "Within that error, yet likely `slower` or `faster`; else empty.",
    "plans.recommended.within_error": "Within the error of the fastest one (of the fastest: of the recommended one).",
    "plans.nearest": "The measured run that is nearest; none where the search was stopped.",
    "plans.nearest.id": "Its row of `validate`.",
    "plans.nearest.model": "Its model.",
    "plans.nearest.cluster": "What it ran on.",
    "plans.nearest.predicted_seconds": "What we predict of it.",
    "plans.nearest.sentence": "All of it in words.",
    "iteration_seconds": "Seconds of one iteration.",
    "iteration_seconds_interval": "Nine runs in ten take between these.",
    "plan_iteration_seconds": "Of the plan.",
    "plan_iteration_seconds_interval": "Nine runs in ten of the plan take between these.",
    "total_bytes_interval": "Nine runs in ten need between these.",
    "fits_probability": "That what is needed is no more than the device has.",
    "likely": "Within the error, yet likely `slower` or `faster` than the other; else empty.",
    "within_error": "Nearer to the other than the error of the difference: neither is the faster one.",
    "microbatches": "Micro batches per iteration and replica.",
    "tokens_per_second_per_gpu": "Throughput.",
    "schedule": "Name of the order of the passes.",
    "memory_limit": "Bytes that a rank may need in all.",
    "predictions.stages[].forward": "Forward pass.",
    "predictions.stages[].recompute": "What of the backward pass is forward work done again.",
    "predictions.update.reduce_exposed": "What of it is not hidden behind the passes.",
    "predictions.update.gather_exposed": "What of it is not hidden.",
    "rank": "Pipeline rank.",
    "bound": "Nothing takes less, under the cost model in use.",
    "gap": "Value / bound - 1.",
    "cpu_seconds": "CPU time of the search.",
    "screen_cpu_seconds": "Of that, for bounds.",
    "kernels": "Whether the [C kernels](../explain/kernels.md) did the work; in any answer where they were missing.",
    "valid": "Whether it can run.",
    "faults": "Everything that is wrong: path and message.",
    "makespan": "First start to last end on any rank.",
    "period": "The longest span of a rank.",
    "bubble": "Synchronous: 1 - work / makespan.",
    "period_bubble": "1 - work / longest span of a rank.",
    "seed_rate": "Largest idle of a rank after its first forward, over its work.",
    "bubbles": "The synchronous bubble by cause.",
    "period_bubbles": "The period bubble by cause.",
    "peak": "Most that every rank holds.",
    "proven": "Whether value and bound meet.",
    "objective": "makespan or period.",
    "choice": "Which alternative every chunk takes.",
    "proof": "What `simulate` checks: see [the proof](../explain/bubbles-and-bounds.md).",
    "hash": "Of the question: SHA-256 of its JSON with sorted keys.",
    "question": "What was asked: costs, links, limits and ranks.",
    "rank_of": "The rank of every chunk.",
    "cases": "By case and chunk, the alternatives that may be taken; together they hold every mix once.",
    "change": "What is different.",
    "sentence": "Why it lost.",
    "slower": "Seconds over the plan's, less 1.",
    "missing_bytes": "What the fullest rank lacks; 0: it fits.",
    "parts": "Parts of the time, largest loss first.",
    "parts[].plan": "Seconds in the plan.",
    "parts[].other": "Seconds in the other.",
    "parts[].lost": "The difference.",
    "differences": "What differs, `run` aside.",
    "equal": "Whether the same actions come in the same order.",
    "left": "The first order.",
    "right": "The second one; keys as of `left`.",
    "actions": "Actions of all ranks.",
    "fault": "Why it cannot run; null: it can.",
    "costs": "Whose costs the times are of: `given`, or the file that came with some; null: none are known.",
    "ranks": "In what the rows of every rank differ.",
    "ranks[].moved[].action": "What has moved.",
    "pp": "Pipeline ranks.",
    "vpp": "Chunks a rank.",
    "the plan as it is": "On its own cluster.",
    "the same strategy there": "On the other cluster.",
    "the best there": "Planned anew, under the conditions.",
    "conditions": "What strategies had to keep: the plan's own `--only` and `--fix`, and those that were typed.",
    "mfu": "Model operations (causal attention) over the peak.",
    "total_bytes": "What the fullest rank's device must have.",
    "fits": "yes, no, or close: within the memory model's error, or balance's margin, of the limit.",
    "cells": "One entry a point of the grid.",
    "target": "Framework and version.",
    "speaks": "That version in words.",
    "plan": "The plan's id.",
    "losses": "What is not as planned.",
    "by_hand": "What must be said elsewhere.",
    "files": "Names of the files.",
    "model": "All fields of the [model](model.md).",
    "gpu": "All fields of the GPU ([cluster](cluster.md)).",
    "gpus": "GPUs in all.",
    "levels": "The network from the inside out.",
    "host_bandwidth": "Bytes per second between a GPU and its host.",
    "host_memory": "Bytes of a node's host memory.",
    "parameters": "Parameters by block.",
    "active": "Parameters that one token uses.",
    "simulated": "Time of the best partition.",
    "seconds": "CPU seconds taken.",
    "method": "How the bound was proven.",
    "evaluations": "Partitions whose time was computed.",
    "interrupted": "Stopped by Ctrl-C: the best so far.",
    "out_of_time": "Stopped by the time limit.",
    "layers": "Layers of every chunk, in model order.",
    "counts": "Recompute choice -> layers of every chunk with it.",
    "counts_by_kind": "The same for every kind of layer.",
    "limits": "Memory limit of every rank.",
    "bubble.real": "pp x end / model time - 1 = ideal + imbalance + recompute (SAPP's).",
    "mindformers": "The lists for its YAML.",
    "compared": "Other strategies beside it, each with its bubble in the same parts.",
    "name": "Its name.",
}
"""Path, or last name, -> meaning, where no field says it."""
_KINDS = {bool: "switch", int: "number", float: "number", str: "text", type(None): "null", list: "list", dict: "table"}


def page() -> str:
    """The text of the page."""
    parts = ["# The answers in JSON", MARK, LEAD]
    for verb, (command, answer) in _answers().items():
        rows = [f"| `{path}` | {kind} | {cell(_meaning(path))} |" for path, kind in _shown(verb, answer)]
        parts += [f"## {verb}", f"```sh\nshardwise {command} --json answer.json\n```"]
        parts.append("\n".join(["| key | value | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join([*parts, LEFT_OUT]) + "\n"


def _shown(verb: str, answer: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any JSON value
    """What is listed: predictions once, under `plan`; of entries that are alike the first."""
    for path, kind in _shape(answer):
        again = path.startswith(("the same strategy there.", "the best there.", "plans.fastest.", "plans.simplest."))
        if not again and (verb == "plan" or not path.startswith("predictions.")):
            yield path, f"{kind}, as of `plan`" if path == "predictions" and verb != "plan" else kind


def _meaning(path: str) -> str:
    """From the string under the field, or from ours."""
    parent, _, name = path.rpartition(".")
    if path in OWN and (parent or path not in texts_of(Plan)):
        return OWN[path]
    return (texts_of(TYPES[parent]).get(name, "") if parent in TYPES else "") or OWN.get(name, "")


def _answers() -> dict[str, tuple[str, Any]]:
    """Verb -> its command and what it wrote."""
    answers: dict[str, tuple[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("docs").symlink_to(DOCS)
        for verb, command in RUNS.items():
            words = [*shlex.split(command), "--quiet", "--json", "answer.json"]
            told = StringIO()
            with (
                Path(os.devnull).open("w", encoding="utf-8") as nowhere,
                redirect_stdout(nowhere),
                redirect_stderr(told),
            ):
                code = run(words)
            if code:
                raise RuntimeError(f"shardwise {command}: exit code {code}: {told.getvalue()}")
            answers[verb] = command, json.loads(Path("answer.json").read_text(encoding="utf-8"))
    return answers


def _shape(value: Any, at: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any JSON value
    """Paths of the keys and what stands there, two levels deep; of lists the first entry."""
    if isinstance(value, list):
        first = value[0] if value else None
        if at:
            yield at, f"list of {_KINDS[type(first)]}s" if value else "list"
        if isinstance(first, dict) and depth < _DEEP:
            yield from _shape(first, f"{at}[]", depth)
        return
    if at and not at.endswith("[]"):
        yield at, _KINDS[type(value)]
    if isinstance(value, dict) and depth < _DEEP and at.rpartition(".")[2] not in _FOLDED:
        for key in value:
            yield from _shape(value[key], f"{at}.{key}" if at else key, depth + 1)


_DEEP = 3
_FOLDED = {
    "inputs",
    "axes",
    "time",
    "peak",
    "model",
    "cluster",
    "gpu",
    "flops",
    "bubbles",
    "period_bubbles",
    "parameters",
}
"""Tables whose keys are said elsewhere, or are data."""
