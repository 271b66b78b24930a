"""Cases of `bad_inputs.py` that are typed: options, strategies in a line, conditions, and places for files."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from bad_inputs_cases import EITHER, LONG, NAMED, REFUSED, SOUND, WORDS, Case

ASK = ("llama-3.2-1b", "-c", "8xh100")
PLAN = ("plan", *ASK, "--global-batch", "8", "--seq", "4096", "--only", "tp=1 pp=1 cp=1 zero1 mbs=1 recompute=none")
SCHEDULE = ("schedule", "auto", "--pp", "2", "--microbatches", "4", "--costs", "1,1,1", "--effort", "0.01")
SWEEP = ("sweep", "llama-3.2-1b", "-c", "8xh100", "--global-batch", "8", "--seq", "4096", "--tokens", "1T", "--only",
         "tp=1 pp=1 cp=1 zero1 mbs=1 recompute=none")  # fmt: skip
PER_OP = ("plan-operators", *ASK, "--global-batch", "8", "--show-start")
BALANCE = ("balance", "--problem", "sound_problem.json", "--time-limit", "1", "--effort", "0.01")
QUICK = ("balance", "quick", "-s", "2", "-l", "8", "-mem", "60000", "--layer", "1000", "--kept", "100")
WHAT_IF = ("what-if", "h100.json", "--gap", "20%")
CHECK = ("check", *ASK)
CALIBRATE = ("calibrate", "--trace", "trace.json", "--plan", "h100.json", "--name", "ours", "--dry-run")
TRACE = {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 2e4, "pid": 0}]}
Line = tuple[str, tuple[str, ...], dict[str, str]]

# A verb's words, and its options with the kind of their value; options that are there are replaced.
OPTIONS: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
    (CHECK, {f"--{name}": "whole" for name in (
        "tp", "pp", "vpp", "dp", "cp", "ep", "etp", "zero", "zero-group", "micro-batch", "global-batch", "seq", "group",
        "first-layers", "last-layers", "microbatches", "tensor-model-parallel-size",
        "num-layers-per-virtual-pipeline-stage",
    )}),
    (CHECK, {"--straggler": "number", "--schedule": "word", "--cp-kind": "word", "--placement": "word",
    "--dtype": "word",
             "--master": "word", "--optimizer": "word", "--offload": "word", "--recompute": "word", "--lora": "form",
             "--layers": "word", "--runtime": "word", "--grad-dtype": "word"}),
    (PLAN, {"--global-batch": "whole", "--seq": "whole", "--gap": "number", "--time": "quantity", "--top": "whole",
            "--workers": "whole", "--memory-margin": "quantity", "--memory": "quantity", "--runtime": "word"}),
    (PER_OP, {"--global-batch": "whole", "--gpus": "whole", "--gpus-per-node": "whole", "--memory": "quantity",
              "--microbatches": "whole", "--seq": "whole", "--stages": "whole", "--most-tp": "whole", "--zero": "whole",
              "--p2p-overlap": "number", "--hops": "whole", "--trials": "whole", "--time-limit": "quantity",
              "--best": "whole", "--layers": "whole", "--start": "word", "--method": "word"}),
    (SWEEP, {"--global-batch": "whole", "--seq": "whole", "--gap": "number", "--tokens": "quantity",
    "--price": "number",
             "--mtbf": "quantity", "--checkpoint": "quantity", "--store": "quantity", "-c": "word"}),
    (WHAT_IF, {"--gpus": "whole", "--net": "quantity", "--memory": "quantity", "--gap": "number"}),
    (SCHEDULE, {"--pp": "whole", "--vpp": "whole", "--microbatches": "whole", "--hop": "number", "--effort": "number",
                "--free-at-input-grad": "number", "--group": "whole", "--splits": "whole", "--time-limit": "number",
                "--memory-limit": "number", "--costs": "number", "--placement": "word", "--objective": "word"}),
    (("simulate", "sound.csv", "--costs", "1,1,1"), {"--hop": "number", "--free-at-input-grad": "number",
     "--memory-limit": "number", "--costs": "number"}),
    (BALANCE, {"--pp": "whole", "--vpp": "whole", "--microbatches": "whole", "--memory": "numbers",
    "--seq-split": "whole",
               "--hop": "number", "--seed": "whole", "--effort": "number", "--time-limit": "number", "--naive": "whole",
               "--low-memory": "whole", "--empty": "whole", "--schedule": "word"}),
    (QUICK, {"-s": "whole", "-l": "whole", "-mem": "number", "--layer": "number", "--kept": "number",
             "--recomputed": "number", "--head-memory": "number", "--tail-memory": "number", "--head": "number",
             "--tail": "number"}),
    (("balance", "guide", "--stages", "4", "--layers", "8", "--full"), {"--stages": "whole", "--layers": "whole",
     "--rounds": "whole", "--seed": "whole"}),
    (("balance", "dryrun", "python x", "--ranks", "8", "--stages", "2"), {"--ranks": "whole", "--stages": "whole"}),
    (CALIBRATE, {"--steps": "whole", "--base": "word"}),
    (("rehearse", "h100.json", "--rank", "pp0", "--write", "out.py"), {"--rank": "whole", "--repeats": "whole"}),
    (("export", "h100.json", "--out", "out"), {"--to": "word"}),
    (("clusters",), {"": "word"}),
    (("models",), {"": "word"}),
    (("probe", "--write", "out.py"), {"--minutes": "number", "--device": "word"}),
    (("serve",), {"--port": "whole", "--searches": "whole"}),
)  # fmt: skip
# Plain and odd numbers that are sound: accepted, or refused for what they mean together with the rest.
SOUND_WORDS = ("8", " 8 ", "+8", "08")
HANGS = (
    (*PLAN[:4], "--global-batch", "1" + "0" * 18, "--time", "20s"),
    (*WHAT_IF[:2], "--gpus", "9" * 9),
    (*SCHEDULE[:-2], "--hop", "1e308", "--time-limit", "5"),
    ("schedule", "1f1b", "--pp", "1000000", "--microbatches", "4", "--costs", "1,1,1"),
)


def _files(words: tuple[str, ...]) -> dict[str, object]:
    held: dict[str, object] = {name: name for name in words if name in {"h100.json", "sound.csv"}}
    if "sound_problem.json" in words:
        held["sound_problem.json"] = SOUND["sound_problem.json"]
    return held | ({"trace.json": TRACE} if "trace.json" in words else {})


def _with(words: tuple[str, ...], option: str, value: str) -> tuple[str, ...]:
    if option in words:
        at = words.index(option)
        return (*words[: at + 1], value, *words[at + 2 :])
    return (*words, option, value) if option else (*words, value)


def options() -> Iterator[Case]:
    """Every option with every odd word of its kind."""
    for words, kinds in OPTIONS:
        for option, kind in kinds.items():
            for value in WORDS[kind]:
                name = f"{words[0]} {option} {value[:24]}"
                yield Case(name=name, group="option", words=_with(words, option, value), files=_files(words))
            if kind == "whole" and words[0] not in {"serve", "balance"}:
                for value in SOUND_WORDS:
                    made = _with(words, option, value)
                    yield Case(
                        name=f"{words[0]} {option} {value!r}",
                        group="option",
                        words=made,
                        files=_files(words),
                        rule=EITHER,
                    )
    for words in HANGS:
        yield Case(name=" ".join(words)[:60], group="hang", words=words, files=_files(words), rule=EITHER)


NUMBERS = ("tp", "pp", "vpp", "dp", "cp", "ep", "etp", "zero", "hsdp", "mbs", "gbs", "seq", "group", "first", "last")
ODD = ("-1", "²", "٣", "1.5", "x", LONG, "1e3", "")
LINES = (
    "tp0", "pp0", "vpp0", "dp0", "cp0", "ep0", "etp0", "mbs0", "gbs0", "seq0", "zero4", "hsdp=-8", "pp0x2", "pp2x0",
    "pp1x99999", "pp²x2", "cp2:foo", "cp2:", "lora0", "lora-1", "lora8:foo", "lora²", "layers=", "layers=x",
    "layers=1,,2",
    "layers=-1,17", "layers=²", "recompute=foo", "recompute=full:99999999999", "recompute=full:[²]", "recompute=full/0",
    "recompute=", "straggler0", "straggler0.5", "stragglernan", "stragglerinf", "straggler1e400", "straggler99",
    "placement=w", "runtime=zzz", "zzz", "tp8 tp4", "fp99", "microbatches=0", "tp8:ring", "1f1b zb-v",
)  # fmt: skip
CONDITIONS = (
    "sp=maybe", "sp=2", "sp=", "cp_kind=foo", "cp_kind=", "mbs=0", "mbs=-1", "gbs=4", "seq=5", "microbatches=3", "tp=0",
    "tp<=0", "tp=x", "tp=²", "tp=٣", "tp=1.5", "tp=1,,2", "tp==2", "tp<>2", "foo=1", "foo<=1", "zero=9", "zero=-1",
    "hsdp=-8", "schedule=zzz", "schedule=", "recompute=zzz", "recompute=full:[1,x]", "layers=1,2", "first=3", "vpp=0",
    "ep=0", "etp=0", "dp=0", "cp=0", "pp=0", f"tp={LONG}", "tp=1e3", "mbs=nan", "zzz", "tp<=", "<=8", "=", "tp=True",
    "straggler=nan", "lora=0", "placement=w", "dtype=zzz", "placement=v", "count-head",
)  # fmt: skip


def typed_strategies() -> Iterator[Case]:
    """Strategies in a line, for `check` and for `why`."""
    lines = [*LINES, *(f"{word}{value}" for word in NUMBERS for value in ODD)]
    for line in lines:
        yield Case(name=f"check -s {line[:30]}", group="words", words=(*CHECK, "-s", line))
        yield Case(
            name=f"why {line[:30]}", group="words", words=("why", "h100.json", line), files={"h100.json": "h100.json"},
        )  # fmt: skip


def conditions() -> Iterator[Case]:
    for word in CONDITIONS:
        for option in ("--only", "--fix"):
            words = ("plan", *ASK, "--global-batch", "8", "--seq", "4096", "--gap", "50%", option, word)
            yield Case(name=f"plan {option} {word[:30]}", group="only", words=words)
        yield Case(name=f"sweep --only {word[:30]}", group="only", words=(*SWEEP[:-1], word), rule=NAMED, key=word[:8])


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def _link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


PLACES = (
    ("check", "FILE", "-c", "8xh100"), ("check", "llama-3.2-1b", "-c", "FILE"), (*CHECK, "-s", "FILE"),
    ("check", "-c", "8xh100", "--from", "FILE"), (*CHECK, "--runtime", "FILE"), ("show", "FILE"), ("why", "FILE",
    "tp4"),
    ("diff", "FILE", "FILE"), ("what-if", "FILE", "--gpus", "8"), ("export", "FILE", "--to", "megatron@main",
    "--out", "o"),
    ("rehearse", "FILE", "--write", "o.py"), ("rehearse", "h100.json", "--read", "FILE"), ("plan", "FILE"),
    ("simulate", "FILE", "--costs", "1,1,1"), (*SCHEDULE[:6], "--costs", "FILE"), ("schedule", "auto", "--plan",
    "FILE"),
    ("balance", "--problem", "FILE"), ("balance", "--init", "FILE"), (*BALANCE, "--manual", "FILE"),
    (*BALANCE, "--plan", "FILE", "--write-plan", "o.json"), ("balance", "-m", "FILE"),
    ("balance", "--init", "FILE", "-train", "FILE", "-seq", "2"), ("calibrate", "FILE", "--name", "ours"),
    (*CALIBRATE[:1], "--trace", "FILE", *CALIBRATE[3:]), (*CALIBRATE[:1], "--log", "FILE", *CALIBRATE[3:]),
    (*CALIBRATE[:1], "--snapshot", "FILE", *CALIBRATE[3:]), ("calibrate", "--log", "x.log", "--plan", "FILE",
    "--name", "o"),
    ("validate", "--data", "FILE"), (*PER_OP, "--profiles", "FILE"), (*PER_OP, "--start", "FILE"),
    ("plan-operators", "--profiles", "FILE", "--gpus", "8", "--memory", "28000MiB"),
)  # fmt: skip
NO_FILES: dict[str, object] = {
    "file.json": _fifo, "pipe.json.gz": _fifo, "socket.json": _socket, "zero.json": _link("/dev/zero"),
    "random.json": _link("/dev/urandom"), "loop.json": _link("loop.json"), "gone.json": _link("nowhere"),
    "folder.json": lambda path: path.mkdir(), "full.json": _link("/dev/full"), "tty.json": _link("/dev/null"),
}  # fmt: skip
NAMES = ("/dev/zero", "/dev/stdin", "nowhere.json", "", "\x00.json", "x" * 5000 + ".json", ".", "/proc/self/mem")


def places() -> Iterator[Case]:
    """Where a file is wanted: pipes, devices, sockets, circles of links, folders, nothing at all."""
    for words in PLACES:
        which = " ".join(words)[:50]
        for name, made in NO_FILES.items():
            named = tuple(name if word == "FILE" else word for word in words)
            yield Case(name=f"{which} <- {name}", group="place", words=named, files={**_files(words), name: made})
        for name in NAMES:
            named = tuple(name if word == "FILE" else word for word in words)
            yield Case(
                name=f"{which} <- {name[:20]!r}", group="place", words=named, files=_files(words), rule=_of(words, name)
            )


def _of(words: tuple[str, ...], name: str) -> str:
    """An empty name is sometimes an option left out; "." is a folder, which profiles may be in."""
    return EITHER if name in {"", "."} and words[0] in {"check", "plan", "balance", "calibrate"} else REFUSED
