import copy
import dataclasses
import json
import random

import pytest
from click.testing import CliRunner

from shardwise.cli.schedule import command as schedule_verb
from shardwise.cli.simulate import command as simulate_verb
from shardwise.errors import FileError, InputError
from shardwise.pipeline.action import placed
from shardwise.pipeline.alternatives import optimise_alternatives
from shardwise.pipeline.arrays import make_problem
from shardwise.pipeline.bounds import lower_bound
from shardwise.pipeline.certificate import check, derives, hash_of
from shardwise.pipeline.costs import costs, limit_of
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.generate import generate
from shardwise.pipeline.mix_case import Chunks, MixCase
from shardwise.pipeline.optimise import bound_of, optimise
from shardwise.pipeline.prove import prove
from shardwise.pipeline.rederive import rederived

OPTIONS = {"pp": 2, "vpp": 2, "microbatches": 4, "effort": 0.05}


def proof_of(objective="makespan", **more):
    first = costs(pp=2, vpp=2, f=10, i=11, w=9, hop=1, free_at_input_grad=0, memory_limit=3, **more)
    again = dataclasses.replace(first, i=(21.0,) * 4, activation=(0.4,) * 4)
    answer = optimise_alternatives([first, again], **OPTIONS, objective=objective)
    proof = prove(
        answer.schedule, [first, again], value=answer.value, bound=answer.bound, objective=objective,
        choice=answer.choice, cases=answer.cases,
    )  # fmt: skip
    return json.loads(json.dumps(proof))


@pytest.mark.parametrize("objective", ["makespan", "period"])
def test_the_proof_of_an_answer_holds(objective):
    proof = proof_of(objective)
    assert derives(proof)
    assert check(proof) == []


def test_the_proof_of_a_published_schedule_holds():
    given, schedule = costs(pp=4, f=10, i=11, w=9, hop=1), generate("1f1b", pp=4, microbatches=6)
    bound = bound_of(given, schedule=schedule)
    value = simulate(schedule, given).makespan
    assert check(prove(schedule, [given], value=value, bound=bound, objective="makespan")) == []


def rehashed(proof):
    proof["hash"] = hash_of(proof["question"])


def slower(proof):
    proof["question"]["alternatives"][0]["f"][0] = 10.5


def swapped(proof):
    cells = proof["rows"][0].split(",")
    proof["rows"][0] = ",".join([cells[-1], *cells[1:-1], cells[0]])


TAMPERED = {
    "no longer holds": slower,
    "does not follow": lambda p: p.update(bound=p["value"]),
    "not 1": lambda p: p.update(value=1.0),
    "above": lambda p: p.update(bound=2 * p["value"]),
    "has room for": lambda p: (p["question"].update(memory_limit=[1.0, 1.0]), rehashed(p)),
    "mixes": lambda p: p.update(cases=p["cases"][:-1] or [[[0]] * 4]),
    "same mix": lambda p: p.update(cases=[*p["cases"], p["cases"][0]]),
    "waits for ever": swapped,
    "fewer actions": lambda p: p.update(rows=p["rows"][:1]),
    "is on rank": lambda p: p.update(rows=p["rows"][::-1]),
}


@pytest.mark.parametrize("words", TAMPERED)
def test_what_was_changed_in_a_proof_is_named(words):
    proof = copy.deepcopy(PROOF)
    TAMPERED[words](proof)
    assert words in " ".join(check(proof))


PROOF = proof_of()


def test_no_number_passes_as_not_a_number():
    for key in ("value", "bound"):
        assert check(PROOF | {key: float("nan")})


def test_the_rules_of_the_checker_are_as_strong_as_the_optimisers():
    """So that every printed bound can be derived anew; and what they give is reached by no order."""
    for seed in range(25):
        dice = random.Random(seed)  # noqa: S311 - a test
        pp, vpp, m = dice.choice((1, 2, 3)), dice.choice((1, 2)), dice.choice((1, 3, 5))
        ranks = placed(pp, vpp, dice.choice(("v", "loop")))
        times = [[dice.uniform(0, 15) for _ in range(pp * vpp)] for _ in range(4)]
        given = costs(
            pp=pp, vpp=vpp, f=times[0], i=times[1], w=times[2], activation=times[3], hop=dice.uniform(0, 3),
            free_at_input_grad=dice.choice((0.0, 0.5, 1.0)),
        )  # fmt: skip
        if seed % 4:
            limit = limit_of(given, ranks, max(1 / pp, dice.choice((0.5, 0.75, 1))))
            given = dataclasses.replace(given, memory_limit=limit)
        case = MixCase(
            chunks=Chunks(given.f, given.i, given.w, given.activation), rank_of=ranks, microbatches=m, hop=given.hop,
            free=given.free_at_input_grad, room=given.limits(pp) if given.memory_limit else (),
        )  # fmt: skip
        for objective in ("makespan", "period"):
            ours = rederived(case, objective)
            assert lower_bound(make_problem(given, ranks, m), objective).value <= ours * (1 + 1e-9)
            placement = "v" if ranks == placed(pp, vpp, "v") else "loop"
            best = optimise(
                given, pp=pp, vpp=vpp, microbatches=m, placement=placement, objective=objective, effort=0.05
            )
            assert ours <= best.value * (1 + 1e-9)


def test_simulate_checks_the_proof_of_an_answer(tmp_path):
    path, table = tmp_path / "answer.json", tmp_path / "costs.json"
    table.write_text(json.dumps({"f": 10, "i": 11, "w": 9, "hop": 1, "memory_limit": 3,
                                 "alternatives": [{"i": 21, "activation": 0.4}]}))  # fmt: skip
    base = ["auto", "--pp", "2", "--microbatches", "4", "--costs", str(table), "--effort", "0.05"]
    text = _run(schedule_verb, *base, "--json", str(path))
    assert "for any order of any mix on this placement" in text
    assert "derived anew" in _run(simulate_verb, str(path))
    assert "derived anew" in _run(simulate_verb, str(path), "--costs", str(table))
    with pytest.raises(InputError, match="no longer holds"):
        _run(simulate_verb, str(path), "--costs", "10,11,9")
    answer = json.loads(path.read_text())
    answer["proof"]["bound"] = answer["proof"]["value"] * 2
    path.write_text(json.dumps(answer))
    with pytest.raises(InputError, match="is above"):
        _run(simulate_verb, str(path))
    for damage in ({"choice": [9]}, {"rows": ["0F0", "x"]}, {"question": {}}, {"cases": 3}):
        path.write_text(json.dumps({"proof": answer["proof"] | damage}))
        with pytest.raises(InputError):
            _run(simulate_verb, str(path))
    path.write_text(json.dumps({"proof": {}}))
    with pytest.raises(FileError, match="holds no proof"):
        _run(simulate_verb, str(path))
    order = tmp_path / "order.csv"
    order.write_text("0F0,0B0\n")
    with pytest.raises(InputError, match="costs: is missing"):
        _run(simulate_verb, str(order))


def _run(verb, *arguments):
    return CliRunner().invoke(verb, list(arguments), catch_exceptions=False, standalone_mode=False).output
