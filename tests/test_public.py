"""The names that people import are a promise: a change here is a change of the interface."""

from __future__ import annotations

import subprocess
import sys

import pytest

import shardwise


def test_the_public_names():
    assert sorted(shardwise.__all__) == [
        "Cluster", "Model", "ShardwiseError", "Strategy", "__version__", "estimate", "load_cluster", "load_model",
        "plan", "read_plan", "write_plan",
    ]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in shardwise.__all__ if name != "estimate"])
def test_every_name_is_there(name):
    assert getattr(shardwise, name) is not None


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = shardwise.nonsense


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import shardwise, sys; print([n for n in ('numpy', 'pydantic', 'click', 'rich', 'yaml') if n in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
