import os
import shutil
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
