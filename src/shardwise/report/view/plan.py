"""A plan as a view: estimated again, so that every number has its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise.check.check import ensure
from shardwise.cost.ledger import Ledger
from shardwise.cost.memory import RankMemory
from shardwise.estimate.estimate import Estimate, assemble, within
from shardwise.estimate.intervals import pair_width
from shardwise.estimate.iteration import iteration_of
from shardwise.estimate.passes import timeline_of
from shardwise.estimate.predictions import ledger_table
from shardwise.estimate.setup import setup_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.mixed import Mixed, kinds_of
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.serialise import Plain
from shardwise.plan.file import plan_id
from shardwise.plan.plan import Plan
from shardwise.plan.predict import asked_limit
from shardwise.plan.proof import check_proof
from shardwise.plan.renew import outdated, sentence
from shardwise.report.data import plans_data
from shardwise.report.estimate import chance, kinds_line, ledger_notes, searched
from shardwise.report.view.candidates import candidate_view
from shardwise.report.view.schedule import timeline_data, too_long
from shardwise.report.view.stages import stages_data
from shardwise.search.question import Answer
from shardwise.units import show_bytes, show_count

_AXES = (
    "tp", "pp", "vpp", "dp", "cp", "ep", "etp", "zero", "sp", "micro_batch", "global_batch", "seq", "microbatches",
    "schedule", "placement", "recompute", "compile", "dtype", "optimizer", "offload", "runtime",
)  # fmt: skip
_NUMBERS = (
    "iteration_seconds", "mfu", "mfu_full_attention", "hfu", "tokens_per_second_per_gpu", "tflops_per_gpu", "bubble",
    "peak_bytes", "total_bytes", "fits", "fits_probability",
)  # fmt: skip


def plan_view(plan: Plan, answer: Answer | None = None, *, runtime: Runtime | None = None) -> Plain:
    """The view of a plan; `answer`: of the search that found it."""
    strategy = plan.strategy
    runtime = runtime or load_runtime(strategy.runtime)
    ensure(plan.model, plan.cluster, strategy, runtime)
    setup = setup_of(plan.model, plan.cluster, strategy, runtime, memory_limit=asked_limit(plan))
    found = within(assemble(setup, plan.order), asked_limit(plan))
    timeline = timeline_of(setup, plan.order)
    return {
        "kind": "plan",
        "id": plan_id(plan),
        "title": plan.model.name,
        "subtitle": f"{plan.cluster.name}, {runtime.base}",
        "unit": "seconds",
        "strategy": str(strategy),
        "axes": {name: _axis(getattr(strategy, name)) for name in _AXES},
        "numbers": _numbers(found, plan),
        "facts": [list(fact) for fact in _facts(found, plan)],
        "stages": stages_data(found, setup, timeline),
        "timeline": timeline_data(timeline, iteration_of(setup, found, timeline)),
        "ledger": {"time": ledger_table(found.time), "memory": [_memory(rank) for rank in found.memory]},
        "candidates": [candidate_view(one, answer) for one in (answer.simulated if answer else ())],
        "plans": plans_data(answer) if answer else {},
        "notes": [*_notes(found, plan), *filter(None, [too_long(timeline)])],
    }


def _axis(value: object) -> Any:  # noqa: ANN401 - a JSON value
    return value if isinstance(value, bool | int | float | str) else str(value)


def _numbers(found: Estimate, plan: Plan) -> Plain:
    proof = check_proof(plan)
    return {
        **numbers_of(found, asked_limit(plan)),
        "bound": proof.bound if proof and not proof.fault else None,
        "gap": proof.gap if proof and not proof.fault else None,
    }


def numbers_of(found: Estimate, usable: float | None) -> Plain:
    """What decides about a strategy; `usable`: bytes that a rank was asked to keep to."""
    return {
        **{name: getattr(found, name) for name in _NUMBERS},
        "interval": list(found.iteration_seconds_interval),
        "memory_interval": list(found.total_bytes_interval),
        "layout_error": pair_width(found),
        "memory_limit": found.device.memory,
        "usable_memory": usable,
        "fits_limit": found.limit,
    }


def _facts(found: Estimate, plan: Plan) -> Iterator[tuple[str, str]]:
    model, cluster, strategy = plan.model, plan.cluster, plan.strategy
    from shardwise.inputs.parameters import count

    yield "model", f"{model.name}, {show_count(count(model).total)}, {model.layers} layers"
    for kind in kinds_of(cluster):
        yield "cluster", f"{kind.name}: {kind.gpus} x {kind.gpu.name}, {show_bytes(kind.gpu.memory)}"
    if isinstance(cluster, Mixed):
        yield "kinds", kinds_line(cluster, strategy, found)
    yield "runtime", strategy.runtime
    yield "batch", f"{strategy.global_batch:,} x {strategy.seq:,} = {strategy.global_batch * strategy.seq:,} tokens"
    yield from searched(plan.predictions.search if plan.predictions else None)
    yield "calibration", found.calibration


def _notes(found: Estimate, plan: Plan) -> Iterator[str]:
    if note := sentence(outdated(plan.predictions, found)):
        yield note
    proof = check_proof(plan)
    if proof and proof.fault:
        yield str(proof)
    needed = found.total_bytes_interval
    if found.fits == "close":
        yield f"may or may not fit (probability {chance(found)}): it needs {' to '.join(map(show_bytes, needed))}"
    yield from ledger_notes(found)


def _memory(rank: RankMemory) -> Plain:
    """All that a rank's device must have: the peak by part, and what stands beside it."""
    outside = (
        Ledger("fragmentation", rank.reserved - rank.peak.value),
        Ledger("context and communicators", rank.total - rank.reserved),
    )
    parts = (*rank.peak.parts, *(part for part in outside if part.value))
    return ledger_table(Ledger(f"rank {rank.rank}", rank.total, parts, rank.at))
