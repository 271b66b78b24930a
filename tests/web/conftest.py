from __future__ import annotations

import pytest
from serving import serving


@pytest.fixture(scope="session")
def server():
    """One `shardwise serve` for all tests that leave it as they found it; `server.url` is its address."""
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    with serving("--searches", "2") as served:
        yield served
