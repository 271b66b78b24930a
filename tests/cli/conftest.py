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
