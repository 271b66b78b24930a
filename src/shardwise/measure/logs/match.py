"""Whether a log is of a run of a plan, by all that it says of itself."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.errors import Fault, InputError
from shardwise.estimate.estimate import Estimate
from shardwise.inputs.parameters import count
from shardwise.measure.logs.reader import read_log
from shardwise.measure.logs.record import RunLog

NAMED = ("megatron", "torchtitan", "deepspeed")
PADDED = 0.03
"""Share by which parameters may differ: vocabularies are padded, and ends are shared or copied."""


def read_run(path: str, told: Estimate) -> RunLog:
    """A log of a run of what was estimated; of another run it is refused."""
    strategy = told.strategy
    samples = float(strategy.global_batch)
    log = read_log(path, tokens_per_gpu=samples * strategy.seq / strategy.world, samples=samples)
    refuse_other_run(log.framework, log.facts, told, path)
    return log


def refuse_other_run(framework: str, facts: dict[str, float], told: Estimate, path: str) -> None:
    """All that a log says otherwise than the plan, at once."""
    found = [*_other_software(framework, told.strategy.runtime), *differences(facts, told)]
    if found:
        raise InputError(found, title=f"{path} is the log of another run; give its plan, or the log of this plan")


def _other_software(framework: str, runtime: str) -> Iterator[Fault]:
    """Runtimes that print the lines of others are many; one that is named after another framework is not this one."""
    if framework in NAMED and framework not in runtime and any(runtime.startswith(name) for name in NAMED):
        yield Fault("runtime", f"is {framework} in the log and {runtime} in the plan")


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
