"""The cost model of `estimate` for plans whose operators have splits of their own.

A plan becomes a `Setup`: every stage a chunk of operators, each timed in the split that it has, resharding added as
communication, and the update by splits. An estimate of that setup is the plan's cost, so that a plan with one split for
all of its operators costs what `estimate` says of the strategy. What the operators are is asked of a subclass: those of
a model (`operators`) or the rows of a profile (`profiled`).
The tables of the search are made of the same operators (`below`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from math import lcm
from typing import Any, NamedTuple

from shardwise.cost.activations import runs_walk
from shardwise.cost.chunk import BlockRun, Chunk, chunk_of
from shardwise.cost.kernels import Machine, machine_of
from shardwise.cost.layer import Block, Timed, stacked, whole_walk, with_recompute
from shardwise.cost.memory import layer_room
from shardwise.cost.network import network_of
from shardwise.cost.states import states_of
from shardwise.cost.update import hidden
from shardwise.estimate.estimate import assemble, rank_update
from shardwise.estimate.passes import pass_costs
from shardwise.estimate.setup import RankSetup, Setup, Split, new_gradients, piled_gradients
from shardwise.inputs.calibrations import as_run_by, calibration_of
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.ops.op import Op
from shardwise.ops.shard import Shard
from shardwise.per_op.below import tables_below
from shardwise.per_op.cut import Flow
from shardwise.per_op.evaluate import PerOpCost, StageCost, crossings, with_spare
from shardwise.per_op.question import OperatorLayout, OperatorQuestion, PerOpPlan
from shardwise.per_op.tables import Tables
from shardwise.per_op.whole import whole_plans
from shardwise.pipeline.costs import Costs

KEPT_SETUPS = 64


class PricedSplit(NamedTuple):
    """All rows of the operator table in one split."""

    strategy: Strategy
    shard: Shard
    rows: tuple[Timed, ...]
    """Each as it is, its collectives included."""


class ChainPart(NamedTuple):
    """A layer, or an end, among the rows of the operator table."""

    name: str
    first: int
    end: int


class StagePiece(NamedTuple):
    """Neighbouring operators of one stage and one layer: what a block is made of."""

    part: int
    first: int
    """Row."""
    layouts: tuple[OperatorLayout, ...]
    recompute: tuple[bool, ...]
    before: OperatorLayout | None
    """Split of the operator before it in the stage, where that is another."""
    opens: bool
    """Whether a stage begins with it, and that changes what it keeps."""


class Priced(ABC):
    """The full cost model."""

    name = "full"
    opens = False
    """Whether the first operator of a stage keeps something else than in the middle of one."""

    def __init__(
        self, model: Model, cluster: Cluster, runtime: Runtime, base: Strategy, parts: tuple[ChainPart, ...]
    ) -> None:
        """`base`: all that a strategy says beside its split; `parts`: of the operator table, in order."""
        self.calibration = as_run_by(calibration_of(cluster.gpu), runtime.name, experts=model.moe is not None)
        self.model, self.cluster, self.runtime, self.base, self.parts = model, cluster, runtime, base, parts
        self.schedule, self.zero = base.schedule, base.zero
        self.network = network_of(cluster, self.calibration)
        self.states = states_of(base, runtime)
        self.of_row = [index for index, part in enumerate(parts) for _ in range(part.first, part.end)]
        self._known: dict[Any, Any] = {}
        self._setups: dict[tuple[PerOpPlan, int, int], Setup] = {}

    # what a subclass knows

    @abstractmethod
    def make_rows(
        self, bench: PricedSplit, layout: OperatorLayout, machine: Machine, *, own_weights: bool
    ) -> tuple[Timed, ...]:
        """The operators of a split. `own_weights`: the output layer has a matrix of its own."""

    @abstractmethod
    def reshard(self, row: int, have: OperatorLayout, want: OperatorLayout, bench: PricedSplit) -> tuple[float, float]:
        """Seconds of a change of splits before a row, forward and backward."""

    @abstractmethod
    def hop(self, row: int, layout: OperatorLayout, bench: PricedSplit, gpus: int, *, crosses: bool) -> float:
        """Seconds to send what stands before a row from a stage of so many GPUs to the next."""

    def at_entry(self, op: Op, row: int, layout: OperatorLayout, bench: PricedSplit) -> Op:
        """The first operator of a stage."""
        del row, layout, bench
        return op

    def may(self, row: int) -> bool:
        """Whether a row may be recomputed."""
        return self.parts[self.of_row[row]].name not in {"embedding", "head"}

    # a pricing

    def in_flight(self, behind: int, passes: int) -> int:
        # without a stage behind it there may be no pipeline at all: then a pass holds its own
        return passes - 1 if self.schedule == "gpipe" and behind else min(behind, passes - 1)

    def pace(self, passes: int) -> Flow:
        return Flow(passes)

    def beside(self, passes: int) -> float:
        return self.runtime.overheads.beside(passes, zero=0)

    def whole_plans(self, question: OperatorQuestion) -> tuple[PerOpPlan, ...]:
        return whole_plans(question)

    # benches and blocks

    def bench(self, question: OperatorQuestion, samples: int, layout: OperatorLayout, stages: int) -> PricedSplit:
        """`stages`: of the pipeline; only whether it is one matters to an operator."""
        alone = stages == 1
        key = (samples, question.global_batch, layout, alone)
        if key not in self._known:
            strategy = replace(self.base, tp=layout.tp, dp=layout.dp, pp=1 if alone else 2,
                               micro_batch=samples // layout.dp, global_batch=question.global_batch)  # fmt: skip
            own = not (self.model.tied and alone)
            made = PricedSplit(strategy, self.shard_of(strategy), ())
            rows = self.make_rows(made, layout, self.machine(question.passes(samples), layout.tp), own_weights=own)
            self._known[key] = made._replace(rows=rows)
        found: PricedSplit = self._known[key]
        return found

    @abstractmethod
    def shard_of(self, strategy: Strategy) -> Shard: ...

    def machine(self, passes: int, tp: int = 1) -> Machine:
        base = self.base
        return machine_of(
            self.cluster.gpu, self.calibration, self.runtime, base.dtype, base.scaling,
            gradient=self.states.gradient, accumulating=passes > 1, graphs=base.cuda_graphs, site=self.cluster.site,
            gpus=self.cluster.gpus, tp=tp,
        )  # fmt: skip

    def _timed(self, question: OperatorQuestion, samples: int, stages: int, piece: StagePiece) -> list[Timed]:
        """The operators of a piece with their resharding."""
        made, before = [], piece.before
        for step, layout in enumerate(piece.layouts):
            bench, row = self.bench(question, samples, layout, stages), piece.first + step
            timed = bench.rows[row]
            if piece.opens and step == 0:
                timed = timed._replace(op=self.at_entry(timed.op, row, layout, bench))
            if before not in {None, layout}:
                forth, back = self.reshard(row, before, layout, bench)
                timed = timed._replace(
                    f=timed.f._replace(tp=timed.f.tp + forth), i=timed.i._replace(tp=timed.i.tp + back)
                )
            made.append(timed)
            before = layout
        return made

    def _block(self, question: OperatorQuestion, samples: int, stages: int, piece: StagePiece) -> Block:
        key = (samples, question.global_batch, stages == 1, piece)
        if key not in self._known:
            self._known[key] = self._made(question, samples, stages, piece)
        found: Block = self._known[key]
        return found

    def _made(self, question: OperatorQuestion, samples: int, stages: int, piece: StagePiece) -> Block:
        part = self.parts[piece.part]
        bench = self.bench(question, samples, piece.layouts[0], stages)
        machine = self.machine(question.passes(samples), bench.strategy.tp)
        grads = new_gradients(bench.strategy, self.states)
        timed = self._timed(question, samples, stages, piece)
        plain = stacked(part.name, timed, machine, grads, begins=piece.first == part.first)
        if not any(piece.recompute):
            return plain
        if all(piece.recompute) and len(timed) == part.end - part.first:
            return with_recompute(plain, whole_walk(plain, bench.shard), machine.layer_f)
        return with_recompute(plain, runs_walk(list(plain.ops), _runs(piece.recompute), grads), 0.0)

    # a plan as a setup

    def setup(self, question: OperatorQuestion, plan: PerOpPlan) -> Setup:
        key = (plan, question.global_batch, question.node)
        if key not in self._setups:
            if len(self._setups) >= KEPT_SETUPS:
                self._setups.clear()
            self._setups[key] = self._setup(question, plan)
        return self._setups[key]

    def _setup(self, question: OperatorQuestion, plan: PerOpPlan) -> Setup:
        count, first = len(plan.stages), 0
        chunks, layers = [], []
        ranks: list[RankSetup] = []
        across = crossings(question, plan.gpus)
        for index, stage in enumerate(plan.stages):
            pieces = list(self._pieces(question, plan, index, first))
            first += stage.size
            runs = _folded([self._block(question, plan.samples, count, piece) for piece in pieces])
            if first == len(question.chain.rows):
                runs += self._further_heads(question, plan)
            splits = self._splits(question, plan, index, pieces, runs)
            chunks.append(splits[0].chunks[0] if len(splits) == 1 else self._chunk(runs, splits[0].strategy))
            last = stage.layouts[-1]
            bench = self.bench(question, plan.samples, last, count)
            hop = ranks[-1].hop if first == len(question.chain.rows) and ranks else 0.0
            if first < len(question.chain.rows):
                row = question.chain.rows[first]
                hop = self.hop(row, last, bench, stage.gpus, crosses=bool(across[index][1]))
            ranks.append(RankSetup(splits, stage.gpus, hop))
            layers.append(sum(self.parts[piece.part].first == piece.first for piece in pieces
                              if self.may(piece.first)))  # fmt: skip
        head = ranks[0].splits[0]
        machine = self.machine(question.passes(plan.samples), head.strategy.tp)
        return Setup(self.model, self.cluster, head.strategy, self.runtime, self.calibration, head.shard, machine,
                     self.network, self.states, tuple(layers), tuple(chunks), tuple(ranks))  # fmt: skip

    def _pieces(self, question: OperatorQuestion, plan: PerOpPlan, index: int, first: int) -> Iterator[StagePiece]:
        stage = plan.stages[index]
        rows = question.chain.rows[first : first + stage.size]
        start = 0
        for at in range(1, len(rows) + 1):
            if at < len(rows) and rows[at] == rows[at - 1] + 1 and self.of_row[rows[at]] == self.of_row[rows[at - 1]]:
                continue
            own, flags = stage.layouts[start:at], stage.recompute[start:at]
            before = stage.layouts[start - 1] if start and stage.layouts[start - 1] != own[0] else None
            yield StagePiece(self.of_row[rows[start]], rows[start], own, flags, before, self.opens and not start)
            start = at

    def _further_heads(self, question: OperatorQuestion, plan: PerOpPlan) -> list[BlockRun]:
        """Every token further ahead passes the same output layer again."""
        if not self.model.mtp:
            return []
        part, stage = self.parts[-1], plan.stages[-1]
        bench = self.bench(question, plan.samples, stage.layouts[-1], len(plan.stages))
        machine = self.machine(question.passes(plan.samples), bench.strategy.tp)
        rows = self.make_rows(bench, stage.layouts[-1], machine, own_weights=False)[part.first : part.end]
        return [BlockRun(stacked(part.name, rows, machine, new_gradients(bench.strategy, self.states)), self.model.mtp)]

    def _chunk(self, runs: list[BlockRun], strategy: Strategy) -> Chunk:
        room = layer_room(runs, strategy, self.runtime, self.states)
        return chunk_of(tuple(runs), piled_gradients(strategy, self.states), room)

    def _splits(
        self, question: OperatorQuestion, plan: PerOpPlan, index: int, pieces: list[StagePiece], runs: list[BlockRun]
    ) -> tuple[Split, ...]:
        """The operators of a stage by their splits, the widest first."""
        stage, count = plan.stages[index], len(plan.stages)
        kinds = sorted({layout[:2] for layout in stage.layouts}, reverse=True)
        found = []
        for kind in kinds:
            layout = next(own for own in stage.layouts if own[:2] == kind)
            bench = self.bench(question, plan.samples, layout, count)
            strategy = replace(bench.strategy, pp=count)
            if len(kinds) == 1:
                return (Split(strategy, bench.shard, [self._chunk(runs, strategy)]),)
            rows = Counter((piece.first + step, own) for piece in pieces for step, own in enumerate(piece.layouts)
                           if own[:2] == kind)  # fmt: skip
            alike = [(self.bench(question, plan.samples, own, count).rows[row], times)
                     for (row, own), times in rows.items()]  # fmt: skip
            made = [BlockRun(stacked("", [row], self.machine(2), 0.0, begins=False), times)
                    for row, times in alike if row.op.params]  # fmt: skip
            found.append(Split(strategy, bench.shard, [chunk_of(tuple(made), 0.0)]))
        return tuple(found)

    # evaluation

    def evaluate(self, question: OperatorQuestion, plan: PerOpPlan) -> PerOpCost:
        """An estimate of the plan's setup, stage by stage."""
        setup = self.setup(question, plan)
        found = assemble(setup)
        shown = 1 - self.runtime.overlap.p2p
        costs, before, times, first, ideals = [], 0.0, [], 0, []
        passes = question.passes(plan.samples)
        for index, (stage, own, memory) in enumerate(zip(plan.stages, found.stages, found.memory, strict=True)):
            parts = {part.name: part.value for part in memory.peak.parts}
            hop = 2 * shown * setup.ranks[index].hop
            lasting = [parts.get(name, 0.0) for name in ("weights", "master weights", "gradients", "optimizer moments")]
            kept = parts.get("activations in flight", 0.0)
            working = parts.get("working set of the pass", 0.0) + parts.get("optimizer temporaries", 0.0)
            cost = StageCost(
                work=own.forward + own.backward - own.recompute, recompute=own.recompute, receive=hop / 2, send=hop / 2,
                reshard=self._resharded(question, plan, index, first), weights=lasting[0] + lasting[1],
                gradients=lasting[2], states=lasting[3], kept=kept, peak=working,
                reserved=memory.total - sum(lasting) - kept - working,
            )  # fmt: skip
            costs.append(cost)
            times.append(found.iteration_seconds - found.makespan + passes * cost.seconds + before)
            before += cost.seconds
            ideals.append(self._ideal(question, plan, index, first))
            first += stage.size
        gpu_seconds = passes * sum(cost.seconds * stage.gpus for cost, stage in zip(costs, plan.stages, strict=True))
        made = PerOpCost(
            stages=tuple(costs), passes=passes, times=tuple(times), seconds=found.iteration_seconds,
            ideal=tuple(ideals), lost=tuple(cost.work - ideal for cost, ideal in zip(costs, ideals, strict=True)),
            spare=(), gpu_seconds=gpu_seconds, factor=question.memory_factor,
        )  # fmt: skip
        wholes = [ideal * stage.gpus for ideal, stage in zip(ideals, plan.stages, strict=True)]
        return with_spare(question, plan, made, wholes)

    def _resharded(self, question: OperatorQuestion, plan: PerOpPlan, index: int, first: int) -> float:
        stage, total = plan.stages[index], 0.0
        for at in range(1, stage.size):
            have, want = stage.layouts[at - 1 : at + 1]
            if have != want:
                bench = self.bench(question, plan.samples, want, len(plan.stages))
                total += sum(self.reshard(question.chain.rows[first + at], have, want, bench))
        return total

    def _ideal(self, question: OperatorQuestion, plan: PerOpPlan, index: int, first: int) -> float:
        """Work of the stage at the least tp over its GPUs."""
        stage = plan.stages[index]
        bench = self.bench(question, plan.samples, OperatorLayout(question.profile.tps[0], 1), len(plan.stages))
        work = [row.f.device + row.i.device + row.w.device for row in bench.rows]
        return sum(work[row] for row in question.chain.rows[first : first + stage.size]) / stage.gpus

    def pass_costs(self, question: OperatorQuestion, plan: PerOpPlan, *, split: bool) -> Costs:
        made = pass_costs(self.setup(question, plan), split=split)
        return replace(made, memory_limit=(question.limit,) * len(plan.stages))

    def iteration(self, question: OperatorQuestion, plan: PerOpPlan, makespan: float) -> float:
        """Seconds of an iteration whose passes take so long."""
        setup = self.setup(question, plan)
        updates = setup.by_contents(lambda rank: rank_update(setup, rank))
        shown = (hidden(*one, setup.strategy, self.runtime, makespan).exposed for one in updates)
        return makespan + max(shown) + self.beside(question.passes(plan.samples))

    def tables(self, question: OperatorQuestion, samples: int, gpus: int) -> Tables:
        return tables_below(self, question, samples, gpus)


def _runs(flags: tuple[bool, ...]) -> list[tuple[int, int]]:
    """Maximal runs [start, end) of recomputed operators."""
    edges = [index for index in range(len(flags) + 1)
             if (index < len(flags) and flags[index]) != (index > 0 and flags[index - 1])]  # fmt: skip
    return list(zip(edges[::2], edges[1::2], strict=True))


def _folded(blocks: list[Block]) -> list[BlockRun]:
    """Equal neighbours in one run; equal blocks are one object."""
    runs: list[BlockRun] = []
    for block in blocks:
        if runs and runs[-1].block is block:
            runs[-1] = BlockRun(block, runs[-1].repeat + 1)
        else:
            runs.append(BlockRun(block, 1))
    return runs


def widest(layouts: tuple[OperatorLayout, ...]) -> int:
    """GPUs over which a change between these splits moves anything."""
    return reduce(lcm, (layout.tp for layout in layouts))
