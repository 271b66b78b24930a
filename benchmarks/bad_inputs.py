"""Thousands of bad and odd inputs over all verbs, their files, other tools' files and the page's functions.

    python benchmarks/bad_inputs.py                       all of them, on this tree
    python benchmarks/bad_inputs.py --src OTHER/src       on another source tree
    python benchmarks/bad_inputs.py --sample 200          a part, spread over all kinds

Each runs in a child of its own, forked from a warm parent, with limits. A case fails when the program ends otherwise
than by 0, 1, 2 or 130 or prints a traceback, takes over 60 CPU seconds or 4 GB, waits for something that never comes,
refuses what is sound, or accepts in silence what cannot be meant: what is accepted must be justified by its rule
(`bad_inputs_cases.py`). The cases are the same every time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import bad_inputs_cases as cases  # noqa: E402 - after the path
import bad_inputs_contents as contents  # noqa: E402
import bad_inputs_lines as lines  # noqa: E402
from bad_inputs_cases import EITHER, NAMED, VALID, Case  # noqa: E402

CPU_SECONDS, WALL_SECONDS, MEMORY = 60, 150, 4 * 2**30
ADDRESSES = 24 * 2**30
"""Beyond this the child is stopped by the system; what counts is what it really holds."""
FAULTS = {
    "exit": "ended by a fault of its own (exit 70, or a signal)",
    "silent": "accepted what cannot be meant, in silence",
    "hang": "waited, or went on, without end",
    "memory": "took over 4 GB",
    "strict": "refused what is sound",
}
FINDINGS = {
    "10 importers guess": lambda case, fault: case.group == "importer" and fault == "silent",
    "11 unit slips pass": lambda case, fault: (
        case.group in {"file", "option", "only", "words", "web"} and fault == "silent"
    ),
    "12 exits 70": lambda _, fault: fault == "exit",
    "13 hangs": lambda _, fault: fault in {"hang", "memory"},
}


class Outcome(NamedTuple):
    """What became of a case."""

    case: Case
    code: int
    fault: str
    """A key of FAULTS; empty: it is as it must be."""
    seconds: float
    bytes: int
    said: str


def all_cases(sound: dict[str, str], seed: int = 13, draws: int = 600) -> list[Case]:
    """Every case, in a fixed order."""
    return [
        *cases.planned(json.loads(sound["planned.json"])),
        *cases.spoilt_files(), *cases.strange_shapes(), *cases.web_cases(), *cases.random_spoils(seed, draws),
        *lines.options(), *lines.typed_strategies(), *lines.conditions(), *lines.places(), *contents.contents(),
    ]  # fmt: skip


def sampled(every: Sequence[Case], count: int) -> list[Case]:
    """So many of them, evenly spread, but none of those that take long on purpose."""
    quick = [case for case in every if case.group != "hang" and case.words[0] not in {"estimate", "what-if", "sweep"}]
    return [quick[round(index * (len(quick) - 1) / (count - 1))] for index in range(count)]


def written(folder: Path, held: dict[str, Any], sound: dict[str, str]) -> None:
    """The files of a case."""
    for name, content in held.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif content == name:
            path.write_text(sound[name])
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def run_case(case: Case, sound: dict[str, str]) -> Outcome:
    """Run a case in a child and judge it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        held = {key: value for key, value in case.files.items() if key != "body"}
        written(folder, held, sound)
        child = os.fork()
        if child == 0:
            _in_child(case, folder)
        _, status, used = os.wait4(child, 0)
        said = (folder / ".said").read_text(errors="replace") if (folder / ".said").exists() else ""
    code = os.waitstatus_to_exitcode(status)
    seconds = used.ru_utime + used.ru_stime
    return Outcome(
        case, code, judged(case, code, said, seconds, used.ru_maxrss * 1024), seconds, used.ru_maxrss * 1024, said
    )


def _in_child(case: Case, folder: Path) -> None:
    """Never returns."""
    code = 70
    try:
        os.chdir(folder)
        os.environ["SHARDWISE_HOME"] = "home"
        descriptor = os.open(".said", os.O_WRONLY | os.O_CREAT, 0o600)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WALL_SECONDS if case.group != "place" else 20)
        code = _answered(case)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the program's
        print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _answered(case: Case) -> int:
    from shardwise.cli.main import run

    if case.group != "web":
        return run(list(case.words))
    from shardwise.errors import ShardwiseError
    from shardwise.web import answers

    try:
        getattr(answers, case.words[0])(json.dumps(case.files["body"]).encode())
    except ShardwiseError as error:
        print(error)
        return error.exit_code
    return 0


def judged(case: Case, code: int, said: str, seconds: float, size: int) -> str:
    """What is wrong with an outcome."""
    if code in {-signal.SIGALRM, -signal.SIGXCPU, -signal.SIGKILL} or seconds > CPU_SECONDS:
        return "hang"
    if size > MEMORY:
        return "memory"
    if code not in {0, 1, 2, 130} or "Traceback" in said or "unexpected error" in said:
        return "exit"
    if case.rule == VALID:
        return "strict" if code == 2 else ""
    if code == 2 or case.rule == EITHER:
        return ""
    named = case.rule == NAMED and case.key and _flat(case.key) in _flat(_notes(said))
    return "" if named else "silent"


def _notes(said: str) -> str:
    """What is told beside the answer; a sweep tells it in its table."""
    return "\n".join(line for line in said.splitlines() if "note:" in line or " faults" in line or "-  " in line)


def _flat(text: str) -> str:
    return text.lower().replace("-", "").replace("_", "")


def warm(source: Path) -> dict[str, str]:
    """Import what every case needs once, and write the files that only the program can write."""
    sys.path.insert(0, str(source))
    import importlib

    from shardwise.api import plan as search
    from shardwise.cli.program import VERBS
    from shardwise.errors import InputError
    from shardwise.frameworks.load import load_cluster, load_model, model_from, read_cluster
    from shardwise.inputs.calibration import Calibration
    from shardwise.inputs.cluster import Cluster
    from shardwise.inputs.runtime import Runtime
    from shardwise.inputs.strategy import Strategy
    from shardwise.inputs.typed import validated
    from shardwise.pipeline.generate import generate
    from shardwise.plan.file import plan_text
    from shardwise.plan.plan import Plan
    from shardwise.search.api import plan_file_of

    assert Path(sys.modules["shardwise"].__file__ or "").is_relative_to(source), "another shardwise is in the way"
    for module, _ in VERBS.values():
        importlib.import_module(module)
    for module in ("yaml", "numpy", "pydantic", "highspy", "shardwise.web.answers", "shardwise.search.api"):
        importlib.import_module(module)
    load_model("llama-3.2-1b")
    small = model_from(dict(cases.SOUND["small.json"]), Path("small.json")).value
    for kind, data in ((Cluster, {}), (Strategy, {}), (Runtime, {}), (Calibration, {})):
        with contextlib.suppress(InputError):
            validated(kind, data)  # what checks files is made once
    plan = Plan(model=small, cluster=load_cluster("16xh100"), strategy=Strategy.parse("tp2 dp8 gbs16 seq1024"))
    read_cluster("8xascend-910b")
    found = search(small, load_cluster("16xh100"), global_batch=16, seq=1024, only="pp=2 tp=2", gap=0.3)
    return {
        "h100.json": plan_text(plan),
        "planned.json": plan_text(plan_file_of(found)),
        "sound.csv": generate("1f1b", pp=2, vpp=1, microbatches=4).csv(),
    }


def run_all(every: Sequence[Case], sound: dict[str, str], *, progress: bool = False) -> list[Outcome]:
    outcomes = []
    for number, case in enumerate(every, 1):
        outcomes.append(run_case(case, sound))
        if progress and outcomes[-1].fault:
            print(line_of(outcomes[-1]), flush=True)
        if progress and number % 200 == 0:
            bad = sum(bool(one.fault) for one in outcomes)
            print(f"\r{number:,} of {len(every):,}, {bad} faults", end="", file=sys.stderr, flush=True)
    if progress:
        print(file=sys.stderr)
    return outcomes


def line_of(one: Outcome) -> str:
    """A fault, with the end of what was said."""
    return f"{one.fault:<7}{one.code:>4} {one.case.group}: {one.case.name}: {' '.join(one.said.split())[-160:]}"


def report(outcomes: Sequence[Outcome]) -> None:
    """The table by group and fault, and by finding."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in outcomes:
        counts[one.case.group][one.fault or f"exit {one.code}"] += 1
    columns = ["exit 0", "exit 1", "exit 2", "exit 130", *FAULTS]
    print(f"{'group':<10}{'cases':>7}" + "".join(f"{name:>9}" for name in columns))
    for group, found in counts.items():
        print(f"{group:<10}{sum(found.values()):>7,}" + "".join(f"{found[name]:>9,}" for name in columns))
    for name, meant in FINDINGS.items():
        print(f"finding {name:<22}{sum(bool(one.fault) and meant(one.case, one.fault) for one in outcomes):>7,}")
    most, slowest = max(one.bytes for one in outcomes), max(outcomes, key=lambda one: one.seconds)
    print(f"largest {most / 2**30:.2f} GiB, slowest {slowest.seconds:.1f} CPU s ({slowest.case.name})")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--src", type=Path, default=HERE.parent / "src", help="the source tree to try")
    options.add_argument("--sample", type=int, default=0, help="so many cases, spread over all; 0: all")
    options.add_argument("--only", default="", help="cases whose group or name holds this")
    asked = options.parse_args()
    sound = warm(asked.src.resolve())
    every = [case for case in all_cases(sound) if asked.only in f"{case.group} {case.name}"]
    began = time.monotonic()
    outcomes = run_all(sampled(every, asked.sample) if asked.sample else every, sound, progress=True)
    report(outcomes)
    bad = sum(bool(one.fault) for one in outcomes)
    print(f"{len(outcomes):,} cases, {bad:,} faults, {time.monotonic() - began:.0f} s")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
