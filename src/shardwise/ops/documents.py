"""Attention inside documents that are put one behind the other and cut into sequences wherever these end.

A token of a document of l tokens stands at a place a in it and x in its sequence, both equally likely to be anywhere:
it attends to the min(a, x) tokens before it that are in both, and itself. With the documents in random order,

    P(a >= k) = sum over documents of max(l - k, 0) / sum of l        P(x >= k) = max(s - k, 0) / s

and the mean of the smaller is the sum of the product over k from 1 on (a renewal process seen from a random place). All
places are multiples of the lengths' greatest common divisor with s, in whose steps k counts: documents as long as the
sequence are never cut, and leave the half of the square that a causal mask leaves of one document.
"""

from __future__ import annotations

from functools import lru_cache

from shardwise.inputs.documents import Documents


@lru_cache(maxsize=4096)
def keys_met(documents: Documents, seq: int, window: int = 0, *, chunked: bool = False) -> float:
    """Keys that a token attends to, on average; `window`: at most so many, or chunks of sequences of so many."""
    if chunked and 0 < window < seq:
        return keys_met(documents, window)
    step = documents.lattice(seq)
    most = min(window, seq) if window else seq
    total = sum(
        count * length * _mean(length // step, seq // step, most / step)
        for length, count in zip(documents.lengths, documents.counts, strict=True)
    )
    return step * total / documents.tokens


def _mean(length: int, seq: int, window: float) -> float:
    """Of a document and a sequence of so many steps: the integral up to the window of P(a >= t) P(x >= t), straight
    between whole steps, since inside a step every place is as likely.
    """
    end = min(length, seq)
    if window >= end:
        return 0.5 + _steps(length, seq, end - 1)
    whole = int(window)
    left, right = _met(length, seq, whole), _met(length, seq, whole + 1)
    part = window - whole
    steps = 0.5 + _steps(length, seq, whole) - left / 2 if whole else 0.0
    return steps + part * left + part * part * (right - left) / 2


def _steps(length: int, seq: int, last: int) -> float:
    """The sum over k = 1 .. last of (1 - k / length) (1 - k / seq)."""
    first, squares = last * (last + 1) / 2, last * (last + 1) * (2 * last + 1) / 6
    return last - first * (1 / length + 1 / seq) + squares / length / seq


def _met(length: int, seq: int, k: int) -> float:
    return max(0.0, 1 - k / length) * max(0.0, 1 - k / seq)


@lru_cache(maxsize=4096)
def chunked_tokens(documents: Documents, seq: int, chunk: int) -> float:
    """Tokens that a recurrence in chunks computes for one: every document has chunks of its own, the last not full, and
    one that is cut has two such ends, half full on average.
    """
    short = (
        sum(count * (-length % chunk) for length, count in zip(documents.lengths, documents.counts, strict=True))
        / documents.tokens
    )
    cut = (1 - documents.lattice(seq) / documents.mean) / seq
    return 1 + short + max(0.0, cut) * chunk / 2


@lru_cache(maxsize=1024)
def keys_met_alone(documents: Documents, seq: int, window: int = 0, *, chunked: bool = False) -> float:
    """The same where every document is a sample of its own, cut off at its end."""
    limit = min(window or seq, seq)
    pairs = tokens = 0.0
    for length, count in zip(documents.lengths, documents.counts, strict=True):
        own = min(length, seq)
        full, rest = divmod(own, limit)
        inside = (full * limit**2 + rest**2) / 2 if chunked else limit * own - limit**2 / 2
        pairs += count * (inside if own > limit else own**2 / 2)
        tokens += count * own
    return pairs / tokens
