"""The least makespan of a tiny pipeline under memory limits, by dynamic programming over all orders."""

from typing import NamedTuple


class Tiny(NamedTuple):
    rank_of: tuple[int, ...]
    microbatches: int
    f: tuple[float, ...]
    i: tuple[float, ...]
    w: tuple[float, ...]
    hop: float
    held: tuple[float, ...]
    share: tuple[float, ...]
    """Of the bytes that I gives back, by chunk."""
    room: tuple[float, ...]


def least_makespan(q):
    """A state is how many of each stream ran; of each the ends and clocks that no other beats in all are kept.

    First in, first out inside a stream: micro batches are alike.
    """
    chunks = len(q.rank_of)
    layer = {(0,) * (3 * chunks): [((0.0,) * (1 + max(q.rank_of)), {})]}
    for _ in range(3 * chunks * q.microbatches):
        following = {}
        for done, fronts in layer.items():
            for stream in range(3 * chunks):
                if _fits(q, done, stream):
                    after = (*done[:stream], done[stream] + 1, *done[stream + 1 :])
                    for front in fronts:
                        if (moved := _run(q, done, stream, *front)) is not None:
                            _keep(following.setdefault(after, []), moved)
        layer = following
    return min((max(clock) for fronts in layer.values() for clock, _ in fronts), default=float("inf"))


def _fits(q, done, stream):
    kind, c = divmod(stream, len(q.rank_of))
    if done[stream] == q.microbatches:
        return False
    chunks, rank = len(q.rank_of), q.rank_of[c]
    held = sum(
        q.held[k] * (done[k] - q.share[k] * done[chunks + k] - (1 - q.share[k]) * done[2 * chunks + k])
        for k in range(chunks)
        if q.rank_of[k] == rank
    )
    return kind > 0 or held + q.held[c] <= q.room[rank] * (1 + 1e-9)


def _run(q, done, stream, clock, ends):
    """The clocks and the ends still waited for; None: its input is not there."""
    kind, c = divmod(stream, len(q.rank_of))
    m, chunks, rank = done[stream], len(q.rank_of), q.rank_of[c]
    source = (0, c - 1, m) if kind == 0 else (1, c, m) if kind == 2 else (1, c + 1, m) if c + 1 < chunks else (0, c, m)
    if source[1] >= 0 and source not in ends:
        return None
    hop = q.hop if source[1] >= 0 and q.rank_of[source[1]] != rank else 0.0
    end = max(clock[rank], ends.get(source, 0.0) + hop) + (q.f, q.i, q.w)[kind][c]
    left = {key: when for key, when in ends.items() if key != source or kind == 1}
    if kind == 2:
        left = {key: when for key, when in left.items() if key != (1, c, m) or (c > 0 and done[chunks + c - 1] <= m)}
    onward = c + 1 if kind == 0 else c - 1
    there = end if 0 <= onward < chunks and q.rank_of[onward] != rank else 0.0  # on its own rank the clock tells
    return (*clock[:rank], end, *clock[rank + 1 :]), left | ({(kind, c, m): there} if kind < 2 else {})


def _keep(fronts, new):
    def beats(a, b):
        return all(x <= y for x, y in zip(a[0], b[0], strict=True)) and all(
            a[1][key] <= b[1][key] for key in a[1].keys() & b[1].keys()
        )

    if not any(beats(old, new) for old in fronts):
        fronts[:] = [old for old in fronts if not beats(new, old)] + [new]
