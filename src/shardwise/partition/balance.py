"""From what `balance` is given to a problem, and from a problem to the answer that MindFormers can run.

A problem is one JSON file, or a layer model (fitted to an init file's peaks and times, or kept from then) with the
settings of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import Fault, InputError
from shardwise.inputs.load import Loaded
from shardwise.partition.compare import Compared, manual, naive
from shardwise.partition.confident import solve_surely
from shardwise.partition.decompose import CHOICES, Measured
from shardwise.partition.graph import Ready
from shardwise.partition.guide import Design, design
from shardwise.partition.lists import has_lists, sayable, settled
from shardwise.partition.problem import CONFIDENCE, BalanceAnswer, Evaluation, Partition, Problem
from shardwise.partition.readers.init_file import read_init
from shardwise.partition.readers.layer_model import LayerModel, load_model, model_of_init, save_model
from shardwise.partition.readers.manual_file import read_manual
from shardwise.partition.readers.peaks import Which, read_peaks
from shardwise.partition.readers.problem_file import RECOMPUTE, make_problem, problem_notes, read_problem
from shardwise.partition.readers.training_file import in_pieces, read_training
from shardwise.partition.solver import Report
from shardwise.partition.spread import noise_of

_DEFAULTS: dict[str, Any] = {"pp": 4, "vpp": 1, "microbatches": 4, "memory": (56000.0,), "seq_split": 1}
"""What a layer model is balanced for where nothing else is said; MB as SAPP counts."""
_NEAREST = 50
"""Ways to run one chunk that are judged with their margins."""
_KEYS = {
    "pp": "pp", "vpp": "vp", "microbatches": "mb", "low_memory": "low_mem", "seq_split": "seq_split",
    "schedule": "schedule", "hop": "hop", "confidence": "confidence",
}  # fmt: skip
"""Setting -> key of a problem file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What is to be balanced, as `api.read_problem` takes it; None: not said."""

    problem: str | None = None
    init: str | None = None
    peaks: Sequence[str] = ()
    peak: Which = "actual"
    times: Sequence[float] | None = None
    model: str | None = None
    pp: int | None = None
    vpp: int | None = None
    microbatches: int | None = None
    memory: Sequence[float] | None = None
    low_memory: bool | None = None
    seq_split: int | None = None
    train: str | None = None
    schedule: str | None = None
    hop: float | None = None
    empty: str | None = None
    confidence: float | None = None


def problem_of(asked: Described) -> Loaded[Problem]:
    """The problem, with what was noticed on the way; `extra`: the fit of its layer model, where one was made."""
    if asked.problem:
        for name in ("init", "model", "peaks", "times", "train"):
            if getattr(asked, name):
                raise InputError(Fault("--problem", f"and --{name} both describe the model; leave one out"))
        problem = read_problem(asked.problem, _changes(asked))
        return _loaded(asked, problem, *(f"{asked.problem}: {note}" for note in problem_notes(asked.problem)))
    asked = replace(asked, **{name: value for name, value in _DEFAULTS.items() if getattr(asked, name) is None})
    model, kept = layer_model(asked)
    data, kinds, cut = _in_pieces(asked, model.data)
    assert asked.pp is not None and asked.vpp is not None and asked.microbatches is not None  # noqa: S101, PT018
    problem = make_problem(
        data, pp=asked.pp, vpp=asked.vpp, microbatches=asked.microbatches, limits=limits_of(asked.memory, asked.pp),
        low_memory=bool(asked.low_memory), splits=asked.seq_split or 1, schedule=asked.schedule, hop=asked.hop or 0.0,
        empty=_empty(asked, asked.pp * asked.vpp), name=asked.model or "", kinds=kinds,
        confidence=asked.confidence or CONFIDENCE,
    )  # fmt: skip
    return _loaded(asked, problem, *model.notes, *kept, *cut)


def _loaded(asked: Described, problem: Problem, *notes: str) -> Loaded[Problem]:
    exact = "--confidence changes nothing: this layer model holds no measured peaks, its memory is taken as exact"
    more = [exact] if asked.confidence is not None and not problem.fit else []
    return Loaded(value=problem, notes=(*notes, *more, *order_notes(asked.low_memory, problem.vpp)), extra=problem.fit)


def order_notes(low_memory: bool | None, vpp: int | None) -> Iterator[str]:
    """What is asked of the order of work in vain."""
    if low_memory and vpp == 1:
        yield "--low-memory changes nothing: with one chunk a stage the order is 1F1B; it is for --vpp (-i) 2 or more"


def design_rounds(
    stages: int | None,
    layers: int | None,
    kinds: Sequence[str],
    *,
    seed: int = 1,
    rounds: int = 0,
    layer_kinds: Sequence[tuple[str, int]] = (),
    after: str | Path | None = None,
) -> Design:
    """Rounds to measure; `after`: an init file or a kept layer model, whose rounds are there already."""
    if after is None:
        if stages is None or layers is None:
            raise InputError(Fault("--stages", "and --layers say what is to be measured; give both, or --after FILE"))
        return design(stages, layers, kinds, seed=seed, rounds=rounds, of=layer_kinds)
    pp, runs, measured = _measured_before(after)
    for name, asked, there in (
        ("stages", stages, pp), ("layers", layers, sum(count for _, count in runs)),
        ("layer-kinds", tuple(layer_kinds) or None, runs),
    ):  # fmt: skip
        if asked is not None and asked != there:
            raise InputError(Fault(f"--{name}", f"is {_words(asked)}, {after} has {_words(there)}; leave it out"))
    used = [name for c, name in enumerate(CHOICES) if c and any(any(m.counts[c :: len(CHOICES)]) for m in measured)]
    made = design(
        pp, sum(count for _, count in runs), list(dict.fromkeys((*used, *kinds))), seed=seed, rounds=rounds or 1,
        of=runs if len(runs) > 1 else (), after=measured,
    )  # fmt: skip
    return replace(made, noise=noise_of(measured, pp, [name for name, _ in runs]))


def _words(value: object) -> str:
    return ",".join(f"{name}:{count}" for name, count in value) if isinstance(value, tuple) else str(value)


def _measured_before(path: str | Path) -> tuple[int, tuple[tuple[str, int], ...], tuple[Measured, ...]]:
    """Stages, kinds of layers and peaks of a file."""
    if not str(path).endswith(".json"):
        init = read_init(path, timed=False)
        return init.pp, init.runs, init.measured
    model = load_model(path)
    if model.fit is None:
        raise InputError(f"{path} keeps no measured peaks; give the init file, or a model that `balance --init` kept")
    bodies = [entry for entry in model.data["layers_description"] if entry["type"] == "BODY"]
    runs = tuple((str(entry.get("name", "BODY")), int(entry.get("nb_layer", 1))) for entry in bodies)
    return model.fit.pp, runs, model.fit.measured


def limits_of(memory: Sequence[float] | None, pp: int) -> tuple[float, ...]:
    """One limit for all stages, or one each."""
    given = tuple(memory or ())
    if len(given) not in {1, pp}:
        raise InputError(Fault("--memory", f"has {len(given)} numbers; write one, or one for each of {pp} stages"))
    return given


def others_of(
    problem: Problem, *, naively: bool = False, files: Sequence[str | Path] = ()
) -> tuple[list[Compared], list[str]]:
    """Strategies to compare with: all and no recompute, and those of users' files; and notes on them."""
    found, notes = naive(problem) if naively else ([], [])
    for path in files:
        read = read_manual(path, pp=problem.pp, layers=problem.layers, vpp=problem.vpp)
        try:
            found += manual(problem, read)
        except InputError as error:
            raise InputError(error.faults, title=str(path)) from None
    return found, notes


def balance(
    problem: Problem, *, time_limit: float, effort: float | None, seed: int, report: Report | None = None
) -> BalanceAnswer:
    """The best partition; where MindFormers' lists cannot say it, the nearest that they say, if that is as good.

    MindFormers cannot run select alone and comm alone in one chunk. Of a chunk of several kinds it recomputes the first
    layers, whatever their kind: there the nearest is taken if it is slower, too, since the lists would say others.
    """
    follow: Any = {"report": report} if report else {}
    answer = solve_surely(problem, seconds=time_limit, effort=effort, seed=seed, **follow)
    if not mixes(answer):
        return answer
    best = _said_nearest(Ready(problem), answer.best.partition)
    as_good = best is not None and best.simulated <= answer.simulated * (1 + 1e-9)
    return replace(answer, best=best) if best and (as_good or len(problem.runs) > 1) else answer


def _said_nearest(ready: Ready, partition: Partition) -> Evaluation | None:
    """The same layers of every chunk, recomputed as lists can say it, chunk by chunk the fastest way that fits."""
    counts = ready.matrix(partition)
    for chunk, runs in enumerate(partition.counts):
        said = sayable(ready.problem, [sum(run) for run in runs])
        if runs in said:
            continue
        tables = np.repeat(counts[None], len(said), axis=0)
        tables[:, chunk] = [[count for run in row for count in run] for row in said]
        tables = tables[ready.fits(tables)]
        order = np.argsort(ready.times(tables), kind="stable")[:_NEAREST]
        fitting = (k for k in order if ready.evaluate(tables[k]).fits)
        if (nearest := next(fitting, None)) is None:
            return None
        counts = tables[nearest]
    return ready.evaluate(counts)


def mixes(answer: BalanceAnswer) -> bool:
    """Whether chunks mix what MindFormers' lists, which could say the problem, cannot say together."""
    problem, partition = answer.problem, answer.best.partition
    return has_lists(problem) and settled(problem, partition) != partition


def _changes(asked: Described) -> dict[str, Any]:
    """What is said goes before the numbers of a problem file."""
    found = {key: value for name, key in _KEYS.items() if (value := getattr(asked, name)) is not None}
    if asked.memory is not None:
        found["mem_limit"] = list(asked.memory)
    if asked.empty is not None:
        words = asked.empty.split(",")
        found["empty_chunks"] = list(map(int, words)) if all(map(_is_count, words)) else asked.empty
    return found


def _in_pieces(asked: Described, data: dict[str, Any]) -> tuple[dict[str, Any], list[str] | None, list[str]]:
    """The layer model when sequences run in pieces, the recompute kinds that are then left, and notes."""
    splits = asked.seq_split or 1
    if splits == 1:
        return data, None, ["--train changes nothing without -seq 2 or more"] if asked.train else []
    notes = []
    if asked.train:
        data = in_pieces(data, read_training(asked.train), splits)
    else:
        notes.append(
            "pieces of a sequence are taken as equal shares of a layer's activations; -train FILE adds the keys and "
            "values that MindFormers holds whole"
        )
    if any(entry.get("memory_recompute") for entry in data["layers_description"]):
        notes.append("full recompute is left out with -seq, as SAPP does; a problem file (--problem) may use it")
    return data, [kind for kind in RECOMPUTE if kind != "full"], notes


def layer_model(asked: Described) -> tuple[LayerModel, list[str]]:
    """The layer model, fitted and kept under its name, or read from there."""
    path = asked.model and (asked.model if asked.model.endswith(".json") else f"{asked.model}.json")
    if asked.init:
        peaks = [read_peaks(folder, which=asked.peak) for folder in asked.peaks]
        model = model_of_init(asked.init, asked.model or "model", peaks=peaks, times=_times(asked))
        if not path:
            return model, []
        save_model(model, path)
        return model, [f"the layer model is kept in {path}; without --init it is read from there"]
    if path:
        return load_model(path), []
    raise InputError(
        "nothing to balance: give --plan FILE, --init FILE.yaml, -m MODEL (a layer model kept before) or --problem FILE"
    )


def _times(asked: Described) -> Sequence[float] | None:
    if asked.times is not None and len(asked.times) < 3:
        said = f"has {len(asked.times)} numbers; write forward times of head, body layer and tail: 0.06,3.1,3.5"
        raise InputError(Fault("--times", f"{said}; of several kinds of layers one each"))
    return asked.times


def _empty(asked: Described, chunks: int) -> tuple[int, ...]:
    if asked.empty is None:
        return ()
    if asked.empty == "ends":
        return (0, chunks - 1)
    if asked.empty == "any":
        return tuple(range(chunks))
    if not all(_is_count(word) and int(word) < chunks for word in asked.empty.split(",")):
        raise InputError(
            Fault("--empty", f"is {asked.empty!r}; write ends, any, or chunks from 0 to {chunks - 1}: 0,7")
        )
    return tuple(int(word) for word in asked.empty.split(","))


def _is_count(word: str) -> bool:
    return word.strip().isascii() and word.strip().isdecimal() and len(word) < 10
