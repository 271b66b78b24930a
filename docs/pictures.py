# ruff: noqa: INP001 - a script, not a package
"""Pictures of the page for the README and the docs: `python docs/pictures.py` (needs Chromium and the web extra)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent / "pictures"
QUESTION = {"model": "llama-3-70b", "gpus": 64, "gpu": "h100", "global_batch": 1024, "seq": 8192, "lang": "en"}
STRATEGY = "tp8 pp4x2 dp2 mbs1 gbs32 seq8192 interleaved recompute=attention-norm+mlp-norm"
SIZE = {"width": 1280, "height": 860}


def main() -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "shardwise", "serve", "--port", "0", "--no-open"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None  # noqa: S101 - for the type checker
        url = server.stdout.readline().strip()
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE, color_scheme="light")
            _plan(page, url)
            page = browser.new_page(viewport={**SIZE, "height": 1235}, color_scheme="light")
            _inside(page, url)
            browser.close()
    finally:
        server.terminate()
        server.wait()


def _plan(page: Page, url: str) -> None:
    page.goto(f"{url}#plan?{urlencode({**QUESTION, 'ran': 1})}")
    page.wait_for_selector(".answer", timeout=120_000)
    page.wait_for_timeout(500)
    page.screenshot(path=HERE / "page-plan.png")


def _inside(page: Page, url: str) -> None:
    page.goto(f"{url}#inside?{urlencode({**QUESTION, 'global_batch': 32, 's': STRATEGY})}")
    page.wait_for_selector("canvas.timeline")
    page.wait_for_timeout(300)
    page.mouse.click(*_action(page))
    page.wait_for_selector(".action-name")
    page.mouse.move(5, 5)
    page.wait_for_timeout(300)
    page.screenshot(path=HERE / "page-inside.png")


def _action(page: Page) -> tuple[float, float]:
    """A place in the middle of the second rank."""
    box = page.locator("canvas.timeline").bounding_box()
    assert box is not None  # noqa: S101 - it was waited for
    return box["x"] + 0.5 * box["width"], box["y"] + 70


if __name__ == "__main__":
    main()
