"""Plan distributed training of large models: the fastest layout that fits, its time, its memory, and why."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = [
    "Cluster",
    "Model",
    "ShardwiseError",
    "Strategy",
    "__version__",
    "estimate",
    "load_cluster",
    "load_model",
    "plan",
]

TYPE_CHECKING = False  # not from typing: who presses Ctrl-C while that loads would see a traceback of Python's
if TYPE_CHECKING:
    from shardwise.errors import ShardwiseError
    from shardwise.inputs.cluster import Cluster
    from shardwise.inputs.load import load_cluster, load_model
    from shardwise.inputs.model import Model
    from shardwise.inputs.strategy import Strategy
    from shardwise.plan.estimate import estimate
    from shardwise.plan.search.api import plan

# Loaded when first asked for, so that `shardwise --help` and a script that needs one name pay for nothing else.
_HOMES = {
    "Cluster": "shardwise.inputs.cluster",
    "Model": "shardwise.inputs.model",
    "ShardwiseError": "shardwise.errors",
    "Strategy": "shardwise.inputs.strategy",
    "estimate": "shardwise.plan.estimate",
    "load_cluster": "shardwise.inputs.load",
    "load_model": "shardwise.inputs.load",
    "plan": "shardwise.plan",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name == "plan":  # the package itself can be called
        return import_module("shardwise.plan")
    # Not kept in this module: a submodule of the same name would otherwise be able to take its place.
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
