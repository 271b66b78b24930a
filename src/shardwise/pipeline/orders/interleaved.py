"""Interleaved 1F1B (Megatron) and SAPP's low-memory interleave: several chunks a rank, full backwards.

Sources: Narayanan et al., "Efficient large-scale language model training on GPU clusters" (2021), with
Megatron-Core's micro batch group size; SAPP's `-lm` (seed 001): the same order with a shorter warm-up.
"""

from __future__ import annotations

import numpy as np

from shardwise.errors import InputError
from shardwise.pipeline.action import B, Codes, Schedule
from shardwise.pipeline.orders.one_f_one_b import _row


def interleaved(pp: int, vpp: int, microbatches: int, group: int = 0) -> Schedule:
    """Warm-up of 2 (pp - rank - 1) + (vpp - 1) x group chunks; `group` micro batches go through a chunk at a time."""
    group = group or pp
    if group < pp and microbatches > group and vpp > 1:
        raise InputError(
            f"micro batch group {group} is below pp {pp}: the next chunk would wait for the last rank; use {pp} or more"
        )
    if vpp > 1 and 0 < microbatches % group < pp < microbatches:
        raise InputError(
            f"the last group has {microbatches % group} of {microbatches} micro batches, fewer than pp {pp}: "
            f"interleaved 1F1B would stop; make micro batches a multiple of {group} or leave at least {pp}"
        )
    warmups = [2 * (pp - rank - 1) + (vpp - 1) * group for rank in range(pp)]
    return _interleave(pp, vpp, microbatches, _groups(microbatches, group), warmups, "interleaved")


def low_memory(pp: int, vpp: int, microbatches: int) -> Schedule:
    """Groups of pp micro batches, warm-up of vpp x pp - rank - 1 chunks; the remainder joins the first group."""
    if microbatches % pp:
        raise InputError(
            f"{microbatches} micro batches are not a multiple of pp {pp}: the low-memory interleave can deadlock "
            f"there; use {microbatches - microbatches % pp or pp} or {microbatches + pp - microbatches % pp}"
        )
    warmups = [vpp * pp - rank - 1 for rank in range(pp)]
    return _interleave(pp, vpp, microbatches, _groups(microbatches, pp), warmups, "low-memory")


def _groups(microbatches: int, group: int) -> list[Codes]:
    return [np.arange(begin, min(begin + group, microbatches)) for begin in range(0, microbatches, group)]


def _interleave(pp: int, vpp: int, microbatches: int, groups: list[Codes], warmups: list[int], name: str) -> Schedule:
    chunks, rows = pp * vpp, list[Codes]()
    for rank in range(pp):
        own = [rank + j * pp for j in range(vpp)]
        forwards = [chunk * microbatches + group for group in groups for chunk in own]
        backwards = [(B * chunks + chunk) * microbatches + group for group in groups for chunk in reversed(own)]
        rows.append(_row(np.concatenate(forwards), np.concatenate(backwards), warmups[rank]))
    return Schedule(codes=tuple(rows), chunks=chunks, microbatches=microbatches, name=name)
