"""One strategy: checked, estimated, its passes one by one, and what would help."""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: who presses Ctrl-C while that loads would see a traceback of Python's
if TYPE_CHECKING:
    from shardwise.api.reading import Source
    from shardwise.errors import Fault
    from shardwise.estimate.advice import Change
    from shardwise.estimate.allocations import Allocations
    from shardwise.estimate.detail import Detail
    from shardwise.estimate.estimate import Estimate
    from shardwise.estimate.iteration import Iteration
    from shardwise.inputs.cluster import Cluster
    from shardwise.inputs.model import Model
    from shardwise.inputs.runtime import Runtime
    from shardwise.inputs.strategy import Strategy
    from shardwise.pipeline.timeline import Timeline
    from shardwise.plan.inside import RankPasses
    from shardwise.plan.plan import Plan
    from shardwise.plan.proof import Verdict


def estimate(
    model: Model | Plan | Source,
    cluster: Cluster | Source | None = None,
    strategy: Strategy | Source | None = None,
    *,
    runtime: Runtime | str | None = None,
) -> Estimate:
    """Time, memory and MFU of one strategy, each as a ledger.

    `model`: a model, or a plan, which says everything that is not given beside it, in the order that it carries where
    the strategy is its own; `cluster`; `strategy`: also a line such as `tp8 pp4 gbs512`, whose dp follows from the
    cluster; `runtime`: the software, where it is not the one that the strategy names.
    """
    from shardwise.api.reading import as_cluster, as_model, as_runtime, as_strategy
    from shardwise.errors import Fault, InputError
    from shardwise.estimate.estimate import estimate
    from shardwise.inputs.model import Model
    from shardwise.plan.file import is_plan
    from shardwise.plan.plan import Plan

    runtime = as_runtime(runtime)
    if isinstance(model, Plan) or (not isinstance(model, Model) and (strategy is None or is_plan(model))):
        return _of_plan(model, cluster, strategy, runtime)
    if cluster is None or strategy is None:
        lacks = [name for name, one in (("cluster", cluster), ("strategy", strategy)) if one is None]
        raise InputError([Fault(name, "is missing beside a model; only a plan says everything") for name in lacks])
    model, cluster = as_model(model), as_cluster(cluster)
    return estimate(model, cluster, as_strategy(strategy, cluster), runtime=runtime)


def _of_plan(
    plan: Plan | Source,
    cluster: Cluster | Source | None,
    strategy: Strategy | Source | None,
    runtime: Runtime | None,
) -> Estimate:
    from shardwise.api.reading import as_cluster, as_plan
    from shardwise.plan.predict import changed, estimate_of, moved

    whole = as_plan(plan, "estimate")
    there = whole if cluster is None else moved(whole, as_cluster(cluster))
    asked = whole.strategy if strategy is None else _beside(strategy, there)
    return estimate_of(there if asked == whole.strategy else changed(there, asked), runtime=runtime)


def _beside(source: Strategy | Source, plan: Plan) -> Strategy:
    """A strategy; what a line leaves out is the plan's."""
    from shardwise.api.reading import as_strategy
    from shardwise.frameworks.ask import is_file
    from shardwise.search.why import beside

    if isinstance(source, str) and not is_file(source):
        return beside(source, plan.strategy, plan.cluster.gpus)
    return as_strategy(source, plan.cluster)


def timeline(plan: Plan | Source, *, runtime: Runtime | str | None = None) -> Timeline:
    """The passes that the estimate of a plan is made of; memory in bytes of the whole device. `runtime`: as there."""
    from shardwise.api.reading import as_plan, as_runtime
    from shardwise.plan.predict import plan_iteration

    return plan_iteration(as_plan(plan, "a timeline"), runtime=as_runtime(runtime))


def iteration(plan: Plan | Source, *, runtime: Runtime | str | None = None) -> Iteration:
    """The whole iteration of a plan, rank by rank: passes, traffic inside and behind them, and what follows them.

    What shows adds up to the parts of the estimate's ledger of time; `runtime`: as of `timeline`.
    """
    from shardwise.api.reading import as_plan, as_runtime
    from shardwise.plan.predict import whole_iteration

    return whole_iteration(as_plan(plan, "an iteration"), runtime=as_runtime(runtime))


def rank_passes(plan: Plan | Source, *, rank: int | None = None, runtime: Runtime | str | None = None) -> RankPasses:
    """The operators of one forward and one backward pass of a rank's chunks, in order, with seconds and bytes.

    `plan`: a plan or its file; `rank`: of the pipeline, by default the busiest; `runtime`: as of `timeline`.
    """
    from shardwise.api.reading import as_plan, as_runtime
    from shardwise.plan.inside import rank_passes

    return rank_passes(as_plan(plan, "a pass"), rank, runtime=as_runtime(runtime))


def rank_allocations(
    plan: Plan | Source, *, rank: int | None = None, runtime: Runtime | str | None = None
) -> Allocations:
    """What a rank allocates and gives back in one iteration; its highest point is the estimate's peak.

    `plan`: a plan or its file; `rank`: of the pipeline, by default the fullest; `runtime`: as of `timeline`.
    """
    from shardwise.api.reading import as_plan, as_runtime
    from shardwise.plan.inside import rank_allocations

    return rank_allocations(as_plan(plan, "allocations"), rank, runtime=as_runtime(runtime))


def advise(
    found: Estimate | Plan | Source, *, runtime: Runtime | str | None = None, count: int = 3
) -> tuple[Change, ...]:
    """The changes of an estimated strategy that help most, best first: to make it fit, or faster.

    `found`: the estimate, or a plan, which is estimated; `runtime`: the one that it was estimated with, where that is
    not the one it names; `count`: how many.
    """
    from shardwise.api.reading import as_plan, as_runtime
    from shardwise.estimate.advice import advise
    from shardwise.estimate.estimate import Estimate
    from shardwise.plan.predict import estimate_of

    runtime = as_runtime(runtime)
    one = found if isinstance(found, Estimate) else estimate_of(as_plan(found, "advice"), runtime=runtime)
    return advise(one, runtime=runtime, count=count)


def detail(found: Estimate, *, runtime: Runtime | None = None) -> Detail:
    """What an estimate is made of: operations and bytes accessed of every pipeline rank, and what every communication
    group reaches. `found`: the estimate; `runtime`: as for `advise`.
    """
    from shardwise.estimate.detail import detail

    return detail(found, runtime=runtime)


def check(
    model: Model | Source,
    cluster: Cluster | Source,
    strategy: Strategy | Source,
    *,
    runtime: Runtime | str | None = None,
) -> tuple[Fault, ...]:
    """Everything that is wrong with a strategy, at once; nothing: it can run. As `estimate` takes them."""
    from shardwise.api.reading import as_cluster, as_model, as_runtime, as_strategy
    from shardwise.check.check import check
    from shardwise.inputs.load import load_runtime

    model, cluster = as_model(model), as_cluster(cluster)
    whole = as_strategy(strategy, cluster)
    return tuple(check(model, cluster, whole, as_runtime(runtime) or load_runtime(whole.runtime)))


def check_proof(plan: Plan | Source) -> Verdict | None:
    """Whether the proof that a plan carries still holds; None: it carries none."""
    from shardwise.api.reading import as_plan
    from shardwise.plan.proof import check_proof

    return check_proof(as_plan(plan, "check"))
