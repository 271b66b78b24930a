"""Attention inside documents: the closed forms against documents that are packed one by one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.inputs.documents import Documents
from shardwise.ops.attention import area
from shardwise.ops.documents import chunked_tokens, keys_met, keys_met_alone

WEB = Documents(lengths=(40, 200, 700, 2500, 9000, 60000), counts=(300.0, 500.0, 400.0, 120.0, 20.0, 1.0))


def packed(documents, seq, samples, seed=1):
    """The pieces of documents that so many samples hold, in random order."""
    rng = random.Random(seed)  # noqa: S311
    row, left, found = [], seq, []
    while len(found) < samples:
        (length,) = rng.choices(documents.lengths, documents.counts)
        while length:
            piece = min(length, left)
            row.append(piece)
            length, left = length - piece, left - piece
            if not left:
                found.append(row)
                row, left = [], seq
    return found


def pairs(piece, window):
    return piece * piece / 2 if not window or piece <= window else window * piece - window * window / 2


@pytest.mark.parametrize("window", [0, 128, 1000, 4096])
@pytest.mark.parametrize("seq", [2048, 8192, 32768])
def test_the_mean_is_that_of_documents_packed_one_by_one(seq, window):
    rows = packed(WEB, seq, 40_000_000 // seq // 4)
    simulated = sum(pairs(piece, window) for row in rows for piece in row) / len(rows) / seq
    assert keys_met(WEB, seq, window) == pytest.approx(simulated, rel=0.03)


def test_chunks_end_where_the_sample_says():
    seq, chunk = 8192, 1024
    rows = packed(WEB, chunk, 8000)
    simulated = sum(piece * piece / 2 for row in rows for piece in row) / len(rows) / chunk
    assert keys_met(WEB, seq, chunk, chunked=True) == pytest.approx(simulated, rel=0.03)


@pytest.mark.parametrize("length", [1000, 1024, 1365, 4096, 5000, 8192, 12288])
def test_one_length_is_cut_where_samples_end(length):
    """All of 1,024 are never cut, those of 5,000 everywhere: by hand, over every place where a sample may begin."""
    seq, one = 4096, Documents(lengths=(length,), counts=(1.0,))
    step = one.lattice(seq)
    total = 0.0
    for age in range(0, length, step):
        left, piece = seq, min(seq, length - age)
        while left:
            total += piece * piece / 2
            left -= piece
            piece = min(left, length)
    assert keys_met(one, seq) == pytest.approx(total / (length // step) / seq, rel=1e-12)


def test_documents_as_long_as_the_sample_leave_half_of_the_square():
    whole = Documents(lengths=(4096, 8192), counts=(3.0, 1.0))
    for window in (0, 512, 4096):
        assert keys_met(whole, 4096, window) == pytest.approx(4096 * area(4096, window), rel=1e-12)
    assert keys_met(whole, 4096, 512, chunked=True) == 4096 * area(4096, 512, chunked=True)


HISTOGRAMS = st.dictionaries(st.integers(1, 40_000), st.integers(1, 1000), min_size=1, max_size=8)


def documents(table):
    return Documents(lengths=tuple(sorted(table)), counts=tuple(float(table[one]) for one in sorted(table)))


@given(HISTOGRAMS, st.sampled_from([512, 1000, 4096, 32768]), st.sampled_from([0, 100, 4096]))
def test_no_documents_meet_more_keys_than_one_that_is_as_long_as_the_sample(table, seq, window):
    met = keys_met(documents(table), seq, window)
    assert 0 < met <= seq * area(seq, window) * (1 + 1e-9)
    assert met <= keys_met(documents(table), seq) * (1 + 1e-9)


@given(HISTOGRAMS, st.sampled_from([512, 1000, 4096]))
def test_documents_cut_in_two_never_meet_more(table, seq):
    halves: dict[int, int] = {}
    for length, count in table.items():
        for part in (length // 2, length - length // 2):
            if part:
                halves[part] = halves.get(part, 0) + count
    assert keys_met(documents(halves), seq) <= keys_met(documents(table), seq) * (1 + 1e-9)


def test_padded_documents_attend_to_themselves():
    two = Documents(lengths=(100, 5000), counts=(3.0, 1.0))
    assert keys_met_alone(two, 4096) == pytest.approx((3 * 100**2 / 2 + 4096**2 / 2) / (300 + 4096))
    assert keys_met_alone(two, 4096, 64) == pytest.approx(
        (3 * pairs(100, 64) + pairs(4096, 64)) / (300 + 4096)
    )  # fmt: skip
    assert keys_met_alone(two, 4096, 64, chunked=True) == pytest.approx(
        (3 * (64**2 + 36**2) / 2 + 64 * 64**2 / 2) / (300 + 4096)
    )


def test_chunks_of_a_recurrence_begin_with_every_document():
    rows = packed(WEB, 8192, 5000)
    simulated = sum(-(-piece // 64) * 64 for row in rows for piece in row) / len(rows) / 8192
    assert chunked_tokens(WEB, 8192, 64) == pytest.approx(simulated, rel=0.005)
    assert chunked_tokens(Documents(lengths=(8192,), counts=(1.0,)), 8192, 64) == 1
