"""The rows of a profile whose model is not known, priced as an estimate would be.

Seconds and activation bytes are the profile's; the update, what the optimizer keeps and the rules of memory are those
of every estimate. A row keeps its output, an operator its inputs: what a row keeps is the next one's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwise.cost.kernels import Machine
from shardwise.cost.layer import Seconds, Timed
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.ops.op import Op
from shardwise.ops.shard import Shard, shard_of
from shardwise.per_op.lookups import collective_seconds, send_seconds
from shardwise.per_op.priced import Bench, Part, Priced
from shardwise.per_op.profiles.table import Profile
from shardwise.per_op.question import Layout
from shardwise.per_op.rules import Rule, change, spec
from shardwise.per_op.tables import NEVER, Array, column

MATRIX = 2.0**17
"""Bytes of weights from which on an operator has a matrix; norms and biases have less. Profiles do not split backward:
an operator with a matrix is taken to spend half of it on its weights."""
WEIGHT = 2.0
"""Bytes of a profiled weight."""


class _Sizes(NamedTuple):
    """Bytes of every row at one split."""

    inputs: Array
    weights: Array
    kept: Array
    reserved_f: Array
    reserved_b: Array


class Profiled(Priced):
    """The full cost model of a profile."""

    opens = True

    def __init__(
        self, profile: Profile, rules: tuple[Rule, ...], layers: int, cluster: Cluster, runtime: Runtime, base: Strategy
    ) -> None:
        self.profile, self.rules = profile, rules
        super().__init__(_stand_in(profile, rules, layers, base.seq), cluster, runtime, base, tuple(_parts(rules)))

    def shard_of(self, strategy: Strategy) -> Shard:
        return shard_of(self.model, strategy, self.runtime)

    def may(self, row: int) -> bool:
        return self.rules[row].recompute

    def machine(self, passes: int) -> Machine:
        """Launches are in what was measured."""
        return super().machine(passes)._replace(layer_f=0.0, layer_b=0.0)

    def _column(self, name: str, layout: Layout, samples: int) -> Array:
        found: Array = np.maximum(column(self.profile, name, samples, layout.tp, layout.variant), 0.0)
        return found

    def _sizes(self, layout: Layout, samples: int) -> _Sizes:
        key = ("sizes", layout, samples)
        if key not in self._known:
            inputs, acts = (self._column(name, layout, samples) for name in ("input", "activations"))
            acts = acts * np.array([rule.share for rule in self.rules])
            kept = np.concatenate([inputs[:1], acts[:-1]])
            begins = [part.first for part in self.parts]
            kept[begins] = inputs[begins]
            kept[-1] += acts[-1]
            more = (self._column(name, layout, samples) for name in ("reserved_f", "reserved_b"))
            self._known[key] = _Sizes(inputs, self._column("weights", layout, samples), kept, *more)
        found: _Sizes = self._known[key]
        return found

    def make_rows(self, bench: Bench, layout: Layout, machine: Machine, *, own_weights: bool) -> tuple[Timed, ...]:
        del machine, own_weights
        samples = bench.strategy.micro_batch
        sizes = self._sizes(layout, samples)
        times = [column(self.profile, name, samples, layout.tp, layout.variant) for name in ("forward", "backward")]
        found, hidden = [], float(self.model.hidden)
        for row, name in enumerate(self.profile.ops):
            params, (forward, backward) = float(sizes.weights[row]) / WEIGHT, (float(time[row]) for time in times)
            matrix = sizes.weights[row] >= MATRIX
            op = Op(
                name, name, "gemm" if matrix else "memory", (bench.shard.tokens, params / hidden, hidden),
                kept=float(sizes.kept[row]), extra_f=float(sizes.reserved_f[row]), extra_b=float(sizes.reserved_b[row]),
                params=params,
            )  # fmt: skip
            w = backward / 2 if matrix else 0.0
            found.append(Timed(op, Seconds(memory=forward), Seconds(memory=backward - w), Seconds(memory=w)))
        return tuple(found)

    def at_entry(self, op: Op, row: int, layout: Layout, bench: Bench) -> Op:
        """Its input comes from outside, whatever else the row before keeps."""
        return op._replace(kept=float(self._sizes(layout, bench.strategy.micro_batch).inputs[row]))

    def reshard(self, row: int, have: Layout, want: Layout, bench: Bench) -> tuple[float, float]:
        step = change(spec(self.rules[row - 1].outputs, *have), spec(self.rules[row].inputs, *want))
        if step is None:
            return NEVER, 0.0
        size = float(self._sizes(want, bench.strategy.micro_batch).inputs[row])
        forth, back = (collective_seconds(kind, step.gpus, size, self.profile) for kind in step[:2])
        return forth, back

    def hop(self, row: int, layout: Layout, bench: Bench, gpus: int, *, crosses: bool) -> float:
        """Slices over tp are sent and gathered on arrival."""
        del gpus
        size = float(self._sizes(layout, bench.strategy.micro_batch).inputs[row])
        band = (self.profile.inter or self.profile.intra) if crosses else self.profile.intra
        return send_seconds(size / layout.tp, band) + collective_seconds("all_gather", layout.tp, size, self.profile)


def _parts(rules: tuple[Rule, ...]) -> list[Part]:
    """Where a layer starts, and where layers begin and end."""
    starts = [row for row, rule in enumerate(rules)
              if row == 0 or rule.starts_layer or rule.recompute != rules[row - 1].recompute]  # fmt: skip
    return [Part("rows", first, end) for first, end in zip(starts, [*starts[1:], len(rules)], strict=True)]


def _stand_in(profile: Profile, rules: tuple[Rule, ...], layers: int, seq: int) -> Model:
    """A model whose hidden state has the bytes of a profiled layer's input."""
    row = next((index for index, rule in enumerate(rules) if rule.starts_layer), 0)
    size = float(profile.column("input")[0, 0, 0, row]) / profile.micro_batches[0]
    hidden = max(1, round(size / (2 * seq)))
    return Model(name=profile.name, layers=layers, hidden=hidden, heads=1, kv_heads=1, head_size=hidden, ffn=hidden,
                 vocab=1, position="none")  # fmt: skip
