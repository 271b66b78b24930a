"""Clients that keep the server waiting, by the hundred and without the token: nobody else may notice."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

import pytest
from serving import LONG, SMALL, serving, wait_for

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

REFUSED = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: "
HALF_BODY = b"POST /api/plan HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{"
WAYS = {
    "a refused request and half of another": (REFUSED, HALF),
    "half a request": (HALF,),
    "half a body": (HALF_BODY,),
}
GUARD = 120
"""Seconds after which a test that waits for the server gives up; on any machine it is answered long before."""


@pytest.fixture(scope="module")
def public():
    """A server that others can reach; whatever was done to it, it logs nothing."""
    from shardwise.web.server import allow_files

    allow_files(2000)  # for our own ends of the connections
    with serving("--host", "0.0.0.0", "--searches", "2") as server:  # noqa: S104 - what is tested, on loopback only
        server.token = server.url.partition("token=")[2]
        yield server
        assert server.stop() == ("note: Ctrl-C stops it\n", 0)


@pytest.fixture
def hanging(public):
    """`hanging(messages)`: a connection that has sent these, each after what the server said to the one before."""
    lines = []

    def hang(messages):
        line = socket.create_connection(("127.0.0.1", public.port), timeout=GUARD)
        lines.append(line)
        with contextlib.suppress(ConnectionError):
            for index, message in enumerate(messages):
                line.sendall(message)
                if index + 1 < len(messages):
                    line.recv(4096)
        return line

    yield hang
    for line in lines:
        line.close()


def asked(server):
    return server.get("/api/catalog", Authorization=f"Bearer {server.token}").status


def ended(line):
    """Whether the server has ended it, which reading tells."""
    with contextlib.suppress(ConnectionError):
        while line.recv(65536):
            pass
    return True


@pytest.mark.parametrize("way", WAYS)
def test_six_hundred_strangers_shut_nobody_out(public, hanging, way):
    connection = public.connect()
    connection.request("GET", "/api/catalog", headers={"Authorization": f"Bearer {public.token}"})
    assert connection.getresponse().read()
    for index in range(600):
        hanging(WAYS[way])
        if index % 100 == 99:
            assert asked(public) == 200
    assert asked(public) == 200
    connection.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux shows them")
def test_strangers_have_so_many_places(public, hanging):
    before = len(os.listdir(f"/proc/{public.process.pid}/fd"))  # noqa: PTH208
    for _ in range(400):
        hanging(WAYS["half a request"])
    assert asked(public) == 200
    assert len(os.listdir(f"/proc/{public.process.pid}/fd")) <= before + 310  # noqa: PTH208


def test_a_refusal_is_heard_and_ends_its_connection(public):
    """Also by who still sends a large body, and by who waits for leave to send one."""
    for more in (b"", b"Content-Length: 3000000\r\n", b"Expect: 100-continue\r\nContent-Length: 9\r\n"):
        with socket.create_connection(("127.0.0.1", public.port), timeout=GUARD) as line:
            line.sendall(b"POST /api/plan HTTP/1.1\r\nHost: x\r\n" + more + b"\r\n")
            line.sendall(b"x" * 3_000_000 if b"3000000" in more else b"")
            heard = b"".join(iter(lambda: line.recv(65536), b""))
        assert heard.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in heard.lower()


def test_every_head_has_a_deadline_and_streams_have_none(public, hanging):
    """Half a head, half of the second on a connection that is known, and one that comes a byte at a time."""
    connection = public.connect()
    headers = {"Authorization": f"Bearer {public.token}", "Content-Type": "application/json"}
    connection.request("POST", "/api/plan", json.dumps(LONG), headers)
    stream = connection.getresponse()
    assert stream.status == 200
    bearer = f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {public.token}\r\n\r\n".encode()
    first, second, slow = hanging([HALF]), hanging([bearer, HALF]), hanging([HALF])
    assert wait_for(lambda: cut_while_sending(slow))
    assert ended(first)
    assert ended(second)
    assert any(line.startswith(b"event: progress") for line in stream), "the stream was cut"
    connection.close()


def cut_while_sending(line):
    try:
        line.sendall(b"a")
    except ConnectionError:
        return True
    return False


def test_who_takes_no_answer_is_dropped(public):
    """Answers that pile up at the server, since nobody reads them."""
    bearer = f"GET /assets/main.js HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {public.token}\r\n\r\n".encode()
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", public.port))
        line.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(5000):
                line.send(bearer)
        assert wait_for(lambda: cut(line))
    assert asked(public) == 200


def cut(line):
    """The system tells an end by the peer without anything being read."""
    return line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


def test_a_search_is_answered_during_an_attack(public, hanging):
    for _ in range(350):
        hanging(WAYS["half a request"])
    headers = {"Authorization": f"Bearer {public.token}"}
    found = public.ask("POST", "/api/view", {"question": SMALL, "strategy": "tp2 pp2 mbs1"}, headers)
    assert found.status == 200
