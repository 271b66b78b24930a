"""Lower bounds on the memory of the fullest rank, however layers are cut.

Rank r needs c + n_r (s + u_r a) bytes for its n_r layers: s static bytes and a kept bytes of one layer, u_r passes in
flight. With any weights w_r >= 0 the fullest rank needs at least the weighted mean over ranks; w_r = 1 / (s + u_r a)
makes it independent of the cut: layers / sum of w_r. Other kinds of layer are held against it at their worst place.

Under a limit, every rank has room for so many layers: where all rooms together are too small no cut fits, and what
early ranks have no room for the others must take (`pipeline_bound.crowded`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwise.search.frame import Flight, Frame, Rates, buffers_of
from shardwise.search.stage_work import Choices
from shardwise.search.table import Floats, LayerPiece, Table


class _Case(NamedTuple):
    """Some pairs, and what pipelines over one base have in common."""

    table: Table
    choices: Choices
    stretch: float
    """Reserved over allocated bytes of what comes and goes."""
    passes: tuple[Floats, Floats]
    """Bytes per parameter during the passes: outside experts, of experts; [pair, 1]."""
    layers: int
    working: Floats
    """Working set of the last layer of a chunk, at least."""
    loss: float
    """Kept bytes of output layer and loss."""

    def at(self, pairs: npt.NDArray[np.int64]) -> _Case:
        return self._replace(passes=(self.passes[0][pairs], self.passes[1][pairs]))

    def of(self, piece: LayerPiece) -> Floats:
        block = piece.blocks[0]
        return self.passes[0] * (block.params - block.frozen) + self.passes[1] * block.expert_params

    def sum_of(self, pieces: tuple[LayerPiece, ...]) -> Floats:
        params = sum(piece.number * (piece.blocks[0].params - piece.blocks[0].frozen) for piece in pieces)
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
    fixed = (_buffers(table) + frame.rates.fixed)[:, None]
    return np.asarray(fixed + np.maximum(passes, _step(table, frame, stretch)))


def _buffers(table: Table) -> float:
    return buffers_of(table.ground, (piece.blocks[0] for piece in table.layers))


def lacking(table: Table, frame: Frame, choices: Choices, layers: int, limit: float) -> Floats:
    """Kept bytes of one micro batch that recomputation must free at least, all ranks together: [pair, choice]."""
    at = np.flatnonzero(choices.mix)
    part = Choices(choices.recipe[at], choices.layers[at], choices.mix[at], np.zeros_like(at))
    need = _passes(table, frame, part, layers)
    fixed = (_buffers(table) + frame.rates.fixed)[:, None]
    found = np.zeros((len(frame.of_pair), len(choices.recipe)))
    found[:, at] = np.maximum(need.bytes + fixed - limit, 0.0) / need.relief
    return found


class Room(NamedTuple):
    """Layers that every rank of some pairs has room for at most, under some recompute choices."""

    pairs: npt.NDArray[np.int64]
    choices: npt.NDArray[np.int64]
    layers: Floats
    """[pair, choice, rank]; negative: not even for what it has beside them."""


LIGHT = 0.8
"""Times the bytes of the main kind of layer: a kind that needs less is taken for nothing."""


def light(table: Table) -> tuple[LayerPiece, ...]:
    """Kinds of layer that may need far less than the main one, or stand before it."""

    def sizes(piece: LayerPiece) -> list[Floats]:
        block = piece.blocks[0]
        return [np.array([block.params + block.expert_params]), piece.kept]

    main = sizes(table.main)
    return tuple(
        piece
        for piece in table.others
        if table.leading or any((own < LIGHT * most).any() for own, most in zip(sizes(piece), main, strict=True))
    )


def rooms(table: Table, frame: Frame, choices: Choices, limit: float, may: npt.NDArray[np.bool_]) -> list[Room]:
    """What the ranks of pipelines have room for, where `may` [pair, choice] holds; layers of light kinds and, beside
    them, the need of every chunk for a layer are left out.
    """
    columns = np.flatnonzero(may.any(axis=0))
    case = _case(table, frame, Choices(*(array[columns] for array in choices)), 0)
    fixed = _buffers(table) + frame.rates.fixed + case.stretch * frame.rates.gathered
    chunks = np.array([layout.vpp for layout in frame.layouts])[frame.of_pair][:, None, None]
    found = []
    for flight, pairs in frame.flights:
        at = pairs[may[pairs].any(axis=1)]
        if flight is not None and len(at):
            free = limit - fixed[at][:, None, None]
            found.append(Room(at, columns, _room(case.at(at), flight, chunks[at], free)))
    return found


def _room(case: _Case, held: Flight, chunks: npt.NDArray[np.int64], free: Floats) -> Floats:
    """A rank's emptiest chunk takes all that the others need not have. Its first N layers are the leaner ones of a
    block, then come those of the other chunks, where these hold fewer bytes than whole layers of the emptiest.
    """
    table, choices, stretch = case.table, case.choices, case.stretch
    lights = light(table)
    kinds = [piece for piece in table.layers if piece not in lights]
    static = np.min([np.broadcast_to(case.of(piece), (len(free), 1)) for piece in kinds], axis=0)[:, :, None]
    whole = np.min([piece.kept[0] for piece in kinds])
    blocks, count = (choices.layers > 0)[:, None], choices.layers[:, None]
    lean = np.min([np.minimum(piece.kept[choices.kept], piece.kept[0]) for piece in kinds], axis=0)[:, None]
    whole = np.where(blocks, whole, np.min([piece.kept[choices.kept] for piece in kinds], axis=0)[:, None])
    each, most = stretch * held.each, stretch * (held.each + held.more)
    left = free - stretch * case.working[:, None] - _ends(case, held, chunks)
    others = np.zeros_like(chunks) if lights else chunks - 1
    left = left - others * (static + most * lean)
    found = np.asarray(others, dtype=float)
    steps = (
        (np.where(blocks, count, 0.0), each * lean),
        (np.where(blocks, count * (chunks - 1) - others, 0.0), np.minimum(each * whole, most * lean)),
        (np.inf, each * whole),
    )
    for number, kept in steps:
        taken = np.clip(left / (static + kept), -1.0, number)
        found, left = found + taken, left - taken * (static + kept)
    return np.floor(found + 1e-6)


def _ends(case: _Case, held: Flight, chunks: npt.NDArray[np.int64]) -> Floats:
    """Bytes of embedding and output layer on the ranks that have them: [pair, choice, rank]."""
    table, last = case.table, 0 if held.folded else -1
    found = np.zeros((len(chunks), len(case.working), len(held.each)))
    found[:, :, 0] += case.of(table.first) + case.stretch * held.each[0] * table.first.kept[0]
    found[:, :, last] += case.sum_of((*table.last, *table.extra))
    loss = case.loss + table.last[-1].work[0] - case.working
    found[:, :, last] += np.where(chunks[:, :, 0] == 1, case.stretch * loss, 0.0)
    return found


def _passes(table: Table, frame: Frame, choices: Choices, layers: int) -> _Need:
    """Bytes during the passes, fixed ones left out."""
    case = _case(table, frame, choices, layers)
    shape = (len(frame.of_pair), len(choices.recipe))
    need = _Need(np.empty(shape), np.empty(shape))
    chunks = np.array([layout.vpp for layout in frame.layouts])[frame.of_pair][:, None]
    for flight, at in frame.flights:
        some = case.at(at)
        need.bytes[at], need.relief[at] = _whole(some) if flight is None else _weighted(some, flight, chunks[at])
    return need._replace(bytes=need.bytes + case.stretch * frame.rates.gathered[:, None])


def _case(table: Table, frame: Frame, choices: Choices, layers: int) -> _Case:
    rates, stretch = frame.rates, 1 + table.ground.runtime.memory.fragmentation
    several = np.array([layout.microbatches > 1 for layout in frame.layouts])[frame.of_pair][:, None]
    both = rates.static + np.where(several, stretch, 0.0) * rates.gradients
    loss = sum(piece.number * float(piece.kept[0]) for piece in table.last)
    return _Case(table, choices, stretch, (both[:, :1], both[:, 1:]), layers, _working(table, choices), loss)


def _step(table: Table, frame: Frame, stretch: float) -> Floats:
    """The optimizer step: the mean over ranks; what is gathered for passes is not there."""
    rates: Rates = frame.rates
    both = rates.static + stretch * (rates.gradients + rates.work)
    params = sum(piece.number * (piece.blocks[0].params - piece.blocks[0].frozen) for piece in table.pieces)
    experts = sum(piece.number * piece.blocks[0].expert_params for piece in table.pieces)
    pp = np.array([layout.pp for layout in frame.layouts])[frame.of_pair]
    return np.asarray(((both[:, 0] * params + both[:, 1] * experts) / pp)[:, None])


def _working(table: Table, choices: Choices) -> Floats:
    """Of a block or a mix the last layer may or may not be recomputed."""
    recipe, blocks = choices.recipe, (choices.layers > 0) | choices.mix
    each = [
        np.where(blocks, np.minimum(piece.work[0], piece.work[recipe]), piece.work[recipe]) for piece in table.layers
    ]
    return np.asarray(np.maximum(np.min(each, axis=0), 0.0))


def _whole(case: _Case) -> _Need:
    """One stage: everything is on it; the working set of the loss comes on top."""
    table, choices = case.table, case.choices
    blocks = choices.layers > 0
    # a block's layers are the first ones; where kinds differ, the kind that frees most is taken
    saved = np.max([piece.kept[0] - piece.kept[choices.kept] for piece in (*table.layers, *table.extra)], axis=0)
    plain = sum(piece.number * np.where(blocks, piece.kept[0], piece.kept[choices.kept]) for piece in table.pieces)
    kept = plain - np.where(blocks, choices.layers * saved, 0.0)
    # before the loss's backward pass every layer's bytes are there; before the last layer's, the loss's are gone
    last = np.maximum(table.last[-1].work[0], case.working - case.loss)
    return _Need(np.asarray(case.sum_of(table.pieces) + case.stretch * (kept + last)), np.array(case.stretch))


def _weighted(case: _Case, held: Flight, chunks: npt.NDArray[np.int64]) -> _Need:
    """`chunks`: of a rank, by pair; each holds a layer or more."""
    table, choices, stretch = case.table, case.choices, case.stretch
    flight, last = held.each, 0 if held.folded else -1
    main, blocks = table.main, choices.layers > 0
    kept = np.where(blocks, main.kept[0], main.kept[choices.kept])[None, :, None]
    static = case.of(main)[:, :, None]
    weight = 1.0 / (static + stretch * flight * kept)
    total, ends = weight.sum(axis=2), case.sum_of((*table.last, *table.extra))
    bytes_ = case.layers + weight[:, :, last] * ends + total * (stretch * case.working)
    if blocks.any():  # the first N layers of every chunk
        saved = stretch * (main.kept[0] - main.kept[choices.kept]) * choices.layers * chunks * blocks
        bytes_ -= (weight @ flight) * saved
    for piece in table.others:
        less = static - case.of(piece)[:, :, None] + stretch * flight * (kept - piece.kept[choices.kept][:, None])
        bytes_ -= piece.number * np.maximum(0.0, weight * less).max(axis=2)
    if held.more.any():
        least = np.min([np.minimum(piece.kept[0], piece.kept[choices.kept]) for piece in table.layers], axis=0)
        bytes_ += (weight @ held.more) * stretch * least * (chunks - 1)
    bytes_ += weight[:, :, 0] * (case.of(table.first) + stretch * flight[0] * table.first.kept[0])
    # with one chunk, the last rank's highest point is in the loss, where all its layers' bytes are there too
    loss = case.loss + table.last[-1].work[0] - case.working
    bytes_ += np.where(chunks == 1, weight[:, :, last] * stretch * loss, 0.0)
    if not choices.mix.any():
        return _Need(np.asarray(bytes_ / total), np.ones(()))
    most = flight + held.more * (chunks[:, :, None] > 1)
    relief = stretch * (weight * most).max(axis=2) / total
    return _Need(np.asarray(bytes_ / total), np.maximum(relief, 1e-30))
