"""The cases of `bad_inputs.py`: every sound file with every value spoilt, every option with every odd word, every place
for a file with what is no file. Each case says what must become of it and, where it may be accepted, by which rule.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import bad_inputs_files as files
from bad_inputs_files import Leaf

NAN, ENDLESS, LONG = math.nan, math.inf, "9" * 400
HUGE = 10**400
REFUSED = "refused"
NAMED = "refused, or a note names it"
VALID = "a sound input: accepted"
EITHER = "odd but sound: accepted or refused"

# What is wrong wherever a value of that kind is wanted, in a file and as a word.
BAD: dict[str, tuple[Any, ...]] = {
    "whole": (-1, 2.5, "x", "²", True, [], {"a": 1}, HUGE, 1e300, "nan", NAN, -(10**18)),
    "open": (-2, 2.5, "x", True, [], {"a": 1}, HUGE, NAN),
    "flag": (-1, 2, 0.5, "maybe", [], {"a": 1}, NAN),
    "number": ("x", "nan", NAN, ENDLESS, True, [], {"a": 1}, -1e18, HUGE, 1e19),
    "switch": ("maybe", "false", 2, [], {"a": 1}, NAN),
    "word": ("zzz", 7, [], {"a": 1}, True, NAN),
    "quantity": (-5, "5 parsecs", "1e99TB", NAN, [], True, {"a": 1}, HUGE, "slip"),
    "text": ([1], {"a": 1}),
}
WORDS: dict[str, tuple[str, ...]] = {
    "whole": ("-1", "2.5", "x", "²", "٣", LONG, "nan", "1e3", "0x10", "1 2", "1_000", "∞", "True"),
    "open": ("2.5", "x", "²", LONG, "nan"),
    "number": ("x", "nan", "inf", "-inf", "1e400", "-1e18", LONG, "²", "1,5", "0x1p3"),
    "numbers": ("x", "nan", "inf", "1e400", "-1e18", LONG, "²", "1,,5", "1;5"),
    "word": ("zzz", "²", "7"),
    "form": ("zzz", "²", "-7"),
    "quantity": ("x", "nan", "-5GB", "5 parsecs", "²GB", "1e400GB", LONG),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input."""

    name: str
    group: str
    """Where it goes in: `file`, `importer`, `option`, `words`, `only`, `place`, `shape`, `web`."""
    words: tuple[str, ...]
    """The command line; of `web` the function and the key of its body in `files`."""
    files: dict[str, Any] = field(default_factory=dict)
    """Name -> what the file holds: a value for JSON, text, bytes, or a maker of something that is no file."""
    rule: str = REFUSED
    key: str = ""
    """What a note that names the value would hold."""


@dataclass(frozen=True)
class Form:
    """A sound file, the command that reads it, and the files beside it."""

    name: str
    group: str
    file: str
    data: Any
    line: str
    """The command, a word after the other."""
    beside: tuple[str, ...] = ()
    write: Callable[[Any], Any] = lambda data: data
    every: int = 1
    """Of the bad values of a place, every so many are tried: a plan's inputs are tried by themselves, too."""
    sound: bool = True
    """The command answers; else it refuses the file in any case, and only how is looked at."""

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.line.split())


def plain(data: Any) -> Any:
    """A template without its marks."""
    if isinstance(data, Leaf):
        return data.value
    if isinstance(data, dict):
        return {key: plain(value) for key, value in data.items()}
    return [plain(value) for value in data] if isinstance(data, list) else data


def leaves(data: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Leaf]]:
    if isinstance(data, Leaf):
        yield way, data
    elif isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(value, (*way, key))


def changed(data: Any, way: tuple[Any, ...], value: Any) -> Any:
    made = json.loads(json.dumps(plain(data)))
    place = made
    for key in way[:-1]:
        place = place[key]
    place[way[-1]] = value
    return made


def script(data: dict[str, Any]) -> str:
    """Megatron's flags as a launch script."""
    return "torchrun pretrain_gpt.py " + " ".join(
        f"--{flag}" if value is None else f"--{flag} '{value}'" for flag, value in data.items()
    )


def toml(data: dict[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(data).replace("[gpus.my-gpu]", '[gpus."my-gpu"]')


_LEVELS = files.CLUSTER["levels"]
PLAN = {
    "schema": "shardwise/plan/1",
    "inputs": {
        "model": files.MODEL,
        "cluster": {**files.CLUSTER, "levels": [_LEVELS[0], {**_LEVELS[1], "size": files.W(16)}]},
        "strategy": files.STRATEGY,
    },
}
ASK = "-c 16xh100 --global-batch 16 --seq 128"
SCHEDULE = "schedule auto --pp 2 --vpp 2 --microbatches 4 --effort 0.01 --costs"
BALANCE = "balance --time-limit 1 --effort 0.01"
CALIBRATE = "calibrate --plan h100.json --name ours --dry-run"
SIMUMAX = "check model.json -c system.json -s strategy.json"
SMALL, RUN = ("small.json",), ("h100.json",)
FORMS = (
    Form("model", "file", "model.json", files.MODEL, f"check model.json {ASK}"),
    Form("model with MLA", "file", "model.json", files.MLA_MODEL, f"check model.json {ASK}"),
    Form("cluster", "file", "cluster.json", files.CLUSTER,
         "check llama-3.2-1b -c cluster.json --global-batch 16 --seq 128"),
    Form("strategy", "file", "strategy.json", files.STRATEGY, "check small.json -c 16xh100 -s strategy.json", SMALL),
    Form("runtime", "file", "runtime.json", files.RUNTIME, f"check llama-3.2-1b {ASK} --runtime runtime.json"),
    Form("plan", "file", "plan.json", PLAN, "show plan.json", every=4),
    Form("costs", "file", "costs.json", files.COSTS, f"{SCHEDULE} costs.json"),
    Form("problem", "file", "problem.json", files.PROBLEM, f"{BALANCE} --problem problem.json"),
    Form("init", "file", "init.json", files.INIT, f"{BALANCE} --init init.json -s 16 -mb 16 -mem 62000", every=4),
    Form("manual", "file", "manual.json", files.MANUAL,
         f"{BALANCE} --problem sound_problem.json --manual manual.json", ("sound_problem.json",)),
    Form("trace", "file", "trace.json", files.TRACE, f"{CALIBRATE} --trace trace.json", RUN),
    Form("snapshot", "file", "snapshot.json", files.SNAPSHOT, f"{CALIBRATE} --snapshot snapshot.json", RUN),
    Form("probe", "file", "probe.json", files.PROBE, "calibrate probe.json --name ours --dry-run"),
    Form("operators", "file", "operators.json", files.OPERATORS,
         "plan-operators llama-3.2-1b -c 8xh100 --profiles operators.json", sound=False),
    Form("own GPU", "file", "home/gpus/my-gpu.toml", files.GPU_HOME,
         "check llama-3.2-1b -c 16xmy-gpu --global-batch 16", write=toml),
    Form("own calibration", "file", "home/calibrations/mine.toml", files.CALIBRATION_HOME,
         "estimate small.json -c mine.json --global-batch 16 --seq 128", ("small.json", "mine.json"), toml),
    Form("Hugging Face", "importer", "config.json", files.HUGGINGFACE, f"check config.json {ASK}"),
    Form("SimuMax model", "importer", "model.json", files.SIMUMAX_MODEL, SIMUMAX, ("system.json", "strategy.json")),
    Form("SimuMax strategy", "importer", "strategy.json", files.SIMUMAX_STRATEGY, SIMUMAX, ("system.json",
    "model.json")),
    Form("SimuMax system", "importer", "system.json", files.SIMUMAX_SYSTEM, SIMUMAX, ("strategy.json", "model.json")),
    Form("Megatron", "importer", "run.sh", files.MEGATRON, "check --from run.sh -c 16xh100", write=script),
    Form("torchtitan", "importer", "titan.json", files.TORCHTITAN, "check --from titan.json -c 8xh100"),
    Form("DeepSpeed", "importer", "ds.json", files.DEEPSPEED, "check small.json --from ds.json -c 8xh100 --seq 128",
    SMALL),
    Form("MindFormers", "importer", "mf.json", files.MINDFORMERS, "check --from mf.json -c 8xascend-910b"),
)  # fmt: skip
SOUND = {
    "small.json": {key: value for key, value in plain(files.MODEL).items() if key not in {"moe", "dropout"}},
    "sound_problem.json": plain(files.PROBLEM),
    "model.json": plain(files.SIMUMAX_MODEL),
    "strategy.json": plain(files.SIMUMAX_STRATEGY),
    "system.json": plain(files.SIMUMAX_SYSTEM),
    "mine.json": {"gpus": 16, "gpu": {"base": "h100", "calibration": "mine"}},
}
"""Files that stand beside a spoilt one; `h100.json`, a plan on 16 H100s, is written by the program itself."""


def _slip(text: str) -> float:
    """`989TFLOPS` -> 989: the unit left out."""
    return float("".join(letter for letter in text if letter in "0123456789."))


def _beside(form: Form) -> dict[str, Any]:
    return {name: SOUND.get(name, name) for name in form.beside}


def _case(form: Form, name: str, data: Any, **more: Any) -> Case:
    held = {**_beside(form), form.file: form.write(data)}
    return Case(name=f"{form.name}: {name}", group=form.group, words=form.words, files=held, **more)


def spoilt_files() -> Iterator[Case]:
    """Every value of every file, replaced by everything that cannot be meant."""
    for form in FORMS:
        if form.sound:
            yield _case(form, "as it is", plain(form.data), rule=VALID)
        for number, (way, leaf) in enumerate(leaves(form.data)):
            pool: tuple[Any, ...] = WORDS.get(leaf.kind, ()) if form.write is script else BAD[leaf.kind]
            for value in pool[number % form.every :: form.every]:
                value = _slip(leaf.value) if value == "slip" else value  # noqa: PLW2901
                at = ".".join(map(str, way))
                key = next((str(step) for step in reversed(way) if isinstance(step, str) and not step.isdigit()), "")
                said = repr(value)[:24]
                yield _case(form, f"{at} = {said}", changed(form.data, way, value), rule=NAMED, key=key)


def strange_shapes() -> Iterator[Case]:
    """Files that are broken as a whole."""
    deep = "[" * 20_000 + "]" * 20_000
    for form in FORMS:
        text = form.write(plain(form.data))
        text = text if isinstance(text, str) else json.dumps(text)
        broken: dict[str, Any] = {
            "empty": "", "cut": text[: len(text) // 2], "a list": "[1, 2]", "a text": '"x"',
            "binary": bytes(range(256)),
            "zeros": b"\0" * 4096, "nested": '{"a": ' + deep + "}", "nested list": deep, "a number": "9" * 5000,
            "null": "null", "twice": '{"a": 1, "a": 2}', "half a character": '{"a": "\\ud800"}',
        }  # fmt: skip
        for name, content in broken.items():
            rule = EITHER if form.file.endswith((".sh", ".toml")) else REFUSED
            held = {**_beside(form), form.file: content}
            yield Case(name=f"{form.name}: {name}", group="shape", words=form.words, files=held, rule=rule)
        if isinstance(plain(form.data), dict) and form.name not in {"own GPU", "trace", "probe", "snapshot", "manual"}:
            more = {**plain(form.data), "zzz-unheard-of": 7}
            yield _case(form, "a key nobody knows", more, rule=NAMED, key="zzz-unheard-of")


def web_cases() -> Iterator[Case]:
    """The same through the page's functions."""
    ask = {"model": "llama-3.2-1b", "cluster": "8xh100", "global_batch": files.W(8), "seq": files.W(4096),
           "runtime": files.C("megatron"), "only": files.C("tp<=2"), "gap": files.N(0.05),
           "memory_margin": files.Q("6GiB"), "time_limit": files.N(1.0)}  # fmt: skip
    bodies = {
        "question": ask, "model": files.MODEL, "view": {"plan": PLAN},
        "why": {"plan": PLAN, "strategy": files.C("tp4")}, "export": {"plan": PLAN, "target": files.C("megatron@main")},
    }  # fmt: skip
    for name, body in bodies.items():
        yield Case(name=f"web {name}: as it is", group="web", words=(name,), files={"body": plain(body)}, rule=VALID)
        for number, (way, leaf) in enumerate(leaves(body)):
            every = 1 if name == "question" else 6
            for value in BAD[leaf.kind][number % every :: every]:
                value = _slip(leaf.value) if value == "slip" else value  # noqa: PLW2901
                made = changed(body, way, value)
                at = ".".join(map(str, way))
                yield Case(
                    name=f"web {name}: {at} = {repr(value)[:24]}", group="web", words=(name,), files={"body": made}
                )


def _marked(data: Any) -> Any:
    """The values that a plan holds beside its inputs, marked by what they are."""
    if isinstance(data, dict):
        return {key: _marked(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_marked(value) for value in data[:2]]
    kinds = {bool: "switch", int: "whole", float: "number", str: "text"}
    return Leaf(kinds[type(data)], data) if type(data) in kinds else data


def planned(plan: dict[str, Any]) -> Iterator[Case]:
    """What a plan says about itself, spoilt: it may be refused, passed over or shown, but never ends in a fault."""
    lines = (
        "show planned.json", "show planned.json --explain", "why planned.json tp4", "diff planned.json sound_plan.json",
        "export planned.json --to megatron@main --out o", "rehearse planned.json --rank pp0 --write o.py",
        "schedule auto --plan planned.json --effort 0.01", "estimate planned.json", "show planned.json --html o.html",
    )  # fmt: skip
    parts = {name: part for name, part in plan.items() if name not in {"schema", "inputs"}}
    for number, (way, leaf) in enumerate(leaves(_marked(parts))):
        for value in (*BAD[leaf.kind], None)[number % 3 :: 3]:
            held = {"planned.json": changed(plan, way, value), "sound_plan.json": plan}
            line = lines[(number + len(repr(value))) % len(lines)]
            name = f"{line[:30]}: {'.'.join(map(str, way))} = {repr(value)[:24]}"
            yield Case(name=name, group="planned", words=tuple(line.split()), files=held, rule=EITHER)


def random_spoils(seed: int, count: int) -> Iterator[Case]:
    """Several values of a file at once, anywhere and by anything."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    for number in range(count):
        form = chance.choice([form for form in FORMS if form.write is not script])
        data, key = plain(form.data), ""
        for _ in range(chance.randint(2, 3)):
            way, leaf = chance.choice(list(leaves(form.data)))
            value = chance.choice(BAD[leaf.kind])
            data = changed(data, way, _slip(leaf.value) if value == "slip" else value)
            key = next((str(step) for step in reversed(way) if isinstance(step, str) and not step.isdigit()), "")
        yield _case(form, f"several values, draw {number}", data, rule=NAMED, key=key)
