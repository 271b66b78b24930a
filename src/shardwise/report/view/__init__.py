"""A result as the one JSON value that the page, the server and the mailed file show; decides nothing.

    {"kind", "id", "title", "subtitle", "unit", "strategy", "axes", "numbers", "facts", "stages", "timeline", "ledger",
     "candidates", "notes"}

Times are in `unit` (seconds, or the user's own units), memory in bytes or in the user's own; what is not known is null.
"""

from shardwise.report.view.candidates import candidate_view
from shardwise.report.view.plan import plan_view
from shardwise.report.view.schedule import balance_view, balance_views, schedule_view
from shardwise.report.view.step import TOKENS, Turning, plan_around, step_view, stepped

__all__ = [
    "TOKENS", "Turning", "balance_view", "balance_views", "candidate_view", "plan_around", "plan_view",
    "schedule_view", "step_view",
    "stepped",
]  # fmt: skip
