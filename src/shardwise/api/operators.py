"""Operators one by one: what is asked, its answer, and the files of Aceso and of the probe."""

from __future__ import annotations

from shardwise.api.planning import GLOBAL_BATCH, RUNTIME

TYPE_CHECKING = False  # not from typing: who presses Ctrl-C while that loads would see a traceback of Python's
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from shardwise.api.reading import Source
    from shardwise.inputs.cluster import Cluster
    from shardwise.inputs.model import Model
    from shardwise.inputs.runtime import Runtime
    from shardwise.inputs.strategy import Zero
    from shardwise.per_op.answer import OperatorAnswer, Standing
    from shardwise.per_op.question import OperatorQuestion, PerOpPlan
    from shardwise.per_op.solve import Method


def operator_question(**asked: Any) -> OperatorQuestion:  # noqa: ANN401 - each as `plan_operators` types it
    """What `plan_operators` would search, checked and not searched; `.notes` says what should be known of it.

    `asked`: all its parameters from `model` to `p2p_overlap` but `compare`, by name, and `start`, whose file may say
    how many layers there are.
    """
    from shardwise.api.reading import as_cluster, as_model
    from shardwise.frameworks.aceso.ask import OperatorOptions, question_of
    from shardwise.frameworks.load import refuse_mixed
    from shardwise.inputs.load import load_runtime

    if isinstance(asked["runtime"], str):
        asked["runtime"] = load_runtime(asked["runtime"])
    loaders: dict[str, Callable[[Any], object]] = {
        "model": as_model, "cluster": as_cluster, "profiles": str, "start": str,
    }  # fmt: skip
    asked |= {name: load(asked[name]) for name, load in loaders.items() if asked.get(name) is not None}
    if asked["cluster"] is not None:
        refuse_mixed(asked["cluster"], "cluster", "plan-operators", "give one kind, or plan whole strategies (`plan`)")
    return question_of(OperatorOptions(**asked))


def plan_operators(
    model: Model | OperatorQuestion | Source | None = None, cluster: Cluster | Source | None = None, *,
    global_batch: int = GLOBAL_BATCH, seq: int | None = None, runtime: Runtime | str = RUNTIME,
    profiles: Source | None = None, profile: str | None = None, layers: int | None = None,
    layer_ops: str | tuple[str, str] | None = None, runs_with: str | Mapping[str, str] | None = None,
    gpus: int | None = None, gpus_per_node: int | None = None, memory: float | str | None = None,
    microbatches: str | Sequence[int] | None = None, stages: str | tuple[int, int] | None = None, most_tp: int = 0,
    compatible: bool = False, compatible_space: bool = False, zero: Zero | None = None, schedule: str | None = None,
    operators_only: bool = False, compare: bool = False, p2p_overlap: float | None = None, method: Method = "auto",
    start: Source | None = None, hops: int = 7, trials: int = 30, measured_memory: str | None = None, best: int = 1,
    time_limit: float | None = None, workers: int = 1, executor: str = "processes", address: str | None = None,
    report: Callable[[Standing], None] | None = None, stop: Callable[[], bool] | None = None,
) -> OperatorAnswer:  # fmt: skip
    """Every operator with a split of its own: which stage holds it, how its GPUs are split, whether it is recomputed.

    What is asked. `model`, `cluster`: as for `plan`, either may be missing where `profiles` say enough; the answer of
    `operator_question` in place of a model says all but `schedule` and how it is searched; `global_batch`: samples per
    iteration; `seq`: tokens per sample, by default the profile's, else 4096; `runtime`: the software that will run it;
    `profiles`: a folder or archive of Aceso's CSV files, or what the probe wrote (`.json`), by default made from model
    and cluster; `profile`: which model of them; `layers`: how many, where not known; `layer_ops`: first and last
    operator of a layer, where not known; `runs_with`: what the run will have, such as `attention=plain`; `gpus`,
    `gpus_per_node`: by default the cluster's; `memory`: bytes that one GPU may use, or a text such as `70GiB`, by
    default what `plan` allows; `microbatches`: numbers of them per iteration to try; `stages`: fewest and most, most 0
    for as many as there can be, or a text such as `2-8`; `most_tp`: the largest tensor parallel size, 0: a node;
    `compatible`: Aceso's cost model to the digit; `compatible_space`: its limits; `zero`: sharding of the optimizer's
    states and more, 2 with one stage only, by default the faster of 1 and 2; `schedule`: `1f1b` or `gpipe`, or an order
    that the plans found are then simulated in (`zb-h1`, `zb-h2`, `zb-1p`, `zb-2p`, `auto`), where the runtime has it,
    by default 1f1b, and any for whole strategies; `operators_only`: no whole strategies beside (`.whole`); `compare`:
    simulate the best in every order; `p2p_overlap`: share of sends that is hidden, by default the runtime's.

    How it is searched. `method`: auto (26 CPU s), exact (till it is proven) or alleviate; `start`: of alleviate:
    `balanced`, `by-share`, `tail-heavy`, or a plan in Aceso's JSON; `hops`, `trials`: changes in a row, and descents,
    of alleviate; `measured_memory`: peaks of a run of the plan in `start`, such as `stage0=58.8GiB`, or where it ran
    out what it held and what it asked for in addition, `stage0=58.8GiB+2.13GiB`, which correct the memory model;
    `best`: plans in all, the others are `.others`; `time_limit`: CPU seconds; `workers`: processes; `executor`:
    `processes` or `ray`; `address`: of a running Ray cluster; `report` is called with how far the search is
    (`Standing`); once `stop` says yes, the best so far is the answer, in one process.
    """
    from contextlib import closing

    from shardwise.frameworks.aceso.ask import refuse_search
    from shardwise.per_op import alleviate, beside
    from shardwise.per_op.question import OperatorQuestion
    from shardwise.search.executor import executor_of

    asked = model if isinstance(model, OperatorQuestion) else operator_question(
        model=model, cluster=cluster, global_batch=global_batch, seq=seq, runtime=runtime, profiles=profiles,
        profile=profile, layers=layers, layer_ops=layer_ops, runs_with=runs_with, gpus=gpus, memory=memory,
        gpus_per_node=gpus_per_node, microbatches=microbatches, stages=stages, most_tp=most_tp, zero=zero,
        compatible=compatible, compatible_space=compatible_space, schedule=schedule, p2p_overlap=p2p_overlap,
        start=start, operators_only=operators_only)  # fmt: skip
    refuse_search(asked, schedule, method, hops=hops, trials=trials, best=best, time_limit=time_limit)
    if measured_memory:
        asked = measured_question(asked, start, measured_memory)
    with closing(executor_of(executor, workers, address)) as pool:
        return beside.answered(
            asked, method, schedule=schedule, compare=compare, limit=time_limit, report=_followed(report, stop),
            stop=stop, more=best, executor=pool, budget=alleviate.HopBudget(hops=hops, trials=trials),
            starts=() if start is None else operator_starts(asked, start),
        )  # fmt: skip


def _followed(report: Callable[[Standing], None] | None, stop: Callable[[], bool] | None) -> Callable[[Standing], None]:
    """Engines end as by Ctrl-C, with the best so far, once there is one."""

    def follow(standing: Standing) -> None:
        if report is not None:
            report(standing)
        if stop is not None and standing.best is not None and stop():
            raise KeyboardInterrupt

    return follow


def operator_starts(question: OperatorQuestion, start: Source | None = None) -> tuple[PerOpPlan, ...]:
    """Where alleviation would begin, a plan for every number of stages; or the plan of a file of Aceso's."""
    from shardwise.frameworks.aceso.ask import starts_from

    return starts_from(question, None if start is None else str(start))


def measured_question(question: OperatorQuestion, start: Source | None, measured_memory: str) -> OperatorQuestion:
    """A question whose memory model is corrected by the peaks of a run of the plan in `start`, as its notes say."""
    from shardwise.frameworks.aceso.ask import corrected

    return corrected(question, None if start is None else str(start), measured_memory)


def operators_to_measure(
    model: Model | Source,
    cluster: Cluster | Source,
    *,
    seq: int | None = None,
    runtime: Runtime | str = RUNTIME,
    micro_batches: str | Sequence[int] | None = None,
) -> dict[str, object]:
    """What `probe --operators` should measure, as its file holds it; `micro_batches`: samples of a replica."""
    from shardwise.api.reading import as_cluster, as_model
    from shardwise.frameworks.aceso.ask import to_measure
    from shardwise.frameworks.load import refuse_mixed
    from shardwise.inputs.load import load_runtime

    software, machines = load_runtime(runtime) if isinstance(runtime, str) else runtime, as_cluster(cluster)
    refuse_mixed(machines, "cluster", "probe --operators", "give one kind")
    return to_measure(as_model(model), machines, software, seq, micro_batches)


def write_profiles(question: OperatorQuestion, folder: Source) -> None:
    """The operators of a question as Aceso's CSV files."""
    from shardwise.frameworks.aceso.write_profile import write_profile

    write_profile(question.profile, folder)


def aceso_lacks(question: OperatorQuestion) -> tuple[str, ...]:
    """What Aceso's runtime cannot do with the question's model, and what it reads of it that nothing says."""
    from shardwise.frameworks.aceso.plan_file import lacks
    from shardwise.per_op.advice import unsupported

    return (*(unsupported(question.model) if question.model else ()), *lacks(question))


def write_aceso(answer: OperatorAnswer, path: Source, best: int = 1) -> int:
    """The best plans as Aceso's runtime reads them, the second as `NAME-2`; how many there were."""
    from shardwise.frameworks.aceso.plan_file import write_plans

    return write_plans(answer, path, best)
