"""The tables and lines that an estimate is shown with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, groupby
from math import ceil
from typing import Protocol

from shardwise.check.runtime import other_chip
from shardwise.cost.memory import RankMemory
from shardwise.estimate.advice import Change
from shardwise.estimate.detail import Detail
from shardwise.estimate.estimate import Estimate
from shardwise.estimate.packings import packings, told
from shardwise.estimate.predictions import Figures, Searched, Stage, rank_gpus, show_limit
from shardwise.estimate.standing import standings
from shardwise.inputs.calibrations import calibration_of
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.load import load_runtime
from shardwise.inputs.mixed import Mixed, by_replica, kind_batches, kinds_of, replicas_of, stage_kinds
from shardwise.inputs.model import Model
from shardwise.inputs.strategy import Strategy
from shardwise.plan.plan import Plan
from shardwise.plan.proof import check_proof
from shardwise.report.text import alike, bar, side_by_side, span, tree_rows
from shardwise.units import show_bytes, show_percent, show_rate, show_seconds

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]

GIB = 2.0**30
COLUMNS = 8
"""Pipeline ranks that are shown beside each other; of more, the first, the last and those between at even steps."""
_FITS = {"yes": "fits", "no": "does not fit", "close": "close: may or may not fit"}


def summary(found: Estimate) -> Iterator[tuple[str, str]]:
    """The lines on top: name and text."""
    strategy = found.strategy
    if isinstance(found.cluster, Mixed):
        yield "kinds", kinds_line(found.cluster, strategy, found)
    yield "iteration", f"{show_seconds(found.iteration_seconds)}  ({between(found)})"
    tokens = strategy.global_batch * strategy.seq
    yield "tokens", f"{found.tokens_per_second_per_gpu:,.0f} per second and GPU, {tokens:,} per iteration"
    yield "MFU", f"{show_percent(found.mfu)} causal, {show_percent(found.mfu_full_attention)} full attention"
    yield "HFU", f"{show_percent(found.hfu)}; {found.tflops_per_gpu:,.0f} model TFLOPS per GPU"
    yield "bubble", f"{show_percent(found.bubble)} synchronous (mean idle share of the pipeline ranks)"
    yield "memory", _memory_line(found)
    if text := told(found):
        yield "documents", text


def kinds_line(cluster: Mixed, strategy: Strategy, figures: Figures) -> str:
    """What every kind of GPU holds, and which of them the time is of."""
    names, slow = [kind.gpu.name for kind in cluster.kinds], cluster.kinds[figures.slowest].gpu.name
    if by_replica(strategy):
        counts = zip(replicas_of(cluster, strategy), names, kind_batches(cluster, strategy), strict=True)
        held = ", ".join(f"{n:,} replicas on {name} with {m:,} micro batches each" for n, name, m in counts)
        return f"{held}; the others wait for {slow}"
    runs = [(kind, len(list(same))) for kind, same in groupby(stage_kinds(cluster, strategy))]
    ends = list(accumulate(count for _, count in runs))
    parts = [f"{span(end - count, end - 1)} on {names[kind]}" for (kind, count), end in zip(runs, ends, strict=True)]
    return f"pipeline ranks {', '.join(parts)}; the busiest is on {slow}"


class Ranged(Protocol):
    """What carries the interval of its time, and how likely it is to fit: an estimate, a plan, a layout of a search."""

    @property
    def iteration_seconds_interval(self) -> tuple[float, float]: ...
    @property
    def fits_probability(self) -> float: ...


def between(found: Ranged) -> str:
    """The interval of the iteration: nine runs in ten."""
    return " to ".join(map(show_seconds, found.iteration_seconds_interval))


def chance(found: Ranged) -> str:
    """How likely it is to fit; what is nearly sure is not said to more digits than there are."""
    share = found.fits_probability
    return "over 99%" if share > 0.99 else "under 1%" if share < 0.01 else f"{share:.0%}"


def _memory_line(found: Estimate) -> str:
    fullest = fullest_rank(found)
    limit, memory = found.limit, found.device.memory
    left = limit - fullest.total
    spare = f"{show_bytes(left)} free" if left >= 0 else f"{show_bytes(-left)} missing"
    low, high = map(show_bytes, found.total_bytes_interval)
    where = f" on pipeline rank {fullest.rank}" if len(found.memory) > 1 else ""
    needed = f"{show_bytes(fullest.total)} ({low} to {high}) of {show_limit(limit, memory)}{where}"
    return f"{_FITS[found.fits]}: {needed}, {spare}; probability of fitting {chance(found)}"


def fullest_rank(found: Estimate) -> RankMemory:
    """The rank that leaves least of its GPU."""
    gpus = rank_gpus(found.cluster, found.strategy, found)
    return max(found.memory, key=lambda rank: rank.total / gpus[rank.rank].memory)


def searched(told: Searched | None) -> Iterator[tuple[str, str]]:
    """The line about the search behind a plan: pruned by proof, simulated and left open are three things."""
    if told is None:
        return
    if told.left_open is None:  # a plan from before: its `pruned` held both
        yield "search", f"{told.strategies:,} strategies, {told.simulated:,} simulated"
        return
    left = f", {told.left_open:,} left open" if told.left_open else ""
    cuts = f"{told.simulated:,} simulated ({told.simulations:,} cuts into stages)"
    yield "search", f"{told.strategies:,} strategies: {told.pruned:,} pruned by proof, {cuts}{left}"


def proven(plan: Plan) -> list[tuple[str, str]]:
    """What a plan's proof is worth today, and the search behind it."""
    proof = check_proof(plan)
    told = plan.predictions
    return [*([("proof", str(proof))] if proof else []), *searched(told.search if told else None)]


def stages(found: Estimate) -> Table:
    """One line a pipeline rank, neighbours that are alike in one: time and memory with bars."""
    slowest = max(_seconds(stage) for stage in found.stages)
    gpus = rank_gpus(found.cluster, found.strategy, found)
    limits = [found.limit * gpu.memory / found.device.memory for gpu in gpus]
    pairs = list(zip(found.stages, found.memory, strict=True))
    rows = [
        _stage_row(span(first, last), stage, memory, slowest, limits[stage.rank])
        for first, last, (stage, memory) in alike(pairs, key=_look)
    ]
    room = f"of {show_bytes(found.limit)}" if len(set(limits)) == 1 else "of its GPU"
    return ("rank", "layers", "forward", "backward", "of the slowest", "peak", "total", room), rows


def _seconds(stage: Stage) -> float:
    return stage.forward + stage.backward


def _look(pair: tuple[Stage, RankMemory]) -> object:
    stage, memory = pair
    return stage.layers, f"{_seconds(stage):.6e} {memory.total:.6e}"


def _stage_row(name: str, stage: Stage, memory: RankMemory, slowest: float, limit: float) -> tuple[str, ...]:
    return (
        name,
        "+".join(map(str, stage.layers)),
        show_seconds(stage.forward),
        show_seconds(stage.backward),
        f"{bar(_seconds(stage) / slowest, 12)} {_seconds(stage) / slowest:4.0%}",
        show_bytes(memory.peak.value),
        show_bytes(memory.total),
        f"{bar(memory.total / limit, 12)} {memory.total / limit:4.0%}",
    )


def time(found: Estimate) -> Table:
    """The time ledger as a tree."""
    return ("part", "time", "share"), list(tree_rows(found.time, show_seconds))


def ways(found: Estimate) -> Table:
    """Every way to make samples of the documents."""
    rows: list[tuple[str, ...]] = [
        (one.packing, show_seconds(one.seconds), show_seconds(one.waiting) if one.waiting else "-",
         f"{1 - one.useful:.0%}", f"{one.tokens_per_second_per_gpu:,.0f}", show_percent(one.mfu))
        for one in packings(found)
    ]  # fmt: skip
    return ("samples", "iteration", "waiting", "padding", "tokens per second and GPU", "MFU"), rows


def towers(found: Estimate) -> Table:
    """Every way for the towers to stand in the pipeline."""
    rows: list[tuple[str, ...]] = [
        (one.towers, ",".join(map(str, one.layers)), show_seconds(one.seconds), show_bytes(one.bytes), one.why)
        for one in standings(found)
    ]
    return ("towers", "layers of stages", "iteration", "memory", "why"), rows


def work(inside: Detail) -> Table:
    """Operations and bytes accessed, one line a pipeline rank, neighbours that are alike in one."""
    heads = ("rank", "TFLOP forward", "backward", "recompute", "GB forward", "backward", "recompute")
    rows = [
        (
            span(first, last),
            *(f"{value / 1e12:,.4g}" for value in one[1:4]),
            *(f"{value / 1e9:,.4g}" for value in one[4:]),
        )
        for first, last, one in alike(inside.work, key=lambda one: one[1:])
    ]
    return heads, rows


def groups(inside: Detail) -> Table:
    """What every communication group reaches with its largest message."""
    rows: list[tuple[str, ...]] = [
        (one.group, f"{one.ranks} x {one.stride}", " ".join(one.levels), one.collective, show_bytes(one.bytes),
         show_seconds(one.seconds), show_rate(one.algorithm_bandwidth), show_rate(one.bus_bandwidth))
        for one in inside.groups
    ]  # fmt: skip
    return ("group", "ranks x stride", "over", "collective", "message", "time", "algorithm", "bus"), rows


def memory(found: Estimate) -> Table:
    """The memory ledgers of the pipeline ranks beside each other, their peaks, and what the device must have."""
    ranks = _shown(found.memory)
    rows = side_by_side([rank.peak for rank in ranks], _gib)
    lines = {
        "peak in forward": [rank.forward for rank in ranks],
        "peak in backward": [rank.backward for rank in ranks],
        "peak in the optimizer step": [rank.optimizer for rank in ranks],
        "kept by one micro batch": [rank.kept_per_microbatch for rank in ranks],
        "reserved by the allocator": [rank.reserved for rank in ranks],
        "with context and communicators": [rank.total for rank in ranks],
    }
    rows += [(name, *map(_gib, values)) for name, values in lines.items()]
    rows.append(("passes in flight", *(f"{rank.in_flight:.0f}" for rank in ranks)))
    rows.append(("the peak is in", *(rank.at for rank in ranks)))
    return ("part", *(f"rank {rank.rank}" for rank in ranks)), rows


def _gib(value: float) -> str:
    return f"{value / GIB:.2f}"


def _shown(ranks: tuple[RankMemory, ...]) -> list[RankMemory]:
    if len(ranks) <= COLUMNS:
        return list(ranks)
    fullest = max(range(len(ranks)), key=lambda index: ranks[index].total)
    even = {round(index * (len(ranks) - 1) / (COLUMNS - 1)) for index in range(COLUMNS)}
    return [ranks[index] for index in sorted(even | {fullest})]


def advice_title(found: Estimate, changes: tuple[Change, ...]) -> str:
    """The line above the changes."""
    if found.fits == "yes":
        return "changes that would make it faster:" if changes else "no single change would make it faster"
    if not changes:
        return "no change that was tried makes it need less memory"
    if any(change.fits != "no" for change in changes):
        return "changes that would make it fit:"
    return f"no change of one or two steps makes it fit{_states(found)}; the nearest:"


def _states(found: Estimate) -> str:
    """Where what always stays is too much already, no layout helps: more GPUs do."""
    limit, static = found.limit, max(rank.static for rank in found.memory)
    if static < limit:
        return ""
    least = ceil(found.strategy.world * static / limit)
    return f" (weights, gradients and states alone take {show_bytes(static)} here; use {least} GPUs or more)"


def advice(changes: tuple[Change, ...]) -> Table:
    """What to change and what that brings."""
    rows: list[tuple[str, ...]] = [
        (change.text, _gain(change.seconds), _bytes(change.bytes), change.fits) for change in changes
    ]
    return ("change", "time", "memory", "fits"), rows


def _gain(seconds: float) -> str:
    return f"{'-' if seconds >= 0 else '+'}{show_seconds(abs(seconds))}"


def _bytes(value: float) -> str:
    return f"{'-' if value >= 0 else '+'}{show_bytes(abs(value))}"


def notes(found: Estimate) -> list[str]:
    """What the ledger of time says beside its numbers: corrections, shapes and GPUs that were never measured."""
    supported = unmeasured(found.cluster, found.strategy.runtime)
    return [*supported, *presumed(found.model, found.strategy), *ledger_notes(found)]


def ledger_notes(found: Estimate) -> list[str]:
    """Notes of the ledger of time that are no matter of course: every large run has stragglers."""
    parts = (part for part in (found.time, *found.time.leaves()) if part.note and part.name != "stragglers")
    return list(dict.fromkeys(f"{part.name}: {part.note}" for part in parts))


def presumed(model: Model, strategy: Strategy) -> Iterator[str]:
    """What is taken for granted where nothing is said: tokens that an encoder reads, a runtime that is no one's."""
    if not strategy.source and any(tower.stem is None for tower in model.towers):
        yield f"the encoder of {model.name} reads {strategy.seq:,} tokens, as many as seq says; source=N says another"
    able = load_runtime(strategy.runtime).can.any_module
    if not able and not model.traced and (model.towers or model.stem or not model.causal):
        told = f"{model.name} is timed as {strategy.runtime} would run it, and we write no files of it for that"
        yield f"{told}; --runtime huggingface is a program of your own in plain torch"


def unmeasured(cluster: Cluster, runtime: str) -> Iterator[str]:
    """That nothing measured supports a GPU's calibration, or a runtime on such a chip."""
    for kind in kinds_of(cluster):
        if other := other_chip(kind.gpu, runtime):
            yield other
        if not calibration_of(kind.gpu).measured:
            yield f"no measured run supports the times of {kind.gpu.name}"


def missing(found: Estimate) -> str:
    """How much is missing, and where."""
    fullest = fullest_rank(found)
    gpu, limit = found.device, found.limit
    gpus = rank_gpus(found.cluster, found.strategy, found)
    over = [rank.rank for rank in found.memory if rank.total > limit * gpus[rank.rank].memory / gpu.memory]
    has = f"{gpu.name} has {show_bytes(limit)}" if limit == gpu.memory else f"may use {show_limit(limit, gpu.memory)}"
    others = f" ({len(over)} of {len(found.memory)} pipeline ranks are too full)" if len(over) > 1 else ""
    return (
        f"does not fit: pipeline rank {fullest.rank} needs {show_bytes(fullest.total)} and {has}, "
        f"{show_bytes(fullest.total - limit)} are missing{others}; "
        f"the peak is in {fullest.at}"
    )
