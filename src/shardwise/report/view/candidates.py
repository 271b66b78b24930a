"""A simulated strategy as one point of the page's scatter and one row of its table."""

from __future__ import annotations

from shardwise.estimate.estimate import Estimate
from shardwise.estimate.intervals import layout_within_error
from shardwise.inputs.serialise import Plain
from shardwise.search.question import Candidate


def candidate_view(candidate: Candidate, best: Estimate | None = None) -> Plain:
    """Plain numbers of one candidate, beside the best where that is known."""
    strategy = candidate.strategy
    tokens = strategy.global_batch * strategy.seq
    return {
        "strategy": str(strategy), "seconds": candidate.seconds, "total_bytes": candidate.total_bytes,
        "mfu": candidate.mfu, "tokens_per_second_per_gpu": tokens / candidate.seconds / strategy.world,
        "fits": candidate.fits, "allowed": candidate.allowed,
        "best": best is not None and str(best.strategy) == str(strategy),
        "within_error": best is not None and layout_within_error(best, strategy, candidate.seconds),
    }  # fmt: skip
