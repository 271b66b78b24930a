"""Writing files whole or not at all: a reader never sees half of one, and a command writes all of its files or none.

Inside `together()` files are only collected. When the block ends well, all of them are written under passing names
beside their places, and only when every one is there do they get their own names: a full disk, Ctrl-C or a place that
may not be written leaves what was there before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from shardwise.errors import FileError, InfeasibleError

_NOTHING = "nothing was written"


@dataclass(slots=True, kw_only=True)
class _File:
    """One file on its way."""

    path: Path
    """As the user wrote it."""
    content: str | bytes
    program: bool
    folder: bool
    target: Path = field(default_factory=Path)
    """Where links lead."""
    passing: Path | None = None
    """Written there first; none: not yet, or a device, which has no name to replace."""
    existed: bool = False
    former: Path | None = None
    """A second name of the file that it replaces."""
    made: list[Path] = field(default_factory=list)
    """Folders that did not exist, the innermost last."""


@dataclass(slots=True)
class _Batch:
    files: list[_File] = field(default_factory=list)
    after: list[Callable[[], object]] = field(default_factory=list)
    """What to do once they are written."""


_open: ContextVar[_Batch | None] = ContextVar("open", default=None)


def write_text(path: str | Path, text: str | bytes, *, program: bool = False, folder: bool = False) -> None:
    """Write a file, bytes as they are, or hand it to the block of `together` that is open; refusals are sentences.

    `program`: it may be executed. `folder`: the folder is made where there is none.
    """
    if "\0" in str(path):
        raise FileError(path, f"is no name of a file: it holds a NUL byte; {_NOTHING}")
    if Path(path).is_dir():
        raise FileError(path, f"is a folder; give the name of a file; {_NOTHING}")
    with together() as batch:
        batch.files.append(_File(path=Path(path), content=text, program=program, folder=folder))


@contextlib.contextmanager
def together() -> Iterator[_Batch]:
    """All files of the block or none; inside another such block they are part of that one's.

    "Nothing fits" is an answer, whose files are written; after any other error none is.
    """
    if (outer := _open.get()) is not None:
        yield outer
        return
    batch = _Batch()
    token = _open.set(batch)
    try:
        yield batch
    except InfeasibleError:
        _commit(batch)
        raise
    else:
        _commit(batch)
    finally:
        _open.reset(token)


def write_now() -> None:
    """Write what the open block has collected so far: somebody waits for it, or it is worth keeping in any case."""
    if (batch := _open.get()) is not None:
        _commit(batch)


def once_written(then: Callable[[], object]) -> None:
    """Do something, such as saying where a file is, when all files are there; outside of a block at once."""
    with together() as batch:
        batch.after.append(then)


def _commit(batch: _Batch) -> None:
    files, after = batch.files[:], batch.after[:]
    batch.files.clear()
    batch.after.clear()
    try:
        for file in files:
            with _told(file):
                _stage(file)
        for file in files:
            with _told(file):
                _place(file, alone=len(files) == 1)
    except BaseException:
        for file in reversed(files):
            _undo(file)
        raise
    for file in files:
        if file.former:
            file.former.unlink(missing_ok=True)
    for then in after:
        then()


@contextlib.contextmanager
def _told(file: _File) -> Iterator[None]:
    """The system's refusals as sentences."""
    path, parent = file.path, file.path.parent
    try:
        yield
    except FileNotFoundError:
        why = f"the folder {parent} does not exist; make it first"
    except (NotADirectoryError, FileExistsError):
        why = f"{parent} is a file, not a folder; choose another place"
    except PermissionError:
        why = "may not be written: permission denied; choose another place"
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        why = f"cannot be written: {getattr(error, 'strerror', None) or error}"
    else:
        return
    raise FileError(path, f"{why}; {_NOTHING}") from None


def _stage(file: _File) -> None:
    """Everything that takes room on the disk, under a name that nobody looks for."""
    import tempfile

    if file.path.exists() and not file.path.is_file():
        return
    file.target = target = file.path.resolve()
    file.existed = target.exists()
    if file.folder:
        file.made = [one for one in (target.parent, *target.parent.parents) if not one.exists()][::-1]
        target.parent.mkdir(parents=True, exist_ok=True)
    handle, passing = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:80]}.", suffix=".tmp")
    file.passing = Path(passing)
    with os.fdopen(handle, "wb") as stream:
        stream.write(_raw(file))
    file.passing.chmod(_mode(target) | (0o111 if file.program else 0))


def _raw(file: _File) -> bytes:
    return file.content if isinstance(file.content, bytes) else file.content.encode("utf-8")


def _place(file: _File, *, alone: bool) -> None:
    if file.passing is None:
        with contextlib.suppress(BrokenPipeError):  # a reader that has gone ends nothing else
            file.path.write_bytes(_raw(file))
        return
    if file.existed and not alone:
        # A second name keeps the old file until all are placed; a disk that has no such names does without.
        former = file.passing.with_suffix(".old")
        with contextlib.suppress(OSError):
            os.link(file.target, former)
            file.former = former
    os.replace(file.passing, file.target)  # noqa: PTH105 - the one call that is promised to be atomic


def _undo(file: _File) -> None:
    """As if it had never been begun, as far as the system lets us."""
    with contextlib.suppress(OSError):
        if file.passing and not file.passing.exists():  # it has its own name already
            if file.former:
                os.replace(file.former, file.target)  # noqa: PTH105
            elif not file.existed:
                file.target.unlink()
    for left in (file.passing, file.former):
        if left:
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)
    for one in reversed(file.made):
        with contextlib.suppress(OSError):
            one.rmdir()


def _mode(target: Path) -> int:
    """That of the file it replaces, else what a new file would get."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
