"""What nccl-tests printed (all_reduce_perf and its kin): a log as rows like the probe's of collectives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwise.cost.network import bus_share
from shardwise.errors import FileError
from shardwise.inputs.files import read_text

Row = dict[str, Any]
_OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "p2p",
}
_NAMED = re.compile(r"(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv)_perf")
_DEVICES = re.compile(r"#\s*(?:Using devices|nThread)")
_RANK = re.compile(
    r"#\s*Rank\s+\d{1,7}\s+(?:Group\s+\d{1,7}\s+)?Pid\s+\d{1,10}\s+on\s+(\S{1,255})\s+device\s.*?\]\s*(.{0,80})"
)
_ROW = re.compile(
    r"\s*(\d{1,16})\s+\d{1,16}\s+[a-z]\w{1,15}(?:\s+[a-z]\w{0,15})?(?:\s+-?\d{1,7})?"
    r"\s+(\d{1,12}(?:\.\d{1,6})?)\s+(\d{1,9}(?:\.\d{1,6})?)\s+(\d{1,9}(?:\.\d{1,6})?)(?:\s|$)"
)
_LIKE_A_ROW = re.compile(r"\s*-?\d{1,16}\s+-?\d{1,16}\s+[a-z]\w{1,15}\s")
"""Size, count and type: only rows of the table begin so."""
MANY = 10**6
"""Ranks of which one is nothing."""
LONGEST = 400
"""Characters of a line; nccl-tests prints none that long, and a longer one is not looked at."""


def read_log(path: str | Path) -> tuple[list[Row], str]:
    """The rows of a log, and the GPU that it names (empty: none): bytes, seconds (out of place), ranks, and hosts (0:
    the log does not name them).
    """
    lines = [line for line in read_text(path).splitlines() if len(line) <= LONGEST]
    if bad := next((line for line in lines if _LIKE_A_ROW.match(line) and not _ROW.match(line)), None):
        raise FileError(
            path, f"has a row that is not nccl-tests': {bad.strip()!r}; times and rates are numbers of 0 and above"
        )
    found, gpu = _rows(lines, _NAMED.search(Path(path).name))
    if not found:
        raise FileError(path, "holds no table of nccl-tests; give what all_reduce_perf, all_gather_perf ... printed")
    if any(row["op"] is None for row in found):
        raise FileError(
            path, f"does not say which test it is of; name the file after it: {', '.join(_OPS)} + _perf.log"
        )
    for row in (row for row in found if not row["ranks"]):
        row["ranks"] = _ranks([one for one in found if one["op"] == row["op"]])
    if any(row["ranks"] < 2 for row in found):
        raise FileError(
            path,
            "does not say how many ranks took part: no lines `# Rank N ... on HOST device D` of two ranks or more "
            "stand before its table, and no number of ranks makes its bus bandwidth of its algorithm bandwidth",
        )
    return found, gpu


def _rows(lines: list[str], named: re.Match[str] | None) -> tuple[list[Row], str]:
    op, gpu = (_OPS[named[1]] if named else None), ""
    hosts: list[str] = []
    found: list[Row] = []
    for line in lines:
        if test := _NAMED.search(line):
            op = _OPS[test[1]]
        elif _DEVICES.match(line):
            hosts = []
        elif rank := _RANK.match(line):
            hosts.append(rank[1])
            gpu = gpu or rank[2].strip()
        elif row := _ROW.match(line):
            found += _row(row, op, hosts)
    return found, gpu


def _row(row: re.Match[str], op: str | None, hosts: list[str]) -> Iterator[Row]:
    """Messages of nothing are timed too, and say nothing."""
    size, micros, rate, bus = int(row[1]), float(row[2]), float(row[3]), float(row[4])
    if size and micros:
        yield {
            "op": op, "ranks": len(hosts), "hosts": len(set(hosts)), "bytes": size, "seconds": micros * 1e-6,
            "rate": rate, "bus": bus,
        }  # fmt: skip


def _ranks(rows: list[Row]) -> int:
    """How many ranks make this bus bandwidth of this algorithm bandwidth, where both are largest and their two decimals
    say most; 0: none do, or several.
    """
    best = max(rows, key=lambda row: float(row["rate"]))
    if not best["rate"] or best["op"] == "p2p":
        return 0
    share = best["bus"] / best["rate"] / bus_share(best["op"].replace("_", "-"), MANY)  # (ranks - 1) / ranks
    ranks = round(1 / (1 - share)) if 0.4 < share < 1 - 1 / MANY else 0
    rounded = 0.02 / best["rate"]
    told = ranks > 1 and abs(1 - 1 / ranks - share) < rounded < 0.5 / (ranks * (ranks + 1))
    return ranks if told else 0
