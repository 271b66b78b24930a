"""The proof that a plan carries, and its checker, which shares no code with the search.

A proof says of what it is the proof (hashes of the inputs, the cost model, the calibration and the runtime), and what
its bound is the least of: the lowest bound of everything that was dropped unseen, and the strategies whose own bounds
are lowest. The checker holds the hashes against today's, takes the least itself, and estimates the plan and every
strategy that is named: a bound above any of them, or above the plan, is broken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.estimate.estimate import estimate, room
from shardwise.inputs.calibrations import calibration_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.mixed import kinds_of
from shardwise.inputs.serialise import to_json
from shardwise.inputs.strategy import Strategy
from shardwise.plan.plan import Plan, Proof, ProofPart, Subject, proof_sentence
from shardwise.plan.predict import estimate_of
from shardwise.units import show_seconds

COST_MODEL = ("inputs/assumed.py", "cost", "ops", "pipeline", "estimate")
"""The sources that decide what a strategy takes."""
NOTHING = "the file has a bound but no proof of it that could be checked"
CLOSE = 1e-6
"""Share by which a number written and read back, or computed on another machine, may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a plan's proof is worth today."""

    bound: float
    gap: float
    fault: str = ""
    """Why it does not hold; empty: it was checked and holds."""

    def __str__(self) -> str:
        if self.fault:
            return f"{self.fault}; plan again"
        return proof_sentence(self.bound, self.gap, before="checked")


def proof_of(plan: Plan, parts: Iterable[ProofPart]) -> Proof:
    """The proof of a plan. `parts`: what its bound is the least of."""
    parts = tuple(parts)
    return Proof(of=subject(plan, parts), parts=parts)


def subject(plan: Plan, parts: tuple[ProofPart, ...]) -> Subject:
    """Hashes of all that a proof is about."""
    order, limit = plan.order and plan.order.csv(), plan.memory_limit
    asked = [plan.model, plan.cluster, limit, plan.strategy, order, plan.balance, plan.operators]
    known = [calibration_of(kind.gpu) for kind in kinds_of(plan.cluster)]
    return Subject(
        inputs=_hash(asked),
        cost_model=cost_model(),
        calibration=_hash(known[0] if len(known) == 1 else known),
        runtime=_hash(load_runtime(plan.strategy.runtime)),
        parts=_hash(parts),
    )


@cache
def cost_model() -> str:
    """The hash of the cost model's sources."""
    home, found = Path(__file__).parent.parent, hashlib.sha256()
    for source in COST_MODEL:
        path = home / source
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(file.read_bytes())
    return found.hexdigest()[:16]


def _hash(value: object) -> str:
    return hashlib.sha256(to_json({"value": value}).encode()).hexdigest()[:16]


def ended(plan: Plan) -> str:
    """Why a plan's proof no longer holds, as far as its hashes say; empty: they are today's."""
    if plan.proof is None:
        return NOTHING
    then, now = plan.proof.of, subject(plan, plan.proof.parts)
    changed = [one.name.replace("_", " ") for one in fields(now) if getattr(then, one.name) != getattr(now, one.name)]
    return f"this proof no longer holds: {', '.join(changed)} changed since it was made" if changed else ""


def check_proof(plan: Plan) -> Verdict | None:
    """What the plan's proof is worth; none where it has no bound at all."""
    told = plan.predictions
    if told is None or not told.bound:
        return None
    fault = next(_faults(plan, told.iteration_seconds, told.bound), "")
    return Verdict(bound=told.bound, gap=max(0.0, told.iteration_seconds / told.bound - 1), fault=fault)


def _faults(plan: Plan, said: float, bound: float) -> Iterator[str]:
    if plan.proof is None:
        yield NOTHING
        return
    if ended(plan):
        yield ended(plan)
    parts = plan.proof.parts
    if abs(min((part.bound for part in parts), default=bound) - bound) > CLOSE * bound:
        yield f"the proof is broken: {show_seconds(bound)} is not the least of its parts"
    yield from _beaten(plan, said, bound, parts)


def _beaten(plan: Plan, said: float, bound: float, parts: tuple[ProofPart, ...]) -> Iterator[str]:
    """The plan and the named strategies, each as it stands, against the bounds."""
    now = estimate_of(plan).iteration_seconds
    if abs(now / said - 1) > CLOSE:
        yield f"this proof no longer holds: the plan says {show_seconds(said)}, the cost model {show_seconds(now)}"
    if now < bound * (1 - CLOSE):
        yield f"the proof is broken: the plan takes {show_seconds(now)}, less than the bound"
    for part in parts:
        try:
            found = part.strategy and estimate(
                plan.model, plan.cluster, _named(part.strategy, plan), memory_limit=plan.memory_limit
            )
        except ShardwiseError:  # it cannot run as it stands, and so beats nothing
            continue
        fits = found and found.total_bytes <= room(found, plan.memory_limit)
        if found and fits and found.iteration_seconds < part.bound * (1 - CLOSE):
            took = show_seconds(found.iteration_seconds)
            yield f"the proof is broken: {found.strategy} takes {took}, less than its bound"


def _named(text: str, plan: Plan) -> Strategy:
    """The strategy of a line; the documents that it names by their file are the plan's."""
    words = " ".join(word for word in text.split() if not word.startswith("documents="))
    return replace(Strategy.parse(words), documents=plan.strategy.documents)
