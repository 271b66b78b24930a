"""The answers that take a moment: the catalog, a model, a view, "why not", an export, a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

from shardwise import api
from shardwise.api.reading import as_plan
from shardwise.errors import Fault, InputError
from shardwise.inputs.foreign import Foreign
from shardwise.inputs.serialise import to_plain
from shardwise.inputs.strategy_text import parse, without_documents
from shardwise.version import __version__
from shardwise.web.question import searched
from shardwise.web.untrusted import NAME_LENGTH, model_of, plan_of, read_body, runtime_of

if TYPE_CHECKING:
    from shardwise.inputs.model import Model
    from shardwise.inputs.strategy import Strategy
    from shardwise.plan.plan import Plan
    from shardwise.search.question import Question

Data = dict[str, Any]
MOST_PLANS = 16
"""Plans of one report."""


def catalog(body: bytes) -> Data:
    """What can be chosen."""
    del body
    from shardwise.inputs.load import gpu_names, model_names, named_cluster, named_model, runtime_names
    from shardwise.inputs.parameters import count
    from shardwise.inputs.strategy import SCHEDULES, Dtype, Optimizer
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
        "targets": list(api.targets()),
        "schedules": list(SCHEDULES),
        "dtypes": list(get_args(Dtype)),
        "optimizers": list(get_args(Optimizer)),
        "version": __version__,
    }


def first(body: bytes) -> Data:
    """The finished answer that the page opens on."""
    from shardwise.web.first import first

    del body
    return first()


def model(body: bytes) -> Data:
    """A dropped config.json, or a model file of ours."""
    from shardwise.inputs.parameters import count

    found = model_of(read_body(body))
    return {
        "name": found.name, "parameters": count(found).total, "layers": found.layers, "model": to_plain(found),
    }  # fmt: skip


def script(body: bytes) -> Data:
    """A launch script or a framework's configuration, as a question and a strategy."""
    from shardwise.inputs.parameters import count

    data = _table(body, "name", "text", "question")
    name, text = data.get("name"), data.get("text")
    if not isinstance(name, str) or not isinstance(text, str) or len(name) > NAME_LENGTH or not name.isprintable():
        raise InputError(Fault("text", "is missing; give the name of the file and its text"))
    asked = searched(data.get("question")).question
    found = api.question_from(text, name, asked["model"], asked["cluster"])
    s, known = found.strategy, found.model in (asked["model"], _of_catalog(found.model.name))
    return {
        "strategy": str(s), "name": found.model.name, "parameters": count(found.model).total,
        "layers": found.model.layers, "model": None if known else to_plain(found.model),
        "gpus": found.cluster.gpus, "global_batch": s.global_batch, "seq": s.seq,
        "runtime": s.runtime.partition("+")[0],  # what is laid over it stands in the strategy's line
        "dtype": s.dtype, "optimizer": s.optimizer,
        "notes": list(found.notes),
    }  # fmt: skip


def _of_catalog(name: str) -> Model | None:
    from shardwise.inputs.load import model_names, named_model

    return named_model(name) if name in model_names() else None


def question(body: bytes) -> Data:
    """Nothing where a question can be asked; otherwise its faults are raised."""
    api.question(**searched(read_body(body)).question)
    return {}


def view(body: bytes) -> Data:
    """A plan, or a strategy under a question, as the page shows it."""
    from shardwise.report.view import plan_view

    data = _table(body, "plan", "question", "strategy")
    plan = _whole(data["plan"], "the page") if "plan" in data else _planned(data)
    return {"plan": api.plan_table(plan), "view": plan_view(plan)}


def step(body: bytes) -> Data:
    """A strategy at a glance: what is redrawn while a knob is turned."""
    from shardwise.report.view import Turning, step_view, stepped

    table = Foreign(read_body(body))
    table.refuse_unknown(("question", "strategy", "change", "best", "tokens", "price", "days", "ways"))
    tokens, price = table.number("tokens", 0.0, row="option.tokens"), table.number("price", 0.0, row="option.price")
    days = table.number("days", 0.0, row="option.days")
    ways = table.switch("ways", default=False)
    if table.faults or "question" not in table.data:
        raise InputError(table.faults or [Fault("question", "is missing; give a question and a strategy")])
    asked, strategy = _laid(table.data)
    best = api.load_strategy(_strategy_text(table.data, at="best"), asked.cluster) if table.has("best") else None
    if table.has("change"):
        strategy = stepped(strategy, _strategy_text(table.data, at="change"), asked.cluster)
        asked = _of_runtime(asked, strategy, searched(table.data["question"]).question)
    at = Turning(
        model=asked.model, cluster=asked.cluster, runtime=asked.runtime, memory_limit=asked.memory_limit,
        tokens=tokens, price=price, days=days,
    )  # fmt: skip
    return step_view(at, strategy, best=best, ways=ways)


def why(body: bytes) -> Data:
    """Why another strategy lost against a plan."""
    from shardwise.report.data import why_data

    data = _table(body, "plan", "strategy")
    plan = _whole(data.get("plan"), "why")
    return why_data(api.why(plan, _strategy_text(data, plan)))


def export(body: bytes) -> Data:
    """A plan in the words of a framework."""
    from shardwise.report.data import export_data

    data = _table(body, "plan", "target")
    target = data.get("target")
    if not isinstance(target, str):
        raise InputError(Fault("target", "must be a text such as megatron@main"))
    return export_data(api.export(_whole(data.get("plan"), "export"), target[:100]))


def report(body: bytes) -> str:
    """One HTML file of several plans."""
    from shardwise.report.data import plans_page

    plans = _table(body, "plans").get("plans")
    if not isinstance(plans, list) or not 1 <= len(plans) <= MOST_PLANS:
        raise InputError(Fault("plans", f"must be a list of 1 to {MOST_PLANS} plans"))
    return plans_page([_whole(plan, "a report", f"plans.{index}") for index, plan in enumerate(plans)])


JSON: dict[str, Callable[[bytes], Data]] = {
    "catalog": catalog, "first": first, "model": model, "question": question, "script": script, "step": step,
    "view": view, "why": why, "export": export,
}  # fmt: skip
TEXT: dict[str, Callable[[bytes], str]] = {"report": report}


def _whole(value: object, verb: str, at: str = "plan") -> Plan:
    """A plan of a whole strategy; what is shown of a per-operator plan would be another one's."""
    return as_plan(plan_of(value, at), verb, at)


def _table(body: bytes, *names: str) -> Data:
    table = Foreign(read_body(body))
    table.refuse_unknown(names)
    if table.faults:
        raise InputError(table.faults)
    return table.data


def _strategy_text(data: Data, plan: Plan | None = None, *, at: str = "strategy") -> str:
    """`plan`: whose documents a line may name."""
    text = data.get(at)
    if not isinstance(text, str) or len(text) > 2000:
        raise InputError(Fault(at, 'must be a text such as "tp8 pp4", at most 2,000 characters'))
    text = text if plan is None else without_documents(text, plan.strategy)
    runtime = parse(text).get("runtime")
    if runtime:  # of the catalog: on the command line it may be a file
        runtime_of(runtime)
    return text


def _planned(data: Data) -> Plan:
    """The plan of one strategy under a question."""
    if "question" not in data:
        raise InputError(Fault("plan", "is missing; give a plan, or a question and a strategy"))
    asked, strategy = _laid(data)
    found = api.estimate(asked.model, asked.cluster, strategy)
    return api.plan_of(found, memory_limit=asked.memory_limit)


def _laid(data: Data) -> tuple[Question, Strategy]:
    """A question and a strategy under it; the question is of the strategy's runtime, whose memory model is asked."""
    words = searched(data["question"]).question
    asked = api.question(**words)
    base = asked.base
    strategy = api.load_strategy(
        _strategy_text(data), asked.cluster, global_batch=base.global_batch, seq=base.seq, runtime=asked.runtime.name
    )
    return _of_runtime(asked, strategy, words), strategy


def _of_runtime(asked: Question, strategy: Strategy, words: Data) -> Question:
    """The question, asked of the runtime that the strategy has."""
    if strategy.runtime == asked.runtime.name:
        return asked
    return api.question(**{**words, "runtime": strategy.runtime, "only": ""})
