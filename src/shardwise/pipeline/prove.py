"""The certificate of a schedule: what certificate.py needs to check it without the optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwise.pipeline.action import Schedule
from shardwise.pipeline.bounds import Bound
from shardwise.pipeline.certificate import SCHEMA, hash_of
from shardwise.pipeline.costs import Costs

MOST_ACTIONS = 100_000
"""The order of a longer schedule is left out of its certificate."""


def question_of(
    alternatives: Sequence[Costs], rank_of: tuple[int, ...], microbatches: int, objective: str
) -> dict[str, Any]:
    """Costs, links, limits and shape, as plain values: all that a bound and an order are about."""
    first, links = alternatives[0], range(len(rank_of) - 1)
    waits = {name: list(getattr(first, name) or [0.0] * len(links)) for name in ("hop", "transfer")}
    return {
        "rank_of": list(rank_of), "microbatches": microbatches, "objective": objective,
        "alternatives": [
            {"f": list(one.f), "i": list(one.i), "w": list(one.w),
             "activation": [one.held(c) for c in range(one.chunks)]} for one in alternatives
        ],
        "hop": [sum(part[c] for part in (first.hop, first.transfer) if part) for c in links],
        "free_at_input_grad": first.free_at_input_grad, "memory_limit": list(first.memory_limit),
        "static": list(first.static or [0.0] * (1 + max(rank_of))),
        **({"latency": waits["hop"], "transfer": waits["transfer"]} if first.contention and first.transfer else {}),
        **({"offload": list(first.offload), "reload": list(first.reload or first.offload)} if first.offloads else {}),
    }  # fmt: skip


def prove(
    schedule: Schedule,
    alternatives: Sequence[Costs],
    *,
    value: float,
    bound: Bound,
    objective: str,
    choice: tuple[int, ...] = (),
    cases: tuple[tuple[tuple[int, ...], ...], ...] = (),
) -> dict[str, Any]:
    """The certificate of an answer; without alternatives there is one case, in which every chunk takes the first."""
    question = question_of(alternatives, schedule.rank_of, schedule.microbatches, objective)
    return {
        "schema": SCHEMA, "hash": hash_of(question), "question": question, "choice": choice or (0,) * schedule.chunks,
        "rows": schedule.csv().split() if schedule.actions <= MOST_ACTIONS else [],
        "value": value, "bound": bound.value, "kind": bound.kind, "rank": bound.rank,
        "cases": cases or [[[0]] * schedule.chunks],
        **({"offloads": [[list(one) for one in own] for own in schedule.offloads]} if schedule.offloads else {}),
    }  # fmt: skip
