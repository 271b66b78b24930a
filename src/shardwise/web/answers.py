"""The answers that take a moment: the catalog, a model, a view, "why not", an export, a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.inputs.foreign import Foreign
from shardwise.inputs.serialise import to_plain
from shardwise.inputs.strategy_text import parse
from shardwise.plan.file import plan_table
from shardwise.plan.plan import Plan
from shardwise.version import __version__
from shardwise.web.question import asked
from shardwise.web.untrusted import model_of, plan_of, read_body, runtime_of

Data = dict[str, Any]
MOST_PLANS = 16
"""Plans of one report."""


def catalog(body: bytes) -> Data:
    """What can be chosen."""
    del body
    from shardwise.frameworks.export import target_names
    from shardwise.inputs.load import gpu_names, model_names, named_cluster, named_model, runtime_names
    from shardwise.inputs.parameters import count
    from shardwise.inputs.strategy import SCHEDULES
    from shardwise.units import show_bytes, show_count

    models = [(model, count(model)) for model in map(named_model, model_names())]
    gpus = [named_cluster(name).gpu for name in gpu_names()]
    return {
        "models": [
            {"name": m.name, "title": f"{m.name} ({show_count(p.total)})", "parameters": p.total, "layers": m.layers}
            for m, p in models
        ],
        "gpus": [
            {"name": gpu.name, "title": f"{gpu.name} ({show_bytes(gpu.memory)})", "memory": gpu.memory} for gpu in gpus
        ],
        "runtimes": list(runtime_names()),
        "targets": list(target_names()),
        "schedules": list(SCHEDULES),
        "version": __version__,
    }


def model(body: bytes) -> Data:
    """A dropped config.json, or a model file of ours."""
    from shardwise.inputs.parameters import count

    found = model_of(read_body(body))
    return {
        "name": found.name, "parameters": count(found).total, "layers": found.layers, "model": to_plain(found),
    }  # fmt: skip


def question(body: bytes) -> Data:
    """Nothing where a question can be asked; otherwise its faults are raised."""
    asked(read_body(body))
    return {}


def view(body: bytes) -> Data:
    """A plan, or a strategy under a question, as the page shows it."""
    from shardwise.report.view import plan_view

    data = _table(body, "plan", "question", "strategy")
    plan = plan_of(data["plan"]) if "plan" in data else _planned(data)
    return {"plan": plan_table(plan), "view": plan_view(plan)}


def why(body: bytes) -> Data:
    """Why another strategy lost against a plan."""
    from shardwise.search.why import against, sentences

    data = _table(body, "plan", "strategy")
    found = against(plan_of(data.get("plan")), _strategy_text(data))
    return {
        "sentence": "; ".join(sentences(found)),
        "change": found.change,
        "strategy": str(found.other.strategy),
        "fits": not found.missing,
        "slower": found.slower,
        "missing_bytes": found.missing,
        "rank": found.rank,
        "parts": [{"name": p.name, "plan": p.best, "other": p.other, "lost": p.lost} for p in found.parts],
    }


def export(body: bytes) -> Data:
    """A plan in the words of a framework."""
    from shardwise.frameworks.export import export_data

    data = _table(body, "plan", "target")
    target = data.get("target")
    if not isinstance(target, str):
        raise InputError(Fault("target", "must be a text such as megatron@main"))
    return export_data(plan_of(data.get("plan")), target[:100])


def report(body: bytes) -> str:
    """One HTML file of several plans."""
    from shardwise.frameworks.export import every_export
    from shardwise.report.page import page_of
    from shardwise.report.view import plan_view

    plans = _table(body, "plans").get("plans")
    if not isinstance(plans, list) or not 1 <= len(plans) <= MOST_PLANS:
        raise InputError(Fault("plans", f"must be a list of 1 to {MOST_PLANS} plans"))
    read = [plan_of(plan, f"plans.{index}") for index, plan in enumerate(plans)]
    exports = [every_export(plan) for plan in read]
    return page_of([plan_view(plan) for plan in read], plans=[plan_table(plan) for plan in read], exports=exports)


JSON: dict[str, Callable[[bytes], Data]] = {
    "catalog": catalog, "model": model, "question": question, "view": view, "why": why, "export": export,
}  # fmt: skip
TEXT: dict[str, Callable[[bytes], str]] = {"report": report}


def _table(body: bytes, *names: str) -> Data:
    table = Foreign(read_body(body))
    table.refuse_unknown(names)
    if table.faults:
        raise InputError(table.faults)
    return table.data


def _strategy_text(data: Data) -> str:
    text = data.get("strategy")
    if not isinstance(text, str) or len(text) > 2000:
        raise InputError(Fault("strategy", 'must be a text such as "tp8 pp4", at most 2,000 characters'))
    runtime = parse(text).get("runtime")
    if runtime:  # of the catalog: on the command line it may be a file
        runtime_of(runtime)
    return text


def _planned(data: Data) -> Plan:
    """The plan of one strategy under a question."""
    from shardwise.estimate.estimate import estimate
    from shardwise.estimate.predictions import predictions_of
    from shardwise.inputs.strategy_text import complete
    from shardwise.plan.predict import plan_of as plan_of_estimate

    if "question" not in data:
        raise InputError(Fault("plan", "is missing; give a plan, or a question and a strategy"))
    question = asked(data["question"]).question
    given = parse(_strategy_text(data))
    base = {"global_batch": question.base.global_batch, "seq": question.base.seq, "runtime": question.runtime.name}
    strategy = complete({**base, **given}, question.cluster)
    found = estimate(question.model, question.cluster, strategy)
    told = predictions_of(found, memory_limit=question.memory_limit)
    return replace(plan_of_estimate(found), predictions=told)
