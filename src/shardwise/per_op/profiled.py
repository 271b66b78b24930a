"""The rows of a profile whose model is not known, priced as an estimate would be: what is known of an operator, how its
tensors lie, and its sends and collectives interpolated between the sizes that were measured.

Seconds and activation bytes are the profile's; the update, what the optimizer keeps and the rules of memory are those
of every estimate. A row keeps its output, an operator its inputs: what a row keeps is the next one's.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from shardwise.cost.kernels import Machine
from shardwise.cost.layer import Timed
from shardwise.cost.seconds import Seconds
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Strategy
from shardwise.ops.op import Op
from shardwise.ops.shard import Shard, shard_of
from shardwise.per_op.priced import ChainPart, Priced, PricedSplit
from shardwise.per_op.profiles.facts import OperatorFacts
from shardwise.per_op.profiles.table import Band, CollectiveSamples, Profile
from shardwise.per_op.question import OperatorLayout
from shardwise.per_op.tables import NEVER, Array, column


def send_seconds(size: float, band: Band) -> float:
    """One message to the neighbouring stage: linear in the logarithm of the size between measured sizes; a small
    message costs what the smallest did.
    """
    if size <= 0:
        return 0.0
    if size <= band.sizes[0]:
        return band.sizes[0] / band.rates[0]
    return size / float(np.interp(np.log(size), np.log(band.sizes), band.rates))


def collective_seconds(kind: str, gpus: int, size: float, profile: Profile) -> float:
    """One collective over `gpus` GPUs of one stage; splitting what is there already is free."""
    if kind in {"", "split"} or gpus == 1:
        return 0.0
    found = profile.collectives.get((kind, gpus))
    return _modelled(kind, gpus, size, profile) if found is None else float(_linear(found, max(size, 0.0)))


def _linear(found: CollectiveSamples, size: float) -> float:
    """Linear between measured sizes and beyond them; never below 0."""
    sizes, seconds = found.sizes, found.seconds
    if len(sizes) == 1:
        return seconds[0] * max(1.0, size / sizes[0])
    if sizes[0] <= size <= sizes[-1]:
        return float(np.interp(size, sizes, seconds))
    low, high = (0, 1) if size < sizes[0] else (len(sizes) - 2, len(sizes) - 1)
    slope = (seconds[high] - seconds[low]) / (sizes[high] - sizes[low])
    edge = seconds[0] if size < sizes[0] else seconds[-1]
    return max(min(edge, seconds[0]) / 4, edge + slope * (size - (sizes[0] if size < sizes[0] else sizes[-1])))


def _modelled(kind: str, gpus: int, size: float, profile: Profile) -> float:
    """A ring at the bandwidth between neighbours, for groups that were not measured."""
    band = profile.intra if gpus <= profile.tps[-1] else (profile.inter or profile.intra)
    rounds = 2 if kind == "all_reduce" else 1
    return rounds * size * (gpus - 1) / gpus / band.rates[-1] if size > 0 else 0.0


class Spec(NamedTuple):
    """A form under a tp and a dp: copies, and pieces of each dimension."""

    copies: int
    pieces: tuple[int, ...]


def spec(forms: tuple[str, ...], tp: int, dp: int, variant: int) -> Spec | None:
    if not forms:
        return None
    form = forms[variant if variant < len(forms) else 0]
    pieces = tuple({"1": 1, "d": dp, "t": tp}[letter] for letter in form)
    return Spec(1 if "t" in form else tp, pieces)


class Reshard(NamedTuple):
    """Collectives that turn one layout into another: forward, backward, and over how many GPUs."""

    forward: str
    backward: str
    gpus: int


NOTHING = Reshard("", "", 1)


def change(have: Spec | None, want: Spec | None) -> Reshard | None:
    """How to get from one layout to the next; none: there is no single collective for it."""
    if have is None or want is None or have == want:
        return NOTHING
    more = [w > h for h, w in zip(have.pieces, want.pieces, strict=True)]
    if have.copies > want.copies:
        ratio, rest = divmod(have.copies, want.copies)
        return Reshard("split", "all_gather", ratio) if any(more) and not rest else None
    for index, (h, w) in enumerate(zip(have.pieces, want.pieces, strict=True)):
        if h <= w:
            continue
        ratio, rest = divmod(h, w)
        if rest:
            return None
        if have.copies < want.copies:
            return Reshard("all_gather", "split", ratio)
        if any(flag for other, flag in enumerate(more) if other != index):
            return Reshard("all_to_all", "all_to_all", ratio)
    return None


MATRIX = 2.0**17
"""Bytes of weights from which on an operator has a matrix; norms and biases have less. Profiles do not split backward:
an operator with a matrix is taken to spend half of it on its weights."""


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
        self,
        profile: Profile,
        facts: tuple[OperatorFacts, ...],
        layers: int,
        cluster: Cluster,
        runtime: Runtime,
        base: Strategy,
    ) -> None:
        self.profile, self.facts = profile, facts
        super().__init__(_stand_in(profile, facts, layers, base.seq), cluster, runtime, base, tuple(_parts(facts)))

    def shard_of(self, strategy: Strategy) -> Shard:
        return shard_of(self.model, strategy, self.runtime, self.cluster.gpu)

    def may(self, row: int) -> bool:
        return self.facts[row].recompute

    def machine(self, passes: int, tp: int = 1) -> Machine:
        """Launches are in what was measured."""
        return super().machine(passes, tp)._replace(layer_f=0.0, layer_b=0.0)

    def _column(self, name: str, layout: OperatorLayout, micro_batch: int) -> Array:
        found: Array = np.maximum(column(self.profile, name, micro_batch, layout.tp, layout.variant), 0.0)
        return found

    def _sizes(self, layout: OperatorLayout, micro_batch: int) -> _Sizes:
        key = ("sizes", layout, micro_batch)
        if key not in self._known:
            inputs, acts = (self._column(name, layout, micro_batch) for name in ("input", "activations"))
            acts = acts * np.array([own.keeps for own in self.facts])
            kept = np.concatenate([inputs[:1], acts[:-1]])
            begins = [part.first for part in self.parts]
            kept[begins] = inputs[begins]
            kept[-1] += acts[-1]
            more = (self._column(name, layout, micro_batch) for name in ("reserved_f", "reserved_b"))
            self._known[key] = _Sizes(inputs, self._column("weights", layout, micro_batch), kept, *more)
        found: _Sizes = self._known[key]
        return found

    def make_rows(
        self, bench: PricedSplit, layout: OperatorLayout, machine: Machine, *, own_weights: bool
    ) -> tuple[Timed, ...]:
        del machine
        micro_batch = bench.strategy.micro_batch
        sizes = self._sizes(layout, micro_batch)
        times = [column(self.profile, name, micro_batch, layout.tp, layout.variant) for name in ("forward", "backward")]
        found, hidden = [], float(self.model.hidden)
        for row, name in enumerate(self.profile.ops):
            own, (forward, backward) = self.facts[row], (float(time[row]) for time in times)
            params = float(sizes.weights[row]) / own.width if own_weights or not own.shares else 0.0
            matrix = sizes.weights[row] >= MATRIX
            op = Op(
                name, name, "gemm" if matrix else "memory", (bench.shard.tokens, params / hidden, hidden),
                kept=float(sizes.kept[row]), extra_f=float(sizes.reserved_f[row]), extra_b=float(sizes.reserved_b[row]),
                params=params,
            )  # fmt: skip
            w = backward / 2 if matrix else 0.0
            found.append(Timed(op, Seconds(memory=forward), Seconds(memory=backward - w), Seconds(memory=w)))
        return tuple(found)

    def at_entry(self, op: Op, row: int, layout: OperatorLayout, bench: PricedSplit) -> Op:
        """Its input comes from outside, whatever else the row before keeps."""
        return op._replace(kept=float(self._sizes(layout, bench.strategy.micro_batch).inputs[row]))

    def reshard(self, row: int, have: OperatorLayout, want: OperatorLayout, bench: PricedSplit) -> tuple[float, float]:
        step = change(spec(self.facts[row - 1].outputs, *have), spec(self.facts[row].inputs, *want))
        if step is None:
            return NEVER, 0.0
        size = float(self._sizes(want, bench.strategy.micro_batch).inputs[row])
        forth, back = (collective_seconds(kind, step.gpus, size, self.profile) for kind in step[:2])
        return forth, back

    def hop(self, row: int, layout: OperatorLayout, bench: PricedSplit, gpus: int, *, crosses: bool) -> float:
        """Slices over tp are sent and gathered on arrival."""
        del gpus
        size = float(self._sizes(layout, bench.strategy.micro_batch).inputs[row])
        band = (self.profile.inter or self.profile.intra) if crosses else self.profile.intra
        return send_seconds(size / layout.tp, band) + collective_seconds("all_gather", layout.tp, size, self.profile)


def _parts(facts: tuple[OperatorFacts, ...]) -> list[ChainPart]:
    """Where a layer starts, and where layers begin and end."""
    starts = [row for row, own in enumerate(facts)
              if row == 0 or own.starts_layer or own.recompute != facts[row - 1].recompute]  # fmt: skip
    return [ChainPart("rows", first, end) for first, end in zip(starts, [*starts[1:], len(facts)], strict=True)]


def _stand_in(profile: Profile, facts: tuple[OperatorFacts, ...], layers: int, seq: int) -> Model:
    """A model whose hidden state has the bytes of a profiled layer's input."""
    row = next((index for index, own in enumerate(facts) if own.starts_layer), 0)
    size = float(profile.column("input")[0, 0, 0, row]) / profile.micro_batches[0]
    hidden = max(1, round(size / (facts[row].width * seq)))
    tied = any(own.shares for own in facts)
    return Model(name=profile.name, layers=layers, hidden=hidden, heads=1, kv_heads=1, head_size=hidden, ffn=hidden,
                 vocab=1, position="none", tied=tied)  # fmt: skip


def dtype_of(facts: tuple[OperatorFacts, ...]) -> Literal["bf16", "fp32"]:
    """What update, gradients and optimizer states are reckoned for: fp32 where all weights are."""
    return "fp32" if all(own.dtype == "fp32" for own in facts) else "bf16"
