"""What the docs show is what happens: commands print it, Python blocks run, links lead somewhere, pages are new."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import generate  # noqa: E402
from making import console, pictures  # noqa: E402 - found in the docs

PAGES = console.PAGES
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMES = [str(path.relative_to(ROOT)).removesuffix(".md") for path in PAGES]
_DONE: dict[str, tuple[int, str]] = {}
"""What slow commands printed that leave nothing behind: shown on two pages, run once."""
_ONCE = {"shardwise validate"}


def printed(command, folder):
    if command.text not in _ONCE:
        return console.run(command, folder)
    if command.text not in _DONE:
        _DONE[command.text] = console.run(command, folder)
    return _DONE[command.text]


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_what_the_docs_show_is_what_happens(path, tmp_path):
    console.prepare(tmp_path)
    for command in console.commands(path.read_text(encoding="utf-8")):
        code, text = printed(command, tmp_path)
        assert console.agrees(command.shown, text), f"$ {command.text}\n{text}\n(make docs-outputs writes it anew)"
        assert code in command.codes, f"$ {command.text}\n{text}"


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_python_blocks_run(path, tmp_path, monkeypatch):
    console.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)  # what an example writes is not left in the checkout
    for block in PYTHON.findall(path.read_text(encoding="utf-8")):
        exec(compile(block, str(path), "exec"), {})  # noqa: S102 - our own pages


@pytest.mark.parametrize("path", [*PAGES, *console.TRANSLATIONS], ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        assert link.startswith("http") or (path.parent / link).exists(), link


@pytest.mark.parametrize("name", generate.PAGES)
def test_the_reference_is_up_to_date(name):
    assert (DOCS / name).read_text(encoding="utf-8") == generate.PAGES[name](), f"docs/{name} is old: run make docs"


def test_the_pictures_are_up_to_date(tmp_path):
    pictures.draw(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        written = (DOCS / "pictures" / path.name).read_text(encoding="utf-8")
        assert written == path.read_text(encoding="utf-8"), f"docs/pictures/{path.name} is old: run make docs"


def test_every_page_says_its_name_once():
    for path in PAGES[1:]:
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1, path


@pytest.mark.parametrize("translated", console.TRANSLATIONS, ids=lambda path: path.name)
def test_a_translation_shows_the_commands_and_answers_of_the_original(translated):
    text, original = (path.read_text(encoding="utf-8") for path in (translated, console.TRANSLATIONS[translated]))
    assert console.alike(text, original) == text, f"{translated} is old: run make docs-outputs"
    assert re.findall(r"^## ", text, re.MULTILINE), "a page without parts"


def test_comparing_forgives_only_times_of_computing():
    assert console.agrees("makespan 5, 0.4 CPU s", "makespan 5, 12.1 CPU s")
    assert not console.agrees("makespan 5, 0.4 CPU s", "makespan 6, 0.4 CPU s")
    assert console.agrees("a\n...\nz", "a\nb\nc\nz")
    assert not console.agrees("a\nz", "a\nb\nz")


def test_sphinx_builds_the_pages_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    words = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(DOCS), str(tmp_path / "html")]
    done = subprocess.run([*words, "-d", str(tmp_path / "trees")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = {path.relative_to(tmp_path / "html").with_suffix("") for path in (tmp_path / "html").rglob("*.html")}
    assert {path.relative_to(DOCS).with_suffix("") for path in PAGES[1:]} <= built
    page = (tmp_path / "html" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script[^>]+src=\"https?:", page), "the docs are read without a network"
    shutil.rmtree(tmp_path / "html")
