"""Seconds of stages under every recompute choice, and the least that the slowest stage can take however layers are cut.

Arrays are [cell, choice]: a cell is a depth of the pipeline with one way to shard parameters (ZeRO 3 shows inside the
passes), a choice is a recompute choice. A stage of n layers takes n x layer + min(n, N) x again seconds, and the ends
add theirs. Where kinds of layers take turns and a stage is one chunk, n layers in a row take n x their mean less
`spare` at least: what the shortest row falls short of its mean by.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwise.cost.overlap import Behind, behind_of
from shardwise.cost.update import data_groups
from shardwise.inputs.recompute import Recompute
from shardwise.search.question import Base, Layout, Point, ShardingChoice
from shardwise.search.recomputes import AS_NEEDED
from shardwise.search.space import Space
from shardwise.search.table import Floats, LayerPiece, Table

ROUNDS = 14
"""Halvings of the interval, a few layers wide, that holds the least slowest stage."""


class StageCell(NamedTuple):
    """A depth of the pipeline, and the sharding whose traffic shows inside passes (none below ZeRO 3)."""

    pp: int
    dp: int
    sharding: ShardingChoice | None
    folded: bool
    """A v: rank 0 has both ends of the model."""
    turns: bool = False
    """Stages are one chunk, and kinds of layers take turns in it."""


class Choices(NamedTuple):
    """Recompute choices as recipe and number of layers (0: all of a chunk)."""

    recipe: np.ndarray
    layers: Floats
    mix: np.ndarray
    """Whether any layer may do without: how many of each stage do is for the partition solver to say."""
    kept: np.ndarray
    """The recipe whose kept bytes count: the leanest that the choice allows."""


class PricedPieces(NamedTuple):
    """Seconds of every piece of a table: one micro batch, what shows of its sharding included."""

    forward: Floats
    """[cell, piece]"""
    backward: Floats
    """[cell, piece, recipe]"""


class Work(NamedTuple):
    """Arrays [cell, choice]; seconds of one micro batch."""

    pp: Floats
    layer: Floats
    """One layer, both passes; for blocks of N layers, one that is not recomputed."""
    again: Floats
    """What a recomputed layer of a block takes more."""
    block: Floats
    """N, the layers of a block; 0 where all layers are alike."""
    first: Floats
    """What the first stage has beside layers; negative where its leading layers are shorter than the others."""
    last: Floats
    share: Floats
    """The forward pass is at most this share of a stage."""
    total_forward: Floats
    total: Floats
    """All layers and ends, both passes; of blocks only the least that must be recomputed."""
    slowest: Floats
    """The slowest stage takes at least this."""
    slack: Floats
    """Layers by which stages could be shorter without a slower slowest one."""
    full: Floats
    """Seconds of an inner stage that is as long as the slowest allows."""
    full_last: Floats
    full_first: Floats
    next: Floats
    """The slowest stage where it is longer than the least."""
    leading: Floats
    """Layers of other kinds before the main one."""
    price: Floats
    """Seconds that freeing one kept byte takes at least, where layers are recomputed as needed."""


def choices_of(table: Table, recomputes: tuple[Recompute, ...]) -> Choices:
    keys = {(recipe.full, recipe.modules): index for index, recipe in enumerate(table.recipes)}
    recipe = np.array([keys[one.full, frozenset(one.modules)] for one in recomputes])
    layers = np.array([one.layers[0] if one.layers else 0 for one in recomputes], dtype=float)
    return Choices(recipe, layers, np.array([one.layers == AS_NEEDED for one in recomputes]), recipe)


def priced_of(space: Space, base: Base, table: Table, cells: list[StageCell]) -> PricedPieces:
    """The pieces of a base in all of its cells."""
    f, b = [], []
    for cell in cells:
        shown = sharded(space, base, table, cell)
        f.append([piece.forward + extra[0] for piece, extra in zip(table.pieces, shown, strict=True)])
        b.append([piece.backward + extra[1] for piece, extra in zip(table.pieces, shown, strict=True)])
    return PricedPieces(np.array(f), np.array(b))


def works_of(
    layers: int, tables: list[Table], priced: list[PricedPieces], cells: list[list[StageCell]], choices: Choices
) -> list[Work]:
    """For every base the stages of its cells under all choices, and their least slowest one."""
    forward, back = (np.concatenate(parts) for parts in zip(*priced, strict=True))
    whole = _settled(layers, tables, cells, choices, forward[:, :, None], back)
    edges = np.cumsum([len(own) for own in cells])[:-1]
    split = [np.split(array, edges) for array in whole]
    return [Work(*parts) for parts in zip(*split, strict=True)]


def sharded(space: Space, base: Base, table: Table, cell: StageCell) -> list[tuple[float, Floats | float]]:
    """What gathering and scattering shows of itself per piece (cost.behind): forward, backward by recipe."""
    ground = table.ground
    if cell.sharding is None:
        return [(0.0, 0.0)] * len(table.pieces)
    layout = Layout(cell.pp, 1, "1f1b", cell.dp, 1)
    strategy = space.strategy(Point(base, layout, cell.sharding, Recompute()))
    groups = data_groups(ground.network, strategy)
    bandwidths = ground.cluster.host_bandwidth, ground.machine.bandwidth
    behind = behind_of(strategy, ground.runtime, ground.states, groups, *bandwidths)
    return [_shown(piece, behind) for piece in table.pieces]


def _shown(piece: LayerPiece, behind: Behind) -> tuple[float, Floats]:
    """What traffic adds to the device's seconds, weighed as these are: the tangent of a sum of passes is below it."""
    (gather, scatter), (copy_in, copy_out) = behind.traffic(piece.blocks[0]), behind.copied(piece.blocks[0])
    (forward, backward), (ahead, back) = piece.devices, piece.tangents
    ahead_wire, back_wire = piece.wires
    return (
        ahead.device * (behind.over(forward + copy_in, gather, ahead_wire) - forward),
        back.device * np.array([
            behind.over(seconds + copy_in + copy_out, gather + scatter, wire) - seconds
            for seconds, wire in zip(backward.tolist(), back_wire.tolist(), strict=True)
        ]),
    )  # fmt: skip


def _settled(
    layers: int,
    tables: list[Table],
    own: list[list[StageCell]],
    choices: Choices,
    forward: Floats,
    back: Floats,
) -> Work:
    """`forward` and `back` are [cell, piece, recipe]; gather them by choice and find the slowest stage."""
    # pieces, their numbers and their order are those of the model, the same over all bases
    table, cells = tables[0], [cell for each in own for cell in each]
    kinds = len(table.layers)
    count = np.array([piece.number for piece in table.pieces])[None, :, None]
    blocks = choices.layers > 0
    both = (forward + back)[:, :, np.where(blocks | choices.mix, 0, choices.recipe)]
    extra = (back[:, :, choices.recipe] - back[:, :, [0]]) * blocks
    again = extra[:, :kinds].min(axis=1)
    pp = np.array([cell.pp for cell in cells], dtype=float)[:, None]
    # layers of other kinds stand in the first stage, or, where they do not lead, all count as the shortest kind
    layer = both[:, 0] if table.leading else both[:, :kinds].min(axis=1)
    mean, spare = _in_a_row(table, cells, both, layer)
    shorter = np.maximum(0.0, both[:, [0]] - both[:, 1:kinds]) * count[:, 1:kinds]
    discount = shorter.sum(axis=1) if table.leading else np.zeros_like(layer)
    last = (count * both)[:, kinds + 1 :].sum(axis=1)
    least_again = choices.layers + np.maximum(pp - 3, 0) * blocks
    folded = np.array([cell.folded for cell in cells])[:, None]
    first = both[:, kinds] - discount
    parts = _Parts(
        pp, mean + 0 * pp, spare + 0 * pp, again, choices.layers + 0 * layer, np.where(folded, first + last, first),
        np.where(folded, 0.0, last),
        float(layers), float(sum(piece.number for piece in table.others)) if table.leading else 0.0,
    )  # fmt: skip
    total = (count * both).sum(axis=1) + again * least_again
    total_forward = (count * forward).sum(axis=1) + 0 * layer
    share = (forward / (forward + back)).max(axis=(1, 2))[:, None] + 0 * layer
    found = _bottleneck(parts, total, total_forward, share, _price(tables, own, choices, back))
    return found._replace(layer=layer + 0 * pp)


def _in_a_row(table: Table, cells: list[StageCell], both: Floats, layer: Floats) -> tuple[Floats, Floats]:
    """Seconds that layers in a row take: each, and how much less all of them at most."""
    turns = np.array([cell.turns for cell in cells])
    if not turns.any():
        return layer, np.zeros_like(layer)
    each = both[:, list(table.order)]
    mean = each.mean(axis=1)
    ahead = np.cumsum(each - mean[:, None], axis=1)
    highest = np.maximum(np.maximum.accumulate(ahead, axis=1), 0.0)
    spare = (highest - ahead).max(axis=1)
    return np.where(turns[:, None], mean, layer), np.where(turns[:, None], spare, 0.0)


def _price(tables: list[Table], cells: list[list[StageCell]], choices: Choices, back: Floats) -> Floats:
    """By cell and choice: the cheapest kind of layer decides; 0 where no layer may choose."""
    at = [index for index, piece in enumerate(tables[0].pieces) if piece in (*tables[0].layers, *tables[0].extra)]
    freed = []
    for table, own in zip(tables, cells, strict=True):
        pieces = [table.pieces[index] for index in at]
        freed += [[piece.kept[0] - piece.kept[choices.recipe] for piece in pieces]] * len(own)
    slower = back[:, at][:, :, choices.recipe] - back[:, at][:, :, [0]]
    frees = np.array(freed) > 0
    price = np.where(frees, slower / np.where(frees, np.array(freed), 1.0), np.inf).min(axis=1)
    return np.where(choices.mix & np.isfinite(price), np.maximum(price, 0.0), 0.0)


class _Parts(NamedTuple):
    pp: Floats
    layer: Floats
    spare: Floats
    """What layers in a row may take less."""
    again: Floats
    block: Floats
    first: Floats
    last: Floats
    layers: float
    leading: float
    """Layers of other kinds before the main one."""


def _capacity(parts: _Parts, room: Floats) -> Floats:
    """Layers that fit into `room` seconds."""
    whole, room = parts.layer + parts.again, room + parts.spare
    long = np.floor((room - parts.block * parts.again) / parts.layer + 1e-9)
    short = np.floor(room / whole + 1e-9)
    return np.maximum(np.where(room >= parts.block * whole, long, short), 0.0)


def _taken(parts: _Parts, layers: Floats) -> Floats:
    """Seconds of so many layers."""
    taken = layers * parts.layer + np.minimum(layers, parts.block) * parts.again
    return np.maximum(taken - parts.spare, 0.0)


def _capacities(parts: _Parts, limit: Floats) -> tuple[Floats, Floats, Floats]:
    """Layers that an inner, the first and the last stage can have within `limit` seconds."""
    inner = _capacity(parts, limit)
    return inner, _capacity(parts, limit - parts.first), _capacity(parts, limit - parts.last)


def _room(parts: _Parts, limit: Floats) -> Floats:
    inner, first, last = _capacities(parts, limit)
    room = (parts.pp - 2) * inner + first + last
    # shorter leading layers that the first stage cannot hold shorten later stages instead
    room = np.where(first >= parts.leading, room, room + parts.leading)
    fits = (limit >= parts.first) & (limit >= parts.last)
    single = limit >= _taken(parts, np.full_like(limit, parts.layers)) + parts.first + parts.last
    return np.where(parts.pp > 1, np.where(fits, room, -1.0), np.where(single, parts.layers, -1.0))


def _bottleneck(parts: _Parts, total: Floats, total_forward: Floats, share: Floats, price: Floats) -> Work:
    low = total / parts.pp * (1 - 1e-12)
    ends = np.maximum(parts.first, 0.0) + parts.last
    high = low + 2 * (parts.layer + parts.again) + ends
    high = np.where(_room(parts, high) >= parts.layers, high, _taken(parts, np.full_like(low, parts.layers)) + ends)
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        enough = _room(parts, middle) >= parts.layers
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    inner, first, last = _capacities(parts, high)
    slack = np.maximum(_room(parts, high) - parts.layers, 0.0)
    following = np.minimum(_taken(parts, first + 1) + parts.first, _taken(parts, last + 1) + parts.last)
    following = np.where(parts.pp > 2, np.minimum(following, _taken(parts, inner + 1)), following)
    # where leading layers are spread over stages, lengths between the two values are possible
    following = np.where(first >= parts.leading, np.maximum(following, low), low)
    return Work(
        parts.pp + 0 * low, parts.layer, parts.again, parts.block, parts.first, parts.last, share,
        total_forward, total, low, slack, _taken(parts, inner), _taken(parts, last) + parts.last,
        _taken(parts, first) + parts.first, following, np.full_like(low, parts.leading), price,
    )  # fmt: skip
