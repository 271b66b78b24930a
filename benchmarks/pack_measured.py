"""Pack measured rows into the compact data that ships with the package: python benchmarks/pack_measured.py [FOLDER].

FOLDER holds published.json, published_2026.json and the h200_*.json; our own later jobs are in data/h200_jobs.json
beside this file, and are packed alone where no FOLDER is given. What a row says about its own making is left out;
the sources are named once beside the rows. The same rows give the same bytes.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1] / "src" / "shardwise" / "measure" / "validate" / "data"
LEFT_OUT = {"inferred", "source", "derived"}


def published(rows: list[dict[str, Any]]) -> dict[str, Any]:
    sources: dict[str, dict[str, Any]] = {}
    for row in rows:
        source = {key: row["source"][key] for key in ("title", "repo", "commit") if key in row["source"]}
        sources.setdefault(row["source_key"], source)
    return {"sources": sources, "rows": [_published_row(row) for row in rows]}


def _published_row(row: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in row.items() if key not in LEFT_OUT}
    seconds = row["derived"].get("iteration_time_s")
    where = {key: row["source"][key] for key in ("path", "table") if row["source"].get(key)}
    kept |= {"source": where} if where else {}
    return {**kept, "derived": {"iteration_time_s": seconds} if seconds else {}}


def _measured(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without single steps, and without what an older Shardwise said of them."""
    return [{k: v for k, v in row.items() if k != "times" and not k.startswith("predicted")} for row in rows]


def write(name: str, value: dict[str, Any]) -> None:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    (HOME / f"{name}.json.gz").write_bytes(packed)
    print(f"{name}: {len(value['rows'])} rows, {len(packed):,} bytes")


def own() -> None:
    data = json.loads((Path(__file__).parent / "data" / "h200_jobs.json").read_text(encoding="utf-8"))
    write("h200_jobs", {**data, "rows": _measured(data["rows"])})


def main(folder: Path) -> None:
    for name in ("published", "published_2026", "h200_huggingface", "h200_megatron_rank", "h200_real_jobs"):
        data = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        write(name, published(data) if name.startswith("published") else {**data, "rows": _measured(data["rows"])})


if __name__ == "__main__":
    own()
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
