"""The house: one class for one name, every room explained, and files that are thoughts, neither fragments nor books."""

from __future__ import annotations

import ast
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "shardwise"
ALONE = {"shardwise_probe.py", "shardwise_rehearse.py", "shardwise_rehearse_megatron.py"}
"""Programs that are copied alone to GPU nodes, so that they must be one file each."""


def trees():
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}


def test_a_name_of_a_class_means_one_thing():
    names = Counter(node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_files_of_tests_share_a_name():
    """Two of one name cannot be collected together, unless their folder is a package."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert [name for name, count in Counter(path.name for path in files).items() if count > 1] == []


def test_neighbours_of_tests_are_imported_by_their_own_name():
    """`tests.` is found only where pytest is started as a module; `.ci/run` starts the program."""
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    assert [path.name for path in files if "from tests" + "." in path.read_text(encoding="utf-8")] == []


def test_every_file_says_what_it_is_about():
    assert [path for path, tree in trees().items() if ast.get_docstring(tree) is None] == []


def test_every_room_stands_in_the_page_about_the_house():
    page = (ROOT / "docs" / "explain" / "house.md").read_text(encoding="utf-8")
    rooms = [path.parent.name for path in SOURCE.glob("*/__init__.py")]
    assert [room for room in rooms if f"`{room}`" not in page] == []


def test_functions_and_files_stay_small():
    lengths = [
        node.end_lineno - node.lineno + 1
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]
    assert max(lengths) <= 60
    long = [p.name for p in trees() if p.name not in ALONE and len(p.read_text(encoding="utf-8").splitlines()) > 440]
    assert long == []


def test_what_benchmarks_and_docs_import_is_there():
    """No type checker reads them, and a benchmark that cannot start is found when it is needed."""
    lost = []
    for path in (
        *(ROOT / "benchmarks").glob("*.py"),
        *(ROOT / "docs").glob("*.py"),
        *(ROOT / "docs/making").glob("*.py"),
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardwise"):
                module = import_module(node.module)
                lost += [f"{path.name}: {one.name}" for one in node.names if not _has(module, one.name)]
    assert lost == []


def _has(module, name):
    return hasattr(module, name) or (hasattr(module, "__path__") and bool(find_spec(f"{module.__name__}.{name}")))
