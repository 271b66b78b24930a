"""GPipe, 1F1B and sequence-split 1F1B: one chunk a rank, full backwards.

Sources: Huang et al., "GPipe" (2019); Narayanan et al., "PipeDream" and "Memory-efficient pipeline-parallel DNN
training" (2020); Ao et al., "Seq1F1B" (2024), the `-seq` of SAPP. Backwards run in the order of the forwards, as
Megatron and PyTorch do.
"""

from __future__ import annotations

import numpy as np

from shardwise.pipeline.action import B, Codes, Schedule


def _row(forwards: Codes, backwards: Codes, warmup: int) -> Codes:
    """Warm-up forwards, then one forward and one backward in turn, then the rest of the backwards."""
    total = len(forwards)
    warmup = min(warmup, total)
    steady = np.empty(2 * (total - warmup), dtype=np.int64)
    steady[0::2] = forwards[warmup:]
    steady[1::2] = backwards[: total - warmup]
    return np.concatenate((forwards[:warmup], steady, backwards[total - warmup :]))


def _one_chunk(pp: int, units: int, order: Codes, warmups: list[int], name: str) -> Schedule:
    forward = np.arange(units, dtype=np.int64)
    rows = tuple(_row(rank * units + forward, (B * pp + rank) * units + order, warmups[rank]) for rank in range(pp))
    return Schedule(codes=rows, chunks=pp, microbatches=units, name=name)


def gpipe(pp: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards."""
    return _one_chunk(pp, microbatches, np.arange(microbatches), [microbatches] * pp, "gpipe")


def one_f_one_b(pp: int, microbatches: int) -> Schedule:
    """Pp - rank - 1 warm-up forwards, then one forward and one backward in turn."""
    warmups = [pp - rank - 1 for rank in range(pp)]
    return _one_chunk(pp, microbatches, np.arange(microbatches), warmups, "1f1b")


def seq_one_f_one_b(pp: int, microbatches: int, splits: int) -> Schedule:
    """1F1B over pieces of sequences; the pieces of a micro batch go back last first, as attention is causal.

    A piece counts as a micro batch of the schedule: piece k of micro batch m is number m x splits + k.
    """
    pieces = np.arange(microbatches)[:, None] * splits + np.arange(splits)[::-1]
    warmups = [pp - rank - 1 + splits - 1 for rank in range(pp)]
    return _one_chunk(pp, microbatches * splits, pieces.ravel(), warmups, "seq-1f1b")
