"""A simulated strategy as one point of the page's scatter and one row of its table."""

from __future__ import annotations

from shardwise.inputs.serialise import Plain
from shardwise.search.question import Candidate


def candidate_view(candidate: Candidate, *, best: bool = False) -> Plain:
    """Plain numbers of one candidate."""
    strategy = candidate.strategy
    tokens = strategy.global_batch * strategy.seq
    return {
        "strategy": str(strategy), "seconds": candidate.seconds, "total_bytes": candidate.total_bytes,
        "mfu": candidate.mfu, "tokens_per_second_per_gpu": tokens / candidate.seconds / strategy.world,
        "fits": candidate.fits, "allowed": candidate.allowed, "best": best,
    }  # fmt: skip
