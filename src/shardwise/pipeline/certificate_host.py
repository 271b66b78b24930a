"""Host memory in the checker of a schedule's certificate: its own lanes and bytes, no code of the engine's.

A move is four places of a rank's row: the forward whose activations leave when it has ended, the first action that runs
without them and waits for that, the first beside which they come back, and the backward that waits for them. Each way
takes one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.pipeline.mix_case import Key

Move = Sequence[int]


class HostLanes:
    """One rank's lanes, asked before every action and told after it."""

    def __init__(self, row: list[Key], moves: Sequence[Move], out: Sequence[float], into: Sequence[float]) -> None:
        self.row, self.moves, self.out, self.into = row, [tuple(move) for move in moves], out, into
        self.left, self.there = dict[Move, float](), dict[Move, float]()

    def gate(self, place: int, clock: float) -> float:
        """No action starts here before: what must be gone is gone, and what is needed is there."""
        gone = max((self.left[move] for move in self.moves if move[1] == place), default=0.0)
        for move in sorted((move for move in self.moves if move[2] == place), key=lambda move: move[3]):
            if move not in self.there:
                free = max(self.there.values(), default=0.0)
                self.there[move] = max(clock, gone, free) + self.into[self.row[move[0]][1]]
        return max([gone, *(self.there[move] for move in self.moves if move[3] == place)])

    def ran(self, place: int, end: float) -> None:
        for move in self.moves:
            if move[0] == place:
                self.left[move] = max(max(self.left.values(), default=0.0), end) + self.out[self.row[place][1]]


def odd_moves(rows: list[list[Key]], moves: Sequence[Sequence[Move]]) -> list[str]:
    """Moves that are not from a forward to its own backward, in their order, once."""
    if moves and len(moves) != len(rows):
        return [f"offloads are of {len(moves)} ranks, the order has {len(rows)}"]
    odd = list[str]()
    for rank, own in enumerate(moves):
        row, seen = rows[rank], {move[0] for move in own}
        for forward, away, back, backward in own:
            inside = 0 <= forward < away <= back <= backward < len(row)
            if not inside or row[forward][0] != "F" or row[backward] not in _backwards(row[forward]):
                odd.append(f"rank {rank} offloads what is not a forward's until its backward")
        if len(seen) != len(own):
            odd.append(f"rank {rank} offloads the same twice")
    return odd[:8]


def _backwards(key: Key) -> set[Key]:
    return {(kind, *key[1:]) for kind in "IB"}


def held(row: list[Key], moves: Sequence[Move], shares: list[dict[str, float]], activation: Sequence[float]) -> float:
    """Most that a rank holds: what leaves counts until the action that waits for it, what comes back from then on."""
    now = peak = 0.0
    for place, (kind, c, _) in enumerate(row):
        now -= sum(activation[row[move[0]][1]] for move in moves if move[1] == place)
        now += sum(activation[row[move[0]][1]] for move in moves if move[2] == place)
        change = shares[c][kind] * activation[c]
        peak = max(peak, now + max(0.0, change))
        now += change
    return peak
