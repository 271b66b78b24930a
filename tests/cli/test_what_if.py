from __future__ import annotations

import json


def test_the_same_number_of_gpus_changes_nothing(shardwise, tmp_path):
    path = tmp_path / "site.json"
    words = ("-s", "tp2 pp4 mbs1 gbs32 seq4096", "--out", path, "--quiet")
    assert shardwise("estimate", "llama-3-8b", "-c", "16xa100@bloom", *words).code == 0
    found = json.loads(shardwise("what-if", path, "--gpus", "16", "--json", "-", "--quiet").out)
    assert found["the same strategy there"]["iteration_seconds"] == found["the plan as it is"]["iteration_seconds"]
