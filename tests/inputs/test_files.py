"""Files as they come: devices, pipes, and numbers that no parser takes."""

from __future__ import annotations

import os

import pytest

from shardwise.errors import FileError
from shardwise.inputs import files


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused_instead_of_read_without_end(device):
    with pytest.raises(FileError, match="pipe or a device"):
        files.read_text(device)


def test_a_pipe_nobody_writes_to_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="pipe or a device"):
        files.read_text(tmp_path / "pipe")


def test_a_file_that_says_it_is_empty_is_held_to_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SIZE_LIMIT", 10)
    (tmp_path / "f").write_text("12345678901")
    with pytest.raises(FileError, match="files of up to 10 B"):
        files.read_text(tmp_path / "f")


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", '{"a": %s}'), ("a.toml", "a = %s"), ("a.yaml", "a: %s")],
)
def test_a_number_of_thousands_of_digits_is_refused(name, text):
    with pytest.raises(FileError, match="4,300 digits"):
        files.parse_mapping(text % ("9" * 5000), name)


def test_json_that_is_cut_off_is_told(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text('{"schema": "shardwise/plan/1"\n')
    with pytest.raises(FileError, match="line 2 column 1"):
        files.read_mapping(path)
