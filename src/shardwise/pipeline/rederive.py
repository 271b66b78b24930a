"""The bound of a certificate, derived anew and slowly; imports nothing of the optimiser (see certificate.py).

head    an action starts no earlier than its input arrives, than its predecessors on its own rank can be through, and,
        for a forward that does not fit, than enough memory can have been given back; what gives it back takes time on
        the same rank
tail    the same after it, read backwards; what memory keeps from running before a gradient runs after it

Predecessors and successors are those of mix_case.py. A rank then takes at least the largest of least head + work +
least tail over sets of its actions.
"""

from __future__ import annotations

from math import inf

from shardwise.pipeline.mix_case import SLACK, Key, MixCase, Times


def rederived(case: MixCase, objective: str) -> float:
    """A lower bound for every order of the case, derived rule by rule; infinite where one micro batch does not fit."""
    ranks, bytes_ = range(len(case.own)), case.chunks.activation
    if case.room and any(sum(bytes_[c] for c in case.own[r]) > case.room[r] * (1 + SLACK) for r in ranks):
        return inf
    if objective == "period":
        tied = (_machine(case, rank, _heads(case, case.own[rank][0]), _tails(case, rank)) for rank in ranks)
        return max(*tied, *(span_of(case, rank) for rank in ranks))
    head, tail = _heads(case, 0), _tails(case, None)
    spans = (head["F", case.own[rank][0], 0] + span_of(case, rank) for rank in ranks)
    return max(*(_machine(case, rank, head, tail) for rank in ranks), *spans)


def span_of(case: MixCase, rank: int) -> float:
    """Least time from a rank's first start to its last end: the bytes x time that it must hold fit into room x span.

    Of that room the first forwards and the last I and W leave some unused: before the n-th forward starts those before
    it have run, and what is held some time before the end is given back in that time, but for one action under way.
    """
    own, (f, i, w, held) = case.own[rank], case.chunks
    if not case.room or not sum(held[c] for c in own):
        return 0.0
    room, area = min(case.room[rank], (case.microbatches + 1) * sum(held[c] for c in own)), 0.0
    for c in own:
        later = range(c, len(f))
        chain = sum(f[k] + i[k] for k in later) + 2 * sum(case.message(k, k + 1) for k in later[:-1])
        area += case.microbatches * held[c] * (chain + (1 - case.frees[c]) * w[c])
    takes = [(f[c], held[c]) for c in own if held[c] > 0]
    gives = [(i[c], case.frees[c] * held[c]) for c in own] + [(w[c], (1 - case.frees[c]) * held[c]) for c in own]
    ramps = unused = 0.0
    for actions in (takes, [(time, size) for time, size in gives if size > 0]):
        rate, left = min(time / size for time, size in actions), max(0.0, room - max(size for _, size in actions))
        ramps, unused = ramps + rate * left, unused + rate * left * left / 2
    if area / room < ramps:  # a span in which the first ramp and the last overlap is shorter than both
        return max(area / room, min(ramps, (area + unused) / room))
    return (area + unused) / room


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
