"""What `plan-operators` prints and writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.cli.output import Output
from shardwise.inputs.write import write_text
from shardwise.per_op.advice import megabytes
from shardwise.per_op.answer import OperatorAnswer
from shardwise.per_op.evaluate import PerOpCost, evaluate
from shardwise.per_op.question import OperatorQuestion, PerOpPlan

if TYPE_CHECKING:
    from shardwise.cli.per_op import Setting
    from shardwise.plan.plan import Operators

_HEADS = ("stage", "ops", "GPUs", "tp", "dp", "again", "ms/pass", "iteration s", "memory MB")
_MORE = (
    "compute",
    "again",
    "receive",
    "send",
    "reshard",
    "ideal",
    "lost",
    "weights",
    "states",
    "kept",
    "peak",
    "reserved",
)


def answered(question: OperatorQuestion, answer: OperatorAnswer, output: Output, *, explain: bool) -> None:
    """The plan in a table, its bound, and the diary where asked for."""
    cost = answer.cost
    output.say(f"{cost.seconds:.5f} s per iteration, {question.global_batch / cost.seconds:.2f} samples/s, "
               f"{_batches(question, answer.plan)}, {_stages(answer.plan)} on {question.gpus} GPUs")  # fmt: skip
    output.say(_standing(question, answer))
    _table(answer.plan, cost, output)
    _orders(answer, output)
    if explain:
        _parts(cost, output)
        for line in answer.diary:
            output.say(f"  {line}")
    solved = f"{answer.solved} stage{'' if answer.solved == 1 else 's'} solved"
    output.note(f"{answer.cpu_seconds:.1f} CPU s, {solved}, method {answer.method}")
    for note in answer.notes:
        output.note(note)
    output.answer(as_json(question, answer))


def _orders(answer: OperatorAnswer, output: Output) -> None:
    """The order that was chosen, and its rivals."""
    if not answer.orders:
        return
    chosen = answer.order
    if chosen is not None:
        proof = "no order of these stages is faster" if chosen.gap <= 1e-9 else f"bound {chosen.bound:.5f} s"
        output.say(f"with {chosen.name} these stages take {chosen.seconds:.5f} s by simulation ({proof}); the search "
                   "itself reckoned with 1f1b")  # fmt: skip
    rows = [
        [order.name, f"{order.seconds:.5f}", f"{order.bubble:.2%}", f"{megabytes(max(order.memory)):.2f}",
         "yes" if order.fits else "no"]
        for order in answer.orders
    ]  # fmt: skip
    output.table(("order", "iteration s", "bubble", "memory MB", "fits"), rows)


def _stages(plan: PerOpPlan) -> str:
    return f"{len(plan.stages)} stage{'s' if len(plan.stages) > 1 else ''}"


def _standing(question: OperatorQuestion, answer: OperatorAnswer) -> str:
    model = f"under the {question.pricing.name} cost model"
    if answer.proven:
        return f"proven best of the {question.space} space {model} (bound {answer.bound:.5f} s)"
    ended = "Ctrl-C" if answer.interrupted else "the time limit"
    said = "" if answer.complete else f"; {ended} ended the search: the best so far"
    return f"bound {answer.bound:.5f} s {model}, gap {answer.gap:.2%}{said}"


def _table(plan: PerOpPlan, cost: PerOpCost, output: Output) -> None:
    output.table(_HEADS, [_row(plan, cost, index) for index in range(len(plan.stages))])


def _row(plan: PerOpPlan, cost: PerOpCost, index: int) -> list[str]:
    stage, parts = plan.stages[index], cost.stages[index]
    tps, dps = (sorted({getattr(layout, name) for layout in stage.layouts}) for name in ("tp", "dp"))
    counts = [str(index), str(stage.size), str(stage.gpus), _joined(tps), _joined(dps), str(sum(stage.recompute))]
    memory = f"{megabytes(cost.memory[index]):.2f}"
    return [*counts, f"{1e3 * parts.seconds:.3f}", f"{cost.times[index]:.5f}", memory]


def _joined(values: list[int]) -> str:
    return "/".join(map(str, values))


def _parts(cost: PerOpCost, output: Output) -> None:
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
        rows.append(
            [
                str(index),
                *(f"{1e3 * value:.3f}".replace("-0.000", "0.000") for value in times),
                *(f"{megabytes(v):.1f}" for v in sizes),
            ]
        )
    output.table(("stage", *_MORE), rows, title="ms per pass; MB")


def starts(question: OperatorQuestion, plans: tuple[PerOpPlan, ...], output: Output) -> None:
    """Every start with its stages, as the seed's author printed them; a plan of the user's own likewise."""
    told = []
    for plan in plans:
        cost = evaluate(question, plan)
        said = f"{cost.seconds:.5f} s, {megabytes(max(cost.memory)):.2f} MB, {_batches(question, plan)}"
        fits = "" if cost.fits(question.memory) else " (does not fit)"
        output.say(f"{_stages(plan)}: {said}{fits}")
        _table(plan, cost, output)
        _parts(cost, output)
        told.append({"stages": plan_json(question, plan), "cost": cost_json(cost)})
    output.answer({"starts": told})


def _batches(question: OperatorQuestion, plan: PerOpPlan) -> str:
    count = question.global_batch // plan.micro_batch
    return f"{count} micro batch{'' if count == 1 else 'es'} of {plan.micro_batch} samples"


def plan_json(question: OperatorQuestion, plan: PerOpPlan) -> dict[str, Any]:
    return {
        "microbatches": question.global_batch // plan.micro_batch,
        "stages": [
            {
                "ops": stage.size,
                "gpus": stage.gpus,
                "layouts": [list(layout) for layout in stage.layouts],
                "recompute": [index for index, flag in enumerate(stage.recompute) if flag],
            }
            for stage in plan.stages
        ],
    }


def cost_json(cost: PerOpCost) -> dict[str, Any]:
    return {
        "seconds": cost.seconds,
        "gpu_seconds": cost.gpu_seconds,
        "stages": [
            {"seconds": time, "memory": memory, "ideal": ideal, "lost": lost, "spare": float(spare), "parts": parts}
            for time, memory, ideal, lost, spare, parts in zip(
                cost.times, cost.memory, cost.ideal, cost.lost, cost.spare, cost.stages, strict=True
            )
        ],
    }


def as_json(question: OperatorQuestion, answer: OperatorAnswer) -> dict[str, Any]:
    return {
        "plan": plan_json(question, answer.plan),
        "cost": cost_json(answer.cost),
        "bound": answer.bound,
        "gap": answer.gap,
        "proven": answer.proven,
        "cost_model": question.pricing.name,
        "space": question.space,
        "method": answer.method,
        "profile": {
            "name": question.profile.name,
            "identity": question.profile.identity,
            "tags": question.profile.tags,
        },
        "diary": answer.diary,
        "schedule": answer.order.name if answer.order else question.pricing.schedule,
        "orders": [
            {
                "name": order.name,
                "seconds": order.seconds,
                "memory": order.memory,
                "fits": order.fits,
                "bound": order.bound,
                "bubble": order.bubble,
            }
            for order in answer.orders
        ],
        "run": {"cpu_seconds": answer.cpu_seconds},
    }


def written(
    setting: Setting, question: OperatorQuestion, answer: OperatorAnswer, options: Mapping[str, Any], output: Output
) -> None:
    """The best plans as Aceso's JSON, and the plan file."""
    from shardwise.frameworks.aceso.plan_file import to_aceso
    from shardwise.inputs.serialise import to_json

    if options["aceso"]:
        plans = (answer.plan, *answer.others)[: options["best"]]
        target = Path(options["aceso"])
        for index, plan in enumerate(plans):
            path = target if index == 0 else target.with_stem(f"{target.stem}-{index + 1}")
            write_text(path, to_json(to_aceso(question, plan)))
        if len(plans) < options["best"]:
            output.wrote(f"{len(plans)} of {options['best']} plans were met on the way and written")
    if options["out"]:
        _plan_file(setting, question, answer, options)


def _plan_file(
    setting: Setting, question: OperatorQuestion, answer: OperatorAnswer, options: Mapping[str, Any]
) -> None:
    from dataclasses import replace

    from shardwise.errors import Fault, InputError
    from shardwise.inputs.strategy import Strategy
    from shardwise.plan.file import write_plan
    from shardwise.plan.plan import Plan, ProofPart, Provenance
    from shardwise.plan.proof import proof_of
    from shardwise.version import __version__

    if setting.model is None or setting.cluster is None:  # told by per_op_options before the search
        raise InputError(Fault("--out", "needs MODEL and --cluster"))
    first = answer.plan.stages[0].layouts[0]
    order = answer.order
    # the nearest plain strategy; what the plan really says is in its operators
    strategy = Strategy(
        tp=first.tp,
        pp=len(answer.plan.stages),
        dp=first.dp,
        zero=question.pricing.zero,
        micro_batch=answer.plan.micro_batch // first.dp,
        global_batch=question.global_batch,
        seq=int(seq) if (seq := question.profile.tags.get("seq", "")).isdecimal() else options["seq"],
        schedule=order.name if order else question.pricing.schedule,
    )
    plan = Plan(
        model=setting.model,
        cluster=setting.cluster,
        strategy=strategy,
        order=order.schedule if order and order.name == "auto" else None,
        operators=_operators(question, answer),
        provenance=Provenance(shardwise=__version__, costs=question.pricing.name),
        run={"cpu_seconds": answer.cpu_seconds},
    )
    write_plan(replace(plan, proof=proof_of(plan, [ProofPart(bound=answer.bound)])), options["out"])


def _operators(question: OperatorQuestion, answer: OperatorAnswer) -> Operators:
    """The answer as the plan file holds it."""
    from shardwise.inputs.serialise import to_plain
    from shardwise.inputs.typed import validated
    from shardwise.plan.plan import Operators

    told = as_json(question, answer)
    cost, stages = told["cost"], told["plan"]["stages"]
    data = {
        "names": question.chain.names, "microbatches": told["plan"]["microbatches"],
        "stages": [{**one, **its} for one, its in zip(stages, cost["stages"], strict=True)],
        "seconds": cost["seconds"], "gpu_seconds": cost["gpu_seconds"], "bound": answer.bound, "gap": answer.gap,
        "orders": told["orders"], "profile": told["profile"],
    }  # fmt: skip
    return validated(Operators, to_plain(data))
