import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.simulate import compiled, engine

SOURCE = Path(engine.__file__).with_name("replay.c")
needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SHARDWISE_NO_COMPILER", raising=False)
    compiled.library.cache_clear()
    yield
    compiled.library.cache_clear()


@needs_compiler
def test_a_kernel_is_built_once_and_kept(tmp_path):
    assert compiled.library(SOURCE) is not None
    kept = list((tmp_path / "shardwise").iterdir())
    assert len(kept) == 1
    made = kept[0].stat().st_mtime_ns
    compiled.library.cache_clear()
    assert compiled.library(SOURCE) is not None
    assert kept[0].stat().st_mtime_ns == made


@needs_compiler
@pytest.mark.parametrize("content", [b"", b"\x7fELF", None], ids=["empty", "foreign", "truncated"])
def test_a_kept_library_that_is_not_as_it_was_built_is_built_anew(tmp_path, content):
    """In a process of its own: loading such a file would end in a bus error."""
    load = (
        "import pathlib, sys; from shardwise.simulate import compiled\n"
        f"sys.exit(compiled.library(pathlib.Path({str(SOURCE)!r})) is None)"
    )
    assert subprocess.run([sys.executable, "-c", load], check=False).returncode == 0
    (kept,) = (tmp_path / "shardwise").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 4] if content is None else content)
    assert subprocess.run([sys.executable, "-c", load], check=False).returncode == 0
    assert [path.read_bytes() for path in (tmp_path / "shardwise").iterdir()] == [whole]


@needs_compiler
def test_nothing_is_kept_in_or_loaded_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert compiled.library(SOURCE) is not None
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    compiled.library.cache_clear()
    monkeypatch.setenv("HOME", "home")
    assert compiled.library(SOURCE) is None


def test_no_compiler_is_no_fault(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert compiled.library(SOURCE) is None


def test_the_switch_forces_python(monkeypatch):
    monkeypatch.setenv("SHARDWISE_NO_COMPILER", "1")
    assert compiled.library(SOURCE) is None


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path):
    folder = tmp_path / "shardwise"
    folder.mkdir()
    folder.chmod(0o777)
    assert compiled.library(SOURCE) is None


def test_a_source_that_does_not_compile_is_no_fault(tmp_path):
    broken = tmp_path / "src" / "broken.c"
    broken.parent.mkdir()
    broken.write_text("this is not C")
    assert compiled.library(broken) is None
    assert not list(Path(os.environ["XDG_CACHE_HOME"]).glob("shardwise/*.so"))
