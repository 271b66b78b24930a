"""From the options of `balance` to a problem, its answer and what is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from shardwise.cli.balance_pictures import check_pictures, write_pictures
from shardwise.cli.balance_plan import balance_plan, plan_to_balance, write_balanced
from shardwise.cli.output import Output
from shardwise.cli.progress import progress
from shardwise.errors import Fault, InputError
from shardwise.partition.compare import Compared, bubble_of, manual, naive
from shardwise.partition.decompose import Fit
from shardwise.partition.graph import Ready
from shardwise.partition.lists import settled
from shardwise.partition.problem import Answer, Problem
from shardwise.partition.readers.layer_model import LayerModel, load_model, model_of_init, save_model
from shardwise.partition.readers.manual_file import read_manual
from shardwise.partition.readers.peaks import Which, read_peaks
from shardwise.partition.readers.problem_file import RECOMPUTE, make_problem, problem_notes, read_problem
from shardwise.partition.readers.training_file import in_pieces, read_training
from shardwise.partition.solver import solve
from shardwise.report import balance as report

_KEYS = {
    "pp": "pp", "vpp": "vp", "microbatches": "mb", "low_memory": "low_mem", "seq_split": "seq_split",
    "schedule": "schedule", "hop": "hop",
}  # fmt: skip
"""Option -> key of a problem file."""
_DESCRIBES = frozenset({"problem", "init", "model"})
"""Options that say what is balanced; without them a plan does."""
_WITH_PLAN = frozenset({"plan", "write_plan", "memory"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of `balance`."""

    problem: str | None
    init: str | None
    peaks: tuple[str, ...]
    peak: Which
    times: list[float] | None
    model: str | None
    pp: int
    vpp: int
    microbatches: int
    memory: list[float]
    low_memory: bool
    seq_split: int
    train: str | None
    time_limit: float
    naive: bool
    manual: tuple[str, ...]
    schedule: str | None
    hop: float
    empty: str | None
    seed: int
    effort: float
    svg: str | None
    html: str | None
    trace: str | None
    plan: str | None
    write_plan: str | None
    given: frozenset[str] = frozenset()
    """Options that were typed; the others have their defaults."""


def balance(asked: Asked, output: Output) -> int:
    """Solve, compare, print and write; 130 when stopped by Ctrl-C with a best so far."""
    if asked.plan and not asked.given & _DESCRIBES:
        return _of_plan(asked, output)
    problem = the_problem(asked, output)
    plan = plan_to_balance(asked.plan, asked.write_plan, problem)
    if plan is not None and plan.strategy.microbatches != problem.microbatches:
        theirs = f"{plan.strategy.microbatches} in the plan, but {problem.microbatches} in what is balanced"
        output.note(f"micro batches are {theirs}: another split may be best for the plan")
    others = list(_others(asked, problem, output))  # before the solver, so that what is wrong there costs no time
    check_pictures(asked.svg, others)
    with progress("balance", quiet=output.quiet) as state:
        answer = solve(
            problem, seconds=asked.time_limit, effort=asked.effort, seed=asked.seed,
            report=lambda best, bound, looked: state.update(
                evaluated=looked - state.evaluated, best=best, bound=bound or None
            ),
        )  # fmt: skip
    answer = _settled(answer, output)
    compared = [Compared(name="balanced", problem=problem, evaluation=answer.best), *others]
    _say(answer, compared, output)
    write_pictures(asked.svg, asked.html, asked.trace, answer, compared)
    if plan is not None and asked.write_plan:
        write_balanced(plan, asked.write_plan, answer)
    output.markdown(lambda: _markdown(answer, compared))
    output.answer(report.answer_data(answer, compared[1:]))
    return 130 if answer.interrupted else 0


def _of_plan(asked: Asked, output: Output) -> int:
    """The plan says everything but the memory."""
    odd = sorted(asked.given - _WITH_PLAN)
    if odd:
        raise InputError(
            Fault(f"--{odd[0].replace('_', '-')}", "goes with --problem or --init; the plan says it: leave it out")
        )
    limit = min(_limits(replace(asked, pp=len(asked.memory)))) * 1e6 if "memory" in asked.given else None
    return balance_plan(str(asked.plan), asked.write_plan, limit, output)


def the_problem(asked: Asked, output: Output) -> Problem:
    """From a problem file, or from a layer model (an init file or `-m`) and the settings."""
    if asked.problem:
        for name in ("init", "model", "peaks", "times", "train"):
            if getattr(asked, name):
                raise InputError(Fault("--problem", f"and --{name} both describe the model; leave one out"))
        problem = read_problem(asked.problem, _changes(asked))
        for note in problem_notes(asked.problem):
            output.note(f"{asked.problem}: {note}")
        return problem
    data, kinds = _in_pieces(asked, _model(asked, output).data, output)
    return make_problem(
        data, pp=asked.pp, vpp=asked.vpp, microbatches=asked.microbatches, limits=_limits(asked),
        low_memory=asked.low_memory, splits=asked.seq_split, schedule=asked.schedule, hop=asked.hop,
        empty=_empty(asked), name=asked.model or "", kinds=kinds,
    )  # fmt: skip


def _changes(asked: Asked) -> dict[str, Any]:
    """Typed options go before the numbers of a problem file."""
    found = {key: getattr(asked, name) for name, key in _KEYS.items() if name in asked.given}
    if "memory" in asked.given:
        found["mem_limit"] = list(asked.memory)
    if asked.empty is not None:
        words = asked.empty.split(",")
        found["empty_chunks"] = list(map(int, words)) if all(map(_is_count, words)) else asked.empty
    return found


def _in_pieces(asked: Asked, data: dict[str, Any], output: Output) -> tuple[dict[str, Any], list[str] | None]:
    """The layer model when sequences run in pieces, and the recompute kinds that are then left."""
    if asked.seq_split == 1:
        if asked.train:
            output.note("--train changes nothing without -seq 2 or more")
        return data, None
    if asked.train:
        data = in_pieces(data, read_training(asked.train), asked.seq_split)
    else:
        output.note(
            "pieces of a sequence are taken as equal shares of a layer's activations; -train FILE adds the keys and "
            "values that MindFormers holds whole"
        )
    if any(entry.get("memory_recompute") for entry in data["layers_description"]):
        output.note("full recompute is left out with -seq, as SAPP does; a problem file (--problem) may use it")
    return data, [kind for kind in RECOMPUTE if kind != "full"]


def _model(asked: Asked, output: Output) -> LayerModel:
    if asked.init:
        model = model_of_init(asked.init, asked.model or "model", peaks=_peaks(asked), times=_times(asked))
        for note in model.notes:
            output.note(note)
        if model.fit:
            say_fit(model.fit, output)
        if asked.model:
            save_model(model, _model_path(asked.model))
            output.note(f"the layer model is kept in {_model_path(asked.model)}; without --init it is read from there")
        return model
    if asked.model:
        return load_model(_model_path(asked.model))
    raise InputError(
        "nothing to balance: give --plan FILE, --init FILE.yaml, -m MODEL (a layer model kept before) or --problem FILE"
    )


def _peaks(asked: Asked) -> list[dict[int, float]]:
    return [read_peaks(folder, which=asked.peak) for folder in asked.peaks]


def _times(asked: Asked) -> tuple[float, float, float] | None:
    if asked.times is None:
        return None
    if len(asked.times) != 3:
        said = f"has {len(asked.times)} numbers; write forward times of head, body layer and tail: 0.06,3.1,3.5"
        raise InputError(Fault("--times", said))
    head, body, tail = asked.times
    return head, body, tail


def _model_path(name: str) -> str:
    return name if name.endswith(".json") else f"{name}.json"


def _limits(asked: Asked) -> tuple[float, ...]:
    if len(asked.memory) not in {1, asked.pp}:
        raise InputError(
            Fault("--memory", f"has {len(asked.memory)} numbers; write one, or one for each of {asked.pp} stages")
        )
    return tuple(asked.memory)


def _empty(asked: Asked) -> tuple[int, ...]:
    chunks = asked.pp * asked.vpp
    if asked.empty is None:
        return ()
    if asked.empty == "ends":
        return (0, chunks - 1)
    if asked.empty == "any":
        return tuple(range(chunks))
    if not all(_is_count(word) and int(word) < chunks for word in asked.empty.split(",")):
        raise InputError(
            Fault("--empty", f"is {asked.empty!r}; write ends, any, or chunks from 0 to {chunks - 1}: 0,7")
        )
    return tuple(int(word) for word in asked.empty.split(","))


def _is_count(word: str) -> bool:
    return word.strip().isascii() and word.strip().isdecimal() and len(word) < 10


def say_fit(fit: Fit, output: Output) -> None:
    output.table(["part of memory", "MB", "+-"], report.fit_rows(fit))
    output.table(["stage", "layers", "measured", "residual", ""], report.residual_rows(fit))
    output.say(f"residual {fit.rms:,.0f} rms, condition {fit.condition:.1f}")
    output.say()


def _settled(answer: Answer, output: Output) -> Answer:
    """MindFormers cannot run select alone and comm alone in one chunk: show what it will run."""
    if not report.has_lists(answer.problem):
        return answer
    same = settled(answer.problem, answer.best.partition)
    if same == answer.best.partition:
        return answer
    ready = Ready(answer.problem)
    best = ready.evaluate(ready.matrix(same))
    if best.fits and best.simulated <= answer.simulated * (1 + 1e-9):
        return replace(answer, best=best)
    output.note(
        "some chunks mix select alone and comm alone, which MindFormers' lists cannot say; they say both and none"
    )
    return answer


def _others(asked: Asked, problem: Problem, output: Output) -> Iterator[Compared]:
    if asked.naive:
        found, notes = naive(problem)
        for note in notes:
            output.note(note)
        yield from found
    for path in asked.manual:
        read = read_manual(path, pp=problem.pp, layers=problem.layers, vpp=problem.vpp)
        try:
            yield from manual(problem, read)
        except InputError as error:
            raise InputError(error.faults, title=path) from None


def _say(answer: Answer, compared: list[Compared], output: Output) -> None:
    problem = answer.problem
    heads, rows = report.plan_rows(problem, answer.best)
    output.table(heads, rows)
    output.say()
    said = "proven optimal" if answer.proven else f"gap {100 * answer.gap:.2f}%"
    output.say(f"simulated {answer.simulated:,.4f}, bound {answer.bound:,.4f}: {said} under these costs and this order")
    output.say(f"{answer.evaluations:,} partitions looked at in {answer.seconds:.1f} CPU s; bound by {answer.method}")
    if problem.order is None and answer.best.timeline.schedule.name != problem.schedule:
        used = answer.best.timeline.schedule.name
        output.note(f"{problem.schedule} would stop with {problem.microbatches} micro batches: {used} was used")
    if answer.out_of_time:
        output.note("the time limit cut the proof short: another machine may give another bound")
    if answer.interrupted:
        output.note("interrupted: this is the best so far")
    output.say(f"bubble {bubble_of(problem, answer.best)}")
    if report.has_lists(problem):
        output.say("to paste into MindFormers' YAML:")
        output.say(report.paste_block(problem, answer.best))
    if problem.rank_of == tuple(chunk % problem.pp for chunk in range(problem.chunks)):
        from shardwise.frameworks.megatron.write import layout

        output.say(f"Megatron --pipeline-model-parallel-layout {layout(answer.best.partition.layers)}")
    if len(compared) > 1:
        output.say()
        output.table(*report.compared_rows(compared))


def _markdown(answer: Answer, compared: list[Compared]) -> str:
    from shardwise.report.markdown_pipeline import balance_markdown

    return balance_markdown(answer, compared[1:] and compared)
