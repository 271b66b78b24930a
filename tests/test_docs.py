"""What the docs show is run: a `console` block holds commands after `$` and what they print; `...` leaves text out."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from shardwise.cli.main import run

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands():
    for path in PAGES:
        for block in BLOCK.findall(path.read_text(encoding="utf-8")):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                yield pytest.param(command, shown.splitlines(), id=f"{path.stem}: {command[:60]}")


def expected_code(shown):
    """2 where only an error is printed, 1 where one follows an answer."""
    if shown and shown[0].startswith("error:"):
        return 2
    return 1 if any(line.startswith("error:") for line in shown) else 0


@pytest.mark.parametrize(("command", "shown"), list(commands()))
def test_what_the_docs_show_is_what_happens(command, shown, capfd):
    program, *words = shlex.split(command)
    assert program == "shardwise"
    code = run(words)
    out, err = capfd.readouterr()
    assert code == expected_code(shown), err
    pattern = "\n".join(re.escape(line).replace(re.escape("..."), ".*") for line in shown)
    assert re.fullmatch(pattern, (out + err).strip(), re.DOTALL), out + err


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_python_blocks_run(path, tmp_path, monkeypatch):
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)  # what an example writes is not left in the checkout
    for block in PYTHON.findall(path.read_text(encoding="utf-8")):
        exec(compile(block, str(path), "exec"), {})  # noqa: S102 - our own pages


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        assert link.startswith("http") or (path.parent / link).exists(), link


def test_the_reference_is_up_to_date():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for name in generate.PAGES:
        written = (ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")
        assert written == generate.page(name), f"docs/reference/{name}.md is old: run make docs"
    examples = (ROOT / "docs" / "explain" / "memory-examples.md").read_text(encoding="utf-8")
    assert examples == generate.memory_examples(), "docs/explain/memory-examples.md is old: run make docs"
