"""A real `shardwise serve` process, asked over real HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

SMALL = {"model": "llama-3-8b", "cluster": "8xh100", "global_batch": 16, "seq": 4096, "only": "tp<=2 pp<=2 vpp=1"}
"""A question that is answered in about a second."""
LONG = {"model": "mixtral-8x22b", "cluster": "512xh100", "global_batch": 2048, "seq": 4096, "gap": 0, "time_limit": 120}
"""A question that takes longer than any test waits."""
PATIENCE = 600
"""Seconds after which something hangs; a busy machine is no fault."""


@dataclass
class Reply:
    """What the server answered."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def data(self):
        return json.loads(self.body)

    @property
    def message(self):
        return self.data["error"]["message"]


class Events:
    """A stream of events that can be read, and dropped at any moment."""

    def __init__(self, connection, response):
        self.connection, self.response = connection, response
        self.status = response.status

    def __iter__(self):
        word = ""
        assert self.status == 200, self.response.read()
        for line in self.response:
            if line.startswith(b"event: "):
                word = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield word, json.loads(line[6:])

    def until(self, wanted):
        """The data of the first event of a name, or of one of several."""
        names = {wanted} if isinstance(wanted, str) else set(wanted)
        last = None
        for word, data in self:
            if word in names:
                return data
            last = word, str(data)[:500]
        raise AssertionError(f"no {wanted} in answer {self.status}, whose last event was {last}")

    def close(self):
        self.response.close()
        self.connection.close()


class Served:
    """The process and the way to it."""

    def __init__(self, *words, env=None, **options):
        command = [sys.executable, "-m", "shardwise", "serve", "--port", "0", "--no-open", *words]
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env={**os.environ, **(env or {})}, **options)
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError(f"the server did not start: {self.process.communicate()[1]}")
        self.port = urlsplit(self.url).port

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, method, path, body=None, headers=None):
        """One request; a body that is neither text nor bytes is sent as JSON."""
        connection = self.connect()
        try:
            connection.request(method, path, *_sent(body, headers))
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.ask("GET", path, headers=headers)

    def post(self, path, body, **headers):
        return self.ask("POST", path, body, headers)

    def plan(self, question) -> Events:
        connection = self.connect()
        connection.request("POST", "/api/plan", *_sent(question, None))
        return Events(connection, connection.getresponse())

    def children(self):
        """Ids of the processes that the server started and that still run."""
        task = Path(f"/proc/{self.process.pid}/task")
        found = {int(one) for file in task.glob("*/children") for one in file.read_text().split()}
        return {one for one in found if running(one)}

    def stop(self, kind=signal.SIGTERM):
        """End it and give what it wrote and its exit code."""
        self.process.send_signal(kind)
        out, err = self.process.communicate(timeout=PATIENCE)
        return out + err, self.process.returncode


def _sent(body, headers):
    if body is not None and not isinstance(body, (str, bytes)):
        body = json.dumps(body)
    kind = {} if body is None else {"Content-Type": "application/json"}
    return body, {**kind, **(headers or {})}


def running(process):
    """Whether a process is there and not just waiting to be counted."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(truth):
    """Whether something becomes true."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if truth():
            return True
        time.sleep(0.05)
    return bool(truth())


@contextmanager
def serving(*words, **options):
    server = Served(*words, **options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()
