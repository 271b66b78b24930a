"""Strategies that are searched: which to run, the fastest of all, why others lost, elsewhere."""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: who presses Ctrl-C while that loads would see a traceback of Python's
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from shardwise.api.reading import Source
    from shardwise.inputs.cluster import Cluster, Gpu
    from shardwise.inputs.documents import Documents, Packing
    from shardwise.inputs.model import Model
    from shardwise.inputs.runtime import Runtime
    from shardwise.inputs.strategy import Strategy
    from shardwise.plan.plan import Plan
    from shardwise.search.findings import Report, Stop
    from shardwise.search.question import Answer, Question
    from shardwise.search.stages import LengthStage, StagedRun
    from shardwise.search.sweep import Cell
    from shardwise.search.what_if import WhatIf
    from shardwise.search.why import Why

GLOBAL_BATCH, SEQ, RUNTIME = 1024, 4096, "megatron"
"""What is planned for where neither the call nor a plan says it."""


def question(
    model: Model | Plan | Source,
    cluster: Cluster | Source | None = None,
    *,
    global_batch: int | None = None,
    seq: int | None = None,
    runtime: Runtime | str | None = None,
    only: str = "",
    memory: float | str | None = None,
    memory_margin: float | str | None = None,
    base: Strategy | Source | None = None,
    documents: Documents | Source | None = None,
    packing: Packing | None = None,
) -> Question:
    """What `plan` would search for, checked and not searched: the same parameters."""
    from shardwise.api.reading import as_bytes, as_cluster, as_model, as_strategy
    from shardwise.search.api import question_of
    from shardwise.search.what_if import margin_of
    from shardwise.search.wishes import kept

    old = _old(model)
    if old is not None:
        model, base, s = old.model, base or old.strategy, old.strategy
        if cluster is None and memory_margin is None and memory is None:
            memory_margin = margin_of(old)
        cluster = old.cluster if cluster is None else cluster
        global_batch, seq = (s.global_batch if global_batch is None else global_batch), (s.seq if seq is None else seq)
        runtime, only = runtime or s.runtime, kept(old.conditions, only)
    found = _both(model, cluster)
    machines = as_cluster(found[1])
    if memory is not None:
        memory_margin = _margin(machines.gpu, as_bytes(memory, "--memory"), memory_margin)
    return question_of(
        as_model(found[0]), machines, global_batch=GLOBAL_BATCH if global_batch is None else global_batch,
        seq=SEQ if seq is None else seq, runtime=runtime or RUNTIME, only=only, memory_margin=memory_margin,
        base=_packed(None if base is None else as_strategy(base, machines), documents, packing),
    )  # fmt: skip


def _packed(
    base: Strategy | None, documents: Documents | Source | None, packing: Packing | None
) -> Strategy | None:  # fmt: skip
    """What is kept of a strategy, with the documents that are given beside it."""
    from dataclasses import replace

    from shardwise.inputs.documents import Documents
    from shardwise.inputs.strategy import Strategy

    if documents is None and packing is None:
        return base
    base = base or Strategy()
    found = documents if isinstance(documents, Documents) else documents and Documents.parse(str(documents))
    return replace(base, documents=found or base.documents, packing=packing or base.packing)


def _margin(gpu: Gpu, memory: float, margin: float | str | None) -> float:
    """What is left of a GPU beside the memory that may be used."""
    from shardwise.errors import Fault, InputError
    from shardwise.units import show_bytes

    if margin is not None:
        raise InputError(Fault("--memory, --memory-margin", "both say what a GPU may use; give one of them"))
    if memory > gpu.memory:
        has = f"{show_bytes(memory)} are more than the {show_bytes(gpu.memory)} that {gpu.name} has"
        raise InputError(Fault("--memory", f"{has}; give less, or another GPU"))
    return gpu.memory - memory


def fixed_by(only: str) -> dict[str, Any]:
    """The fields of a strategy that the conditions of `plan` fix beside the axes that they limit, such as `fp8`."""
    from shardwise.search.wishes import read_wishes

    return dict(read_wishes(only)[1])


def _old(model: Model | Plan | Source | None) -> Plan | None:
    """The plan that stands in place of a model."""
    from shardwise.inputs.model import Model
    from shardwise.plan.file import is_plan, read_plan
    from shardwise.plan.plan import Plan

    if isinstance(model, Plan):
        return model
    return read_plan(model) if model and not isinstance(model, Model) and is_plan(model) else None


def _both(
    model: Model | Plan | Source | None, cluster: Cluster | Source | None
) -> tuple[Model | Source, Cluster | Source]:
    """A model and a cluster; what is missing is told, a model that cannot be read first."""
    from shardwise.errors import Fault, InputError
    from shardwise.frameworks.load import read_model
    from shardwise.inputs.model import Model

    if model and cluster is None and not isinstance(model, Model):
        read_model(model)  # type: ignore[arg-type]
    faults = [
        Fault(name, f"is missing; {hint}")
        for name, value, hint in (
            ("MODEL", model, "name one (see `shardwise models`) or give a file"),
            ("--cluster", cluster, "give for example 64xh100 (see `shardwise clusters`)"),
        )
        if value is None
    ]
    if faults:
        raise InputError(faults)
    return model, cluster  # type: ignore[return-value]


def plan(
    model: Model | Plan | Source,
    cluster: Cluster | Source | None = None,
    *,
    global_batch: int | None = None,
    seq: int | None = None,
    runtime: Runtime | str | None = None,
    only: str = "",
    memory: float | str | None = None,
    memory_margin: float | str | None = None,
    base: Strategy | Source | None = None,
    documents: Documents | Source | None = None,
    packing: Packing | None = None,
    fastest: bool = False,
    gap: float = 0.005,
    time_limit: float | None = None,
    workers: int = 1,
    executor: str = "processes",
    address: str | None = None,
    report: Report | None = None,
    stop: Stop | None = None,
) -> Answer:
    """Which plan to run, beside the fastest, with a bound on what any other could reach, the simplest that is as fast
    as far as can be told, and the nearest measured run: the answer's `recommended` (of least expected regret; `best`,
    which `plan_of` writes), `fastest` (which the bound is about), `simplest` and `nearest`.

    `model`: a model, or a plan whose model, cluster, batch, conditions and number format are kept where nothing else is
    said; `cluster`; `global_batch`: samples per iteration, 1024 by default; `seq`: tokens per sample, 4096 by default;
    `runtime`: the software that will run it, megatron by default; `only`: conditions such as `tp<=8 zero1 pp=4`, and
    other words of a strategy (`fp8`); `memory`: what one GPU may use; `memory_margin`: bytes of every GPU to leave
    free, by default the memory model's own error; `base`: a strategy, or its line, whose format, optimizer and the like
    are kept; `documents`: how long those of the data are, a file of lengths or `512x3,2048`; `packing`: how they become
    samples; `fastest`: recommend the fastest, whatever its expected regret; `gap`: how near the bound is near enough;
    `time_limit`: seconds; `workers`: processes; `executor`: `processes` or `ray`; `address`: of a running Ray cluster;
    `report` is called about five times a second with the `Search` (its `tried`, `best`, `bound`); once `stop` says yes,
    the best so far is the answer.
    """
    import time
    from dataclasses import replace

    from shardwise.search.api import answer_of
    from shardwise.search.ladder import with_ladder

    asked = question(
        model, cluster, global_batch=global_batch, seq=seq, runtime=runtime, only=only, memory=memory,
        memory_margin=memory_margin, base=base, documents=documents, packing=packing,
    )  # fmt: skip
    began = time.monotonic()
    answer = answer_of(
        asked, fastest=fastest, gap=gap, time_limit=time_limit, workers=workers, executor=executor, address=address,
        report=report, stop=stop,
    )  # fmt: skip
    if answer.closest is None:
        return _beside_a_run(answer)
    left = None if time_limit is None else time_limit - (time.monotonic() - began)
    return replace(answer, closest=with_ladder(asked, answer.closest, stop, left))


def _beside_a_run(answer: Answer) -> Answer:
    """The answer with the measured run that is nearest to what it recommends."""
    import time
    from dataclasses import replace

    from shardwise.measure.nearest import nearest_run

    if answer.best is None or not answer.finished or answer.interrupted:
        return answer
    cpu = time.process_time()
    try:
        answer = replace(answer, nearest=nearest_run(answer.best))
    except KeyboardInterrupt:
        answer = replace(answer, interrupted=True)
    return replace(answer, cpu_seconds=answer.cpu_seconds + time.process_time() - cpu)


def why_nothing(answer: Answer) -> str:
    """Why an answer of `plan` holds no strategy: what stands in the way, by how much, and what would do."""
    from shardwise.search.nothing_fits import why_nothing

    return why_nothing(answer)


def why(plan: Plan | Source, strategy: Strategy | str) -> Why:
    """Why another strategy lost against a plan: too large by how much and where, or slower in which parts.

    `strategy`: a whole one, or what to change, such as `tp4 pp8`; what a line leaves out is the plan's, layers are cut
    anew.
    """
    from shardwise.api.reading import as_plan
    from shardwise.search.why import against

    return against(as_plan(plan, "why"), strategy)


def what_if(
    plan: Plan | Source,
    *,
    gpus: int | None = None,
    net: str | None = None,
    memory: float | str | None = None,
    gap: float = 0.005,
    only: str = "",
    report: Report | None = None,
) -> WhatIf:
    """A plan kept as it is, and planned again, on another cluster.

    `gpus`: another number; `net`: `2x` of what the network between nodes is, or a rate such as `400Gb/s`; `memory`:
    of a GPU; `gap`, `only`, `report`: as for `plan`. The plan's own conditions hold where `only` says nothing else.
    """
    from shardwise.api.reading import as_plan
    from shardwise.errors import Fault, InputError
    from shardwise.search.what_if import changed, what_if

    if not (gpus or net or memory):
        raise InputError(Fault("", "nothing is changed; give --gpus, --net or --memory"))
    old = as_plan(plan, "what-if")
    return what_if(
        old, changed(old.cluster, gpus=gpus, net=net, memory=memory), gap=gap, only=only, report=report
    )  # fmt: skip


def sweep(
    model: Model | Source,
    clusters: Sequence[str] | Mapping[str, Cluster],
    *,
    batches: Sequence[int] = (GLOBAL_BATCH,),
    sequences: Sequence[int] = (SEQ,),
    runtime: str = RUNTIME,
    only: str = "",
    gap: float = 0.02,
    tokens: float = 0.0,
    price: float = 0.0,
    mtbf: float = 0.0,
    checkpoint: float = 0.0,
    store: float = 2e9,
    documents: Documents | Source | None = None,
    packing: Packing | None = None,
    stages: str = "",
    told: Callable[[Cell], None] = lambda _: None,
) -> tuple[Cell, ...]:
    """A grid of clusters, batches and sequences, each point planned.

    `model`: as for `plan`; `clusters`: texts such as `64xh100`, or clusters by name; `batches`: samples per
    iteration; `sequences`: tokens per sample; `runtime`, `only`, `gap`: as for `plan`; `tokens`: of the whole run,
    for days and cost; `price`: of a GPU and hour; `mtbf`: seconds between failures of one GPU, for goodput;
    `checkpoint`: seconds that one stops training, 0: from the model's size and `store`, the bytes per second that a
    node writes; `documents`, `packing`: as for `plan`; `stages`: in place of sequences, lengths with the share of the
    tokens that each gets, such as `8192:90%,32768:10%`, one after the other, with as many tokens in a batch as in one
    of the first; `told`: called with every point that is done.
    """
    from collections.abc import Mapping

    from shardwise.api.reading import as_model, load_cluster
    from shardwise.search.stages import read_stages
    from shardwise.search.sweep import TrainingRun, sweep

    machines = clusters if isinstance(clusters, Mapping) else {name: load_cluster(name) for name in clusters}
    parts = read_stages(stages) if stages else ()
    return sweep(
        as_model(model), machines, batches=batches, sequences=[part.seq for part in parts] or sequences,
        runtime=runtime, only=only, gap=gap, base=_packed(None, documents, packing),
        run=TrainingRun(tokens=tokens, price=price, mtbf=mtbf, save=checkpoint, store=store),
        shares=[part.share for part in parts], told=told,
    )  # fmt: skip


def read_stages(text: str) -> tuple[LengthStage, ...]:
    """Lengths and the share of the tokens that each gets, from `8192:90%,32768:10%`."""
    from shardwise.search.stages import read_stages

    return read_stages(text)


def staged_runs(cells: Sequence[Cell], stages: Sequence[LengthStage]) -> tuple[StagedRun, ...]:
    """What all stages of a sweep take together, on every cluster."""
    from shardwise.search.stages import in_sum

    return in_sum(cells, stages)
