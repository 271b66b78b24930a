"""A schedule from a file, replayed; an answer of `schedule --json` carries its costs and a proof, which is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, FileError, InputError
from shardwise.inputs.files import read_mapping, read_text
from shardwise.inputs.gate import held
from shardwise.inputs.scalars import SCALARS
from shardwise.pipeline.action import Offload, Schedule
from shardwise.pipeline.bounds import Bound
from shardwise.pipeline.certificate import SCHEMA, check, derives, hash_of
from shardwise.pipeline.contention import linked
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.costs_text import costs_of, limited
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.faults import validate
from shardwise.pipeline.offload import offloaded
from shardwise.pipeline.offload_search import with_host
from shardwise.pipeline.optimise import bound_of
from shardwise.pipeline.pairs import combined
from shardwise.pipeline.prove import question_of
from shardwise.pipeline.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """A schedule with its costs, run through the simulator."""

    timeline: Timeline
    bound: Bound
    """No order of these passes takes less, under these costs."""
    proof: str = ""
    """What the checker says of the proof that came with the schedule; empty: none came."""


def replay(
    source: Schedule | str | Path,
    costs: Costs | Sequence[Costs] | str | None = None,
    *,
    hop: float | None = None,
    free: float | None = None,
    memory_limit: str | None = None,
    transfer: float | None = None,
    offload: float | None = None,
    contention: bool = False,
    combine: bool = False,
    copies: int = 1,
) -> Replay:
    """Replay a schedule, a CSV of one, or an answer of `schedule` (a JSON file) whose proof is checked.

    `combine`: every forward runs together with the full backward after it; `copies`: of the model, 2 of DualPipe.
    Where the costs say what it takes, so many activations go to host memory that the order fits its limit.
    """
    proof, order = (None, source) if isinstance(source, Schedule) else read_order(source)
    order = _copied(order, copies) if copies != 1 else order
    validate(order)
    order = combined(order) if combine else order
    given: tuple[Costs, ...] = ()
    if costs is not None:
        found = costs_of(costs, order.pp, order.vpp, hop, free, chunks=order.chunks)
        given = limited(with_host(linked(found, transfer, contention=contention), offload), memory_limit, order.rank_of)
    elif proof is None:
        raise InputError(Fault("--costs", "is missing; write f,i,w of one chunk, such as 10,11,9, or name a JSON file"))
    said = ""
    if proof is not None:
        said = checked_proof(proof, str(source), given)
        own = proven_costs(proof)
        asked: dict[str, object] = {
            "--hop": hop, "--free-at-input-grad": free, "--memory": memory_limit, "--transfer": transfer,
            "--offload": offload, "--contention": contention > own.contention or None, "--combine": combine or None,
        }  # fmt: skip
        given = (_with_pairs(own, given[0]) if given else _alone(own, asked, str(source)),)
    one = replace(given[0], contention=contention or given[0].contention)
    line = offloaded(order, one) if one.offloads and proof is None else None
    order = line.schedule if line else order
    validate(order, one)
    bound = bound_for(order, replace(one.least(), memory_limit=()) if one.offloads else one.least())
    return Replay(timeline=line or simulate(order, one), bound=bound, proof=said)


def _alone(own: Costs, asked: dict[str, object], path: str) -> Costs:
    """The costs of an answer; options that change them are refused. It keeps neither latency and transfer apart nor the
    traffic of pairs, so the order would be timed with less than it was made for.
    """
    if names := [name for name, value in asked.items() if value is not None]:
        told = f"for {', '.join(names)}, give the order's CSV (`schedule --csv`) and --costs"
        raise InputError(f"an answer is checked with the costs that it holds; {told}", title=path)
    return own


def _with_pairs(own: Costs, given: Costs) -> Costs:
    """What pairs take is no part of a proof, whose passes run one after the other; costs given beside it tell."""
    return replace(own, traffic_f=given.traffic_f, traffic_b=given.traffic_b, together=given.together)


def _copied(order: Schedule, copies: int) -> Schedule:
    held(copies, SCALARS["option.copies"], "--copies")
    if order.chunks % copies:
        raise InputError(
            Fault("--copies", f"are {copies}, and the order has {order.chunks} chunks; each copy has as many")
        )
    return replace(order, copies=copies)


def bound_for(order: Schedule, costs: Costs) -> Bound:
    """Of any order of these chunks on these ranks. Where ranks hold different numbers of chunks, or several copies of
    the model, it is a plainer one.
    """
    counts = [order.rank_of.count(rank) for rank in range(order.pp)]
    return bound_of(costs, schedule=order) if len(set(counts)) == order.copies == 1 else _plain_bound(order, costs)


def _plain_bound(order: Schedule, costs: Costs) -> Bound:
    """A rank's work after the shortest way to one of its chunks, or one micro batch there and back."""
    length, ranks = order.length, order.rank_of
    hops = [*(costs.hop or [0.0] * (order.chunks - 1)), 0.0]
    work, first, chain = [0.0] * order.pp, [float("inf")] * order.pp, 0.0
    for begin in range(0, order.chunks, length):
        own = range(begin, begin + length)
        ways = [hops[c] * (ranks[c] != ranks[c + 1]) for c in own[:-1]]
        for k, c in enumerate(own):
            first[ranks[c]] = min(first[ranks[c]], sum(costs.f[begin:c]) + sum(ways[:k]))
            work[ranks[c]] += order.microbatches * (costs.f[c] + costs.i[c] + costs.w[c])
        chain = max(chain, sum(costs.f[c] + costs.i[c] for c in own) + 2 * sum(ways) + costs.w[begin])
    busy = [start + seconds for start, seconds in zip(first, work, strict=True)]
    if chain > max(busy):
        return Bound(value=chain, rank=ranks[0], kind="chain")
    return Bound(value=max(busy), rank=busy.index(max(busy)), kind="work")


def read_order(path: str | Path) -> tuple[dict[str, Any] | None, Schedule]:
    """The schedule of a file, with its proof where the file is an answer that has one."""
    proof = read_proof(path) if Path(path).suffix == ".json" else None
    text = read_text(path) if proof is None else "\n".join(proof["rows"])
    try:
        order = Schedule.parse(text, name=Path(path).stem)
        return proof, order if proof is None else replace(order, offloads=_moves(proof, path))
    except InputError as error:
        raise InputError(error.faults, title=str(path)) from None


def _moves(proof: dict[str, Any], path: str | Path) -> tuple[tuple[Offload, ...], ...]:
    """What goes to host memory and back in the order of a proof; whether it makes sense is for the checker."""
    try:
        return tuple(tuple(Offload(*map(int, one)) for one in own) for own in proof.get("offloads", ()))
    except (TypeError, ValueError) as error:
        raise FileError(path, f"the proof is damaged ({error!r}); schedule again") from None


def holds_order(path: str | Path) -> bool:
    """Whether a file holds the order of a pipeline alone: a CSV, or an answer of `schedule --json`."""
    if Path(path).suffix.lower() != ".json":
        return Path(path).suffix.lower() == ".csv"
    try:
        proof = read_mapping(path).get("proof")
    except InputError:
        return False
    return isinstance(proof, dict) and proof.get("schema") == SCHEMA


def read_proof(path: str | Path) -> dict[str, Any]:
    """The proof that a file holds; whether it holds is `checked_proof`'s to say."""
    proof = read_mapping(path).get("proof")
    if not isinstance(proof, dict) or proof.get("schema") != SCHEMA:
        raise FileError(path, f"holds no proof of a schedule ({SCHEMA}); give the --json of `schedule`, or a CSV")
    if not proof.get("rows"):
        raise FileError(path, "is of a schedule too long to be carried along; write it with --csv and give that")
    return proof


def checked_proof(proof: dict[str, Any], path: str, given: tuple[Costs, ...]) -> str:
    """What the checker found, where it all holds; `given`: costs that the proof has to be of, if any."""
    try:
        faults, anew, question = check(proof), derives(proof), proof["question"]
        told = (tuple(question["rank_of"]), question["microbatches"], question["objective"])
        if not faults and given and hash_of(question_of(given, *told)) != proof["hash"]:
            faults = ["it is of other costs or limits: this proof no longer holds; schedule again"]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration, OverflowError) as error:
        raise FileError(path, f"the proof is damaged ({error!r}); schedule again") from None
    if faults:
        raise InputError("\n".join(f"{path}: the proof does not hold: {fault}" for fault in faults))
    bound = f"the bound of {proof['bound']:g} is " + ("derived anew" if anew else "too large to be derived anew")
    return f"proof          holds: order, memory and value {proof['value']:g} are checked, {bound}"


def proven_costs(proof: dict[str, Any]) -> Costs:
    """The costs of the choice that the order was made for."""
    question, choice = proof["question"], proof["choice"]
    table = question["alternatives"]
    free = question["free_at_input_grad"]
    f, i, w, kept = (tuple(table[k][key][c] for c, k in enumerate(choice)) for key in ("f", "i", "w", "activation"))
    return Costs(
        f=f, i=i, w=w, activation=kept, hop=tuple(question.get("latency", question["hop"])),
        transfer=tuple(question.get("transfer", ())), contention="transfer" in question,
        free_at_input_grad=tuple(free) if isinstance(free, list) else free, static=tuple(question["static"]),
        memory_limit=tuple(question["memory_limit"]), offload=tuple(question.get("offload", ())),
        reload=tuple(question.get("reload", ())),
    )  # fmt: skip
