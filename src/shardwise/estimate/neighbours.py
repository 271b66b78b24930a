"""Strategies one step away from a given one: what a person would try next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import NamedTuple

from shardwise.inputs.layers import layer_faults, rank_chunks, spread
from shardwise.inputs.model import Model
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy


class Step(NamedTuple):
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


def neighbours(model: Model, strategy: Strategy, runtime: Runtime) -> Iterator[Step]:
    """Every strategy one step away, valid or not, in a fixed order, the given one not among them."""
    for step in _steps(model, strategy, runtime):
        if step.strategy != strategy:
            yield step


def _steps(model: Model, s: Strategy, runtime: Runtime) -> Iterator[Step]:
    yield from (Step("recompute", replace(s, recompute=choice)) for choice in _recomputes(model, s))
    for size in (s.micro_batch * 2, s.micro_batch // 2):
        if size and s.global_batch % (size * s.dp) == 0:
            yield Step("micro batch", replace(s, micro_batch=size))
    yield from _splits(s)
    if s.dp * s.cp > 1:
        yield from (Step("zero", replace(s, zero=zero)) for zero in runtime.can.zero)  # type: ignore[arg-type]
    yield from (Step("vpp", chunked) for chunked in _chunked(model, s))
    yield from (Step("experts", changed) for changed in _experts(model, s))
    if s.tp > 1 and not s.sp:
        yield Step("sequence parallel", replace(s, sp=True))
    if not s.flash:
        yield Step("attention", replace(s, flash=True))
    if s.cp > 1:
        yield from (Step("context", replace(s, cp_kind=kind)) for kind in runtime.can.cp)  # type: ignore[arg-type]
    yield from _moved_layer(model, s, runtime)


def _recomputes(model: Model, s: Strategy) -> Iterator[Recompute]:
    yield Recompute()
    for modules in _MODULES:
        if _applies(modules, model, s):
            yield Recompute(modules=modules)
    stage = model.layers // s.pp
    for count in sorted({stage // 4, stage // 2, 3 * stage // 4} - {0, stage}):
        yield Recompute(full=True, layers=(count,))
    yield Recompute(full=True)


def _applies(modules: tuple[str, ...], model: Model, s: Strategy) -> bool:
    if "core-attention" in modules and s.flash:
        return False  # flash attention keeps no scores: there is nothing to win
    return ("mla-up" not in modules or model.mla is not None) and ("moe-act" not in modules or model.moe is not None)


def _splits(s: Strategy) -> Iterator[Step]:
    """A factor of two moved from one axis to another, both ways."""
    for one, other in _EXCHANGES:
        for source, target in ((one, other), (other, one)):
            if getattr(s, source) % 2 == 0:
                yield Step("split", _moved(s, source, target))


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
        if model.layers % (s.pp * vpp) == 0:
            yield replace(s, vpp=vpp, schedule=schedule, layers=(), group=0, recompute=recompute)


def _experts(model: Model, s: Strategy) -> Iterator[Strategy]:
    if model.moe is None:
        return
    for ep in (s.ep * 2, s.ep // 2):
        if ep:
            yield replace(s, ep=ep)
    if s.etp > 1:
        yield replace(s, etp=1)


def _moved_layer(model: Model, s: Strategy, runtime: Runtime) -> Iterator[Step]:
    """One layer from the last stage, which has the output layer, or the first to the one with fewest."""
    if s.pp < 2 or s.vpp > 1 or not runtime.can.uneven_layers or any(layer_faults(model.layers, s)):
        return
    now = spread(model.layers, s)
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
        yield Step("layers", replace(plain, layers=tuple(layers)))


def difference(old: Strategy, new: Strategy) -> str:
    """What changes between two strategies: `tp 8 -> 4, dp 2 -> 4`."""
    parts = []
    for field in fields(Strategy):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before != after and field.name not in {"group", "placement"}:
            parts.append(f"{field.name.replace('_', ' ')} {_said(before)} -> {_said(after)}")
    return ", ".join(parts)


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "even"
    return str(value)
