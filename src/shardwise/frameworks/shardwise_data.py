"""Make tokens where there are none: NAME.bin and NAME.idx, in the form of Megatron's indexed datasets.

`python3 shardwise_data.py NAME VOCABULARY SEQUENCE SAMPLES`; needs numpy. Files that are there are left alone.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import numpy as np

INT32 = 4
"""The code of the numbers' type in the index."""


def make(name: str, vocabulary: int, sequence: int, samples: int) -> None:
    """Documents of one sequence and the token after it, the same ones every time."""
    if Path(f"{name}.idx").is_file():
        return
    length = sequence + 1
    tokens = np.random.default_rng(1234).integers(0, vocabulary, (samples, length), dtype=np.int32)
    index = b"".join([
        b"MMIDIDX\x00\x00",
        struct.pack("<QBQQ", 1, INT32, samples, samples + 1),
        np.full(samples, length, dtype=np.int32).tobytes(),
        (np.arange(samples, dtype=np.int64) * length * tokens.itemsize).tobytes(),
        np.arange(samples + 1, dtype=np.int64).tobytes(),
    ])  # fmt: skip
    for ending, content in ((".bin", tokens.tobytes()), (".idx", index)):
        passing = Path(f"{name}{ending}.{os.getpid()}")  # several nodes may make them at once
        passing.write_bytes(content)
        passing.replace(f"{name}{ending}")


if __name__ == "__main__":
    make(sys.argv[1], *map(int, sys.argv[2:5]))
