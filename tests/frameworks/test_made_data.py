"""Made-up tokens in the form of Megatron's indexed datasets, read back by hand."""

from __future__ import annotations

import struct

import numpy as np

from shardwise.frameworks.shardwise_data import make


def test_tokens_can_be_read_back(tmp_path):
    name = str(tmp_path / "tokens")
    make(name, 100, 16, 5)
    index = (tmp_path / "tokens.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, kind, samples, documents = struct.unpack("<QBQQ", index[9:34])
    assert (version, kind, samples, documents) == (1, 4, 5, 6)
    lengths = np.frombuffer(index, np.int32, 5, 34)
    places = np.frombuffer(index, np.int64, 5, 34 + 20)
    ends = np.frombuffer(index, np.int64, 6, 34 + 20 + 40)
    assert len(index) == 34 + 20 + 40 + 48
    assert lengths.tolist() == [17] * 5
    assert places.tolist() == [68 * one for one in range(5)]
    assert ends.tolist() == list(range(6))
    tokens = np.fromfile(f"{name}.bin", np.int32)
    assert tokens.size == 85
    assert 0 <= tokens.min() <= tokens.max() < 100
    before = tokens.tobytes()
    make(name, 7, 3, 2)
    assert np.fromfile(f"{name}.bin", np.int32).tobytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokens.bin", "tokens.idx"]
