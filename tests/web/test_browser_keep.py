"""What is taken away from the page: links, tables, drawings, archives; and what a table or a link brings back."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

from browsing import QUESTION, STRATEGY


def kept(page, what):
    with page.expect_download() as found:
        page.click(what)
    return found.value.suggested_filename, Path(found.value.path()).read_bytes()


def test_a_link_of_this_machine_says_how_others_see_the_same(look):
    look.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = look.inside()
    page.click("button:has-text('Copy link')")
    page.wait_for_selector(".toast:has-text('how others')")
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines[0].startswith("llama-3-8b · 8xh100 · tp1 pp4")
    assert page.url in lines
    assert f'shardwise estimate llama-3-8b -c 8xh100 -s "{STRATEGY}"' in lines


def test_a_link_keeps_the_stretch_of_the_timeline_and_its_critical_path(look):
    page = look.inside()
    page.focus("canvas.timeline")
    for key in "+++":
        page.keyboard.press(key)
    page.click("button.critical")
    page.wait_for_function("() => location.hash.includes('critical=1')")
    where = page.inner_text(".where")
    other = look.new()
    other.goto(f"{page.url}&ran=1")  # whose search goes on behind the view, and ends
    other.wait_for_selector("canvas.timeline")
    other.wait_for_function("() => document.querySelectorAll('.answer').length")
    assert other.inner_text(".where") == where
    assert other.get_attribute("button.critical", "aria-pressed") == "true"


def test_the_best_point_of_a_shared_link_is_there_before_a_click(look):
    page = look.go("plan", **QUESTION, s=STRATEGY, ran="1")
    page.wait_for_selector(".answer")
    page.wait_for_selector(".scatter circle.best")


def test_rows_are_sorted_by_any_column_and_equal_ones_say_so(look):
    page = look.planned()
    memory = "table.best td:last-child"
    page.click("[data-sort=memory]")
    rising = [float(text.split()[0]) for text in page.locator(memory).all_inner_texts()]
    assert rising == sorted(rising)
    page.click("[data-sort=memory]")
    assert [float(text.split()[0]) for text in page.locator(memory).all_inner_texts()] == rising[::-1]
    assert page.get_attribute("th:has([data-sort=memory])", "aria-sort") == "descending"
    assert "equal within the error" in page.inner_text("table.best")
    assert "to" in page.inner_text(".cockpit .tile.iteration small"), "the interval stands beside the headline"


def test_tables_drawings_and_archives_are_whole_files(look):
    page = look.planned()
    name, text = kept(page, ".scatter-card button:has-text('CSV')")
    rows = list(csv.DictReader(io.StringIO(text.decode())))
    assert name == "strategies.csv"
    assert len(rows) == page.locator(".scatter circle.fits, .scatter circle.best, .scatter .nofit").count()
    assert {"strategy", "seconds", "total_bytes", "mfu"} <= rows[0].keys()
    _, drawn = kept(page, ".scatter-card button:has-text('SVG')")
    sheet = ET.fromstring(drawn)  # noqa: S314 - what the page has just made
    assert sheet.tag.endswith("svg")
    assert sheet[0].attrib["fill"].startswith("rgb"), "ink of a dark page needs its paper"
    page.click("nav a >> nth=1")
    page.wait_for_selector("canvas.timeline")
    _, picture = kept(page, ".toolbar button:has-text('PNG')")
    assert picture.startswith(b"\x89PNG")
    page.click("nav a >> nth=3")
    page.wait_for_selector(".file pre")
    if page.locator("button:has-text('zip')").count():
        _, packed = kept(page, "button:has-text('zip')")
        archive = zipfile.ZipFile(io.BytesIO(packed))
        assert archive.testzip() is None
        for one in archive.infolist():
            assert one.external_attr >> 16 == (0o100755 if one.filename.endswith(".sh") else 0o100644), one.filename
        assert archive.namelist() == page.locator(".file h3").all_inner_texts()
        shown = page.locator(".file pre").first.text_content()
        assert archive.read(archive.namelist()[0]).decode() == shown


def test_compared_plans_show_their_layers_and_shares_by_points(look):
    pins = [f'{{"s":"{STRATEGY}"}}', f'{{"s":"{STRATEGY.replace("pp4 dp2", "pp2 dp4")}"}}']
    page = look.page
    from urllib.parse import urlencode

    page.goto(f"{look.url}/#compare?{urlencode({**QUESTION, 'pin': pins}, doseq=True)}")
    page.wait_for_function("() => document.querySelectorAll('.compare-table thead th').length === 3")
    rows = dict(line.split("\t", 1) for line in page.inner_text(".compare-table").splitlines() if "\t" in line)
    assert "8, 8, 8, 8" in page.inner_text(".compare-table")
    assert "points" in rows["Synchronous bubble"]


def test_both_pictures_draw_one_limit_and_ranks_say_how_busy_they_are(look):
    page = look.inside()
    inside = page.inner_text(".card-stages .key.limit >> nth=0")
    page.click("nav a >> nth=0")
    assert page.inner_text(".cockpit .key.limit") == inside
    page.click("nav a >> nth=1")
    assert "busy" in page.inner_text(".card-stages .bar-total >> nth=0")
