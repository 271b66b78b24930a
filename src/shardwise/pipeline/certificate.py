"""The checker of a schedule's certificate: shares no code with the optimiser, imports nothing of it.

A certificate holds the question (costs of every alternative, links, limits, ranks), its hash, the order, the value and
the bound. The checker replays the order by itself (every action once, on its rank, after what it needs, within the
memory), compares the value, and derives the bound anew (rederive.py). Over alternatives the certificate lists cases,
each with what every chunk may take: together they hold every mix once, and the bound of the least time and bytes that
each chunk may take in a case holds for all mixes of it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from math import prod
from typing import Any

from shardwise.pipeline.certificate_host import HostLanes, Move, held, odd_moves
from shardwise.pipeline.mix_case import SLACK, Chunks, Key, MixCase, Times, reachable
from shardwise.pipeline.rederive import rederived

SCHEMA = "shardwise/schedule-proof/1"
MOST_STEPS = 10_000_000
"""Above so many steps (about half a minute) the bound is not derived anew; the order is always checked."""


def hash_of(question: dict[str, Any]) -> str:
    """Of the question alone: costs, shape and limits."""
    return hashlib.sha256(json.dumps(question, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check(proof: dict[str, Any]) -> list[str]:
    """Everything that does not hold; empty: all of it does, the bound too where `derives` says so."""
    question = proof["question"]
    if hash_of(question) != proof["hash"]:
        return ["the costs, the shape or the limits are not those that were proven: this proof no longer holds"]
    if faults := _odd_links(question):
        return faults
    rows = [[_action(cell) for cell in row.split(",")] for row in proof["rows"]]
    if sum(map(len, rows)) < 2 * len(question["rank_of"]) * question["microbatches"]:
        return ["the order has fewer actions than the chunks and micro batches need"]
    taken, moves = _case(question, [[k] for k in proof["choice"]]), proof.get("offloads", [])
    if faults := odd_moves(rows, moves):
        return faults
    ends, faults = _replay(taken, rows, _lanes(question, rows, moves))
    if faults or (faults := _unsound(taken, rows)):
        return faults
    return _over(taken, rows, moves or [[]] * len(rows)) + _value_faults(
        proof, _value(taken, rows, ends, question["objective"])
    )


def _odd_links(question: dict[str, Any]) -> list[str]:
    """Messages that wait for each other: the bound counts the whole of each, so the parts must make it up."""
    parts = [question.get(name, ()) for name in ("latency", "transfer")]
    if not any(parts) or all(a + b == hop for a, b, hop in zip(*parts, question["hop"], strict=True)):
        return []
    return ["the latency and the transfer of a message are not what it takes"]


def derives(proof: dict[str, Any]) -> bool:
    """Whether the bound is derived anew, or only held against the order."""
    ranks, count = proof["question"]["rank_of"], proof["question"]["microbatches"]
    steps = (12 if proof["question"]["memory_limit"] else 3) * len(ranks) ** 2 // (1 + max(ranks)) * count**2
    return bool(len(proof["cases"]) * steps <= MOST_STEPS)


def _value_faults(proof: dict[str, Any], value: float) -> list[str]:
    bound, question, faults = proof["bound"], proof["question"], list[str]()
    if not abs(value - proof["value"]) <= SLACK * value:
        faults.append(f"the order takes {value:g}, not {proof['value']:g}")
    if not bound <= value * (1 + SLACK):
        faults.append(f"the bound {bound:g} is above {value:g}, which this order reaches")
    if derives(proof):
        faults += _uncovered(question, proof["cases"])
        free = question | {"memory_limit": []} if "offload" in question else question  # host memory has no end
        least = min(rederived(_case(free, case), question["objective"]) for case in proof["cases"])
        if not bound <= least * (1 + SLACK):
            faults.append(f"a bound of {bound:g} does not follow from the costs; {least:g} does")
    return faults


def _case(question: dict[str, Any], options: list[list[int]]) -> MixCase:
    """The least of what every chunk may take."""
    table = question["alternatives"]
    least = (
        tuple(min(float(table[k][name][c]) for k in taken) for c, taken in enumerate(options))
        for name in Chunks._fields
    )
    case = MixCase(
        chunks=Chunks(*least), rank_of=question["rank_of"], microbatches=question["microbatches"],
        hop=question["hop"], free=question["free_at_input_grad"], room=(), latency=question.get("latency", ()),
        transfer=question.get("transfer", ()),
    )  # fmt: skip
    rooms = [limit - static for limit, static in zip(question["memory_limit"], question["static"], strict=False)]
    return replace(case, room=[reachable(room, case.sizes(rank)) for rank, room in enumerate(rooms)])


def _uncovered(question: dict[str, Any], cases: list[list[list[int]]]) -> list[str]:
    """Cases that share no mix and together count all mixes hold every mix."""
    for k, case in enumerate(cases):
        if any(all(set(a) & set(b) for a, b in zip(case, other, strict=True)) for other in cases[:k]):
            return ["two cases of the bound hold the same mix"]
    told = sum(prod(len(set(taken)) for taken in case) for case in cases)
    mixes = len(question["alternatives"]) ** len(question["rank_of"])
    return [] if told == mixes else [f"the bound speaks of {told} of {mixes} mixes"]


def _action(cell: str) -> Key:
    kind = next(letter for letter in "FIWB" if letter in cell)
    chunk, microbatch = cell.split(kind)
    return kind, int(chunk), int(microbatch)


def _text(key: Key) -> str:
    return f"{key[1]}{key[0]}{key[2]}"


def _ready(case: MixCase, key: Key, ends: Times, sent: Times) -> float | None:
    """When the input of an action is there; None: not yet."""
    kind, c, m = key
    if kind == "W":
        return ends.get(("I", c, m))
    if kind == "F":
        return sent.get(("F", c - 1, m)) if c else 0.0
    own = ends.get(("F", c, m))
    if own is None or c == len(case.rank_of) - 1:
        return own
    return sent.get(("I", c + 1, m), sent.get(("B", c + 1, m)))


def _arrives(case: MixCase, key: Key, end: float, free: dict[tuple[int, int], float]) -> float:
    """When the result of an action is where it is needed; `free`: when each link has no message of before."""
    kind, c, _ = key
    to = c + 1 if kind == "F" else c - 1
    if not 0 <= to < len(case.rank_of) or case.rank_of[c] == case.rank_of[to]:
        return end
    if not case.transfer:
        return end + case.message(c, to)
    link, edge = (case.rank_of[c], case.rank_of[to]), min(c, to)
    free[link] = max(free.get(link, 0.0), end) + case.transfer[edge]
    return free[link] + case.latency[edge]


def _length(case: MixCase, key: Key) -> float:
    kind, c, _ = key
    return case.chunks.i[c] + case.chunks.w[c] if kind == "B" else case.length[kind][c]


def _lanes(question: dict[str, Any], rows: list[list[Key]], moves: list[list[Move]]) -> list[HostLanes]:
    """By rank; moves without a time that the question names take for ever."""
    ways = [question.get(name, [float("inf")] * len(question["rank_of"])) for name in ("offload", "reload")]
    return [HostLanes(row, own, *ways) for row, own in zip(rows, moves or [[]] * len(rows), strict=True)]


def _replay(case: MixCase, rows: list[list[Key]], lanes: list[HostLanes]) -> tuple[dict[Key, float], list[str]]:
    """The end of every action in the order of the rows, and which ranks never come to theirs."""
    ends, sent, free = Times(), Times(), dict[tuple[int, int], float]()
    at, clock, moved = [0] * len(rows), [0.0] * len(rows), True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row) and (ready := _ready(case, row[at[rank]], ends, sent)) is not None:
                key, gate = row[at[rank]], lanes[rank].gate(at[rank], clock[rank])
                ends[key] = clock[rank] = max(clock[rank], ready, gate) + _length(case, key)
                lanes[rank].ran(at[rank], clock[rank])
                if key[0] != "W":
                    sent[key] = _arrives(case, key, ends[key], free)
                at[rank], moved = at[rank] + 1, True
    stuck = [(rank, row[k]) for rank, (row, k) in enumerate(zip(rows, at, strict=True)) if k < len(row)]
    return ends, [f"rank {rank} waits for ever at {_text(key)}" for rank, key in stuck]


def _unsound(case: MixCase, rows: list[list[Key]]) -> list[str]:
    """Every action once, on the rank of its chunk."""
    wrong = [f"{_text(key)} is on rank {r}" for r, row in enumerate(rows) for key in row if case.rank_of[key[1]] != r]
    flat = [key for row in rows for key in row]
    cells = {(c, m): "" for c in range(len(case.rank_of)) for m in range(case.microbatches)}
    for kind, c, m in flat:
        cells[c, m] = cells.get((c, m), "") + kind
    wrong += [
        f"chunk {c} runs {'+'.join(kinds) or 'nothing'} for micro batch {m}"
        for (c, m), kinds in cells.items()
        if kinds not in {"FIW", "FB"} or not (c < len(case.rank_of) and m < case.microbatches)
    ]
    return wrong[:8]


def _over(case: MixCase, rows: list[list[Key]], moves: list[list[Move]]) -> list[str]:
    """Ranks that hold more than they have room for."""
    shares = [{"F": 1.0, "I": -free, "W": free - 1.0, "B": -1.0} for free in case.frees]
    faults = list[str]()
    for rank, room in enumerate(case.room):
        peak = held(rows[rank], moves[rank], shares, case.chunks.activation)
        if not peak <= room * (1 + SLACK):
            faults.append(f"rank {rank} holds {peak:g} and has room for {room:g}")
    return faults


def _value(case: MixCase, rows: list[list[Key]], ends: dict[Key, float], objective: str) -> float:
    begins = [ends[row[0]] - _length(case, row[0]) for row in rows]
    last = [ends[row[-1]] for row in rows]
    if objective == "period":
        return max(end - begin for begin, end in zip(begins, last, strict=True))
    return max(last) - min(begins)
