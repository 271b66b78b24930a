"""Actions, costs, the event engine and the timeline it gives."""

from shardwise.simulate.action import Action, Schedule, placed
from shardwise.simulate.costs import Costs, costs, limit_of
from shardwise.simulate.engine import simulate
from shardwise.simulate.timeline import Step, Timeline

__all__ = ["Action", "Costs", "Schedule", "Step", "Timeline", "costs", "limit_of", "placed", "simulate"]
