"""The small C kernels: compiled on first use with the machine's `cc`, kept in a cache folder, never required.

Why C at all (measured, 2.8 GHz Xeon, one core): pp 64, vpp 4, 1,024 micro batches replay at 30 M actions a second in
C, 2.2 to 2.9 M with numpy over ranks (waves.py) and 0.6 M with flat lists; building one schedule of 24,576 actions
takes 6 ms in C and 0.9 s in Python, and the optimiser wants hundreds of them. Compiling takes 0.3 s, once. The kernels
that time and build have Python twins that give the same numbers bit for bit (no fused multiply-add, same order of
operations); only annealing has none and is left out, so that without a compiler gaps are somewhat wider.
`SHARDWISE_NO_COMPILER=1` forces the twins.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

_FLAGS = ("-O2", "-std=c99", "-fPIC", "-shared", "-ffp-contract=off", "-fno-fast-math")


@functools.cache
def library(source: Path) -> ctypes.CDLL | None:
    """The compiled form of a C file beside the package, or None where it cannot be had."""
    if os.environ.get("SHARDWISE_NO_COMPILER") or sys.platform == "win32":
        return None
    try:
        return ctypes.CDLL(str(_built(source)))
    except (OSError, subprocess.SubprocessError):
        return None


def _built(source: Path) -> Path:
    """A kept library whose content is what its name says, else a new one: loading a truncated one kills the process."""
    text = b"".join(path.read_bytes() for path in sorted(source.parent.glob("*.c")))  # one may include another
    key = _hash(text + " ".join((*_FLAGS, sysconfig.get_platform())).encode())
    folder, name = _cache(), f"{source.stem}-{key}"
    for kept in sorted(folder.glob(f"{name}-*.so")):
        if kept.is_file() and kept.stem == f"{name}-{_hash(kept.read_bytes())}":
            return kept
        kept.unlink(missing_ok=True)
    return _compile(source, folder, name)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _compile(source: Path, folder: Path, name: str) -> Path:
    compiler = next((path for word in ("cc", "gcc", "clang") if (path := shutil.which(word))), None)
    if compiler is None:
        raise OSError("no C compiler")
    handle, draft = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(handle)
    try:
        subprocess.run(  # noqa: S603 - our own source, a fixed list of arguments
            [compiler, *_FLAGS, "-o", draft, str(source), "-lm"], check=True, capture_output=True, timeout=60
        )
        target = folder / f"{name}-{_hash(Path(draft).read_bytes())}.so"
        return Path(draft).replace(target)  # atomic: several processes may build at once
    finally:
        Path(draft).unlink(missing_ok=True)


def _cache() -> Path:
    """A folder that only this user can write: a library is code, so it is not loaded from anywhere else."""
    home = os.path.join(os.path.expanduser("~"), ".cache")  # noqa: PTH111, PTH118 - Path.home raises without a home
    # the XDG specification has relative paths ignored: they would load code from whatever folder one is in
    base = next((Path(one) for one in (os.environ.get("XDG_CACHE_HOME", ""), home) if os.path.isabs(one)), None)  # noqa: PTH117
    if base is None:
        raise OSError("no home folder to keep a library in")
    folder = base / "shardwise"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise OSError(f"{folder} can be written by others")
    return folder
