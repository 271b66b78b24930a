"""How large the micro batches are that are searched, as a runtime may cut the batch into equal ones."""

from __future__ import annotations

from math import ceil, isqrt, log2

from shardwise.inputs.model import Model
from shardwise.inputs.strategy import Strategy
from shardwise.ops.shard import tokens_read

FEW_SAMPLES, MOST_SAMPLES = 16, 1024
FULL_TOKENS = 2**16
"""Of a micro batch that keeps a GPU busy: with more than half of them in 16 samples, larger ones win 2% at most."""


def divisors(number: int, most: int) -> list[int]:
    """The divisors up to `most`; a batch or a cluster may have 18 digits, what is asked for of it is small."""
    small = [n for n in range(1, min(most, isqrt(number)) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number and number // n <= most]


def most_samples(model: Model, strategy: Strategy) -> int:
    """The largest micro batch that is searched: pictures and short texts need more samples to keep a GPU busy."""
    read = (tokens_read(tower, strategy) for tower in model.towers)
    tokens = strategy.seq + sum(ceil(pictures * each) for pictures, each in read)
    if FEW_SAMPLES * tokens >= FULL_TOKENS // 2:
        return FEW_SAMPLES
    return min(MOST_SAMPLES, 1 << round(log2(FULL_TOKENS / tokens)))


def micro_batches(model: Model, strategy: Strategy) -> set[int]:
    """All that divide the batch up to FEW_SAMPLES, and beyond them the largest of every octave."""
    able = divisors(strategy.global_batch, most_samples(model, strategy))
    largest = {(size - 1).bit_length(): size for size in able}.values()
    return {*(size for size in able if size <= FEW_SAMPLES), *largest}
