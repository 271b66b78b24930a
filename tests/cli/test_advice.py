"""Advice held against published runs: the well-known set-ups, the proposal under a run's own conditions, Ctrl-C."""

from __future__ import annotations

import gzip
import json
import tomllib
from statistics import fmean

import pytest

from shardwise import api
from shardwise.estimate.estimate import estimate
from shardwise.measure.validate import advice
from shardwise.measure.validate.case import MeasuredRun
from shardwise.measure.validate.rows import SHIPPED, read_rows
from shardwise.report.advice import MEASURED

ROWS = {
    row["id"]: row
    for name in ("published", "published_2026")
    for row in json.loads(gzip.decompress((SHIPPED / f"{name}.json.gz").read_bytes()))["rows"]
}
TOLD = tomllib.loads(advice.FILE.read_text())
KNOWN = ROWS | {row["id"]: row for row in TOLD["run"]}


def small(*models):
    return [row for row in ROWS.values() if row["source_key"] == "vocab-parallel" and row["model"]["vocab"] in models]


@pytest.fixture
def two_groups(tmp_path):
    path = tmp_path / "two.json"
    path.write_text(json.dumps(small(64000)))
    return path


def test_every_known_setup_has_a_source_and_a_run_that_can_be_predicted():
    assert len(TOLD["setup"]) >= 12
    assert all(setup["source"] for setup in TOLD["setup"])
    names = [name for setup in TOLD["setup"] for name in setup["rows"]]
    assert len(names) == len(set(names))
    for one in read_rows([KNOWN[name] for name in names], advice.FILE):
        assert isinstance(one, MeasuredRun), one
        assert "iteration_seconds" in one.measured


def test_sources_are_read_as_they_are():
    """Llama 3 has chunks of one layer, AutoModel and DGX Cloud's Nemotron no fp32 copies, jobs 64 GB200 of a rack."""
    names = ("llama3-paper-002", "automodel-006", "dgxc-061", "megatron-bridge-012")
    read = [one for one in read_rows([ROWS[name] for name in names], advice.FILE) if isinstance(one, MeasuredRun)]
    llama, oss, nemotron, rack = read
    assert (llama.strategy.vpp, llama.strategy.layers[:2], llama.strategy.layers[-1]) == (8, (0, 1), 0)
    assert (oss.strategy.master, oss.runtime.name, nemotron.strategy.master) == ("pure", "automodel", "pure")
    assert rack.cluster.levels[0].size == 64


def test_practitioners_layouts_are_predicted_and_said_to_fit():
    names = [name for setup in TOLD["setup"] for name in setup["rows"]]
    errors = {}
    for one in read_rows([KNOWN[name] for name in names], advice.FILE):
        assert isinstance(one, MeasuredRun)
        found = estimate(one.model, one.cluster, one.strategy, runtime=one.runtime, checked=True)
        assert found.fits != "no", one.id
        errors[one.id] = found.iteration_seconds / one.measured["iteration_seconds"] - 1
    assert fmean(map(abs, errors.values())) <= 0.10, errors


def test_what_is_proposed_is_what_plan_proposes_for_the_same_question(two_groups):
    found = api.validate_advice(two_groups)
    assert found.finished
    assert len(found.groups) == 2
    for one in found.groups:
        strategy = one.case.strategy
        again = api.plan(
            one.case.model, one.case.cluster, global_batch=strategy.global_batch, seq=strategy.seq,
            runtime=one.case.runtime, base=strategy, gap=advice.GAP,
        )  # fmt: skip
        assert again.best.strategy == one.proposed.strategy
        assert again.best.iteration_seconds == one.proposed.iteration_seconds
        assert one.proposed.strategy.dtype == strategy.dtype
        assert one.difference.value == pytest.approx(one.published - one.proposed.iteration_seconds)
        assert one.ratio == pytest.approx(one.published / one.proposed.iteration_seconds)
        assert one.published == min(
            row["measured"].get("iteration_time_s") or row["derived"]["iteration_time_s"]
            for row in small(one.case.model.vocab)
            if row["model"]["seq_len"] == strategy.seq
        )


@pytest.mark.parametrize(
    ("model", "cluster", "strategy"),
    [
        ("llama-3-70b", "64xh100", "tp4 pp4x2 cp2 gbs64 seq8192 interleaved recompute=full"),
        ("qwen3-30b-a3b", "16xh100", "dp16 ep8 zero3 gbs64 seq4096"),
    ],
)
def test_every_part_that_layouts_can_differ_in_names_what_it_was_measured_on(model, cluster, strategy):
    found = api.estimate(model, cluster, strategy)
    for part in found.time.parts:
        for inner in part.parts or (part,):
            name = part.name if part.name == "recompute" else inner.name
            assert name in MEASURED, name


def test_what_is_done_is_kept(two_groups):
    def told(_one, _total):
        raise KeyboardInterrupt

    found = api.validate_advice(two_groups, told=told)
    assert (found.done, found.total, found.finished) == (1, 2, False)


def test_the_command(shardwise, two_groups, tmp_path):
    json_file, md_file = tmp_path / "advice.json", tmp_path / "advice.md"
    result = shardwise("validate", "--advice", "--data", two_groups, "--json", json_file, "--md", md_file)
    assert result.code == 0, result.err
    told = json.loads(json_file.read_text())
    assert [row["run"] for row in told["groups"]]
    assert told["summary"]["regret"]["dense"] is not None
    for row in told["groups"]:
        assert row["difference"]["value"] == pytest.approx(sum(part["value"] for part in row["difference"]["parts"]))
        assert row["error"] == pytest.approx(row["predicted_seconds"] / row["published_seconds"] - 1)
    assert "vocab-parallel" in result.out
    assert "vocab-parallel" in md_file.read_text()


@pytest.mark.parametrize(("more", "word"), [(["--cluster", "a100"], "--cluster"), ([], "no two timed runs")])
def test_what_cannot_be_advised_on(shardwise, tmp_path, more, word):
    path = tmp_path / "one.json"
    path.write_text(json.dumps(small(64000)[:1]))
    result = shardwise("validate", "--advice", "--data", path, *more)
    assert result.code == 2
    assert word in result.err
