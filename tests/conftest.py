from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _runtimes(monkeypatch):
    """Until the catalog of runtimes is there."""
    from shardwise.cli import ask
    from shardwise.inputs.load import runtime_names
    from shardwise.inputs.runtime import Runtime

    if not runtime_names():
        monkeypatch.setattr(ask, "load_runtime", lambda name: Runtime(name=name))
