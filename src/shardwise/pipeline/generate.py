"""Schedules by name: each as its source defines it, with what it asks for checked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.errors import Fault, InputError, UnknownNameError
from shardwise.pipeline.action import Schedule, check_size
from shardwise.pipeline.costs import Costs
from shardwise.pipeline.orders.controllable import v_half, v_min
from shardwise.pipeline.orders.dualpipe import dualpipe_v
from shardwise.pipeline.orders.interleaved import interleaved, low_memory
from shardwise.pipeline.orders.one_f_one_b import gpipe, one_f_one_b, seq_one_f_one_b
from shardwise.pipeline.orders.zero_bubble import zb_automatic, zb_h1, zb_h2, zb_v

_LOOKS = {"zb-1p": (8, 0), "zb-2p": (8, 0), "v-half": (16, 1), "v-min": (16, 1)}
"""Schedules that are planned step by step: least looks at a rank per micro batch, and how many more a rank brings."""
_MOST_LOOKS = 3_000_000
"""Half a minute of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many chunks a schedule wants on a rank, and where."""

    vpp: int | None
    """None: any number above 1."""
    placement: str
    text: str


SHAPES: dict[str, Shape] = {
    "gpipe": Shape(vpp=1, placement="loop", text="all forwards, then all backwards"),
    "1f1b": Shape(vpp=1, placement="loop", text="one forward, one backward"),
    "interleaved": Shape(vpp=None, placement="loop", text="1F1B over several chunks a rank (Megatron)"),
    "zb-h1": Shape(vpp=1, placement="loop", text="W late, 1F1B's memory"),
    "zb-h2": Shape(vpp=1, placement="loop", text="W later, about twice the memory"),
    "zb-1p": Shape(vpp=1, placement="loop", text="the zero-bubble paper's automatic order, 1F1B's memory"),
    "zb-2p": Shape(vpp=1, placement="loop", text="the same with twice the memory"),
    "zb-v": Shape(vpp=2, placement="v", text="the fixed zero-bubble pattern on a v"),
    "v-half": Shape(vpp=2, placement="v", text="about half of 1F1B's memory"),
    "v-min": Shape(vpp=2, placement="v", text="about a third of it"),
    "dualpipe-v": Shape(vpp=2, placement="v", text="DeepSeek's DualPipe on a v"),
    "seq-1f1b": Shape(vpp=1, placement="loop", text="1F1B over pieces of sequences"),
    "low-memory": Shape(vpp=None, placement="loop", text="interleaved with a short warm-up (SAPP)"),
}


def generate(
    name: str,
    *,
    pp: int,
    vpp: int = 0,
    microbatches: int,
    group: int = 0,
    splits: int = 2,
    costs: Costs | None = None,
) -> Schedule:
    """A schedule by name. `vpp` 0: the number the schedule wants; `costs` matter for zb-1p and zb-2p only.

    `splits` are pieces of a sequence for seq-1f1b: its micro batches are `splits` x `microbatches` pieces.
    """
    if name not in SHAPES:
        raise UnknownNameError("schedule", name, SHAPES)
    vpp = vpp or SHAPES[name].vpp or 2
    _check(name, pp, vpp, microbatches, group, splits)
    if name in {"zb-1p", "zb-2p"}:
        return zb_automatic(costs or _equal(pp), microbatches, 1.0 if name == "zb-1p" else 2.0)
    if name == "interleaved":
        return interleaved(pp, vpp, microbatches, group)
    if name == "low-memory":
        return low_memory(pp, vpp, microbatches)
    if name == "seq-1f1b":
        return seq_one_f_one_b(pp, microbatches, splits)
    plain = {
        "gpipe": gpipe, "1f1b": one_f_one_b, "zb-h1": zb_h1, "zb-h2": zb_h2, "zb-v": zb_v, "v-half": v_half,
        "v-min": v_min, "dualpipe-v": dualpipe_v,
    }  # fmt: skip
    return plain[name](pp, microbatches)


def split_costs(costs: Costs, splits: int) -> Costs:
    """The costs of one of `splits` equal pieces of a sequence; splitting itself is taken to lose nothing."""

    def shared(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(value / splits for value in values)

    held = tuple(costs.held(c) / splits for c in range(costs.chunks))
    return replace(
        costs, f=shared(costs.f), i=shared(costs.i), w=shared(costs.w), transfer=shared(costs.transfer),
        activation=held, traffic_f=shared(costs.traffic_f), traffic_b=shared(costs.traffic_b),
        together=shared(costs.together), offload=shared(costs.offload), reload=shared(costs.reload),
    )  # fmt: skip


def _equal(pp: int) -> Costs:
    return Costs(f=(1.0,) * pp, i=(1.0,) * pp, w=(1.0,) * pp)


def _check(name: str, pp: int, vpp: int, microbatches: int, group: int, splits: int) -> None:
    wanted, faults = SHAPES[name].vpp, list[Fault]()
    numbers = {"pp": pp, "vpp": vpp, "microbatches": microbatches, "splits": splits}
    faults += [Fault(key, f"is {value}; it must be at least 1") for key, value in numbers.items() if value < 1]
    if group < 0:
        faults.append(Fault("group", f"is {group}; it must be at least 1, or 0 for pp"))
    if wanted is not None and vpp != wanted:
        faults.append(Fault("vpp", f"is {vpp}, but {name} has {wanted} chunk{'s' * (wanted > 1)} a rank"))
    if faults:
        raise InputError(faults, title=name)
    check_size(pp, vpp, microbatches * (splits if name == "seq-1f1b" else 1))
    least, more = _LOOKS.get(name, (0, 0))
    looks = pp * max(least, more * pp)
    if looks * microbatches > _MOST_LOOKS:
        most = _MOST_LOOKS // looks
        raise InputError(f"{name} with pp {pp} is planned for up to {most:,} micro batches, not {microbatches:,}")
