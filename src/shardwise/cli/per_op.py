"""`shardwise plan-operators`: from options to a question, and from an answer to text and files."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwise.cli.output import Output
from shardwise.cli.per_op_options import (
    contradictions,
    is_measured,
    other_length,
    read_measured,
    refuse_other_layers,
    write_request,
)
from shardwise.cli.progress import Progress
from shardwise.errors import Fault, InputError
from shardwise.frameworks.aceso.pricing import Aceso, room
from shardwise.frameworks.aceso.rules import full_rule
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.gate import counted, listed, typed
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import Strategy, Zero
from shardwise.per_op.advice import KNOWN, dimensions, measured_factor, unsupported, warnings
from shardwise.per_op.answer import OperatorAnswer
from shardwise.per_op.chain import Chain, chain_of, own_chain
from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.profiles.analytic import make_profile
from shardwise.per_op.profiles.table import MB, Profile
from shardwise.per_op.question import OperatorQuestion, PerOpPlan, Pricing
from shardwise.search.api import memory_limit
from shardwise.units import show_seconds

Options = Mapping[str, Any]
MOST_GPUS = 1024
ASSUMED = "a100-80gb"
"""GPUs of a profile that comes without a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What was asked, resolved."""

    question: OperatorQuestion
    model: Model | None
    cluster: Cluster | None
    notes: tuple[str, ...]


def run(options: Options, output: Output, typed: frozenset[str] = frozenset()) -> int:
    """Answer the question of the options; the exit code. `typed`: those that are not defaults."""
    from shardwise.cli import per_op_report as report

    if faults := contradictions(options):
        raise InputError(faults)
    if options["write_operators"]:
        return write_request(options, _micro_batches(options), output)
    setting = resolve(options, typed)
    for note in setting.notes:
        output.note(note)
    if options["save_profiles"]:
        from shardwise.frameworks.aceso.write_profile import write_profile

        write_profile(setting.question.profile, options["save_profiles"])
    if options["show_start"]:
        report.starts(setting.question, _starts(options, setting.question), output)
        return 0
    question, starts = setting.question, _starts(options, setting.question)
    if options["measured_memory"]:
        question = _corrected(options, question, starts, output)
    answer = _ordered(options, question, _solved(options, question, starts, output))
    report.answered(question, answer, output, explain=options["explain"])
    report.written(setting, question, answer, options, output)
    return 130 if answer.interrupted else 0


def _solved(
    options: Options, question: OperatorQuestion, starts: tuple[PerOpPlan, ...], output: Output
) -> OperatorAnswer:
    """Search, followed by a line on a terminal; Ctrl-C keeps the best so far."""
    from shardwise.per_op.alleviate import HopBudget
    from shardwise.per_op.answer import Standing
    from shardwise.per_op.solve import solve
    from shardwise.search.executor import executor_of

    budget = HopBudget(hops=options["hops"], trials=options["trials"])
    limit = float("inf") if options["time_limit"] is None else options["time_limit"]
    executor = executor_of(options["executor"], options["workers"], options["address"])
    state = Progress(title="stages", show=show_seconds, live=not output.quiet and sys.stderr.isatty())

    def follow(standing: Standing) -> None:
        state.evaluated = standing.solved
        state.update(evaluated=0, best=standing.best, bound=standing.bound or None)

    try:
        return solve(
            question, options["method"], starts=starts, budget=budget, limit=limit, more=options["best"],
            executor=executor, report=follow,
        )  # fmt: skip
    finally:
        state.close()
        executor.close()


def _ordered(options: Options, question: OperatorQuestion, answer: OperatorAnswer) -> OperatorAnswer:
    """The last step: the order of passes, by simulation of the plans that were found."""
    name = options["schedule"]
    if name in {"1f1b", "gpipe"} and not (options["explain"] and len(answer.plan.stages) > 1):
        return answer
    from shardwise.per_op.orders import CHOICES, ordered

    names = CHOICES if name in {"1f1b", "auto"} else tuple(dict.fromkeys(("1f1b", name)))
    return ordered(question, answer, names, choose="" if name in {"1f1b", "gpipe"} else name)


def resolve(options: Options, typed: frozenset[str] = frozenset()) -> Setting:
    """Profile, chain, GPUs and limits; raises InputError with all faults."""
    faults: list[Fault] = []
    model = load_model(options["model"]) if options["model"] else None
    cluster = load_cluster(options["cluster"]) if options["cluster"] else None
    profile, chain, notes = _profiled(options, model, cluster)
    gpus = options["gpus"] or (cluster.gpus if cluster else 0)
    runtime = _runtime(options)
    node = options["gpus_per_node"] or (cluster.node_size if cluster else 8)
    if not gpus and options["gpus"] is None:
        faults.append(Fault("--gpus", "is missing; give the number of GPUs, or --cluster"))
    memory = _memory(options, cluster, runtime, faults)
    pricing, told = _pricing(options, model, cluster, runtime, profile, chain, max(gpus, 1))
    notes += told
    question = OperatorQuestion(
        profile=profile,
        chain=chain,
        gpus=max(gpus, 1),
        node=max(1, min(node, max(gpus, 1))) if not options["compatible"] else max(1, node),
        memory=memory,
        global_batch=options["global_batch"],
        pricing=pricing,
        micro_batches=_sizes(options, faults),
        stages=_stage_range(options["stages"], faults) if pricing.zero < 2 else (1, 1),
        most_tp=options["most_tp"],
        space="compatible" if options["compatible_space"] or options["compatible"] else "full",
    )
    faults += _checked(question)
    faults += other_length(options, typed, profile) if options["profiles"] and not is_measured(options) else []
    if faults:
        raise InputError(faults)
    notes += [*warnings(profile, _pairs(options["runs_with"], faults))]
    notes += [*unsupported(model)] if model and options["aceso"] else []
    if faults:
        raise InputError(faults)
    return Setting(question=question, model=model, cluster=cluster, notes=tuple(notes))


def _profiled(options: Options, model: Model | None, cluster: Cluster | None) -> tuple[Profile, Chain, list[str]]:
    if is_measured(options):
        profile = read_measured(options, model, cluster)
        return profile, own_chain(profile), list(profile.notes)
    if options["profiles"]:
        from shardwise.frameworks.aceso.read_profile import read_profile

        profile = read_profile(options["profiles"], options["profile"] or "")
        if profile.runs:
            refuse_other_layers(options, model, profile)
            return profile, own_chain(profile), list(profile.notes)
        words = tuple(options["layer_ops"].split(",")) if options["layer_ops"] else None
        if words is not None and len(words) != 2:
            raise InputError(
                Fault("--layer-ops", f"{options['layer_ops']!r}: write the first and the last, FIRST,LAST")
            )
        return profile, chain_of(profile, _layers(options, model, profile), words), list(profile.notes)
    if model is None or cluster is None:
        raise InputError(
            Fault("--profiles", "is missing; give a folder of operator profiles, or MODEL and --cluster to make one")
        )
    profile = make_profile(model, cluster, _runtime(options), seq=options["seq"])
    return profile, own_chain(profile), list(profile.notes)


def _layers(options: Options, model: Model | None, profile: Profile) -> int:
    known = dimensions(profile) if profile.name in KNOWN or "layers" in profile.tags else None
    layers = options["layers"] or (model.layers if model else 0) or (known.layers if known else 0)
    if not layers and not profile.name.startswith("resnet"):
        raise InputError(Fault("--layers", f"is missing; how many layers has {profile.name}?"))
    return int(layers)


def _memory(options: Options, cluster: Cluster | None, runtime: Runtime, faults: list[Fault]) -> float:
    if options["memory"]:
        text = options["memory"]
        try:
            bare = re.fullmatch(r"[0-9.]+", text.strip())
            return typed(f"{text}MiB" if bare else text, SCALARS["option.room"], "--memory")
        except InputError as error:
            faults += error.faults
            return MB
    if cluster is not None:
        return room(cluster.gpu) if options["compatible"] else memory_limit(cluster, runtime)
    faults.append(Fault("--memory", "is missing; say what one GPU may use, such as 28000MiB, or give --cluster"))
    return MB


def _runtime(options: Options) -> Runtime:
    found, overlap = load_runtime(options.get("runtime") or "megatron"), options["p2p_overlap"]
    return found if overlap is None else replace(found, overlap=replace(found.overlap, p2p=overlap))


def _pricing(
    options: Options, model: Model | None, cluster: Cluster | None, runtime: Runtime, profile: Profile, chain: Chain,
    gpus: int,
) -> tuple[Pricing, list[str]]:  # fmt: skip
    """The cost model that is asked for, and what should be known of it."""
    if options["compatible"]:
        return Aceso(), []
    from shardwise.per_op.operators import OperatorPricing
    from shardwise.per_op.profiled import Profiled

    shape, tag = dimensions(profile), profile.tags.get("seq", "")
    schedule = "gpipe" if options["schedule"] == "gpipe" else "1f1b"
    zero: Zero = 1 if options["zero"] is None else options["zero"]
    seq = int(tag) if tag.isdecimal() else shape.seq if shape else options["seq"]
    base = Strategy(seq=seq, zero=zero, schedule=schedule, runtime=runtime.name)
    if is_measured(options) and model is None:
        model = load_model(profile.name)
    ours = not options["profiles"] or profile.tags.get("source") in {"analytic", "measured"}
    if model is not None and cluster is not None and ours:
        made = OperatorPricing(model, cluster, runtime, base, profile if options["profiles"] else None)
        if len(made.of_row) == len(profile.ops):
            return made, []
    notes = [] if cluster else [f"there is no --cluster: the update and what lasts are reckoned for {ASSUMED} GPUs"]
    known = cluster or load_cluster(f"{gpus}x{ASSUMED}")
    rules = tuple(full_rule(name) for name in profile.ops)
    return Profiled(profile, rules, chain.layers, known, runtime, replace(base, sp=False)), notes


def _sizes(options: Options, faults: list[Fault]) -> tuple[int, ...]:
    """Samples of a micro batch, all replicas together, from how many micro batches there are."""
    counts, batch = _numbers("--microbatches", options["microbatches"], faults), options["global_batch"]
    faults += [
        Fault("--microbatches", f"{count} does not divide the global batch {batch}; use a divisor")
        for count in counts
        if batch % count
    ][:1]
    return tuple(max(1, batch // count) for count in counts)


def _numbers(flag: str, text: str | None, faults: list[Fault]) -> tuple[int, ...]:
    try:
        return tuple(map(int, listed(text, SCALARS["Strategy.micro_batch"], flag))) if text else ()
    except InputError as error:
        faults += [Fault(flag, f"{fault.message}; write for example 1,2,4") for fault in error.faults]
        return ()


def _micro_batches(options: Options) -> tuple[int, ...]:
    faults: list[Fault] = []
    found = _numbers("--micro-batch", options["micro_batch"], faults)
    if faults:
        raise InputError(faults)
    return found


def _stage_range(text: str | None, faults: list[Fault]) -> tuple[int, int]:
    if not text:
        return 1, 0
    low, _, high = text.partition("-")
    try:
        least, most = (counted(part, SCALARS["Strategy.pp"], "--stages") for part in (low, high or low))
    except InputError:
        least, most = 1, 0
    if least > most:
        faults.append(Fault("--stages", f"{text!r}: write a number, or the fewest and the most such as 2-8"))
    return least, most


def _pairs(text: str | None, faults: list[Fault]) -> dict[str, str]:
    words = [word.strip().partition("=") for word in text.split(",")] if text else []
    if not all(key and equals and value for key, equals, value in words):
        faults.append(Fault("--runs-with", f"{text!r}: write KEY=VALUE, such as attention=plain"))
        return {}
    return {key: value for key, _, value in words}


def _checked(question: OperatorQuestion) -> list[Fault]:
    found = []
    if question.gpus > MOST_GPUS:
        said = f"{question.gpus:,} GPUs; operators are planned for up to {MOST_GPUS:,}"
        found.append(Fault("--gpus", f"{said}: use `shardwise plan` there"))
    if not len(question.stage_range):
        most = min(question.gpus, len(question.chain.rows))
        found.append(Fault("--stages", f"no number of stages is left: {question.gpus} GPUs allow 1 to {most}"))
    return found


def _starts(options: Options, question: OperatorQuestion) -> tuple[PerOpPlan, ...]:
    """Starts of alleviate, or to be shown: a kind for every number of stages, or the user's own plan."""
    from shardwise.per_op.alleviate import starts_of
    from shardwise.per_op.start import STARTS

    kind = options["start"]
    if kind is None or kind in STARTS:
        return starts_of(question, kind or "balanced")
    if not Path(kind).is_file():
        raise InputError(Fault("--start", f"{kind!r} is neither {', '.join(STARTS)} nor a file"))
    return (read_start(kind, question),)


def read_start(path: str, question: OperatorQuestion) -> PerOpPlan:
    from shardwise.frameworks.aceso.plan_file import from_aceso
    from shardwise.inputs.files import read_mapping

    return from_aceso(read_mapping(path), question, title=path)


def _corrected(
    options: Options, question: OperatorQuestion, starts: tuple[PerOpPlan, ...], output: Output
) -> OperatorQuestion:
    if not options["start"] or len(starts) != 1:
        raise InputError(Fault("--measured-memory", "needs the plan that was run: give its file as --start"))
    factor, told = measured_factor(options["measured_memory"], evaluate(question, starts[0]))
    for sentence in told:
        output.note(sentence)
    output.note(f"all predictions of memory are multiplied by {factor:.3f}, and the search is repeated")
    return replace(question, memory_factor=factor)
