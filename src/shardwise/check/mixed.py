"""Rules of clusters with several kinds of GPU: which ranks must be alike, and how replicas share the batch."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.check.rule import Combination, divisors_near, either, rule
from shardwise.errors import Fault
from shardwise.inputs.cluster import Gpu
from shardwise.inputs.mixed import Mixed, by_replica, kinds_of, replicas_of

_MAKERS = {"mi": "AMD", "tpu-": "Google", "trainium": "Amazon", "ascend-": "Huawei"}
"""How the names of a maker's chips begin; the others are NVIDIA's."""


def maker_of(gpu: Gpu) -> str:
    return next((maker for start, maker in _MAKERS.items() if gpu.name.startswith(start)), "NVIDIA")


@rule("cluster.gpus")
def one_maker(case: Combination) -> Iterator[Fault]:
    makers = {maker_of(kind.gpu): kind.name for kind in kinds_of(case.cluster)}
    if len(makers) > 1:
        told = " and ".join(f"{name} ({maker})" for maker, name in makers.items())
        yield Fault("cluster.kinds", f"{told}: collectives of different makers do not join; choose kinds of one")


@rule("tp", "pp", "cp", "dp", "cluster.gpus")
def alike(case: Combination) -> Iterator[Fault]:
    """GPUs of one stage, or of one replica, are of one kind."""
    s = case.strategy
    if not isinstance(case.cluster, Mixed) or s.world != case.cluster.gpus:
        return
    axes = ("cp", "tp") if by_replica(s) else ("tp", "cp", "dp")
    share = s.tp * s.cp * (1 if by_replica(s) else s.dp)
    product = " x ".join(f"{axis} {getattr(s, axis)}" for axis in axes)
    whose = "a replica" if by_replica(s) else "a pipeline stage"
    for kind in case.cluster.kinds:
        if kind.gpus % share:
            near = either(divisors_near(kind.gpus, share))
            told = f"{product} = {share} GPUs of {whose} must be alike, and do not divide the {kind.name}"
            yield Fault(f"strategy.{axes[-1]}", f"{told}; make it {near}")


@rule("tp", "pp", "cp", "dp", "ep", "etp", "cluster.gpus")
def experts_alike(case: Combination) -> Iterator[Fault]:
    s = case.strategy
    if not isinstance(case.cluster, Mixed) or not by_replica(s):
        return
    for kind in case.cluster.kinds:
        if kind.gpus % (s.ep * s.etp):
            told = f"ep {s.ep} x etp {s.etp} = {s.ep * s.etp} GPUs must be alike, and do not divide the {kind.name}"
            yield Fault("strategy.ep", f"{told}; make it {either(divisors_near(kind.gpus, s.ep * s.etp))}")


@rule("rank_order", "pp")
def stages_apart(case: Combination) -> Iterator[Fault]:
    if isinstance(case.cluster, Mixed) and case.strategy.rank_order != "dp-pp":
        told = "kinds of GPU are numbered one after the other, so that stages must be, too"
        yield Fault("strategy.rank_order", f"{told}; drop order={case.strategy.rank_order}")


@rule("runtime", "pp")
def runtime_mixes(case: Combination) -> Iterator[Fault]:
    if not isinstance(case.cluster, Mixed):
        return
    wanted = "replicas" if by_replica(case.strategy) else "stages"
    if wanted not in case.can.mixed:
        can = f"; it can have other {case.can.mixed[0]}" if case.can.mixed else ""
        told = f"runtime {case.runtime.base} does not run {wanted} on different kinds of GPU{can}"
        yield Fault("strategy.pp" if can else "cluster", f"{told}; choose another runtime, or one kind")


@rule("runtime", "pp", "tp", "cp", "dp", "batches", "global_batch", "micro_batch", "zero", "cluster.gpus")
def batches_by_kind(case: Combination) -> Iterator[Fault]:
    """Micro batches of every kind: one number each, that add up to the global batch."""
    s, kinds, name = case.strategy, kinds_of(case.cluster), "strategy.batches"
    if not s.batches:
        return
    if len(kinds) == 1 or len(s.batches) != len(kinds):
        said = "has one kind of GPU; leave it out" if len(kinds) == 1 else f"has {len(kinds)} kinds; give one for each"
        yield Fault(name, f"has {len(s.batches)} numbers, and {case.cluster.name} {said}")
    elif not by_replica(s):
        yield Fault(name, f"pp is {s.pp}: kinds hold stages, and all replicas have as many; use pp 1, or leave it out")
    elif not any(kind.gpus % (s.tp * s.cp) for kind in kinds):
        yield from _shares(case)


def _shares(case: Combination) -> Iterator[Fault]:
    s, counts = case.strategy, replicas_of(case.cluster, case.strategy)
    samples = s.micro_batch * sum(n * m for n, m in zip(counts, s.batches, strict=True))
    if samples != s.global_batch:
        each = " + ".join(f"{n} x {m}" for n, m in zip(counts, s.batches, strict=True))
        told = f"({each}) x micro_batch {s.micro_batch} = {samples} samples, but global_batch is {s.global_batch}"
        yield Fault("strategy.batches", f"{told}; change one of them")
    if len(set(s.batches)) == 1:
        return
    if "batches" not in case.can.mixed:
        told = f"runtime {case.runtime.base} gives every replica as many micro batches; leave it out"
        yield Fault("strategy.batches", f"{told}, or choose another runtime")
    if s.zero > 1:
        told = f"zero {s.zero} lets all replicas meet in every micro batch, so each must have as many; use zero 0 or 1"
        yield Fault("strategy.batches", told)


RULES = (one_maker, alike, experts_alike, stages_apart, runtime_mixes, batches_by_kind)
