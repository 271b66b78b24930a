"""Layers and recompute per chunk: exact where possible, the objective is the simulated time."""

from shardwise.partition.problem import BalanceAnswer, Choice, End, Evaluation, Kind, KindRun, Partition, Problem
from shardwise.partition.solver import evaluate, solve

__all__ = [
    "BalanceAnswer",
    "Choice",
    "End",
    "Evaluation",
    "Kind",
    "KindRun",
    "Partition",
    "Problem",
    "evaluate",
    "solve",
]
