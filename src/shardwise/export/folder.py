"""Writing an export into a folder: whole files, and never over a file that is not ours.

`shardwise-export.json` lists what was written with the hash of each file. A file that it lists and that still has its
hash may be written again; any other file of that name, edited ones included, stays unless it is forced.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import shardwise
from shardwise.errors import Fault, FileError, InputError
from shardwise.export.target import Export
from shardwise.inputs.files import read_mapping
from shardwise.inputs.serialise import to_json
from shardwise.inputs.write import write_text

MANIFEST = "shardwise-export.json"
_SCHEMA = "shardwise/export/1"


def write_export(export: Export, folder: str | Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write all files of an export and the list of them, or refuse with every file that is in the way."""
    folder = Path(folder)
    listed = _listed(folder / MANIFEST)
    if not force:
        _refuse_foreign(export, folder, listed)
    _make(folder)
    for file in export.files:
        path = folder / file.name
        write_text(path, file.text)
        if file.program:
            path.chmod(path.stat().st_mode | 0o111)
    write_text(folder / MANIFEST, to_json(_manifest(export, listed)))
    return tuple(folder / name for name in (*(file.name for file in export.files), MANIFEST))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _listed(path: Path) -> dict[str, Any]:
    """Files that an earlier export wrote here -> what is known of them."""
    if not path.is_file():
        return {}
    data = read_mapping(path)
    files = data.get("files")
    if data.get("schema") != _SCHEMA or not isinstance(files, dict):
        raise FileError(path, f"is not a list of ours (schema {_SCHEMA!r}); move it away or choose another folder")
    return files


def _refuse_foreign(export: Export, folder: Path, listed: dict[str, Any]) -> None:
    faults = []
    for file in export.files:
        path = folder / file.name
        if not path.exists() or not _differs(path, file.text):
            continue
        entry = listed.get(file.name)
        known = entry.get("sha256") if isinstance(entry, dict) else None
        if known is None or _differs(path, None, known):
            what = "was not written by Shardwise" if known is None else "was changed since Shardwise wrote it"
            faults.append(Fault(str(path), f"{what}; move it away, choose another --out, or add --force"))
    if faults:
        raise InputError(faults, title="nothing was written")


def _differs(path: Path, text: str | None, known: str = "") -> bool:
    try:
        present = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return True
    return present != (known if text is None else _hash(text))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(folder, f"cannot be made: {error.strerror or error}; choose another --out") from None


def _manifest(export: Export, listed: dict[str, Any]) -> dict[str, Any]:
    entry = {
        "target": export.target,
        "speaks": export.speaks,
        "plan": export.plan,
        "strategy": str(export.strategy),
        "predicted": export.prediction,
        "losses": [str(fault) for fault in export.losses],
        "by_hand": list(export.by_hand),
    }
    written = {file.name: {"sha256": _hash(file.text), **entry} for file in export.files}
    files = dict(sorted({**listed, **written}.items()))
    return {"schema": _SCHEMA, "shardwise": shardwise.__version__, "files": files}
