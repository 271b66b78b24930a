"""The answer that the page opens on: what a search finds for the page's own question, kept beside the server."""

from __future__ import annotations

import json
from pathlib import Path

import shardwise
from shardwise.plan.file import plan_table
from shardwise.report.view.remembered import words_of
from shardwise.search.api import plan_file_of
from shardwise.web import first

FILE = Path(first.__file__).with_name(first.NAME)


def text() -> str:
    """The file's text; takes the seconds of a search."""
    answer = shardwise.plan(**first.QUESTION)
    plan = plan_table(plan_file_of(answer))
    plan.pop("run", None)  # seconds of one machine
    return json.dumps({"plan": plan, **words_of(answer)}, separators=(",", ":")) + "\n"
