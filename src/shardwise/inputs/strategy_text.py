"""A strategy as the one line that people write in papers, and back.

tp8 pp4x2 dp16 cp1 ep8 zero1 mbs1 gbs512 seq4096 zb-v

Numbers follow their word (`tp8` and `tp=8` are the same). The degrees, the batch and the sequence are always shown,
everything else only where it differs from its default: `etp2 cp2:all-to-all nosp hsdp8 group4 recompute=full:4
layers=9,15,15,11 batches=12,5 first9 last11 count-embedding count-head placement=v fp8 scaling=delayed fp8-weights
fp8-attention pure grad-bf16 muon lora16:qkv,out offload-optimizer noflash dispatch=deepep ep-overlap graphs=layer
straggler1.05 documents=lengths.csv packing=balanced source512 images=2:1.3 pixels896 frozen=vision runtime=torchtitan`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, get_args

from shardwise.errors import Fault, InputError, UnknownNameError
from shardwise.inputs.cluster import Cluster
from shardwise.inputs.documents import Documents, Packing
from shardwise.inputs.gate import counted, held, typed
from shardwise.inputs.load import load_runtime
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import (
    SCHEDULES,
    V_SCHEDULES,
    CpKind,
    CudaGraphs,
    Dispatcher,
    Dtype,
    GradDtype,
    Lora,
    Offload,
    Optimizer,
    RankOrder,
    Scaling,
    Strategy,
)

Given = dict[str, Any]
"""Fields of a strategy that were given, by name; `microbatches` may stand in for `global_batch`."""

_NUMBERS = {
    "tp": "tp", "pp": "pp", "vpp": "vpp", "dp": "dp", "cp": "cp", "ep": "ep", "etp": "etp", "zero": "zero",
    "hsdp": "zero_group", "mbs": "micro_batch", "gbs": "global_batch", "microbatches": "microbatches", "seq": "seq",
    "group": "group", "first": "first_layers", "last": "last_layers", "source": "source", "pixels": "image_size",
}  # fmt: skip
_FLAGS: dict[str, tuple[str, Any]] = {
    "sp": ("sp", True),
    "nosp": ("sp", False),
    "flash": ("flash", True),
    "noflash": ("flash", False),
    "compile": ("compile", True),
    "eager": ("compile", False),
    "count-embedding": ("count_embedding", True),
    "count-head": ("count_head", True),
    "ep-overlap": ("ep_overlap", True),
    **{name: ("schedule", name) for name in SCHEDULES},
    **{name: ("dtype", name) for name in get_args(Dtype)},
    **{name: ("optimizer", name) for name in get_args(Optimizer)},
    **{name: ("master", name) for name in ("mixed", "pure", "autocast")},
    "fp8-weights": ("fp8_weights", True),
    "fp8-attention": ("fp8_attention", True),
    **{f"grad-{name}": ("grad_dtype", name) for name in get_args(GradDtype)},
    **{f"offload-{name}": ("offload", name) for name in get_args(Offload)},
}
SWITCH = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}
_SWITCHED = ("sp", "flash", "compile", "ep_overlap")
_WORD = re.compile(r"([a-z]+)=?(-?[0-9]+)")
_ALWAYS = ("tp", "pp", "dp", "cp", "ep", "zero", "mbs", "gbs", "seq")


def build(given: Given) -> Strategy:
    """A strategy from the fields that were given; chunks imply `interleaved`, V schedules their placement."""
    rest = dict(given)
    if rest.get("vpp", 1) > 1:
        rest.setdefault("schedule", "interleaved")
    if rest.get("schedule") in V_SCHEDULES:
        rest.setdefault("placement", "v")
    count = rest.pop("microbatches", None)
    if count is not None:
        held(count, SCALARS["Strategy.microbatches"], "strategy.microbatches")
        rest["global_batch"] = _batch_of(count, rest)
    return Strategy(**rest)


def _batch_of(count: int, given: Given) -> int:
    size, dp = int(given.get("micro_batch", 1)), int(given.get("dp", 1))
    batch = count * size * dp
    if given.get("global_batch", batch) != batch:
        raise InputError(
            Fault(
                "strategy.microbatches",
                f"{count} micro batches of {size} on dp {dp} are a global batch of {batch}, but global_batch is "
                f"{given['global_batch']}; give one of the two",
            )
        )
    return batch


def parse(text: str, *, files: bool = False) -> Given:
    """The fields that a line gives; raises InputError with every word that is wrong. `files`: documents may be one."""
    given: Given = {}
    faults: list[Fault] = []
    for word in text.split():
        try:
            found = _parse_word(lowered(word), files=files)
        except InputError as error:
            faults += error.faults
            continue
        faults += [_twice(word, name) for name in found if name in given]
        given |= found
    if faults:
        raise InputError(faults, title=f"strategy {text.strip()[:200]!r}")
    return given


def lowered(word: str) -> str:
    """A word in small letters, but for the name of a file."""
    lead, mark, rest = word.partition("=")
    return f"{lead.lower()}{mark}{rest if lead.lower() == 'documents' else rest.lower()}"


def _twice(word: str, name: str) -> Fault:
    return Fault(f"strategy.{name}", f"{word!r} gives it a second time; keep one")


def without_documents(text: str, strategy: Strategy) -> str:
    """A line less the word for the documents that a strategy has, which may be the name of a file."""
    own = f"documents={strategy.documents}"
    return " ".join(word for word in text.split() if strategy.documents is None or lowered(word) != own)


def _parse_word(word: str, *, files: bool) -> Given:
    if word in _FLAGS:
        name, value = _FLAGS[word]
        return {name: value}
    axis, _, value = word.partition("=")
    named = [value for name, value in _FLAGS.values() if name == axis and isinstance(value, str)]
    if named:  # schedule=zb-v is zb-v
        if word == axis:
            raise InputError(f"{axis}: write which, as in {axis}={named[-1]}; known: {', '.join(named)}")
        if value not in named:
            raise UnknownNameError(axis, value, named)
        return {axis: value}
    if axis in _SWITCHED and value in SWITCH:  # compile=on is compile
        return {axis: SWITCH[value]}
    if axis == "documents":
        return {"documents": Documents.parse(value, files=files)}
    for start, read in _SPECIAL:
        if word.startswith(start):
            found = read(word[len(start) :])
            if found is not None:
                return found
    number = _WORD.fullmatch(word)
    if number and number[1] in _NUMBERS:
        name = _NUMBERS[number[1]]
        if name in {"source", "image_size"} and not int(number[2]):
            raise InputError(Fault(f"strategy.{name}", f"{word} says nothing; give a number, or leave {number[1]} out"))
        return {name: _whole(number[2], name)}
    raise _unknown(word)


def _whole(text: str, name: str) -> int:
    """A number of a word; `check` looks at its range together with everything else."""
    return counted(text, SCALARS["any.whole"], f"strategy.{name}")


def _unknown(word: str) -> InputError:
    stem = re.split(r"[=:\d]", word, maxsplit=1)[0]
    if stem in {*_NUMBERS, "lora"}:
        return InputError(f"{word[:60]!r}: a whole number must follow {stem}, as in {stem}2")
    if stem in _FLAGS:
        other = f"{stem}=on or {stem}=off" if stem in _SWITCHED else f"{stem} alone"
        return InputError(f"{word[:60]!r}: {stem} takes no such value; write {other}")
    known = {"documents", *_NUMBERS, *_FLAGS, *(start.rstrip("=") for start, _ in _SPECIAL)}
    return UnknownNameError("strategy word", word.split("=", maxsplit=1)[0], known)


def _pipeline(rest: str) -> Given | None:
    found = re.fullmatch(r"=?(-?[0-9]+)x(-?[0-9]+)", rest)
    return {"pp": _whole(found[1], "pp"), "vpp": _whole(found[2], "vpp")} if found else None


def _context(rest: str) -> Given | None:
    found = re.fullmatch(r"=?(-?[0-9]+):([a-z-]+)", rest)
    if not found:
        return None
    if found[2] not in get_args(CpKind):
        raise UnknownNameError("kind of context parallel", found[2], get_args(CpKind))
    return {"cp": _whole(found[1], "cp"), "cp_kind": found[2]}


def _lora(rest: str) -> Given | None:
    found = re.fullmatch(r"=?(-?[0-9]+)(?::([a-z,-]*))?", rest)
    if not found:
        return None
    rank = _whole(found[1], "lora.rank")
    if found[2] is None:
        return {"lora": Lora(rank=rank)}
    return {"lora": Lora(rank=rank, targets=tuple(name for name in found[2].split(",") if name))}


def _list(name: str, example: str) -> Callable[[str], Given]:
    def read(rest: str) -> Given:
        if not re.fullmatch(r"-?[0-9]+(,-?[0-9]+)*", rest):
            raise InputError(Fault(f"strategy.{name}", f"{rest[:60]!r} is not a list of numbers; write {example}"))
        return {name: tuple(_whole(part, name) for part in rest.split(","))}

    return read


def _straggler(rest: str) -> Given:
    text = rest.removeprefix("=")
    try:
        return {"straggler": typed(text, SCALARS["any.number"], "strategy.straggler")}
    except InputError as error:
        message = f"{error.faults[0].message}; write straggler1.05"
        raise InputError(Fault("strategy.straggler", message)) from None


def _images(rest: str) -> Given:
    mean, colon, busiest = rest.partition(":")
    found = {"images": typed(mean, SCALARS["any.number"], "strategy.images")}
    return found | (
        {"image_imbalance": typed(busiest, SCALARS["any.number"], "strategy.image_imbalance")} if colon else {}
    )


def _frozen(rest: str) -> Given:
    return {"frozen": tuple(name for name in rest.split(",") if name)}


def _placement(rest: str) -> Given:
    if rest not in {"loop", "v"}:
        raise UnknownNameError("placement", rest, ("loop", "v"))
    return {"placement": rest}


def _dispatcher(rest: str) -> Given:
    if rest not in get_args(Dispatcher):
        raise UnknownNameError("dispatcher", rest, get_args(Dispatcher))
    return {"dispatcher": rest}


def _graphs(rest: str) -> Given:
    if rest not in get_args(CudaGraphs):
        raise UnknownNameError("part that CUDA graphs cover", rest, get_args(CudaGraphs))
    return {"cuda_graphs": rest}


def _packing(rest: str) -> Given:
    if rest not in get_args(Packing):
        raise UnknownNameError("packing", rest, get_args(Packing))
    return {"packing": rest}


def _scaling(rest: str) -> Given:
    if rest not in get_args(Scaling):
        raise UnknownNameError("scaling of fp8", rest, get_args(Scaling))
    return {"scaling": rest}


def _rank_order(rest: str) -> Given:
    if rest not in get_args(RankOrder):
        raise UnknownNameError("order of ranks", rest, get_args(RankOrder))
    return {"rank_order": rest}


_SPECIAL: tuple[tuple[str, Callable[[str], Given | None]], ...] = (
    ("pp", _pipeline),
    ("cp", _context),
    ("lora", _lora),
    ("layers=", _list("layers", "layers=9,15,15,11")),
    ("batches=", _list("batches", "batches=12,5")),
    ("straggler", _straggler),
    ("images=", _images),
    ("frozen=", _frozen),
    ("placement=", _placement),
    ("dispatch=", _dispatcher),
    ("dispatcher=", _dispatcher),
    ("graphs=", _graphs),
    ("order=", _rank_order),
    ("packing=", _packing),
    ("scaling=", _scaling),
    ("recompute=", lambda rest: {"recompute": Recompute.parse(rest)}),
    ("runtime=", lambda rest: {"runtime": rest}),
)


def show(strategy: Strategy) -> str:
    """The line for a strategy: `parse` reads it back to the same one."""
    return " ".join(_words(strategy))


def _words(s: Strategy) -> Iterator[str]:
    for word in _ALWAYS:
        yield f"{word}{getattr(s, _NUMBERS[word])}{_suffix(word, s)}"
    yield from (
        f"{word}{value}"
        for word in ("etp", "hsdp", "group", "first", "last", "source", "pixels")
        if (value := _changed(s, word)) is not None
    )
    for word, (name, value) in _FLAGS.items():
        if value == getattr(s, name) and (value != _DEFAULTS[name] or (name == "schedule" and s.vpp != 1)):
            yield word
    if s.placement != ("v" if s.schedule in V_SCHEDULES else "loop"):
        yield f"placement={s.placement}"
    yield from (
        f"{name}=" + ",".join(map(str, numbers)) for name in ("layers", "batches") if (numbers := getattr(s, name))
    )
    if s.recompute != Recompute():
        yield f"recompute={s.recompute}"
    if s.lora is not None:
        targets = "" if s.lora.targets == Lora(rank=1).targets else ":" + ",".join(s.lora.targets)
        yield f"lora{s.lora.rank}{targets}"
    for name, word in _NAMED.items():
        if getattr(s, name) != _DEFAULTS[name]:
            yield f"{word}={getattr(s, name)}"
    if s.images != 1 or s.image_imbalance != 1:
        yield f"images={s.images:.15g}" + (f":{s.image_imbalance:.15g}" if s.image_imbalance != 1 else "")
    if s.frozen:
        yield "frozen=" + ",".join(s.frozen)
    if s.straggler != 1.0:
        yield f"straggler{s.straggler!r}"
    if s.runtime != _DEFAULTS["runtime"]:
        yield f"runtime={s.runtime}"


_NAMED = {
    "dispatcher": "dispatch", "scaling": "scaling", "cuda_graphs": "graphs", "rank_order": "order",
    "documents": "documents", "packing": "packing",
}  # fmt: skip
"""Fields that are shown as a word with their value, by that word."""


def _suffix(word: str, s: Strategy) -> str:
    if word == "pp" and s.vpp != 1:
        return f"x{s.vpp}"
    return f":{s.cp_kind}" if word == "cp" and s.cp_kind != "ring" else ""


def _changed(s: Strategy, word: str) -> int | None:
    name = _NUMBERS[word]
    value: int = getattr(s, name)
    return None if value == _DEFAULTS[name] else value


_DEFAULTS = {field.name: field.default for field in fields(Strategy)}


def complete(given: Given, cluster: Cluster) -> Strategy:
    """A strategy with dp derived from the cluster where it is not given, and a ZeRO stage that its runtime has.

    Where tp x pp x cp does not divide the GPUs, dp stays 1: `check` then says so together with all other faults.
    """
    whole = {"dp": derived_dp(given, cluster.gpus), **given}
    return build(whole if "zero" in given else {**whole, **_usual_zero(whole)})


def _usual_zero(given: Given) -> Given:
    """The stage that is meant where none is given and the runtime lacks the usual one: none alone, else the next."""
    try:
        stages = load_runtime(given.get("runtime", Strategy().runtime)).can.zero
    except InputError:  # told where the runtime is asked for
        return {}
    if Strategy().zero in stages or not stages:
        return {}
    alone = given["dp"] * given.get("cp", 1) == 1 and 0 in stages
    return {"zero": 0 if alone else next((stage for stage in stages if stage > Strategy().zero), stages[-1])}


def derived_dp(given: Given, gpus: int) -> int:
    """GPUs left for data parallel, 1 where that is no whole number."""
    product = 1
    for axis in ("tp", "pp", "cp"):
        product *= given.get(axis, 1)
    return gpus // product if product > 0 and gpus % product == 0 else 1
