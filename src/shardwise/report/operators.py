"""Per-operator plans as text and as plain values: what `plan-operators` and `show` print, and `--json` writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shardwise.inputs.model import Model
from shardwise.inputs.serialise import Plain
from shardwise.per_op.advice import mebibytes
from shardwise.per_op.answer import OperatorAnswer
from shardwise.per_op.as_plan import order_data, profile_data, schedule_of, stages_of
from shardwise.per_op.beside import lacking
from shardwise.per_op.evaluate import PerOpCost, evaluate
from shardwise.per_op.orders import runs
from shardwise.per_op.question import OperatorQuestion, PerOpPlan
from shardwise.plan.plan import Operators, OperatorStage, Plan
from shardwise.plan.proof import ended
from shardwise.report.estimate import Table
from shardwise.units import show_bytes, show_seconds

_MORE = (
    "compute", "recompute", "receive", "send", "reshard", "ideal", "lost", "weights", "states", "kept", "peak",
    "reserved",
)  # fmt: skip
_ANY = " for any order of passes"


def summary(answer: OperatorAnswer) -> Iterator[str]:
    """The answer in a line, and how good it is known to be."""
    question, plan = answer.question, answer.plan
    if answer.whole is None:
        yield f"{_pace(question, answer.seconds)}, {_batches(question, plan)}, {_stages(plan)} on {question.gpus} GPUs"
        yield from _known(answer, f"all splits with {_fixed(_zeros(question), question.model)}")
        return
    yield f"{_pace(question, answer.seconds)}, every operator split alike: {strategy_of(answer)}"
    yield from _known(answer, "all strategies that `plan` searches and all splits of operators")
    if plan.stages:
        owed = f", for want of {', '.join(lacking(answer))}" if lacking(answer) else ""
        yield (f"operator by operator {answer.cost.seconds:.5f} s{owed}: {_batches(question, plan)}, {_stages(plan)} "
               f"on {question.gpus} GPUs")  # fmt: skip


def _pace(question: OperatorQuestion, seconds: float) -> str:
    return f"{seconds:.5f} s per iteration, {question.global_batch / seconds:.2f} samples/s"


def _known(answer: OperatorAnswer, space: str) -> Iterator[str]:
    """The bound, and whether it is met."""
    question, bound = answer.question, f"bound {answer.bound:.5f} s{_any(answer)}"
    model = f"under the {question.pricing.name} cost model"
    if answer.proven:
        yield f"proven best of {space} in the {question.space} space, {model} ({bound})"
        return
    ended = "Ctrl-C" if answer.interrupted else "the time limit"
    said = "" if answer.complete else f"; {ended} ended the search: the best so far"
    yield f"{bound} of {space}, {model}, gap {answer.gap:.2%}{said}"


def strategy_of(answer: OperatorAnswer) -> str | None:
    """The whole strategy, where that is the answer."""
    best = answer.whole and answer.whole.fastest
    return str(best.strategy) if best else None


def _zeros(question: OperatorQuestion) -> tuple[int, ...]:
    return question.zeros or (question.pricing.zero,)


def _fixed(zeros: tuple[int, ...], model: Model | None) -> str:
    """What the search does not choose, and `plan` may: a proof is one beside it."""
    return f"ZeRO {' or '.join(map(str, zeros))}, cp 1, {'ep 1, ' if model and model.moe else ''}one chunk a rank"


def _any(answer: OperatorAnswer) -> str:
    """The bound of the search is one for the order that it reckons with; beside another stands one for all."""
    return _ANY if answer.reordered and answer.whole is None else ""


def notes(answer: OperatorAnswer) -> Iterator[str]:
    """What the search took, and what it noticed."""
    solved = f"{answer.solved} stage{'' if answer.solved == 1 else 's'} solved"
    yield f"{answer.cpu_seconds:.1f} CPU s, {solved}, method {answer.method}"
    yield from answer.notes


def stages(plan: PerOpPlan, cost: PerOpCost) -> Table:
    """A plan, a row a stage."""
    heads = ("stage", "ops", "GPUs", "tp", "dp", "recompute", "ms/pass", "iteration s", "memory MiB")
    return heads, [_row(plan, cost, index) for index in range(len(plan.stages))]


def _row(plan: PerOpPlan, cost: PerOpCost, index: int) -> tuple[str, ...]:
    stage = plan.stages[index]
    tps, dps = (sorted({getattr(layout, name) for layout in stage.layouts}) for name in ("tp", "dp"))
    counts = (str(index), str(stage.size), str(stage.gpus), _joined(tps), _joined(dps), str(sum(stage.recompute)))
    times = (f"{1e3 * cost.stages[index].seconds:.3f}", f"{cost.times[index]:.5f}")
    return (*counts, *times, f"{mebibytes(cost.memory[index]):.2f}")


def _joined(values: list[int]) -> str:
    return "/".join(map(str, values))


def parts(cost: PerOpCost) -> Table:
    """Where time (ms per pass) and memory (MiB) go in every stage."""
    rows = []
    for index, stage in enumerate(cost.stages):
        times = (
            stage.work,
            stage.recompute,
            stage.receive,
            stage.send,
            stage.reshard,
            cost.ideal[index],
            cost.lost[index],
        )
        sizes = (stage.weights + stage.gradients, stage.states, stage.kept, stage.peak, stage.reserved)
        told = (f"{1e3 * value:.3f}".replace("-0.000", "0.000") for value in times)
        rows.append((str(index), *told, *(f"{mebibytes(size):.1f}" for size in sizes)))
    return ("stage", *_MORE), rows


def chosen(answer: OperatorAnswer) -> Iterator[str]:
    """The order of passes that was chosen."""
    if order := answer.order:
        proof = "no order of these stages is faster" if order.gap <= 1e-9 else f"bound {order.bound:.5f} s"
        yield (f"order of passes {order.name}, simulated ({proof}); the stages were searched for "
               f"{answer.question.pricing.schedule}")  # fmt: skip


def orders(answer: OperatorAnswer) -> Table:
    """The orders of passes that were simulated."""
    rows: list[tuple[str, ...]] = [
        (order.name, f"{order.seconds:.5f}", f"{order.bubble:.2%}", f"{mebibytes(max(order.memory)):.2f}",
         "yes" if order.fits else "no", "yes" if runs(answer.question, order.name) else "no")
        for order in answer.orders
    ]  # fmt: skip
    return ("order", "iteration s", "bubble", "memory MiB", "fits", "in the runtime"), rows


def start_line(question: OperatorQuestion, plan: PerOpPlan, cost: PerOpCost) -> str:
    """A start, or a plan of the user's own."""
    said = f"{cost.seconds:.5f} s, {mebibytes(max(cost.memory)):.2f} MiB, {_batches(question, plan)}"
    return f"{_stages(plan)}: {said}{'' if cost.fits(question.memory) else ' (does not fit)'}"


def _stages(plan: PerOpPlan) -> str:
    return f"{len(plan.stages)} stage{'s' if len(plan.stages) > 1 else ''}"


def _batches(question: OperatorQuestion, plan: PerOpPlan) -> str:
    count = question.global_batch // plan.samples
    return f"{count} micro batch{'' if count == 1 else 'es'} of {plan.samples} samples"


def priced(question: OperatorQuestion, plans: tuple[PerOpPlan, ...]) -> list[tuple[PerOpPlan, PerOpCost]]:
    """Plans with what they take."""
    return [(plan, evaluate(question, plan)) for plan in plans]


def starts_data(starts: list[tuple[PerOpPlan, PerOpCost]]) -> Plain:
    """Starts with what they take."""
    told = (_halves(*start) for start in starts)
    return {"starts": [{"stages": plan, "cost": cost} for plan, cost in told]}


def answer_data(answer: OperatorAnswer) -> Plain:
    """The answer of `plan_operators`."""
    plan, cost = _halves(answer.plan, answer.cost) if answer.plan.stages else (None, None)
    return {
        "seconds": answer.seconds, "strategy": strategy_of(answer), "beyond_operators": lacking(answer), "plan": plan,
        "cost": cost, "bound": answer.bound, "gap": answer.gap, "proven": answer.proven,
        "fixed": {"zero": answer.question.pricing.zero, "cp": 1, "ep": 1, "vpp": 1},
        "cost_model": answer.question.pricing.name, "space": answer.question.space, "method": answer.method,
        "profile": profile_data(answer.question.profile), "diary": answer.diary, "schedule": schedule_of(answer),
        "orders": [order_data(order) for order in answer.orders], "run": {"cpu_seconds": answer.cpu_seconds},
    }  # fmt: skip


def _halves(plan: PerOpPlan, cost: PerOpCost) -> tuple[Plain, Plain]:
    """What is decided, and what that takes."""
    found = stages_of(plan, cost)
    decided, taken = ("ops", "gpus", "layouts", "recompute"), ("seconds", "memory", "ideal", "lost", "spare", "parts")
    return (
        {"microbatches": cost.passes, "stages": [_fields(stage, decided) for stage in found]},
        {"seconds": cost.seconds, "gpu_seconds": cost.gpu_seconds, "stages": [_fields(s, taken) for s in found]},
    )


def _fields(stage: OperatorStage, names: tuple[str, ...]) -> Plain:
    return {name: getattr(stage, name) for name in names}


def written_lines(plan: Plan, operators: Operators) -> Iterator[str]:
    """A per-operator plan as its file has it: what it is, and its bound as far as it holds."""
    count, passes, batch = len(operators.stages), operators.microbatches, plan.strategy.global_batch
    yield (f"{plan.model.name} on {plan.cluster.name}, operator by operator: {count} stage{'s'[: count > 1]}, "
           f"{passes} micro batch{'es'[: 2 * (passes > 1)]} of a global batch of {batch}")  # fmt: skip
    costs = plan.provenance.costs if plan.provenance else "full"
    yield (f"{show_seconds(operators.seconds)} per iteration, {_written_bound(plan, operators)}, under the {costs} "
           f"cost model; order of passes {plan.strategy.schedule}")  # fmt: skip


def _written_bound(plan: Plan, operators: Operators) -> str:
    if stale := ended(plan):
        return f"bound unknown ({stale}; plan again)"
    order = "" if plan.strategy.schedule in {"1f1b", "gpipe"} else _ANY
    fixed = _fixed(operators.zeros or (plan.strategy.zero,), plan.model)
    return f"bound {show_seconds(operators.bound)}{order} of all splits with {fixed}"


def written_stages(operators: Operators) -> Table:
    """Its stages."""
    heads = ("stage", "ops", "GPUs", "tp x dp of its operators", "recompute", "iteration", "memory")
    return heads, [_written(index, stage) for index, stage in enumerate(operators.stages)]


def _written(index: int, stage: OperatorStage) -> tuple[str, ...]:
    counts = Counter(f"{tp} x {dp}" for tp, dp, _ in stage.layouts)
    said = ", ".join(f"{layout} ({count})" if len(counts) > 1 else layout for layout, count in counts.most_common(4))
    return (
        str(index), str(stage.ops), str(stage.gpus), said, str(len(stage.recompute)), show_seconds(stage.seconds),
        show_bytes(stage.memory),
    )  # fmt: skip
