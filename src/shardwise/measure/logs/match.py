"""Whether a log is of a run of a plan, by all that it says of itself, and what the plan takes where it ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardwise.errors import Fault, InputError, ShardwiseError
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.frameworks.export import TARGETS, export
from shardwise.frameworks.target import Export
from shardwise.inputs.parameters import count
from shardwise.inputs.strategy import Strategy
from shardwise.measure.logs.reader import LogReader, read_log
from shardwise.measure.logs.record import RunLog
from shardwise.plan.plan import Plan
from shardwise.plan.predict import estimate_of, order_for

NAMED = ("megatron", "torchtitan", "deepspeed", "huggingface")
PADDED = 0.03
"""Share by which parameters may differ: vocabularies are padded, and ends are shared or copied."""


class Predicted(NamedTuple):
    """A plan on the framework that wrote a log."""

    told: Estimate
    target: str = ""
    """The framework, where the plan is for another."""
    notes: tuple[str, ...] = ()


def read_run(path: str, plan: Plan) -> tuple[RunLog, Predicted]:
    """A log of a run of a plan, and what it should take there; of another run it is refused."""
    log = read_log(path, **per_step(plan.strategy))
    found = predicted_for(plan, log.framework, log.runtime, path)
    refuse_other_run(log.facts, found.told, path)
    return log, found


def reader_of(strategy: Strategy) -> LogReader:
    return LogReader(**per_step(strategy))


def per_step(strategy: Strategy) -> dict[str, float]:
    """What turns rates that a log prints into seconds."""
    samples = float(strategy.global_batch)
    return {"tokens_per_gpu": samples * strategy.seq / strategy.world, "samples": samples}


def predicted_for(plan: Plan, framework: str, named: str, path: str) -> Predicted:
    """What a plan takes on the framework that wrote a log: as planned, or as it is exported there."""
    own = plan.strategy.runtime
    other = _other(framework, named, own)
    if not other:
        return Predicted(estimate_of(plan))
    if other not in TARGETS:
        raise InputError(Fault("runtime", f"is {other} in {path} and {own} in the plan; give the plan of that run"))
    try:
        told = as_exported(plan, export(plan, other))
    except ShardwiseError as error:
        raise InputError(
            f"{path} is a log of {other}, and the plan, which is for {own}, cannot run there: {error}"
        ) from None
    note = f"the log is {other}'s and the plan is for {own}: predicted is the plan as exported to {other}"
    return Predicted(told, other, (note,))


def as_exported(plan: Plan, made: Export) -> Estimate:
    """What the files of a plan take, as they are written."""
    strategy = made.strategy
    assert strategy is not None  # noqa: S101 - for the type checker: it was made of a plan
    return estimate(plan.model, plan.cluster, strategy, order=order_for(plan, strategy))


def _other(framework: str, named: str, runtime: str) -> str:
    """The framework that wrote a log, where a plan's runtime is another's; empty: it is the plan's own, or not said.

    Runtimes that print the lines of others are many; one that is named after another framework is not this one.
    """
    if named:
        return "" if named in runtime else named
    wrote = "huggingface" if framework == "trainer" else framework
    hands_over = framework == "trainer" and "deepspeed" in runtime
    return wrote if wrote in NAMED and not hands_over and wrote not in runtime and runtime.startswith(NAMED) else ""


def refuse_other_run(facts: dict[str, float], told: Estimate, path: str) -> None:
    """All that a log says otherwise than the plan, at once."""
    if found := list(differences(facts, told)):
        raise InputError(found, title=f"{path} is the log of another run; give its plan, or the log of this plan")


def differences(facts: dict[str, float], told: Estimate) -> Iterator[Fault]:
    strategy = told.strategy
    exact = {"global_batch": strategy.global_batch, "seq": strategy.seq, "world": strategy.world}
    for name, ours in exact.items():
        if facts.get(name, ours) != ours:
            yield Fault(name, f"is {facts[name]:,.0f} in the log and {ours:,} in the plan")
    sizes = {"parameters": float(count(told.model).total)}
    sizes |= {f"parameters pp{stage.rank}": stage.parameters for stage in told.stages}
    for name, expected in sizes.items():
        if name in facts and abs(facts[name] / expected - 1) > PADDED:
            yield Fault(name, f"are {facts[name]:,.0f} in the log and {expected:,.0f} in the plan")
