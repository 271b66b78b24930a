from __future__ import annotations

from types import SimpleNamespace

import pytest

from shardwise.cli.main import run


@pytest.fixture
def shardwise(capfd):
    """Run a command line in this process: code, out and err."""

    def call(*words):
        code = run([str(word) for word in words])
        out, err = capfd.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return call


@pytest.fixture(autouse=True)
def _runtimes(monkeypatch):
    """Until the catalog of runtimes is there."""
    from shardwise.cli import ask
    from shardwise.inputs.load import runtime_names
    from shardwise.inputs.runtime import Runtime

    if not runtime_names():
        monkeypatch.setattr(ask, "load_runtime", lambda name: Runtime(name=name))
