"""What an attack found where one answer said two things (findings 8 to 10 of "one truth"); 8 also in test_search."""

from __future__ import annotations

import json
import re

UNEVEN = ("estimate", "llama-3-70b", "-c", "64xh100", "-s", "tp4 pp4 gbs256 seq4096 layers=17,21,21,21")


def test_8_a_stopped_search_says_what_it_left_open(shardwise, tmp_path):
    path = tmp_path / "answer.json"
    shardwise("plan", "deepseek-v3", "-c", "2048xh100", "--global-batch", "16384", "--time", "1ms", "--json", path)
    search = json.loads(path.read_text())["search"]
    assert not search["finished"]
    assert search["left_open"] == search["strategies"] - search["pruned"] - search["simulated"] > 0
    assert search["pruned"] <= search["screened"]


def test_9_one_word_for_the_bubble(shardwise, tmp_path):
    """ "bubble 8.6%" of all ranks stood above "pipeline bubble and sends 1.4%" of the busiest."""
    report, answer, plan = (tmp_path / name for name in ("report.md", "answer.json", "plan.json"))
    found = shardwise(*UNEVEN, "--explain", "--md", report, "--json", answer, "--out", plan)
    for text in (found.out, report.read_text(), shardwise("show", plan, "--explain").out):
        lines = [line for line in text.splitlines() if "bubble" in line]
        assert len(lines) == 1, lines
        assert re.search(r"\d% synchronous", lines[0])
        assert "pipeline waits and sends" in text
    predictions = json.loads(answer.read_text())["predictions"]
    assert "bubble" not in json.dumps(predictions["time"])
    assert f"{predictions['bubble']:.1%} synchronous" in found.out
