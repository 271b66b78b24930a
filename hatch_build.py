"""Builds the C kernels with the package: into the wheel, or beside the sources for an editable install.

Loaded by ctypes, they need no Python ABI: one wheel a platform serves every Python. Where they cannot be built the
wheel is a pure one, and the program says so when it runs (src/shardwise/kernels.py).
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The Python twins do the same operations in the same order, so nothing may be fused or reordered.
FLAGS = ("-O2", "-std=c99", "-fPIC", "-shared", "-ffp-contract=off", "-fno-fast-math")


class KernelHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        package = Path(self.root, "src", "shardwise")
        self._draft = tempfile.TemporaryDirectory()
        try:
            library = build(package, Path(self._draft.name))
        except (OSError, subprocess.SubprocessError) as error:
            self.app.display_warning(f"the C kernels are not built: {getattr(error, 'stderr', '') or error}")
            return
        if version == "editable":
            place(library, package)
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}
        build_data["force_include"][str(library)] = f"shardwise/{library.name}"

    def finalize(self, *_: object) -> None:
        self._draft.cleanup()


def build(package: Path, folder: Path) -> Path:
    """The library, under the name by which the program knows that it is whole and of these sources."""
    names = runpy.run_path(str(package / "kernels.py"))
    words = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    compiler = next((path for word in words if (path := shutil.which(word))), None)
    if compiler is None or sys.platform == "win32":
        raise OSError("there is no C compiler")
    draft = folder / "draft.so"
    units = [str(package / unit) for unit in names["UNITS"]]
    command = [compiler, *FLAGS, "-o", str(draft), *units, "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)  # noqa: S603 - our own sources
    return draft.replace(folder / f"{names['prefix'](package)}-{names['digest'](draft.read_bytes())}.so")


def place(library: Path, package: Path) -> None:
    """Put it beside the sources in one step, as programs may be running, in place of all that were there."""
    shutil.copy(library, draft := package / f"{library.name}.draft")
    draft.replace(package / library.name)
    for other in package.glob("kernels-*"):
        if other.name != library.name:
            other.unlink()
