"""The bound of a certificate, derived anew and slowly; imports nothing of the optimiser (see certificate.py).

head    an action starts no earlier than its input arrives, than its predecessors on its own rank can be through, and,
        for a forward that does not fit, than enough memory can have been given back; what gives it back takes time on
        the same rank
tail    the same after it, read backwards; what memory keeps from running before a gradient runs after it

Predecessors and successors are those of mix_case.py. A rank then takes at least the largest of least head + work +
least tail over sets of its actions, and so long that what it holds, and must hold for its way to the end and back, has
room at all times.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from shardwise.pipeline.mix_case import SLACK, Key, MixCase, Times


def rederived(case: MixCase, objective: str) -> float:
    """A lower bound for every order of the case, derived rule by rule; infinite where one micro batch does not fit."""
    ranks, bytes_ = range(len(case.own)), case.chunks.activation
    if case.room and any(sum(bytes_[c] for c in case.own[r]) > case.room[r] * (1 + SLACK) for r in ranks):
        return inf
    if objective == "period":
        windows = [(_heads(case, case.own[rank][0]), _tails(case, rank)) for rank in ranks]
    else:
        windows = [(_heads(case, 0), _tails(case, None))] * len(ranks)
    found = max(_machine(case, rank, *window) for rank, window in enumerate(windows))
    before = 0.0
    while case.room and before < found:
        before = found
        for rank, window in enumerate(windows):
            found = _span_of(case, rank, *window, found)
    return found


_GRID = 32
"""x and y are multiples of the time that a rank works and one micro batch is on its way, over so many."""


def _span_of(case: MixCase, rank: int, head: Times, tail: Times, least: float) -> float:
    """A rank's span, if more than `least`: what must be held between two times x and y has room there.

    An activation is held for as long as its way to the end and back takes, W's share for its W: not before the head of
    what gives it back allows, nor after the tail of what took it does; all the time in between where they cross.
    """
    own, (f, i, w, held) = case.own[rank], case.chunks
    room = min(case.room[rank], (case.microbatches + 1) * sum(held[c] for c in own))
    if not room or not sum(held[c] for c in own):
        return least
    lives = {c: _life(case, c) for c in own}
    unit = (case.microbatches * sum(f[c] + i[c] + w[c] for c in own) + max(lives.values())) / _GRID
    items = list[tuple[float, float, float, float]]()
    for c in own:
        for m in range(case.microbatches):
            ended, begun = head["I", c, m] + i[c], tail["F", c, m] + f[c]
            items.append((max(ended, lives[c]), max(begun, lives[c]), lives[c], held[c]))
            ended, begun = head["W", c, m] + w[c], tail["W", c, m] + w[c]
            items.append((max(ended, w[c]), max(begun, w[c]), w[c], (1 - case.frees[c]) * held[c]))

    def lacks(span: float, x: float, y: float) -> float:
        """Bytes x time beyond the room from x to y; an item is (earliest end, time left at its latest start, ...)."""
        total = 0.0
        for end, left, life, size in items:
            begin = span - left
            inside = min(end - x, y - begin, max(life, end - begin), y - x)
            total += size * inside if inside > 0 else 0.0
        return total - room * (y - x + 4 * SLACK * span)

    while True:
        times = [k * unit for k in range(int(least / unit) + 1)]
        worst, x, y = max(((lacks(least, x, y), x, y) for k, x in enumerate(times) for y in times[k + 1 :]),
                          default=(0.0, 0.0, 0.0))  # fmt: skip
        if worst <= 0:
            return least
        least = _root(lacks, least, x, y)


def _life(case: MixCase, c: int) -> float:
    """From the start of F to the end of I, if nothing waits."""
    later = range(c, len(case.rank_of))
    return sum(case.chunks.f[k] + case.chunks.i[k] for k in later) + 2 * sum(case.message(k, k + 1) for k in later[:-1])


def _root(lacks: Callable[[float, float, float], float], low: float, x: float, y: float) -> float:
    """The span from which on there is room from x to y."""
    high = 2 * low
    while lacks(high, x, y) > 0:
        low, high = high, 2 * high
    while high - low > SLACK * high:
        middle = (low + high) / 2
        if lacks(middle, x, y) > 0:
            low = middle
        else:
            high = middle
    return high


def _machine(case: MixCase, rank: int, head: Times, tail: Times) -> float:
    own = [key for key in head if case.rank_of[key[1]] == rank and head[key] > -inf and tail[key] > -inf]
    chain = max(head[key] + case.length[key[0]][key[1]] + tail[key] for key in own)
    sets = (case.through([key for key in own if tail[key] >= least], head) + least for least in {tail[k] for k in own})
    return max(chain, *sets)


def _heads(case: MixCase, first: int) -> Times:
    """Earliest starts, counted from the first forward of chunk `first`; of the chunks before it nothing is known."""
    head: Times = {}
    for key in case.ahead:  # an order in which all that comes before an action has its head
        head[key] = -inf if key[0] == "F" and key[1] < first else 0.0
        ready = max(_arrival(case, key, head), case.through(case.before(key), head))
        head[key] = max(head[key], ready, _room_from(case, key, head))
        if key[0] == "F" and case.room:
            head[key] = max(head[key], _room_made(case, key, head))
    return head


def _arrival(case: MixCase, key: Key, head: Times) -> float:
    kind, c, m = key
    if kind == "F":
        source = ("F", c - 1, m)
    elif kind == "W":
        source = ("I", c, m)
    else:
        source = ("F", c, m) if c == len(case.rank_of) - 1 else ("I", c + 1, m)
    return head[source] + case.length[source[0]][source[1]] + case.message(source[1], c) if source[1] >= 0 else -inf


def _over(case: MixCase, key: Key) -> float:
    """Bytes that the chunks up to that of a forward must have given back: they took m + 1 micro batches each."""
    kind, c, m = key
    if kind != "F" or not case.room:
        return 0.0
    rank, held = case.rank_of[c], case.chunks.activation
    return (m + 1) * sum(held[k] for k in case.own[rank] if k <= c) - case.room[rank]


def _gifts(case: MixCase, key: Key) -> dict[Key, float]:
    """What those chunks may have given back before a forward, and how many bytes each time."""
    _, c, m = key
    shares = [(kind, k, share * case.chunks.activation[k]) for k in case.own[case.rank_of[c]] if k <= c
              for kind, share in (("I", case.frees[k]), ("W", 1 - case.frees[k]))]  # fmt: skip
    return {(kind, k, n): given for kind, k, given in shares for n in range(m)}


def _room_from(case: MixCase, key: Key, head: Times) -> float:
    """When a forward can have room if all that gives back ends at its earliest."""
    over, when = _over(case, key) * (1 - SLACK), -inf
    if over > 0:
        over -= SLACK * case.room[case.rank_of[key[1]]]
        gifts = _gifts(case, key)
        for end, given in sorted((head[gift] + case.length[gift[0]][gift[1]], gifts[gift]) for gift in gifts):
            if over <= 0:
                break
            over, when = over - given, end
    return when


def _room_made(case: MixCase, key: Key, head: Times) -> float:
    """When a forward can start: from any time on, what must still come before it, and what must still make room."""
    over, gifts, best = _over(case, key), _gifts(case, key), -inf
    if over <= 0:
        return best
    work = _Freeing(case, key, gifts)
    sure = set(case.before(key))
    line = sorted((head[one], one) for one in sure | gifts.keys() if head[one] > -inf)
    others = needed = 0.0
    for begin, one in reversed(line):
        time = case.length[one[0]][one[1]]
        if one in gifts:
            work.add(one)
            needed += time if one in sure else 0.0
        else:
            others += time
        if others + (least := max(needed, work.least(over))) > 0:
            best = max(best, begin + others + least)
    return best


class _Freeing:
    """The least time of gifts for the bytes that the others cannot give: those that were added come last."""

    def __init__(self, case: MixCase, key: Key, gifts: dict[Key, float]) -> None:
        rank, held = case.rank_of[key[1]], case.chunks.activation
        self.case, self.gifts, self.earlier = case, gifts, sum(gifts.values())
        self.time = self.alone = 0.0
        early = [k for k in case.own[rank] if k <= key[1]]
        self.spare, self.noise = case.room[rank] - sum(held[k] for k in early), 2 * SLACK * case.room[rank]
        by_weight, by_gradient, by_both = [], [], []
        for k in (k for k in early if held[k] > 0):
            i, w, share = case.chunks.i[k], case.chunks.w[k], case.frees[k]
            by_weight += [w / (held[k] - share * held[k])] if held[k] > share * held[k] else []
            by_gradient += [i / (share * held[k])] if share > 0 else []
            by_both.append((i + w) / held[k])
        self.gradient = min(by_gradient + by_both, default=0.0)
        self.weight, self.most = min([*by_weight, self.gradient]), max(by_weight + by_both, default=0.0)

    def add(self, gift: Key) -> None:
        kind, c, n = gift
        self.earlier -= self.gifts[gift]
        if self.case.chunks.activation[c] > 0 and (kind == "I" or self.gifts[gift] > 0):
            self.time += self.case.length[kind][c]
        self.alone += self.gifts[gift] if kind == "W" else -self.gifts["W", c, n]

    def least(self, over: float) -> float:
        """From below, by the cheapest bytes (W alone only where its I is earlier); from above, all less the spare."""
        missing = over - self.earlier
        if missing <= self.noise:
            return 0.0
        cheap = missing * self.gradient - min(missing, max(self.alone, 0.0)) * (self.gradient - self.weight)
        return max(cheap, self.time - self.spare * self.most)


def _tails(case: MixCase, only: int | None) -> Times:
    """Least time after each action; `only`: to the end of this rank, else of all."""
    tail: Times = {}
    for key in sorted(case.ahead, key=lambda key: (-key[2], "WIF".index(key[0]), key[1] * (-1) ** (key[0] == "F"))):
        after, back = set(case.after(key)), _kept_back(case, key)
        own = _forwards_up_to(case, key) if back > 0 else set[Key]()
        line = sorted(((tail[one], one) for one in after | own if tail[one] > -inf), reverse=True)
        tail[key] = max(_onward(case, key, tail), _held_after(case, after, own, back, line))
        if only in {None, case.rank_of[key[1]]}:
            tail[key] = max(tail[key], 0.0, _held_after(case, after, own, back, [(0.0, one) for _, one in line]))
    return tail


def _forwards_up_to(case: MixCase, key: Key) -> set[Key]:
    """Of the chunks of the rank up to that of the action, those of later micro batches."""
    _, c, m = key
    return {("F", k, n) for k in case.own[case.rank_of[c]] if k <= c for n in range(m + 1, case.microbatches)}


def _held_after(case: MixCase, after: set[Key], own: set[Key], back: float, line: list[tuple[float, Key]]) -> float:
    """The best of: a tail, and the time of all that must follow and has it at least.

    Of the own forwards `back` bytes must follow; those with a smaller tail are at most so many of them.
    """
    held = case.chunks.activation
    cheapest = min((case.chunks.f[k] / held[k] for k in {k for _, k, _ in own} if held[k] > 0), default=0.0)
    noise = max((2 * SLACK * case.room[case.rank_of[k]] for _, k, _ in own), default=inf)
    missing, others, sure, best = back - sum(held[k] for _, k, _ in own), 0.0, 0.0, -inf
    for tail, one in line:
        time = case.length[one[0]][one[1]]
        if one in own:
            missing += held[one[1]]
            sure += time if one in after else 0.0
        else:
            others += time
        kept_back = missing * cheapest if missing > noise else 0.0
        if others + max(sure, kept_back) > 0:
            best = max(best, tail + others + max(sure, kept_back))
    return best


def _onward(case: MixCase, key: Key, tail: Times) -> float:
    """What follows on the way of the message."""
    kind, c, m = key
    last = len(case.rank_of) - 1
    if kind == "W" or (kind == "I" and c == 0):
        return tail["W", 0, m] + case.chunks.w[0] if kind == "I" else -inf
    to = ("I", c, m) if (kind, c) == ("F", last) else (kind, c + 1 if kind == "F" else c - 1, m)
    return tail[to] + case.length[to[0]][to[1]] + case.message(c, to[1])


def _kept_back(case: MixCase, key: Key) -> float:
    """Bytes of forwards up to the chunk of a gradient that have no room before it."""
    kind, c, m = key
    if kind != "I" or not case.room:
        return 0.0
    rank, held = case.rank_of[c], case.chunks.activation
    return (case.microbatches - m) * sum(held[k] for k in case.own[rank] if k <= c) - case.room[rank]
