"""Memory snapshots: their peak and its parts; a pickle is read and never run."""

from __future__ import annotations

import json
import os
import pickle
import subprocess

import pytest

from shardwise.errors import FileError
from shardwise.measure.fit.plain_pickle import PickleError, plain
from shardwise.measure.fit.snapshot import BEFORE, NAMELESS, read_snapshot

MIB = 2**20


def event(action: str, address: int, size: int, *frames: tuple[str, str]) -> dict:
    found = [{"filename": file, "line": 7, "name": name} for file, name in frames]
    return {"action": action, "addr": address, "size": size * MIB, "stream": 0, "time_us": 1, "frames": found}


def snapshot() -> dict:
    """100 MiB of weights before the record; a forward of 60 + 20, a backward without frames; 30 stay."""
    record = [
        event("alloc", 1, 60, ("/site/torch/nn/functional.py", "linear"), ("/home/model.py", "forward")),
        event("alloc", 2, 20, ("/site/torch/nn/functional.py", "cross_entropy")),
        event("alloc", 3, 15),
        event("free_requested", 1, 60),
        event("free_completed", 1, 60),
        event("free_completed", 2, 20),
        event("alloc", 4, 15, ("/site/torch/optim/adamw.py", "step")),
    ]
    blocks = [
        {"size": 100 * MIB, "state": "active_allocated"},
        {"size": 15 * MIB, "state": "active_allocated"},
        {"size": 15 * MIB, "state": "active_allocated"},
        {"size": 64 * MIB, "state": "inactive"},
    ]
    segment = {"device": 0, "total_size": 200 * MIB, "blocks": blocks, "pool": (0, 0)}
    return {"segments": [segment], "device_traces": [record], "allocator_settings": {"roundup": 1.5, "last": None}}


@pytest.fixture(params=[2, 3, 4, 5, "json"])
def path(request, tmp_path):
    file = tmp_path / "snapshot"
    text = json.dumps(snapshot()).encode() if request.param == "json" else pickle.dumps(snapshot(), request.param)
    file.write_bytes(text)
    return file


def test_the_peak_and_its_parts(path):
    found = read_snapshot(path)
    assert found.peak == 195 * MIB
    assert found.end == 130 * MIB
    assert found.parts == {BEFORE: 100 * MIB, "forward": 60 * MIB, "loss": 20 * MIB, NAMELESS: 15 * MIB}
    assert sum(found.parts.values()) == found.peak
    assert found.sites[0] == ("model.py:7 forward", 60 * MIB)


class Command:
    def __init__(self, what, *arguments):
        self.call = what, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("command", [os.system, subprocess.call, eval])
def test_a_pickle_is_never_run(tmp_path, protocol, command):
    mark = tmp_path / "ran"
    words = f"open({str(mark)!r}, 'w')" if command is eval else f"touch {mark}"
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps({"segments": [Command(command, words)]}, protocol))
    with pytest.raises(FileError, match=r"not run|broken"):
        read_snapshot(file)
    assert not mark.exists()


BROKEN = (b"", b"\x80\x05", b"\x80\x04N", b"a.", b"(.", b"\x80\x04]\x94h\x09.", b"e.", b"K\x01K\x02a.", b"R.", b"NN.")


@pytest.mark.parametrize("data", BROKEN)
def test_broken_pickles_are_told(data):
    with pytest.raises(PickleError):
        plain(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.pop("segments"), "no segments"),
        (lambda data: data.update(segments=[]), "no allocated memory"),
        (lambda data: data["segments"][0]["blocks"][0].update(size=-5), "broken"),
        (lambda data: data["segments"][0]["blocks"][0].update(size="big"), "broken"),
        (lambda data: data["device_traces"][0][0].update(size=10**400), "broken"),
        (lambda data: data["device_traces"][0][0].pop("size"), "broken"),
        (lambda data: data.update(device_traces=[[1]]), "broken"),
    ],
)
def test_broken_snapshots_are_told(tmp_path, change, words):
    data = snapshot()
    change(data)
    file = tmp_path / "snapshot.json"
    file.write_text(json.dumps(data))
    with pytest.raises(FileError, match=words):
        read_snapshot(file)
