"""What `plan` does: the question put together, the search run, the answer as a plan."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from html import escape

from shardwise.check.check import refuse_unsound
from shardwise.check.runtime import asked_dispatch
from shardwise.check.values import value_faults
from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.estimate.intervals import around, causes_of, spread_of
from shardwise.estimate.predictions import predictions_of
from shardwise.estimate.setup import memory_share
from shardwise.inputs.calibrations import calibration_of
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.gate import held
from shardwise.inputs.load import load_runtime, named_cluster, named_model
from shardwise.inputs.mixed import Mixed, kinds_of, orders_of, whole_kinds
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.strategy_text import build
from shardwise.kernels import library
from shardwise.plan.plan import Plan, plan_html
from shardwise.plan.predict import plan_of
from shardwise.plan.proof import proof_of
from shardwise.search.advise import advised
from shardwise.search.executor import executor_of
from shardwise.search.findings import Report, Stop
from shardwise.search.nothing_fits import closest, why_nothing
from shardwise.search.question import GAP, Alone, Answer, Question, merged, slower
from shardwise.search.search import Search
from shardwise.search.wishes import Wishes, read_wishes
from shardwise.units import parse_bytes, show_bytes, show_percent, show_seconds

DEFAULT_RUNTIME = "megatron"
UNSEARCHED = (
    "dtype",
    "scaling",
    "fp8_weights",
    "fp8_attention",
    "master",
    "grad_dtype",
    "optimizer",
    "lora",
    "offload",
    "flash",
    "cuda_graphs",
    "ep_overlap",
    "rank_order",
    "straggler",
    "documents",
    "packing",
    "source",
    "images",
    "image_imbalance",
    "image_size",
    "frozen",
)
"""Fields of a strategy that are asked for; those that are axes too (`wishes.AXES`) are searched where several values
are named, since they change the numbers that are trained with, or need the host's memory."""
MOST_KINDS = 2
"""Kinds of GPU whose sharing of layers the bounds know well: of three the gap stays wide and the search long."""
NEARLY = 0.02
"""Gap at which the kinds of a mixed cluster alone are known well enough."""


def question_of(
    model: Model | str,
    cluster: Cluster | str,
    *,
    global_batch: int,
    seq: int = 4096,
    runtime: Runtime | str = DEFAULT_RUNTIME,
    only: str = "",
    memory_margin: float | str | None = None,
    base: Strategy | None = None,
) -> Question:
    """Everything that is asked, names looked up in the catalog. `base`: its choices outside the search are kept."""
    model = named_model(model) if isinstance(model, str) else model
    cluster = named_cluster(cluster) if isinstance(cluster, str) else cluster
    wishes, other = read_wishes(only)
    runtime = _runtime(runtime, other.get("runtime"))
    kept = {name: getattr(base, name) for name in UNSEARCHED} if base else {}
    shared = build({**kept, "global_batch": global_batch, "seq": seq, "runtime": runtime.name, **other})
    limit = memory_limit(model, cluster, shared.dtype, runtime, memory_margin)
    _refuse(model, cluster, shared, runtime, limit, wishes)
    refuse_unsound(model, cluster, runtime, shared)
    return Question(
        model=model, cluster=cluster, runtime=runtime, base=shared, wishes=wishes,
        conditions=" ".join(only.split()), memory_limit=limit,
    )  # fmt: skip


def _refuse(model: Model, cluster: Cluster, base: Strategy, runtime: Runtime, limit: float, wishes: Wishes) -> None:
    faults = [*value_faults(model, "model"), *value_faults(cluster, "cluster"), *value_faults(base, "strategy")]
    overlap = (wishes.named("ep_overlap") or (base.ep_overlap,)) == (True,)
    for way in wishes.named("dispatcher") or (base.dispatcher,):
        faults += asked_dispatch(model, cluster, replace(base, dispatcher=way, ep_overlap=overlap), runtime)
    if len(kinds_of(cluster)) > MOST_KINDS:
        told = f"has {len(kinds_of(cluster))} kinds of GPU, and {MOST_KINDS} are searched together"
        faults.append(Fault("cluster", f"{told}; leave one out, or estimate strategies one by one"))
    if limit <= 0:
        memory = cluster.gpu.memory
        left = f"leaves nothing of the {show_bytes(memory)} that a {cluster.gpu.name} has; give less than that"
        faults.append(Fault("memory_margin", f"{show_bytes(memory - limit)} {left}"))
    if faults:
        raise InputError(faults)


def _runtime(asked: Runtime | str, wished: str | None) -> Runtime:
    """The runtime, also where the conditions name it: everything is priced and checked with one."""
    found = load_runtime(asked) if isinstance(asked, str) else asked
    if wished is None or wished == found.name:
        return found
    if asked != DEFAULT_RUNTIME:
        raise InputError(Fault("runtime", f"is {found.name} and, in the conditions, {wished}; give one of them"))
    return load_runtime(wished)


def memory_limit(
    model: Model | None, cluster: Cluster, dtype: str, runtime: Runtime, margin: float | str | None = None
) -> float:
    """Bytes that a rank may need: all that the GPU has once the memory model's own error is added, or less the margin
    that is asked for; of a mixed cluster for its largest GPUs, the others by their memory.
    """
    memory = cluster.gpu.memory
    if margin is not None:
        return memory - parse_bytes(margin)
    known = [(kind, calibration_of(kind.gpu)) for kind in whole_kinds(cluster)]
    causes = [(causes_of(model, kind, dtype, runtime.name, one), one) for kind, one in known]
    return around(memory, max(spread_of(names, runtime.name, one).memory for names, one in causes))[0]


def answer_of(
    question: Question,
    *,
    gap: float = GAP,
    time_limit: float | None = None,
    workers: int = 1,
    executor: str = "processes",
    address: str | None = None,
    report: Report | None = None,
    stop: Stop | None = None,
    fastest: bool = False,
) -> Answer:
    """The fastest strategy that fits, with a bound on what any other could reach, and what to run; see `api.plan`."""
    gap = held(gap, SCALARS["option.gap"], "gap")
    if time_limit is not None:
        time_limit = held(time_limit, SCALARS["option.seconds"], "time_limit")
    pool = executor_of(executor, workers, address)
    found: list[tuple[Answer, Search]] = []
    try:
        orders = orders_of(question.cluster)
        each = None if time_limit is None else time_limit / len(orders)
        for cluster in orders:
            search = Search(question=replace(question, cluster=cluster), gap=gap, time_limit=each, executor=pool)
            search.stop = stop or search.stop
            if report and not found:  # counts of the other orders of kinds would begin anew
                search.report = report
            found.append((search.run(), search))
            if found[-1][0].interrupted:
                break
    finally:
        pool.close()
    answer, search = min(found, key=lambda one: one[0].fastest.iteration_seconds if one[0].fastest else float("inf"))
    # no order of kinds is faster than the bound that knows of none, should some not have been searched
    unseen = found[0][1].least if len(found) < len(orders) else float("inf")
    answer = merged(answer, [one for one, _ in found], unseen)
    if answer.fastest is None and answer.finished:
        return replace(answer, closest=closest(question, search.leanest))
    try:
        if answer.finished and isinstance(question.cluster, Mixed):
            answer = replace(answer, alone=tuple(_alone(question, gap, stop)))
        answer = advised(answer, search, fastest=fastest)
    except KeyboardInterrupt:
        answer = replace(answer, interrupted=True)
    return replace(answer, cpu_seconds=time.process_time() - found[0][1].began)


def _alone(question: Question, gap: float, stop: Stop | None) -> Iterator[Alone]:
    """Each kind of a mixed cluster by itself: slow GPUs may hold the others up."""
    for kind in kinds_of(question.cluster):
        limit = question.memory_limit * memory_share(question.cluster, kind.gpu)
        search = Search(question=replace(question, cluster=kind, memory_limit=limit), gap=max(gap, NEARLY))
        search.stop = stop or search.stop
        found = search.run()
        if found.interrupted:
            raise KeyboardInterrupt
        if found.fastest:
            yield Alone(kind.name, found.fastest.strategy, found.fastest.iteration_seconds)


def plan_file_of(answer: Answer) -> Plan:
    """The plan of an answer: its strategy, cut and order, what is predicted, and what is proven."""
    if answer.best is None:
        raise InfeasibleError(f"there is no plan: {why_nothing(answer)}")
    told = predictions_of(
        answer.best, bound=answer.bound, gap=answer.gap_of(answer.best), memory_limit=answer.question.memory_limit,
        search=answer.counts,
    )  # fmt: skip
    found = replace(plan_of(answer.best), predictions=told)
    source = found.provenance and replace(found.provenance, conditions=answer.question.conditions or None)
    return replace(
        found,
        provenance=source,
        proof=proof_of(found, answer.lowest),
        run={
            "cpu_seconds": answer.cpu_seconds,
            "screen_cpu_seconds": answer.screen_seconds,
            "kernels": library() is not None,
        },
    )


_SHOWN = 10
_HEADS = ("strategy", "iteration", "nine runs in ten", "slower", "MFU", "memory", "plan")


def answer_html(answer: Answer) -> str:
    """The recommended plan with its proof, and the best of the other layouts folded below it."""
    if answer.best is None:
        return f"<div>{escape(why_nothing(answer))}</div>"
    rows = [
        (str(one.strategy), show_seconds(one.seconds),
         " to ".join(map(show_seconds, one.iteration_seconds_interval)), slower(answer, one), show_percent(one.mfu),
         show_bytes(one.total_bytes), ", ".join(answer.roles(one.strategy)))
        for one in answer.shown(_SHOWN)
    ]  # fmt: skip
    return plan_html(plan_file_of(answer), [_HEADS, *rows])
