from __future__ import annotations

from math import inf, sqrt

import pytest

from shardwise.estimate.goodput import budget, goodput


def test_without_failures_all_time_counts():
    assert goodput(1024, 0.0, 30.0).share == 1.0
    assert goodput(1024, 0.0, 30.0).interval == inf


def test_the_interval_is_young_and_dalys():
    found = goodput(1000, 3.6e8, 60.0)
    assert found.interval == pytest.approx(sqrt(2 * 60 * 3.6e5) - 60)
    assert found.failures_per_day == pytest.approx(0.24)


def test_more_gpus_lose_more():
    shares = [goodput(gpus, 50_000 * 3600.0, 60.0).share for gpus in (64, 1024, 16384)]
    assert shares == sorted(shares, reverse=True)


def test_a_budget_by_hand():
    found = budget(10.0, 1_000_000, 8, 1e9, 2.0, 0.5)
    assert found.days == pytest.approx(1000 * 10 / 0.5 / 86400)
    assert found.gpu_hours == pytest.approx(1000 * 10 / 0.5 / 3600 * 8)
    assert found.cost == pytest.approx(2 * found.gpu_hours)
