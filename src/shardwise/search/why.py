"""Why one strategy lost against another: what does not fit, or which parts of the time are longer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.estimate.advice import difference
from shardwise.estimate.estimate import Estimate
from shardwise.estimate.intervals import within_error
from shardwise.inputs.mixed import SHARING
from shardwise.inputs.strategy import Strategy
from shardwise.plan.plan import Plan
from shardwise.units import show_bytes, show_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the time in both strategies, seconds."""

    name: str
    best: float
    other: float

    @property
    def lost(self) -> float:
        return self.other - self.best


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The comparison of a strategy with a plan's."""

    best: Estimate
    other: Estimate
    change: str
    """What is different: `tp 8 -> 4`."""
    parts: tuple[Part, ...]
    """Parts of the time, most lost first."""
    missing: float
    """Bytes that the other lacks on its fullest rank; 0: it fits."""
    rank: int
    """Its fullest pipeline rank."""
    limit: float
    """Bytes that a rank may need."""
    note: str = ""
    """What of the plan's own could not be kept."""

    @property
    def slower(self) -> float:
        """How much longer the other takes, as a share; below 0: it is faster."""
        return self.other.iteration_seconds / self.best.iteration_seconds - 1

    @property
    def within_error(self) -> bool:
        """The predictions are too near to each other to say which is faster."""
        return within_error(self.best, self.other)


def why(best: Estimate, other: Estimate, limit: float) -> Why:
    """Compare two estimates. `limit`: bytes that a rank may need."""
    fullest = max(other.memory, key=lambda rank: rank.total)
    return Why(
        best=best,
        other=other,
        change=difference(best.strategy, other.strategy) or "nothing",
        parts=_parts(best, other),
        missing=max(0.0, fullest.total - limit),
        rank=fullest.rank,
        limit=limit,
    )


def against(plan: Plan, asked: Strategy | str) -> Why:
    """Compare a strategy with a plan's; what a line leaves out is the plan's, layers that are not said are cut anew."""
    from shardwise.check.check import ensure
    from shardwise.check.documents import documents_faults
    from shardwise.check.values import value_faults
    from shardwise.errors import InputError
    from shardwise.estimate.estimate import estimate
    from shardwise.inputs.load import load_runtime
    from shardwise.plan.predict import asked_limit, estimate_of, order_for

    if isinstance(asked, str) and not asked.strip():
        raise InputError('there is nothing to compare with; say what to change, such as "tp4 pp8"')
    limit = plan.memory_limit
    other, note = (asked, "") if isinstance(asked, Strategy) else _asked(plan, asked)
    faults = [*value_faults(other, "strategy"), *documents_faults(other.documents)]
    if faults:  # before anything is cut or priced with such numbers
        raise InputError(faults)
    other = other if other.layers else _cut(plan, other, limit)
    ensure(plan.model, plan.cluster, other, load_runtime(other.runtime))
    best = estimate_of(plan)
    order, asked_for = order_for(plan, other), asked_limit(plan)
    there = estimate(plan.model, plan.cluster, other, order=order, memory_limit=asked_for)
    told = "; ".join(filter(None, (note, _other_work(plan.strategy, other))))
    return replace(why(best, there, limit), note=told)


_WORK = (
    "global_batch", "seq", "source", "images", "image_imbalance", "image_size", "frozen", "lora", "documents",
    "packing",
)  # fmt: skip
"""What an iteration does, whatever the split."""


def _other_work(plan: Strategy, other: Strategy) -> str:
    """That two iterations do not do the same; empty: they do."""
    apart = difference(plan, replace(plan, **{name: getattr(other, name) for name in _WORK}))
    return apart and f"the two do not do the same work ({apart}): their times are of different iterations"


def _asked(plan: Plan, text: str) -> tuple[Strategy, str]:
    """The strategy that a line means beside a plan's, its layers that are recomputed no more than a stage now has."""
    from shardwise.inputs.layers import layer_faults, stage_layers

    made = filled(text, plan.strategy, plan.cluster.gpus)
    counts, layers = made.recompute.layers, plan.model.depth
    if not counts or "recompute=" in text.lower() or made.pp < 1 or made.vpp < 1 or any(layer_faults(layers, made)):
        return made, ""
    longest = max(stage_layers(layers, made))
    if (len(counts) == 1 and counts[0] <= longest) or (made.pp, made.vpp) == (plan.strategy.pp, plan.strategy.vpp):
        return made, ""
    fewer = replace(made.recompute, layers=(min(max(counts), longest),))
    told = f"the plan's recompute={made.recompute} is {fewer} here: a stage has {longest} layers"
    return replace(made, recompute=fewer), told


def _cut(plan: Plan, strategy: Strategy, limit: float) -> Strategy:
    """The strategy as the search would cut it; as it is where it cannot run at all, for the checks to say why."""
    from shardwise.check.check import check
    from shardwise.estimate.estimate import estimate
    from shardwise.plan.predict import order_for
    from shardwise.search.question import question_about
    from shardwise.search.refine import refine

    question = question_about(plan, strategy, limit)
    if order_for(plan, strategy) is not None:  # which was made for the plan's own cut
        return replace(strategy, layers=plan.strategy.layers)
    found = refine(question, strategy)
    if found is None:
        return strategy
    # the plan's own cut, where the stages are the same ones, may be better than one made in a moment
    own = replace(strategy, layers=plan.strategy.layers)
    if strategy.chunks != plan.strategy.chunks or check(plan.model, plan.cluster, own, question.runtime):
        return found.strategy
    kept = estimate(
        plan.model, plan.cluster, own, runtime=question.runtime, checked=True, memory_limit=question.memory_limit
    )
    better = kept.total_bytes <= limit and (not found.allowed or kept.iteration_seconds <= found.seconds)
    return own if better else found.strategy


def sentences(found: Why) -> list[str]:
    """The answer in words: what does not fit, where there is such, and how much longer it takes."""
    lines = []
    if found.missing:
        fullest = max(found.other.memory, key=lambda rank: rank.total)
        lines.append(
            f"does not fit: pipeline rank {found.rank} needs {show_bytes(fullest.total)} of {show_bytes(found.limit)} "
            f"that may be used, {show_bytes(found.missing)} too much; the peak is in {fullest.at}"
        )
    word = "slower" if found.slower >= 0 else "faster"
    both = " against ".join(map(_shown, (found.other, found.best)))
    near = ", which is within the error of the difference" if found.within_error else ""
    return [*lines, f"{abs(found.slower):.1%} {word}{near}: {both}"]


def _shown(found: Estimate) -> str:
    low, high = map(show_seconds, found.iteration_seconds_interval)
    return f"{show_seconds(found.iteration_seconds)} ({low} to {high})"


def _parts(best: Estimate, other: Estimate) -> tuple[Part, ...]:
    left, right = _flat(best), _flat(other)
    names = dict.fromkeys([*left, *right])
    parts = [Part(name=name, best=left.get(name, 0.0), other=right.get(name, 0.0)) for name in names]
    return tuple(sorted(parts, key=lambda part: -abs(part.lost)))


def _flat(estimate: Estimate) -> dict[str, float]:
    """Parts of the time ledger, two levels deep: `forward: gemm`."""
    found: dict[str, float] = {}
    for part in estimate.time.parts:
        for inner in part.parts or (part,):
            name = part.name if inner is part else f"{part.name}: {inner.name}"
            found[name] = found.get(name, 0.0) + inner.value
    return found


def beside(text: str, strategy: Strategy, gpus: int) -> Strategy:
    """The same as `filled`, with the layers of the plan's stages where they are the same ones."""
    made = filled(text, strategy, gpus)
    own = not (made.layers or made.first_layers or made.last_layers) and made.chunks == strategy.chunks
    return replace(made, layers=strategy.layers) if own else made


def filled(text: str, strategy: Strategy, gpus: int) -> Strategy:
    """The strategy that a line means beside a plan's: what it leaves out is the plan's, layers cut anew, and ZeRO as
    far as the runtime has it there.
    """
    from shardwise.inputs.load import load_runtime
    from shardwise.inputs.strategy_text import build, derived_dp, parse, without_documents

    given = parse(without_documents(text, strategy))
    names = [name for name in strategy.__dataclass_fields__ if name != "layers"]
    base = {name: getattr(strategy, name) for name in names}
    if any(given.get(name, base[name]) != base[name] for name in ("pp", "vpp", "schedule")):
        base.pop("placement")
        base.pop("group")
    if any(given.get(name, base[name]) != base[name] for name in ("pp", "vpp")):
        base.pop("schedule")
        base["vpp"] = 1
    if SHARING & given.keys():
        base.pop("batches")
    merged = {**base, **given}
    if {"tp", "pp", "cp"} & given.keys() and "dp" not in given:
        merged.pop("dp")
        merged["dp"] = derived_dp(merged, gpus)
    can = load_runtime(merged["runtime"]).can
    if "zero" not in given and merged["pp"] > 1 and merged["zero"] not in can.zero_with_pp:
        merged["zero"] = max((zero for zero in can.zero_with_pp if zero < merged["zero"]), default=merged["zero"])
        merged["zero_group"] = 0
    return build(merged)
