"""The child processes that compute: kept warm, asked one thing at a time, killed when nobody waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import dataclass, field

from shardwise.web.child import DEBUG
from shardwise.web.guard import Refusal
from shardwise.web.stream import Event, next_frame

QUICK_LIMIT = 30.0
"""Seconds that an answer other than a search may take."""
MOST_WAITING = 256
"""Quick questions that wait for their turn."""
MOST_TASKS = 500
"""After so many a child makes room for a fresh one, and so does what it remembers."""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(eq=False)
class Worker:
    """One child process."""

    process: Process
    tasks: int = 0
    killed: bool = False
    coming: asyncio.Task[Event | None] | None = None

    @property
    def alive(self) -> bool:
        """Whether it can be asked: an ended process is told by the end of its output before anybody counts it."""
        stdout = self.process.stdout
        return not self.killed and self.process.returncode is None and stdout is not None and not stdout.at_eof()

    async def ask(self, task: Event) -> None:
        """Hand over a task; `hear` then gives its messages, up to the last."""
        self.tasks += 1
        await self.send(task)

    async def hear(self, limit: float) -> Event | None:
        """The next message, None where the process has ended; TimeoutError after so many seconds, to be asked again."""
        assert self.process.stdout is not None  # noqa: S101 - piped in `start`
        # Reading goes on where the wait for it ends, so that no message is read by half.
        self.coming = self.coming or asyncio.create_task(next_frame(self.process.stdout))
        await asyncio.wait({self.coming}, timeout=limit)
        if not self.coming.done():
            raise TimeoutError
        frame, self.coming = self.coming.result(), None
        return frame

    async def send(self, frame: Event) -> None:
        assert self.process.stdin is not None  # noqa: S101 - piped in `start`
        with contextlib.suppress(ConnectionError):  # an ended child is noticed where its answer is read
            self.process.stdin.write(frame.encode())
            await self.process.stdin.drain()

    def kill(self) -> None:
        """End it, once: Popen's own kill would count an ended process before asyncio does, which complains then."""
        if self.killed or self.process.returncode is not None:
            return
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            if hasattr(signal, "SIGKILL"):
                os.kill(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()


async def start() -> Worker:
    """A fresh child; `-P`: what lies in the folder that the server was started in is not imported."""
    errors = None if os.environ.get(DEBUG) else DEVNULL
    known = {name: value for name, value in os.environ.items() if name != "SHARDWISE_TOKEN"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "shardwise.web.child",
        stdin=PIPE, stdout=PIPE, stderr=errors, env={**_ONE_THREAD, **known},
    )  # fmt: skip
    return Worker(process)


@dataclass(eq=False)
class Workers:
    """All children; `quick` of them answer what takes a moment at the same time."""

    quick: int = 2
    idle: list[Worker] = field(default_factory=list)
    all: set[Worker] = field(default_factory=set)
    """Those that run, killed ones among them until they are gone."""
    waiting: int = 0
    closed: bool = False

    def __post_init__(self) -> None:
        self.turns = asyncio.Semaphore(self.quick)

    async def take(self) -> Worker:
        """An idle child, or a fresh one."""
        while self.idle:
            worker = self.idle.pop()
            if worker.alive:
                return worker
        if self.closed:
            raise Refusal(503, "the server is stopping")
        self.all = {worker for worker in self.all if worker.process.returncode is None}
        worker = await start()
        self.all.add(worker)
        return worker

    def give_back(self, worker: Worker, *, sound: bool) -> None:
        """Keep a child for the next question, unless it is unsound, old, or one too many."""
        if sound and worker.alive and worker.tasks < MOST_TASKS and len(self.idle) < self.quick and not self.closed:
            self.idle.append(worker)
        else:
            worker.kill()

    async def warm_up(self) -> None:
        """Start a child before it is asked."""
        self.give_back(await self.take(), sound=True)

    async def answer(self, task: Event, limit: float = QUICK_LIMIT) -> Event:
        """The one message that answers a quick task."""
        if self.waiting >= MOST_WAITING:
            raise Refusal(429, f"{self.waiting} questions wait already; try again in a moment")
        self.waiting += 1
        try:
            async with self.turns:
                return await self._answer(task, limit)
        finally:
            self.waiting -= 1

    async def _answer(self, task: Event, limit: float) -> Event:
        # An idle child may have been ended by somebody else without our notice; then a second one is asked.
        frame = await self._asked(task, limit) or await self._asked(task, limit)
        if frame is None:
            raise Refusal(500, "the process that worked on it ended; ask for something smaller, or report it")
        return frame

    async def _asked(self, task: Event, limit: float) -> Event | None:
        worker, frame = await self.take(), None
        try:
            await worker.ask(task)
            frame = await worker.hear(limit)
        except TimeoutError:
            raise Refusal(422, f"this took more than {limit:g} s; ask for something smaller") from None
        finally:
            self.give_back(worker, sound=frame is not None)
        return frame

    def close(self) -> None:
        """End every child."""
        self.closed = True
        for worker in self.all:
            worker.kill()

    async def ended(self) -> None:
        """Wait until every child is gone."""
        await asyncio.gather(*(worker.process.wait() for worker in self.all))
