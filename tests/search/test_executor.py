from __future__ import annotations

import os
import sys

import pytest

import shardwise
from shardwise.errors import MissingExtraError
from shardwise.plan.file import plan_text
from shardwise.search import executor as module
from shardwise.search.api import plan_file_of
from shardwise.search.executor import Pool, executor_of

CASE = {"global_batch": 64, "seq": 8192, "only": "cp=1 mbs<=2", "gap": 0.0}


def answer(**options):
    found = shardwise.plan("llama-3-70b", "64xh100", **CASE, **options)
    return plan_text(plan_file_of(found)).split('"run"')[0]


@pytest.fixture(scope="module")
def alone():
    return answer()


@pytest.mark.parametrize("workers", [2, 3])
def test_a_pool_gives_the_same_bytes(alone, workers):
    assert answer(workers=workers) == alone


def _die_once(question, strategies, goal):
    """The first worker that comes by dies; the file tells the others that it has."""
    mark = os.environ["SHARDWISE_TEST_MARK"]
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return list(module.Serial().refine(question, strategies, goal))
    os._exit(1)


def test_a_worker_that_dies_does_not_change_the_answer(alone, monkeypatch, tmp_path):
    monkeypatch.setenv("SHARDWISE_TEST_MARK", str(tmp_path / "died"))
    monkeypatch.setattr(module, "_several", _die_once)
    assert answer(workers=2) == alone
    assert (tmp_path / "died").exists()


def test_a_real_ray_gives_the_same_bytes(alone):
    pytest.importorskip("ray")
    assert answer(executor="ray", workers=2) == alone


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"shardwise\[ray\]"):
        executor_of("ray")


def test_one_worker_needs_no_pool():
    assert not isinstance(executor_of(workers=1), Pool)
