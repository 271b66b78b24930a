"""What a hand can turn: the values that every part of a strategy can be stepped to, each with what `check` says of it.

A choice is words laid over the strategy, as `why` takes them: what they leave out stays, and dp follows from the GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, get_args

from shardwise.check.check import check
from shardwise.errors import ShardwiseError, UnknownNameError
from shardwise.estimate.advice import recomputes
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.load import gpu_names, named_cluster
from shardwise.inputs.mixed import Mixed
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import SCHEDULES, V_SCHEDULES, Dtype, Optimizer, Strategy
from shardwise.search.micro_batches import most_samples
from shardwise.search.why import beside

_MOST_DEGREE = 64
_CHUNKS = 8
_SCALES = (0.25, 0.5, 1, 2, 4)


class KnobChoice(NamedTuple):
    """One value of a knob."""

    value: str
    words: str
    """What is laid over the strategy."""
    cluster: str = ""
    """The cluster that goes with it; empty: it stays."""
    fault: str = ""
    """Why it cannot be run; empty: it can."""


class Knob(NamedTuple):
    """One part of a strategy or of what it runs on, and all values that it can be given."""

    name: str
    value: str
    choices: tuple[KnobChoice, ...]


def knobs(
    model: Model, cluster: Cluster, strategy: Strategy, runtime: Runtime, *, judged: bool = True
) -> tuple[Knob, ...]:
    """Every knob of a strategy, its values in order, the present one among them; `judged`: by `check`, each."""
    judge = _judge(model, cluster, strategy, runtime) if judged else lambda choice: choice
    made = (*_of_cluster(cluster, strategy), *_of_strategy(model, cluster, strategy))
    return tuple(
        Knob(name, value, tuple(one if one.value == value else judge(one) for one in choices))
        for name, value, choices in made
    )


def turned(strategy: Strategy, cluster: Cluster, choice: KnobChoice) -> tuple[Strategy, Cluster]:
    """The strategy after a choice, and what it then runs on."""
    there = named_cluster(choice.cluster) if choice.cluster else cluster
    return beside(choice.words, strategy, there.gpus), there


Judge = Callable[[KnobChoice], KnobChoice]


def _judge(model: Model, cluster: Cluster, strategy: Strategy, runtime: Runtime) -> Judge:
    def judged(choice: KnobChoice) -> KnobChoice:
        try:
            there = turned(strategy, cluster, choice)
            faults: Iterable[object] = check(model, there[1], there[0], runtime)
        except ShardwiseError as error:
            faults = (error,)
        return choice._replace(fault=said(next(iter(faults), "")))

    return judged


def said(fault: object) -> str:
    """A fault as a knob tells it: it is of the strategy, which need not be said."""
    return str(fault).removeprefix("strategy.")


_Made = tuple[str, str, tuple[KnobChoice, ...]]


def _of_cluster(cluster: Cluster, s: Strategy) -> Iterator[_Made]:
    """GPUs and their kind, where the cluster is one of the catalog's."""
    if isinstance(cluster, Mixed) or not named(cluster):
        return
    counts = sorted({max(1, int(cluster.gpus * scale)) for scale in _SCALES})
    gpu = cluster.gpu.name
    keep = f"tp{s.tp}"  # dp follows from the GPUs anew
    yield "gpus", str(cluster.gpus), tuple(KnobChoice(str(n), keep, f"{n}x{gpu}") for n in counts)
    yield "gpu", gpu, tuple(KnobChoice(name, "", f"{cluster.gpus}x{name}") for name in gpu_names())


def named(cluster: Cluster) -> bool:
    """Whether a cluster is just what the catalog has under its GPUs and their kind."""
    try:
        return named_cluster(f"{cluster.gpus}x{cluster.gpu.name}") == cluster
    except UnknownNameError:
        return False


def _of_strategy(model: Model, cluster: Cluster, s: Strategy) -> Iterator[_Made]:
    degrees = [n for n in range(1, min(cluster.gpus, _MOST_DEGREE) + 1) if cluster.gpus % n == 0]
    yield _numbers("tp", s.tp, degrees)
    yield _numbers("pp", s.pp, degrees)
    if s.pp > 1:
        chunks = {*range(1, min(_CHUNKS, model.layers // s.pp) + 1), s.vpp}
        told = ((n, f"pp{s.pp}x{n}" + (f" {s.schedule}" if s.vpp > 1 and n > 1 else "")) for n in sorted(chunks))
        yield "vpp", str(s.vpp), tuple(KnobChoice(str(n), words) for n, words in told)
    yield _numbers("cp", s.cp, degrees)
    if model.moe is not None:
        yield _numbers("ep", s.ep, [n for n in degrees if model.moe.experts % n == 0])
    yield _numbers("zero", s.zero, range(4))
    yield _numbers("mbs", s.micro_batch, (1 << n for n in range(most_samples(model, s).bit_length())))
    known = list(recomputes(model, s))
    again = known if s.recompute in known else [s.recompute, *known]
    yield "recompute", str(s.recompute), tuple(KnobChoice(str(one), f"recompute={one}") for one in again)
    if s.pp > 1:
        yield "schedule", s.schedule, tuple(KnobChoice(name, _ordered(name, s)) for name in SCHEDULES)
    yield "dtype", s.dtype, tuple(KnobChoice(name, name) for name in get_args(Dtype))
    yield "optimizer", s.optimizer, tuple(KnobChoice(name, name) for name in get_args(Optimizer))
    yield _numbers("gbs", s.global_batch, _scaled(s.global_batch))
    yield _numbers("seq", s.seq, _scaled(s.seq))


def _numbers(name: str, value: int, values: Iterable[int]) -> _Made:
    return name, str(value), tuple(KnobChoice(str(n), f"{name}{n}") for n in sorted({*values, value}))


def _scaled(value: int) -> Iterator[int]:
    return (int(value * scale) for scale in _SCALES if value * scale >= 1)


def _ordered(name: str, s: Strategy) -> str:
    """A schedule with the chunks that it is made of."""
    if name in V_SCHEDULES:
        return f"pp{s.pp}x2 {name}"
    return f"pp{s.pp}x{max(2, s.vpp)} {name}" if name == "interleaved" else f"pp{s.pp}x1 {name}"
