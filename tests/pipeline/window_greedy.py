"""A plain rival of `auto`: admit at most so many micro batches, then gradients before forwards before weights."""


def window_greedy(given, rank_of, microbatches, window):
    """Rows of (kind, chunk, micro batch) and the makespan; None where memory locks the pipeline."""
    pp, chunks = 1 + max(rank_of), len(rank_of)
    length = {"F": given.f, "I": given.i, "W": given.w}
    takes = [{"F": given.held(c), "I": -given.freed(c), "W": given.freed(c) - given.held(c)} for c in range(chunks)]
    limits = given.limits(pp)
    done = {(kind, c): 0 for kind in "FIW" for c in range(chunks)}
    end, clock, used = {}, [0.0] * pp, [0.0] * pp

    def ready(kind, c):
        m = done[kind, c]
        if m == microbatches:
            return None
        if kind == "W":
            source, hop = ("I", c, m), 0.0
        elif kind == "F":
            if c == 0:
                return 0.0 if m - done["I", 0] < window else None
            source, hop = ("F", c - 1, m), given.hop[c - 1] if given.hop and rank_of[c] != rank_of[c - 1] else 0.0
        elif c == chunks - 1:
            source, hop = ("F", c, m), 0.0
        else:
            source, hop = ("I", c + 1, m), given.hop[c] if given.hop and rank_of[c] != rank_of[c + 1] else 0.0
        return end[source] + hop if source in end else None

    def candidates():
        for c, rank in enumerate(rank_of):
            for urgency, kind in enumerate("IFW"):
                when = ready(kind, c)
                if when is not None and used[rank] + takes[c][kind] <= limits[rank] * (1 + 1e-9):
                    yield max(when, clock[rank]), urgency, -c, kind, c

    for _ in range(3 * chunks * microbatches):
        best = min(candidates(), default=None)
        if best is None:
            return None
        begin, _, _, kind, c = best
        rank = rank_of[c]
        clock[rank] = end[kind, c, done[kind, c]] = begin + length[kind][c]
        done[kind, c] += 1
        used[rank] += takes[c][kind]
    return max(clock)
