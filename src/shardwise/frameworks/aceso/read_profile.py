"""Aceso's profile sets: `{model}_{size}_mbs{b}_tp{t}_algo{a}.csv`, `prim_...csv`, `p2p_*_node.csv`.

An optional `profile.toml` beside them says what the files do not: tags, the first and last operator of a layer, how
layers of several kinds follow one another, whether the rows are the whole model, and facts of operators.
All faults of a set are told at once; nothing is filled in.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shardwise.errors import Fault, FileError, InputError, UnknownNameError
from shardwise.frameworks.aceso.names import lists_all
from shardwise.frameworks.aceso.profile_texts import OpRows, band, op_rows, read_texts, samples
from shardwise.per_op.profiles.analytic import ANALYTIC
from shardwise.per_op.profiles.facts import read_facts
from shardwise.per_op.profiles.table import COLLECTIVES, COLUMNS, Band, CollectiveSamples, LayerRun, Profile

_OPS = re.compile(r"(?P<name>.+)_mbs(?P<mbs>\d{1,6})_tp(?P<tp>\d{1,6})_algo(?P<algo>\d{1,3})\.csv")
_PRIM = re.compile(r"prim_(?P<name>.+)_(?P<kind>" + "|".join(COLLECTIVES) + r")_(?P<gpus>\d{1,6})gpus\.csv")

if TYPE_CHECKING:
    import numpy as np

Key = tuple[int, int, int]
_KEYS = ("tags", "layer_ops", "runs", "whole", "operators")
"""Of `profile.toml`."""


def _names(texts: dict[str, str]) -> tuple[str, ...]:
    """The models that a set has operator files for."""
    return tuple(sorted({found["name"] for name in texts if (found := _OPS.fullmatch(name))}))


def read_profile(path: str | Path, name: str = "") -> Profile:
    """One model's profile; `name` may be left out where the set holds one model only."""
    texts = read_texts(path)
    names = _names(texts)
    if not names:
        raise FileError(path, "holds no operator files such as gpt_1_3B_mbs1_tp1_algo0.csv")
    if not name and len(names) > 1:
        raise InputError(Fault("--profile", f"{path} holds {', '.join(names)}; say which one"))
    chosen = name or names[0]
    if chosen not in names:
        raise UnknownNameError("profile", chosen, names)
    return _Reader(texts, chosen).profile(str(path))


class _RunEnd(NamedTuple):
    """What `profile.toml` says; runs as they are written there."""

    tags: dict[str, str] = {}  # noqa: RUF012 - never changed
    layer: tuple[str, str] | None = None
    runs: Any = ()
    operators: Any = {}  # noqa: RUF012 - never changed
    whole: bool = False


class _Reader:
    """Collects the faults of one set while its files are read."""

    def __init__(self, texts: dict[str, str], name: str) -> None:
        self.texts = texts
        self.name = name
        self.faults: list[Fault] = []
        self.notes: list[str] = []

    def profile(self, title: str) -> Profile:
        grid = self._grid()
        collectives = self._collectives()
        intra = self._band("p2p_intra_node.csv")
        inter = self._band("p2p_inter_node.csv") if "p2p_inter_node.csv" in self.texts else None
        side = self._side()
        axes = tuple(tuple(sorted({key[axis] for key in grid})) for axis in range(3))
        ops = self._agreed(grid, axes)
        self._missing_tps(axes[1])
        self._missing_collectives(axes[1])
        runs = self._runs(side, ops)
        operators, wrong = read_facts(side.operators, ops, axes[1])
        self.faults += wrong
        if self.faults or intra is None:
            raise InputError(self.faults, title=title)
        if inter is None:
            self.notes.append("there is no p2p_inter_node.csv: sends between nodes are priced as within one")
        return Profile(
            name=self.name, ops=ops, micro_batches=axes[0], tps=axes[1], variants=axes[2],
            values=_values(grid, axes, ops), collectives=collectives, intra=intra, inter=inter,
            tags=side.tags, layer_ops=side.layer, runs=runs, operators=operators,
            whole=side.whole or lists_all(ops), identity=self._identity(), notes=_few(self.notes),
        )  # fmt: skip

    def _grid(self) -> dict[Key, OpRows]:
        grid: dict[Key, OpRows] = {}
        for file, text in self.texts.items():
            found = _OPS.fullmatch(file)
            if found and found["name"] == self.name:
                key = (int(found["mbs"]), int(found["tp"]), int(found["algo"]))
                if 0 in key[:2]:
                    self.faults.append(Fault(file, "a micro batch or tp of 0 cannot be; rename or remove it"))
                grid[key] = op_rows(file, text, self.faults, self.notes)
        return grid

    def _collectives(self) -> dict[tuple[str, int], CollectiveSamples]:
        found: dict[tuple[str, int], CollectiveSamples] = {}
        for file, text in self.texts.items():
            named = _PRIM.fullmatch(file)
            if named and named["name"] == self.name and (read := samples(file, text, self.faults)):
                found[named["kind"], int(named["gpus"])] = read
        return found

    def _band(self, file: str) -> Band | None:
        if file not in self.texts:
            self.faults.append(Fault(file, "is missing; it holds the bandwidth between neighbours"))
            return None
        return band(file, self.texts[file], self.faults)

    def _side(self) -> _RunEnd:
        """What an own `profile.toml` says."""
        if "profile.toml" not in self.texts:
            return _RunEnd()
        from shardwise.inputs.files import parse_mapping

        try:
            data = parse_mapping(self.texts["profile.toml"], "profile.toml")
        except InputError as error:
            self.faults += error.faults
            return _RunEnd()
        layer = data.get("layer_ops")
        if layer is not None and not _pair(layer):
            self.faults.append(
                Fault("profile.toml", "layer_ops must name two operators: the first and last of a layer")
            )
            layer = None
        tags = data.get("tags", {})
        said = {str(key): str(value) for key, value in tags.items()} if isinstance(tags, dict) else {}
        if said.get("source") == "analytic":
            self.notes.append(ANALYTIC)
        if not isinstance(whole := data.get("whole", False), bool):
            self.faults.append(Fault("profile.toml", "whole must be true (the rows are the whole model) or false"))
        self.faults += [Fault("profile.toml", f"{key} is not known; there are {', '.join(_KEYS)}")
                        for key in data if key not in _KEYS]  # fmt: skip
        pair = (str(layer[0]), str(layer[1])) if layer else None
        return _RunEnd(said, pair, data.get("runs", []), data.get("operators", {}), whole is True)

    def _runs(self, side: _RunEnd, ops: tuple[str, ...]) -> tuple[LayerRun, ...]:
        """Layers in a row, each by the names of its first and last operator."""
        places = {name: index for index, name in enumerate(ops)}
        try:
            runs = tuple(LayerRun(tuple((places[a], places[b]) for a, b in run["layers"]), run["repeats"])
                         for run in side.runs)  # fmt: skip
        except KeyError as error:
            self.faults.append(Fault("profile.toml", f"runs: {error} is no operator of {self.name}, or a missing key"))
            return ()
        except (TypeError, ValueError):
            runs = (LayerRun((), 0),)
        if not all(run.spans and _whole(run.repeats) and all(a <= b for a, b in run.spans) for run in runs):
            self.faults.append(Fault("profile.toml", 'runs must be tables such as layers = [["first operator", "last '
                                     'operator"]], repeats = 24'))  # fmt: skip
            return ()
        return runs

    def _agreed(self, grid: dict[Key, OpRows], axes: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
        """The operators that all files must have; missing files and rows are faults."""
        most = max(len(rows) for rows in grid.values())
        ops = next(tuple(rows) for rows in grid.values() if len(rows) == most)
        for key in itertools.product(*axes):
            file = "{}_mbs{}_tp{}_algo{}.csv".format(self.name, *key)
            if key not in grid:
                others = (
                    f"the set has micro batches {_said(axes[0])}, tp {_said(axes[1])} and variants {_said(axes[2])}"
                )
                self.faults.append(Fault(file, f"is missing; {others}: profile it, or remove the others of its kind"))
                continue
            lost = [op for op in ops if op not in grid[key]]
            if lost and not any(fault.path == file for fault in self.faults):
                self.faults.append(Fault(file, f"lacks {', '.join(lost)}; other files of the set have them"))
        return ops

    def _missing_tps(self, tps: tuple[int, ...]) -> None:
        """A size between others whose collectives are there was profiled and lost."""
        named = [found for file in self.texts if (found := _PRIM.fullmatch(file))]
        known = {int(found["gpus"]) for found in named if found["name"] == self.name}
        for lost in sorted(size for size in known if tps[0] < size < tps[-1] and size not in tps):
            why = f"are missing; the set has tp {_said(tps)} and collectives of {lost} GPUs"
            file = f"{self.name}_mbs*_tp{lost}_algo*.csv"
            self.faults.append(Fault(file, f"{why}: profile tp {lost}, or remove the prim files of {lost} GPUs"))

    def _missing_collectives(self, tps: tuple[int, ...]) -> None:
        """A kind may be absent (Aceso's T5 and ResNet sets lack some); one that is there must have every size."""
        sizes = [gpus for gpus in tps if gpus > 1]
        files = {kind: [f"prim_{self.name}_{kind}_{gpus}gpus.csv" for gpus in sizes] for kind in COLLECTIVES}
        absent = [kind for kind, names in files.items() if not any(name in self.texts for name in names)]
        if sizes and absent:
            self.notes.append(
                f"there are no times of {', '.join(absent)}: never used with --compatible, else a ring is assumed"
            )
        for names in (names for kind, names in files.items() if kind not in absent):
            for file in (name for name in names if name not in self.texts):
                self.faults.append(Fault(file, "is missing; the set has this collective for other numbers of GPUs"))

    def _identity(self) -> str:
        wanted = [name for name in self.texts if self.name in name or not name.startswith("prim_")]
        text = "\n".join(f"{name}\n{self.texts[name]}" for name in wanted if not _foreign(name, self.name))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**6


def _foreign(file: str, name: str) -> bool:
    found = _OPS.fullmatch(file) or _PRIM.fullmatch(file)
    return bool(found) and found["name"] != name  # type: ignore[index]


def _values(grid: dict[Key, OpRows], axes: tuple[tuple[int, ...], ...], ops: tuple[str, ...]) -> np.ndarray:
    import numpy as np

    values = np.empty((len(COLUMNS), *map(len, axes), len(ops)))
    for place in itertools.product(*(range(len(axis)) for axis in axes)):
        rows = grid[tuple(axis[index] for axis, index in zip(axes, place, strict=True))]  # type: ignore[index]
        mbs, tp, variant = place
        values[:, mbs, tp, variant] = np.array([rows[op] for op in ops]).T
    values.setflags(write=False)
    return values


def _few(notes: list[str]) -> tuple[str, ...]:
    """Odd sizes come by the dozen: one note stands for all of them."""
    odd = [note for note in notes if "negative size" in note]
    rest = [note for note in notes if "negative size" not in note]
    if odd:
        rest.append(odd[0] + (f", and {len(odd) - 1} more rows like it" if len(odd) > 1 else ""))
    return tuple(rest)


def _said(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
