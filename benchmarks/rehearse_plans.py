"""Fourteen winning plans of all kinds, one rank of each rehearsed on an H200: `python benchmarks/rehearse_plans.py`.

Without words: predictions beside what was measured. To measure again:

    plans          search the questions, and write the winners into data/h200_winning_plans.json
    write FOLDER   the program, a share for each plan, and run_all.sh, which needs torch and nothing else
    read FILE...   put results of run_all.sh into the data
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rehearse_ranks import print_table
from shardwise.api.planning import plan as search
from shardwise.estimate.estimate import estimate
from shardwise.estimate.predictions import RehearsedLine
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.strategy_text import complete, parse
from shardwise.measure.rehearse.compare import compare
from shardwise.measure.rehearse.program import PROGRAM
from shardwise.measure.rehearse.spec import spec_of
from shardwise.plan.plan import Plan
from shardwise.plan.predict import plan_of

DATA = Path(__file__).parent / "data" / "h200_winning_plans.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was asked; the batch is small, so that a rank is through in seconds."""

    kind: str
    model: str
    cluster: str
    batch: int
    seq: int = 4096
    runtime: str = "megatron"
    only: str = ""
    rank: int | None = None
    """None: the fullest; -1: the last."""


QUESTIONS = (
    Question(kind="dense, a node", model="llama-3-8b", cluster="8xh200", batch=32, seq=8192),
    Question(kind="dense, many nodes", model="llama-3-70b", cluster="64xh200", batch=64, seq=8192, only="zero<=1"),
    Question(kind="long context", model="llama-3-8b", cluster="32xh200", batch=4, seq=131072),
    Question(kind="long context, a ring", model="qwen3-14b", cluster="16xh200", batch=4, seq=65536, only="cp4:ring"),
    Question(kind="experts", model="qwen3-30b-a3b", cluster="32xh200", batch=256, only="ep>=4"),
    Question(kind="DeepSeek", model="deepseek-v3", cluster="512xh200", batch=512, rank=-1),
    Question(kind="FSDP", model="qwen3-14b", cluster="8xh200", batch=8, seq=8192, runtime="torchtitan",
             only="zero3 pp=1 tp=1 cp=1"),
    Question(kind="HSDP", model="llama-2-13b", cluster="32xh200", batch=64, runtime="torchtitan", only="zero3 hsdp8"),
    Question(kind="fp8", model="llama-3-70b", cluster="64xh200", batch=64, seq=8192, only="fp8 zero<=1"),
    Question(kind="compiled", model="llama-3-8b", cluster="8xh200", batch=16, seq=8192, runtime="torchtitan",
             only="compile pp=1 tp=1 cp=1"),
    Question(kind="adapters", model="llama-3-70b", cluster="8xh200", batch=16, only="lora16"),
    Question(kind="uneven chunks", model="deepseek-llm-67b", cluster="32xh200", batch=32, only="pp>=4 vpp>=2"),
    Question(kind="zero-bubble v", model="llama-2-70b", cluster="32xh200", batch=32, runtime="zero-bubble",
             only="schedule=zb-v"),
    Question(kind="Hugging Face", model="llama-3.2-3b", cluster="8xh200", batch=32, runtime="huggingface"),
    Question(kind="DeepSpeed", model="qwen2.5-14b", cluster="16xh200", batch=32, runtime="deepspeed"),
)  # fmt: skip

RUN_ALL = """#!/bin/bash
# Runs every share (or those named) with a limit each; results go into one file, $OUT/rehearsals.json.
cd "$(dirname "$0")"
OUT=${OUT:-.}
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
mkdir -p results
for spec in ${@:-specs/*.json}; do
  name=$(basename "$spec" .json)
  echo "== $name $(date +%T)"
  timeout ${LIMIT:-75} ${PYTHON:-python} shardwise_rehearse.py --spec specs/$name.json --out results/$name.json \\
    --repeats ${REPEATS:-2} --kernels 12 > results/$name.log 2>&1 || tail -4 results/$name.log
  ${PYTHON:-python} - "$OUT/rehearsals.json" <<'END'
import json, pathlib, sys
found = {one.stem: json.loads(one.read_text()) for one in sorted(pathlib.Path("results").glob("*.json"))}
for log in pathlib.Path("results").glob("*.log"):
    found.setdefault(log.stem, {"error": log.read_text()[-1500:]})
pathlib.Path(sys.argv[1]).write_text(json.dumps(found, indent=1))
END
done
"""


def main(words: list[str]) -> int:
    verb, rest = (words or ["table"])[0], words[1:]
    if verb == "plans":
        _save([_won(question) for question in QUESTIONS])
    elif verb == "write" and rest:
        write(Path(rest[0]))
    elif verb == "read" and rest:
        _save(_joined([Path(one) for one in rest]))
    elif verb == "table":
        table()
    else:
        sys.stderr.write(f"error: {' '.join(words)!r} is none of: plans, write FOLDER, read FILE...\n")
        return 2
    return 0


def _won(question: Question) -> dict[str, Any]:
    answer = search(
        question.model, question.cluster, global_batch=question.batch, seq=question.seq, runtime=question.runtime,
        only=question.only, time_limit=30.0,
    )  # fmt: skip
    best = answer.best
    if best is None:
        raise SystemExit(f"{question.kind}: nothing fits")
    totals = [one.total for one in best.memory]
    rank = totals.index(max(totals)) if question.rank is None else question.rank % len(totals)
    print(f"{question.kind}: {best.strategy}", flush=True)
    return {
        "kind": question.kind, "model": question.model, "cluster": question.cluster, "only": question.only,
        "strategy": str(best.strategy), "rank": rank,
    }  # fmt: skip


def _rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
    return found


def _save(rows: list[dict[str, Any]]) -> None:
    DATA.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


def _plan(row: dict[str, Any]) -> Plan:
    cluster = load_cluster(row["cluster"])
    return plan_of(estimate(load_model(row["model"]), cluster, complete(parse(row["strategy"]), cluster)))


def _name(row: dict[str, Any]) -> str:
    return str(row["kind"]).lower().replace(", ", "-").replace(" ", "-")


def write(folder: Path) -> None:
    """One program and a share for each plan: the program is the same for all."""
    (folder / "specs").mkdir(parents=True, exist_ok=True)
    shutil.copy(PROGRAM, folder)
    for row in _rows():
        (folder / "specs" / f"{_name(row)}.json").write_text(json.dumps(spec_of(_plan(row), row["rank"])))
    (folder / "run_all.sh").write_text(RUN_ALL, encoding="utf-8")


def _joined(paths: list[Path]) -> list[dict[str, Any]]:
    results: dict[str, Any] = {}
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        results |= {path.stem: found} if "schema" in found else found
    rows = _rows()
    for row in rows:
        if _name(row) in results:
            row["result"] = results[_name(row)]
    return rows


def table() -> None:
    found: list[tuple[str, dict[str, RehearsedLine]]] = []
    for row in _rows():
        result = row.get("result", {"error": "not run yet"})
        if "error" in result:
            print(f"{row['kind']}: {str(result['error']).strip().splitlines()[-1]}")
            continue
        lines = {line.what: line for line in compare(_plan(row), result)}
        found.append((f"{row['kind']}: {row['model']} {row['strategy']}, pp{row['rank']}", lines))
    if found:
        print_table(found)
        memory = [abs(lines["peak"].error) for _, lines in found]
        seconds = [abs(lines["iteration of the rank alone"].error) for _, lines in found if "all passes" in lines]
        told = f"{len(found)} of {len(_rows())} built; memory {100 * max(memory):.1f}% at most"
        print(told + (f", time {100 * fmean(seconds):.1f}% on average" if seconds else ""))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
