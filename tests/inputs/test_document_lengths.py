"""Lengths of documents: files of every form, fewer bins with the same sums, and faults in sentences."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.check.check import check
from shardwise.errors import InputError
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.documents import MOST, Documents, documents_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.ops.documents import keys_met

TWO = Documents(lengths=(512, 2048), counts=(3.0, 1.0))
FORMS = {
    "a.csv": "length,count\n512,3\n2048,1\n",
    "b.csv": "# comment\nlength;count\n2048;1\n\n512;3\n",
    "c.txt": "512\n512\n2048\n512\n",
    "d.tsv": "tokens\tdocuments\n512\t3\n2048\t1\n",
    "e.json": "[512, 512, 512, 2048]",
    "f.json": "[[512, 3], [2048, 1]]",
    "g.json": '{"512": 3, "2048": 1}',
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_file_is_read(name, tmp_path):
    path = tmp_path / name
    path.write_text(FORMS[name], encoding="utf-8")
    found = Documents.parse(str(path))
    assert replace(found, source="") == TWO
    assert str(found) == str(path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "", "holds no document; write length,count"),
        ("a.csv", "length,count\n512,-3\n", "line 2, '512,-3', is no length with its count"),
        ("a.csv", "abc\ndef\n", "line 2, 'def', is no length"),
        ("a.csv", "0,5\n", "0 is no length of a document"),
        ("a.csv", "9999999999,5\n", "9,999,999,999 is no length of a document"),
        ("a.json", '{"a": 3}', "is no length with its count; write"),
        ("a.json", "[true]", "is no length with its count"),
        ("a.json", "[512.5]", "is no length with its count"),
        ("a.json", '[[512, "3"]]', "is no length with its count"),
        ("a.json", "3, 4", "a.json"),
    ],
)
def test_faults_of_files_are_sentences(name, text, said, tmp_path):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as told:
        Documents.parse(str(path))
    assert said in str(told.value)


@pytest.mark.parametrize("text", ["nothing-here.csv", "512x", "x3", "512x3,", "", "1" * 400, "a\0b"])
def test_what_is_no_file_and_no_lengths(text):
    with pytest.raises(InputError):
        Documents.parse(text)


def test_many_lengths_become_few_with_the_same_sums():
    rng = random.Random(1)  # noqa: S311
    counts = {max(1, round(rng.lognormvariate(6.2, 1.3))): rng.randint(1, 9) for _ in range(20_000)}
    found = documents_of(((length, float(count)) for length, count in counts.items()), "lengths")
    assert len(found.lengths) <= MOST
    squares = sum(length**2 * count for length, count in counts.items())
    assert found.tokens == pytest.approx(sum(length * count for length, count in counts.items()), rel=1e-12)
    assert sum(n**2 * c for n, c in zip(found.lengths, found.counts, strict=True)) == pytest.approx(squares, rel=1e-3)
    whole = Documents(lengths=tuple(sorted(counts)), counts=tuple(float(counts[one]) for one in sorted(counts)))
    for seq in (1024, 8192, 131072):
        assert keys_met(found, seq) == pytest.approx(keys_met(whole, seq), rel=3e-3)
        assert keys_met(found, seq, 512) == pytest.approx(keys_met(whole, seq, 512), rel=3e-3)


@given(st.dictionaries(st.integers(1, 10**6), st.integers(1, 10**6), min_size=1, max_size=20))
def test_lengths_print_and_parse_back(table):
    found = documents_of(((length, float(count)) for length, count in table.items()), "lengths")
    assert Documents.parse(str(found)) == found
    strategy = Strategy(documents=found, packing="balanced")
    assert Strategy.parse(str(strategy)) == strategy


def test_the_line_takes_a_file_whatever_its_letters(tmp_path):
    path = tmp_path / "Lengths.CSV"
    path.write_text("512,3\n2048,1\n", encoding="utf-8")
    found = Strategy.parse(f"TP2 DOCUMENTS={path} packing=Balanced")
    assert (found.tp, found.packing, found.documents.lengths) == (2, "balanced", (512, 2048))
    assert Strategy.parse(str(found)) == found


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"packing": "balanced"}, "there are none; give --documents"),
        ({"documents": Documents(lengths=(512,), counts=())}, "1 lengths and 0 counts"),
        ({"documents": Documents(lengths=(), counts=())}, "0 lengths and 0 counts"),
        ({"documents": Documents(lengths=(2048, 512), counts=(1.0, 1.0))}, "must ascend"),
        ({"documents": Documents(lengths=(0,), counts=(1.0,))}, "0 is too small"),
        ({"documents": Documents(lengths=(512,), counts=(-1.0,))}, "too small"),
        ({"documents": TWO, "packing": "sorted"}, "'sorted' is not known"),
    ],
)
def test_strategies_with_wrong_documents_are_refused(changes, said):
    faults = check(
        load_model("llama-3-8b"), load_cluster("8xh100"), Strategy(dp=8, **changes), load_runtime("megatron")
    )
    assert any(said in str(fault) for fault in faults), faults


def test_files_of_strategies_hold_them(tmp_path):
    from shardwise.frameworks.load import load_strategy

    path = tmp_path / "strategy.json"
    table = {"tp": 2, "documents": {"lengths": [512, 2048], "counts": [3.0, 1.0]}, "packing": "padded"}
    path.write_text(json.dumps(table), encoding="utf-8")
    found = load_strategy(path)
    assert (found.documents, found.packing) == (TWO, "padded")
    path.write_text(json.dumps({"documents": {"lengths": ["a"], "counts": [1], "more": 2}}), encoding="utf-8")
    with pytest.raises(InputError) as told:
        load_strategy(path)
    assert "documents.lengths.0" in str(told.value)
    assert "documents.more" in str(told.value)
