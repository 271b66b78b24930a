"""The page of the Python API: what can be imported, with signatures, fields and their meanings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from importlib import import_module

from making import MARK, cell
from making.fields import results
from shardwise.inputs.describe import texts_of

LEAD = """`import shardwise` gives the names of the first part; the others are imported from their modules, as written.
All values are frozen: `dataclasses.replace` makes changed copies. Seconds, bytes and operations are plain floats. What
is wrong with an input raises `shardwise.ShardwiseError` with a sentence; `InputError` carries all faults. How to use
them: [from Python](../how-to/python.md)."""
PARTS: dict[str, tuple[str, ...]] = {
    "shardwise": (
        "load_model", "load_cluster", "load_strategy", "load_problem", "Strategy.parse", "estimate", "advise", "detail",
        "check", "plan", "plan_of", "why", "what_if", "sweep", "plan_operators", "schedule", "simulate", "timeline",
        "iteration", "rank_passes", "rank_allocations", "balance", "balance_plan", "export", "write_export", "validate",
        "validate_advice", "calibrate", "store_calibration", "rehearse", "launch", "watch", "read_plan", "write_plan",
        "diff", "diff_orders", "Model", "Cluster", "Strategy", "Estimate", "Answer", "OperatorAnswer", "Plan", "Why",
        "WhatIf", "Scheduled", "Replay", "Timeline", "Iteration", "OrderDiff", "Costs", "Problem", "BalanceAnswer",
        "Balanced", "Export", "Validation", "Advice", "Calibrated", "Rehearsal", "Launched", "Watched",
        "ShardwiseError",
    ),
    "shardwise.estimate.estimate": ("Stage",),
    "shardwise.estimate.detail": ("Detail", "GroupRate"),
    "shardwise.plan.inside": ("RankPasses",),
    "shardwise.estimate.operators": ("PassTrace", "OpRun"),
    "shardwise.estimate.allocations": ("Allocations", "Allocation"),
    "shardwise.estimate.iteration": ("PassTraffic", "Stretch", "Lane"),
    "shardwise.cost.work": ("StageWork",),
    "shardwise.cost.memory": ("RankMemory",),
    "shardwise.cost.ledger": ("Ledger",),
    "shardwise.measure.validate.advice": ("Advised",),
    "shardwise.measure.logs.record": ("StepRecord", "RunLog"),
    "shardwise.measure.logs.steady": ("Steady",),
    "shardwise.measure.compare": ("RunLine",),
    "shardwise.measure.watch.drift": ("Drift",),
    "shardwise.search.question": ("Candidate",),
    "shardwise.plan.order_diff": ("OrderSide",),
    "shardwise.pipeline.compare": ("RankDiff", "Moved"),
    "shardwise.pipeline.generate": ("generate",),
    "shardwise.pipeline.costs": ("costs",),
    "shardwise.report.markdown": ("plan_markdown", "estimate_markdown", "diff_markdown"),
}  # fmt: skip
SEEN_ELSEWHERE = {"Model": "model.md", "Cluster": "cluster.md", "Strategy": "strategy.md"}


def page() -> str:
    """The text of the page."""
    parts = ["# Python", MARK, LEAD]
    for module, names in PARTS.items():
        parts.append(f"## {module}")
        for name in names:
            parts += _entry(module, name)
    return "\n\n".join(parts) + "\n"


def _entry(module: str, name: str) -> Iterator[str]:
    found = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if name in SEEN_ELSEWHERE:
        yield f"### {name}\n\n{_doc(found)} Its fields: [{name.lower()}]({SEEN_ELSEWHERE[name]})."
    elif inspect.isclass(found):
        yield f"### {name}\n\n{_doc(found)}"
        yield from _fields(found)
    else:
        yield f"### {name}\n\n```text\n{_signature(name, found)}\n```\n\n{_doc(found)}"


def _fields(kind: type) -> Iterator[str]:
    if is_dataclass(kind):
        yield results(kind)
    elif hasattr(kind, "_fields"):
        texts = texts_of(kind)
        rows = [f"| `{name}` | {cell(texts.get(name, ''))} |" for name in kind._fields]
        yield "\n".join(["| field | meaning |", "|---|---|", *rows])
    rows = [f"| `.{name}` | {cell(_doc(item))} |" for name, item in _members(kind) if item.__doc__]
    if rows:
        yield "\n".join(["| also | |", "|---|---|", *rows])


def _members(kind: type) -> list[tuple[str, object]]:
    """Public properties and methods that are written in the class."""
    return [
        (name, item)
        for name, item in vars(kind).items()
        if not name.startswith("_") and (isinstance(item, property) or inspect.isfunction(item))
    ]


def _signature(name: str, call: Callable[..., object]) -> str:
    """The signature without module names; long ones a line an argument."""
    signature = str(inspect.signature(call))
    signature = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", signature)
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)
    signature = re.sub(r"= <function .*? at 0x[0-9a-f]+>", "= ...", signature)
    line = f"{name}{signature}"
    if len(line) <= 110:
        return line
    inner, _, result = signature.rpartition(") -> ")
    arguments = re.split(r", (?![^\[(]*[\])])", inner[1:])
    return f"{name}(\n    " + ",\n    ".join(arguments) + f",\n) -> {result}"


def _doc(item: object) -> str:
    """The first docstring as one paragraph; a value's own docstring, not its type's."""
    text = inspect.getdoc(item) or ""
    return " ".join(text.split())
