from __future__ import annotations

import pytest
from browsing import Looked, browsing
from serving import serving


@pytest.fixture(scope="session")
def server():
    """One `shardwise serve` for all tests that leave it as they found it; `server.url` is its address."""
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    with serving("--searches", "2") as served:
        yield served
        log, code = served.stop()
        assert (log, code) == ("note: Ctrl-C stops it\n", 0), "the server must log nothing, whatever it was asked"


@pytest.fixture(scope="session")
def browser():
    """The system's Chromium; skips where there is none."""
    with browsing() as found:
        yield found


@pytest.fixture
def look(server, browser):
    """`look.go(view, ...)`: the live page in a browser; complaints of the browser fail the test."""
    found = Looked(browser, server.url)
    yield found
    found.close(refused=True)
