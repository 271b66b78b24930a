"""Plan distributed training of large models: the fastest layout that fits, its time, its memory, and why."""

from __future__ import annotations

# Two rooms have the names of verbs. Loaded here first (they are empty), they cannot take the verbs' places later.
import shardwise.estimate
import shardwise.plan  # noqa: F401
from shardwise.api import estimate, load_cluster, load_model, plan, read_plan, write_plan
from shardwise.version import __version__

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
    "read_plan",
    "write_plan",
]

TYPE_CHECKING = False  # not from typing: who presses Ctrl-C while that loads would see a traceback of Python's
if TYPE_CHECKING:
    from shardwise.errors import ShardwiseError
    from shardwise.inputs.cluster import Cluster
    from shardwise.inputs.model import Model
    from shardwise.inputs.strategy import Strategy

# Loaded when first asked for, so that `shardwise --help` and a script that needs one name pay for nothing else.
_HOMES = {
    "Cluster": "shardwise.inputs.cluster",
    "Model": "shardwise.inputs.model",
    "ShardwiseError": "shardwise.errors",
    "Strategy": "shardwise.inputs.strategy",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
