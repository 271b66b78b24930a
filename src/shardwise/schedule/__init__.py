"""The order of work in a pipeline: published schedules by name, an optimiser with proven gaps, checks."""

from shardwise.schedule.alternatives import optimise_alternatives
from shardwise.schedule.bounds import Bound, lower_bound
from shardwise.schedule.generate import SHAPES, generate, split_costs
from shardwise.schedule.mixes import mix
from shardwise.schedule.optimise import Answer, bound_of, optimise
from shardwise.schedule.validate import ScheduleError, find_fault, validate

__all__ = [
    "SHAPES", "Answer", "Bound", "ScheduleError", "bound_of", "find_fault", "generate", "lower_bound", "mix",
    "optimise", "optimise_alternatives", "split_costs", "validate",
]  # fmt: skip
