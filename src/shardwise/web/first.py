"""The finished answer that an empty page opens on: strategies found before, their figures computed here and now."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from shardwise import api

QUESTION = {"model": "llama-3-70b", "cluster": "64xh100", "global_batch": 1024, "seq": 8192}
"""What the page's form says where nobody has said anything else."""
NAME = "first.json"
"""The file that `make docs-outputs` writes: the plan with its proof, and the strategies that were looked at."""


@cache
def first() -> dict[str, Any]:
    """The answer; none where the catalog of this machine says something else of the model or the cluster."""
    from shardwise.report.view import TOKENS
    from shardwise.report.view.remembered import answered_view

    kept = json.loads((files("shardwise.web") / NAME).read_text(encoding="utf-8"))
    plan = api.plan_from(kept.pop("plan"), NAME)
    same = (plan.model, plan.cluster) == (api.load_model("llama-3-70b"), api.load_cluster("64xh100"))
    return {"done": answered_view(plan, kept, TOKENS) if same else None}
