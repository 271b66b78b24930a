"""Which micro batches and which numbers of GPUs a stage may have."""

from __future__ import annotations

from shardwise.per_op.question import Question

MOST_MICRO_BATCH = 256


def micro_batches(question: Question) -> tuple[int, ...]:
    """Micro batches to try: those of the profile, and in the full space what replicas make of them."""
    if question.micro_batches:
        return tuple(sorted(set(question.micro_batches)))
    known = question.profile.micro_batches
    if question.space == "compatible":
        return tuple(size for size in known if size <= question.global_batch)
    made = {size * dp for size in known for dp in range(1, question.gpus + 1)}
    most = min(question.global_batch, MOST_MICRO_BATCH)
    return tuple(sorted(size for size in made if size <= most and question.global_batch % size == 0))


def gpu_counts(question: Question) -> tuple[int, ...]:
    """GPUs that a stage may have."""
    if question.space == "compatible":
        return tuple(count for count in (1, 2, 4, 8) if count <= min(question.gpus, question.node))
    return tuple(range(1, question.gpus + 1))
