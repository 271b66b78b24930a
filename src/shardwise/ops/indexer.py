"""The indexer of sparse attention (DeepSeek-V3.2): every token scores all keys before it and attends to the best.

Its few heads are the same on all ranks of tensor parallel, and it scores in 8 bit with one key for all heads. Where a
runtime has no kernel that skips keys, attention runs over the whole square with a mask, and the indexer comes on top.
"""

from __future__ import annotations

from shardwise.inputs.mixers import Sparse
from shardwise.ops.documents import keys_met
from shardwise.ops.linear import Linear, linear
from shardwise.ops.op import Op
from shardwise.ops.shard import Shard

# Scores in fp32 are written and read once by the choice.
SCORE_BYTES = 8.0
# A learning indexer's scores have gradients, and so have its queries and keys.
LEARNT = 3.0


def chosen_keys(shard: Shard) -> int:
    """Keys that a token attends to; 0: all, as where sequences are no longer, or nothing can be skipped."""
    sparse = shard.model.sparse
    if sparse is None or sparse.top_k >= shard.whole_seq or shard.runtime.kernels.masked_windows or not shard.flash:
        return 0
    return sparse.top_k


def indexer(shard: Shard, sparse: Sparse, rank: int) -> list[Op]:
    """Its projections and its scores; queries come out of the compressed ones where there are any."""
    if not sparse.trained:
        return [op._replace(kept=0.0, extra_b=0.0) for op in _indexer(shard, sparse, rank)]
    return _indexer(shard, sparse, rank)


def _indexer(shard: Shard, sparse: Sparse, rank: int) -> list[Op]:
    width = sparse.heads * sparse.head_size
    queries = linear(shard, Linear("index queries", "attention", rank or shard.model.hidden, width, "none"))
    keys = linear(shard, Linear("index keys", "attention", shard.model.hidden, sparse.head_size + sparse.heads, "none"))
    kept = shard.element * shard.tokens * (width + sparse.head_size) + 4.0 * shard.tokens * sparse.top_k
    scored = keys_met(shard.documents, shard.whole_seq) if shard.documents else shard.whole_seq / 2
    pairs = shard.tokens * scored
    scores = Op(
        "index scores", "attention", "scan", (shard.tokens, scored * width, LEARNT * sparse.trained),
        bytes_f=SCORE_BYTES * pairs, bytes_b=SCORE_BYTES * pairs * sparse.trained, kernels_f=4.0, kernels_b=4.0,
        kept=kept, extra_f=SCORE_BYTES / 2 * pairs, params=2 * sparse.head_size,
    )  # fmt: skip
    return [queries, keys, scores]
