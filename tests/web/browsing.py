"""A real browser (the system's Chromium) that looks at the page as a person does."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUESTION = {"model": "llama-3-8b", "gpus": 8, "global_batch": 16, "seq": 4096, "only": "tp<=2 pp<=2 vpp=1"}
"""A question that is answered in about a second, as the address says it."""
STRATEGY = "tp1 pp4 dp2 cp1 ep1 zero1 mbs1 gbs16 seq4096"
WIDTHS = (1280, 400)
THEMES = ("light", "dark")


@contextmanager
def browsing():
    """The browser; where there is none the tests that need it are skipped, and tests/conftest.py says so at the end."""
    playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
    if CHROMIUM is None:
        pytest.skip("browser tests need Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


class Looked:
    """A page, and what went wrong in it."""

    def __init__(self, browser, url, *, width=1280, height=900, theme="light", locale="en-US"):
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, locale=locale, accept_downloads=True
        )
        self.faults, self.url = [], url.rstrip("/")
        self.page = self.new()

    def new(self):
        """Another tab."""
        page = self.context.new_page()
        page.set_default_timeout(300_000)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)
        page.on("dialog", lambda dialog: self.faults.append(f"a dialog opened: {dialog.message}"))
        return page

    def go(self, view="plan", **words):
        """Open a view with the words of its address."""
        self.page.goto(f"{self.url}/#{view}?{urlencode(words)}")
        self.page.wait_for_selector("nav a.here")
        self.page.wait_for_function("() => document.querySelectorAll('#models option').length > 0")
        return self.page

    def inside(self, strategy=STRATEGY, **words):
        page = self.go("inside", **QUESTION, s=strategy, **words)
        page.wait_for_selector("canvas.timeline")
        return page

    def planned(self, **words):
        """A search that has ended."""
        page = self.go("plan", **QUESTION, ran="1", **words)
        page.wait_for_selector(".answer")
        return page

    def close(self, refused=False):
        """End; whatever the browser complained of is a fault. `refused`: answers of 4xx are logged by the browser."""
        said = [fault for fault in self.faults if not (refused and "Failed to load resource" in fault)]
        self.context.close()
        assert not said, said


def shots(tmp_path):
    """The folder for pictures: SHARDWISE_SHOTS, else a passing one."""
    folder = Path(os.environ.get("SHARDWISE_SHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
