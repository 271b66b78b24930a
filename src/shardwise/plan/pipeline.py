"""The time of a 1F1B pipeline with unequal stages, without replaying every action.

1F1B settles into a period after a few micro batches: the recursion of its two passes is run until then and extended.
"""

from __future__ import annotations


def one_f_one_b(forward: list[float], backward: list[float], hop: float, microbatches: int) -> float:
    """Makespan of 1F1B: stage i runs pp - i forwards, then one backward and one forward in turn."""
    stages = len(forward)
    if stages == 1:
        return microbatches * (forward[0] + backward[0])
    settle = 2 * stages + 4
    if microbatches <= settle + 1:
        return _replay(forward, backward, hop, microbatches)
    first, second = _replay(forward, backward, hop, settle - 1), _replay(forward, backward, hop, settle)
    return second + (microbatches - settle) * (second - first)


def _replay(forward: list[float], backward: list[float], hop: float, microbatches: int) -> float:
    """Longest path through the 1F1B order, in waves: action k of every stage depends on action k - 1 of its
    neighbours only through micro batches already timed.
    """
    stages = len(forward)
    ends_f = [[0.0] * microbatches for _ in range(stages)]
    ends_b = [[0.0] * microbatches for _ in range(stages)]
    clock = [0.0] * stages
    done_f, done_b = [0] * stages, [0] * stages
    last = stages - 1
    remaining = 2 * stages * microbatches
    while remaining:
        for i in range(stages):
            warm = stages - i
            while True:
                count_f, count_b = done_f[i], done_b[i]
                if count_f < microbatches and count_f - count_b < warm:
                    if i and done_f[i - 1] <= count_f:
                        break
                    ready = ends_f[i - 1][count_f] + hop if i else 0.0
                    clock[i] = max(clock[i], ready) + forward[i]
                    ends_f[i][count_f] = clock[i]
                    done_f[i] = count_f + 1
                elif count_b < microbatches:
                    if i < last and done_b[i + 1] <= count_b:
                        break
                    ready = ends_b[i + 1][count_b] + hop if i < last else ends_f[i][count_b]
                    clock[i] = max(clock[i], ready) + backward[i]
                    ends_b[i][count_b] = clock[i]
                    done_b[i] = count_b + 1
                else:
                    break
                remaining -= 1
    return max(clock)
