"""Storing a calibrated GPU in the user's folder, where `--cluster 64xNAME` finds it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.inputs import lookup
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.calibrations import SHIPPED, load_calibration
from shardwise.inputs.files import read_mapping
from shardwise.inputs.serialise import to_plain
from shardwise.inputs.write import once_written, together, write_text

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


def check_name(name: str, base: str) -> str:
    """The name as it will be looked up; refused where it could not be."""
    found = lookup.normal(name)
    if not _NAME.fullmatch(found):
        raise InputError(Fault("--name", f"is {name!r}; use letters, digits, dots and hyphens, such as my-h200"))
    if found == lookup.normal(base):
        raise InputError(Fault("--name", f"is its own base {base!r}; choose another, such as my-{base}"))
    if found in _shipped():
        raise InputError(Fault("--name", f"is {name!r}, which Shardwise ships itself; use another, such as my-{found}"))
    return found


def stored_base(name: str) -> str:
    """The GPU that a stored one stands on; empty: none is stored under the name."""
    found = lookup.normal(name)
    path = lookup.home() / "gpus" / f"{found}.toml"
    own = read_mapping(path).get("gpus", {}).get(found, {}) if path.is_file() else {}
    return str(own.get("base", ""))


def _shipped() -> set[str]:
    """Names that a user's file would hide: GPUs of the catalog, and families of calibrations."""
    gpus = {lookup.normal(name) for name in lookup.names(lookup.CATALOG / "clusters")}
    return gpus | {path.stem for path in SHIPPED.glob("*.toml")}


def store(calibration: Calibration, base: str, *, reserved: float | None = None) -> tuple[Path, Path]:
    """Write the calibration and a GPU that uses it on top of `base`; returns both files.

    `reserved`: bytes that the GPU keeps back, where a run showed another number than the base's.
    """
    import tomli_w

    name = check_name(calibration.name, base)
    home = lookup.home()
    files = home / "calibrations" / f"{name}.toml", home / "gpus" / f"{name}.toml"
    gpu: dict[str, Any] = {"base": base, "calibration": name} | ({} if reserved is None else {"reserved": reserved})
    named = tomli_w.dumps({"gpus": {name: gpu}}).replace(f"[gpus.{name}]", f'[gpus."{name}"]')
    with together():
        for path, text in zip(files, (tomli_w.dumps(_table(calibration)), named), strict=True):
            write_text(path, text, folder=True)
        once_written(load_calibration.cache_clear)
        once_written(lookup.forget)
    return files


def _table(calibration: Calibration) -> dict[str, Any]:
    plain = to_plain(calibration)
    del plain["name"]
    return {key: value for key, value in plain.items() if value not in ({}, [])}
