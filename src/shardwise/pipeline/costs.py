"""What the simulator needs to know about every chunk, link and rank. Times share one unit, bytes another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.errors import Fault, InputError
from shardwise.units import show_bytes

Numbers = float | Sequence[float]
ROUNDING = 1e-9
"""Share of a memory limit that sums of bytes may be over it."""
MOST = 1e15
"""Times and bytes above it are slips: sums over a pipeline would lose the small ones, or overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Times and bytes of a pipeline; one entry per chunk in model order unless said otherwise."""

    f: tuple[float, ...]
    """Forward of one micro batch."""
    i: tuple[float, ...]
    """Backward for the inputs."""
    w: tuple[float, ...]
    """Backward for the weights."""
    hop: tuple[float, ...] = ()
    """Latency of the message between chunk c and c + 1 (chunks - 1 entries), either way; empty: none.
    A hop inside one rank costs nothing."""
    transfer: tuple[float, ...] = ()
    """Bytes over bandwidth of that message; empty: none."""
    contention: bool = False
    """Messages from one rank to another wait for each other: one is on the link for its transfer time."""
    activation: tuple[float, ...] = ()
    """Bytes that one forward leaves behind; empty: 1 each."""
    free_at_input_grad: float | tuple[float, ...] = 0.5
    """Share of the activation that I frees, of every chunk or one each; W frees the rest. 0: freed at W only."""
    static: tuple[float, ...] = ()
    """Bytes a rank holds all the time, one per rank; empty: none."""
    step: tuple[float, ...] = ()
    """Bytes a rank holds in the optimizer step, one per rank; empty: no more than between passes."""
    memory_limit: tuple[float, ...] = ()
    """Most bytes a rank may hold, one per rank; empty: no limit."""
    reduce: tuple[float, ...] = ()
    """Data-parallel communication of a chunk's gradients, after its last W, one after the other on a rank."""
    optimizer: float = 0.0
    """Optimizer step."""
    barrier: bool = True
    """The optimizer waits for all ranks."""
    traffic_f: tuple[float, ...] = ()
    """Of a forward, the time that it waits for links, which hides behind a backward that runs together with it (see
    `Schedule.pairs`); empty: none."""
    traffic_b: tuple[float, ...] = ()
    """The same of a full backward."""
    together: tuple[float, ...] = ()
    """Measured time of a forward of the chunk together with a full backward; empty: it is modelled."""
    offload: tuple[float, ...] = ()
    """Time to bring the activations of one forward to host memory (bytes over host bandwidth); empty: they stay."""
    reload: tuple[float, ...] = ()
    """The same on the way back; empty: as long. The two ways do not hold each other up."""
    in_bytes: bool = False
    """Bytes are a device's own, and said so; otherwise they are in a unit of the user's."""

    @property
    def chunks(self) -> int:
        return len(self.f)

    @property
    def offloads(self) -> bool:
        """Whether activations may go to host memory, and there is a limit that asks for it."""
        return bool(self.offload) and bool(self.memory_limit)

    @property
    def pairs(self) -> bool:
        """Whether a forward and a full backward may take less together."""
        return bool(self.together or self.traffic_f or self.traffic_b)

    def alone(self) -> Costs:
        """The same for passes that run one after the other."""
        return replace(self, traffic_f=(), traffic_b=(), together=())

    def shown(self, size: float) -> str:
        """Bytes as a message says them."""
        return show_bytes(size) if self.in_bytes else f"{size:g}"

    def held(self, chunk: int) -> float:
        return self.activation[chunk] if self.activation else 1.0

    def freed(self, chunk: int) -> float:
        """Bytes that I frees."""
        share = self.free_at_input_grad
        return self.held(chunk) * (share[chunk] if isinstance(share, tuple) else share)

    def both(self, forward: int, backward: int) -> float:
        """Time of a forward and a full backward of two chunks that run together: as measured, else links and kernels
        are busy beside each other and the longer decides. Never more than one after the other.
        """
        parts = self.f[forward], self.i[backward] + self.w[backward]
        if self.together:
            return min(sum(parts), max(*parts, self.together[forward]))
        links = (
            (self.traffic_f[forward] if self.traffic_f else 0.0),
            self.traffic_b[backward] if self.traffic_b else 0.0,
        )
        return max(sum(parts) - sum(links), sum(links), *parts)

    def least(self) -> Costs:
        """Every pass so short that a pair of them is never longer than `both`: bounds of these hold for pairs too."""
        if not self.pairs:
            return self
        whole = [i + w for i, w in zip(self.i, self.w, strict=True)]
        if self.together:
            most = max(whole)
            share = min(1.0, *(t / (f + most) for t, f in zip(self.together, self.f, strict=True) if f + most))
            f, shares = [share * one for one in self.f], [share] * self.chunks
        else:
            none = (0.0,) * self.chunks
            f = [one - links for one, links in zip(self.f, self.traffic_f or none, strict=True)]
            pairs = zip(whole, self.traffic_b or none, strict=True)
            shares = [1 - links / one if one else 1.0 for one, links in pairs]
        i, w = (tuple(s * one for s, one in zip(shares, part, strict=True)) for part in (self.i, self.w))
        return replace(self.alone(), f=tuple(f), i=i, w=w)

    def limits(self, pp: int) -> tuple[float, ...]:
        """Bytes per rank that activations may take."""
        if not self.memory_limit:
            return (float("inf"),) * pp
        static = self.static or (0.0,) * pp
        return tuple(limit - base for limit, base in zip(self.memory_limit, static, strict=True))


def costs(
    *,
    pp: int,
    vpp: int = 1,
    f: Numbers,
    i: Numbers,
    w: Numbers,
    hop: Numbers = 0.0,
    transfer: Numbers = (),
    activation: Numbers = 1.0,
    free_at_input_grad: float = 0.5,
    static: Numbers = 0.0,
    memory_limit: Numbers | None = None,
    traffic_f: Numbers = (),
    traffic_b: Numbers = (),
    together: Numbers = (),
    offload: Numbers = (),
    reload: Numbers = (),
    chunks: int = 0,
) -> Costs:
    """Costs from numbers that stand for all chunks (ranks), or lists with one each; every fault is named.

    `chunks`: of all ranks, where these hold different numbers of them; 0: vpp each.
    """
    chunks, faults = chunks or pp * vpp, list[Fault]()
    spread = {
        name: _spread(name, value, count, faults)
        for name, value, count in (
            ("f", f, chunks),
            ("i", i, chunks),
            ("w", w, chunks),
            ("hop", hop, chunks - 1),
            ("transfer", transfer, chunks - 1),
            ("activation", activation, chunks),
            ("static", static, pp),
            ("memory_limit", () if memory_limit is None else memory_limit, pp),
            ("traffic_f", traffic_f, chunks),
            ("traffic_b", traffic_b, chunks),
            ("together", together, chunks),
            ("offload", offload, chunks),
            ("reload", reload, chunks),
        )
    }
    faults += _long_traffic(spread)
    if not 0.0 <= free_at_input_grad <= 1.0:
        faults.append(Fault("free_at_input_grad", f"is {free_at_input_grad:g}; it is a share, from 0 to 1"))
    if not faults and not sum(spread["f"]) + sum(spread["i"]) + sum(spread["w"]) > 0:
        faults.append(Fault("f, i, w", "are all 0: there is nothing to order"))
    if faults:
        raise InputError(faults, title="costs")
    return Costs(**spread, free_at_input_grad=free_at_input_grad)  # type: ignore[arg-type]


def _long_traffic(spread: dict[str, tuple[float, ...]]) -> list[Fault]:
    """Traffic is a part of its pass."""
    if any(len(spread[name]) != len(spread["f"]) for name in "iw"):
        return []
    whole = {"traffic_f": spread["f"], "traffic_b": tuple(map(sum, zip(spread["i"], spread["w"], strict=True)))}
    return [
        Fault(name, f"of chunk {c} is {links:g}, its pass takes {one:g}; traffic is a part of the pass")
        for name, passes in whole.items()
        for c, (links, one) in enumerate(zip(spread[name], passes, strict=False))
        if links > one
    ][:1]


def _spread(name: str, value: Numbers, count: int, faults: list[Fault]) -> tuple[float, ...]:
    values = (float(value),) * count if isinstance(value, int | float) else tuple(map(float, value))
    if values and len(values) != count:
        faults.append(Fault(name, f"has {len(values)} entries, expected 1 or {count}"))
    wrong = next((x for x in values if not 0 <= x <= MOST), None)
    if wrong is not None and 0 <= wrong < math.inf:
        faults.append(Fault(name, f"holds {wrong:g}; times and bytes go up to {MOST:g}: choose a larger unit"))
    elif wrong is not None:
        faults.append(Fault(name, f"holds {wrong:g}; times and bytes are finite and not negative"))
    return values


def limit_of(costs: Costs, rank_of: Sequence[int], times: float) -> tuple[float, ...]:
    """`times` x 1F1B's memory as a limit per rank: static bytes + times x pp micro batches of all of a rank's chunks.

    `1p` of the zero-bubble papers; with unequal chunks each rank's own chunks count.
    """
    pp = 1 + max(rank_of)
    room = [0.0] * pp
    for chunk, rank in enumerate(rank_of):
        room[rank] += times * pp * costs.held(chunk)
    static = costs.static or (0.0,) * pp
    return tuple(base + extra for base, extra in zip(static, room, strict=True))


def regrouped(costs: Costs, pp: int, vpp: int) -> Costs:
    """The same model cut into pp x vpp chunks: work and bytes are spread evenly inside each old chunk."""
    old, new = costs.chunks, pp * vpp
    if old == new:
        return costs

    def spread(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(sum(values[c] * _share(c, old, k, new) for c in range(old)) for k in range(new))

    hop = max(costs.hop, default=0.0)
    held = tuple(costs.held(c) for c in range(old))
    return replace(
        costs, f=spread(costs.f), i=spread(costs.i), w=spread(costs.w), activation=spread(held),
        hop=(hop,) * (new - 1), transfer=(max(costs.transfer, default=0.0),) * (new - 1) if costs.transfer else (),
        traffic_f=spread(costs.traffic_f) if costs.traffic_f else (),
        traffic_b=spread(costs.traffic_b) if costs.traffic_b else (),
        together=spread(costs.together) if costs.together else (),
        offload=spread(costs.offload) if costs.offload else (),
        reload=spread(costs.reload) if costs.reload else (),
    )  # fmt: skip


def _share(c: int, old: int, k: int, new: int) -> float:
    """How much of old chunk c of `old` lies in new chunk k of `new`."""
    low, high = max(c * new, k * old), min((c + 1) * new, (k + 1) * old)
    return max(0, high - low) / new
