"""Laws that every estimate keeps, and strategies drawn to hold against them (benchmarks/laws.py draws thousands).

A law names two cases of which the first must not take more, seconds or bytes. Where a law ends:

- Orders made from costs (zb-1p, zb-2p, auto): a heuristic may find a worse order for shorter passes, as list scheduling
  does (Graham 1969). Their passes are held against the laws in one order for both cases, the second one's. Not so the
  seconds of `auto`: it may keep B whole, so that its I is what W leaves of B, and longer where a host that keeps the
  device waiting finds W shorter.
- Recompute beside activations that go to the host: what is computed again is not copied, which may save more time than
  it takes; and a replayed layer comes on top of the two layers' worth that stay on the device either way.
- One more layer is added behind the last, on the last chunk: a new cut may well be a better one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from shardwise.check.check import check
from shardwise.estimate.estimate import assemble
from shardwise.estimate.passes import timeline_of
from shardwise.estimate.setup import Setup, setup_of
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.layers import is_uneven, with_layers
from shardwise.inputs.load import gpu_names, load_runtime, runtime_names
from shardwise.inputs.model import Model
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import V_SCHEDULES, Lora, Strategy
from shardwise.pipeline.action import Schedule

MODELS = (
    "llama-3-8b", "llama-3-70b", "llama-3.2-3b", "gpt-3-13b", "gpt-3-175b", "bloom-560m", "gemma-2-9b", "falcon-7b",
    "gpt-2-124m", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "glm-4.5-air", "deepseek-moe-16b",
    "deepseek-v2-lite", "deepseek-v3",
)  # fmt: skip
ROUNDING = 1 + 1e-9
MADE_FROM_COSTS = frozenset({"zb-1p", "zb-2p", "auto"})
ACTIONS = 4096
"""Passes of an iteration over all ranks, at most: so that a replay stays short."""


class Case(NamedTuple):
    """One question with its strategy."""

    model: Model
    cluster: Cluster
    strategy: Strategy
    runtime: Runtime

    def __str__(self) -> str:
        return f"{self.model.name} {self.cluster.name} {self.runtime.name}: {self.strategy}"

    @property
    def valid(self) -> bool:
        return not check(*self)

    def having(self, **changes: object) -> Case:
        """The same with another strategy."""
        return self._replace(strategy=replace(self.strategy, **changes))


class Value(NamedTuple):
    """What an estimate says of a case."""

    seconds: float
    bytes: float


def _setup(case: Case) -> Setup:
    return setup_of(case.model, case.cluster, case.strategy, case.runtime)


def value(case: Case) -> Value:
    found = assemble(_setup(case))
    return Value(found.iteration_seconds, found.total_bytes)


def _order(case: Case) -> Schedule | None:
    """The order of its passes where it is made from their costs."""
    if case.strategy.pp == 1 or case.strategy.schedule not in MADE_FROM_COSTS:
        return None
    return timeline_of(_setup(case)).schedule


def _in_order(case: Case, order: Schedule) -> Value:
    found = timeline_of(_setup(case), order)
    return Value(found.makespan, max(found.peak))


def drawn(seed: int, count: int) -> Iterator[Case]:
    """Valid cases, the same for the same seed."""
    rng = random.Random(seed)  # noqa: S311
    while count:
        case = _draw(rng)
        if case is not None and case.valid:
            count -= 1
            yield case


def _draw(rng: random.Random) -> Case | None:
    """A case that may break a rule; none where its shape cannot be."""
    runtime = load_runtime(rng.choice(runtime_names()))
    model = load_model(rng.choice(MODELS))
    gpus = 2 ** rng.randint(0, 10) * rng.choice((1, 1, 1, 3))
    can = runtime.can
    tp = rng.choice((1, 1, 2, 4, 8)) if can.tp else 1
    cp = rng.choice((1, 1, 1, 2, 4)) if can.cp else 1
    pp = rng.choice((1, 2, 3, 4, 8, 16)) if can.pp else 1
    if gpus > 1024 or gpus % (tp * cp * pp):
        return None
    dp = gpus // (tp * cp * pp)
    schedule = rng.choice(can.schedules) if pp > 1 else "1f1b"
    vpp = 2 if schedule in V_SCHEDULES else rng.choice((2, 3, 4)) if schedule in {"interleaved", "low-memory"} else 1
    mbs, passes = rng.choice((1, 1, 2, 4)), rng.choice((1, 2, 3)) * rng.choice((1, pp, 2 * pp))
    if schedule == "low-memory":
        passes = -(-passes // pp) * pp
    if passes * pp * vpp > (ACTIONS if schedule != "auto" else 128):
        return None
    dtype = rng.choice((*can.dtypes, "bf16", "bf16", "bf16"))
    narrow = dtype in {"fp8", "mxfp8", "nvfp4"}
    strategy = Strategy(
        tp=tp, cp=cp, pp=pp, dp=dp, vpp=vpp, schedule=schedule, runtime=runtime.name,
        ep=rng.choice((1, 2, 8, 32)) if model.moe and can.ep else 1, etp=rng.choice((1, tp)) if can.etp else 1,
        sp=rng.random() < 0.7, cp_kind=rng.choice(can.cp or ("ring",)),
        placement="v" if schedule in V_SCHEDULES else "loop",
        zero=rng.choice(can.zero), zero_group=rng.choice((0, 0, dp * cp // 2)) if can.hsdp else 0,
        micro_batch=mbs, global_batch=mbs * dp * passes,
        seq=rng.choice((512, 1000, 1024, 2048, 2052, 4096, 8192, 32768)),
        recompute=_recompute(rng, runtime), dtype=dtype,
        master=rng.choice(("mixed", "mixed", "pure", "autocast")), grad_dtype=rng.choice(("fp32", "bf16")),
        optimizer=rng.choice(("adamw", "adamw", "adamw-bf16", "muon", "sgd")), flash=rng.random() < 0.8,
        lora=Lora(rank=16) if rng.random() < 0.05 else None, compile=rng.random() < 0.2,
        offload=rng.choice(("none",) * 8 + ("optimizer", "activations")), straggler=rng.choice((1.0, 1.0, 1.05)),
        cuda_graphs=rng.choice(("none", "none", "attention", "layer")),
        scaling=rng.choice(("tensor", "delayed", "row", "block")), fp8_weights=narrow and rng.random() < 0.5,
        fp8_attention=narrow and rng.random() < 0.3,
    )  # fmt: skip
    cluster = load_cluster(f"{gpus}x{rng.choice(gpu_names())}")
    if strategy.chunks > model.layers:
        return None
    return Case(model, cluster, _cut(rng, model, strategy, runtime), runtime)


def _recompute(rng: random.Random, runtime: Runtime) -> Recompute:
    kind = rng.choice(("none", "none", *runtime.can.recompute))
    full = rng.random() < 0.5 or "modules" not in runtime.can.recompute
    modules = () if full else tuple(rng.sample(runtime.can.modules, rng.randint(1, min(3, len(runtime.can.modules)))))
    return {
        "none": Recompute(),
        "full": Recompute(full=True),
        "block": Recompute(full=full, modules=modules, layers=(rng.randint(1, 4),)),
        "uniform": Recompute(full=True, group=2),
        "modules": Recompute(modules=modules) if modules else Recompute(),
        "per-stage": Recompute(full=True),
    }[kind]


def _cut(rng: random.Random, model: Model, strategy: Strategy, runtime: Runtime) -> Strategy:
    """Evenly as far as it goes, or here and there a layer moved."""
    if strategy.pp == 1 or not runtime.can.uneven_layers:
        return strategy
    if not is_uneven(model.layers, strategy) and rng.random() < 0.7:
        return strategy
    layers = list(with_layers(model.layers, strategy).layers)
    for _ in range(rng.randint(0, 3)):
        one, other = rng.sample(range(len(layers)), 2)
        if layers[one] > 1:
            layers[one], layers[other] = layers[one] - 1, layers[other] + 1
    return replace(strategy, layers=tuple(layers))


Pairs = Iterator[tuple[Case, Case]]


def _flops(case: Case) -> Pairs:
    gpu = case.cluster.gpu
    faster = replace(gpu, flops={name: 2 * flops for name, flops in gpu.flops.items()})
    yield case._replace(cluster=replace(case.cluster, gpu=faster)), case


def _bandwidth(case: Case) -> Pairs:
    gpu = case.cluster.gpu
    yield case._replace(cluster=replace(case.cluster, gpu=replace(gpu, bandwidth=2 * gpu.bandwidth))), case


def _network(case: Case) -> Pairs:
    levels = tuple(replace(level, bandwidth=2 * level.bandwidth) for level in case.cluster.levels)
    yield case._replace(cluster=replace(case.cluster, levels=levels)), case


def _latency(case: Case) -> Pairs:
    levels = tuple(replace(level, latency=level.latency / 2) for level in case.cluster.levels)
    yield case._replace(cluster=replace(case.cluster, levels=levels)), case


def _host(case: Case) -> Pairs:
    yield case._replace(cluster=replace(case.cluster, host_bandwidth=2 * case.cluster.host_bandwidth)), case


def _sequence(case: Case) -> Pairs:
    yield case, case.having(seq=2 * case.strategy.seq)


def _batch(case: Case) -> Pairs:
    yield case, case.having(global_batch=2 * case.strategy.global_batch)


def _recomputing(case: Case) -> Pairs:
    """Nothing, what was drawn, everything: one after the other."""
    drawn = case.strategy.recompute
    if not drawn.active:
        modules = [name for name in case.runtime.can.modules if "modules" in case.runtime.can.recompute]
        drawn = Recompute(modules=tuple(modules[:1]))
    if case.strategy.offload == "activations":
        return
    if drawn.active:
        yield case.having(recompute=Recompute()), case.having(recompute=drawn)
    if not drawn.full or drawn.layers:
        yield case.having(recompute=drawn), case.having(recompute=Recompute(full=True))


def _swapped(pairs: Callable[[Case], Pairs]) -> Callable[[Case], Pairs]:
    return lambda case: ((more, less) for less, more in pairs(case))


def _layer(case: Case) -> Pairs:
    """One more at the end of the model, on the last chunk; on every chunk where all must be alike."""
    model, strategy = case.model, case.strategy
    more = 1 if case.runtime.can.uneven_layers else strategy.chunks
    cut = with_layers(model.layers, strategy)
    layers = (*cut.layers[:-1], cut.layers[-1] + 1) if case.runtime.can.uneven_layers else ()
    longer = case._replace(model=replace(model, layers=model.layers + more), strategy=replace(cut, layers=layers))
    yield case._replace(strategy=cut) if layers else case, longer


class Law(NamedTuple):
    """Pairs of which the first never takes more."""

    name: str
    pairs: Callable[[Case], Pairs]
    of: str = "seconds"
    """Or bytes."""


LAWS = (
    Law("flops x2 is never slower", _flops),
    Law("memory bandwidth x2 is never slower", _bandwidth),
    Law("network bandwidth x2 is never slower", _network),
    Law("network latency / 2 is never slower", _latency),
    Law("host bandwidth x2 is never slower", _host),
    Law("sequence x2 is never faster", _sequence),
    Law("sequence x2 never needs less memory", _sequence, "bytes"),
    Law("global batch x2 is never faster", _batch),
    Law("more recompute is never faster", _recomputing),
    Law("more recompute never needs more memory", _swapped(_recomputing), "bytes"),
    Law("one more layer is never faster", _layer),
    Law("one more layer never needs less memory", _layer, "bytes"),
)


class Found(NamedTuple):
    """A pair held against a law."""

    law: str
    less: Case
    more: Case
    excess: float
    """By what share the first takes more than the second; at most rounding where the law holds."""

    @property
    def broken(self) -> bool:
        return self.excess > ROUNDING - 1


def _concerns(law: Law, case: Case) -> bool:
    return law.of == "bytes" or case.strategy.schedule != "auto"


def held(case: Case) -> Iterator[Found]:
    """A case held against all laws that concern it."""
    known: list[tuple[Case, Value]] = []

    def priced(one: Case) -> Value:
        found = next((its for other, its in known if other == one), None)
        if found is None:
            found = value(one)
            known.append((one, found))
        return found

    for law in LAWS:
        for less, more in law.pairs(case):
            if not (less.valid and more.valid):
                continue
            order = _order(more)
            if order is None:
                both = priced(less), priced(more)
            elif less.strategy.microbatches == more.strategy.microbatches and _concerns(law, less):
                both = _in_order(less, order), _in_order(more, order)
            else:
                continue
            low, high = (getattr(one, law.of) for one in both)
            yield Found(law.name, less, more, low / high - 1)
