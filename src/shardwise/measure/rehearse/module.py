"""One rank's share of a traced module's plan: what the user's own module is built and counted with."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shardwise.cost.chunk import recomputed_layers
from shardwise.errors import Fault, InputError
from shardwise.estimate.passes import SPLIT
from shardwise.estimate.setup import Setup
from shardwise.inputs.files import read_json
from shardwise.inputs.serialise import to_json
from shardwise.measure.rehearse.program import RehearsalError, read_result
from shardwise.measure.rehearse.runtime import rehearsed_setup
from shardwise.measure.rehearse.spec import (
    SCHEMA,
    Spec,
    actions_of,
    identity_of,
    kernels_of,
    states_of,
    strategy_values,
)
from shardwise.plan.plan import Plan

PROGRAM = "shardwise.measure.rehearse.shardwise_rehearse_module"
CAUSE = "the program cannot do that with another's module; the estimate stands alone there"
LONGEST = 1800.0
"""Seconds that a count may take."""


def module_spec(plan: Plan, rank: int, source: str) -> Spec:
    """The share of one pipeline rank of the module that `my_model.py:build` gives."""
    from shardwise.frameworks.torch.trace import file_of, given_sizes

    traced, setup = plan.model.traced, rehearsed_setup(plan)
    if traced is None:
        raise InputError(Fault("--trace", f"is for traced modules, and {plan.model.name} is none; leave it out"))
    _refuse(plan)
    file_of(source)
    return {
        "schema": SCHEMA,
        **identity_of(plan, rank),
        "with": "module",
        "style": "module",
        "counted_only": "only its memory can be counted",
        "source": source,
        "format": traced.dtype,
        "inputs": given_sizes(traced.inputs, plan.strategy.micro_batch, traced.dtype),
        "params": traced.params,
        "blocks": len(traced.order),
        "strategy": strategy_values(setup),
        "kernels": kernels_of(setup),
        "states": states_of(setup),
        "memory": {"gather_buffer": False, "workspace": setup.runtime.memory.workspace},
        "chunks": [_chunk(setup, index) for index in setup.rank_indices(rank)],
        "actions": actions_of(plan, setup, rank),
    }


def _chunk(setup: Setup, index: int) -> Spec:
    start, count = sum(setup.layers[:index]), setup.layers[index]
    last = index == len(setup.layers) - 1
    return {
        "range": [start, 10**9 if last else start + count], "embedding": index == 0, "head": last,
        "again": recomputed_layers(setup.strategy, index, setup.layers, count) if setup.strategy.recompute.full else 0,
    }  # fmt: skip


def _refuse(plan: Plan) -> None:
    """Everything at once that cannot be counted."""
    s = plan.strategy
    unfit = {
        "tp": s.tp > 1,
        "schedule": s.pp > 1 and s.schedule in SPLIT | {"auto", "seq-1f1b"},
        "recompute": s.recompute.full and s.recompute.group > 1,
        "offload": s.offload != "none",
        "optimizer": s.optimizer in {"muon", "adamw-bf16"},
        "dtype": s.dtype == "fp32",
    }
    faults = [Fault(f"strategy.{name}", f"is {getattr(s, name)!s}: {CAUSE}") for name in unfit if unfit[name]]
    if faults:
        raise InputError(faults)


def count_module(spec: Spec) -> dict[str, Any]:
    """Count it in a process of its own, which executes the user's file."""
    with tempfile.TemporaryDirectory() as folder:
        share, out = Path(folder) / "spec.json", Path(folder) / "result.json"
        share.write_text(to_json(spec), encoding="utf-8")
        words = [sys.executable, "-m", PROGRAM, str(share), str(out)]
        try:
            done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=LONGEST)  # noqa: S603 - our own
        except subprocess.TimeoutExpired:
            raise RehearsalError(f"the count took longer than {LONGEST:g} s; rehearse fewer micro batches") from None
        if not out.is_file():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RehearsalError(f"the count ended without a result: {last[:400]}")
        data = read_json(out)
        if isinstance(data, dict) and data.get("error"):
            raise InputError(str(data["error"]))
        return read_result(out)
