"""`shardwise plan` over whole strategies: reads the options, follows the search, says the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardwise.cli.output import Output
from shardwise.cli.progress import Progress, progress
from shardwise.cli.report_files import Reports, write_reports
from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.units import show_bytes, show_percent, show_seconds

if TYPE_CHECKING:
    from shardwise.search.question import Answer, Candidate
    from shardwise.search.search import Search


def run(options: Mapping[str, Any], output: Output, typed: frozenset[str]) -> int:
    """Search, say the answer, write the plan."""
    given = from_plan(options, typed)
    options = {**options, **given}
    _refuse(options)
    from shardwise.api import plan
    from shardwise.search.api import plan_file_of

    with progress("strategies", quiet=output.quiet, show=show_seconds) as state:
        answer: Answer = plan(
            options["model"],
            options["cluster"],
            global_batch=options["global_batch"],
            seq=options["seq"],
            runtime=options["runtime"],
            only=" ".join([*options["only"], *options["fix"]]),
            memory_margin=_margin(options),
            base=options.get("base"),
            gap=options["gap"],
            time_limit=options["time_limit"],
            workers=options["workers"],
            executor=options["executor"],
            address=options["address"],
            report=lambda search: follow(search, state),
        )
    if answer.best is None:
        return _nothing(answer, output)
    found = plan_file_of(answer)
    _say(answer, output, options["top"], explain=options["explain"])
    from shardwise.plan.file import plan_table, write_plan

    if output.json:
        output.answer({**plan_table(found), "top": [_row(one) for one in answer.top[: options["top"]]]})
    output.markdown(lambda: _markdown(answer, options["top"]))
    reports = Reports(html=options["html"], svg=options["svg"], trace=options["trace"])
    write_reports(found, reports, answer.simulated)
    if options["out"]:
        write_plan(found, options["out"])
        output.wrote(f"the plan is in {options['out']}")
    return 130 if answer.interrupted else 0


def _markdown(answer: Answer, top: int) -> str:
    from shardwise.report.markdown import answer_markdown

    return answer_markdown(answer, top)


def from_plan(options: Mapping[str, Any], typed: frozenset[str]) -> dict[str, Any]:
    """Where a plan file stands in place of a model: its model, cluster, batch and the like, unless they are typed."""
    from shardwise.plan.file import is_plan, read_plan
    from shardwise.search.what_if import margin_of

    if not options["model"] or not is_plan(options["model"]):
        return {}
    read = read_plan(options["model"])
    s = read.strategy
    found = {"cluster": read.cluster, "global_batch": s.global_batch, "seq": s.seq, "runtime": s.runtime}
    kept = {name: value for name, value in found.items() if name not in typed}
    if "cluster" in kept and "memory_margin" not in typed:
        kept["memory_margin"] = margin_of(read)
    return {**kept, "model": read.model, "base": s}


def _refuse(options: Mapping[str, Any]) -> None:
    from shardwise.frameworks.load import read_model

    if options["cluster"] is None and isinstance(options["model"], str):
        read_model(options["model"])  # a name or a file that is not there is the first thing to say
    faults = [
        Fault(name, f"is missing; {hint}")
        for name, key, hint in (
            ("MODEL", "model", "name one (see `shardwise models`) or give a file"),
            ("--cluster", "cluster", "give for example 64xh100 (see `shardwise clusters`)"),
        )
        if options[key] is None
    ]
    if faults:
        raise InputError(faults)


def _margin(options: Mapping[str, Any]) -> float | None:
    if options["memory"] is None:
        margin: float | None = options["memory_margin"]
        return margin
    from shardwise.frameworks.load import load_cluster
    from shardwise.inputs.gate import typed
    from shardwise.inputs.scalars import SCALARS

    machines = options["cluster"]
    machines = load_cluster(machines) if isinstance(machines, str) else machines
    return float(machines.gpu.memory - typed(options["memory"], SCALARS["Gpu.memory"], "--memory"))


def follow(search: Search, state: Progress) -> None:
    """Hand the search's state to the progress line."""
    state.evaluated = search.points
    state.pruned = search.pruned
    state.update(evaluated=0, best=search.best.seconds if search.best else None, bound=search.bound)


def _say(answer: Answer, output: Output, top: int, *, explain: bool) -> None:
    from shardwise.report import estimate as report

    best, question = answer.best, answer.question
    assert best is not None  # noqa: S101 - for the type checker
    if not output.prints:
        return
    state = "" if answer.finished else " (the best so far: the search was stopped)"
    output.say(f"{question.model.name} on {question.cluster.name} with {question.runtime.base}{state}")
    output.say()
    output.say(f"{'best':<14}{best.strategy}")
    counts = [(name, f"{text}; {answer.cpu_seconds:.1f} CPU s") for name, text in report.searched(answer.counts)]
    output.facts([*report.summary(best), ("proof", _proof(answer)), *counts])
    output.say()
    output.table(*report.stages(best))
    others = answer.top[1:top]
    if others:
        output.say("\nthe best of every layout that was simulated")
        output.table(*_table(answer.top[:top]))
    if explain:
        _explain(answer, output)


def _explain(answer: Answer, output: Output) -> None:
    from shardwise.report import estimate as report
    from shardwise.search.question import COVERED

    assert answer.best is not None  # noqa: S101 - for the type checker
    output.say("\nwhere the time goes (on the busiest pipeline rank)")
    output.table(*report.time(answer.best))
    output.say(f"\nwhat the bound covers: {COVERED}")
    output.say("\nstrategies of the space by axis")
    rows = [(axis, ", ".join(f"{value}: {n:,}" for value, n in found.items())) for axis, found in _axes(answer)]
    for axis, text in rows:
        output.say(f"{axis:<11}{text}")


def _axes(answer: Answer) -> list[tuple[str, Mapping[str, int]]]:
    return [(axis, found) for axis, found in answer.counts.axes.items() if len(found) > 1]


def _proof(answer: Answer) -> str:
    text = f"no strategy of the space takes less than {show_seconds(answer.bound)}: gap {show_percent(answer.gap, 2)}"
    return f"{text} (under the cost model in use; --explain says what the space is)"


def _table(candidates: tuple[Candidate, ...]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    fastest = candidates[0].seconds
    rows: list[tuple[str, ...]] = [
        (str(one.strategy), show_seconds(one.seconds), f"{one.seconds / fastest - 1:+.1%}", show_percent(one.mfu),
         show_bytes(one.total_bytes))
        for one in candidates
    ]  # fmt: skip
    return ("strategy", "iteration", "slower", "MFU", "memory"), rows


def _row(candidate: Candidate) -> dict[str, object]:
    return {
        "strategy": str(candidate.strategy), "iteration_seconds": candidate.seconds, "mfu": candidate.mfu,
        "total_bytes": candidate.total_bytes,
    }  # fmt: skip


def _nothing(answer: Answer, output: Output) -> int:
    """Nothing fits: by how much, and what would."""
    near, question = answer.closest, answer.question
    from shardwise.search.nothing_fits import why_empty

    output.answer({"fits": False, "closest": near, "search": answer.counts})
    if answer.interrupted:
        raise KeyboardInterrupt
    if not answer.finished:
        raise InfeasibleError("stopped before any strategy was found that fits; give it more time")
    if not answer.counts.strategies:
        raise InfeasibleError(why_empty(question))
    raise InfeasibleError(_message(answer))


def _message(answer: Answer) -> str:
    near, question = answer.closest, answer.question
    text = f"none of {answer.counts.strategies:,} strategies fits {question.model.name} on {question.cluster.name}"
    if near is None:
        return text
    text += f"; the closest lacks {show_bytes(near.missing)} on its fullest rank:\n  {near.strategy}"
    if near.gpus:
        gpu = question.cluster.gpu.name
        least = f"the smallest number of these GPUs for which one fits is {near.gpus} ({near.gpus}x{gpu})"
        return f"{text}\n{least}:\n  {near.at_gpus}"
    return f"{text}\nno number of these GPUs that was tried is enough; shorten the sequence or use larger GPUs"
