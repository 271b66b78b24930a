"""Which of two layouts is simpler: one order, stated here, and what makes a layout less than plain.

A layout is simpler than another if it has, the first difference deciding:

1. fewer unusual kinds (UNUSUAL, and every other setting that is not a strategy's own default);
2. fewer axes above 1 of tp, pp and cp (dp is always there, and ep is where experts live);
3. even stages;
4. a better known order of passes: 1f1b, then interleaved, then any other; fewer chunks;
5. less that is recomputed: nothing, parts of layers, whole layers;
6. less that is sharded: ZeRO 1 before 2 before 3 (0 counts as 1).

Of equally simple ones the faster is taken; what is left is decided by its text, so that the order is total.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache

from shardwise.inputs.strategy import Strategy

SHORT = 8192
"""Tokens of a sequence up to which context parallel is unusual."""
TENSOR, PIPELINE, CONTEXT = AXES = ("tensor parallel", "pipeline", "context parallel")
CHUNKS, UNEVEN = "several chunks a rank", "uneven stages"
PARTS, LAYERS, SHARDED = "parts of layers recomputed", "layers recomputed", "sharded gradients"
USUAL = (*AXES, CHUNKS, UNEVEN, PARTS, LAYERS, SHARDED)
"""Kinds that practitioners choose every day."""
SHORT_CONTEXT, ORDER, NO_SP = "context parallel at short sequences", "unusual order of passes", "no sequence parallel"
IRREGULAR, BY_STAGE = "chunks of many sizes", "recompute by stage"
EXPERT_TP, GATHERED, HYBRID = "expert tensor parallel", "experts gathered by every rank", "copies of sharded states"
UNUSUAL = (SHORT_CONTEXT, ORDER, NO_SP, IRREGULAR, BY_STAGE, EXPERT_TP, GATHERED, HYBRID)
_KNOWN = ("1f1b", "interleaved")
_SEEN = frozenset({
    "tp", "pp", "vpp", "dp", "cp", "ep", "etp", "sp", "cp_kind", "zero", "zero_group", "micro_batch", "global_batch",
    "seq", "schedule", "placement", "recompute", "layers", "first_layers", "last_layers", "count_embedding",
    "count_head", "dtype", "runtime", "straggler", "compile", "documents", "packing",
})  # fmt: skip
"""Settings that the kinds above speak of, or that are no choice of a layout."""
_DEFAULTS = {one.name: getattr(Strategy(), one.name) for one in fields(Strategy) if one.name not in _SEEN}


@lru_cache(maxsize=65536)
def kinds_of(strategy: Strategy, *, experts: bool) -> tuple[str, ...]:
    """What makes a layout less than plain, in a fixed order; the usual kinds first. `experts`: the model has some."""
    s = strategy
    uneven = len(set(s.layers)) > 1 or bool(s.first_layers or s.last_layers)
    there = {
        TENSOR: s.tp > 1,
        PIPELINE: s.pp > 1,
        CONTEXT: s.cp > 1,
        CHUNKS: s.vpp > 1,
        UNEVEN: uneven,
        PARTS: bool(s.recompute.modules),
        LAYERS: s.recompute.full,
        SHARDED: s.zero > 1,
        SHORT_CONTEXT: s.cp > 1 and s.seq <= SHORT,
        ORDER: s.pp > 1 and s.schedule not in _KNOWN,
        NO_SP: s.tp > 1 and not s.sp,
        IRREGULAR: s.vpp > 1 and len(set(s.layers[1:-1])) > 1 and not _spread(s.layers),
        BY_STAGE: len(s.recompute.layers) > 1,
        EXPERT_TP: s.etp > 1,
        GATHERED: experts and s.ep == 1 and s.zero == 3,
        HYBRID: s.zero_group > 0,
    }
    other = [name.replace("_", " ") for name, value in _DEFAULTS.items() if getattr(s, name) != value]
    return (*(name for name, holds in there.items() if holds), *other)


def _spread(layers: tuple[int, ...]) -> bool:
    """Whether they are spread as evenly as can be, the longer stages first or last, as frameworks do by themselves."""
    return max(layers) - min(layers) == 1 and list(layers) in (sorted(layers), sorted(layers, reverse=True))


def plainness(strategy: Strategy, *, experts: bool) -> tuple[int, ...]:
    """The six points above as numbers, lower for the simpler one."""
    s, kinds = strategy, kinds_of(strategy, experts=experts)
    return (
        sum(kind not in USUAL for kind in kinds),
        sum(kind in AXES for kind in kinds),
        UNEVEN in kinds,
        _KNOWN.index(s.schedule) if s.schedule in _KNOWN else len(_KNOWN),
        s.vpp,
        LAYERS in kinds,
        PARTS in kinds,
        max(1, s.zero),
    )


def simplicity(strategy: Strategy, seconds: float, *, experts: bool) -> tuple[object, ...]:
    """What layouts are ordered by, the simplest first."""
    return *plainness(strategy, experts=experts), seconds, str(strategy)
