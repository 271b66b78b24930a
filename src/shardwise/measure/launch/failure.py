"""Why a job died: the real exception among what a launcher prints about it, and what to do."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace

from shardwise.errors import ShardwiseError
from shardwise.estimate.advice import advise
from shardwise.estimate.estimate import Estimate, limited
from shardwise.units import show_bytes, show_seconds

_NUMBERED = re.compile(r"^\s*(?:\[?(?:rank)?\s?\d{1,6}\]?:\s?)+")
_ERROR = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure|Warning)|AssertionError)\b"
)
_FOLLOWS = re.compile(
    r"ChildFailedError|SignalException|DistNetworkError|DistBackendError|Connection (?:reset|closed)|Broken pipe|"
    r"NCCL error|ncclRemoteError|ProcessGroup|Warning\b"
)
"""What other ranks, or the launcher, say because one rank has died."""
_REPORT = re.compile(r"failed \(exitcode|Sending process [0-9]+ closing signal")
"""With what torchrun's own report of a death begins; what the program said stands before it."""
_NOISE = re.compile(
    r"torch\.distributed|elastic|torchrun|^[=\-_ ]+$|Root Cause|exitcode|error_file|traceback :|time +:"
)
_KILLED = re.compile(r"failed \(exitcode: -([0-9]{1,2})\)|Signal ([0-9]{1,2}) \(SIG[A-Z]+\) received")
"""What torchrun says of a process that a signal ended, of the first to go first."""
_FAILED = re.compile(r"failed \(exitcode: [0-9]+\)")
_MEMORY = re.compile(r"Tried to allocate ([0-9.]{1,12}) ([KMG]iB)")
_FREE = re.compile(r"of which ([0-9.]{1,12}) ([KMG]iB) is free")
_UNITS = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
SIGNALS = {
    "SIGKILL": "the system killed it, mostly because the host's own memory was full: see dmesg, and give it more",
    "SIGTERM": "it was told to end, by a scheduler whose time or memory was over, or by a person: ask for more of it",
    "SIGINT": "somebody, or a scheduler, interrupted it: start it again",
    "SIGHUP": "its terminal was closed: start it with nohup, tmux or --launcher slurm",
    "SIGBUS": "mostly /dev/shm, or a disk behind mapped data, was full: give the container more (--shm-size=16g)",
    "SIGSEGV": "a library crashed: mostly builds of torch, NCCL and the framework that are for different versions",
    "SIGABRT": "a library gave up, NCCL mostly after waiting for another rank: see the lines before it in the log",
}
CURES = (
    (r"DUE TO TIME LIMIT", "Slurm's time was over: ask for more (--time) in the sbatch file, or run fewer --steps"),
    (r"No space left on device", "the disk is full: free some of it, or choose another folder with --out"),
    (r"Address already in use|EADDRINUSE", "the port is taken: set MASTER_PORT to another"),
    (r"ModuleNotFoundError|ImportError", "install what is missing in the environment that runs the job"),
    (
        r"invalid device ordinal|CUDA-capable device",
        "fewer GPUs are here than the plan needs: set CUDA_VISIBLE_DEVICES",
    ),
    (r"unrecognized arguments", "the framework is of another version than the files: see --to TARGET@VERSION"),
)


class JobError(ShardwiseError):
    """A job that was started died."""

    exit_code = 3


def cause_of(lines: Sequence[str]) -> str:
    """The line that says why: the first exception that is no consequence of another."""
    every = [_NUMBERED.sub("", line).strip() for line in lines]
    report = next((index for index, line in enumerate(every) if _REPORT.search(line)), len(every))
    plain = every[:report] or every
    errors = [line for line in plain if _ERROR.match(line)]
    own = [line for line in errors if not _FOLLOWS.search(line)]
    memory = [line for line in own if _MEMORY.search(line)]
    if memory or own or errors:
        return (memory or own or errors)[0]
    rest = [line for line in plain if line and not _NOISE.search(line)]
    return rest[-1] if rest else "it printed nothing"


def failure(code: int, step: int, lines: Sequence[str], told: Estimate, log: str) -> JobError:
    """What is said of a job that died: how, when, why, and what to do."""
    cause = cause_of(lines)
    when = f"after step {step}" if step else "before its first step"
    killer = _killer(code, lines)
    if killer and (killer == "SIGKILL" or not _is_own(cause)):  # a crash that an exception explains is no cause
        cause, cure = f"a process was killed by {killer}", SIGNALS.get(killer, "see the lines before it in the log")
    else:
        cure = _memory_cure(cause, told) if _MEMORY.search(cause) else _cure(cause)
    return JobError(
        f"the job died {when} with exit code {code}: {cause[:500]}\n{cure}; nothing was stored, the whole log is {log}"
    )


def _killer(code: int, lines: Sequence[str]) -> str:
    """The signal that ended the job, or the first of its processes that went; empty: none did."""
    number = -code if code < 0 else code - 128 if 128 < code < 128 + 65 else 0
    first = next((match for line in lines if (match := _KILLED.search(line) or _FAILED.search(line))), None)
    if first:
        number = int(next((group for group in first.groups() if group), 0))
    return {one.value: one.name for one in signal.Signals}.get(number, "")


def _is_own(cause: str) -> bool:
    """Whether it is an exception of the program itself."""
    return bool(_ERROR.match(cause)) and not _FOLLOWS.search(cause)


def _cure(cause: str) -> str:
    return next((text for pattern, text in CURES if re.search(pattern, cause)), "see the lines before it in the log")


def _memory_cure(cause: str, told: Estimate) -> str:
    """How much lacked, against what was predicted, and the nearest plan that needs less."""
    tried, free = (_size(pattern.search(cause)) for pattern in (_MEMORY, _FREE))
    lacked = max(tried - free, 0.0)
    said = (
        f"the GPU lacked {show_bytes(lacked)}; predicted were {show_bytes(told.total_bytes)} of "
        f"{show_bytes(told.cluster.gpu.memory)}"
    )
    least = min(told.total_bytes, told.cluster.gpu.memory) - lacked * 1.1
    smaller = advise(replace(limited(told, max(least, 1.0)), fits="no"), count=1)
    if not smaller:
        return f"{said}, and no single change needs less: use more GPUs"
    first = smaller[0]
    slower = f", {show_seconds(-first.seconds)} slower" if first.seconds < 0 else ""
    return f"{said}; the nearest that needs less: {first.text} (-{show_bytes(first.bytes)}{slower})"


def _size(match: re.Match[str] | None) -> float:
    return float(match[1]) * _UNITS[match[2]] if match else 0.0
