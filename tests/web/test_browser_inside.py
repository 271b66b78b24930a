"""Look inside, Compare and Export as a person uses them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

from browsing import QUESTION, STRATEGY, Looked

NAMELESS = """() => [...document.querySelectorAll("button, input, select, [tabindex='0'], a")].filter(node =>
  !(node.ariaLabel || node.textContent?.trim() || node.labels?.length || node.title || node.closest(".away"))
).map(node => node.outerHTML)"""
FOCUSED = "document.activeElement.className || document.activeElement.id || document.activeElement.tagName"
CHIPS = "#view-inside .heading .chips"


def first_action(page):
    """A point inside the first action of the first rank."""
    box = page.locator("canvas.timeline").bounding_box()
    return box["x"] + 90, box["y"] + 40


def test_a_strategy_is_shown_from_every_side(look):
    page = look.inside()
    assert "tp1" in page.inner_text(CHIPS)
    assert page.locator(".stage-grid .bar").count() == 8
    assert "GiB" in page.inner_text(".tile.memory")
    assert page.locator(".ledger summary").count() > 3
    assert "iteration" in page.inner_text(".card-ledger")


def test_the_ledger_opens_and_changes_its_rank(look):
    page = look.inside()
    page.click(".ledger summary:has-text('forward')")
    assert page.is_visible(".ledger .leaf:has-text('matrix products') >> visible=true")
    page.select_option(".ledger-choice select", "3")
    assert "rank 3" in page.inner_text(".ledgers section >> nth=1")


def test_the_timeline_zooms_and_moves(look):
    page = look.inside()
    page.locator("canvas.timeline").scroll_into_view_if_needed()
    seen = [page.inner_text(".where")]

    def changed():
        page.wait_for_function("was => document.querySelector('.where').textContent !== was", arg=seen[-1])
        seen.append(page.inner_text(".where"))

    page.click("button[aria-label='Zoom in']")
    changed()
    box = page.locator("canvas.timeline").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 220, box["y"] + 60, steps=4)
    page.mouse.up()
    changed()
    page.focus("canvas.timeline")
    page.mouse.wheel(0, -200)
    changed()
    for key in ("ArrowRight", "+", "0"):
        page.keyboard.press(key)
        changed()
    page.locator("canvas.overview").click(position={"x": 300, "y": 12})


def test_the_wheel_scrolls_the_page_until_the_timeline_is_chosen(look):
    page = look.inside()
    page.locator("canvas.timeline").scroll_into_view_if_needed()
    before, where = page.evaluate("scrollY"), page.inner_text(".where")
    box = page.locator("canvas.timeline").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    page.mouse.wheel(0, 120)
    page.wait_for_function("was => scrollY !== was", arg=before)
    assert page.inner_text(".where") == where


def test_a_click_names_an_action_and_its_dependencies(look):
    page = look.inside()
    page.locator("canvas.timeline").scroll_into_view_if_needed()
    page.mouse.click(*first_action(page))
    assert page.inner_text(".action-name").startswith("0F0")
    assert "rank 0" in page.inner_text(".action-info")
    page.click(".deps button:has-text('1F0')")
    assert page.inner_text(".action-name").startswith("1F0")
    waits = page.inner_text(".deps >> nth=0")
    assert "0F0" in waits
    page.focus("canvas.timeline")
    page.keyboard.press(".")
    assert page.inner_text(".action-name").startswith("1F1")
    page.keyboard.press("ArrowDown")
    assert page.inner_text(".action-name").startswith("2F")
    page.keyboard.press("Escape")
    assert page.locator(".action-name").count() == 0


def test_the_critical_path_is_shown_alone(look):
    page = look.inside()
    page.click("button:has-text('Critical path')")
    assert "actions from 0F0 to 0B" in page.inner_text(".action-info")
    page.click("button:has-text('Critical path')")
    assert page.inner_text(".action-info").startswith("Click an action")


def test_why_not_another(look):
    page = look.inside()
    page.fill("#why-input", "tp8 pp1")
    page.click(".why-form .primary")
    page.wait_for_selector(".verdict")
    assert page.locator(".why-parts tbody tr").count() > 1
    page.fill("#why-input", "tp3 banana")
    page.click(".why-form .primary")
    page.wait_for_selector(".why-answer .alert")
    assert "banana" in page.inner_text(".why-answer .alert")


def test_plans_are_pinned_edited_and_compared(look):
    page = look.inside()
    page.click("button.pin")
    page.fill("#why-input", "pp2")
    page.click(".why-form button >> nth=1")
    page.wait_for_function(f"() => document.querySelector('{CHIPS}').innerText.includes('pp2')")
    page.click("button.pin")
    page.click("nav a >> nth=2")
    page.wait_for_selector(".compare-table")
    assert page.locator(".compare-table thead th").count() == 3
    row = page.locator("tr.differs:has-text('pipeline parallel')")
    assert row.locator("td.odd").count() == 1
    page.check(".check input")
    assert page.locator("tr.same").count() == 0
    page.click("nav a >> nth=0")
    page.fill("#field-seq", "2048")
    page.click("#plan-button")
    page.wait_for_selector(".answer")
    page.click("nav a >> nth=2")
    assert page.locator(".compare-table thead th").count() == 3
    page.click("button:has-text('Add the plan')")
    assert page.locator(".compare-table thead th").count() == 4
    page.click("button[aria-label^=Remove] >> nth=0")
    assert page.locator(".compare-table thead th").count() == 3


def test_a_slow_answer_does_not_bring_back_what_one_has_left(look):
    """On a busy machine the view jumped back to the strategy before, and a click on its pin took that one off."""
    page, held = look.page, []
    page.route("**/api/step", lambda route: held.append(route))  # noqa: PLW0108 - playwright asks it for its code
    look.inside()
    page.fill("#why-input", "pp2")
    page.click(".why-form button >> nth=1")
    page.wait_for_function(f"() => document.querySelector('{CHIPS}').innerText.includes('pp2')")
    for _ in range(2):  # the first strategy's answer comes now, the second's later than a hand takes to rest
        while not held:
            page.wait_for_timeout(50)
        page.wait_for_timeout(700)
        assert "pp2" in page.inner_text(CHIPS)
        held.pop(0).continue_()
    page.wait_for_timeout(700)
    assert "pp2" in page.inner_text(CHIPS)


def test_a_link_shows_the_same_again(look):
    page = look.planned(lang="zh", theme="dark")
    page.click("table.best tbody tr >> nth=1")
    page.wait_for_selector(".cockpit .back")
    page.click(".cockpit .heading-buttons button >> nth=1")
    page.click(".cockpit button.primary")
    page.wait_for_selector("canvas.timeline")
    seen = page.inner_text("#view-inside .heading"), page.inner_text("#view-inside .tiles")
    other = look.new()
    other.goto(page.url)
    other.wait_for_selector("canvas.timeline")
    other.wait_for_selector(".badge")
    assert (other.inner_text("#view-inside .heading"), other.inner_text("#view-inside .tiles")) == seen
    assert other.evaluate("document.documentElement.lang") == "zh-CN"
    assert other.evaluate("document.documentElement.dataset.theme") == "dark"
    other.click("nav a >> nth=0")
    other.wait_for_selector("table.best tr.chosen")


def test_back_goes_back(look):
    page = look.inside()
    page.click("nav a >> nth=3")
    page.wait_for_selector(".file")
    page.go_back()
    page.wait_for_selector("nav a.here:has-text('Look inside')")


def test_files_are_exported_copied_and_kept(look, tmp_path):
    look.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=look.url)
    page = look.inside()
    page.click("nav a >> nth=3")
    page.wait_for_selector(".file pre")
    shown = page.inner_text(".file pre >> nth=0")
    page.click(".file .copy >> nth=0")
    page.wait_for_selector(".toast.shown:has-text('copied')")
    assert page.evaluate("navigator.clipboard.readText()").strip() == shown.strip()
    with page.expect_download() as kept:
        page.click(".file .keep >> nth=0")
    assert Path(kept.value.path()).read_text().strip() == shown.strip()
    assert kept.value.suggested_filename == page.inner_text(".file h3 >> nth=0")
    before = page.inner_text(".target.chosen")
    page.focus(".target.chosen")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("text => document.querySelector('.target.chosen').innerText !== text", arg=before)
    with page.expect_download() as kept:
        page.click("button:has-text('report')")
    report = tmp_path / "report.html"
    kept.value.save_as(report)
    alone = look.new()
    alone.goto(report.as_uri())
    alone.wait_for_selector("canvas.timeline")
    assert STRATEGY.split()[1] in alone.inner_text(CHIPS)


def test_the_page_speaks_chinese(look):
    page = look.inside()
    page.click("button[lang=zh-CN]")
    assert page.inner_text("nav a.here") == "查看细节"
    assert "单步时间" in page.inner_text("#view-inside .tiles")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.click("button[lang=en]")
    assert page.inner_text("nav a.here") == "Look inside"


def test_a_browser_that_asks_for_chinese_gets_it(server, browser):
    found = Looked(browser, server.url, locale="zh-CN")
    page = found.go()
    assert page.inner_text("nav a.here") == "规划"
    found.close()


def test_everything_has_a_name_and_is_reached_by_keyboard(look):
    page = look.inside()
    for view in range(4):
        page.click(f"nav a >> nth={view}")
        assert page.evaluate(NAMELESS) == []
    page.click("nav a >> nth=1")
    page.reload()
    page.wait_for_selector("canvas.timeline")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(110):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(FOCUSED))
    assert {"timeline", "bar", "why-input"} <= reached


def test_a_server_that_has_gone_is_told(look):
    page = look.go("plan", **QUESTION)
    page.route("**/api/**", lambda route: route.abort())
    page.click("#plan-button")
    page.wait_for_selector(".alert:has-text('does not answer')")


def test_the_focus_stays_in_the_page_when_the_view_changes(look):
    page = look.planned()
    page.focus(".cockpit button.primary")
    page.keyboard.press("Enter")
    page.wait_for_selector("canvas.timeline")
    assert page.evaluate("document.activeElement.tagName") == "MAIN"
    page.focus("nav a >> nth=2")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Compare"
    page.evaluate("scrollTo(0, 500)")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("scrollY") == 0, "a view begins at its top"


def test_the_bars_of_all_ranks_begin_at_one_place(look):
    page = look.inside("tp1 pp4 dp2 cp1 ep1 zero1 mbs1 gbs16 seq4096 layers=10,9,8,5")
    lefts = page.eval_on_selector_all(
        ".bars .bar", "all => all.slice(0, 4).map(bar => bar.getBoundingClientRect().left)"
    )
    assert len(set(lefts)) == 1, lefts


def test_a_stretch_is_summed_by_kind_and_actions_are_found(look):
    page = look.inside()
    page.click("#view-inside .sum")
    rows = page.locator("#view-inside .spent tbody tr")
    told = dict(zip(rows.locator("th").all_inner_texts(), rows.locator("td:last-child").all_inner_texts(), strict=True))
    assert {"forward", "full backward", "bubble"} <= told.keys()
    parts = ("forward", "full backward", "optimizer", "framework", "bubble")
    assert abs(sum(float(told[name].rstrip("%")) for name in parts if name in told) - 100) < 1
    whole = page.inner_text("#view-inside .action-name")
    page.locator("#view-inside canvas.timeline").scroll_into_view_if_needed()
    box = page.locator("#view-inside canvas.timeline").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 60, steps=4)
    page.mouse.up()
    assert page.inner_text("#view-inside .action-name") != whole
    page.fill("#view-inside .find", "f3")
    assert "0 of 4" in page.inner_text("#view-inside .finding")
    for found in ("0F3", "1F3"):
        page.keyboard.press("Enter")
        assert found in page.inner_text("#view-inside .action-name")
    page.fill("#view-inside .find", "nothing")
    assert "0 of 0" in page.inner_text("#view-inside .finding")


def test_timelines_are_compared_on_one_scale(look):
    pins = [f'{{"s":"{STRATEGY}"}}', f'{{"s":"{STRATEGY.replace("pp4 dp2", "pp2 dp4")}"}}']
    page = look.page
    page.goto(f"{look.url}/#compare?{urlencode({**QUESTION, 'pin': pins}, doseq=True)}")
    page.wait_for_selector(".timelines canvas.timeline >> nth=1")
    shown = page.locator(".timelines .where")
    page.wait_for_function("() => [...document.querySelectorAll('.timelines .where')].every(one => one.innerText)")
    page.focus(".timelines canvas.timeline >> nth=0")
    was = shown.first.inner_text()
    page.keyboard.press("+")
    page.wait_for_function("was => document.querySelector('.timelines .where').innerText !== was", arg=was)
    page.wait_for_function(
        "() => new Set([...document.querySelectorAll('.timelines .where')].map(one => one.innerText)).size === 1"
    )
