"""Lower bounds on the memory of the fullest rank, however layers are cut.

Rank r needs c + n_r (s + u_r a) bytes for its n_r layers: s lasting bytes and a kept bytes of one layer, u_r passes in
flight. With any weights w_r >= 0 the fullest rank needs at least the weighted mean over ranks; w_r = 1 / (s + u_r a)
makes it independent of the cut: layers / sum of w_r. Other kinds of layer are held against it at their worst place.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardwise.plan.search.frame import Frame, Rates, buffers_of, in_flight, least_in_flight
from shardwise.plan.search.table import Floats, Piece, Table
from shardwise.plan.search.types import Layout
from shardwise.plan.search.work import Choices


class _Case(NamedTuple):
    """Pairs of one kind of pipeline."""

    table: Table
    choices: Choices
    stretch: float
    """Reserved over allocated bytes of what comes and goes."""
    passes: tuple[Floats, Floats]
    """Bytes per parameter during the passes: outside experts, of experts; [pair, 1]."""
    layers: int

    def of(self, piece: Piece) -> Floats:
        block = piece.blocks[0]
        return self.passes[0] * block.params + self.passes[1] * block.expert_params

    def sum_of(self, pieces: tuple[Piece, ...]) -> Floats:
        params = sum(piece.number * piece.blocks[0].params for piece in pieces)
        experts = sum(piece.number * piece.blocks[0].expert_params for piece in pieces)
        return self.passes[0] * params + self.passes[1] * experts


class _Need(NamedTuple):
    """[pair, choice]"""

    bytes: Floats
    relief: Floats
    """What freeing one kept byte takes off them at most."""


def memory(table: Table, frame: Frame, choices: Choices, layers: int) -> Floats:
    """Bytes that the fullest rank needs in all at least: [pair, choice]."""
    stretch = 1 + table.ground.runtime.memory.fragmentation
    passes = _passes(table, frame, choices, layers).bytes
    fixed = (buffers_of(table) + frame.rates.fixed)[:, None]
    return np.asarray(fixed + np.maximum(passes, _step(table, frame, stretch)))


def lacking(table: Table, frame: Frame, choices: Choices, layers: int, limit: float) -> Floats:
    """Kept bytes of one micro batch that recomputation must free at least, all ranks together: [pair, choice]."""
    at = np.flatnonzero(choices.mix)
    part = Choices(choices.recipe[at], choices.layers[at], choices.mix[at], np.zeros_like(at))
    need = _passes(table, frame, part, layers)
    fixed = (buffers_of(table) + frame.rates.fixed)[:, None]
    found = np.zeros((len(frame.of_pair), len(choices.recipe)))
    found[:, at] = np.maximum(need.bytes + fixed - limit, 0.0) / need.relief
    return found


def _passes(table: Table, frame: Frame, choices: Choices, layers: int) -> _Need:
    """Bytes during the passes, fixed ones left out."""
    stretch = 1 + table.ground.runtime.memory.fragmentation
    shape = (len(frame.of_pair), len(choices.recipe))
    need = _Need(np.empty(shape), np.empty(shape))
    kinds = np.array([_kind(layout) for layout in frame.layouts])[frame.of_pair]
    for kind, bound in ((0, _whole), (2, _chunked)):
        at = np.flatnonzero(kinds == kind)
        if len(at):
            case = _case(table, frame, choices, layers, stretch, at)
            need.bytes[at], need.relief[at] = bound(case, frame.layouts, frame.of_pair[at])
    _fill_weighted(need, table, frame, choices, layers, stretch, kinds)
    return need._replace(bytes=need.bytes + stretch * frame.rates.gathered[:, None])


def _kind(layout: Layout) -> int:
    return 0 if layout.pp == 1 else 1 if layout.vpp == 1 else 2


def _case(table: Table, frame: Frame, choices: Choices, layers: int, stretch: float, at: np.ndarray) -> _Case:
    rates = frame.rates
    several = np.array([layout.microbatches > 1 for layout in frame.layouts])[frame.of_pair[at]][:, None]
    both = rates.lasting[at] + np.where(several, stretch, 0.0) * rates.gradients[at]
    return _Case(table, choices, stretch, (both[:, :1], both[:, 1:]), layers)


def _step(table: Table, frame: Frame, stretch: float) -> Floats:
    """The optimizer step: the mean over ranks; what is gathered for passes is not there."""
    rates: Rates = frame.rates
    both = rates.lasting + stretch * (rates.gradients + rates.work)
    params = sum(piece.number * piece.blocks[0].params for piece in table.pieces)
    experts = sum(piece.number * piece.blocks[0].expert_params for piece in table.pieces)
    pp = np.array([layout.pp for layout in frame.layouts])[frame.of_pair]
    return np.asarray(((both[:, 0] * params + both[:, 1] * experts) / pp)[:, None])


def _working(case: _Case) -> Floats:
    """Working set of the last layer of a chunk, at least: of a block or a mix it may or may not be recomputed."""
    recipe, blocks = case.choices.recipe, (case.choices.layers > 0) | case.choices.mix
    each = [
        np.where(blocks, np.minimum(piece.work[0], piece.work[recipe]), piece.work[recipe])
        for piece in case.table.layers
    ]
    return np.asarray(np.maximum(np.min(each, axis=0), 0.0))


def _whole(case: _Case, layouts: tuple[Layout, ...], at: np.ndarray) -> _Need:
    """One stage: everything is on it; the working set of the loss comes on top."""
    del layouts, at
    table, choices = case.table, case.choices
    blocks = choices.layers > 0
    # a block's layers are the first ones; where kinds differ, the kind that frees most is taken
    saved = np.max([piece.kept[0] - piece.kept[choices.kept] for piece in (*table.layers, *table.extra)], axis=0)
    plain = sum(piece.number * np.where(blocks, piece.kept[0], piece.kept[choices.kept]) for piece in table.pieces)
    kept = plain - np.where(blocks, choices.layers * saved, 0.0)
    # before the loss's backward pass every layer's bytes are there; before the last layer's, the loss's are gone
    loss = sum(piece.number * piece.kept[0] for piece in table.last)
    last = np.maximum(table.last[-1].work[0], _working(case) - loss)
    return _Need(np.asarray(case.sum_of(table.pieces) + case.stretch * (kept + last)), np.array(case.stretch))


def _fill_weighted(
    need: _Need, table: Table, frame: Frame, choices: Choices, layers: int, stretch: float, kinds: np.ndarray
) -> None:
    """One chunk a rank: pipelines whose ranks hold the same share a computation."""
    groups: dict[tuple[str, int, int], list[int]] = {}
    for pair in np.flatnonzero(kinds == 1).tolist():
        layout = frame.layouts[frame.of_pair[pair]]
        held = "gpipe" if layout.schedule == "gpipe" else "1f1b"
        groups.setdefault((held, layout.pp, layout.microbatches), []).append(pair)
    for (held, pp, count), at in groups.items():
        case = _case(table, frame, choices, layers, stretch, np.array(at))
        need.bytes[at], need.relief[at] = _weighted(case, in_flight(held, pp, 1, count))


def _weighted(case: _Case, flight: Floats) -> _Need:
    table, choices, stretch = case.table, case.choices, case.stretch
    main, blocks = table.main, choices.layers > 0
    kept = np.where(blocks, main.kept[0], main.kept[choices.kept])[None, :, None]
    static = case.of(main)[:, :, None]
    weight = 1.0 / (static + stretch * flight * kept)
    total, ends = weight.sum(axis=2), case.sum_of((*table.last, *table.extra))
    saved = stretch * (main.kept[0] - main.kept[choices.kept]) * choices.layers * blocks
    bytes_ = case.layers - (weight @ flight) * saved
    for piece in table.others:
        less = static - case.of(piece)[:, :, None] + stretch * flight * (kept - piece.kept[choices.kept][:, None])
        bytes_ -= piece.number * np.maximum(0.0, weight * less).max(axis=2)
    bytes_ += weight[:, :, 0] * (case.of(table.first) + stretch * flight[0] * table.first.kept[0])
    # the last rank's highest point is in the loss, where all its layers' bytes are there too
    loss = stretch * (sum(piece.number * piece.kept[0] for piece in table.last) + table.last[-1].work[0])
    bytes_ += weight[:, :, -1] * (ends + loss) + (total - weight[:, :, -1]) * stretch * _working(case)
    return _Need(np.asarray(bytes_ / total), stretch * (weight * flight).max(axis=2) / total)


def _kept(piece: Piece, choices: Choices, count: Floats) -> Floats:
    """Kept bytes of `count` layers in one chunk."""
    plain, chosen = piece.kept[0], piece.kept[choices.kept]
    again = np.minimum(choices.layers, count)
    return np.asarray(np.where(choices.layers > 0, again * chosen + (count - again) * plain, count * chosen))


def _chunked(case: _Case, layouts: tuple[Layout, ...], at: np.ndarray) -> _Need:
    """Several chunks a rank, near the even share: the mean over ranks, or a rank between the ends."""
    table, choices = case.table, case.choices
    used = np.unique(at)
    rows = [_shape(layouts[index], case.layers) for index in used]
    columns = np.array(rows)[np.searchsorted(used, at)].T[:, :, None]
    even, ranks, chunks, short, all_flight, inner = columns
    blocks = choices.layers > 0
    saved = np.max([piece.kept[0] - piece.kept[choices.kept] for piece in table.layers], axis=0)
    kept = sum(piece.number * np.where(blocks, piece.kept[0], piece.kept[choices.kept]) for piece in table.layers)
    kept = kept - np.where(blocks, ranks * chunks * choices.layers * saved, 0.0)
    longest = np.max([piece.kept[0] for piece in table.layers]) * (even + 1)
    held = (all_flight * np.maximum(kept, 0.0) - short * longest) / ranks
    working = _working(case)
    mean = case.sum_of(table.pieces) / ranks + case.stretch * (np.maximum(held, 0.0) + working)
    least = np.min([case.of(piece) for piece in table.layers], axis=0) * even * chunks
    full = np.min([_kept(piece, choices, even) for piece in table.layers], axis=0)
    one = np.where(ranks > 2, least + case.stretch * (inner * full + working), 0.0)
    # where layers may choose, the mean alone can be held against what they free
    needed = np.where(choices.mix & (choices.kept == 0), mean, np.maximum(mean, one))
    return _Need(np.asarray(needed), np.maximum(case.stretch * all_flight / ranks, 1e-30) + 0 * needed)


@lru_cache(maxsize=4096)
def _shape(layout: Layout, layers: int) -> tuple[float, ...]:
    """Even share of layers, ranks, chunks of a rank, and passes in flight.

    Interleaved 1F1B starts with pp passes through all chunks but a rank's last, which has 2 (pp - r - 1) + 1, at most
    pp: every layer counts pp times, less what late ranks' last chunks lack. On a v every layer counts as often as the
    chunk of the rank that is held least.
    """
    p, flight = layout.pp, in_flight(layout.schedule, layout.pp, layout.vpp, layout.microbatches)
    inner = float(flight[1:-1].max()) if p > 2 else 0.0
    short, every = 0.0, float(least_in_flight(layout.schedule, p, min(layout.microbatches, 2 * p)))
    if layout.schedule == "interleaved":
        every = float(min(p, layout.microbatches))
        short = float(sum(every - min(every, 2 * (p - rank - 1) + 1) for rank in range(p)))
    return layers // (p * layout.vpp), p, layout.vpp, short, every, inner
