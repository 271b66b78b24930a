"""The plainest bound: the fewest GPU seconds of every operator, evenly spread."""

from __future__ import annotations

import numpy as np

from shardwise.plan.per_op.space import gpu_counts
from shardwise.plan.per_op.tables import tables_of
from shardwise.plan.per_op.types import Question


def least_work(question: Question, micro_batch: int) -> np.ndarray:
    """The fewest GPU seconds of every operator of the chain; infinite where no stage can run the micro batch."""
    least = np.full(len(question.profile.ops), np.inf)
    for gpus in gpu_counts(question):
        tables = tables_of(question, micro_batch, gpus)
        if tables.layouts:
            least = np.minimum(least, gpus * tables.work.min(axis=0))
    found: np.ndarray = least[np.array(question.chain.rows)]
    return found


def plain_bound(question: Question, micro_batch: int) -> float:
    """The plainest bound: all GPU seconds, evenly spread."""
    passes = max(1, question.global_batch // micro_batch)
    return passes * float(least_work(question, micro_batch).sum()) / question.gpus
