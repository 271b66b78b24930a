"""The quick hand rule for two or four stages (seed 001): full recompute only, no decomposition, solved exactly.

With T the forward time of a layer, a stage of n layers of which r are recomputed takes 3 (n + e) T + r T, e being head
or tail in layers: one more layer weighs as much as three recomputed ones. What is known is how many layers of each
stage must be recomputed to fit, and how that number grows with a layer more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.errors import Fault, InfeasibleError, InputError

MOST_LAYERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    """Layers and recomputed layers per stage, and the time of each in forward times of a layer."""

    layers: tuple[int, ...]
    recompute: tuple[int, ...]
    times: tuple[float, ...]

    @property
    def slowest(self) -> float:
        return max(self.times)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickStage:
    """The memory of a stage: what is there anyway, a layer's parameters and activations, and the limit."""

    limit: float
    base: float
    layer: float
    kept: float
    """Activations of one layer and one micro batch, kept."""
    recomputed: float
    """The same, recomputed."""
    flight: int
    """Micro batches in flight."""

    def needed(self, n: int) -> int | None:
        """Fewest recomputed of n layers that fit; None: none do."""
        over = self.base + n * (self.layer + self.flight * self.kept) - self.limit
        if over <= 0:
            return 0
        saved = self.flight * (self.kept - self.recomputed)
        count = -(-over // saved) if saved > 0 else n + 1
        return int(count) if count <= n else None


def stages_of(
    count: int, *, memory: float, layer: float, kept: float, recomputed: float, head: float, tail: float
) -> list[QuickStage]:
    """Stages of equal devices; `head` and `tail` are more bytes on the first and the last."""
    return [
        QuickStage(
            limit=memory, base=head if s == 0 else tail if s == count - 1 else 0.0, layer=layer, kept=kept,
            recomputed=recomputed, flight=count - s,
        )
        for s in range(count)
    ]  # fmt: skip


def quick(stages: Sequence[QuickStage], layers: int, *, head: float = 0.0, tail: float = 0.0) -> Quick:
    """The split whose slowest stage is fastest, then with the smallest sum; exact by dynamic programme."""
    if len(stages) not in {2, 4}:
        raise InputError(
            Fault("stages", f"is {len(stages)}; the quick rule is for 2 or 4, use `balance` with an init file")
        )
    if layers < len(stages):
        raise InputError(Fault("layers", f"{layers} layers cannot fill {len(stages)} stages"))
    if layers > MOST_LAYERS:
        said = f"is {layers:,}; the quick rule goes to {MOST_LAYERS:,}, use `balance` with an init file"
        raise InputError(Fault("layers", said))
    extra = [head, *(0.0 for _ in stages[2:]), tail]
    best: dict[int, tuple[float, float, tuple[tuple[int, int], ...]]] = {0: (0.0, 0.0, ())}
    for stage, more in zip(stages, extra, strict=True):
        best = _with_stage(best, stage, more, layers)
    if layers not in best:
        raise InfeasibleError(_missing(stages, layers))
    chosen = best[layers][2]
    times = tuple(_time(n, r, more) for (n, r), more in zip(chosen, extra, strict=True))
    return Quick(layers=tuple(n for n, _ in chosen), recompute=tuple(r for _, r in chosen), times=times)


def _time(n: int, r: int, more: float) -> float:
    return 3 * (n + more) + r


def _with_stage(
    best: dict[int, tuple[float, float, tuple[tuple[int, int], ...]]], stage: QuickStage, more: float, layers: int
) -> dict[int, tuple[float, float, tuple[tuple[int, int], ...]]]:
    found: dict[int, tuple[float, float, tuple[tuple[int, int], ...]]] = {}
    for done, (slowest, total, chosen) in best.items():
        for n in range(1, layers - done + 1):
            r = stage.needed(n)
            if r is None:
                break
            time = _time(n, r, more)
            candidate = (max(slowest, time), total + time, (*chosen, (n, r)))
            if done + n not in found or candidate < found[done + n]:
                found[done + n] = candidate
    return found


def _missing(stages: Sequence[QuickStage], layers: int) -> str:
    room = [max((n for n in range(layers + 1) if stage.needed(n) is not None), default=-1) for stage in stages]
    return (
        f"infeasible: with everything recomputed the stages hold at most {', '.join(map(str, room))} layers, "
        f"{sum(max(n, 0) for n in room)} of {layers}; raise the memory or use more stages"
    )
