"""Tries to beat what `schedule auto` prints: `python benchmarks/adversary_schedules.py [--src OTHER/src]`.

Random questions (unequal chunks, hops, limits, alternatives). For each the tool's best and bound are attacked by orders
and mixes that know nothing of the tool: random priority lists, and annealing over orders and mixes from them and from
the tool's own answer, timed by the replay below; and by the tool's own search on other mixes. An order below a bound
fails, and so does a best that the tool's own search beats by more than 0.05%; other beaten bests are only told.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import sys
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

BEATEN = 5e-4
ROUNDING = 1e-9
MOST_MIXES = 32
"""Other mixes that the tool itself is asked about."""


class Question(NamedTuple):
    """What is asked of the tool."""

    pp: int
    vpp: int
    microbatches: int
    placement: str
    objective: str
    costs: dict[str, Any]
    """f, i, w, activation by chunk, hop, free_at_input_grad, memory_limit by rank (may be none)."""
    others: list[dict[str, list[float]]]
    """Alternatives to the chunks' costs."""

    @property
    def rank_of(self) -> list[int]:
        back = self.placement == "v"
        return [
            self.pp - 1 - c % self.pp if back and c // self.pp % 2 else c % self.pp for c in range(self.pp * self.vpp)
        ]

    def table(self, choice: tuple[int, ...]) -> dict[str, list[float]]:
        options = [self.costs, *self.others]
        return {name: [options[k][name][c] for c, k in enumerate(choice)] for name in ("f", "i", "w", "activation")}


def drawn(seed: int) -> Question:
    """A random question; small integers half of the time, as ties are where orders differ."""
    dice = random.Random(seed)  # noqa: S311 - named instances
    pp, vpp, m = dice.choice((2, 2, 3, 4)), dice.choice((1, 2, 2)), dice.choice((2, 3, 4, 6, 8))
    chunks, whole = pp * vpp, dice.random() < 0.5

    def times(low: float, high: float) -> list[float]:
        return [float(dice.randint(int(low), int(high))) if whole else dice.uniform(low, high) for _ in range(chunks)]

    costs: dict[str, Any] = {"f": times(5, 15), "i": times(5, 15), "w": times(2, 12), "activation": times(1, 4)}
    costs |= {"hop": dice.choice((0.0, 1.0, 3.0, 8.0)), "free_at_input_grad": dice.choice((0.0, 0.5, 1.0))}
    others = []
    for _ in range(dice.choice((0, 1, 1, 1, 2))):  # recomputed: slower, smaller, here and there
        saved = [dice.choice((0.25, 0.5, 1.0)) for _ in range(chunks)]
        again = [(1 - s) * f * dice.uniform(0.6, 1.4) for f, s in zip(costs["f"], saved, strict=True)]
        others.append({
            "f": list(costs["f"]), "w": list(costs["w"]),
            "i": [i + more for i, more in zip(costs["i"], again, strict=True)],
            "activation": [a * s for a, s in zip(costs["activation"], saved, strict=True)],
        })  # fmt: skip
    question = Question(
        pp, vpp, m, dice.choice(("v", "loop")), dice.choice(("makespan",) * 3 + ("period",)), costs, others
    )
    if dice.random() < 0.8:
        least = max(_one(question, rank) for rank in range(pp))
        costs["memory_limit"] = [least * dice.choice((1.0, 1.2, 1.5, 2.0, 3.0))] * pp
    return question


def _one(question: Question, rank: int) -> float:
    return sum(a for c, a in enumerate(question.costs["activation"]) if question.rank_of[c] == rank)


class Replay:
    """Times an order of a question; knows nothing of the tool."""

    def __init__(self, question: Question, choice: tuple[int, ...]) -> None:
        self.q, self.table, self.rank_of = question, question.table(choice), question.rank_of
        self.last = len(self.rank_of) - 1
        self.length = dict(zip("FIW", (self.table[name] for name in "fiw"), strict=True))
        share, held = question.costs["free_at_input_grad"], self.table["activation"]
        self.bytes = {"F": held, "I": [-share * a for a in held], "W": [(share - 1) * a for a in held]}
        self.room = question.costs.get("memory_limit") or [math.inf] * question.pp

    def hop(self, a: int, b: int) -> float:
        return self.q.costs["hop"] if self.rank_of[a] != self.rank_of[b] else 0.0

    def ready(self, key: tuple[str, int, int], ends: dict[Any, float]) -> float | None:
        kind, c, m = key
        if kind == "F":
            return 0.0 if c == 0 else None if (e := ends.get(("F", c - 1, m))) is None else e + self.hop(c - 1, c)
        if kind == "W":
            return ends.get(("I", c, m))
        if c == self.last or ("F", c, m) not in ends:
            return ends.get(("F", c, m))
        return None if (e := ends.get(("I", c + 1, m))) is None else e + self.hop(c, c + 1)

    def value(self, rows: list[list[Any]]) -> float:
        """Infinite where the ranks wait for each other or a limit is broken."""
        for rank, row in enumerate(rows):
            held = 0.0
            for kind, c, _ in row:
                held += self.bytes[kind][c]
                if held > self.room[rank] * (1 + ROUNDING):
                    return math.inf
        ends: dict[Any, float] = {}
        at, clock, first, moved = [0] * len(rows), [0.0] * len(rows), [math.inf] * len(rows), True
        while moved:
            moved = False
            for rank, row in enumerate(rows):
                while at[rank] < len(row) and (ready := self.ready(row[at[rank]], ends)) is not None:
                    kind, c, _ = key = row[at[rank]]
                    begin = max(clock[rank], ready)
                    first[rank] = min(first[rank], begin)
                    ends[key] = clock[rank] = begin + self.length[kind][c]
                    at[rank], moved = at[rank] + 1, True
        if any(k < len(row) for k, row in zip(at, rows, strict=True)):
            return math.inf
        if self.q.objective == "period":
            return max(end - begin for begin, end in zip(first, clock, strict=True))
        return max(clock) - min(first)

    def listed(self, dice: random.Random) -> list[list[Any]] | None:
        """A random priority list, filled in by time; None where memory locks it."""
        weight = {(kind, c): dice.random() for kind in "FIW" for c in range(self.last + 1)}
        done = dict.fromkeys(weight, 0)
        rows: list[list[Any]] = [[] for _ in range(self.q.pp)]
        clock, held, ends = [0.0] * self.q.pp, [0.0] * self.q.pp, dict[Any, float]()
        for _ in range(3 * (self.last + 1) * self.q.microbatches):
            options = []
            for (kind, c), m in done.items():
                rank = self.rank_of[c]
                if m == self.q.microbatches or held[rank] + self.bytes[kind][c] > self.room[rank] * (1 + ROUNDING):
                    continue
                if (ready := self.ready((kind, c, m), ends)) is not None:
                    options.append((max(ready, clock[rank]), weight[kind, c], rank, kind, c, m))
            if not options:
                return None
            begin, _, rank, kind, c, m = min(options)
            ends[kind, c, m] = clock[rank] = begin + self.length[kind][c]
            held[rank] += self.bytes[kind][c]
            done[kind, c] += 1
            rows[rank].append((kind, c, m))
        return rows


def attacked(question: Question, choice: tuple[int, ...], rows: list[list[Any]], tries: int, seed: int) -> float:
    """The least value that annealing over orders and mixes meets, from the answer and from a random list."""
    dice = random.Random(seed)  # noqa: S311 - a search
    replay, least = Replay(question, choice), math.inf
    for turn in range(2):
        if turn:
            choice, rows = _start(question, dice) or (choice, rows)
            replay = Replay(question, choice)
        now = replay.value(rows)
        least, heat = min(least, now), 0.02 * now
        for step in range(tries // 2):
            nearby, moved, timer = choice, rows, replay
            if question.others and dice.random() < 0.1:
                c = dice.randrange(len(choice))
                nearby = (*choice[:c], dice.randrange(1 + len(question.others)), *choice[c + 1 :])
                timer = Replay(question, nearby)
            else:
                moved = _moved(rows, dice)
            value = timer.value(moved)
            cool = heat * (1 - 2 * step / tries) + 1e-12
            if value < math.inf and (value <= now or dice.random() < math.exp((now - value) / cool)):
                now, choice, rows, replay = value, nearby, moved, timer
                least = min(least, now)
    return least


def _start(question: Question, dice: random.Random) -> tuple[tuple[int, ...], list[list[Any]]] | None:
    for _ in range(50):
        choice = tuple(dice.randrange(1 + len(question.others)) for _ in range(question.pp * question.vpp))
        rows = Replay(question, choice).listed(dice)
        if rows:
            return choice, rows
    return None


def _moved(rows: list[list[Any]], dice: random.Random) -> list[list[Any]]:
    rank = dice.randrange(len(rows))
    row = list(rows[rank])
    a = dice.randrange(len(row))
    row.insert(max(0, min(len(row) - 1, a + dice.choice((-3, -2, -1, 1, 2, 3)))), row.pop(a))
    return [*rows[:rank], row, *rows[rank + 1 :]]


def asked(question: Question, effort: float) -> tuple[Any, Any, dict[str, Any]]:
    """The tool's answer, the alternatives and the options, in its own types."""
    from shardwise.pipeline.alternatives import optimise_alternatives
    from shardwise.pipeline.costs import costs
    from shardwise.pipeline.optimise import optimise

    given = question.costs
    first = costs(pp=question.pp, vpp=question.vpp, **given)
    alternatives = [first] + [
        dataclasses.replace(first, **{k: tuple(v) for k, v in o.items()}) for o in question.others
    ]
    options = {
        "pp": question.pp, "vpp": question.vpp, "microbatches": question.microbatches,
        "placement": question.placement, "objective": question.objective, "effort": effort,
    }  # fmt: skip
    if question.others:
        return optimise_alternatives(alternatives, **options), alternatives, options
    return optimise(first, **options), alternatives, options


class Outcome(NamedTuple):
    """What became of a question; values over the tool's best."""

    bound_broken: str
    own: float
    """Least that the tool's own search reaches on another mix."""
    foreign: float
    """Least that the attack reaches."""


def tried(question: Question, *, tries: int, effort: float = 1.0, seed: int = 0) -> Outcome:
    """Ask, then attack."""
    from shardwise.errors import InfeasibleError
    from shardwise.pipeline.mixes import mix
    from shardwise.pipeline.optimise import optimise

    answer, alternatives, options = asked(question, effort)
    choice = tuple(answer.choice) or (0,) * len(question.rank_of)
    rows = [[(a.kind, a.chunk, a.microbatch) for a in row] for row in answer.schedule.rows]
    own = foreign = answer.value
    if tries:
        foreign = attacked(question, choice, rows, tries, seed)
    dice = random.Random(seed)  # noqa: S311 - a sample
    others = list(product(range(len(alternatives)), repeat=len(choice))) if len(alternatives) > 1 else []
    for other in dice.sample(others, min(MOST_MIXES, len(others))):
        try:
            own = min(own, optimise(mix(alternatives, other), **options | {"effort": 0.1 * effort}).value)
        except InfeasibleError:
            continue
    reached = min(own, foreign)
    broken = f"{reached:g} below {answer.bound.value:g}" if reached < answer.bound.value * (1 - ROUNDING) else ""
    return Outcome(broken, own / answer.value, foreign / answer.value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--tries", type=int, default=10_000, help="evaluations of the attack a question")
    parser.add_argument("--seed", type=int, default=1050, help="of the first question")
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--src", help="another tree to attack, such as OTHER/src")
    asked_for = parser.parse_args()
    sys.path.insert(0, asked_for.src or str(Path(__file__).parents[1] / "src"))
    import shardwise

    print(f"attacking {Path(shardwise.__file__).parent}", flush=True)
    broken = beaten = told = 0
    for seed in range(asked_for.seed, asked_for.seed + asked_for.questions):
        found = tried(drawn(seed), tries=asked_for.tries, effort=asked_for.effort, seed=seed)
        broken += bool(found.bound_broken)
        beaten += found.own < 1 - BEATEN
        told += found.foreign < 1 - BEATEN <= found.own
        if found.bound_broken or min(found.own, found.foreign) < 1 - BEATEN:
            shown = f"own search {100 * (found.own - 1):+.3f}%, attack {100 * (found.foreign - 1):+.3f}%"
            print(
                f"question {seed}: {'BOUND BROKEN: ' + found.bound_broken if found.bound_broken else ''} {shown}",
                flush=True,
            )
    print(f"{asked_for.questions} questions x {asked_for.tries:,} evaluations: {broken} bounds broken, {beaten} bests "
          f"beaten by the tool's own search on another mix, {told} by a foreign order")  # fmt: skip
    sys.exit(1 if broken or beaten else 0)


if __name__ == "__main__":
    main()
