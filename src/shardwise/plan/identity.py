"""The name of a plan: a short hash of what it decides."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from shardwise.inputs.plan_file import Plan, plan_text

LENGTH = 12


def plan_id(plan: Plan) -> str:
    """The same for the same inputs, partition and schedule; a new prediction of them does not change it."""
    decided = replace(plan, predictions=None, proof=None, provenance=None, run=None)
    return hashlib.sha256(plan_text(decided).encode()).hexdigest()[:LENGTH]
