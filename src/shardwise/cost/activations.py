"""The memory of one layer, operator by operator: what stays for backward, and the highest point on the way.

Forward: while an operator runs, everything kept so far is live, and its own extra bytes. Backward, in reverse: what it
and earlier operators keep, and its extra bytes. A recomputed run of operators keeps only its first input; its backward
replays it first.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from shardwise.ops.op import Op

# Recomputing these drops their output too: it is made again just before the next operator's backward needs it.
OUTPUT_DROPPED = frozenset({"attention-norm", "mlp-norm", "activation", "moe-act", "mla-up"})


class Walk(NamedTuple):
    """Memory of one pass through a list of operators."""

    kept: float
    """Bytes that stay from forward to backward."""
    forward: float
    """Highest point of the forward pass above where it began."""
    backward: float
    """Highest point of the backward pass above where the forward pass began, kept bytes included."""
    at: str
    """Operator at the highest point of backward."""
    recomputed: tuple[int, ...]
    """Operators that are computed again."""
    at_forward: str = ""
    """Operator at the highest point of forward."""
    unsent: int | None = None
    """A replayed operator whose result is not sent again."""
    levels_f: tuple[float, ...] = ()
    """Bytes live while each operator runs forward, above where the layer began: `forward` is the highest."""
    levels_b: tuple[float, ...] = ()
    """The same while it runs backward, in the order of forward: `backward` is the highest."""
    stays: tuple[float, ...] = ()
    """Bytes that stay once each operator's forward is done."""
    replays: tuple[float, ...] = ()
    """Bytes live while each operator is computed again."""


def plain_walk(ops: list[Op], grad_bytes: float = 0.0) -> Walk:
    """Memory when nothing is recomputed. `grad_bytes`: bytes per parameter that backward allocates for good."""
    kept = forward = 0.0
    live: list[float] = []
    at = ""
    for op in ops:
        kept += op.kept
        if kept + op.extra_f > forward:
            forward, at = kept + op.extra_f, op.name
        live.append(kept)
    levels = tuple(here + op.extra_f for here, op in zip(live, ops, strict=True))
    return _backward(ops, live, kept, forward, grad_bytes, ())._replace(
        at_forward=at, levels_f=levels, stays=tuple(live)
    )


def _backward(
    ops: list[Op], live: list[float], kept: float, forward: float, grad_bytes: float, recomputed: tuple[int, ...]
) -> Walk:
    backward, at, grads = kept, "", 0.0
    levels = [0.0] * len(ops)
    for index in range(len(ops) - 1, -1, -1):
        op = ops[index]
        here = levels[index] = live[index] + op.extra_b + grads
        if here > backward:
            backward, at = here, op.name
        grads += grad_bytes * op.params if not op.frozen else 0.0
    return Walk(kept, forward, backward, at, recomputed, levels_b=tuple(levels))


def full_walk(ops: list[Op], whole: Walk, entry: float, *, skip_last: bool, group: int = 1) -> Walk:
    """Memory when the layer is recomputed from its `entry` bytes; `group` layers share one entry and one replay.

    `skip_last`: the last product is not repeated, since nothing that backward keeps comes after it.
    """
    last = max((i for i, op in enumerate(ops) if op.kind != "memory"), default=len(ops))
    recomputed = tuple(i for i in range(len(ops)) if not (skip_last and i >= last))
    # the first operator's kept bytes hold the entry itself, or a copy of another width beside it
    shared = entry if ops[0].kept >= entry else 0.0
    others = (group - 1) * whole.kept
    high = max(whole.forward, whole.backward) + others + entry - shared
    forward, more = whole.forward - shared + entry, others + entry - shared
    return Walk(
        entry / group, forward, high, whole.at, recomputed, whole.at_forward,
        levels_f=tuple(level - shared + entry for level in whole.levels_f),
        levels_b=tuple(level + more for level in whole.levels_b),
        stays=(entry / group,) * len(ops),
        replays=tuple(level + more for level in whole.levels_f),
    )  # fmt: skip


def selective_walk(ops: list[Op], modules: frozenset[str], grad_bytes: float = 0.0, *, compiled: bool = False) -> Walk:
    """Memory when the operators of some modules are recomputed."""
    if "ops" in modules:
        return _ops_walk(ops, grad_bytes, compiled=compiled)
    runs = _runs(ops, modules)
    # a router's input stays: where its tokens went must not depend on a second computation
    dropped = {
        end for _, end in runs if end < len(ops) and ops[end - 1].module in OUTPUT_DROPPED and ops[end].name != "router"
    }
    return runs_walk(ops, runs, grad_bytes, dropped)


def runs_walk(
    ops: list[Op], runs: list[tuple[int, int]], grad_bytes: float = 0.0, dropped: AbstractSet[int] = frozenset()
) -> Walk:
    """Memory when runs [start, end) are recomputed, each from its own input. `dropped`: operators whose input is made
    again too, by the run before them.
    """
    starts = dict(runs)
    kept = forward = 0.0
    at = ""
    live, levels, left = [0.0] * len(ops), [0.0] * len(ops), [0.0] * len(ops)
    index = 0
    while index < len(ops):
        end = starts.get(index, index + 1)
        stays, high = _keep(ops, index, end, recomputed=index in starts, dropped=dropped)
        inside, entry = kept, ops[index].kept if index in starts else 0.0
        for i in range(index, end):
            inside += ops[i].kept
            live[i], left[i] = inside, kept + stays
            levels[i] = kept + entry + ops[i].kept + ops[i].extra_f
        if kept + high > forward:
            forward, at = kept + high, ops[index].name
        kept += stays
        index = end
    recomputed = tuple(i for start, end in runs for i in range(start, end))
    return _backward(ops, live, kept, forward, grad_bytes, recomputed)._replace(
        at_forward=at, levels_f=tuple(levels), stays=tuple(left), replays=tuple(live) if runs else ()
    )


def _ops_walk(ops: list[Op], grad_bytes: float, *, compiled: bool) -> Walk:
    """Torchtitan's selective checkpointing: a layer keeps its input, attention's output and every second product's
    output; all else is computed again. A compiler sees that nobody reads the last product again.
    """
    plain = plain_walk(ops, grad_bytes)
    kept, recomputed, turn, left = ops[0].kept, [], 0, []
    last = max(i for i, op in enumerate(ops) if op.kind != "memory")
    for index, op in enumerate(ops):
        if op.kind == "attention":
            rows, queries, _, _, size_v, _, _ = op.shape
            kept += 2.0 * rows * queries * size_v
        elif op.kind in {"memory", "scan"}:
            recomputed.append(index)
        else:
            kept += 2.0 * op.shape[0] * op.shape[1] / 2
            turn += 1
            if turn % 2 == 0:
                recomputed.append(index)
        left.append(kept)
    if compiled:
        kept = max(ops[0].kept, kept - 2.0 * ops[last].shape[0] * ops[last].shape[1])
    else:
        kept += _odd_products(ops)
    # replaying stops once the last kept tensor is there again: what the last product makes is not sent again, nor are
    # experts' results put together
    again = tuple(index for index in recomputed if index <= last or ops[index].name == "residual")
    unsent = last if last in again else None
    return Walk(
        kept, plain.forward, max(plain.backward, kept), plain.at, again, unsent=unsent,
        levels_f=plain.levels_f, levels_b=plain.levels_b, replays=plain.stays,
        stays=(*(min(one, kept) for one in left[:-1]), kept),
    )  # fmt: skip


def _odd_products(ops: list[Op]) -> float:
    """Bytes of the first, third ... product of a dense layer, above half of all: queries, keys and values are three, a
    gate and its other branch two. Of experts' and latent attention's nothing more is known than half.
    """
    products = [op for op in ops if op.kind == "gemm"]
    scores = [op.shape for op in ops if op.kind == "attention"]
    if [op.name for op in products] != ["qkv", "output", "up", "down"] or not scores:
        return 0.0
    share = scores[0][6]
    qkv, output, up, down = (op.shape[1] for op in products)
    query, gated = qkv / (1 + 2 * share), up >= 2 * products[-1].shape[2]
    widths = [query, query * share, query * share, output, *([up / 2, up / 2] if gated else [up]), down]
    return 2.0 * products[0].shape[0] * (sum(widths[::2]) - sum(widths) / 2)


def _keep(ops: list[Op], start: int, end: int, *, recomputed: bool, dropped: AbstractSet[int]) -> tuple[float, float]:
    """Bytes that a run leaves behind, and its highest point in forward."""
    first = ops[start]
    if not recomputed:
        stays = first.own if start in dropped else first.kept
        return stays, first.kept + first.extra_f
    high = max(op.kept + op.extra_f for op in ops[start:end])
    return (first.kept if first.stays < 0 else first.stays), first.kept + high


def _is_ffn(op: Op) -> bool:
    """A matrix or activation of the feed-forward block or of routed experts."""
    if op.name.startswith("shared "):
        return False
    if op.module in {"activation", "moe-act"}:
        return True
    return op.module == "mlp" and op.kind in {"gemm", "grouped"} and op.name != "router"


def _runs(ops: list[Op], modules: frozenset[str]) -> list[tuple[int, int]]:
    """Maximal runs [start, end) of operators whose module is recomputed."""
    wanted = set(modules)
    if "attention" in wanted:
        wanted |= {"core-attention", "mla-up"}
    if "mlp" in wanted:
        wanted |= {"activation", "moe-act"}
    runs: list[tuple[int, int]] = []
    for index, op in enumerate(ops):
        if op.module not in wanted and not ("ffn" in wanted and _is_ffn(op)):
            continue
        # a checkpoint ends with its block: attention and the feed-forward block are replayed apart
        if runs and runs[-1][1] == index and ops[index - 1].name != "residual":
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs
