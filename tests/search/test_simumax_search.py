from __future__ import annotations

import pytest

from shardwise.errors import InputError
from shardwise.frameworks.simumax.search import search_best_parallel_strategy_with_recompute as search


def test_its_knobs_bind_and_its_files_are_written(tmp_path):
    rows = {}
    answer = search(
        "llama-3-8b",
        "8xa100",
        world_size=16,
        gmi_error=6,
        micro_batch_size=1,
        global_batch_size=64,
        all_search_result=rows,
        tp_search_list=[1, 2],
        recompute_search_type=["no_recompute", "full_block"],
        use_reserved_memory=False,
        dump_path=str(tmp_path / "found"),
    )
    best = answer.best.strategy
    assert best.world == 16
    assert best.tp in {1, 2}
    assert best.micro_batch == 1
    assert not best.recompute.modules
    assert rows["mfu"][0] == pytest.approx(answer.best.mfu)
    assert (tmp_path / "found" / "plan.json").exists()
    assert (tmp_path / "found" / "all.csv").read_text().startswith("parallelism,")


def test_an_unknown_kind_of_recompute_is_refused():
    with pytest.raises(InputError, match="layer_only"):
        search("llama-3-8b", "8xa100", world_size=8, global_batch_size=8, recompute_search_type=["layer_only"])
