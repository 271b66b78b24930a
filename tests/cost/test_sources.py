"""Every number of the cost model says where it comes from, or stands in the one table of assumed numbers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shardwise
from shardwise.inputs.assumed import Assumed
from shardwise.inputs.describe import describe
from shardwise.plan import proof

HOME = Path(shardwise.__file__).parent
FILES = sorted([*(HOME / "cost").glob("*.py"), *(HOME / "ops").glob("*.py")])
COUNTS = 16
"""Whole numbers to here, and a half, are counts of the field: operands, bytes of a format, both ways."""


def numbers(node):
    return [
        one.value
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, int | float) and not isinstance(one.value, bool)
    ]


def unexplained(path):
    """Module constants of numbers with neither a comment above nor a string below."""
    text = path.read_text(encoding="utf-8")
    body, lines = ast.parse(text).body, text.splitlines()
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or not numbers(node.value):
            continue
        said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        # neighbours without a line between them share the comment above the first
        above = node.lineno - 2
        while lines[above] and lines[above][0] not in "#\"')}":
            above -= 1
        if not said and not lines[above].startswith("#"):
            yield f"{path.name}:{node.lineno} {lines[node.lineno - 1]}"


def unnamed(path):
    """Numbers inside formulas that are no counts."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            inside = [value for one in node.body for value in numbers(one) if isinstance(value, float)]
            odd = [value for value in inside if value != 0.5 and (value % 1 or value > COUNTS)]
            if odd:
                yield f"{path.name} {node.name}: {odd}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_number_says_where_it_comes_from(path):
    assert [*unexplained(path)] == [], "a comment above or a string below names the source; none: inputs/assumed.py"
    assert [*unnamed(path)] == [], "give it a name and its source at the top of the file; none: inputs/assumed.py"


def test_a_number_without_a_word_is_found(tmp_path):
    path = tmp_path / "made.py"
    path.write_text("# probe\nA = 2.0\n\nB = 3.5\n\nC = 4.0\n'''said'''\n\n\ndef f(x):\n    return 0.7 * 2 * x\n")
    assert [*unexplained(path)] == ["made.py:4 B = 3.5"]
    assert [*unnamed(path)] == ["made.py f: [0.7]"]


def test_every_assumed_number_says_what_it_is():
    assert [one.name for one in describe(Assumed) if len(one.text) < 40] == []


def test_a_proof_ends_with_an_assumed_number():
    assert "inputs/assumed.py" in proof.COST_MODEL
