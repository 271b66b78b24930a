"""`shardwise validate`: the tables it prints, the JSON it writes, and what it does with bad files and rows."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from shardwise.measure.validate.rows import SHIPPED


def packed(name):
    return json.loads(gzip.decompress((SHIPPED / f"{name}.json.gz").read_bytes()))


@pytest.fixture
def some(tmp_path):
    """A file with a few published rows."""
    rows = [row for row in packed("published")["rows"] if row["source_key"] == "vocab-parallel"]
    path = tmp_path / "some.json"
    path.write_text(json.dumps(rows))
    return path


def test_all_shipped_rows(shardwise, tmp_path):
    file = tmp_path / "answer.json"
    result = shardwise("validate", "--json", file)
    assert result.code == 0, result.err
    for word in ("by source", "by gpu", "by precision", "mean over sources", "fits or out of memory", "regret"):
        assert word in result.out
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 1565
    assert sum("skipped" in row for row in rows) <= 0.03 * len(rows)
    for row in rows:
        if "skipped" not in row:
            assert {"iteration_seconds", "peak_bytes", "fits"} <= row["predicted"].keys()
            for name, error in row["error"].items():
                assert error == pytest.approx(row["predicted"][name] / row["measured"][name] - 1)


@pytest.mark.parametrize("name", ["h200_huggingface", "h200_megatron_rank"])
def test_a_file_with_rows_of_our_own_measurements(shardwise, tmp_path, name):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(packed(name)))
    answer = json.loads(shardwise("validate", "--data", path, "--json", "-").out)
    parts = {"h200_huggingface": "forward_seconds", "h200_megatron_rank": "peak_forward_backward_bytes"}
    assert all(row["source"] == name for row in answer["rows"])
    assert all(parts[name] in row["predicted"] for row in answer["rows"])


def test_several_files(shardwise, tmp_path, some):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(packed("h200_huggingface")))
    answer = json.loads(shardwise("validate", "--data", some, "--data", other, "--json", "-").out)
    assert {row["source"] for row in answer["rows"]} == {"vocab-parallel", "h200_huggingface"}


def test_a_bad_row_is_skipped_with_its_reason(shardwise, some):
    rows = json.loads(some.read_text())
    del rows[0]["parallel"]["global_batch"]
    rows[1]["framework"] = "an abacus"
    rows[2]["gpu"]["type"] = rows[2]["gpu"]["family"] = "slide rule"
    rows[3] = "not a row"
    rows[4]["model"]["layers"] = "many"
    rows[5]["num_gpus"] = -4
    some.write_text(json.dumps(rows))
    result = shardwise("validate", "--data", some, "--json", "-")
    assert result.code == 0, result.err
    answer = json.loads(result.out)["rows"]
    assert all("skipped" in row for row in answer[:6])
    assert "global_batch" in answer[0]["skipped"]
    assert "abacus" in answer[1]["skipped"]
    assert "slide rule" in answer[2]["skipped"]
    assert all("predicted" in row for row in answer[6:])


BAD_FILES = [
    ("not there", None, "no such file"),
    ("not JSON", "{", "not valid JSON"),
    ("no rows", "{}", "no measured runs"),
    ("an empty list", "[]", "no rows"),
    ("a number", "3", "no measured runs"),
    ("rows of another form", '[{"a": 1}]', "no form that is known"),
    ("rows of numbers", "[1, 2, 3]", "no form that is known"),
    ("not a number", '{"rows": [{"arch": "gpt2", "seq": NaN, "hidden": 3}]}', "NaN"),
]


@pytest.mark.parametrize(("case", "text", "said"), BAD_FILES, ids=[case for case, _, _ in BAD_FILES])
def test_bad_files(shardwise, tmp_path, case, text, said):
    del case
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    result = shardwise("validate", "--data", path)
    assert result.code == 2
    assert result.out == ""
    assert str(path) in result.err
    assert said in result.err
    assert "Traceback" not in result.err


def test_a_packed_file_that_is_not_packed(shardwise, tmp_path):
    path = tmp_path / "file.json.gz"
    path.write_text("[]")
    result = shardwise("validate", "--data", path)
    assert result.code == 2
    assert "Not a gzipped file" in result.err


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("model.layers", "many", "model.layers is 'many'; it must be a whole number"),
        ("model.hidden", None, "model.hidden is null; it must be a whole number"),
        ("parallel.tp", [2], "parallel.tp is a list"),
        ("parallel", 3, "parallel must be a table"),
        ("measured.iteration_time_s", -1.5, "measured.iteration_time_s is -1.5; what is measured is above 0"),
        ("measured.iteration_time_s", 0, "measured.iteration_time_s is 0"),
        ("measured.peak_memory_gb", "80", "measured.peak_memory_gb is '80'; it must be a number"),
        ("num_gpus", -4, "num_gpus is -4"),
        ("framework", 7, "framework is 7; it must be a text"),
        ("precision.compute", "fp5", "precision.compute is 'fp5'; it must be one of bf16"),
        ("parallel.tp", 7, "they must be equal; parallel.tp is 7, and model.heads 24 is no multiple of it"),
        ("num_gpus", 63, "num_gpus is 63, and parallel says tp 1 x pp"),
        ("cuda_graphs", "banana", "cuda_graphs is 'banana'; it must be true or false"),
        ("measured.iteration_time_s", 1e9, "no iteration takes over a day (86,400)"),
    ],
)
def test_a_bad_field_is_named(shardwise, some, path, value, said):
    rows = json.loads(some.read_text())
    *tables, name = path.split(".")
    table = rows[0]
    for part in tables:
        table = table[part]
    table[name] = value
    some.write_text(json.dumps(rows))
    skipped = json.loads(shardwise("validate", "--data", some, "--json", "-").out)["rows"][0]["skipped"]
    assert said in skipped
    assert "Error" not in skipped
    assert "object" not in skipped


def test_a_bad_time_of_our_own_forms_is_named(shardwise, tmp_path):
    rows = packed("h200_huggingface")["rows"][:2]
    rows[0]["step_ms"] = 0
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    found = json.loads(shardwise("validate", "--data", path, "--json", "-").out)["rows"]
    assert "step_ms is 0" in found[0]["skipped"]
    assert "predicted" in found[1]


def test_the_second_row_of_an_id_is_skipped(shardwise, some):
    rows = json.loads(some.read_text())[:2]
    rows[1]["id"] = rows[0]["id"]
    some.write_text(json.dumps(rows))
    found = json.loads(shardwise("validate", "--data", some, "--json", "-").out)["rows"]
    assert "predicted" in found[0]
    assert found[1]["skipped"] == f"row 1 has the same id {rows[0]['id']!r}"


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "validate.md"
MAY_LACK = {"completeness", "cuda_graphs"}


def test_the_row_that_the_page_shows_is_a_whole_one(shardwise, tmp_path):
    """It is predicted, and without any of its fields it is not."""
    (shown,) = re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (row,) = json.loads(shown)
    short = [{**{k: v for k, v in row.items() if k != key}, "id": key} for key in row.keys() - MAY_LACK - {"id"}]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row, *short]))
    first, *others = json.loads(shardwise("validate", "--data", path, "--json", "-").out)["rows"]
    assert first["error"].keys() == {"iteration_seconds", "peak_bytes"}
    assert [one["id"] for one in others if "skipped" not in one] == []


def test_a_file_of_bad_rows_only_is_bad_input(shardwise, some):
    rows = json.loads(some.read_text())[:3]
    for row in rows:
        row["framework"] = "an abacus"
    some.write_text(json.dumps(rows))
    result = shardwise("validate", "--data", some)
    assert result.code == 2
    assert "none of the 3 rows" in result.err
    assert "abacus" in result.err


def test_a_number_without_end_and_a_packed_flood_are_refused(shardwise, tmp_path, monkeypatch):
    path = tmp_path / "rows.json"
    path.write_text('[{"id": %s}]' % ("9" * 5000))
    assert "4,300 digits" in shardwise("validate", "--data", path).err
    monkeypatch.setattr("shardwise.inputs.files.SIZE_LIMIT", 1000)
    packed_file = tmp_path / "rows.json.gz"
    packed_file.write_bytes(gzip.compress(b" " * 5000))
    result = shardwise("validate", "--data", packed_file)
    assert (result.code, "files of up to" in result.err) == (2, True)
