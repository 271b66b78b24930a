"""A simulated strategy as one point of the page's scatter and one row of its table."""

from __future__ import annotations

from shardwise.estimate.intervals import likely
from shardwise.inputs.serialise import Plain
from shardwise.search.question import Answer, Candidate


def candidate_view(candidate: Candidate, answer: Answer | None = None) -> Plain:
    """Plain numbers of one candidate, beside the plans of the answer where that is known."""
    strategy = candidate.strategy
    tokens = strategy.global_batch * strategy.seq
    roles = list(answer.roles(strategy)) if answer else []
    return {
        "strategy": str(strategy), "seconds": candidate.seconds, "total_bytes": candidate.total_bytes,
        "mfu": candidate.mfu, "tokens_per_second_per_gpu": tokens / candidate.seconds / strategy.world,
        "fits": candidate.fits, "allowed": candidate.allowed,
        "roles": roles, "best": "recommended" in roles,
        "within_error": answer is not None and answer.within_error(candidate),
        "likely": likely(answer.distance(candidate), slower=True) if answer is not None else "",
    }  # fmt: skip
