"""Measured runs: their readers, the tables over them, and how near the predictions must be."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean

import pytest

from shardwise.estimate.estimate import estimate
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.measure.validate import summary
from shardwise.measure.validate import summary as regret
from shardwise.measure.validate.case import MeasuredRun, Skipped
from shardwise.measure.validate.frameworks import cluster_for, network_rate, runtime_for
from shardwise.measure.validate.rows import read_file, shipped_files, sources_of
from shardwise.measure.validate.validate import Outcome, predict, row_of, validate


@pytest.fixture(scope="module")
def validation():
    return validate()


@pytest.fixture(scope="module")
def outcomes(validation):
    return validation.outcomes


WHOLE = ("deepspeed", "huggingface", "megatron", "torchtitan")
"""Frameworks whose whole jobs one H200 ran."""


def of(outcomes, source):
    return [one for one in outcomes if one.case.source == source]


class TestShippedRows:
    def test_they_are_small_and_name_their_sources(self):
        assert sum(path.stat().st_size for path in shipped_files()) < 400_000
        named = {name: sources_of(path) for path in shipped_files() for name in [path.name]}
        assert len(named["published.json.gz"]) == 27
        assert all("title" in source for source in named["published.json.gz"].values())
        assert named["h200_huggingface.json.gz"]["gpu"] == "NVIDIA H200"

    def test_nearly_all_are_predicted(self, validation):
        assert len(validation.results) == 1565
        assert len(validation.skipped) <= 0.02 * 1565, [one.reason for one in validation.skipped]

    def test_ids_are_unique(self, validation):
        ids = [one.case.id if isinstance(one, Outcome) else one.id for one in validation.results]
        assert len(set(ids)) == len(ids)

    def test_predictions_are_positive(self, outcomes):
        for one in outcomes:
            assert one.predicted["iteration_seconds"] > 0
            assert one.predicted["peak_bytes"] > 0

    def test_strategies_use_all_gpus(self, outcomes):
        for one in of(outcomes, "aleph-layouts"):
            assert one.case.strategy.world == one.case.cluster.gpus


class TestMemory:
    @pytest.mark.parametrize("quantity", ["peak_forward_backward_bytes", "peak_optimizer_bytes"])
    def test_megatron_ranks(self, outcomes, quantity):
        errors = summary.errors_of(of(outcomes, "h200_megatron_rank"), quantity)
        assert errors.rows == 18
        assert errors.mean <= 0.02
        assert errors.max <= 0.06

    def test_hugging_face(self, outcomes):
        errors = summary.errors_of(of(outcomes, "h200_huggingface"), "peak_bytes")
        assert errors.rows == 19
        assert errors.mean <= 0.03
        assert errors.max <= 0.08


class TestSitesAndHosts:
    """What a site, a host and the copies of FSDP explain; each was a bias of 10 to 50% before it was modelled."""

    @pytest.mark.parametrize(
        ("source", "quantity", "most"),
        [
            ("vtrain-multi", "iteration_seconds", 0.085),
            ("vtrain-single", "iteration_seconds", 0.10),
            ("bloom", "iteration_seconds", 0.09),
            ("torchtitan", "peak_bytes", 0.08),
            ("torchao", "peak_bytes", 0.08),
            ("fms-fsdp", "iteration_seconds", 0.10),
            ("h200_megatron_rank", "iteration_seconds", 0.05),
            ("h200_huggingface", "iteration_seconds", 0.02),
            ("h200_jobs_deepspeed", "iteration_seconds", 0.08),
            ("h200_jobs_huggingface", "iteration_seconds", 0.04),
            ("h200_jobs_megatron", "iteration_seconds", 0.05),
            ("h200_jobs_torchtitan", "iteration_seconds", 0.03),
            ("h200_jobs_pipelining", "iteration_seconds", 0.06),
            ("h200_jobs_deepspeed", "peak_bytes", 0.02),
            ("h200_jobs_huggingface", "peak_bytes", 0.02),
            ("h200_jobs_megatron", "peak_bytes", 0.02),
            *((f"h200_jobs_{name}", "reserved_bytes", 0.06) for name in WHOLE),
        ],
    )
    def test_errors(self, outcomes, source, quantity, most):
        assert summary.errors_of(of(outcomes, source), quantity).mean <= most

    def test_software_does_not_carry_a_site(self, outcomes):
        """BLOOM and vTrain ran the same software; only one of them is slow."""
        sites = {one.case.source: one.case.cluster.site for one in outcomes if "deepspeed" in one.case.runtime.name}
        assert (sites["bloom"].name, sites["vtrain-multi"].name) == ("bloom", "usual")
        assert load_runtime("megatron-deepspeed").overheads.slowdown == 1.0

    def test_steps_of_whole_frameworks(self, outcomes):
        found = {one.case.id: one for one in outcomes if one.case.source.startswith("h200_jobs")}
        assert len(found) == 84
        job = found["tt-llama1b-compile"]
        assert "peak_bytes" not in job.case.measured
        assert job.error["reserved_bytes"] == pytest.approx(0.0, abs=0.06)
        assert {"iteration_seconds", "time_interval", "peak_bytes", "reserved_bytes"} <= job.predicted.keys()
        assert found["hf-llama1b-b8-compile"].case.model.hidden == 2048
        assert not found["meg-local-edited"].case.strategy.flash


class TestNetworkRate:
    @pytest.mark.parametrize(
        ("text", "per_node", "rate"),
        [
            ("4x 100 Gb/s RoCE per node", 8, 4 * 100e9 / 8 / 8),
            ("RDMA 400 Gb/s per GPU", 8, 50e9),
            ("8x 200 Gb/s HDR InfiniBand per node", 8, 25e9),
            ("InfiniBand 200 Gb/s per node", 4, 200e9 / 8 / 4),
            ("400 gb/s per gpu", 8, 50e9),
        ],
    )
    def test_words(self, text, per_node, rate):
        assert network_rate(text, per_node) == pytest.approx(rate)

    @pytest.mark.parametrize("text", ["", "not stated", "InfiniBand", "fast"])
    def test_silence(self, text):
        assert network_rate(text, 8) is None


class TestNames:
    @pytest.mark.parametrize(
        ("framework", "runtime"),
        [
            ("Composer + PyTorch FSDP (llm-foundry)", "mosaic"),
            ("torchtitan", "torchtitan"),
            ("Megatron-LM (2021)", "megatron-2021"),
            ("NeMo 24.07", "megatron"),
            ("an abacus", None),
        ],
    )
    def test_frameworks(self, framework, runtime):
        found = runtime_for(framework)
        assert (found.name if found else None) == runtime

    def test_gpus(self):
        assert cluster_for({"type": "A100-SXM4-40GB", "family": "A100"}, 16).gpu.name == "a100-40"
        assert cluster_for({"type": "H100-SXM5-80GB", "family": "H100"}, 8).gpu.name == "h100"
        assert cluster_for({"type": "slide rule", "family": "wood"}, 8) is None


def made(case, *, seconds, measured, fits=True, ran=True, name="x", source="aleph-layouts"):
    """An outcome with given numbers."""
    values = {"fits": ran, **({"iteration_seconds": measured} if ran else {})}
    own = replace(case, id=name, source=source, measured=values, group="one")
    error = {"iteration_seconds": seconds / measured - 1} if ran else {}
    return Outcome(case=own, predicted={"iteration_seconds": seconds, "fits": fits, "peak_bytes": 1.0}, error=error)


@pytest.fixture(scope="module")
def case(outcomes):
    return of(outcomes, "aleph-layouts")[0].case


class TestSummary:
    def test_errors(self, case):
        found = summary.errors_of(
            [made(case, seconds=s, measured=10.0, name=str(s)) for s in (9, 10, 14)], "iteration_seconds"
        )
        assert (found.rows, found.worst) == (3, "14")
        assert found.mean == pytest.approx(0.5 / 3)
        assert found.median == pytest.approx(0.1)
        assert found.max == pytest.approx(0.4)
        assert found.bias == pytest.approx(0.1)

    def test_nothing_to_sum(self, case):
        assert summary.errors_of([], "iteration_seconds") is None
        assert summary.headline([]) is None
        assert summary.confusions([]) == []
        assert summary.errors_of([made(case, seconds=1, measured=1.0)], "no such quantity") is None

    def test_the_headline_weighs_sources_the_same(self, case):
        many = [made(case, seconds=11, measured=10.0, source="many", name=f"m{n}") for n in range(20)]
        few = [made(case, seconds=13, measured=10.0, source="few", name=f"f{n}") for n in range(5)]
        none = [made(case, seconds=90, measured=10.0, source="four", name=f"n{n}") for n in range(4)]
        assert summary.headline([*many, *few, *none]).mean == pytest.approx(0.2)

    def test_the_headline_is_the_mean_of_its_table(self, outcomes):
        rows = [
            r for r in summary.table(summary.scored(outcomes), "iteration_seconds", summary.by_source) if r.rows >= 5
        ]
        assert summary.headline(outcomes).mean == pytest.approx(fmean(row.mean for row in rows))
        assert all(not row.name.startswith("h200") for row in rows)

    def test_confusion(self, case):
        rows = [
            made(case, seconds=1, measured=1.0),
            made(case, seconds=1, measured=1.0, fits=False),
            made(case, seconds=1, measured=1.0, ran=False),
            made(case, seconds=1, measured=1.0, ran=False, fits=False),
            made(case, seconds=1, measured=1.0, ran=False, fits=False),
        ]
        own, whole = summary.confusions(rows)
        assert (own.ran_fits, own.ran_oom, own.oom_fits, own.oom_oom) == (1, 1, 1, 2)
        assert own.right == pytest.approx(0.6)
        assert own.right_of_ran == pytest.approx(0.5)
        assert own.right_of_oom == pytest.approx(2 / 3)
        assert whole.name == "all"


class TestRegret:
    def test_the_best_is_chosen(self, case):
        rows = [made(case, seconds=s, measured=m, name=str(s)) for s, m in ((1, 10.0), (2, 12.0), (3, 20.0))]
        (found,) = regret.regrets(rows)
        assert (found.chosen, found.best, found.regret, found.rows) == ("1", "1", 0.0, 3)
        assert found.spread == pytest.approx(1.0)

    def test_another_is_chosen(self, case):
        rows = [made(case, seconds=s, measured=m, name=str(s)) for s, m in ((1, 12.0), (2, 10.0))]
        (found,) = regret.regrets(rows)
        assert found.regret == pytest.approx(0.2)

    def test_out_of_memory_is_skipped_and_counted(self, case):
        rows = [
            made(case, seconds=1, measured=1.0, ran=False, name="oom"),
            made(case, seconds=2, measured=10.0, name="a"),
            made(case, seconds=3, measured=9.0, name="b"),
        ]
        (found,) = regret.regrets(rows)
        assert (found.chosen, found.refused) == ("a", 1)

    def test_predicted_not_to_fit_comes_last(self, case):
        rows = [
            made(case, seconds=1, measured=9.0, fits=False, name="a"),
            made(case, seconds=2, measured=10.0, name="b"),
        ]
        (found,) = regret.regrets(rows)
        assert found.chosen == "b"

    def test_one_run_has_no_regret(self, case):
        assert regret.regrets([made(case, seconds=1, measured=1.0)]) == []
        assert regret.mean_regret([]) is None


def test_rows_of_the_answer(case):
    row = row_of(made(case, seconds=11, measured=10.0, name="a"))
    assert row["error"]["iteration_seconds"] == pytest.approx(0.1)
    skipped = row_of(Skipped(id="b", source="s", reason="why"))
    assert skipped == {"id": "b", "source": "s", "skipped": "why"}


def test_every_reader_gives_cases():
    for path in shipped_files():
        found = read_file(path)
        assert sum(isinstance(one, MeasuredRun) for one in found) > 0.95 * len(found)


class TestOtherMakers:
    def test_rows_of_amd_find_their_gpu(self):
        found = {}
        for row in read_file(next(path for path in shipped_files() if "2026" in path.name)):
            if isinstance(row, MeasuredRun) and row.gpu.startswith("MI"):
                assert row.cluster.gpu.name == row.gpu.lower()
                outcome = predict(row)
                assert isinstance(outcome, Outcome)
                found[row.id] = outcome.error["iteration_seconds"]
        assert abs(found.pop("mlperf-llama8b-amd-001")) < 0.06
        assert abs(found.pop("mlperf-llama8b-amd-003")) < 0.08
        assert abs(found.pop("torchao-006")) < 0.16
        assert not found
        for gpu in ("MI325X", "MI355X"):
            assert cluster_for({"type": gpu, "family": gpu, "gpus_per_node": 8}, 8).gpu.name == gpu.lower()

    @pytest.mark.parametrize(
        ("model", "cluster", "batch", "seq", "tokens"),
        [
            ("llama-2-70b", "512xtpu-v5p", 2, 4096, 692),
            ("llama-3-8b", "256xtpu-v6e", 4, 8192, 7207),
            ("llama-3-70b", "256xtpu-v6e", 5, 8192, 960),
            ("llama-3.1-405b", "256xtpu-v6e", 1, 8192, 123),
        ],
    )
    def test_what_the_calibration_of_tpus_stands_on(self, model, cluster, batch, seq, tokens):
        """Tokens per second and chip: MaxText's docs, "Optimized models tiering"; batches from its benchmark files."""
        machines = load_cluster(cluster)
        line = f"dp{machines.gpus} zero3 mbs{batch} gbs{batch * machines.gpus} seq{seq} recompute=full runtime=maxtext"
        found = estimate(load_model(model), machines, Strategy.parse(line))
        assert abs(tokens / found.tokens_per_second_per_gpu - 1) < 0.31


class TestIntervals:
    """What is measured lies where the intervals say, and the answer carries them."""

    @pytest.mark.parametrize("quantity", ["iteration_seconds", "peak_bytes"])
    def test_nine_runs_in_ten_lie_inside(self, outcomes, quantity):
        found = {one.name: one for one in summary.coverages(outcomes, quantity) if one.rows >= summary.POOLED}
        assert {"all", summary.KNOWN} <= found.keys()
        assert min(one.inside for one in found.values()) >= 0.86, found
        assert found["all"].inside <= 0.96

    def test_memory_below_16_bit_has_a_width_of_its_own(self, outcomes):
        """Of two sources alone, so that the regime is small; before, 10 of 14 runs in fp8 lay inside."""
        found = {one.name: one for one in summary.coverages(outcomes, "peak_bytes")}
        assert found["in fp8"].rows >= 14
        assert found["in fp8"].inside >= 0.86
        assert found["8 or 4 bit"].half_width > 1.5 * found[summary.KNOWN].half_width

    def test_no_regime_is_so_wide_that_all_lie_inside(self, outcomes):
        found = {one.name: one for one in summary.coverages(outcomes, "iteration_seconds")}
        assert all(found[name].inside <= 0.96 for name in (summary.KNOWN, "8 or 4 bit", "mixture of experts"))
        assert found[summary.KNOWN].half_width <= 0.14

    def test_small_regimes_are_pooled(self, outcomes):
        found = summary.coverages(outcomes, "iteration_seconds")
        small = [one for one in found[:-1] if one.rows < summary.POOLED]
        assert found[-1].name == f"regimes of fewer than {summary.POOLED} rows"
        assert max(one.rows for one in small) <= found[-1].rows <= sum(one.rows for one in small)

    def test_every_row_of_the_answer_carries_them(self, validation):
        for one in map(row_of, validation.results):
            if "skipped" not in one:
                told = one["predicted"]
                assert told["time_interval"][0] < told["iteration_seconds"] < told["time_interval"][1]
                assert told["memory_interval"][0] < told["peak_bytes"] < told["memory_interval"][1]
                assert 0 <= told["fits_probability"] <= 1
                assert told["fits"] == (told["fits_probability"] >= 0.5)

    def test_what_is_said_to_fit_with_a_probability_does_so_as_often(self, outcomes):
        told = [
            (float(one.predicted["fits_probability"]), one.case.measured["fits"])
            for one in of(outcomes, "aleph-layouts")
        ]
        unsure = [(share, ran) for share, ran in told if 0.1 < share < 0.9]
        assert fmean(ran for share, ran in told if share <= 0.1) < 0.05
        assert fmean(ran for share, ran in told if share >= 0.9) > 0.93
        assert abs(fmean(share for share, _ in unsure) - fmean(ran for _, ran in unsure)) < 0.25

    def test_rows_that_leave_things_open_are_wider(self, outcomes):
        found = {one.name: one for one in summary.coverages(outcomes, "iteration_seconds")}
        assert found["settings not all known"].half_width > found[summary.KNOWN].half_width
        assert found["composed of parts"].sources == 1


class TestBrokenJobs:
    """Rows of whole jobs that cannot be read say which field it is."""

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"framework": "foo"}, "framework is 'foo'; it must be one of megatron"),
            ({"iteration_s": None}, ""),
            ({"model": "llama"}, "model must be a table"),
            ({"strategy": {"micro_batch": 1, "seq": 8, "strange": 1}}, "strategy has no field 'strange'"),
        ],
    )
    def test_reasons(self, tmp_path, change, reason):
        row = {
            "id": "a", "framework": "megatron-lm", "iteration_s": 1.0, "strategy": {"micro_batch": 1, "seq": 2048},
            "model": {"name": "m", "layers": 2, "hidden": 256, "heads": 4, "kv_heads": 4, "head_size": 64, "ffn": 512,
                      "vocab": 1000},
        }  # fmt: skip
        path = tmp_path / "jobs.json"
        path.write_text(json.dumps({"rows": [row, {**row, "id": "b", **change}]}), encoding="utf-8")
        good, bad = read_file(path)
        assert isinstance(good, MeasuredRun)
        assert isinstance(bad, Skipped)
        assert reason in bad.reason
        assert "another kind" not in bad.reason or not reason
