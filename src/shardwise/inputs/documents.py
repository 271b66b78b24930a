"""How long the documents of the training data are, and how they come into sequences of one length.

A histogram is kept in at most `MOST` lengths. Those of a longer one share the tokens of theirs: a bin's length is the
mean over its tokens, so that its sums of lengths and of their squares stay as they were, but for rounding to a whole
token.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, log
from pathlib import Path
from typing import Literal

from shardwise.errors import Fault, FileError, InputError
from shardwise.inputs.serialise import later

Packing = Literal["packed", "balanced", "unmasked", "padded"]

MOST = 64
"""Lengths that are kept. Over 2^17 tokens neighbours are then a fifth apart, and the sum of squares is kept to 0.1%."""
LONGEST = 10**9
_PAIR = re.compile(r"([0-9]{1,10})(?:x([0-9]{1,18}(?:\.[0-9]{1,18})?(?:e[+-]?[0-9]{1,2})?))?")
_LINE = re.compile(r"\s*([0-9]{1,10})\s*(?:[,;\t ]\s*([0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE]\+?[0-9]{1,2})?))?\s*")
_SHOWN = "write length,count on every line, or one length a line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Lengths of documents, and how many there are of each: only the shares matter. `check` says where they differ."""

    lengths: tuple[int, ...]
    """Tokens of a document, ascending."""
    counts: tuple[float, ...]
    """Documents of each length."""
    source: str = later("")
    """The file that they were read from."""

    @property
    def tokens(self) -> float:
        return sum(length * count for length, count in zip(self.lengths, self.counts, strict=False))

    @property
    def mean(self) -> float:
        """Tokens of a document."""
        return self.tokens / sum(self.counts)

    def within(self, seq: int) -> float:
        """Mean tokens of a document that is cut off at a length: what a padded sequence of it holds."""
        cut = sum(min(length, seq) * count for length, count in zip(self.lengths, self.counts, strict=False))
        return cut / sum(self.counts)

    def lattice(self, seq: int) -> int:
        """What every place where a document or a sequence begins is a multiple of."""
        return gcd(seq, *self.lengths)

    def __str__(self) -> str:
        """The word of a strategy's line that stands for it."""
        if self.source and self.source.isprintable() and not re.search(r"\s", self.source):
            return self.source
        pairs = zip(self.lengths, self.counts, strict=False)
        return ",".join(f"{length}" + (f"x{count:.12g}" if count != 1 else "") for length, count in pairs)

    @classmethod
    def parse(cls, text: str, *, files: bool = True) -> Documents:
        """`512x3,2048` (three of 512 tokens for one of 2048), or the file that has them. `files`: it may be one; a
        stranger's word opens none.
        """
        found = [_PAIR.fullmatch(part) for part in text.split(",")]
        if all(found):
            return documents_of(((int(one[1]), float(one[2] or 1)) for one in found if one), "strategy.documents")
        if not files:
            told = f"{_short(text)} is no list of lengths; write 512x3,2048, or give a file by --documents"
            raise InputError(Fault("strategy.documents", told))
        return read_documents(text)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def documents_of(pairs: Iterable[tuple[int, float]], at: str, source: str = "") -> Documents:
    """Lengths with their counts, in as many bins as are kept. `at`: what is said to be wrong."""
    counts: Counter[int] = Counter()
    for length, count in pairs:
        counts[length] += count  # type: ignore[assignment]
    kept = {length: float(count) for length, count in sorted(counts.items()) if count}
    if not kept:
        raise InputError(Fault(at, f"holds no document; {_SHOWN}"))
    if not (min(kept) >= 1 and max(kept) <= LONGEST):
        wrong = next(length for length in kept if not 1 <= length <= LONGEST)
        raise InputError(Fault(at, f"{wrong:,} is no length of a document; give 1 to {LONGEST:,} tokens"))
    kept = kept if len(kept) <= MOST else _binned(kept)
    return Documents(lengths=tuple(kept), counts=tuple(kept.values()), source=source)


def _binned(counts: dict[int, float]) -> dict[int, float]:
    low, high = log(min(counts)), log(max(counts))
    sums: dict[int, tuple[float, float]] = {}
    for length, count in counts.items():
        place = min(MOST - 1, int((log(length) - low) / (high - low) * MOST))
        tokens, squares = sums.get(place, (0.0, 0.0))
        sums[place] = tokens + count * length, squares + count * length * length
    found: dict[int, float] = {}
    for tokens, squares in sums.values():
        mean = round(squares / tokens)
        found[mean] = found.get(mean, 0.0) + tokens / mean
    return found


@lru_cache(maxsize=16)
def read_documents(path: str) -> Documents:
    """From a CSV of `length,count`, one length a line, or JSON: a list of lengths, or a table of counts by length."""
    from shardwise.inputs.files import read_json, read_text

    if not _is_there(path):
        told = f"{_short(path)} is neither a file nor lengths; give a file of lengths, or write 512x3,2048"
        raise InputError(Fault("strategy.documents", told))
    pairs = _of_json(read_json(path), path) if path.lower().endswith(".json") else _of_lines(read_text(path), path)
    try:
        return documents_of(pairs, path, path)
    except FileError:
        raise
    except InputError as error:
        raise FileError(path, error.faults[0].message) from None


def _is_there(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # longer than any name, or with a NUL byte
        return False


def _of_lines(text: str, path: str) -> Iterable[tuple[int, float]]:
    first = True
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found:
            yield int(found[1]), float(found[2] or 1)
        elif not (first and _is_head(line)):
            raise FileError(path, f"line {number}, {line.strip()[:40]!r}, is no length with its count; {_SHOWN}")
        first = False


def _is_head(line: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z_ \"]+([,;\t][A-Za-z_ \"]+)?", line.strip()))


def _of_json(data: object, path: str) -> Iterable[tuple[int, float]]:
    if isinstance(data, dict):
        entries: Iterable[object] = [
            [int(key) if re.fullmatch("[0-9]{1,10}", str(key)) else key, count] for key, count in data.items()
        ]
    else:
        entries = data if isinstance(data, list) else [data]
    for entry in entries:
        length, count = entry if isinstance(entry, list) and len(entry) == 2 else (entry, 1)
        if not _is_whole(length) or isinstance(count, bool) or not isinstance(count, int | float) or count < 0:
            told = json.dumps(entry, default=str)[:40]
            raise FileError(path, f"{told} is no length with its count; write [[512, 3], [2048, 1]]")
        yield length, float(count)  # type: ignore[misc]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
