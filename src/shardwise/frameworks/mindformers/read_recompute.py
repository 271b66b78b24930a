"""MindFormers' lists of recomputed layers, read as its `LayerSetting` reads them (1.5 to 2.1).

- true, false, or numbers: of every rank, or a row of them for every chunk of a rank; an item may be true or false, too
- every list counts from a chunk's first layer, so what two lists name overlaps from there; whole layers go first
- one number of a rank with several chunks is dealt to them one layer at a time, the first chunk first
- a number above the layers of its chunk means all of them
- patterns (a list of them, or a table with a choice for each) name parts of a layer; without, it is the activation
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shardwise.errors import Fault
from shardwise.frameworks.imported import ImportDraft
from shardwise.frameworks.mindformers.names import MINDFORMERS_COMM, MINDFORMERS_READ_PATTERNS
from shardwise.inputs.foreign import Foreign
from shardwise.inputs.recompute import MODULES, Recompute

Counts = tuple[int, ...]
Kinds = dict[frozenset[str], Counts]
FULL = frozenset({"full"})


class ReadLists:
    """The choices of a file, each as layers of every chunk in model order; faults and notes go into the draft."""

    def __init__(self, draft: ImportDraft, keys: Foreign, layers: Counts | None, *, named: bool) -> None:
        """`layers`: of every chunk, where they are known; `named`: lists name layers one by one (`swap_config`)."""
        self.draft, self.keys, self.layers, self.named = draft, keys, layers, named
        self.pp, self.vpp = draft.number("pp"), draft.number("vpp")
        self.back = draft.fields.get("schedule") == "zb-v"

    def counts(self, value: object, at: str) -> Counts | bool | None:
        """Layers of every chunk; true or false where that is all that is said, None after a fault."""
        if value is None or isinstance(value, bool):
            return bool(value)
        if self.named:
            self._fault(at, "holds numbers of layers, not counts, as swap_config.swap is true; that is not read: "
                            "write true or false, or swap: false")  # fmt: skip
            return None
        if not isinstance(value, list):
            number = self.draft.whole(at, value, row="Recompute.layers")
            return None if number is None else self._capped([number] * (self.pp * self.vpp), at)
        rows = value if value and all(isinstance(row, list | bool) for row in value) else [value]
        if len(rows) != self.vpp or (self.vpp == 1 and rows[0] in (True, False)):
            rows = [value]
        if self._misshapen(rows, at):
            return None
        if len(rows) < self.vpp:
            return self._dealt(rows[0], at)
        found = [self._row(row, turn, f"{at}.{turn}" if self.vpp > 1 else at) for turn, row in enumerate(rows)]
        flat = [item for row in found for item in row]
        return None if None in flat else self._capped([item for item in flat if item is not None], at)

    def _misshapen(self, rows: list[Any], at: str) -> bool:
        wrong = [
            row for row in rows if not isinstance(row, bool) and not (isinstance(row, list) and len(row) == self.pp)
        ]
        flat_v = self.back and self.vpp == 2 and len(rows) == 1
        if not wrong and not flat_v:
            return False
        each = f"{self.vpp} lists of pp {self.pp} numbers" if flat_v else (
            f"a list of pp {self.pp} whole numbers, or vpp {self.vpp} such lists, one per chunk"
        )  # fmt: skip
        self._fault(at, f"must be {each}")
        return True

    def _row(self, row: list[Any] | bool, turn: int, at: str) -> list[int | None]:
        """A row in model order: on a v the second is in the order of the ranks."""
        items = [row] * self.pp if isinstance(row, bool) else row
        items = items[::-1] if self.back and turn % 2 else items
        return [self._item(item, turn * self.pp + place, at) for place, item in enumerate(items)]

    def _item(self, item: object, chunk: int, at: str) -> int | None:
        if item is False:
            return 0
        if item is True:
            if self.layers is None:
                self._fault(at, "says true for all layers of a chunk; give num_layers, too")
                return None
            return self.layers[chunk]
        return self.draft.whole(at, item, row="Recompute.layers")

    def _dealt(self, row: list[Any], at: str) -> Counts | None:
        """A number of every rank, dealt to its chunks a layer at a time."""
        if self.layers is None:
            self._fault(at, f"has a number for every rank; give num_layers too, or vpp {self.vpp} lists, one per chunk")
            return None
        found = [0] * len(self.layers)
        for rank, item in enumerate(row):
            own = range(rank, len(found), self.pp)
            whole = sum(self.layers[chunk] for chunk in own)
            number = (
                whole if item is True else 0 if item is False else self.draft.whole(at, item, row="Recompute.layers")
            )
            if number is None:
                return None
            left = min(number, whole)
            while left:
                for chunk in own:
                    if left and found[chunk] < self.layers[chunk]:
                        found[chunk], left = found[chunk] + 1, left - 1
        said = "; ".join(",".join(map(str, found[turn : turn + self.pp])) for turn in range(0, len(found), self.pp))
        self.draft.assumed.append(f"{at}: dealt to the chunks of every rank, as MindFormers does: {said}")
        return tuple(found)

    def _capped(self, counts: list[int], at: str) -> Counts:
        if self.layers is None:
            return tuple(counts)
        found = tuple(map(min, counts, self.layers))
        if found != tuple(counts):
            self.draft.assumed.append(f"{at}: more than a chunk has is all of it, as in MindFormers: {_said(found)}")
        return found

    def _fault(self, at: str, message: str) -> None:
        self.draft.faults.append(Fault(at, message))

    def choice(self, name: str) -> Counts | bool:
        """One choice of the file; false after a fault."""
        self.keys.read.add(name)
        return self.counts(self.keys.data.get(name), self.keys.path(name)) or False

    def patterns(self, name: str, known: Mapping[str, str], default: str) -> dict[str, Counts | bool]:
        """Parts of a layer, each with its layers; patterns that have no part of ours are named."""
        value = self.keys.data.get(name)
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            value = dict.fromkeys(value, True)
        if not isinstance(value, dict):
            return {default: self.choice(name)}
        self.keys.read.add(name)
        found: dict[str, Counts | bool] = {}
        for pattern, chosen in value.items():
            if pattern not in known:
                self.draft.ignored.append(f"{name} {pattern}: not known")
                continue
            counts = self.counts(chosen, f"{self.keys.path(name)}.{pattern}") or False
            module = known[pattern]
            if found.setdefault(module, counts) != counts:
                said = f"{self.keys.path(name)}: patterns of {module} name other layers; those of the first are taken"
                self.draft.assumed.append(said)
        return found

    def parts(self) -> dict[str, Counts | bool]:
        """All choices of the file by what is recomputed, each with its layers."""
        found = {"full": self.choice("recompute")}
        found |= self.patterns("select_recompute", MINDFORMERS_READ_PATTERNS, "activation")
        return found | self.patterns("select_comm_recompute", MINDFORMERS_COMM, "comm")


def take_recompute(draft: ImportDraft, keys: Foreign, layers: Counts | None, *, named: bool) -> None:
    """The recompute of a file, as far as one strategy says it; what it cannot say is named with its numbers."""
    parts = ReadLists(draft, keys, layers, named=named).parts()
    parts = {name: counts for name, counts in parts.items() if counts is not False and counts != ()}
    if not parts:
        return
    said = " and ".join(name for name in ("recompute", "select_recompute", "select_comm_recompute") if keys.has(name))
    if all(counts is True for counts in parts.values()):
        if "full" in parts and len(parts) > 1:
            draft.ignored.append("select_recompute and select_comm_recompute: full recompute covers them")
        draft.take("recompute", _named(FULL if "full" in parts else frozenset(parts)), f"recompute_config.{said}")
        return
    written = _written(draft, parts, layers)
    kinds = kinds_of(written) if written else {}
    if kinds:
        _take(draft, kinds, f"recompute_config.{said}")


def _written(draft: ImportDraft, parts: Mapping[str, Counts | bool], layers: Counts | None) -> dict[str, Counts]:
    """Every choice as numbers, all layers included."""
    if layers is None and any(counts is True for counts in parts.values()):
        draft.faults.append(Fault("recompute_config", "has lists beside true for all layers; give num_layers, too"))
        return {}
    return {name: (layers or ()) if isinstance(counts, bool) else counts for name, counts in parts.items()}


def kinds_of(parts: Mapping[str, Counts]) -> Kinds:
    """How layers are recomputed: which parts together -> layers of every chunk, the widest kind first.

    Layer i of a chunk is in all choices that name more than i layers of it; a whole layer is in no other.
    """
    chunks = len(next(iter(parts.values())))
    found: dict[frozenset[str], list[int]] = {}
    for chunk in range(chunks):
        for layer in range(max(counts[chunk] for counts in parts.values())):
            named = frozenset(name for name, counts in parts.items() if counts[chunk] > layer)
            kind = FULL if "full" in named else named
            found.setdefault(kind, [0] * chunks)[chunk] += 1
    order = sorted(found, key=lambda kind: (kind != FULL, -len(kind), _modules(kind)))
    return {kind: tuple(found[kind]) for kind in order}


def _take(draft: ImportDraft, kinds: Kinds, theirs: str) -> None:
    widest = FULL if FULL in kinds else frozenset[str]().union(*kinds)
    counts = tuple(map(sum, zip(*kinds.values(), strict=True)))
    value = _named(widest, counts)
    draft.take("recompute", value, theirs)
    if len(kinds) > 1:
        told = "; ".join(f"{_named(kind, layers)}" for kind, layers in kinds.items())
        draft.assumed.append(
            f"recompute: the file mixes {told}; a strategy has one kind, and {value} is taken, so memory may be more "
            "and time less than estimated"
        )


def _named(kind: Iterable[str], layers: Counts = ()) -> Recompute:
    full = "full" in kind
    return Recompute(full=full, modules=() if full else _modules(kind), layers=layers)


def _modules(kind: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in MODULES if name in set(kind))


def _said(counts: Iterable[int]) -> str:
    return ",".join(map(str, counts))
