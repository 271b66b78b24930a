"""Rules of the pipeline: layers and chunks, the schedule, micro batches, and what is recomputed where."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.check.rule import Combination, either, multiples_near, nearest, rule
from shardwise.errors import Fault
from shardwise.inputs.layers import is_uneven, layer_faults, spread, stage_layers
from shardwise.inputs.recompute import MODULES
from shardwise.inputs.strategy import V_SCHEDULES, Strategy

_ONE_CHUNK = frozenset({"gpipe", "1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "seq-1f1b"})
_FREE_ORDER = frozenset({"auto", "low-memory"})  # these find their own order on any placement
_LAYERS = (
    "model.layers",
    "pp",
    "vpp",
    "placement",
    "layers",
    "first_layers",
    "last_layers",
    "count_embedding",
    "count_head",
)


@rule(*_LAYERS)
def layers_fit(case: Combination) -> Iterator[Fault]:
    yield from layer_faults(case.model.depth, case.strategy)


@rule(*_LAYERS)
def layers_divide(case: Combination) -> Iterator[Fault]:
    """An uneven spread is asked for in so many words, because every layer more on one stage is time."""
    s, layers = case.strategy, case.model.depth
    if any(layer_faults(layers, s)) or not is_uneven(layers, s):
        return
    written = ",".join(map(str, spread(layers, s)))
    name = next((name for name in ("first_layers", "last_layers") if getattr(s, name)), "vpp" if s.vpp > 1 else "pp")
    counted = s.count_embedding + s.count_head
    legal = nearest((n for n in range(1, layers + 1) if (layers + counted) % (n * s.vpp) == 0), s.pp)
    change = f"use pp {either(legal)}" if legal and name in {"pp", "vpp"} else ""
    if case.can.uneven_layers:
        change += f"{', or ' if change else ''}write the list: layers {written}"
    yield Fault(
        f"strategy.{name}",
        f"{layers} layers do not divide over pp {s.pp} x vpp {s.vpp} = {s.chunks} chunks; {change or 'change it'}",
    )


@rule("pp", "vpp", "schedule")
def chunks_of_schedule(case: Combination) -> Iterator[Fault]:
    s = case.strategy
    if s.vpp > 1 and s.pp == 1:
        yield Fault("strategy.vpp", f"{s.vpp} chunks per rank need a pipeline, but pp is 1; use vpp 1 or pp 2 and more")
    elif s.schedule in V_SCHEDULES and s.vpp != 2:
        yield Fault("strategy.vpp", f"{s.schedule} has two chunks on every rank, but vpp is {s.vpp}; use vpp 2")
    elif s.schedule == "interleaved" and s.vpp < 2:
        yield Fault("strategy.vpp", f"interleaved needs two chunks a rank, but vpp is {s.vpp}; use 2, or 1f1b")
    elif s.schedule in _ONE_CHUNK and s.vpp > 1:
        yield Fault(
            "strategy.vpp", f"{s.schedule} has one chunk on every rank, but vpp is {s.vpp}; use interleaved or vpp 1"
        )
    elif s.schedule in V_SCHEDULES and s.pp == 1:
        yield Fault("strategy.pp", f"{s.schedule} needs a pipeline, but pp is 1; use pp 2 and more")


@rule("schedule", "placement", "vpp")
def placement_of_schedule(case: Combination) -> Iterator[Fault]:
    s = case.strategy
    if s.schedule in V_SCHEDULES and s.placement != "v":
        yield Fault("strategy.placement", f"{s.schedule} runs back and forth, but placement is {s.placement}; use v")
    if s.placement == "v" and s.vpp > 1 and s.schedule not in V_SCHEDULES | _FREE_ORDER:
        yield Fault("strategy.placement", f"{s.schedule} runs round and round, but placement is v; use loop or zb-v")


@rule("schedule", "group", "pp", "vpp", "global_batch", "dp", "micro_batch")
def interleaved_groups(case: Combination) -> Iterator[Fault]:
    """Megatron: groups of at least pp micro batches; a last, smaller group must still hold pp."""
    s = case.strategy
    if s.schedule != "interleaved":
        if s.group:
            yield Fault(
                "strategy.group", f"{s.group} is given, but only interleaved has groups, not {s.schedule}; drop it"
            )
        return
    count, group = s.microbatches, s.group or s.pp
    if s.group and not s.pp <= s.group <= max(count, s.pp):
        yield Fault(
            "strategy.group", f"{s.group} must lie between pp {s.pp} and the {count} micro batches; use 0 for pp"
        )
    elif 0 < count % group < s.pp:
        yield Fault("strategy.global_batch", _group_message(s, count, group))


def _group_message(s: Strategy, count: int, group: int) -> str:
    batches = (n * s.dp * s.micro_batch for n in multiples_near(group, count))
    return (
        f"{s.global_batch} is {count} micro batches, and interleaved with groups of {group} leaves {count % group}, "
        f"fewer than pp {s.pp}; use {either(batches)}"
    )


@rule("schedule", "pp", "vpp", "global_batch", "dp", "micro_batch")
def enough_microbatches(case: Combination) -> Iterator[Fault]:
    s = case.strategy
    if s.schedule == "dualpipe-v" and s.microbatches < 2 * s.pp:
        least = 2 * s.pp * s.dp * s.micro_batch
        yield Fault(
            "strategy.global_batch",
            f"{s.global_batch} is {s.microbatches} micro batches, dualpipe-v needs 2 x pp {s.pp} = {2 * s.pp}; "
            f"use {least}",
        )


@rule("recompute", "model.mla", "model.moe")
def modules_exist(case: Combination) -> Iterator[Fault]:
    recompute, model, path = case.strategy.recompute, case.model, "strategy.recompute.modules"
    for name in recompute.modules:
        if name not in MODULES:
            yield Fault(path, f"{name!r} is not a module; choose {either(MODULES)}")
    if "mla-up" in recompute.modules and model.mla is None:
        yield Fault(path, f"mla-up, but {model.name} has no latent attention (MLA); drop it")
    if "moe-act" in recompute.modules and model.moe is None:
        yield Fault(path, f"moe-act, but {model.name} has no experts; use activation")
    if recompute.full and recompute.modules:
        yield Fault(path, f"{either(recompute.modules)} and full: whole layers contain all their modules; keep one")
    if recompute.layers and not recompute.active:
        yield Fault(
            "strategy.recompute.layers", "layers are given, but nothing is recomputed; write full or modules too"
        )


@rule("recompute", *_LAYERS)
def recomputed_layers(case: Combination) -> Iterator[Fault]:
    s, given = case.strategy, case.strategy.recompute.layers
    if not given or any(layer_faults(case.model.depth, s)):
        return
    stages, chunks = stage_layers(case.model.depth, s), spread(case.model.depth, s)
    if len(given) not in {1, s.pp, s.chunks}:
        sizes = either(sorted({1, s.pp, s.chunks}))
        yield Fault("strategy.recompute.layers", f"{len(given)} numbers for pp {s.pp} x vpp {s.vpp}; give {sizes}")
        return
    limits = (max(stages),) if len(given) == 1 else stages if len(given) == s.pp else chunks
    what = "the longest stage" if len(given) == 1 else "stage" if len(given) == s.pp else "chunk"
    for index, (count, limit) in enumerate(zip(given, limits, strict=True)):
        if count > limit:
            where = what if len(given) == 1 else f"{what} {index}"
            yield Fault("strategy.recompute.layers", f"{count} layers, but {where} has {limit}; use at most {limit}")


@rule("recompute", *_LAYERS)
def recomputed_groups(case: Combination) -> Iterator[Fault]:
    s, group = case.strategy, case.strategy.recompute.group
    if group == 1:
        return
    if not s.recompute.full:
        yield Fault(
            "strategy.recompute.group", f"groups of {group} need whole layers: write full/{group}, or drop the group"
        )
    elif not any(layer_faults(case.model.depth, s)) and group > (limit := max(spread(case.model.depth, s))):
        yield Fault(
            "strategy.recompute.group", f"groups of {group} layers, but chunks have {limit}; use at most {limit}"
        )


RULES = (
    layers_fit, layers_divide, chunks_of_schedule, placement_of_schedule, interleaved_groups, enough_microbatches,
    modules_exist, recomputed_layers, recomputed_groups,
)  # fmt: skip
