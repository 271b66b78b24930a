"""What a source leaves open: the mildest recompute with which its run fits, since it did run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.estimate.estimate import assemble
from shardwise.estimate.setup import setup_of
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.layers import spread
from shardwise.inputs.model import Model
from shardwise.inputs.recompute import MODULES, Recompute
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy

# Parts that recipes of Megatron-Core add one after the other where memory is short (Megatron Bridge, `perf_recipes`).
_ADDED = (("mla-up",), ("attention-norm", "mlp-norm", "moe-act"))
# Then whole layers: of every stage a quarter, a half, all.
_WHOLE = (0.25, 0.5, 1.0)


def mildest(model: Model, cluster: Cluster, strategy: Strategy, runtime: Runtime) -> Recompute:
    """The first of ever stronger kinds of recompute with which it is not refused; none where no kind helps."""
    for recompute in _kinds(model, strategy, runtime):
        estimate = assemble(setup_of(model, cluster, replace(strategy, recompute=recompute), runtime))
        if max(rank.total for rank in estimate.memory) <= cluster.gpu.memory:
            return recompute
    return Recompute()


def _kinds(model: Model, strategy: Strategy, runtime: Runtime) -> Iterator[Recompute]:
    yield strategy.recompute  # none, or what a recipe has
    has = {"mla-up": model.mla is not None, "moe-act": model.moe is not None}
    taken: set[str] = set()
    for parts in _ADDED:
        new = {name for name in parts if has.get(name, True) and name in runtime.can.modules} - taken
        taken |= new
        if new and "modules" in runtime.can.recompute:
            yield Recompute(modules=tuple(sorted(taken, key=MODULES.index)))
    most = max(spread(model.depth, strategy))
    for share in _WHOLE:
        if share == 1.0:
            yield Recompute(full=True)
        elif "block" in runtime.can.recompute and most > 1:
            yield Recompute(full=True, layers=(max(1, round(share * most)),))
