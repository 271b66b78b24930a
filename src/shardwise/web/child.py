"""The program of a child process: takes tasks from standard input, one at a time, and writes their answers.

It ends when its input ends, so that no child outlives its server, however that was ended. What libraries print is led
away from the answers; memory is limited, since the questions come from anywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from typing import BinaryIO

from shardwise.web.stream import Event, read_frame

MEMORY = 6 * 2**30
"""Bytes that one child may take."""
DEBUG = "SHARDWISE_WEB_DEBUG"


def main() -> None:
    """Work until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the server, which ends us
    out = _own_output()
    _limit_memory()
    tasks: queue.SimpleQueue[Event] = queue.SimpleQueue()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, tasks, stop), daemon=True).start()

    from shardwise.web.tasks import Desk

    desk = Desk(say=lambda frame: _write(out, frame), stop=stop.is_set)
    desk.warm_up()
    while True:
        _work(desk, tasks.get(), out)


def _work(desk: object, task: Event, out: BinaryIO) -> None:
    from shardwise.web.tasks import Desk

    assert isinstance(desk, Desk)  # noqa: S101 - for the type checker; tasks is imported late
    try:
        desk.do(task)
    except MemoryError:
        # Whatever is left half done goes with the process; the server starts another.
        _write(out, Event("failed" if task.word == "plan" else "422", _too_large()))
        os._exit(1)
    except Exception as error:  # noqa: BLE001 - the last line of defence; told in a sentence
        if os.environ.get(DEBUG):
            traceback.print_exc()
        _write(out, Event("failed" if task.word == "plan" else "500", _fault_of_ours(error)))


def _too_large() -> bytes:
    return _error(
        f"this needs more than the {MEMORY / 2**30:g} GiB that one question may take; ask for something smaller"
    )


def _fault_of_ours(error: Exception) -> bytes:
    said = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".")
    return _error(f"an unexpected error: {said}. This is a fault of Shardwise: please report it with what you asked")


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "faults": []}}).encode()


def _own_output() -> BinaryIO:
    """Standard output for answers only: whatever else is printed goes to standard error."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "wb")


def _write(out: BinaryIO, frame: Event) -> None:
    try:
        out.write(frame.encode())
        out.flush()
    except (BrokenPipeError, ValueError):
        os._exit(0)  # nobody listens any more


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on every system; a lower limit may be set already
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _listen(stream: BinaryIO, tasks: queue.SimpleQueue[Event], stop: threading.Event) -> None:
    """Hand tasks on; `stop` is meant for the task that came before it."""
    while (frame := read_frame(stream)) is not None:
        if frame.word == "stop":
            stop.set()
        else:
            stop.clear()
            tasks.put(frame)
    os._exit(0)


if __name__ == "__main__":
    main()
