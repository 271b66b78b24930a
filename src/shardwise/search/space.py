"""Every strategy that the model, the cluster and the runtime allow, and how many there are along each axis.

Limits of the space that are choices, not proofs: tp stays inside the innermost domain of the network (at least 8), a
context parallel rank keeps 1,024 tokens or more, micro batches go up to 16 samples or, of short ones, to about 64k
tokens (one size an octave), experts have etp 1 or tp, HSDP shards inside a node, chunks number up to 8 a rank where
they do not divide the layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product
from math import gcd
from typing import Any

from shardwise.check.check import check
from shardwise.check.runtime import dispatchers_on
from shardwise.inputs.mixed import Mixed, kinds_of, shared_batches
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import V_SCHEDULES, Strategy
from shardwise.search.micro_batches import divisors, micro_batches
from shardwise.search.question import Base, Layout, Point, Question, ShardingChoice
from shardwise.search.recomputes import AS_NEEDED, RecomputeKind, recompute_choices

LEAST_TOKENS = 1024
MOST_UNEVEN_CHUNKS = 8
SEARCHED = ("1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v", "gpipe")
MIXED_SEARCHED = ("1f1b",)
"""The same where kinds of GPU hold different stages: the order of which every cut is proven; others when named."""
BEATEN = {"all-to-all": "deepep", "all-gather": "deepep", "hybridep": "deepep"}
"""Dispatchers whose layers take and keep no less than another's (a law of the tests): searched where a runtime lacks
that other one, or where they are asked for."""
SWITCHES = ("compile", "dispatcher", "ep_overlap", "cuda_graphs", "offload", "grad_dtype", "optimizer", "rank_order")
"""Axes of a base that split nothing."""
AXIS_NAMES = ("tp", "sp", "cp", "pp", "vpp", "schedule", "dp", "ep", "etp", "zero", "mbs", "recompute", *SWITCHES)


@lru_cache(maxsize=1024)
def _said(recompute: Recompute) -> str:
    if recompute.layers == AS_NEEDED:
        return f"{replace(recompute, layers=())}, layers by stage"
    return "full, first N layers of a chunk" if recompute.layers else str(recompute)


def axes_apart(one: Base, other: Base) -> int:
    """In how many axes two bases differ; the ranks that one axis takes or leaves are data parallel."""
    names = ("tp", "sp", "ep", "etp", "micro_batch", *SWITCHES)
    differ = [name for name in names if getattr(one, name) != getattr(other, name)]
    return len(differ) + ((one.cp, one.cp_kind) != (other.cp, other.cp_kind))


def apart(one: Point, other: Point) -> int:
    """The same of two points: beside their bases, the pipeline's depth, its chunks and order, sharding, recompute."""
    a, b = one.layout, other.layout
    orders = (a.vpp, a.schedule, a.group) != (b.vpp, b.schedule, b.group)
    differ = (a.pp != b.pp, orders, one.sharding != other.sharding, one.recompute != other.recompute)
    return axes_apart(one.base, other.base) + sum(differ)


@dataclass(frozen=True, kw_only=True)
class Space:
    """The strategies of one question."""

    question: Question
    _known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def bases(self) -> tuple[Base, ...]:
        """Every base over which at least one strategy stands, in a fixed order."""
        return tuple(base for base in self._bases() if self.size(base))

    def layouts(self, base: Base) -> tuple[Layout, ...]:
        """The pipelines over a base."""
        alone = self.question.runtime.can.together or base.tp * base.cp == 1
        bare, overlap = self._mixes and (base.tp > 1, base.cp > 1), base.ep_overlap
        key = ("layouts", base.tp * base.cp, base.ep * base.etp, base.micro_batch, base.single, alone, bare, overlap,
               base.rank_order)  # fmt: skip
        if key not in self._known:
            self._known[key] = tuple(self._layouts(base))
        found: tuple[Layout, ...] = self._known[key]
        return found

    def shardings(self, base: Base, layout: Layout) -> tuple[ShardingChoice, ...]:
        key = ("shardings", base.tp, base.cp, base.ep, base.etp, layout.dp, layout.pp > 1, base.rank_order)
        if key not in self._known:
            self._known[key] = tuple(self._shardings(base, layout))
        found: tuple[ShardingChoice, ...] = self._known[key]
        return found

    def recomputes(self, base: Base, layout: Layout) -> tuple[Recompute, ...]:
        """Whole-layer blocks come last, fewest layers first."""
        return self._recomputed(layout, self._kind(base))

    def every_recompute(self, layout: Layout) -> tuple[Recompute, ...]:
        """Those of all bases, in the order in which each base has its own."""
        return self._recomputed(layout, RecomputeKind(overlap=False, whole=True, parts=True))

    def _kind(self, base: Base) -> RecomputeKind:
        """Layers that are recomputed whole are not captured; all others run in the graphs that cover most."""
        key = ("kind", base.cuda_graphs, base.dispatcher, base.offload, base.ep_overlap)
        if key not in self._known:
            most = self._graphs(base.dispatcher, base.offload)[:1] == [base.cuda_graphs]
            whole = base.cuda_graphs == "none"
            self._known[key] = RecomputeKind(overlap=base.ep_overlap, whole=whole, parts=most)
        found: RecomputeKind = self._known[key]
        return found

    def _recomputed(self, layout: Layout, kind: RecomputeKind) -> tuple[Recompute, ...]:
        key = -(-self.question.model.depth // (layout.pp * layout.vpp)), kind
        if key not in self._known:
            self._known[key] = tuple(self.question.wishes.kept("recompute", recompute_choices(self.question, *key)))
        found: tuple[Recompute, ...] = self._known[key]
        return found

    def strategy(self, point: Point) -> Strategy:
        """The strategy of a point, its layers spread evenly."""
        base, layout, sharding, recompute = point
        return replace(
            self.question.base, tp=base.tp, sp=base.sp, cp=base.cp, cp_kind=base.cp_kind, ep=base.ep, etp=base.etp,
            micro_batch=base.micro_batch, **{name: getattr(base, name) for name in SWITCHES},
            pp=layout.pp, vpp=layout.vpp, schedule=layout.schedule, group=layout.group,
            dp=layout.dp, placement="v" if layout.schedule in V_SCHEDULES else "loop", zero=sharding.zero,
            zero_group=sharding.group, recompute=recompute,
        )  # fmt: skip

    def points(self) -> Iterator[Point]:
        """Every point, one by one, in the order of the search's indices."""
        for base in self.bases:
            for layout in self.layouts(base):
                for sharding in self.shardings(base, layout):
                    yield from (Point(base, layout, sharding, recompute) for recompute in self.recomputes(base, layout))

    def size(self, base: Base) -> int:
        """How many strategies stand over a base."""
        key = ("size", *self._shape(base))
        if key not in self._known:
            self._known[key] = self._size(base)
        found: int = self._known[key]
        return found

    def _size(self, base: Base) -> int:
        return sum(len(self.shardings(base, one)) * len(self.recomputes(base, one)) for one in self.layouts(base))

    def _shape(self, base: Base) -> tuple[object, ...]:
        """What is stacked over a base depends on these alone."""
        return (base.tp, base.cp, base.ep, base.etp, base.micro_batch, base.single, base.rank_order, self._kind(base))

    def count(self) -> tuple[int, dict[str, dict[str, int]]]:
        """How many strategies there are, in all and by the value of every axis."""
        axes: dict[str, Counter[Any]] = {name: Counter() for name in AXIS_NAMES}
        shapes: dict[tuple[object, ...], list[Base]] = {}
        for base in self.bases:
            shapes.setdefault(self._shape(base), []).append(base)
        stacked = Counter[tuple[Layout, tuple[ShardingChoice, ...], RecomputeKind]]()
        for bases in shapes.values():
            for layout in self.layouts(bases[0]):
                shardings = self.shardings(bases[0], layout)
                stacked[layout._replace(microbatches=0), shardings, self._kind(bases[0])] += len(bases)
            rows = self.size(bases[0])
            for base in bases:
                cp = f"{base.cp}" if base.cp == 1 else f"{base.cp}:{base.cp_kind}"
                axes["cp"][cp] += rows
                axes["mbs"][base.micro_batch] += rows
                for name in ("tp", "ep", "etp", "sp", *SWITCHES):
                    value = getattr(base, name)
                    axes[name][("off", "on")[value] if isinstance(value, bool) else value] += rows
        for (layout, shardings, kind), number in stacked.items():
            recomputes = self._recomputed(layout, kind)
            for name, value in zip(("pp", "vpp", "schedule", "dp"), layout, strict=False):
                axes[name][value] += number * len(shardings) * len(recomputes)
            for sharding in shardings:
                text = f"{sharding.zero}" + (f" in groups of {sharding.group}" if sharding.group else "")
                axes["zero"][text] += number * len(recomputes)
            for recompute in recomputes:
                axes["recompute"][_said(recompute)] += number * len(shardings)
        shown = {name: {str(value): found[value] for value in sorted(found)} for name, found in axes.items()}
        return sum(axes["tp"].values()), shown

    def _bases(self) -> Iterator[Base]:
        q = self.question
        inner = (
            q.wishes.kept("mbs", self._samples()),
            self._choices("compile", (False,) if q.model.traced else q.runtime.can.compile),
            (False, True) if self._tells_single else (False,),
        )
        states = (
            self._choices("offload", (q.base.offload,)),
            self._choices("grad_dtype", (q.base.grad_dtype,)),
            self._choices("optimizer", (q.base.optimizer,)),
            [one for one in self._choices("rank_order", (q.base.rank_order,)) if one in q.runtime.can.rank_orders],
        )
        for tp in q.wishes.kept("tp", self._tps()):
            for sp in q.wishes.kept("sp", self._sps(tp)):
                for cp, kind in self._contexts(tp, sp=sp):
                    for ep, etp in self._experts(tp):
                        for size, compiled, single, *rest, sent in (
                            (*one, sent) for one in product(*inner, *states) for sent in self._sent(ep, one[3])
                        ):
                            yield Base(tp, sp, cp, kind, ep, etp, size, compiled, single, *sent, *rest)  # type: ignore[arg-type]

    def _choices(self, axis: str, values: Iterable[Any]) -> list[Any]:
        """Those given and those asked for by name, as far as they are allowed."""
        return self.question.wishes.kept(axis, dict.fromkeys([*values, *self.question.wishes.named(axis)]))

    def _sent(self, ep: int, offload: str) -> Iterator[tuple[str, bool, str]]:
        """How tokens reach their experts, whether behind other work, and what CUDA graphs cover.

        Of graphs that are named those that cover most are never slower; `Search` drops them where they bring nothing.
        """
        q, can = self.question, self.question.runtime.can
        able = ep > 1 and can.ep_overlap
        overlaps = [one for one in self._choices("ep_overlap", (q.base.ep_overlap,)) if able or not one]
        for way, overlap in product(self._ways(ep), overlaps):
            if not overlap or way != "all-gather":
                yield from ((way, overlap, graphs) for graphs in self._graphs(way, offload))

    def _ways(self, ep: int) -> list[str]:
        """Dispatchers, but those that another one beats."""
        q = self.question
        if ep == 1:
            return self._choices("dispatcher", (q.base.dispatcher,))
        able = dispatchers_on(q.cluster, q.runtime)
        found, named = q.wishes.kept("dispatcher", able), q.wishes.named("dispatcher")
        if "layer" in q.wishes.named("cuda_graphs"):  # whole layers with experts are captured with this one alone
            named = (*named, "hybridep")
        return [way for way in found if way in named or BEATEN.get(way) not in found]

    def _graphs(self, way: str, offload: str) -> list[str]:
        """What CUDA graphs cover: as asked for, or of what is named as much as can be, and nothing for layers that are
        recomputed whole. Whole layers with experts need a dispatcher that pads, at a cost that is not known.
        """
        q, moe, named = self.question, self.question.model.moe, self.question.wishes.named("cuda_graphs")
        fixed = moe is None or moe.capacity is not None or (way == "hybridep" and "layer" in named)
        able = [
            graphs
            for graphs in (q.runtime.can.graphs if named else (q.base.cuda_graphs,))
            if graphs != "layer" or fixed
        ]
        found = q.wishes.kept("cuda_graphs", able if offload != "activations" else able[:1])
        return list(dict.fromkeys((*found[-1:], *(one for one in found if one == "none"))))

    def _sps(self, tp: int) -> tuple[bool, ...]:
        """With experts and without sequence parallel nothing is won; without tensor parallel it means nothing, and what
        was traced knows none.
        """
        can = self.question.runtime.can.sp
        if self.question.model.traced and tp > 1:
            return (False,) if False in can else ()
        if tp == 1 or (self.question.model.moe is not None and True in can):
            return (True,)
        return can

    @property
    def _mixes(self) -> bool:
        """Whether 16 bits are FSDP's affair, so that tensor and pipeline parallel need sharded states beside them."""
        q = self.question
        return not q.runtime.can.mixed_alone and q.base.dtype != "fp32" and q.base.master != "pure"

    @property
    def _tells_single(self) -> bool:
        runtime = self.question.runtime
        return not runtime.kernels.weight_grad_fusion or runtime.memory.gradients == "lazy"

    def _tps(self) -> list[int]:
        q = self.question
        most = max(8, q.cluster.levels[0].size if q.cluster.levels else 1) if self._splits else 1
        return divisors(gcd(q.cluster.gpus, q.model.heads), most)

    @property
    def _splits(self) -> bool:
        """Whether tensor parallel is there for this model."""
        can = self.question.runtime.can
        return can.tp and (can.tp_experts or self.question.model.moe is None)

    def _contexts(self, tp: int, *, sp: bool) -> Iterator[tuple[int, str]]:
        q = self.question
        can = q.runtime.can.cp
        for cp in q.wishes.kept("cp", divisors(q.cluster.gpus // tp, max(1, q.base.seq // LEAST_TOKENS))):
            if cp > 1 and (not can or (tp > 1 and not q.runtime.can.together)):
                continue
            if cp > 1 and q.runtime.can.cp_plain and (q.model.mla or any(q.model.windows)):
                continue
            for kind in q.wishes.kept("cp_kind", can) if cp > 1 else ["ring"]:
                if not self._faults(tp, cp, kind, sp=sp):
                    yield cp, kind

    def _faults(self, tp: int, cp: int, kind: str, *, sp: bool) -> bool:
        """Whether the rules refuse it whatever the other axes are."""
        q = self.question
        dp = q.cluster.gpus // (tp * cp)
        if q.cluster.gpus % (tp * cp):
            return True
        zero = min(q.runtime.can.zero)
        probe = replace(
            q.base, tp=tp, cp=cp, cp_kind=kind, sp=sp, dp=dp, global_batch=dp, pp=1, zero=zero,  # type: ignore[arg-type]
            ep_overlap=False, master="pure",  # what must be sharded to be mixed is told by `_shardings`
        )  # fmt: skip
        return bool(check(q.model, q.cluster, probe, q.runtime))

    def _experts(self, tp: int) -> Iterator[tuple[int, int]]:
        q, moe, can = self.question, self.question.model.moe, self.question.runtime.can
        if moe is None:
            yield from [(1, 1)] if q.wishes.allow("ep", 1) and q.wishes.allow("etp", 1) else []
            return
        for etp in q.wishes.kept("etp", sorted({1, tp}) if can.etp else [1]):
            if moe.expert_ffn % etp:
                continue
            for ep in q.wishes.kept("ep", divisors(moe.experts, moe.experts) if can.ep else [1]):
                if q.cluster.gpus % (ep * etp) == 0 and not (can.mesh and ep == 1 and tp > etp):
                    yield ep, etp

    def _samples(self) -> list[int]:
        q = self.question
        named = [size for size in q.wishes.named("mbs") if q.base.global_batch % size == 0]
        return sorted({*micro_batches(q.model, q.base), *named})

    def _layouts(self, base: Base) -> Iterator[Layout]:
        q = self.question
        ranks = q.cluster.gpus // (base.tp * base.cp)
        piped = q.runtime.can.pp and (q.runtime.can.together or base.tp * base.cp == 1)
        piped = piped and (q.runtime.can.tied_with_pp or not q.model.tied)
        piped = piped and (q.runtime.can.ep_with_pp or base.ep == 1)
        piped = piped and (not isinstance(q.cluster, Mixed) or "stages" in q.runtime.can.mixed)
        for pp in q.wishes.kept("pp", divisors(ranks, q.model.depth) if piped else [1]):
            dp = ranks // pp
            if q.base.global_batch % (dp * base.micro_batch) and not (pp == 1 and self._has_shares(base)):
                continue
            alike = base.ep * base.etp if pp == 1 else base.tp * base.cp * dp
            if isinstance(q.cluster, Mixed) and any(kind.gpus % alike for kind in q.cluster.kinds):
                continue
            if base.tp * base.cp * dp % (base.ep * base.etp) or not q.wishes.allow("dp", dp):
                continue
            if base.rank_order == "pp-dp" and not self._stays_together(base, pp):
                continue
            if self._mixes and base.tp * pp > 1 and dp * base.cp == 1:
                continue
            count = max(1, q.base.global_batch // (dp * base.micro_batch))
            if self._tells_single and base.single != (count == 1):
                continue
            for vpp, schedule in self._orders(pp, count):
                # another micro batch's chunk runs beside the exchange
                if not base.ep_overlap or (count > 1 and (vpp > 1 or pp == 1)):
                    yield from (Layout(pp, vpp, schedule, dp, count, one) for one in self._rounds(schedule, pp, count))

    def _stays_together(self, base: Base, pp: int) -> bool:
        """Whether ranks may be numbered pipeline by pipeline: experts must live inside a replica's stage."""
        q = self.question
        inside = q.model.moe is None or base.ep * base.etp == base.tp * base.cp
        return pp > 1 and inside and not isinstance(q.cluster, Mixed)

    def _rounds(self, schedule: str, pp: int, count: int) -> list[int]:
        """Micro batches that a chunk runs in a row (0: pp): others where they are named."""
        named = [size for size in self.question.wishes.named("group") if size]
        usual = [0] if schedule != "interleaved" or count % pp == 0 else []
        if schedule == "interleaved":
            usual += [size for size in named if pp <= size <= count and not 0 < count % size < pp]
        return self.question.wishes.kept("group", usual)

    @property
    def batches_by_kind(self) -> bool:
        """Whether replicas on different kinds of GPU may have different numbers of micro batches."""
        q = self.question
        return isinstance(q.cluster, Mixed) and "batches" in q.runtime.can.mixed and max(q.runtime.can.zero) < 2

    def _has_shares(self, base: Base) -> bool:
        q = self.question
        if not self.batches_by_kind or q.base.global_batch % base.micro_batch:
            return False
        replicas = tuple(kind.gpus // (base.tp * base.cp) for kind in kinds_of(q.cluster))
        return any(shared_batches(replicas, q.base.global_batch // base.micro_batch))

    def _orders(self, pp: int, count: int) -> Iterator[tuple[int, str]]:
        q, layers = self.question, self.question.model.depth
        searched = MIXED_SEARCHED if isinstance(q.cluster, Mixed) else SEARCHED
        allowed = [name for name in q.runtime.can.schedules if name in {*searched, *q.wishes.named("schedule")}]
        for schedule in q.wishes.kept("schedule", allowed) if pp > 1 else ["1f1b"]:
            if schedule == "interleaved":
                chunks = range(2, layers // pp + 1) if self._rounds(schedule, pp, count) else range(0)
            elif schedule in V_SCHEDULES:
                chunks = range(2, 3) if layers >= 2 * pp and self._runs_v(pp, count) else range(0)
            else:
                chunks = range(1, 2)
            if schedule == "dualpipe-v" and count < 2 * pp:
                continue
            for vpp in q.wishes.kept("vpp", chunks):
                even = layers % (pp * vpp) == 0
                if even or (q.runtime.can.uneven_layers and vpp <= MOST_UNEVEN_CHUNKS):
                    yield vpp, schedule

    def _runs_v(self, pp: int, count: int) -> bool:
        limits = [pp * number for number in self.question.runtime.can.v_microbatches]
        return not limits or (limits[0] <= count and (len(limits) == 1 or count <= limits[1]))

    def _shardings(self, base: Base, layout: Layout) -> Iterator[ShardingChoice]:
        q, can = self.question, self.question.runtime.can
        stages = [zero for zero in can.zero if layout.pp == 1 or zero in can.zero_with_pp]
        if base.cp > 1:
            stages = [zero for zero in stages if zero in can.zero_with_cp]
        if base.ep > 1 and base.cp > 1:
            stages = [zero for zero in stages if zero in can.zero_with_ep_cp]
        ranks = layout.dp * (base.cp if can.shards_over_cp else 1)
        if not can.replicas and layout.dp * base.cp > 1:
            stages = [zero for zero in stages if zero]
        stages = q.wishes.kept("zero", stages)
        copies = base.tp * base.cp * layout.dp // (base.ep * base.etp) if q.model.moe else 1
        if ranks == 1 and copies <= 1:  # nothing to share, no experts' states either: all stages are the same
            stages = stages[:1] if can.shards_over_cp else [zero for zero in stages if not zero]
        if self._mixes and base.tp * layout.pp > 1:
            stages = [zero for zero in stages if zero]
        for zero in stages:
            groups = q.wishes.kept("hsdp", self._groups(base, layout, ranks) if zero else [0])
            yield from (ShardingChoice(zero, group) for group in groups)  # type: ignore[arg-type]

    def _groups(self, base: Base, layout: Layout, ranks: int) -> list[int]:
        """Ranks that one copy may be spread over: all of them (0), and those inside a node."""
        q, can = self.question, self.question.runtime.can
        groups = [0 if ranks == layout.dp * base.cp else ranks]
        inside = (q.cluster.levels[0].size if q.cluster.levels else 1) // base.tp
        whole = not can.mesh or (inside % base.cp == 0 and inside * base.tp % (base.ep * base.etp) == 0)
        inside //= 1 if base.rank_order == "dp-pp" else layout.pp
        if can.hsdp and 1 < inside < ranks and ranks % inside == 0 and whole:
            groups.append(inside)
        return groups
