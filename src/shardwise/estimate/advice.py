"""The strategies one step away from a given one, and the cheapest of these changes that would help: fit, or be faster.

Every strategy one step away is estimated. Where none of them fits, the best of them are taken a second step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from shardwise.check.check import check
from shardwise.errors import ShardwiseError
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.inputs.layers import layer_faults, rank_chunks, spread
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy

WORTH = 0.002
"""Share of the iteration that a change must win to be named: less is within the model's own rounding."""
SECOND = 4
"""How many of the first steps are taken further where one step is not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a strategy and what it would bring."""

    kind: str
    """Changes of one kind are alternatives to each other; only the best is named."""
    text: str
    """What to change: `tp 8 -> 4, dp 2 -> 4`."""
    strategy: Strategy
    """The strategy after it."""
    seconds: float
    """Seconds that an iteration takes less; below 0: more."""
    bytes: float
    """Bytes that the fullest rank needs less; below 0: more."""
    fits: str
    """Whether it then fits: yes, no or close."""


def advise(base: Estimate, *, runtime: Runtime | None = None, count: int = 3) -> tuple[Change, ...]:
    """The changes that help most, best first; none of two is the same kind."""
    runtime = runtime or load_runtime(base.strategy.runtime)
    first = _changes(base, base.strategy, runtime, {base.strategy})
    if base.fits == "yes":
        return _faster(base, first, count)
    fitting = _fitting(first)
    if sum(change.fits == "yes" for change in _best_of_kinds(fitting, count)) < count:
        first += _second(base, first, runtime)
        fitting = _fitting(first)
    # nothing fits: what comes nearest
    return _best_of_kinds(fitting or sorted(first, key=lambda change: -change.bytes), count)


def _second(base: Estimate, first: list[Change], runtime: Runtime) -> list[Change]:
    """One step further from the leanest changes, where that makes them leaner."""
    seen = {base.strategy, *(change.strategy for change in first)}
    short = sorted((change for change in first if change.fits != "yes"), key=lambda change: -change.bytes)
    leanest = _best_of_kinds(short, SECOND)
    return [
        replace(further, kind=" and ".join(sorted({change.kind, further.kind})))
        for change in leanest
        for further in _changes(base, change.strategy, runtime, seen)
        if further.bytes > change.bytes + WORTH * base.total_bytes
    ]


def _fitting(changes: Iterable[Change]) -> list[Change]:
    """Changes after which it fits, surely before closely, then by time."""
    found = [change for change in changes if change.fits != "no" and change.bytes > 0]
    return sorted(found, key=lambda change: (change.fits != "yes", -change.seconds))


def _faster(base: Estimate, changes: Iterable[Change], count: int) -> tuple[Change, ...]:
    least = WORTH * base.iteration_seconds
    found = [change for change in changes if change.fits == "yes" and change.seconds > least]
    return _best_of_kinds(sorted(found, key=lambda change: -change.seconds), count)


def _best_of_kinds(changes: Iterable[Change], count: int) -> tuple[Change, ...]:
    best: dict[str, Change] = {}
    for change in changes:
        best.setdefault(change.kind, change)
    return tuple(best.values())[:count]


def _changes(base: Estimate, start: Strategy, runtime: Runtime, seen: set[Strategy]) -> list[Change]:
    """What every valid strategy one step from `start` would bring over `base`."""
    return _tried(base, (*neighbours(base.model, start, runtime), *_dispatchers(start, runtime)), runtime, seen)


def _tried(base: Estimate, steps: Iterable[NeighbourStep], runtime: Runtime, seen: set[Strategy]) -> list[Change]:
    found = []
    for kind, strategy in steps:
        if strategy in seen or check(base.model, base.cluster, strategy, runtime):
            continue
        seen.add(strategy)
        change = _change(base, kind, strategy, runtime)
        if change:
            found.append(change)
    return found


def _change(base: Estimate, kind: str, strategy: Strategy, runtime: Runtime) -> Change | None:
    try:
        then = estimate(
            base.model, base.cluster, strategy, runtime=runtime, checked=True, memory_limit=base.memory_limit
        )
    except ShardwiseError:
        return None
    return Change(
        kind=kind,
        text=difference(base.strategy, strategy),
        strategy=strategy,
        seconds=base.iteration_seconds - then.iteration_seconds,
        bytes=base.total_bytes - then.total_bytes,
        fits=then.fits,
    )


class NeighbourStep(NamedTuple):
    """One change of a strategy."""

    kind: str
    """Steps of one kind are alternatives to each other: recompute, batch, split ..."""
    strategy: Strategy


_EXCHANGES = (("tp", "dp"), ("pp", "dp"), ("tp", "pp"), ("cp", "dp"), ("tp", "cp"), ("cp", "pp"))
_MODULES: tuple[tuple[str, ...], ...] = (
    ("core-attention",),
    ("attention-norm", "mlp-norm"),
    ("activation",),
    ("attention-norm", "mlp-norm", "activation"),
    ("moe-act",),
    ("mla-up",),
    ("mla-up", "moe-act", "mlp-norm", "attention-norm"),
    ("mlp",),
    ("attention",),
)


def _dispatchers(strategy: Strategy, runtime: Runtime) -> Iterator[NeighbourStep]:
    """Other ways for tokens to reach their experts, and what hides them."""
    if strategy.ep == 1:
        return
    for name in runtime.can.dispatchers:
        for overlap in {strategy.ep_overlap, True}:
            step = replace(strategy, dispatcher=name, ep_overlap=overlap)  # type: ignore[arg-type]
            yield NeighbourStep("experts", step)


def neighbours(model: Model, strategy: Strategy, runtime: Runtime) -> Iterator[NeighbourStep]:
    """Every strategy one step away, valid or not, in a fixed order, the given one not among them."""
    for step in _steps(model, strategy, runtime):
        if step.strategy != strategy:
            yield step


def _steps(model: Model, s: Strategy, runtime: Runtime) -> Iterator[NeighbourStep]:
    yield from (NeighbourStep("recompute", replace(s, recompute=choice)) for choice in recomputes(model, s))
    for size in (s.micro_batch * 2, s.micro_batch // 2):
        if size and s.global_batch % (size * s.dp) == 0:
            yield NeighbourStep("micro batch", replace(s, micro_batch=size))
    yield from _splits(s)
    if s.dp * s.cp > 1:
        yield from (NeighbourStep("zero", replace(s, zero=zero)) for zero in runtime.can.zero)  # type: ignore[arg-type]
    yield from (NeighbourStep("vpp", chunked) for chunked in _chunked(model, s))
    yield from (NeighbourStep("experts", changed) for changed in _experts(model, s))
    if s.tp > 1 and not s.sp:
        yield NeighbourStep("sequence parallel", replace(s, sp=True))
    if not s.flash:
        yield NeighbourStep("attention", replace(s, flash=True))
    if s.cp > 1:
        yield from (NeighbourStep("context", replace(s, cp_kind=kind)) for kind in runtime.can.cp)  # type: ignore[arg-type]
    yield from _moved_layer(model, s, runtime)


def recomputes(model: Model, s: Strategy) -> Iterator[Recompute]:
    """What the backward pass of a strategy can compute again, from nothing to everything."""
    yield Recompute()
    for modules in _MODULES:
        if _applies(modules, model, s):
            yield Recompute(modules=modules)
    stage = model.depth // s.pp
    for count in sorted({stage // 4, stage // 2, 3 * stage // 4} - {0, stage}):
        yield Recompute(full=True, layers=(count,))
    yield Recompute(full=True)


def _applies(modules: tuple[str, ...], model: Model, s: Strategy) -> bool:
    if "core-attention" in modules and s.flash:
        return False  # flash attention keeps no scores: there is nothing to win
    return ("mla-up" not in modules or model.mla is not None) and ("moe-act" not in modules or model.moe is not None)


def _splits(s: Strategy) -> Iterator[NeighbourStep]:
    """A factor of two moved from one axis to another, both ways."""
    for one, other in _EXCHANGES:
        for source, target in ((one, other), (other, one)):
            if getattr(s, source) % 2 == 0:
                yield NeighbourStep("split", _moved(s, source, target))


def _moved(s: Strategy, source: str, target: str) -> Strategy:
    degrees = {source: getattr(s, source) // 2, target: getattr(s, target) * 2}
    changed = replace(s, **degrees, zero_group=0)
    if "pp" not in degrees:
        return changed
    # lists per stage no longer apply, nor does a virtual pipeline without a pipeline
    changed = replace(changed, layers=(), first_layers=0, last_layers=0)
    if len(s.recompute.layers) > 1:
        changed = replace(changed, recompute=replace(s.recompute, layers=()))
    return replace(changed, vpp=1, schedule="1f1b") if changed.pp == 1 else changed


def _chunked(model: Model, s: Strategy) -> Iterator[Strategy]:
    if s.pp == 1 or s.schedule not in {"1f1b", "interleaved"}:
        return
    for vpp in sorted({1, 2, s.vpp * 2, max(1, s.vpp // 2)}):
        schedule = "interleaved" if vpp > 1 else "1f1b"
        recompute = replace(s.recompute, layers=()) if len(s.recompute.layers) > 1 else s.recompute
        if model.depth % (s.pp * vpp) == 0:
            yield replace(s, vpp=vpp, schedule=schedule, layers=(), group=0, recompute=recompute)


def _experts(model: Model, s: Strategy) -> Iterator[Strategy]:
    if model.moe is None:
        return
    for ep in (s.ep * 2, s.ep // 2):
        if ep:
            yield replace(s, ep=ep)
    if s.etp > 1:
        yield replace(s, etp=1)


def _moved_layer(model: Model, s: Strategy, runtime: Runtime) -> Iterator[NeighbourStep]:
    """One layer from the last stage, which has the output layer, or the first to the one with fewest."""
    if s.pp < 2 or s.vpp > 1 or not runtime.can.uneven_layers or any(layer_faults(model.depth, s)):
        return
    now = spread(model.depth, s)
    for source in (s.pp - 1, 0):
        target = min(range(s.pp), key=lambda rank: (now[rank], abs(rank - s.pp // 2), rank))
        if source == target or now[source] < 2:
            target = s.pp // 2 if source != s.pp // 2 else 0
        if now[source] < 2 or source == target:
            continue
        layers = list(now)
        layers[source] -= 1
        layers[rank_chunks(target, s.pp, s.vpp)[0]] += 1
        plain = replace(s, first_layers=0, last_layers=0, count_embedding=False, count_head=False)
        yield NeighbourStep("layers", replace(plain, layers=tuple(layers)))


def difference(old: Strategy, new: Strategy) -> str:
    """What changes between two strategies: `tp 8 -> 4, dp 2 -> 4`."""
    parts = []
    for field in fields(Strategy):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before != after and field.name not in {"group", "placement"}:
            nothing = _NOTHING.get(field.name, "even")
            parts.append(f"{field.name.replace('_', ' ')} {_said(before, nothing)} -> {_said(after, nothing)}")
    return ", ".join(parts)


_NOTHING = {"frozen": "nothing", "image_size": "the model's own", "source": "as long as the sample"}
"""What a field without a value says; of layers and their recompute that they are even."""


def _said(value: object, nothing: str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or nothing
    if value == 0 and nothing != "even":
        return nothing
    return f"{value:g}" if isinstance(value, float) else str(value)
