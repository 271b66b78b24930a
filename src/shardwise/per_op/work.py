"""The plainest bound: the fewest GPU seconds of every operator, evenly spread."""

from __future__ import annotations

import numpy as np

from shardwise.per_op.question import Question
from shardwise.per_op.space import gpu_counts
from shardwise.per_op.tables import NEVER, tables_of


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
    passes = question.passes(micro_batch)
    spread = float(least_work(question, micro_batch).sum()) / question.gpus
    return question.pricing.beside(passes) + passes * spread


def longest_stage(question: Question, micro_batch: int) -> float:
    """Seconds that no stage exceeds, whatever its operators, layouts and flags: above it no bound need be believed."""
    most = 0.0
    for gpus in gpu_counts(question):
        tables = tables_of(question, micro_batch, gpus)
        if not tables.layouts:
            continue
        changes = np.where(tables.cross < NEVER, tables.cross, 0.0).max(axis=(1, 2))
        each = np.maximum(0.0, (tables.work + np.maximum(0.0, tables.forward)).max(axis=0) + changes)
        ends = max(0.0, float(tables.enter.max())) + max(0.0, float(tables.leave.max()))
        most = max(most, float(each[tables.rows].sum()) + ends)
    return most * (1 + 1e-9)
