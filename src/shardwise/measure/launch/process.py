"""A job as a group of processes: started, read while it runs, and ended as a whole."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

KEPT = 400
"""Last lines that are looked through for why it died."""
GENTLY = ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
"""Signals that end a group, and how long each is waited for."""
PATIENCE = 30.0
"""Seconds that a job which has closed its output may take to end."""
OFTEN = 0.2
PIECE = 2**16


@dataclass(slots=True, kw_only=True)
class Ended:
    """How a job ended."""

    code: int
    interrupted: bool = False
    """Ctrl-C was pressed."""
    full: str = ""
    """Why its log could not be written; empty: it was."""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT))
    """The last ones that it printed."""
    rest: bytes = b""

    def take(self, piece: bytes) -> None:
        """Keep what was printed; a line whose end is to come waits for it."""
        *whole, self.rest = (self.rest + piece).split(b"\n")
        self.lines.extend(line.decode(errors="replace") for line in whole)


def run_job(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, read: Callable[[bytes], object]
) -> Ended:
    """Run a command to its end, its output into a log and to `read`, piece by piece. Ctrl-C ends its whole group, and
    so does SIGTERM, which then ends us, too.
    """
    ended = Ended(code=0)
    with _ended_first(), log.open("wb", buffering=0) as kept:
        job = _started(command, folder, environment)
        assert job.stdout is not None  # noqa: S101 - for the type checker
        try:
            while piece := _piece(job):
                ended.take(piece)
                read(piece)
                kept.write(piece)
            _waited(job, PATIENCE)
        except KeyboardInterrupt:
            ended.interrupted = True
        except OSError as error:
            ended.full = error.strerror or str(error)
        finally:
            ended.take(b"\n")
            ended.code = _end(job)
            job.stdout.close()
    return ended


class _Told(BaseException):
    """SIGTERM came."""


@contextmanager
def _ended_first() -> Iterator[None]:
    """SIGTERM leaves this block in good order, its job ended, and ends us then."""
    ours = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not ours or threading.current_thread() is not threading.main_thread():  # only that one may ask for signals
        yield
        return

    def told(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise _Told

    signal.signal(signal.SIGTERM, told)
    try:
        yield
    except _Told:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_batch(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, read: Callable[[bytes], object]
) -> Ended:
    """The same of `sbatch --wait --parsable`, which prints the job's number and lasts as long as the job; the job's
    nodes write the log. Ctrl-C cancels the job.
    """
    ended, tail = Ended(code=0), Tail(log)
    job = _started(command, folder, environment)
    assert job.stdout is not None  # noqa: S101 - for the type checker
    number = job.stdout.readline().decode(errors="replace").partition(";")[0].strip()
    try:
        while job.poll() is None or tail.grew():
            piece = tail.read()
            ended.take(piece)
            read(piece)
            time.sleep(OFTEN)
    except KeyboardInterrupt:
        ended.interrupted = True
        if number.isdigit():
            subprocess.run(["scancel", number], check=False, env=dict(environment))  # noqa: S603, S607 - Slurm's own
    finally:
        ended.code = _end(job)
        if not log.exists():  # sbatch itself says why
            ended.take(number.encode() + b"\n" + job.stdout.read())
        ended.take(b"\n")
        job.stdout.close()
    return ended


class Tail:
    """A file that grows, read from where one stopped; it may not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0

    def grew(self) -> bool:
        return self.path.exists() and self.path.stat().st_size > self.at

    def read(self) -> bytes:
        """What is new, up to a few megabytes. A file that became shorter is read from its start."""
        if not self.path.exists():
            return b""
        with self.path.open("rb") as file:
            if self.path.stat().st_size < self.at:
                self.at = 0
            file.seek(self.at)
            found = file.read(64 * PIECE)
            self.at = file.tell()
        return found


def _started(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - what the export wrote
        command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def _piece(job: subprocess.Popen[bytes]) -> bytes:
    """What was printed since; empty: the job and all that it started are silent for good."""
    assert job.stdout is not None  # noqa: S101 - for the type checker
    while True:
        ready, _, _ = select.select([job.stdout], [], [], OFTEN)
        if ready:
            return os.read(job.stdout.fileno(), PIECE)
        if job.poll() is not None:  # a child that outlives it may hold the pipe open
            return b""


def _end(job: subprocess.Popen[bytes]) -> int:
    """End the group of a job that still runs, gently first; of one that ended, what it left behind."""
    for number, patience in GENTLY if job.poll() is None else GENTLY[-1:]:
        try:
            os.killpg(job.pid, number)
        except ProcessLookupError:
            break
        if _waited(job, patience) and _is_gone(job.pid, patience):
            break
    return job.wait()


def _waited(job: subprocess.Popen[bytes], patience: float) -> bool:
    try:
        job.wait(patience)
    except subprocess.TimeoutExpired:
        return False
    return True


def _is_gone(group: int, patience: float) -> bool:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(OFTEN / 4)
    return False
