"""Writing an export into a folder: all of its files or none, and never over a file that is not ours.

`shardwise-export.json` lists what was written with the hash of each file. A file that it lists for the same target and
that still has its hash may be written again, or goes where the target needs it no more; any other file of that name,
edited ones included, stays unless it is forced.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, FileError, InputError
from shardwise.frameworks.target import Export, File
from shardwise.inputs.files import read_bytes, read_mapping
from shardwise.inputs.serialise import to_json
from shardwise.inputs.write import once_written, together, write_text
from shardwise.version import __version__

MANIFEST = "shardwise-export.json"
_SCHEMA = "shardwise/export/1"


def write_export(export: Export, folder: str | Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write all files of an export and the list of them, or refuse with every file that is in the way."""
    folder = Path(folder)
    listed = _listed(folder / MANIFEST)
    if not force:
        _refuse_foreign(export, folder, listed)
    stale = _stale(export, folder, listed)
    kept = {name: entry for name, entry in listed.items() if name not in stale}
    manifest = File(name=MANIFEST, text=to_json(_manifest(export, kept)))
    files = (*export.files, manifest)  # the list last: a file that it does not name yet is never taken for ours
    with together():
        for file in files:
            write_text(folder / file.name, file.text, program=file.program, folder=True)
        for name in stale:
            once_written(partial((folder / name).unlink, missing_ok=True))
    return tuple(folder / file.name for file in files)


def _stale(export: Export, folder: Path, listed: dict[str, Any]) -> list[str]:
    """Files of an earlier export for the same target that this one does not write, as they were written."""
    made = {file.name for file in export.files}
    return [
        name
        for name, entry in listed.items()
        if name not in made
        and isinstance(entry, dict)
        and _name(entry.get("target")) == _name(export.target)
        and Path(name).name == name
        and not _differs(folder / name, None, str(entry.get("sha256")))
    ]


def _name(target: object) -> str:
    return str(target).partition("@")[0]


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
        what = _in_the_way(export, path, listed.get(file.name))
        if what:
            faults.append(Fault(str(path), f"{what}; move it away, choose another --out, or add --force"))
    if faults:
        raise InputError(faults, title="nothing was written")


def _in_the_way(export: Export, path: Path, entry: object) -> str:
    """Why a file that is there must stay; empty: it is ours, of this target, and as we wrote it."""
    known = entry.get("sha256") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or known is None:
        return "was not written by Shardwise"
    if _differs(path, None, str(known)):
        return "was changed since Shardwise wrote it"
    other = entry.get("target")
    return "" if _name(other) == _name(export.target) else f"belongs to the export for {other}"


def _differs(path: Path, text: str | None, known: str = "") -> bool:
    try:
        present = hashlib.sha256(read_bytes(path)).hexdigest()
    except FileError:
        return True
    return present != (known if text is None else _hash(text))


def _manifest(export: Export, listed: dict[str, Any]) -> dict[str, Any]:
    entry = {
        "target": export.target,
        "speaks": export.speaks,
        "plan": export.plan,
        **({"strategy": str(export.strategy)} if export.strategy else {}),
        "predicted": export.prediction,
        "as_written": export.as_written,
        "losses": [str(fault) for fault in export.losses],
        "by_hand": list(export.by_hand),
    }
    written = {file.name: {"sha256": _hash(file.text), **entry} for file in export.files}
    files = dict(sorted({**listed, **written}.items()))
    return {"schema": _SCHEMA, "shardwise": __version__, "files": files}
