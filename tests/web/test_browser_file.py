"""The mailed file: the same views without a server, and a hundred thousand actions that move smoothly."""

from __future__ import annotations

import statistics

import pytest
from browsing import Looked

import shardwise
from shardwise.pipeline.costs import costs
from shardwise.pipeline.engine import simulate
from shardwise.pipeline.generate import generate
from shardwise.report.data import plans_page
from shardwise.report.page import timeline_page
from shardwise.report.view import plan_view
from shardwise.search.api import plan_file_of

HAND = ".cockpit .hand"
EVIL = "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>"
PAN = """async () => {
  const canvas = document.querySelector("canvas.timeline"), box = canvas.getBoundingClientRect(), times = [];
  const say = (kind, x) => canvas.dispatchEvent(new PointerEvent(kind, {pointerId: 1, bubbles: true, buttons: 1,
    clientX: box.left + x, clientY: box.top + 60}));
  canvas.setPointerCapture = () => {};
  const frame = () => new Promise(done => requestAnimationFrame(done));
  say("pointerdown", 600);
  let last = await frame();
  for (let k = 1; k <= 60; k++) {
    say("pointermove", 600 - 6 * (k < 30 ? k : 60 - k));
    const now = await frame();
    times.push(now - last);
    last = now;
  }
  say("pointerup", 600);
  return times;
}"""


@pytest.fixture(scope="module")
def plan_html(tmp_path_factory):
    answer = shardwise.plan("llama-3-8b", "8xh100", global_batch=16, seq=4096, only="tp<=2 pp=2 vpp=1")
    plan = plan_file_of(answer)
    path = tmp_path_factory.mktemp("page") / "plan.html"
    views = [plan_view(plan, answer)]
    path.write_text(plans_page([plan], views, answer), encoding="utf-8")
    return path


@pytest.fixture
def alone(browser):
    """A page without any server; the network is off."""
    found = Looked(browser, "")
    found.context.set_offline(True)
    yield found
    found.close()


def test_a_plan_is_looked_at_without_a_server(alone, plan_html):
    page = alone.page
    page.goto(plan_html.as_uri())
    page.wait_for_selector("canvas.timeline")
    names = page.locator("nav a").all_inner_texts()
    assert names == ["Plan", "Look inside", "Export"]
    assert page.locator("#why-input").count() == 0
    page.click("nav a >> nth=0")
    assert page.locator(".scatter circle.fits").count() > 0
    assert page.locator("form").count() == 0
    page.click("nav a >> nth=2")
    page.wait_for_selector(".file pre")
    assert "Megatron" in page.inner_text(".export-files h2 >> nth=0")
    with page.expect_download() as kept:
        page.click("button:has-text('plan.json')")
    assert kept.value.suggested_filename == "plan.json"


def test_knobs_of_a_file_turn_without_a_server(alone, plan_html):
    page = alone.page
    page.goto(plan_html.as_uri())
    page.wait_for_selector("canvas.timeline")
    page.click("nav a >> nth=0")
    first = page.inner_text(HAND)
    for name in ("tp", "recompute", "gpus", "seq"):
        choices = page.locator(f".cockpit .knob[data-knob={name}] option:not([disabled])")
        values = choices.evaluate_all("all => all.map(one => one.value)")
        box = page.locator(f".cockpit .knob[data-knob={name}] select")
        now = box.input_value()
        for value in (one for one in values if one != now):
            box.select_option(value)
            page.wait_for_function("was => document.querySelector('.cockpit .hand').innerText !== was", arg=first)
            gpus = int(value) if name == "gpus" else 8
            same = shardwise.estimate("llama-3-8b", f"{gpus}xh100", page.inner_text(HAND))
            assert page.inner_text(".cockpit .tile.mfu strong") == f"{same.mfu:.1%}"
            box.select_option(now)
            page.wait_for_function("was => document.querySelector('.cockpit .hand').innerText === was", arg=first)
    page.focus(".scatter")
    for key in ("End", "Enter"):
        page.keyboard.press(key)
    page.wait_for_function("was => document.querySelector('.cockpit .hand').innerText !== was", arg=first)
    page.click(".cockpit .back")
    page.wait_for_function("was => document.querySelector('.cockpit .hand').innerText === was", arg=first)


def test_a_file_looks_inside_what_is_in_hand(alone, plan_html):
    page = alone.page
    page.goto(plan_html.as_uri())
    page.wait_for_selector("canvas.timeline")
    inside = page.locator("#view-inside")
    first = inside.locator(".tile.iteration strong").inner_text()
    box = inside.locator(".knob[data-knob=gpus] select")
    box.select_option("16")
    page.wait_for_selector("#view-inside .notes:has-text('carries the timeline')")
    found = shardwise.estimate(
        "llama-3-8b", "16xh100", page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('s')")
    )
    assert f"{found.mfu:.1%}" == inside.locator(".tile.mfu strong").inner_text()
    assert inside.locator("canvas.timeline").count() == 0
    there = page.url
    inside.locator(".back").click()
    page.wait_for_selector("#view-inside canvas.timeline")
    assert inside.locator(".tile.iteration strong").inner_text() == first
    page.goto("about:blank")
    page.goto(there)  # the address of a file names what was in hand
    page.wait_for_selector("#view-inside .notes:has-text('carries the timeline')")
    assert f"{found.mfu:.1%}" == inside.locator(".tile.mfu strong").inner_text()


def test_an_estimates_file_speaks_of_no_search(alone, tmp_path):
    path = tmp_path / "estimate.html"
    plan = shardwise.plan_of(shardwise.estimate("llama-3-8b", "8xh100", "tp2 pp2 mbs1 gbs16 seq4096"))
    path.write_text(plans_page([plan]), encoding="utf-8")
    page = alone.page
    page.goto(path.as_uri())
    page.wait_for_selector("canvas.timeline")
    page.click("nav a >> nth=0")
    page.locator(".cockpit .knob[data-knob=tp] select").select_option("1")
    page.wait_for_selector('.cockpit .lost:has-text("against this file\'s strategy")')
    assert "plan found" not in page.inner_text("main")
    assert "recommended" not in page.inner_text("main")


def test_schedules_are_compared_and_names_stay_text(alone, tmp_path):
    given = costs(pp=4, f=10, i=11, w=9, hop=1)
    lines = [simulate(generate(name, pp=4, microbatches=8), given) for name in ("zb-h1", "1f1b", "gpipe")]
    path = tmp_path / "schedules.html"
    path.write_text(timeline_page(lines[0], EVIL, {EVIL: EVIL}, others=lines[1:]), encoding="utf-8")
    page = alone.page
    page.goto(path.as_uri())
    page.wait_for_selector("canvas.timeline")
    assert page.inner_text("h1") == EVIL
    assert page.locator("nav a").all_inner_texts() == ["Look inside", "Compare\n3"]
    page.click("nav a >> nth=1")
    assert page.locator(".compare-table thead th").count() == 4
    page.click(".compare-table thead button:has-text('Look inside') >> nth=1")
    page.wait_for_function("() => document.querySelector('h1').innerText === '1f1b'")
    assert page.evaluate("window.broken") is None


def test_a_hundred_thousand_actions_move_smoothly(alone, tmp_path, record_property):
    line = simulate(generate("1f1b", pp=32, microbatches=1563), costs(pp=32, f=1, i=1, w=1, hop=0.1))
    assert line.schedule.actions >= 100_000
    path = tmp_path / "long.html"
    path.write_text(timeline_page(line, "long"), encoding="utf-8")
    page = alone.page
    page.goto(path.as_uri())
    page.wait_for_selector("canvas.timeline")
    page.locator("canvas.timeline").scroll_into_view_if_needed()
    told = []
    for name, press in (("two thirds", "0+"), ("a twelfth", "+++++"), ("readable", "++++++")):
        page.focus("canvas.timeline")
        for key in press:
            page.keyboard.press(key)
        times = page.evaluate(PAN)
        assert len(times) == 60
        told.append(f"{name} {statistics.median(times):.1f}")
    actions = f"{line.schedule.actions:,}"
    record_property("measured", f"timeline of {actions} actions: median ms a frame while panning: {', '.join(told)}")
