"""Tables of the full cost model: made of the operators that evaluation prices, additive, and below it by construction.

seconds   a pass takes `meet` of its kernels' and its host's seconds, a norm of the two: a x kernels + b x host is
          below it for every pass where (a, b) is its slope for some pass, here the whole model's in its best split
update    its slope at the whole model (it is concave: latency, then bytes) with what may hide left out, spread over
          the passes of the longest pipeline in which the stage can stand
bytes     what lasts, and what is kept; the working set of a pass only where it is sure
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwise.cost.chunk import chunk_of
from shardwise.cost.layer import stacked, whole_walk
from shardwise.cost.memory import footprint_of
from shardwise.cost.seconds import HOST_SHARE, SHOWN, meet
from shardwise.cost.update import beside_of, data_groups, update_of
from shardwise.ops.embedding import logits_bytes
from shardwise.ops.op import Op
from shardwise.per_op.question import OperatorQuestion
from shardwise.per_op.tables import Array, Tables, layouts_of

if TYPE_CHECKING:
    from shardwise.per_op.priced import Priced, PricedSplit

BARE = chunk_of((), 0.0)
Slope = tuple[float, float]


def tables_below(pricing: Priced, question: OperatorQuestion, samples: int, gpus: int) -> Tables:
    """Of all layouts of a stage of so many GPUs."""
    made = _Maker(pricing, question, samples, gpus)
    rows, starts = range(made.shape[1]), {part.first for part in pricing.parts}
    zeros = np.zeros(made.shape)
    again, work, cross, back = made.seconds()
    act, entry = made.kept()
    static, fixed = made.lasting()
    return Tables(
        layouts=made.layouts, gpus=gpus, rows=np.array(made.chain), forward=again, work=work + made.update(),
        act=act, made=zeros, sent=act, entry=entry, static=static, fixed=fixed, weights=zeros, reserved_f=zeros,
        reserved_b=zeros, starts=np.array([row in starts for row in rows]),
        may=np.array([pricing.may(row) for row in rows]), shared=np.zeros(len(rows), dtype=bool),
        cross=cross, cross_back=back, enter=np.zeros((2, *made.shape)), leave=made.leave(),
    )  # fmt: skip


class _Maker:
    """The operators of a stage in all of its layouts."""

    def __init__(self, pricing: Priced, question: OperatorQuestion, samples: int, gpus: int) -> None:
        self.pricing, self.question, self.gpus = pricing, question, gpus
        self.passes = question.passes(samples)
        self.chain = question.chain.rows
        self.layouts = layouts_of(question, samples, gpus)
        stages = 1 if gpus == question.gpus else 2
        self.benches = [pricing.bench(question, samples, layout, stages) for layout in self.layouts]
        self.shape = (len(self.layouts), len(question.profile.ops))
        following: dict[int, set[int]] = {}
        for row, after in zip(self.chain[:-1], self.chain[1:], strict=True):
            following.setdefault(row, set()).add(after)
        self.following = {row: sorted(after) for row, after in following.items()}

    def _array(self, rows: list[list[float]]) -> Array:
        return np.array(rows, dtype=float).reshape(self.shape)

    def seconds(self) -> tuple[Array, Array, Array, Array]:
        """What is made again, all passes, and resharding in both directions and backward alone."""
        forward, backward = (self._sides(back=back) for back in (False, True))
        slope_f, slope_b = self._slopes(forward, backward)
        again = self._array([self._again(bench, slope_b) for bench in self.benches])
        work = sum(a * kernels + b * host for (kernels, host), (a, b) in ((forward, slope_f), (backward, slope_b)))
        cross, back = self._crossings(slope_f[0], slope_b[0])
        return again, np.asarray(work), cross, back

    def _sides(self, *, back: bool) -> tuple[Array, Array]:
        """Seconds of the kernels and of the host."""
        machine = self.pricing.machine(self.passes)
        layer = machine.layer_b if back else machine.layer_f
        kernels, hosts = [], []
        for bench in self.benches:
            parts = [(row.i, row.w) if back else (row.f,) for row in bench.rows]
            kernels.append([sum(part.device for part in own) for own in parts])
            hosts.append([sum(part.host for part in own) for own in parts])
            for part in self.pricing.parts:
                hosts[-1][part.first] += layer if self.pricing.may(part.first) else 0.0
        return self._array(kernels), self._array(hosts)

    def _slopes(self, forward: tuple[Array, Array], backward: tuple[Array, Array]) -> tuple[Slope, Slope]:
        """Of both passes of the whole model in the split in which it is fastest."""
        if not self.layouts:
            return (1.0, 0.0), (1.0, 0.0)
        f, b = ([side[:, self.chain].sum(axis=1) for side in both] for both in (forward, backward))
        totals = [meet(d, h) + meet(e, i) for d, h, e, i in zip(*f, *b, strict=True)]
        best = totals.index(min(totals))
        return _slope(f[0][best], f[1][best]), _slope(b[0][best], b[1][best])

    def _again(self, bench: PricedSplit, slope: Slope) -> list[float]:
        """Of every row's second forward pass, a part of backward; a layer made again whole may stop early."""
        found = []
        for part in self.pricing.parts:
            rows = bench.rows[part.first : part.end]
            made = whole_walk(stacked(part.name, rows, self.pricing.machine(2), 0.0), bench.shard).recomputed
            found += [slope[0] * row.f.device + slope[1] * row.f.host if step in made else 0.0
                      for step, row in enumerate(rows)]  # fmt: skip
        return found

    def _crossings(self, share_f: float, share_b: float) -> tuple[Array, Array]:
        size = len(self.layouts)
        forth, back = np.zeros((self.shape[1], size, size)), np.zeros((self.shape[1], size, size))
        for row in range(1, self.shape[1]):
            for a, have in enumerate(self.layouts):
                for b, want in enumerate(self.layouts):
                    if have != want:
                        seconds = self.pricing.reshard(row, have, want, self.benches[b])
                        forth[row, a, b], back[row, a, b] = share_f * seconds[0], share_b * seconds[1]
        return forth + back, back

    def leave(self) -> Array:
        """What shows of a stage's sends, in both directions; the last stage is granted none."""
        found = np.zeros((2, len(self.layouts), *self.shape))
        shown = 2 * (1 - self.pricing.runtime.overlap.p2p)
        for crosses in (False, True):
            for index, (layout, bench) in enumerate(zip(self.layouts, self.benches, strict=True)):
                for row, following in self.following.items():
                    hops = (self.pricing.hop(after, layout, bench, self.gpus, crosses=crosses) for after in following)
                    found[int(crosses), :, index, row] = shown * min(hops)
        return found

    def kept(self) -> tuple[Array, Array]:
        """What each row's successor keeps at least, and what the first of a stage does."""
        pricing, over = self.pricing, 1 + self.pricing.runtime.memory.fragmentation
        low = over * self._array([[_stays(row.op) for row in bench.rows] for bench in self.benches])
        for part in pricing.parts:
            if pricing.may(part.first):  # of a layer that is recomputed whole its input is kept, and no more
                whole = over * np.array([bench.shard.residual for bench in self.benches])
                low[:, part.first] = np.minimum(low[:, part.first], whole)
        act = np.zeros(self.shape)
        for row, following in self.following.items():
            act[:, row] = low[:, following].min(initial=np.inf)  # the next may have any layout
        entry = self._array([[pricing.at_entry(row.op, index, own, bench).kept for index, row in enumerate(bench.rows)]
                             for own, bench in zip(self.layouts, self.benches, strict=True)])  # fmt: skip
        return act, np.minimum(low, over * entry)

    def lasting(self) -> tuple[Array, float]:
        """Bytes of every operator's parameters, and of what every stage takes beside them."""
        pricing, memory = self.pricing, self.pricing.runtime.memory
        found, fixed, last = [], [], self.chain[-1]
        over, lasting = 1 + memory.fragmentation, 1 + memory.lasting_fragmentation
        for bench in self.benches:
            none, dense, expert = (
                footprint_of([BARE._replace(params=params, expert_params=experts)], bench.shard, bench.strategy,
                             pricing.runtime, pricing.states, pricing.cluster.gpu.reserved)
                for params, experts in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
            )  # fmt: skip
            each = [lasting * (one.static - none.static) + over * one.kept_gradients for one in (dense, expert)]
            own = [row.op.params * each[row.op.expert] for row in bench.rows]
            # the model's last operator finds all that its stage keeps, and its own working set on top
            own[last] += over * bench.rows[last].op.extra_b + memory.loss_gaps * logits_bytes(bench.shard)
            found.append(own)
            fixed.append(none.context + lasting * none.static)
        return self._array(found), min(fixed, default=0.0)

    def update(self) -> Array:
        """The least that shows of an operator's update, spread so that no pipeline counts more than its largest."""
        pricing, question = self.pricing, self.question
        longest = min(1 + question.gpus - self.gpus, question.stage_range[-1] if len(question.stage_range) else 1)
        share = 1 / (self.passes + longest - 1)
        return self._array([[share * row.op.params * rate[row.op.expert] for row in bench.rows]
                            for bench in self.benches for rate in [self._rates(pricing, bench)]])  # fmt: skip

    def _rates(self, pricing: Priced, bench: PricedSplit) -> list[float]:
        """Seconds of update per parameter, of layers and of experts."""
        overlap, rates = pricing.runtime.overlap, []
        alike = [one for one in self.benches if one.strategy == bench.strategy]  # variants of one split
        for expert in (False, True):
            rows = [row for row in self.chain if bench.rows[row].op.expert == expert]
            total = sum(max(one.rows[row].op.params for one in alike) for row in rows)
            chunk = BARE._replace(params=0.0 if expert else total, expert_params=total if expert else 0.0)
            groups = data_groups(pricing.network, bench.strategy)
            one = update_of(
                [chunk], bench.strategy, pricing.runtime, pricing.states, groups, pricing.machine(2),
                pricing.cluster.host_bandwidth,
            )  # fmt: skip
            free = 1 - beside_of(groups, bench.strategy, 0.0, 0.0).taken
            shown = one.reduce * (1 - free * overlap.grad_reduce) + one.gather * (1 - free * overlap.param_gather)
            least = shown + one.optimizer
            rates.append(least / total if total else 0.0)
        return rates


def _slope(kernels: float, host: float) -> Slope:
    """The slope of `meet`."""
    if host < HOST_SHARE * kernels:
        return 1.0, 0.0
    both = meet(kernels, host) ** 3
    return SHOWN * kernels**3 / both, host**3 / both


def _stays(op: Op) -> float:
    """The least that an operator keeps of its input, recomputed or not."""
    return op.kept if op.stays < 0 else min(op.kept, op.stays)
