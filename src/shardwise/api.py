"""The verbs: one function each, taking and returning the public types; the command line and the page call these.

Names and files stand wherever a model, a cluster or a strategy is asked for: a catalog name, a file of ours, a plan, or
another tool's file. What a verb needs is imported when it is called, so that `import shardwise` costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: who presses Ctrl-C while that loads would see a traceback of Python's
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from shardwise.estimate.estimate import Estimate
    from shardwise.inputs.cluster import Cluster
    from shardwise.inputs.model import Model
    from shardwise.inputs.runtime import Runtime
    from shardwise.inputs.strategy import Strategy
    from shardwise.plan.plan import Plan
    from shardwise.search.question import Answer

    Source = str | Path


def load_model(source: Source) -> Model:
    """A model by catalog name, or from a file: ours, a plan, Hugging Face's config.json, SimuMax's."""
    from shardwise.frameworks.load import load_model

    return load_model(source)


def load_cluster(source: Source) -> Cluster:
    """A cluster from text such as `64xh100` or `h100` (one node), or from a file: ours, a plan, SimuMax's system."""
    from shardwise.frameworks.load import load_cluster

    return load_cluster(source)


def read_plan(path: Source) -> Plan:
    """A plan from its file."""
    from shardwise.plan.file import read_plan

    return read_plan(path)


def write_plan(plan: Plan, path: Source) -> None:
    """A plan into its file, whole or not at all."""
    from shardwise.plan.file import write_plan

    write_plan(plan, path)


def estimate(
    model: Model | Source, cluster: Cluster | Source, strategy: Strategy | str, *, runtime: Runtime | None = None
) -> Estimate:
    """Time, memory and MFU of one strategy, each as a ledger. A text such as `tp8 pp4` gets its dp from the cluster."""
    from shardwise.estimate.estimate import estimate
    from shardwise.inputs.strategy_text import complete, parse

    model, cluster = _model(model), _cluster(cluster)
    if isinstance(strategy, str):
        strategy = complete(parse(strategy), cluster)
    return estimate(model, cluster, strategy, runtime=runtime)


def plan(model: Model | Source, cluster: Cluster | Source, **options: Any) -> Answer:  # noqa: ANN401 - of search.api
    """The fastest strategy that fits, with a bound on what any other could reach: see `search.api.plan`."""
    from shardwise.search.api import plan

    return plan(_model(model), _cluster(cluster), **options)


def _model(source: Model | Source) -> Model:
    from shardwise.inputs.model import Model

    return source if isinstance(source, Model) else load_model(source)


def _cluster(source: Cluster | Source) -> Cluster:
    from shardwise.inputs.cluster import Cluster

    return source if isinstance(source, Cluster) else load_cluster(source)
