"""The C kernels: built when the package is (hatch_build.py at the root), loaded here, never compiled here.

Why C at all (measured, 2.8 GHz Xeon, one core): pp 64, vpp 4, 1,024 micro batches replay at 30 M actions a second in C
and 0.6 M in Python; building one schedule of 24,576 actions takes 6 ms in C and 0.9 s in Python, and the optimiser
wants hundreds of them. What times and builds has a Python twin that gives the same numbers bit for bit (no fused
multiply-add, same order of operations). Annealing has none: some hundred times slower it would improve little within
the time of a question. So it is left out, answers may be worse, and whoever asks is told.
`SHARDWISE_NO_KERNELS=1` does as if none were built: for the tests, and to see whether a kernel is at fault.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import sys
from pathlib import Path

LACKING = (
    "the C kernels of Shardwise are not built: it runs slower, and what plan, balance and schedule auto find may be "
    "worse, since annealing is left out; install a C compiler (on Debian and Ubuntu: apt-get install gcc) and then "
    "Shardwise once more (pip install --force-reinstall --no-deps --no-cache-dir, and what you installed it from)"
)
UNITS = ("pipeline/replay.c", "pipeline/anneal.c", "partition/improve.c")
"""What the compiler is given; these include the other sources."""
_PACKAGE = Path(__file__).parent


def prefix(package: Path) -> str:
    """The name of a library up to its own digest: a library of other sources or for another machine has another."""
    sources = [path.read_bytes() for path in sorted(package.glob("*/*.c"))]
    return f"kernels-{digest(b''.join(sources) + f'{sys.platform} {platform.machine()}'.encode())}"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None where they were not built for these sources."""
    if os.environ.get("SHARDWISE_NO_KERNELS"):
        return None
    try:
        name = prefix(_PACKAGE)
        for path in _PACKAGE.glob(f"{name}-*.so"):
            if path.stem == f"{name}-{digest(path.read_bytes())}":  # loading a truncated one would kill the process
                return ctypes.CDLL(str(path))
    except OSError:  # not to be read, or not to be loaded: as good as absent
        pass
    return None


def missed() -> bool:
    """Whether this process wanted the kernels and did without."""
    return library.cache_info().misses > 0 and library() is None
