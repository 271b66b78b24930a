"""DualPipe: two copies of the model on the same ranks, half of the micro batches through each, from both ends.

Source: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 3.2.1, and deepseek-ai/DualPipe (2025). Rank r holds
stage r of the copy that goes up, which is chunk r here, and stage pp - 1 - r of the copy that goes down, chunk
2 pp - 1 - r. Seen from its own end, a rank runs what a rank of the V form over half as many ranks runs: that form is
this one cut in half.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.pipeline.action import Action, Schedule, check_size
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.orders.dualpipe import row_of

COPIES = 2


def dualpipe(pp: int, microbatches: int, *, combined: bool = False) -> Schedule:
    """The order of both copies; `microbatches` are of both, `combined`: pairs of a forward and a backward are one."""
    faults = list[Fault]()
    if pp < 2 or pp % 2:
        faults.append(Fault("pp", f"is {pp}; dualpipe goes both ways over an even number of ranks"))
    if microbatches < 2 * pp or microbatches % 2:
        told = f"are {microbatches}; dualpipe needs an even number of at least 2 x pp = {2 * pp}"
        faults.append(Fault("microbatches", told))
    if faults:
        raise InputError(faults, title="dualpipe")
    check_size(pp, COPIES, microbatches // COPIES)
    rows, pairs = list[list[Action]](), list[tuple[int, ...]]()
    for rank in range(pp):
        turned = rank >= pp // 2
        near = pp - 1 - rank if turned else rank
        row = row_of(near, pp // 2, microbatches // 2)
        chunks = {near: rank, pp - 1 - near: 2 * pp - 1 - rank}
        if turned:
            chunks = {near: 2 * pp - 1 - rank, pp - 1 - near: rank}
        rows.append([action._replace(chunk=chunks[action.chunk]) for action in row.actions])
        pairs.append(tuple(row.pairs))
    made = replace(Schedule.of(rows, name="dualpipe"), copies=COPIES)
    return replace(made, pairs=tuple(pairs)) if combined else made


def both_ways(costs: Costs) -> Costs:
    """The costs of a model's stages for two copies of it; a rank holds the parameters of both of its stages."""
    own: Any = {
        name: getattr(costs, name) * COPIES
        for name in ("f", "i", "w", "activation", "reduce", "traffic_f", "traffic_b", "together", "offload", "reload")
    }
    links: Any = {name: (*values, 0.0, *values) for name in ("hop", "transfer") if (values := getattr(costs, name))}
    static = tuple(a + b for a, b in zip(costs.static, reversed(costs.static), strict=True))
    share = costs.free_at_input_grad
    return replace(
        costs, **own, **links, static=static, free_at_input_grad=share * COPIES if isinstance(share, tuple) else share,
    )  # fmt: skip
