"""The nearest strategy that a target can say: what exporters share when they bend a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from shardwise.check.check import check
from shardwise.check.rule import either
from shardwise.cost.chunk import recomputed_layers
from shardwise.frameworks.target import ExportDraft
from shardwise.inputs.layers import rank_chunks, stage_layers
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.recompute import MODULES, Recompute
from shardwise.inputs.strategy import Strategy


def without_lora(draft: ExportDraft) -> None:
    if draft.strategy.lora is not None:
        draft.refuse("strategy.lora", "adapters are not a setting of this target; plan without lora")


def gemmas(model: Model) -> tuple[str, ...]:
    """Facts that Gemma has and most targets no word for, where this model has them."""
    names = ("window_rotary_base", "norm_offset", "embedding_scaled", "query_scalar", "score_cap", "logit_cap")
    return tuple(name for name in names if getattr(model, name))


def spread_states(draft: ExportDraft) -> None:
    """Spread over one rank is not spread: FSDP would copy every layer for nothing, and 16-bit weights stay instead."""
    s = draft.strategy
    if s.shard_group == 1 and s.zero == 3:
        draft.lose("strategy.zero", "3 over one rank spreads nothing; zero 0 is written", zero=0, zero_group=0)
    elif s.shard_group == 1:
        draft.strategy = replace(s, zero=0, zero_group=0)


def choose(draft: ExportDraft, name: str, known: Collection[object], instead: object, why: str = "") -> None:
    """Keep a field where the target knows its value, else write `instead` and say so."""
    value = getattr(draft.strategy, name)
    if value not in known:
        text = f"{value} is not known here; {instead} is written{': ' + why if why else ''}"
        draft.lose(f"strategy.{name}", text, **{name: instead})


def without(draft: ExportDraft, **defaults: tuple[object, str]) -> None:
    """Fields that the target has no word for: anything but the default is lost, with a sentence."""
    for name, (default, why) in defaults.items():
        value = getattr(draft.strategy, name)
        if value != default:
            draft.lose(f"strategy.{name}", f"{value} cannot be said: {why}", **{name: default})


def known_sharding(draft: ExportDraft) -> None:
    """Less sharding where the target's runtime has none so deep beside stages."""
    s = draft.strategy
    can = load_runtime(draft.runtime).can.zero_with_pp
    less = [zero for zero in can if zero < s.zero]
    if s.pp > 1 and s.zero not in can and less:
        text = f"{s.zero} does not go with pp {s.pp} in {draft.target.title}; zero {max(less)} is written"
        draft.lose("strategy.zero", text, zero=max(less))


def recomputed(draft: ExportDraft) -> tuple[int, ...]:
    """Recomputed layers of every chunk, in model order."""
    layers = draft.layers
    return tuple(recomputed_layers(draft.strategy, chunk, layers, count) for chunk, count in enumerate(layers))


def plain_pipeline(draft: ExportDraft) -> None:
    """Without a pipeline the words for one say nothing."""
    s = draft.strategy
    if s.pp == 1:
        draft.strategy = replace(s, schedule="1f1b", placement="loop", vpp=1, group=0, layers=())


def known_schedule(draft: ExportDraft, known: Collection[str], *, chunks: bool = True) -> None:
    """Keep a schedule that the target has; else the nearest that runs round and round, with one or all chunks."""
    plain_pipeline(draft)
    s = draft.strategy
    loops = s.placement == "loop" or s.vpp == 1 or s.schedule in known
    if s.pp == 1 or (s.schedule in known and loops):
        return
    nearest = next((near for near in _looped(draft, chunks=chunks) if near.schedule in known), None)
    if nearest is None:
        draft.refuse(
            "strategy.schedule", f"{s.schedule} is not known here and no known schedule runs it; use {either(known)}"
        )
        return
    turned = " on chunks placed round and round" if s.placement == "v" and nearest.vpp > 1 else ""
    fewer = f" with {nearest.vpp} chunk a rank" if nearest.vpp < s.vpp else ""
    draft.lose(
        "strategy.schedule",
        f"{s.schedule} ({s.placement} placement) is not known here; the nearest is {nearest.schedule}{turned}{fewer}",
        **{name: getattr(nearest, name) for name in _PIPELINE},
    )


_PIPELINE = (
    "schedule", "placement", "vpp", "group", "layers", "recompute", "first_layers", "last_layers", "count_embedding",
    "count_head",
)  # fmt: skip


def _looped(draft: ExportDraft, *, chunks: bool) -> list[Strategy]:
    """Interleaved 1F1B over the same chunks, then plain 1F1B over whole stages; those that pass the checks."""
    s, model = draft.strategy, draft.model
    near = [replace(s, schedule="interleaved", placement="loop")] if chunks and s.vpp > 1 else []
    near.append(whole_stages(draft))
    runtime = load_runtime(s.runtime)
    return [
        other
        for other in near
        if all(fault.path == "strategy.schedule" for fault in check(model, draft.plan.cluster, other, runtime))
    ]


def whole_stages(draft: ExportDraft) -> Strategy:
    """1F1B with one chunk a rank: every rank keeps its number of layers, and of recomputed ones."""
    s = draft.strategy
    if s.vpp == 1:
        return replace(s, schedule="1f1b", placement="loop", group=0)
    recompute, counts = s.recompute, recomputed(draft)
    if recompute.active and recompute.layers:
        ranks = range(s.pp)
        sums = [sum(counts[chunk] for chunk in rank_chunks(rank, s.pp, s.vpp, s.placement)) for rank in ranks]
        recompute = replace(recompute, layers=tuple(sums))
    return replace(
        s, schedule="1f1b", placement="loop", vpp=1, group=0, layers=stage_layers(draft.model.layers, s),
        first_layers=0, last_layers=0, count_embedding=False, count_head=False, recompute=recompute,
    )  # fmt: skip


def all_layers(draft: ExportDraft, why: str) -> None:
    """Recompute in every layer where the target cannot count them: never less is freed than planned."""
    s = draft.strategy
    given = s.recompute.layers
    if not given or recomputed(draft) == draft.layers:
        draft.strategy = replace(s, recompute=replace(s.recompute, layers=()))
    elif not any(recomputed(draft)):
        draft.strategy = replace(s, recompute=Recompute())
    else:
        draft.lose(
            "strategy.recompute",
            f"{s.recompute}: {why}; it is written for every layer, so memory is at most as planned",
            recompute=replace(s.recompute, layers=()),
        )


def known_modules(draft: ExportDraft, wider: Mapping[str, str], known: Collection[str], where: str) -> None:
    """Put each module that the target lacks into the smallest one of the target's that holds it, else all: full."""
    recompute = draft.strategy.recompute
    if not recompute.modules or set(recompute.modules) <= set(known):
        return
    widened = {name if name in known else wider.get(name, "full") for name in recompute.modules}
    if "full" in widened:
        instead = replace(recompute, full=True, modules=())
    else:
        instead = replace(recompute, modules=tuple(sorted(widened, key=MODULES.index)))
    missing = either(name for name in recompute.modules if name not in known)
    draft.lose(
        "strategy.recompute",
        f"{missing} cannot be recomputed apart in {where}; {instead} is written, so memory is at most as planned",
        recompute=instead,
    )


def even_layers(draft: ExportDraft, why: str) -> None:
    """Equal chunks where the target cannot place layers; refused where they do not divide."""
    layers = draft.layers
    if len(set(layers)) == 1:
        draft.strategy = replace(draft.strategy, **_EVEN)
    elif draft.model.layers % draft.strategy.chunks:
        draft.refuse(
            "strategy.layers", f"{','.join(map(str, layers))}: {why}, and {draft.model.layers} layers do not divide"
        )
    else:
        text = f"{','.join(map(str, layers))}: {why}; equal chunks are written"
        draft.lose("strategy.layers", text, **_EVEN)


_EVEN: dict[str, Any] = {
    "layers": (), "first_layers": 0, "last_layers": 0, "count_embedding": False, "count_head": False,
}  # fmt: skip
