"""What may be computed again: nothing, parts of layers, whole layers, some of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from shardwise.inputs.recompute import Recompute
from shardwise.search.question import Question

MODULES: tuple[tuple[str, ...], ...] = (
    ("core-attention",),
    ("attention-norm", "mlp-norm"),
    ("activation",),
    ("attention-norm", "mlp-norm", "activation"),
    ("moe-act",),
    ("mla-up",),
    ("attention-norm", "mlp-norm", "moe-act"),
    ("attention-norm", "mlp-norm", "moe-act", "mla-up"),
    ("mlp",),
    ("attention",),
    ("ops",),
)
AS_NEEDED = (0,)
"""`layers` of a recompute choice whose layers the partition solver counts out, stage by stage."""


class RecomputeKind(NamedTuple):
    """Which recompute choices go with a base."""

    overlap: bool
    """Tokens travel behind other work: what sends is not computed again."""
    whole: bool
    """Whole layers."""
    parts: bool
    """Parts of layers, and nothing."""


def recompute_choices(question: Question, size: int, kind: RecomputeKind) -> Iterator[Recompute]:
    """What chunks of `size` layers may compute again."""
    overlap = kind.overlap
    can = set(question.runtime.can.recompute) - (set() if kind.whole and not overlap else {"full"})
    can -= set() if kind.parts else {"modules"}
    if kind.parts:
        yield Recompute()
    if "modules" in can:
        yield from (Recompute(modules=modules) for modules in MODULES if _has(question, modules, overlap=overlap))
    if "full" in can:
        yield Recompute(full=True)
    if "per-stage" in can:
        recipes = [Recompute(full=True)] if "full" in can else []
        recipes += [
            Recompute(modules=modules)
            for modules in MODULES
            if "modules" in can and _has(question, modules, overlap=overlap)
        ]
        yield from (replace(recipe, layers=AS_NEEDED) for recipe in recipes)
    if "block" in can and "full" in can:
        named = question.wishes.named("recompute")
        blocks = [Recompute(full=True, layers=(count,)) for count in range(1, size)]
        # with a number for every stage, one for all is nothing new
        yield from (block for block in blocks if "per-stage" not in can or block in named)


def _has(question: Question, modules: tuple[str, ...], *, overlap: bool) -> bool:
    """Whether the runtime can recompute these parts, the model has them, and that can free anything."""
    model = question.model
    dense = any(model.feed_of(index) == "dense" for index in range(model.layers))
    wanted = {
        "core-attention": not (question.base.flash and question.runtime.kernels.flash),
        "mla-up": model.mla is not None,
    }
    wanted |= {"moe-act": model.moe is not None, "activation": dense and model.moe is None}
    wanted |= {"mlp": not overlap}
    can = question.runtime.can
    if len(modules) > 1 and set(modules) & set(can.modules_alone):
        return False
    return all(module in can.modules and wanted.get(module, True) for module in modules)
