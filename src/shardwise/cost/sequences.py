"""How unequal the attention of micro batches is whose samples are packed of documents, and what waits for it.

A sample begins at a random place of the data: inside a document drawn by its tokens, at any place of it, with documents
drawn by their number behind it. So many are drawn once for a histogram and a length, the first documents spread evenly
over the histogram and nothing left to a clock or a machine: the same question has the same answer. Sums of micro
batches are convolved on a grid; the largest of R equal ones has the distribution F^R.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwise.inputs.documents import Documents

Floats = npt.NDArray[np.float64]
Windows = tuple[tuple[int, float], ...]
"""Windows of attention (0: none), and the share of the seconds that each has."""

SAMPLES, LEAST_SAMPLES, CELLS = 2048, 64, 2**18
"""Samples that are drawn: fewer, down to the least, where they hold so many documents that all are much alike."""
ROOM, LEAST_ROOM = 1.1, 8
"""Documents drawn for a sample at once, over those that it has on average, and more: few need a second draw."""
SEED = 20
"""Any number would do."""
GRID, TAIL = 4096, 12.0
"""Places of the grid of a sum, and its standard deviations on either side that the grid holds: drawn sums are met to 1%
(tests/cost/test_sequences.py).
"""
MOST_DEALT = 2**16
"""Micro batches that are dealt out one by one; of more, each stands for several."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Loads:
    """Attention of a micro batch over that of the mean one: its values, ascending, and how likely each is."""

    values: Floats
    weights: Floats

    @property
    def mean(self) -> float:
        return float(self.values @ self.weights)

    def slowest_of(self, ranks: int) -> Loads:
        """The largest of so many at once."""
        return self if ranks == 1 else _slowest_of(self, ranks)

    def largest(self, draws: int, ranks: int) -> float:
        """The largest of so many sums of so many draws, on average."""
        return draws * self.mean if ranks == 1 else _largest(self, draws, ranks)

    @property
    def spread(self) -> float:
        """Standard deviation."""
        return float(np.sqrt(self.weights @ (self.values - self.mean) ** 2))

    def drawn(self, turns: int, count: int) -> Floats:
        """[turn, micro batch]: all turns of a micro batch spread evenly over what it may be, in random order."""
        rng, ends = np.random.default_rng(SEED), np.cumsum(self.weights)
        places = rng.permuted(np.tile(np.arange(turns), (count, 1)), axis=1) + rng.random((count, turns))
        found: Floats = self.values[np.minimum(np.searchsorted(ends, places.T / turns * ends[-1]), len(ends) - 1)]
        return found

    def quantiles(self, count: int) -> Floats:
        """So many values that stand for all, ascending; their mean is the mean."""
        ends = np.concatenate(([0.0], np.cumsum(self.weights)))
        sums = np.concatenate(([0.0], np.cumsum(self.weights * self.values)))
        found: Floats = np.diff(np.interp(np.arange(count + 1) / count * ends[-1], ends, sums)) * count
        return found

    def dealt(self, draws: int, ranks: int, group: int) -> tuple[float, float]:
        """Micro batches in the order of their attention, dealt round by round, there and back: what a replica waits for
        the `group` that it runs in step with, and the busiest group's sum above the mean, in all rounds together.
        """
        if ranks == 1:
            return 0.0, 0.0
        rounds = max(1, min(draws, MOST_DEALT // ranks))
        hands = self.quantiles(rounds * ranks).reshape(rounds, ranks)
        hands[1::2] = hands[1::2, ::-1]
        whole = ranks // group * group
        slowest = hands[:, :whole].reshape(rounds, -1, group).max(axis=2)
        scale = draws / rounds
        step = float(slowest.mean(axis=1).sum() - hands[:, :whole].mean(axis=1).sum())
        sums = slowest.sum(axis=0)
        return scale * step, scale * float(sums.max() - sums.mean())


@lru_cache(maxsize=512)
def _slowest_of(loads: Loads, ranks: int) -> Loads:
    ends = np.concatenate(([0.0], np.cumsum(loads.weights)))
    weights = np.diff((ends / ends[-1]) ** ranks)
    return Loads(values=loads.values, weights=weights)


@lru_cache(maxsize=4096)
def _largest(loads: Loads, draws: int, ranks: int) -> float:
    mean, low, high = loads.mean, float(loads.values[0]), float(loads.values[-1])
    spread = loads.spread
    if draws == 1 or not spread:
        return draws * loads.slowest_of(ranks).mean
    begin = max(draws * (low - mean), -TAIL * spread * draws**0.5)
    end = min(draws * (high - mean), TAIL * spread * draws**0.5)
    width = end - begin + (high - low)
    places = (loads.values - mean) / width * GRID
    below = np.floor(places).astype(int)
    one = np.zeros(GRID)
    np.add.at(one, below % GRID, loads.weights * (below + 1 - places))
    np.add.at(one, (below + 1) % GRID, loads.weights * (places - below))
    first = int(np.floor(begin / width * GRID))
    chance = np.clip(np.roll(np.fft.irfft(np.fft.rfft(one) ** draws, GRID), -first), 0.0, None)
    ends = np.cumsum(chance)
    weights = np.diff(np.concatenate(([0.0], ends / ends[-1])) ** ranks)
    found = draws * mean + float(weights @ (first + np.arange(GRID))) * width / GRID
    return float(min(max(found, draws * mean), draws * high))


@lru_cache(maxsize=256)
def loads_of(documents: Documents, seq: int, samples: int, cp: int, windows: Windows) -> Loads:
    """Micro batches of so many samples. `cp`: ranks that share a sample as pairs of an early and a late piece of the
    same size, whatever documents lie in them, and wait for the busiest; 1: shared evenly, or not at all.
    """
    areas: Floats = np.sum([share * _relative(documents, seq, cp, window) for window, share in windows], axis=0)
    rng = np.random.default_rng(SEED)
    own = np.mean([rng.permutation(areas) for _ in range(samples)], axis=0) if samples > 1 else areas
    return Loads(values=np.sort(own.max(axis=1)), weights=np.full(len(own), 1 / len(own)))


@lru_cache(maxsize=64)
def _relative(documents: Documents, seq: int, cp: int, window: int) -> Floats:
    """[sample, rank of cp]: attention over its mean."""
    pieces = _samples(documents, seq)
    if cp == 1:
        areas = _area(pieces, window).sum(axis=1, keepdims=True)
    else:
        starts = np.cumsum(pieces, axis=1) - pieces
        borders = np.arange(2 * cp + 1) * (seq / (2 * cp))
        done = np.stack([_area(np.clip(end - starts, 0.0, pieces), window).sum(axis=1) for end in borders], axis=1)
        each = np.diff(done, axis=1)
        areas = cp * (each[:, :cp] + each[:, : cp - 1 : -1])
    found: Floats = areas / areas.mean()
    return found


def _area(length: Floats, window: int) -> Floats:
    """Pairs of tokens that attend to each other in pieces of documents."""
    if not window:
        return length * length / 2
    inside = np.minimum(length, window)
    return inside * length - inside * inside / 2


@lru_cache(maxsize=64)
def _samples(documents: Documents, seq: int) -> Floats:
    """[sample, piece]: lengths of the pieces of documents that a sample holds; 0 where there are no more."""
    lengths, counts = np.array(documents.lengths, dtype=float), np.array(documents.counts)
    likely = int(ROOM * seq / documents.mean) + LEAST_ROOM
    size = min(SAMPLES, max(LEAST_SAMPLES, CELLS // likely))
    rng, even = np.random.default_rng(SEED), (np.arange(size) + 0.5) / size
    tokens = np.cumsum(lengths * counts)
    first = lengths[np.minimum(np.searchsorted(tokens / tokens[-1], even), len(lengths) - 1)]
    step = documents.lattice(seq)
    left = first - step * np.floor(rng.random(size) * first / step)
    number = np.cumsum(counts) / counts.sum()
    blocks, filled = [np.minimum(left, seq)[:, None]], np.minimum(left, seq)
    while (filled < seq).any():
        drawn = lengths[np.minimum(np.searchsorted(number, rng.random((size, likely))), len(lengths) - 1)]
        ends = np.minimum(filled[:, None] + np.cumsum(drawn, axis=1), seq)
        blocks.append(np.diff(ends, axis=1, prepend=filled[:, None]))
        filled = ends[:, -1]
    return np.concatenate(blocks, axis=1)
