"""Pictures of every view at both widths and in both themes, and that nothing sticks out of the window."""

from __future__ import annotations

import pytest
from browsing import QUESTION, STRATEGY, THEMES, WIDTHS, Looked, shots

WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CUT = """() => [...document.querySelectorAll("h1, h2, h3, button, strong, .bar-total, th, dt, dd")].filter(node => {
  const box = node.getBoundingClientRect(), scroll = node.closest(".scroll, .targets, .bars");
  return box.width && !scroll && (box.right > innerWidth + 1 || box.left < -1);
}).map(node => node.innerText)"""

DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Two frames on: what was just shown is laid out and painted."""


def plan(found, page):
    del found
    page.wait_for_selector(".answer")


def inside(found, page):
    del found
    page.locator("canvas.timeline").scroll_into_view_if_needed()
    page.focus("canvas.timeline")
    page.keyboard.press("Enter")  # the first action, whatever the widths of rows and lanes
    page.wait_for_selector(".action-name")
    page.fill("#why-input", "tp8 pp1")
    page.click(".why-form .primary")
    page.wait_for_selector(".verdict")


def compare(found, page):
    del found
    page.wait_for_function("() => document.querySelectorAll('.compare-table thead th').length === 3")


def export(found, page):
    del found
    page.wait_for_selector(".file pre")


@pytest.fixture
def words():
    pins = [f'{{"s":"{STRATEGY}"}}', f'{{"s":"{STRATEGY.replace("pp4 dp2", "pp2 dp4")}"}}']
    return {**QUESTION, "s": STRATEGY, "ran": "1", "pin": pins}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_is_whole(server, browser, words, width, theme, tmp_path):
    from urllib.parse import urlencode

    found = Looked(browser, server.url, width=width, theme=theme)
    found.page.goto(f"{found.url}/#plan?{urlencode(words, doseq=True)}")
    page, folder = found.page, shots(tmp_path)
    page.wait_for_selector(".badge:has-text('2')")
    for index, ready in enumerate((plan, inside, compare, export)):
        page.click(f"nav a >> nth={index}")
        ready(found, page)
        page.evaluate(DRAWN)
        assert page.evaluate(WIDER) <= 0, ready.__name__
        assert page.evaluate(CUT) == [], ready.__name__
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=folder / f"{ready.__name__}-{width}-{theme}.png", full_page=True)
    found.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_empty_views_and_chinese_are_whole_too(server, browser, width, tmp_path):
    found = Looked(browser, server.url, width=width, locale="zh-CN")
    page, folder = found.go(model="llama-3-8b"), shots(tmp_path)
    for index, name in enumerate(("plan", "inside", "compare", "export")):
        page.click(f"nav a >> nth={index}")
        assert page.is_visible(f"#view-{name} .card.empty, #view-{name} .welcome")
        assert page.evaluate(WIDER) <= 0
        page.screenshot(path=folder / f"empty-{name}-{width}-zh.png")
    page = found.inside(lang="zh")
    page.evaluate(DRAWN)
    assert page.evaluate(WIDER) <= 0
    page.screenshot(path=folder / f"inside-{width}-zh.png", full_page=True)
    found.close()
