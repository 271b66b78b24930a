"""Everything that is wrong with a model, a cluster and a strategy together, told at once."""

from __future__ import annotations

from collections.abc import Iterable

from shardwise.check import documents as check_documents
from shardwise.check import mixed as check_mixed
from shardwise.check import model as check_parts
from shardwise.check import pipeline as check_pipeline
from shardwise.check import runtime as check_runtime
from shardwise.check import split as check_split
from shardwise.check import towers as check_towers
from shardwise.check import traced as check_traced
from shardwise.check import world as check_world
from shardwise.check.rule import Combination
from shardwise.check.values import value_faults
from shardwise.check.world import with_dp
from shardwise.errors import Fault, InputError
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy

__all__ = ["check", "ensure", "with_dp"]

_RULES = (
    *check_parts.RULES,
    *check_world.RULES,
    *check_split.RULES,
    *check_pipeline.RULES,
    *check_runtime.RULES,
    *check_mixed.RULES,
    *check_traced.RULES,
    *check_towers.RULES,
    *check_documents.RULES,
)


def check(model: Model, cluster: Cluster, strategy: Strategy, runtime: Runtime) -> tuple[Fault, ...]:
    """All faults, in the order model, cluster, strategy; empty when the strategy can be run."""
    own = [
        *value_faults(model, "model"),
        *value_faults(cluster, "cluster"),
        *value_faults(strategy, "strategy"),
    ]
    case = Combination(model=model, cluster=cluster, strategy=strategy, runtime=runtime)
    broken = _fields(own)
    crossed = [fault for rule in _RULES if not rule.reads & broken for fault in rule.find(case)]
    return tuple(dict.fromkeys([*own, *crossed]))


def ensure(model: Model, cluster: Cluster, strategy: Strategy, runtime: Runtime) -> None:
    """Raise InputError with all faults, if there are any."""
    faults = check(model, cluster, strategy, runtime)
    if faults:
        raise InputError(faults)


_DATA = ("seq", "documents", "packing", "source", "images", "image_imbalance", "image_size", "frozen")


def refuse_unsound(model: Model, cluster: Cluster, runtime: Runtime, asked: Strategy) -> None:
    """Raise what is wrong with the model, the cluster and the data that is asked for: no split would mend it."""
    data = {name: getattr(asked, name) for name in _DATA}
    plain = Strategy(dp=cluster.gpus, global_batch=cluster.gpus, runtime=runtime.name, **data)
    about = {f"strategy.{name}" for name in _DATA}
    faults = check(model, cluster, plain, runtime)
    if own := [one for one in faults if not one.path.startswith("strategy.") or _fields([one]) <= about]:
        raise InputError(own)


def _fields(faults: Iterable[Fault]) -> frozenset[str]:
    """`cluster.levels.0.size` -> `cluster.levels`: the fields that rules name."""
    return frozenset(".".join(fault.path.split(".")[:2]) for fault in faults)
