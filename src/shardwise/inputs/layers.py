"""How the layers of a model are spread over the chunks of a pipeline, in model order.

An explicit list is taken as it is. Otherwise the first and last stage take what is asked for and the other chunks
share the rest evenly. Where it does not divide, the first chunks between the ends hold one layer more than the others,
because the first chunk has the embedding and the last one the output layer; the ends get theirs only when every chunk
between them has. `check` asks users to write such a list out; programs that search use it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.errors import Fault, InputError
from shardwise.inputs.model import Model
from shardwise.inputs.runtime import Runtime
from shardwise.inputs.strategy import Placement, Strategy


def chunk_rank(chunk: int, pp: int, vpp: int, placement: Placement = "loop") -> int:
    """The pipeline rank that holds a chunk: round and round (loop) or back and forth (v)."""
    if not 0 <= chunk < pp * vpp:
        raise InputError(Fault("chunk", f"there is no chunk {chunk}: pp {pp} x vpp {vpp} has 0 to {pp * vpp - 1}"))
    turn, rank = divmod(chunk, pp)
    return pp - 1 - rank if placement == "v" and turn % 2 else rank


def rank_chunks(rank: int, pp: int, vpp: int, placement: Placement = "loop") -> tuple[int, ...]:
    """The chunks that a pipeline rank holds, in model order."""
    back = pp - 1 - rank if placement == "v" else rank
    return tuple(turn * pp + (back if turn % 2 else rank) for turn in range(vpp))


def spread(model_layers: int, strategy: Strategy) -> tuple[int, ...]:
    """Layers of every chunk in model order: pp x vpp numbers; raises InputError where that cannot be."""
    faults = tuple(layer_faults(model_layers, strategy))
    if faults:
        raise InputError(faults)
    return strategy.layers or _shared_out(model_layers, strategy)


def stage_layers(model_layers: int, strategy: Strategy) -> tuple[int, ...]:
    """Layers of every pipeline rank, all its chunks together."""
    counts = spread(model_layers, strategy)
    s = strategy
    return tuple(sum(counts[chunk] for chunk in rank_chunks(r, s.pp, s.vpp, s.placement)) for r in range(s.pp))


def with_layers(model_layers: int, strategy: Strategy) -> Strategy:
    """The same strategy with its layer list written out."""
    layers = spread(model_layers, strategy)
    return replace(strategy, layers=layers, first_layers=0, last_layers=0, count_embedding=False, count_head=False)


def own_cut(model: Model, runtime: Runtime, pp: int, vpp: int = 1) -> tuple[int, ...]:
    """The cut that a runtime chooses by itself; empty where it is the even one."""
    if runtime.can.cut == "even" or vpp > 1 or not 1 < pp <= model.layers:
        return ()
    counts = _cut_by_work(model, pp) if runtime.can.cut == "work" else _cut_by_parameters(model, pp)
    return counts if all(counts[:-1]) else ()


def _cut_by_parameters(model: Model, pp: int) -> tuple[int, ...]:
    """Every layer goes to the stage whose equal share of the parameters its middle falls in."""
    each, end = 4 * model.hidden**2 + 3 * model.hidden * model.ffn, model.hidden * model.vocab
    whole = model.layers * each + 2 * end
    counts = [0] * pp
    for layer in range(model.layers):
        middle = end + (layer + 0.5) * each
        counts[min(pp - 1, int(middle / whole * pp))] += 1
    return tuple(counts)


def _cut_by_work(model: Model, pp: int) -> tuple[int, ...]:
    """Layers of every stage where a runtime fills stages in turn up to equal shares of the weights' work.

    A layer counts 4 h h + 3 h ffn, the output layer h x vocabulary; the layer that passes a share stays with it.
    """
    each = 4 * model.hidden**2 + 3 * model.hidden * model.ffn
    whole = model.layers * each + model.hidden * model.vocab
    counts, stage = [0] * pp, 0
    for done in range(1, model.layers + 1):
        counts[stage] += 1
        if done * each > whole * (stage + 1) / pp:
            stage += 1
    return tuple(counts)


def is_uneven(model_layers: int, strategy: Strategy) -> bool:
    """Whether layers that are not given as a list fail to divide, so that some chunk must hold one more."""
    if strategy.layers:
        return False
    free = _free_chunks(strategy)
    return bool(free) and _rest(model_layers, strategy) % len(free) != 0


def layer_faults(model_layers: int, strategy: Strategy) -> Iterator[Fault]:
    """Why the layers cannot be spread as the strategy asks."""
    if strategy.layers:
        yield from _list_faults(model_layers, strategy)
        return
    if strategy.chunks > model_layers + 2:  # told before any list of chunks is made
        yield _too_many_chunks(model_layers, strategy)
        return
    ends = list(_end_faults(model_layers, strategy))
    yield from ends
    if not ends:
        yield from _sum_faults(model_layers, strategy)


def _list_faults(model_layers: int, strategy: Strategy) -> Iterator[Fault]:
    given, chunks = strategy.layers, strategy.chunks
    path = "strategy.layers"
    if len(given) != chunks:
        yield Fault(
            path,
            f"the list has {_numbers(len(given))}, pp {strategy.pp} x vpp {strategy.vpp} needs {chunks}: "
            "one per chunk, in model order",
        )
    if sum(given) != model_layers:
        change = model_layers - sum(given)
        yield Fault(
            path,
            f"{','.join(map(str, given))} adds up to {sum(given)}, the model has {model_layers} layers; "
            f"{'add' if change > 0 else 'take away'} {abs(change)}",
        )
    bad = [i for i, n in enumerate(given) if n < 0 or (n == 0 and 0 < i < len(given) - 1)]
    if bad:
        where = ", ".join(map(str, bad[:8]))
        yield Fault(path, f"chunk {where} has no layers; only the first and the last chunk may be without any")
    for name in ("first_layers", "last_layers", "count_embedding", "count_head"):
        if getattr(strategy, name):
            yield Fault(f"strategy.{name}", "says again what `layers` says for every chunk; leave one of them out")


def _end_faults(model_layers: int, strategy: Strategy) -> Iterator[Fault]:
    for name, count in _ends(strategy).items():
        path = f"strategy.{name}"
        if strategy.pp == 1:
            yield Fault(path, f"{count} is given, but pp is 1 and has one stage only; leave it out or raise pp")
        elif count > model_layers:
            yield Fault(path, f"{count} layers of a model that has {model_layers}; give at most {model_layers - 1}")
        elif count % strategy.vpp:
            near = " or ".join(str(n) for n in _multiples_near(count, strategy.vpp))
            yield Fault(
                path,
                f"{count} layers do not divide over the vpp {strategy.vpp} chunks of a rank; use {near}",
            )
        for flag in ("count_embedding", "count_head"):
            if getattr(strategy, flag):
                yield Fault(f"strategy.{flag}", f"cannot go with {name} {count}, which fixes that stage; drop one")


def _sum_faults(model_layers: int, strategy: Strategy) -> Iterator[Fault]:
    free, ends = _free_chunks(strategy), _ends(strategy)
    fixed = " + ".join(f"{name} {count}" for name, count in ends.items())
    left = model_layers - sum(ends.values())
    if not free:
        if left:
            yield Fault(
                "strategy.first_layers",
                f"{fixed} is {model_layers - left}, the model has {model_layers} layers; make them equal",
            )
        return
    if min(_shared_out(model_layers, strategy)) >= 0 and _rest(model_layers, strategy) >= len(free):
        return
    if ends:
        yield Fault(
            f"strategy.{next(iter(ends))}",
            f"{fixed} leaves {left} of {model_layers} layers for the other {len(free)} chunks, which need one each; "
            "ask for fewer or lower pp x vpp",
        )
    else:
        yield _too_many_chunks(model_layers, strategy)


def _too_many_chunks(model_layers: int, s: Strategy) -> Fault:
    counted = s.count_embedding + s.count_head
    extra = f" (and {counted} counted for embedding and output layer)" if counted else ""
    return Fault(
        "strategy.vpp" if s.pp <= model_layers and s.vpp > 1 else "strategy.pp",
        f"{model_layers} layers{extra} cannot fill pp {s.pp} x vpp {s.vpp} = {s.chunks} chunks; "
        f"make pp x vpp at most {model_layers + counted}",
    )


def _shared_out(model_layers: int, strategy: Strategy) -> tuple[int, ...]:
    counts = {chunk: count // strategy.vpp for chunk, count in _fixed_chunks(strategy).items()}
    free = _free_chunks(strategy)
    if free:
        even, more = divmod(_rest(model_layers, strategy), len(free))
        last = strategy.chunks - 1
        longer = frozenset(sorted(free, key=lambda chunk: (chunk in {0, last}, chunk))[:more])
        counts |= {chunk: even + (chunk in longer) for chunk in free}
    counts[0] -= strategy.count_embedding
    counts[strategy.chunks - 1] -= strategy.count_head
    return tuple(counts[chunk] for chunk in range(strategy.chunks))


def _rest(model_layers: int, strategy: Strategy) -> int:
    """What the free chunks share, the counted embedding and output layer included."""
    return model_layers + strategy.count_embedding + strategy.count_head - sum(_ends(strategy).values())


def _ends(strategy: Strategy) -> dict[str, int]:
    return {name: count for name in ("first_layers", "last_layers") if (count := getattr(strategy, name))}


def _fixed_chunks(strategy: Strategy) -> dict[int, int]:
    """Chunk -> layers of its stage, for the stages whose number is given."""
    s = strategy
    ranks = {0: s.first_layers, s.pp - 1: s.last_layers} if s.pp > 1 else {}
    return {chunk: n for rank, n in ranks.items() if n for chunk in rank_chunks(rank, s.pp, s.vpp, s.placement)}


def _free_chunks(strategy: Strategy) -> list[int]:
    fixed = _fixed_chunks(strategy)
    return [chunk for chunk in range(strategy.chunks) if chunk not in fixed]


def _multiples_near(count: int, step: int) -> list[int]:
    below = count // step * step
    return [n for n in (below, below + step) if n]


def _numbers(count: int) -> str:
    return f"{count} number" if count == 1 else f"{count} numbers"
