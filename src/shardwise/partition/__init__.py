"""Layers and recompute per chunk: exact where possible, the objective is the simulated time."""

from shardwise.partition.problem import Answer, Choice, End, Evaluation, Kind, Partition, Problem, Run
from shardwise.partition.solver import evaluate, solve

__all__ = ["Answer", "Choice", "End", "Evaluation", "Kind", "Partition", "Problem", "Run", "evaluate", "solve"]
