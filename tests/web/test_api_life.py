"""The server's life: its start and end, its queue, its children, its token."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import LONG, PATIENCE, SMALL, Served, running, serving, wait_for

from shardwise.cli.main import run

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
TOKEN = "correct-horse-battery-staple"  # noqa: S105 - a test's own


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda kind: kind.name)
def test_no_child_outlives_the_server(kind):
    """Not even one in the middle of a search, not even where the server had no time to end it."""
    with serving("--searches", "2") as server:
        streams = [server.plan(LONG) for _ in range(2)]
        for events in streams:
            events.until("progress")
        children = server.children()
        assert len(children) >= 2
        log, code = server.stop(kind)
        assert wait_for(lambda: not any(map(running, children))), "a child still runs"
        assert log.splitlines() == ["note: Ctrl-C stops it"]
        assert code == (-signal.SIGKILL if kind == signal.SIGKILL else 0)


def test_ctrl_c_in_a_terminal_reaches_everybody_and_is_quiet():
    """The terminal sends it to the whole group; the reader of a search is told that the server was stopped."""
    with serving(start_new_session=True) as server:
        events = server.plan(LONG)
        events.until("progress")
        children = server.children()
        os.killpg(server.process.pid, signal.SIGINT)
        last = [word for word, _ in events][-1:]
        out, err = server.process.communicate(timeout=PATIENCE)
        assert (out, err) == ("", "note: Ctrl-C stops it\n")
        assert server.process.returncode == 0
        assert last in ([], ["failed"], ["progress"], ["point"])
        assert wait_for(lambda: not any(map(running, children)))


@pytest.fixture(scope="module")
def single():
    """A server that runs one search at a time; whatever was asked of it, it logs nothing."""
    with serving("--searches", "1") as server:
        yield server
        assert server.stop() == ("note: Ctrl-C stops it\n", 0)


def test_a_queue_moves_up_and_is_left(single):
    first = single.plan(LONG)
    first.until("started")
    second, third = single.plan(LONG), single.plan(SMALL)
    assert second.until("queued")["position"] == 1
    assert third.until("queued")["position"] == 2
    second.close()
    assert third.until("queued")["position"] == 1
    first.close()
    assert third.until("done")["plan"]


def test_a_stop_while_it_waits(single):
    first = single.plan(LONG)
    first.until("started")
    second = single.plan(LONG)
    name = second.until("queued")["id"]
    assert single.post(f"/api/plan/{name}/stop", "").status == 200
    assert "stopped" in second.until("failed")["error"]["message"]
    first.close()


def test_two_hundred_plans_at_once(single):
    """One runs, a hundred wait, the others are told to come back; who waits is answered."""
    held = single.plan(LONG)
    held.until("started")
    with ThreadPoolExecutor(200) as pool:
        found = list(pool.map(single.plan, [SMALL] * 200))
    statuses = [events.status for events in found]
    assert [statuses.count(200), statuses.count(429)] == [100, 100]
    refused = found[statuses.index(429)].response
    assert refused.headers["Retry-After"]
    assert b"try again" in refused.read()
    assert single.get("/").status == 200
    assert single.post("/api/view", {"question": SMALL, "strategy": "tp2 pp2 mbs1"}).status == 200
    waiting = [events for events in found if events.status == 200]
    for events in [held, *waiting[2:]]:
        events.close()
    for events in waiting[:2]:
        assert events.until("done")["plan"]
    assert wait_for(lambda: len(single.children()) <= 2)


def test_a_child_that_dies_is_replaced(single):
    events = single.plan(LONG)
    events.until("progress")
    for child in single.children():
        os.kill(child, signal.SIGKILL)
    assert "ended" in events.until("failed")["error"]["message"]
    assert single.plan(SMALL).until("done")["plan"]


def test_a_slow_sender_delays_nobody(single):
    with socket.create_connection(("127.0.0.1", single.port)) as line:
        head = b"POST /api/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        line.sendall(head + b"Content-Length: 400\r\n\r\n{")
        assert single.plan(SMALL).until("done")["plan"]


def test_more_connections_than_are_served(single):
    lines = [socket.create_connection(("127.0.0.1", single.port)) for _ in range(700)]
    for line in lines:
        line.close()
    assert wait_for(lambda: answers(single))


def answers(server):
    try:
        return server.get("/").status == 200
    except ConnectionError:
        return False


@pytest.fixture(scope="module")
def guarded():
    """Its token comes from the environment."""
    with serving(env={"SHARDWISE_TOKEN": TOKEN}) as server:
        yield server


class TestToken:
    def test_without_it_nothing_is_told(self, guarded: Served):
        for method, path in (("GET", "/"), ("GET", "/api/catalog"), ("GET", "/assets/main.js"), ("POST", "/api/plan")):
            found = guarded.ask(method, path, None if method == "GET" else SMALL)
            assert found.status == 401
            assert "token" in found.message
        for wrong in ("", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "%00", "%C3%A9", "%", "a&" * 200):
            assert guarded.get(f"/?token={wrong}").status == 401
            assert guarded.get("/", Authorization=f"Bearer {wrong}").status == 401
        assert guarded.get("/", Authorization="Bearer é").status == 401
        assert guarded.get("/", Cookie=f"shardwise-{guarded.port}=é; ;;=").status == 401

    def test_it_moves_from_the_address_into_a_cookie(self, guarded):
        assert guarded.url.endswith(f"?token={TOKEN}")
        found = guarded.get(f"/?token={TOKEN}&lang=zh")
        assert (found.status, found.headers["Location"]) == (303, "/?lang=zh")
        cookie = found.headers["Set-Cookie"]
        assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(cookie.split("; "))
        pair = cookie.split(";")[0]
        assert guarded.get("/api/catalog", Cookie=pair).status == 200
        assert guarded.get("/api/catalog", Cookie="shardwise-1=x; " + pair).status == 200
        assert guarded.get("/api/catalog", Cookie=pair + "x").status == 401

    def test_programs_send_it_as_bearer(self, guarded):
        assert guarded.get("/api/catalog", Authorization=f"Bearer {TOKEN}").status == 200

    def test_only_the_page_takes_it_from_the_address(self, guarded):
        assert guarded.get(f"/api/catalog?token={TOKEN}").status == 401
        assert guarded.post(f"/api/view?token={TOKEN}", {}).status == 401


def test_others_need_a_token():
    with serving("--host", "0.0.0.0") as server:  # noqa: S104 - what is tested
        token = server.url.partition("token=")[2]
        assert len(token) >= 32
        assert server.get("/").status == 401
        assert server.get("/", Authorization=f"Bearer {token}", Host="any.name:1").status == 200


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--token", "short"], "--token: has 5 characters"),
        (["--token", "a b" * 10], "--token: may hold letters"),
        (["--host", "no.such.host.invalid"], "--host: 'no.such.host.invalid' is no address"),
        (["--host", "192.0.2.1"], "--host: 192.0.2.1:"),
        (["--port", "70000"], "70,000"),
        (["--searches", "0"], "0"),
    ],
)
def test_bad_options(words, what, capfd):
    assert run(["serve", "--no-open", "--port", "0", *words]) == 2
    assert what in capfd.readouterr().err


def test_a_port_that_is_taken(capfd):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["serve", "--no-open", "--port", str(port)]) == 2
    assert f"--port: {port} is taken" in capfd.readouterr().err


def test_without_the_extra(tmp_path):
    """Where starlette is not installed: a finder that denies it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Deny:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'starlette':\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Deny())\n"
    )
    command = [sys.executable, "-m", "shardwise", "serve", "--no-open"]
    changed = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=changed)
    assert found.returncode == 2
    assert "pip install 'shardwise[web]'" in found.stderr


@pytest.mark.bench
def test_the_first_byte_of_the_page():
    """Printed: from the start of the program to the first byte of the page, and once it runs."""
    began = time.monotonic()
    with serving() as server:
        server.get("/")
        first = time.monotonic() - began
        times = []
        for _ in range(50):
            began = time.monotonic()
            server.get("/")
            times.append(time.monotonic() - began)
        began = time.monotonic()
        server.get("/api/catalog")
        print(f"\npage: {first:.2f} s after the start, then {1e3 * sorted(times)[25]:.1f} ms", end=", ")
        print(f"catalog {time.monotonic() - began:.2f} s")
