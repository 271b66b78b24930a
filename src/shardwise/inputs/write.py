"""Writing a file whole or not at all: a reader never sees half of it, and a crash leaves the old one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from shardwise.errors import FileError


def write_text(path: str | Path, text: str) -> None:
    """Write a file under a passing name beside it, then give it its own; refusals are sentences."""
    target = Path(path)
    if target.is_dir():
        raise FileError(path, "is a folder; give the name of a file")
    try:
        if target.exists() and not target.is_file():  # a pipe or a device has no name to replace
            target.write_text(text, encoding="utf-8")
        else:
            _replace(target.resolve(), text)
    except FileNotFoundError:
        raise FileError(path, f"the folder {target.parent} does not exist; make it first") from None
    except NotADirectoryError:
        raise FileError(path, f"{target.parent} is a file, not a folder; choose another place") from None
    except PermissionError:
        raise FileError(path, "may not be written: permission denied; choose another place") from None
    except BrokenPipeError:
        raise
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise FileError(path, f"cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _replace(target: Path, text: str) -> None:
    handle, passing = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:80]}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(passing).chmod(_mode(target))
        os.replace(passing, target)  # noqa: PTH105 - the one call that is promised to be atomic
    except BaseException:
        with contextlib.suppress(OSError):
            Path(passing).unlink()
        raise


def _mode(target: Path) -> int:
    """That of the file it replaces, else what a new file would get."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
