"""Pipelines: their passes put in order and replayed, their layers balanced."""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: who presses Ctrl-C while that loads would see a traceback of Python's
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal

    from shardwise.api.reading import Source
    from shardwise.frameworks.mindformers.dryrun import Dryrun
    from shardwise.frameworks.mindformers.patch import Patched
    from shardwise.inputs.load import Loaded
    from shardwise.partition.compare import Compared
    from shardwise.partition.guide import Design
    from shardwise.partition.problem import BalanceAnswer, Problem
    from shardwise.partition.quick import Quick
    from shardwise.pipeline.action import Schedule
    from shardwise.pipeline.arrays import Objective
    from shardwise.pipeline.costs import Costs
    from shardwise.pipeline.replay import Replay
    from shardwise.plan.order_diff import OrderDiff
    from shardwise.plan.plan import Plan
    from shardwise.search.balance_plan import Balanced
    from shardwise.search.schedule import Scheduled

    Follow = Callable[[float, float, int], None]


def schedule(
    name: str,
    *,
    pp: int | None = None,
    vpp: int | None = None,
    microbatches: int | None = None,
    costs: Costs | Sequence[Costs] | Source | None = None,
    hop: float | None = None,
    placement: str | None = None,
    memory_limit: str | None = None,
    free_at_input_grad: float | None = None,
    objective: Objective = "makespan",
    group: int = 0,
    splits: int = 2,
    plan: Plan | Source | None = None,
    compare: Sequence[str] = (),
    runnable: bool = False,
    transfer: float | None = None,
    contention: bool = False,
    offload: float | None = None,
    effort: float = 1.0,
    time_limit: float | None = None,
    report: Follow | None = None,
) -> Scheduled:
    """A pipeline in the order of a published schedule, or in the best order for its costs and memory (`auto`).

    `name`: such as `1f1b`, `zb-v` or `auto`; of costs also `dualpipe`, which has two copies of the model; `pp`: ranks;
    `vpp`: chunks a rank, by default what the schedule wants; `microbatches`: per iteration; `costs`: of the chunks, a
    text `f,i,w` of one chunk, or a JSON file, several of them being alternatives; `hop`: latency of a message;
    `placement`: loop, v, or for auto the rank of every chunk such as `0,1,1,0`, or the file of an order that lies so;
    `memory_limit`: of every rank, such as `1.5p` (times 1F1B's), `40GB` or `none`; `free_at_input_grad`: share of
    memory that I frees; `objective`: makespan or period; `group`: micro batch group of interleaved, 0: pp; `splits`:
    pieces of seq-1f1b; `plan`: takes the place of all that describes a pipeline; `compare`: further names, into
    `.others`; `runnable`: refuse at once what the plan's runtime cannot run; `transfer`: time that a message has its
    link for itself, beside `hop`; `contention`: messages on one link wait for each other, and auto looks for the order
    that is best so; `offload`: time to bring one forward's activations to host memory, or back, so that orders fit
    that hold too much; `effort`: more or fewer tries of auto; `time_limit`: CPU seconds of auto; `report`: called with
    the best, the bound and how many orders were looked at. `plan_of(found)` is the plan in this order.
    """
    from shardwise.api.reading import as_plan
    from shardwise.search.order_shape import as_word
    from shardwise.search.schedule import Ask, refuse_unrunnable, schedule

    old = None if plan is None else as_plan(plan, "schedule")
    if old is not None and runnable:
        refuse_unrunnable(old, name, as_word(placement), group)
    asked = Ask(
        name=name, pp=pp, vpp=vpp, microbatches=microbatches, costs=_costs(costs), hop=hop, placement=placement,
        memory_limit=memory_limit, free_at_input_grad=free_at_input_grad, objective=objective, group=group,
        splits=splits, plan=old, transfer=transfer, contention=contention, offload=offload, effort=effort,
        time_limit=time_limit,
    )  # fmt: skip
    return schedule(asked, compare, report)


def _costs(given: Costs | Sequence[Costs] | Source | None) -> Costs | Sequence[Costs] | str | None:
    from pathlib import Path

    return str(given) if isinstance(given, Path) else given


def simulate(
    source: Schedule | Source,
    costs: Costs | Sequence[Costs] | Source | None = None,
    *,
    hop: float | None = None,
    memory_limit: str | None = None,
    free_at_input_grad: float | None = None,
    transfer: float | None = None,
    offload: float | None = None,
    contention: bool = False,
    combine: bool = False,
    copies: int = 1,
) -> Replay:
    """A schedule replayed: times, bubbles and their causes, memory, critical path, and a bound.

    `source`: a schedule, a CSV of one (PyTorch's compute-only form), or an answer of `schedule --json`, which holds
    its costs and its proof: both are checked; `costs`, `hop`, `memory_limit`, `free_at_input_grad`, `transfer`: as for
    `schedule`; `offload`: time to bring one forward's activations to host memory, or back: as many go there as the
    limit asks for, in this order; `contention`: messages on one link wait for each other; `combine`: every forward runs
    together with the full backward right after it, as DualPipe means it; `copies`: of the model, each with its own run
    of the chunks: 2 for a CSV of `dualpipe`.
    """
    from shardwise.pipeline.replay import replay

    return replay(
        source, _costs(costs), hop=hop, free=free_at_input_grad, memory_limit=memory_limit, transfer=transfer,
        offload=offload, contention=contention, combine=combine, copies=copies,
    )  # fmt: skip


def hold_orders(*files: Source) -> bool:
    """Whether one of some files holds the order of a pipeline alone: a CSV, or an answer of `schedule --json`."""
    from shardwise.pipeline.replay import holds_order

    return any(map(holds_order, files))


def diff_orders(
    left: Schedule | Plan | Source,
    right: Schedule | Plan | Source,
    *,
    costs: Costs | Sequence[Costs] | Source | None = None,
    hop: float | None = None,
    free_at_input_grad: float | None = None,
) -> OrderDiff:
    """In what the orders of two pipelines differ, action by action, and what each takes where costs are known.

    `left`, `right`: a schedule, a CSV of one (PyTorch's compute-only form), an answer of `schedule --json`, or a plan,
    whose order is compared; `costs`, `hop`, `free_at_input_grad`: of both, as for `schedule`, by default those that an
    answer or a plan came with. An order that cannot run is compared too: its `fault` says why it cannot.
    """
    from shardwise.api.reading import as_plan
    from shardwise.pipeline.action import Schedule
    from shardwise.plan.file import is_plan
    from shardwise.plan.order_diff import diff_orders
    from shardwise.plan.plan import Plan

    def read(source: Schedule | Plan | Source) -> Schedule | Plan | Source:
        planned = isinstance(source, Plan) or (not isinstance(source, Schedule) and is_plan(source))
        return as_plan(source, "diff") if planned else source  # type: ignore[arg-type]

    return diff_orders(
        read(left), read(right), _costs(costs), hop=hop, free=free_at_input_grad, names=_names(left, right)
    )  # fmt: skip


def _names(left: Schedule | Plan | Source, right: Schedule | Plan | Source) -> tuple[str, str]:
    """What two orders are called: their files' names, with their folders where these are alike."""
    from pathlib import Path

    from shardwise.pipeline.action import Schedule
    from shardwise.plan.plan import Plan

    pair = [None if isinstance(one, Schedule | Plan) else Path(one) for one in (left, right)]
    alike = pair[0] and pair[1] and pair[0] != pair[1] and pair[0].name == pair[1].name
    told = ["" if one is None else str(one) if alike else one.name for one in pair]
    return told[0] or "left", told[1] or "right"


DESCRIBES = (
    "problem", "init", "peaks", "peak", "times", "model", "pp", "vpp", "microbatches", "memory", "low_memory",
    "seq_split", "train", "schedule", "hop", "empty", "confidence",
)  # fmt: skip
"""The parameters of `read_problem`."""


def read_problem(
    problem: Source | None = None,
    *,
    init: Source | None = None,
    peaks: Sequence[Source] = (),
    peak: Literal["actual", "used"] = "actual",
    times: Sequence[float] | None = None,
    model: str | None = None,
    pp: int | None = None,
    vpp: int | None = None,
    microbatches: int | None = None,
    memory: Sequence[float] | None = None,
    low_memory: bool | None = None,
    seq_split: int | None = None,
    train: Source | None = None,
    schedule: str | None = None,
    hop: float | None = None,
    empty: str | None = None,
    confidence: float | None = None,
) -> Loaded[Problem]:
    """What is to be balanced (`.value`), what was noticed (`.notes`), and the fit of its layer model (`.extra`).

    `problem`: one JSON file; or `init`: SAPP's YAML with measured peaks, times or traces, `peaks`: dry-run folders,
    one a round, `peak`: which line of their logs counts, `times`: forward of head, a layer of every kind, and tail;
    `model`: keep the fitted layer model under this name, or read it from there. What follows goes before a problem
    file's numbers: `pp`: stages (4), `vpp`: chunks of a stage (1), `microbatches` (4), `memory`: MB, one or one a
    stage (56000), `low_memory`: the low-memory interleave, `seq_split`: pieces of a sequence, `train`: a training
    YAML that says what they hold whole, `schedule`: the order of work, `hop`: time of a message, `empty`: chunks that
    may be without layers (`ends`, `any`, `0,7`), `confidence`: with which every stage is to stay within its limit where
    its memory was measured (0.95).
    """
    from shardwise.partition.balance import Described, problem_of

    return problem_of(
        Described(
            problem=_text(problem), init=_text(init), peaks=tuple(map(str, peaks)), peak=peak, times=times, model=model,
            pp=pp, vpp=vpp, microbatches=microbatches, memory=memory, low_memory=low_memory, seq_split=seq_split,
            train=_text(train), schedule=schedule, hop=hop, empty=empty, confidence=confidence,
        )
    )  # fmt: skip


def _text(path: Source | None) -> str | None:
    return None if path is None else str(path)


def load_problem(path: Source) -> Problem:
    """A problem of layers and recompute from its JSON file."""
    return read_problem(path).value


def compare_balance(problem: Problem, *, naive: bool = False, manual: Sequence[Source] = ()) -> Loaded[list[Compared]]:
    """Strategies beside the balanced one, simulated (`.value`), and notes on them.

    `naive`: all and no recompute; `manual`: YAML files of strategies.
    """
    from shardwise.inputs.load import Loaded
    from shardwise.partition.balance import others_of

    found, notes = others_of(problem, naively=naive, files=manual)
    return Loaded(value=found, notes=tuple(notes))


def refuse_other_pipeline(plan: Plan, problem: Problem) -> None:
    """Raise InputError where a problem has other stages, chunks or layers than the plan that gets its layers."""
    from shardwise.search.balance_plan import refuse_other_pipeline

    refuse_other_pipeline(plan, problem)


def balance(
    problem: Problem | Source,
    *,
    plan: Plan | None = None,
    time_limit: float = 60.0,
    effort: float | None = None,
    seed: int = 1,
    report: Follow | None = None,
) -> BalanceAnswer:
    """Layers and recompute of every stage and chunk so that the simulated iteration is shortest and every stage fits.

    `problem`: a problem, or its JSON file (`read_problem` makes one of measurements); `plan`: the plan that will get
    the layers, held against the problem before anything is solved; `time_limit`: CPU seconds, used up unless the answer
    is proven; `effort`: count steps instead (1: many), so that every machine gives the same answer; `seed`: of the
    search; `report`: called with the best, the bound and how many were looked at.
    """
    from shardwise.partition.balance import balance
    from shardwise.partition.problem import Problem

    asked = problem if isinstance(problem, Problem) else load_problem(problem)
    if plan is not None:
        refuse_other_pipeline(plan, asked)
    return balance(asked, time_limit=time_limit, effort=effort, seed=seed, report=report)


def balance_plan(plan: Plan | Source, *, memory_limit: float | str | None = None) -> Balanced:
    """The layers of a plan, cut anew under the cost model.

    `memory_limit`: bytes of every rank, or a text such as `40GB`, by default what the plan was made for: its
    limit, or all of the GPU's.
    """
    from shardwise.api.reading import as_bytes, as_plan
    from shardwise.search.balance_plan import balanced

    limit = None if memory_limit is None else as_bytes(memory_limit, "memory_limit")
    return balanced(as_plan(plan, "balance"), limit=limit)


def design_rounds(
    stages: int | None = None,
    layers: int | None = None,
    kinds: Sequence[str] = (),
    *,
    seed: int = 1,
    rounds: int = 0,
    layer_kinds: Mapping[str, int] | None = None,
    after: Source | None = None,
) -> Design:
    """Which layers and recompute counts to dry-run so that memory can be taken apart.

    `stages`, `layers`: of the pipeline; `kinds`: of select, comm, both, full; `seed`: same seed, same design;
    `rounds`: more than needed make errors smaller, 0: as many as needed; `layer_kinds`: kinds of layers in the order of
    the model with how many there are, such as {"dense": 3, "moe": 58}; `after`: an init file, or a layer model that
    was kept, whose rounds are measured: the next best round.
    """
    from shardwise.partition.balance import design_rounds

    runs = tuple((layer_kinds or {}).items())
    return design_rounds(stages, layers, kinds, seed=seed, rounds=rounds, layer_kinds=runs, after=_text(after))


def dryrun(command: str, *, ranks: int, stages: int, folder: str = "output_dryrun") -> Dryrun:
    """The script that runs a training `command` once per stage in simulation mode.

    `ranks`: all devices of the training; `stages`: pipeline stages; `folder`: for the logs.
    """
    from shardwise.frameworks.mindformers.dryrun import dryrun

    return dryrun(command, ranks=ranks, stages=stages, folder=folder)


def patch_mindformers(
    config: Source, answer: Plan | BalanceAnswer | Source, *, out: Source | None = None, keep_batch: bool = False,
    write: bool = True,
) -> Patched:  # fmt: skip
    """The pipeline of an answer or a plan put into a MindFormers YAML (graph mode, 1.5 to 2.1), all else as it is.

    `config`: the user's own YAML; `answer`: what `balance` gave, its JSON file, or a plan; `out`: written there in
    place of `config`; `keep_batch`: `micro_batch_num` stays as it is; `write`: false: only what would change.
    Offset, recompute lists, chunks, micro batches and the switch for the low-memory order are changed, where they say
    something else; the result is read back, and nothing is written where it is not the answer.
    """
    from shardwise.frameworks.mindformers.patch import patch_file

    made = patch_file(config, answer, keep_batch=keep_batch)
    if write and (made.changed or out is not None):
        from shardwise.inputs.write import write_text

        write_text(config if out is None else out, made.after)
    return made


def quick_balance(
    stages: int,
    layers: int,
    *,
    memory: float,
    layer: float,
    kept: float,
    recomputed: float = 0.0,
    head_memory: float = 0.0,
    tail_memory: float = 0.0,
    head: float = 0.0,
    tail: float = 0.0,
) -> Quick:
    """The quick rule for 2 or 4 stages, where one layer weighs three recomputed ones.

    `memory`: of a device; `layer`: a layer's parameters and states; `kept`: its activations of one micro batch;
    `recomputed`: the same with full recompute; `head_memory`, `tail_memory`: more on the first and the last stage
    (all in one unit); `head`, `tail`: times of embedding and output layer, in layers.
    """
    from shardwise.partition.quick import quick, stages_of

    made = stages_of(
        stages, memory=memory, layer=layer, kept=kept, recomputed=recomputed, head=head_memory, tail=tail_memory
    )  # fmt: skip
    return quick(made, layers, head=head, tail=tail)
