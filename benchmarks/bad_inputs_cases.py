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


@dataclass(frozen=True, kw_only=True)
class Form:
    """A sound file, the command that reads it, and the files beside it."""

    name: str
    group: str
    file: str
    data: Any
    words: tuple[str, ...]
    beside: tuple[str, ...] = ()
    write: Callable[[Any], Any] = lambda data: data
    sound: bool = True
    """The command answers; else it refuses the file in any case, and only how is looked at."""


def plain(data: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A template without its marks."""
    if isinstance(data, Leaf):
        return data.value
    if isinstance(data, dict):
        return {key: plain(value) for key, value in data.items()}
    return [plain(value) for value in data] if isinstance(data, list) else data


def leaves(data: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Leaf]]:  # noqa: ANN401
    if isinstance(data, Leaf):
        yield way, data
    elif isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(value, (*way, key))


def changed(data: Any, way: tuple[Any, ...], value: Any) -> Any:  # noqa: ANN401
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


PLAN = {
    "schema": "shardwise/plan/1",
    "inputs": {"model": {**files.MODEL}, "cluster": files.CLUSTER, "strategy": files.STRATEGY},
}
PLAN["inputs"]["cluster"] = {**files.CLUSTER, "levels": [files.CLUSTER["levels"][0], {**files.CLUSTER["levels"][1], "size": files.W(16)}]}  # noqa: E501
ASK = ("-s", "gbs16 seq128")
SCHEDULE = ("schedule", "auto", "--pp", "2", "--vpp", "2", "--microbatches", "4", "--effort", "0.01", "--costs")
BALANCE = ("balance", "--time-limit", "1", "--effort", "0.01")
CALIBRATE = ("calibrate", "--plan", "h100.json", "--name", "ours", "--dry-run")
HOME = ("check", "llama-3.2-1b", *ASK, "-c")
SIMUMAX = ("check", "model.json", "-c", "system.json", "-s", "strategy.json")
FORMS = (
    Form(name="model", group="file", file="model.json", data=files.MODEL, words=("check", "model.json", "-c", "16xh100", *ASK)),
    Form(name="model with MLA", group="file", file="model.json", data=files.MLA_MODEL, words=("check", "model.json", "-c", "16xh100", *ASK)),
    Form(name="cluster", group="file", file="cluster.json", data=files.CLUSTER, words=("check", "llama-3.2-1b", "-c", "cluster.json", *ASK)),
    Form(name="strategy", group="file", file="strategy.json", data=files.STRATEGY, words=("check", "small.json", "-c", "16xh100", "-s", "strategy.json"), beside=("small.json",)),
    Form(name="runtime", group="file", file="runtime.json", data=files.RUNTIME, words=("check", "llama-3.2-1b", "-c", "16xh100", *ASK, "--runtime", "runtime.json")),
    Form(name="plan", group="file", file="plan.json", data=PLAN, words=("show", "plan.json")),
    Form(name="costs", group="file", file="costs.json", data=files.COSTS, words=(*SCHEDULE, "costs.json")),
    Form(name="problem", group="file", file="problem.json", data=files.PROBLEM, words=(*BALANCE, "--problem", "problem.json")),
    Form(name="init", group="file", file="init.json", data=files.INIT, words=(*BALANCE, "--init", "init.json", "-s", "4", "-mem", "60000")),
    Form(name="manual", group="file", file="manual.json", data=files.MANUAL, words=(*BALANCE, "--problem", "sound_problem.json", "--manual", "manual.json"), beside=("sound_problem.json",)),
    Form(name="trace", group="file", file="trace.json", data=files.TRACE, words=(*CALIBRATE, "--trace", "trace.json"), beside=("h100.json",)),
    Form(name="snapshot", group="file", file="snapshot.json", data=files.SNAPSHOT, words=(*CALIBRATE, "--snapshot", "snapshot.json"), beside=("h100.json",)),
    Form(name="probe", group="file", file="probe.json", data=files.PROBE, words=("calibrate", "probe.json", "--name", "ours", "--dry-run")),
    Form(name="operators", group="file", file="operators.json", data=files.OPERATORS, sound=False,
         words=("plan", "llama-3.2-1b", "-c", "8xh100", "--space", "per-op", "--profiles", "operators.json")),
    Form(name="own GPU", group="file", file="home/gpus/my-gpu.toml", data=files.GPU_HOME, words=(*HOME, "16xmy-gpu"), write=toml),
    Form(name="own calibration", group="file", file="home/calibrations/mine.toml", data=files.CALIBRATION_HOME,
         words=("estimate", "small.json", "-c", "mine.json", *ASK), beside=("small.json", "mine.json"), write=toml),
    Form(name="Hugging Face", group="importer", file="config.json", data=files.HUGGINGFACE, words=("check", "config.json", "-c", "16xh100", *ASK)),
    Form(name="SimuMax model", group="importer", file="model.json", data=files.SIMUMAX_MODEL, words=SIMUMAX, beside=("system.json", "strategy.json")),
    Form(name="SimuMax strategy", group="importer", file="strategy.json", data=files.SIMUMAX_STRATEGY, words=SIMUMAX, beside=("system.json", "model.json")),
    Form(name="SimuMax system", group="importer", file="system.json", data=files.SIMUMAX_SYSTEM, words=SIMUMAX, beside=("strategy.json", "model.json")),
    Form(name="Megatron", group="importer", file="run.sh", data=files.MEGATRON, words=("check", "--from", "run.sh", "-c", "16xh100"), write=script),
    Form(name="torchtitan", group="importer", file="titan.json", data=files.TORCHTITAN, words=("check", "--from", "titan.json", "-c", "8xh100")),
    Form(name="DeepSpeed", group="importer", file="ds.json", data=files.DEEPSPEED, words=("check", "small.json", "--from", "ds.json", "-c", "8xh100", "--seq", "128"), beside=("small.json",)),
    Form(name="MindFormers", group="importer", file="mf.json", data=files.MINDFORMERS, words=("check", "--from", "mf.json", "-c", "8xascend-910b")),
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


def _case(form: Form, name: str, data: Any, **more: Any) -> Case:  # noqa: ANN401
    held = {**_beside(form), form.file: form.write(data)}
    return Case(name=f"{form.name}: {name}", group=form.group, words=form.words, files=held, **more)


def spoilt_files() -> Iterator[Case]:
    """Every value of every file, replaced by everything that cannot be meant."""
    for form in FORMS:
        if form.sound:
            yield _case(form, "as it is", plain(form.data), rule=VALID)
        for way, leaf in leaves(form.data):
            pool: tuple[Any, ...] = WORDS.get(leaf.kind, ()) if form.write is script else BAD[leaf.kind]
            for value in pool:
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
            "empty": "", "cut": text[: len(text) // 2], "a list": "[1, 2]", "a text": '"x"', "binary": bytes(range(256)),
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


WEB_PLAN = plain(PLAN)


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
            for value in BAD[leaf.kind][number % 2 :: 2] if name in {"why", "export"} else BAD[leaf.kind]:
                value = _slip(leaf.value) if value == "slip" else value  # noqa: PLW2901
                made = changed(body, way, value)
                at = ".".join(map(str, way))
                yield Case(name=f"web {name}: {at} = {repr(value)[:24]}", group="web", words=(name,), files={"body": made})


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
