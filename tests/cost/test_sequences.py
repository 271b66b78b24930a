"""How unequal packed samples are: what is drawn and convolved against plain simulation."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from shardwise.cost.sequences import loads_of
from shardwise.inputs.documents import Documents
from shardwise.ops.documents import keys_met

WEB = Documents(lengths=(40, 200, 700, 2500, 9000, 60000), counts=(300.0, 500.0, 400.0, 120.0, 20.0, 1.0))
ALL = ((0, 1.0),)


def simulated(seq, samples, seed=3):
    """Pairs of every sample of a long row of documents."""
    rng = np.random.default_rng(seed)
    shares = np.array(WEB.counts) / sum(WEB.counts)
    lengths = rng.choice(WEB.lengths, int(samples * seq / WEB.mean), p=shares)
    ends = np.union1d(np.cumsum(lengths), np.arange(1, samples + 1) * seq)
    pieces = np.diff(ends, prepend=0)
    own = (ends - 1) // seq
    return np.bincount(own, pieces**2 / 2)[:-1]


@pytest.mark.parametrize("seq", [2048, 8192, 32768])
def test_samples_are_as_unequal_as_those_of_a_long_row(seq):
    plain = simulated(seq, 20000)
    loads = loads_of(WEB, seq, 1, 1, ALL)
    relative = plain / plain.mean()
    assert loads.mean == pytest.approx(1)
    assert loads.spread == pytest.approx(relative.std(), rel=0.06)
    assert np.quantile(loads.values, 0.9) == pytest.approx(np.quantile(relative, 0.9), rel=0.08)
    assert loads.values[-1] <= seq / 2 / keys_met(WEB, seq) * 1.04


@pytest.mark.parametrize(("draws", "ranks"), [(1, 8), (1, 256), (4, 64), (32, 16), (256, 1024)])
def test_the_busiest_of_many_sums_is_that_of_drawn_ones(draws, ranks):
    loads = loads_of(WEB, 8192, 1, 1, ALL)
    rng = np.random.default_rng(5)
    turns = max(20, 2_000_000 // (draws * ranks))
    found = np.mean([rng.choice(loads.values, (ranks, draws)).sum(axis=1).max() for _ in range(turns)])
    assert loads.largest(draws, ranks) == pytest.approx(found, rel=0.012)


def test_more_ranks_never_wait_less_and_none_has_more_than_whole_documents():
    loads = loads_of(WEB, 8192, 2, 1, ALL)
    for draws in (1, 3, 50):
        found = [loads.largest(draws, ranks) for ranks in (1, 2, 3, 8, 64, 1000, 10**5)]
        assert found == sorted(found)
        assert found[0] == pytest.approx(draws)
        assert found[-1] <= draws * loads.values[-1]
    steps = [loads.slowest_of(ranks).mean for ranks in (1, 2, 8, 64)]
    assert steps == sorted(steps)


def test_samples_in_a_micro_batch_and_windows_even_it_out():
    def spread(samples, windows):
        return loads_of(WEB, 8192, samples, 1, windows).spread

    assert spread(4, ALL) == pytest.approx(spread(1, ALL) / 2, rel=0.1)
    assert spread(1, ((512, 1.0),)) < spread(1, ((0, 0.5), (512, 0.5))) < spread(1, ALL)


def test_ranks_of_context_parallel_wait_for_the_busiest_pair_of_pieces():
    """By hand for one document as long as the sample: early and late pieces are even."""
    even = Documents(lengths=(8192, 8193), counts=(1e9, 1.0))
    assert loads_of(even, 8192, 1, 4, ALL).mean >= 1
    rng = random.Random(2)  # noqa: S311
    seq, cp, total, most = 8192, 4, 0.0, 0.0
    for _ in range(400):
        ages, place = [], 0
        (first,) = rng.choices(WEB.lengths, [n * count for n, count in zip(WEB.lengths, WEB.counts, strict=True)])
        age, left = (begin := rng.randrange(first)), first - begin
        while place < seq:
            ages.append(age)
            age, left, place = age + 1, left - 1, place + 1
            if not left:
                (left,), age = rng.choices(WEB.lengths, WEB.counts), 0
        each = np.array(ages, dtype=float)
        each = np.minimum(each, np.arange(seq)) + 0.5
        chunks = each.reshape(2 * cp, -1).sum(axis=1)
        work = chunks[:cp] + chunks[: cp - 1 : -1]
        total, most = total + work.sum(), most + cp * work.max()
    assert loads_of(WEB, seq, 1, cp, ALL).mean == pytest.approx(most / total, rel=0.05)


def test_dealt_micro_batches_wait_for_less():
    loads = loads_of(WEB, 8192, 1, 1, ALL)
    for draws, ranks, group in ((16, 32, 1), (8, 64, 64), (3, 12, 4)):
        ahead, busiest = loads.dealt(draws, ranks, group)
        slowest = loads.slowest_of(group)
        random_order = slowest.largest(draws, ranks // group) - draws
        assert 0 <= ahead + busiest < 0.5 * random_order
    assert loads.dealt(4, 1, 1) == (0, 0)


def test_the_same_histogram_gives_the_same_loads():
    again = loads_of(replace(WEB, source="elsewhere"), 4096, 1, 1, ALL)
    assert (again.values == loads_of(WEB, 4096, 1, 1, ALL).values).all()
