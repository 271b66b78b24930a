"""The proof in an answer of `schedule --json`, read back and checked."""

from __future__ import annotations

from typing import Any

from shardwise.errors import FileError, InputError
from shardwise.inputs.files import read_mapping
from shardwise.pipeline.certificate import SCHEMA, check, derives, hash_of
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.prove import question_of


def read_proof(path: str) -> dict[str, Any]:
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
    f, i, w, held = (tuple(table[k][key][c] for c, k in enumerate(choice)) for key in ("f", "i", "w", "activation"))
    return Costs(
        f=f, i=i, w=w, activation=held, hop=tuple(question["hop"]), free_at_input_grad=question["free_at_input_grad"],
        static=tuple(question["static"]), memory_limit=tuple(question["memory_limit"]),
    )  # fmt: skip
