"""The page: small, whole, escaped, the same words in both languages."""

from __future__ import annotations

import json
import re

import pytest

import shardwise
from shardwise.errors import UnknownNameError
from shardwise.pipeline.costs import costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.generate import generate
from shardwise.plan.predict import plan_of
from shardwise.report import svg
from shardwise.report.page import asset_names, asset_text, page_of, timeline_page
from shardwise.report.page.build import linked
from shardwise.report.view import plan_view

EVIL = "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>"
MODULES = [name for name in asset_names() if name.endswith(".js")]


@pytest.fixture(scope="module")
def timeline():
    return simulate(generate("zb-v", pp=2, microbatches=4), costs(pp=2, vpp=2, f=10, i=11, w=9, hop=1, memory_limit=4))


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def dictionary(name):
    return dict(re.findall(r'^  "?([^"\n]+?)"?:\s+"((?:[^"\\]|\\.)*)",$', asset_text(name), re.MULTILINE))


def test_everything_together_is_under_300_kb():
    total = sum(len(asset_text(name).encode()) for name in asset_names())
    assert total < 300_000


def test_both_languages_have_the_same_keys_and_places():
    english, chinese = dictionary("en.js"), dictionary("zh.js")
    assert english.keys() == chinese.keys()
    assert len(english) > 200
    for key, text in english.items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", chinese[key])), key
        assert chinese[key].strip(), key


def test_every_word_that_is_asked_for_is_there():
    english = dictionary("en.js")
    text = "\n".join(asset_text(name) for name in MODULES)
    asked = set(re.findall(r'\bt\(\s*"([^"]+)"', text))
    assert asked <= english.keys()
    for start in re.findall(r"\bt\(`([\w.]+\.)\$", text):
        assert any(key.startswith(start) for key in english), start


def test_every_part_of_a_ledger_and_a_view_has_a_word_in_both_languages():
    found = shardwise.estimate(
        shardwise.load_model("deepseek-v3"),
        shardwise.load_cluster("512xh100"),
        shardwise.Strategy.parse("tp2 pp8 dp32 ep8 zero1 mbs1 gbs2048 seq4096 layers=7,8,8,8,8,8,7,7 recompute=full"),
    )
    view, known = plan_view(plan_of(found)), dictionary("zh.js").keys()
    names = {part.name for part in found.time.leaves()} | {part.name for part in found.time.parts}
    names |= {part["name"] for ledger in view["ledger"]["memory"] for part in ledger["parts"]}
    assert {f"ledger.{name}" for name in names} <= known
    assert {f"axis.{name}" for name in view["axes"]} <= known
    assert {f"fact.{name}" for name, _ in view["facts"]} <= known
    assert {f"time.{name}" for name in view["stages"][0]["time"]} <= known
    assert {f"memory.{name}" for name in view["stages"][0]["memory"]} <= known


def test_data_never_becomes_markup():
    for name in MODULES:
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", re.sub("//.*", "", asset_text(name))
        ), name


def test_the_server_page_loads_every_module_at_once_and_nothing_else():
    page = asset_text("index.html")
    assert {*re.findall(r'"/assets/(\w+\.js)"', page)} == set(MODULES)
    assert not re.search(r"https?:", page)
    assert "<script>" not in page


def test_the_file_page_needs_nothing_from_outside(timeline):
    page = timeline_page(timeline, EVIL, {"bubble": EVIL})
    assert page.count("<script") == page.count("</script>") == 2
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "default-src 'none'" in page
    assert not re.search(r"^(import|export) ", page, re.MULTILINE)
    data = data_of(page)
    assert data["views"][0]["title"] == EVIL
    assert [len(rank["codes"]) for rank in data["views"][0]["timeline"]["ranks"]] == [24, 24]
    assert data["views"][0]["timeline"]["limit"] == 4


def test_the_policy_names_the_script_and_the_style_by_hash(timeline):
    import base64
    import hashlib

    page = timeline_page(timeline)
    for tag in ("script", "style"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in page


def test_modules_are_linked_before_those_that_need_them():
    text = linked()
    places = [
        text.index(f"const ${name.removesuffix('.js')} = ")
        for name in ("dom.js", "timeline.js", "inside.js", "main.js")
    ]
    assert places == sorted(places)


def test_the_same_result_is_the_same_page(timeline):
    assert timeline_page(timeline, "x") == timeline_page(timeline, "x")


def test_several_results_stand_in_one_file(timeline):
    data = data_of(timeline_page(timeline, "x", others=[timeline, timeline]))
    assert len(data["views"]) == 3


def test_a_page_without_results_is_no_page():
    with pytest.raises(ValueError, match="needs something to show"):
        page_of([])


def test_only_assets_can_be_asked_for():
    for name in ("../build.py", "..", "", "/etc/passwd", "main.js/.."):
        with pytest.raises(UnknownNameError):
            asset_text(name)


def test_the_figure_and_the_page_share_their_colours():
    palette = asset_text("palette.js").lower()
    for shade in (*svg.COLOURS.values(), *svg.LINES):
        assert shade in palette


def test_modules_import_what_is_exported_and_use_it():
    exported = {
        name: set(re.findall(r"^export (?:async )?(?:function\*?|const|class) (\w+)", asset_text(name), re.MULTILINE))
        for name in MODULES
    }
    for name in MODULES:
        text = asset_text(name)
        for words, source in re.findall(r'^import \{([^}]*)\} from "\./(\w+\.js)";$', text, re.MULTILINE):
            for word in filter(None, (one.strip() for one in words.split(","))):
                assert word in exported[source], f"{name}: {source} has no {word}"
                assert len(re.findall(rf"\b{word}\b", text)) > 1, f"{name} does not use {word}"
