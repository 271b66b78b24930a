"""From what is asked of `plan-operators` to its question: profiles read or made, limits, and all faults at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardwise.check.check import refuse_unsound
from shardwise.check.runtime import asked_sharding
from shardwise.check.values import value_faults
from shardwise.errors import Fault, InputError
from shardwise.frameworks.aceso.names import compatible_facts, full_facts
from shardwise.frameworks.aceso.plan_file import from_aceso
from shardwise.frameworks.aceso.pricing import Aceso, room
from shardwise.frameworks.aceso.read_profile import read_profile
from shardwise.frameworks.aceso.shapes import known_layers
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.files import read_mapping
from shardwise.inputs.gate import counted, fits, held, listed, wrong
from shardwise.inputs.load import resized
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import Strategy, Zero
from shardwise.per_op.advice import dimensions, measured_memory, warnings
from shardwise.per_op.alleviate import starts_of
from shardwise.per_op.chain import Chain, chain_of, own_chain
from shardwise.per_op.evaluate import evaluate
from shardwise.per_op.operators import OperatorPricing
from shardwise.per_op.orders import CHOICES, ORDER, order_faults
from shardwise.per_op.profiled import Profiled, dtype_of
from shardwise.per_op.profiles.analytic import make_profile
from shardwise.per_op.profiles.facts import OperatorFacts
from shardwise.per_op.profiles.operators import measured_profile, read_operators
from shardwise.per_op.profiles.request import operator_request
from shardwise.per_op.profiles.table import MB, Profile
from shardwise.per_op.question import OperatorQuestion, PerOpPlan, Pricing
from shardwise.per_op.solve import METHODS
from shardwise.per_op.start import STARTS
from shardwise.search.api import memory_limit
from shardwise.units import show_bytes

MOST_GPUS = 1024
ASSUMED = "a100-80gb"
"""GPUs of a profile that comes without a cluster."""
ROOM = 1e-3
"""Share of what was too much that is left free beside it."""
SEQ = 4096
"""Tokens of a sample where neither the call nor a profile says it."""
_ASKED = {
    "zero": "Strategy.zero", "gpus": "Cluster.gpus", "gpus_per_node": "Cluster.gpus", "layers": "Model.layers",
    "most_tp": "option.none", "p2p_overlap": "option.share",
}  # fmt: skip
_SEARCHED = {
    "hops": "option.steps", "trials": "option.steps", "best": "option.best", "time_limit": "option.seconds",
}  # fmt: skip
"""Options that are one number, and the rows of the table that they are read against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """What is asked, as `api.plan_operators` explains it; texts as a person types them, or what they stand for."""

    model: Model | None
    cluster: Cluster | None
    global_batch: int
    seq: int | None
    runtime: Runtime
    profiles: str | None
    profile: str | None
    layers: int | None
    layer_ops: str | tuple[str, ...] | None
    runs_with: str | Mapping[str, str] | None
    gpus: int | None
    gpus_per_node: int | None
    memory: float | str | None
    microbatches: str | Sequence[int] | None
    stages: str | tuple[int, int] | None
    most_tp: int
    compatible: bool
    compatible_space: bool
    zero: Zero | None
    schedule: str | None
    p2p_overlap: float | None
    operators_only: bool = False
    start: str | None = None
    """A plan in Aceso's JSON says how many layers it is of, where nothing else does."""


def question_of(given: OperatorOptions) -> OperatorQuestion:
    """Profile, chain, GPUs, limits and cost model; raises InputError with all faults."""
    if faults := [*_unreadable(given)] or [*_contradictions(given)]:
        raise InputError(faults)
    if given.p2p_overlap is not None:
        overlap = replace(given.runtime.overlap, p2p=given.p2p_overlap)
        given = replace(given, runtime=replace(given.runtime, overlap=overlap))
    if given.cluster is not None and given.gpus is not None:
        given = replace(given, cluster=resized(given.cluster, given.gpus))
    given, profile, chain = _profiled(given)
    cluster, seq = given.cluster, _length(given, profile)
    gpus = given.gpus if given.gpus is not None else cluster.gpus if cluster else 0
    node = given.gpus_per_node or (cluster.node_size if cluster else 8)
    if gpus < 1:
        faults.append(Fault("--gpus", "is missing; give the number of GPUs, or --cluster"))
    memory = _memory(given, faults)
    pricing, told = _pricing(given, profile, chain, max(gpus, 1), seq, _zero(given))
    question = OperatorQuestion(
        profile=profile, chain=chain, gpus=max(gpus, 1), memory=memory, global_batch=given.global_batch,
        node=max(1, node if given.compatible else min(node, gpus)), pricing=pricing,
        sample_counts=_sizes(given, faults), most_tp=given.most_tp,
        stages=_stage_range(given.stages, faults) if pricing.zero < 2 else (1, 1),
        space="compatible" if given.compatible_space or given.compatible else "full",
        model=given.model, cluster=cluster, seq=seq, runtime=given.runtime, only=_conditions(given),
    )  # fmt: skip
    faults += [*_refused(question), *order_faults(question, given.schedule or ORDER), *_other_length(given, profile)]
    if faults:
        raise InputError(faults)
    if _searches_zero(given, question):
        other, _ = _pricing(given, profile, chain, question.gpus, seq, 2)
        zeros = (pricing.zero, 2)
        question = replace(question, also=(replace(question, pricing=other, stages=(1, 1), zeros=zeros),), zeros=zeros)
    return replace(
        question, notes=(*profile.notes, *told, *warnings(profile, full_facts(profile), _pairs(given.runs_with)))
    )


def _searches_zero(given: OperatorOptions, question: OperatorQuestion) -> bool:
    """Whether sharded gradients are a choice: nobody said which ZeRO stage, and one stage may be the plan."""
    choice = given.zero is None and not given.compatible and 2 in given.runtime.can.zero
    return choice and question.pricing.zero < 2 and question.gpus > 1 and question.stage_range[0] == 1


def _unreadable(given: OperatorOptions) -> Iterator[Fault]:
    """Numbers that are none, or that nobody means."""
    yield from _number_faults({name: getattr(given, name) for name in _ASKED})


def _number_faults(values: Mapping[str, object]) -> Iterator[Fault]:
    for name, value in values.items():
        if value is not None and (why := wrong(value, SCALARS[_ASKED.get(name) or _SEARCHED[name]])):
            yield Fault("--" + name.replace("_", "-"), why)


def refuse_search(question: OperatorQuestion, schedule: str | None, method: str, **numbers: object) -> None:
    """Raise what is wrong with how a search is to go."""
    faults = [*order_faults(question, schedule or ORDER), *_number_faults(numbers)]
    if method not in METHODS:
        faults.append(Fault("--method", f"{method!r} is no way to search; choose {', '.join(METHODS)}"))
    if faults:
        raise InputError(faults)


def _contradictions(given: OperatorOptions) -> Iterator[Fault]:
    """What cannot be followed is said before the search, never passed over in silence."""
    against = {
        "--zero": bool(given.zero), "--p2p-overlap": bool(given.p2p_overlap), "--schedule": given.schedule == "gpipe",
    }  # fmt: skip
    why = "is not part of Aceso's cost model; leave out it or --compatible (--compatible-space keeps the space)"
    yield from (Fault(flag, why) for flag, wrong in against.items() if wrong and given.compatible)
    if not given.compatible:
        yield from asked_sharding(_zero(given), given.runtime)
    if given.zero == 3:
        yield Fault("--zero", "3 gathers whole layers, whose operators then have one split: use `shardwise plan`")
    if _zero(given) == 2 and given.stages not in (None, "1", (1, 1)):
        why = "2 reduces gradients after every micro batch: one stage only; use 1, or leave out --stages"
        yield Fault("--zero", why)
    if given.model and given.model.traced:
        yield Fault("MODEL", "is a traced module, whose operators are not split; use `shardwise plan`")
    if given.model and (given.model.towers or given.model.stem or not given.model.causal):
        yield Fault("MODEL", "is no decoder of text alone, whose operators are known here; use `shardwise plan`")
    if given.schedule is not None and given.schedule not in CHOICES:
        yield Fault("--schedule", f"{given.schedule!r} is no order of these passes; choose {', '.join(CHOICES)}")
    seq = SEQ if given.seq is None else given.seq
    yield from value_faults(Strategy(global_batch=given.global_batch, seq=seq), "strategy")


def _profiled(given: OperatorOptions) -> tuple[OperatorOptions, Profile, Chain]:
    """The operators and how they follow one another; the options with the model that measured operators are of."""
    if given.profiles and given.profiles.endswith(".json"):  # what the probe has written
        model, profile = _read_measured(given, given.profiles)
        return replace(given, model=model), profile, own_chain(profile)
    if given.profiles:
        profile = read_profile(given.profiles, given.profile or "")
        if profile.runs:
            _refuse_other_layers(given, profile)
            return given, profile, own_chain(profile)
        ops = given.layer_ops
        words = tuple(ops.split(",")) if isinstance(ops, str) else ops
        if words is not None and len(words) != 2:
            raise InputError(Fault("--layer-ops", f"{ops!r}: write the first and the last, FIRST,LAST"))
        return given, profile, chain_of(profile, _layers(given, profile), words)
    if given.model is None or given.cluster is None:
        raise InputError(
            Fault("--profiles", "is missing; give a folder of operator profiles, or MODEL and --cluster to make one")
        )
    refuse_unsound(given.model, given.cluster, given.runtime, Strategy(seq=given.seq or SEQ))
    profile = make_profile(given.model, given.cluster, given.runtime, seq=given.seq or SEQ)
    return given, profile, own_chain(profile)


def _read_measured(given: OperatorOptions, path: str) -> tuple[Model, Profile]:
    if given.cluster is None:
        raise InputError(Fault("--cluster", "is missing; measured operators take their collectives from it"))
    data = read_operators(path)
    model, seq = given.model or load_model(data["model"]), data["seq"]
    if model.name != data["model"]:
        raise InputError(Fault("MODEL", f"is {model.name}, {path} was measured for {data['model']}"))
    if given.seq not in {None, seq}:
        said = f"is {given.seq}, the operators were measured at {seq}"
        raise InputError(Fault("--seq", f"{said}: times and memory would not hold; measure them at {given.seq}"))
    refuse_unsound(model, given.cluster, given.runtime, Strategy(seq=seq))
    return model, measured_profile(data, model, given.cluster, given.runtime, title=path)


def to_measure(
    model: Model, cluster: Cluster, runtime: Runtime, seq: int | None, micro_batches: str | Sequence[int] | None
) -> dict[str, object]:
    """What `probe --operators` should measure."""
    sizes = _numbers("--micro-batch", micro_batches)
    refuse_unsound(model, cluster, runtime, Strategy(seq=seq or SEQ))
    return operator_request(model, cluster, runtime, seq=seq or SEQ, micro_batches=sizes)


def _refuse_other_layers(given: OperatorOptions, profile: Profile) -> None:
    """A profile that says itself how its layers follow one another is of one model, at one depth."""
    own, model = sum(len(run.spans) * run.repeats for run in profile.runs), given.model
    counts = {"--layers": given.layers, "MODEL": model.layers + model.mtp if model else None}
    told = (
        f"the profile says itself which {own} layers {profile.name} has: leave it out, or change runs in profile.toml"
    )
    faults = [
        Fault(name, f"has {count} layers, but {told}") for name, count in counts.items() if count not in {None, own}
    ]
    faults += [Fault("--layer-ops", f"is {given.layer_ops}, but {told}")] if given.layer_ops else []
    if faults:
        raise InputError(faults)


def _layers(given: OperatorOptions, profile: Profile) -> int:
    layers = given.layers or (given.model.layers if given.model else 0) or _started_layers(given.start)
    layers = layers or known_layers(profile)
    if not layers and not profile.whole:
        said = f"is missing; how many layers has {profile.name}? (or [tags] layers in profile.toml, or --start FILE)"
        raise InputError(Fault("--layers", said))
    return layers


def _started_layers(start: str | None) -> int:
    """What the user's own plan says; what is wrong with its file is told where the plan is read."""
    if start is None or start in STARTS or not Path(start).is_file():
        return 0
    layers = read_mapping(start).get("num_layers")
    return layers if type(layers) is int and layers > 0 else 0


def _length(given: OperatorOptions, profile: Profile) -> int:
    """Tokens of a sample: the profile's, else what was asked for."""
    shape, tag = dimensions(profile), profile.tags.get("seq", "")
    return int(tag) if tag.isdecimal() else shape.seq if shape else given.seq or SEQ


def _other_length(given: OperatorOptions, profile: Profile) -> Iterator[Fault]:
    """A length that is not the profiled one; of measured operators it is told before."""
    shape = dimensions(profile)
    seq = str(shape.seq) if shape else profile.tags.get("seq")
    if given.profiles and given.seq is not None and seq is not None and str(given.seq) != seq:
        said = f"is {given.seq}, but {profile.name} was profiled with {seq}: its times and memory hold for that"
        yield Fault("--seq", f"{said}; leave --seq out, or profile again")


def _memory(given: OperatorOptions, faults: list[Fault]) -> float:
    """Bytes that one GPU may use. A bare number that is typed is Aceso's MiB with --compatible only."""
    value = given.memory
    if value is not None:
        if isinstance(value, str) and given.compatible and re.fullmatch(r"[0-9.]+", value.strip()):
            value = f"{value}MiB"
        try:
            return held(value, SCALARS["option.room"], "--memory")
        except InputError as error:
            faults += error.faults
            return MB
    if given.cluster is not None:
        if given.compatible:
            return room(given.cluster.gpu)
        return memory_limit(given.model, given.cluster, "bf16", given.runtime)
    faults.append(Fault("--memory", "is missing; say what one GPU may use, such as 28000MiB, or give --cluster"))
    return MB


def _pricing(
    given: OperatorOptions, profile: Profile, chain: Chain, gpus: int, seq: int, zero: Zero
) -> tuple[Pricing, tuple[str, ...]]:
    """The cost model that is asked for, and what should be known of it."""
    if given.compatible:
        return Aceso(), tuple(_told_of(compatible_facts(profile)))
    model, cluster, runtime = given.model, given.cluster, given.runtime
    schedule = "gpipe" if given.schedule == "gpipe" else "1f1b"
    base = Strategy(seq=seq, zero=zero, schedule=schedule, runtime=runtime.name)
    ours = not given.profiles or profile.tags.get("source") in {"analytic", "measured"}
    if model is not None and cluster is not None and ours:
        made = OperatorPricing(model, cluster, runtime, base, profile if given.profiles else None)
        if len(made.of_row) == len(profile.ops):
            return made, ()
    told = () if cluster else (f"there is no --cluster: the update and what lasts are reckoned for {ASSUMED} GPUs",)
    known = cluster or load_cluster(f"{gpus}x{ASSUMED}")
    facts = full_facts(profile)
    base = replace(base, sp=False, dtype=dtype_of(facts))
    return Profiled(profile, facts, chain.layers, known, runtime, base), told


def _told_of(facts: tuple[OperatorFacts, ...]) -> Iterator[str]:
    if any(own.shares for own in facts):
        yield "Aceso's memory counts shared parameters once per operator: `shares` changes nothing with --compatible"


def _conditions(given: OperatorOptions) -> str | None:
    """What whole strategies beside it must keep; none where they would be another question: other operators, a space
    that leaves more out, nodes of another size.
    """
    if given.operators_only or given.compatible or given.compatible_space or given.profiles or not given.cluster:
        return None
    if given.gpus_per_node not in {None, given.cluster.node_size}:
        return None
    words = [] if given.zero is None else [f"zero={given.zero}"]
    words += [f"tp<={given.most_tp}"] if given.most_tp else []
    least, most = _stage_range(given.stages, [])
    return " ".join([*words, *([f"pp>={least}"] if least > 1 else []), *([f"pp<={most}"] if most else [])])


def _zero(given: OperatorOptions) -> Zero:
    """What is asked for, else the first that the runtime has of those that operators can have."""
    known: tuple[Zero, ...] = (1, 0, 2)
    return next((zero for zero in known if zero in given.runtime.can.zero), 1) if given.zero is None else given.zero


def _sizes(given: OperatorOptions, faults: list[Fault]) -> tuple[int, ...]:
    """Samples of a micro batch, all replicas together, from how many micro batches there are."""
    try:
        counts, batch = _numbers("--microbatches", given.microbatches), given.global_batch
    except InputError as error:
        faults += error.faults
        return ()
    if odd := [count for count in counts if batch % count]:
        faults.append(Fault("--microbatches", f"{odd[0]} does not divide the global batch {batch}; use a divisor"))
    return tuple(max(1, batch // count) for count in counts)


def _numbers(flag: str, given: str | Sequence[int] | None) -> tuple[int, ...]:
    text = given if isinstance(given, str) else ",".join(map(str, given or ()))
    try:
        return tuple(map(int, listed(text, SCALARS["Strategy.micro_batch"], flag))) if text else ()
    except InputError as error:
        raise InputError([Fault(flag, f"{one.message}; write for example 1,2,4") for one in error.faults]) from None


def _stage_range(given: str | tuple[int, int] | None, faults: list[Fault]) -> tuple[int, int]:
    """Fewest and most, from a text such as 2-8 or from two numbers; most 0: as many as there can be."""
    if given is None:
        return 1, 0
    row = SCALARS["Strategy.pp"]
    try:
        if isinstance(given, str):
            low, _, high = given.partition("-")
            least, most = (counted(part, row, "--stages") for part in (low, high or low))
        else:
            least, most = given
        if fits(least, row) and (most == 0 or (fits(most, row) and least <= most)):
            return least, most
    except (InputError, TypeError, ValueError):
        pass
    how = "write a number, or the fewest and the most such as 2-8 (from Python a text, or two numbers)"
    faults.append(Fault("--stages", f"{given!r}: {how}"))
    return 1, 0


def _pairs(given: str | Mapping[str, str] | None) -> dict[str, str]:
    if not isinstance(given, str):
        return dict(given or {})
    words = [word.strip().partition("=") for word in given.split(",")]
    if not all(key and equals and value for key, equals, value in words):
        raise InputError(Fault("--runs-with", f"{given!r}: write KEY=VALUE, such as attention=plain"))
    return {key: value for key, _, value in words}


def _refused(question: OperatorQuestion) -> Iterator[Fault]:
    if question.gpus > MOST_GPUS:
        said = f"{question.gpus:,} GPUs; operators are planned for up to {MOST_GPUS:,}"
        yield Fault("--gpus", f"{said}: use `shardwise plan` there")
    if not len(question.stage_range):
        most = min(question.gpus, len(question.chain.rows))
        yield Fault("--stages", f"no number of stages is left: {question.gpus} GPUs allow 1 to {most}")


def starts_from(question: OperatorQuestion, start: str | None) -> tuple[PerOpPlan, ...]:
    """Starts of alleviate, or to be shown: a kind for every number of stages, or the user's own plan."""
    if start is None or start in STARTS:
        return starts_of(question, start or "balanced")
    if not Path(start).is_file():
        raise InputError(Fault("--start", f"{start!r} is neither {', '.join(STARTS)} nor a file"))
    return (from_aceso(read_mapping(start), question, title=start),)


def corrected(question: OperatorQuestion, start: str | None, measured: str) -> OperatorQuestion:
    """The question with its memory model corrected by the measured peaks of the plan in `start`, which is told."""
    starts = starts_from(question, start)
    if not start or len(starts) != 1:
        raise InputError(Fault("--measured-memory", "needs the plan that was run: give its file as --start"))
    found = measured_memory(measured, evaluate(question, starts[0]))
    told = [*found.told, f"all predictions of memory are multiplied by {found.factor:.3f}, and the search is repeated"]
    memory = question.memory
    if found.room <= memory:
        memory = found.room * (1 - ROOM)
        told.append(
            f"{show_bytes(found.room)} were too much for a GPU: it may use {show_bytes(memory)}, not the "
            f"{show_bytes(question.memory)} that were given"
        )
    return replace(question, memory=memory, memory_factor=found.factor, notes=(*question.notes, *told))
