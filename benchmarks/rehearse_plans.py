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
from dataclasses import dataclass, replace
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
    cut: int = 0
    """Samples that are rehearsed, where that is not the whole batch."""


QUESTIONS = (
    Question(kind="dense, a node", model="llama-3-8b", cluster="8xh200", batch=32, seq=8192, cut=16),
    Question(kind="dense, many nodes", model="llama-3-70b", cluster="64xh200", batch=64, seq=8192, only="zero<=1",
             cut=32),
    Question(kind="long context", model="llama-3-8b", cluster="32xh200", batch=4, seq=131072),
    Question(kind="long context, a ring", model="qwen3-14b", cluster="16xh200", batch=4, seq=65536, only="cp4:ring",
             cut=2),
    Question(kind="experts", model="qwen3-30b-a3b", cluster="32xh200", batch=256, only="ep>=4", cut=128),
    Question(kind="DeepSeek", model="deepseek-v3", cluster="512xh200", batch=512, rank=-1),
    Question(kind="FSDP", model="qwen3-14b", cluster="8xh200", batch=8, seq=8192, runtime="torchtitan",
             only="zero3 pp=1 tp=1 cp=1 eager"),
    Question(kind="HSDP", model="llama-2-13b", cluster="32xh200", batch=64, runtime="torchtitan",
             only="zero3 hsdp8 eager"),
    Question(kind="fp8", model="llama-3-70b", cluster="64xh200", batch=64, seq=8192, only="fp8 zero<=1", cut=32),
    Question(kind="compiled", model="llama-3-8b", cluster="8xh200", batch=16, seq=8192, runtime="torchtitan",
             only="compile pp=1 tp=1 cp=1"),
    Question(kind="adapters", model="llama-3-70b", cluster="8xh200", batch=16, only="lora16", cut=8),
    Question(kind="uneven chunks", model="deepseek-llm-67b", cluster="32xh200", batch=32, only="pp>=4 vpp>=2", cut=16),
    Question(kind="zero-bubble v", model="llama-2-70b", cluster="32xh200", batch=32, runtime="zero-bubble",
             only="schedule=zb-v"),
    Question(kind="Hugging Face", model="llama-3.2-3b", cluster="8xh200", batch=32, runtime="huggingface",
             only="eager"),
    Question(kind="DeepSpeed", model="qwen2.5-14b", cluster="16xh200", batch=32, runtime="deepspeed"),
)  # fmt: skip

RUN_ALL = """#!/bin/bash
# Runs the shares in the order of order.json (or those named); results go into one file, $OUT/rehearsals.json.
cd "$(dirname "$0")" && export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
exec ${PYTHON:-python} run_all.py "$@"
"""
DRIVER = """import gc, json, os, pathlib, signal, sys, time, torch
import shardwise_rehearse as program

out = pathlib.Path(os.environ.get("OUT", ".")) / "rehearsals.json"
names = sys.argv[1:] or json.loads(pathlib.Path("order.json").read_text())
limit, repeats, ends = int(os.environ.get("LIMIT", "40")), int(os.environ.get("REPEATS", "1")), os.environ.get("ENDS")
device = os.environ.get("DEVICE", "cuda")
ends = float(ends or time.time() + float(os.environ.get("BUDGET", "280")))


def late(*_):
    raise TimeoutError(f"took longer than {limit} s")


signal.signal(signal.SIGALRM, late)
for index, name in enumerate(names):
    if time.time() > ends:
        break
    began, lost, before = time.time(), False, torch.cuda.memory_allocated()
    try:
        signal.alarm(limit)
        result = program.rehearse(json.loads(pathlib.Path(f"specs/{name}.json").read_text()), device, repeats, 0)
    except Exception as error:
        result, lost = {"error": f"{type(error).__name__}: {error}"[-1500:]}, "CUDA error" in str(error)
    signal.alarm(0)
    result |= {"run_seconds": round(time.time() - began, 1), "allocated_before": before}
    found = json.loads(out.read_text()) if out.is_file() else {}
    out.write_text(json.dumps({**found, name: result}, indent=1))
    print(name, result["run_seconds"], "s", result.get("error", result.get("seconds")), flush=True)
    if lost and names[index + 1 :]:  # nothing more runs in this process
        os.environ["ENDS"] = str(ends)
        os.execv(sys.executable, [sys.executable, "run_all.py", *names[index + 1 :]])
    gc.collect()
    torch.cuda.empty_cache()
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
    strategy = replace(best.strategy, global_batch=question.cut or question.batch)
    print(f"{question.kind}: {strategy}", flush=True)
    return {
        "kind": question.kind, "model": question.model, "cluster": question.cluster, "only": question.only,
        "strategy": str(strategy), "rank": rank,
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
    names = [_name(row) for row in sorted(_rows(), key=lambda row: "result" in row)]
    for name, text in (("run_all.sh", RUN_ALL), ("run_all.py", DRIVER), ("order.json", json.dumps(names))):
        (folder / name).write_text(text, encoding="utf-8")


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
