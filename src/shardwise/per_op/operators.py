"""The operators of a model, priced by `ops` and `cost` as an estimate does; their seconds may have been measured."""

from __future__ import annotations

from shardwise.cost.kernels import Machine
from shardwise.cost.layer import Timed, timed
from shardwise.cost.network import all_to_all, hand_over, send
from shardwise.estimate.setup import layer_groups
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.ops.embedding import embedding, head
from shardwise.ops.layer import layer_kinds, layer_ops
from shardwise.ops.op import Op
from shardwise.ops.shard import Shard, shard_of
from shardwise.per_op.priced import ChainPart, Priced, PricedSplit, widest
from shardwise.per_op.profiles.analytic import communication
from shardwise.per_op.profiles.table import Profile
from shardwise.per_op.question import OperatorLayout, OperatorQuestion, PerOpPlan
from shardwise.per_op.tables import column
from shardwise.per_op.whole import planned


class OperatorPricing(Priced):
    """The full cost model of a known model."""

    def __init__(
        self, model: Model, cluster: Cluster, runtime: Runtime, base: Strategy, measured: Profile | None = None
    ) -> None:
        """`measured`: a profile of the model's own rows whose seconds stand in for ours."""
        self.kinds = list(dict.fromkeys(layer_kinds(model)))
        self.measured = measured
        parts, at = [], 0
        shard = shard_of(model, base, runtime, cluster.gpu)
        for name, ops in self._ops(model, shard, own_weights=True):
            parts.append(ChainPart(name, at, at + len(ops)))
            at += len(ops)
        super().__init__(model, cluster, runtime, base, tuple(parts))

    def whole_plans(self, question: OperatorQuestion) -> tuple[PerOpPlan, ...]:
        even = super().whole_plans(question)
        if self.cluster.gpus != question.gpus or question.space == "compatible":
            return even
        return even + planned(question, self.model, self.cluster, self.runtime, self.base)

    def _ops(self, model: Model, shard: Shard, *, own_weights: bool) -> list[tuple[str, list[Op]]]:
        del model
        layers = [(kind.name, layer_ops(shard, kind)) for kind in self.kinds]
        return [("embedding", embedding(shard)), *layers, ("head", head(shard, own_weights=own_weights))]

    def shard_of(self, strategy: Strategy) -> Shard:
        return shard_of(self.model, strategy, self.runtime, self.cluster.gpu)

    def make_rows(
        self, bench: PricedSplit, layout: OperatorLayout, machine: Machine, *, own_weights: bool
    ) -> tuple[Timed, ...]:
        groups = layer_groups(self.network, bench.strategy, self.runtime)
        ops = [op for _, own in self._ops(self.model, bench.shard, own_weights=own_weights) for op in own]
        rows = [timed(op, bench.shard, machine, groups) for op in ops]
        if self.measured is None:
            return tuple(rows)
        micro_batch = bench.strategy.micro_batch
        seconds = [column(self.measured, name, micro_batch, layout.tp, 0) for name in ("forward", "backward")]
        return tuple(self._measured(row, layout.tp, *(float(own[index]) for own in seconds))
                     for index, row in enumerate(rows))  # fmt: skip

    def _measured(self, row: Timed, tp: int, forward: float, backward: float) -> Timed:
        """The row with its kernels' seconds replaced; collectives are the cluster's either way."""
        sent, sent_back = communication(row.op, tp, self.network)
        forward, backward = max(0.0, forward - sent), max(0.0, backward - sent_back)
        kind = {"grouped": "gemm"}.get(row.op.kind, row.op.kind)
        ours = row.i.compute + row.w.compute
        share = row.i.compute / ours if ours else 1.0
        return row._replace(
            f=row.f._replace(**{kind: forward}),
            i=row.i._replace(**{kind: backward * share}),
            w=row.w._replace(**{kind: backward * (1 - share)}),
        )

    def reshard(self, row: int, have: OperatorLayout, want: OperatorLayout, bench: PricedSplit) -> tuple[float, float]:
        """Every rank has its share of the tensor and wants another: an exchange among the ranks of the wider split."""
        size = bench.shard.hidden / (1 if bench.shard.sp else bench.shard.tp)
        size += self._inside(row, bench)
        seconds = all_to_all(self.network.group(widest((have, want)), 1), size)
        return seconds, seconds

    def _inside(self, row: int, bench: PricedSplit) -> float:
        """Bytes that travel beside the residual stream where a layer is cut in two."""
        return 0.0 if row == self.parts[self.of_row[row]].first else bench.rows[row].op.kept

    def hop(self, row: int, layout: OperatorLayout, bench: PricedSplit, gpus: int, *, crosses: bool) -> float:
        del layout
        distance = max(gpus, self.network.sizes[0]) if crosses else gpus
        inside = self._inside(row, bench)
        more = send(self.network, distance, inside) if inside else 0.0
        return hand_over(self.network, distance, bench.shard) + more
