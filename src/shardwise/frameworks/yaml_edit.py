"""Single values of a YAML text changed in place; comments, order, quotes, anchors and line ends stay byte for byte.

A list of the same shape is changed number by number, so that it stays as it is written; anything else is written anew
on the line of its key. A key that is missing goes behind a neighbour. What is changed is read back: every other value
must be what it was, or nothing is given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.frameworks.yaml_spans import BREAKS, Key, Span, Way, spans
from shardwise.inputs.files import parse_mapping

_LINE = re.compile(rf"[^{BREAKS}]*")
_BREAK = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
Value = bool | int | str | list[Any] | dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """A text with other values."""

    text: str
    notes: tuple[str, ...] = ()
    """What changed with them: values of the same name that an alias makes equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece of the text in place of another."""

    start: int
    end: int
    text: str


def edited(text: str, changes: Mapping[Way, Value], name: str, after: Mapping[str, Sequence[str]]) -> Edited:
    """The text with these values, each by the keys that lead to it.

    `name`: the file, in errors; `after`: behind which neighbours a key goes that is missing, the first that is there.
    """
    if not changes:
        return Edited(text=text)
    editor = _Editor(text, name, after)
    for way, value in _grouped(editor.root, changes, editor).items():
        editor.put(way, value)
    found, followers = editor.text_now(), editor.followers()
    wanted = parse_mapping(text, name)
    for way, value in (*changes.items(), *followers.items()):
        _set(wanted, way, value)
    if _plain(parse_mapping(found, name)) != _plain(wanted):
        ways = ", ".join(".".join(map(str, way)) for way in changes)
        raise InputError(f"{name}: is written in a way in which {ways} cannot be changed alone; change them by hand")
    lines = (f"line {editor.line(way)}: {_said(way)} follows by its alias" for way in followers)
    return Edited(text=found, notes=tuple(lines))


def _grouped(root: Span, changes: Mapping[Way, Value], editor: _Editor) -> dict[Way, Value]:
    """Changes below a table that is missing, as one change that makes it."""
    found: dict[Way, Value] = {}
    for way, value in changes.items():
        depth = editor.depth(root, way)
        held, inner = way[: depth + 1], way[depth + 1 :]
        if inner:
            table = found.setdefault(held, {})
            assert isinstance(table, dict)  # noqa: S101 - for the type checker
            _set(table, inner, value)
        else:
            found[held] = value
    return found


def _set(table: Any, way: Way, value: Value) -> None:  # noqa: ANN401 - what a file holds
    *above, last = way
    for key in above:
        if isinstance(table, dict) and not isinstance(table.get(key), dict | list):
            table[key] = {}
        table = table[key]
    table[last] = value


def _plain(data: object) -> str:
    """A text that tells true from 1 and takes tables in any order."""
    return json.dumps(data, sort_keys=True, default=repr)


def _said(way: Way) -> str:
    return ".".join(map(str, way))


class _Editor:
    """Gathers the pieces of one text."""

    def __init__(self, text: str, name: str, after: Mapping[str, Sequence[str]]) -> None:
        self.text, self.name, self.after = text, name, after
        self.root = spans(text)
        self.pieces = list[Piece]()
        self.touched: dict[Way, tuple[Span, Value]] = {}
        breaks = _BREAK.search(text)
        self.end_of_line = breaks[0] if breaks else "\n"
        self.small = bool(re.search(r":\s*(true|false)\b", text)) and not re.search(r":\s*(True|False)\b", text)

    def depth(self, root: Span, way: Way) -> int:
        """How many keys of the way lead to tables that are there, the last key left aside."""
        table, depth = root, 0
        for key in way[:-1]:
            inner = table.at(str(key))
            if inner is None and table.at("<<") is not None:
                self.refuse(table, f"{_said(way)} comes through a merge (<<); write the table out there")
            if inner is None or (inner.kind == "scalar" and not inner.value):
                return depth
            if inner.kind != "table":
                what = "an alias of another table" if inner.kind == "alias" else "no table"
                self.refuse(inner, f"{_said(way[: depth + 1])} is {what}; write its keys out there")
            table, depth = inner, depth + 1
        return depth

    def line(self, way: Way) -> int:
        table = self.root
        for key in way:
            inner = table.inner[key] if isinstance(key, int) else table.at(key)
            if inner is None:
                break
            table = inner
        return self.line_of(table.outer)

    def line_of(self, place: int) -> int:
        return len(_BREAK.findall(self.text, 0, place)) + 1

    def refuse(self, span: Span, why: str) -> None:
        raise InputError(Fault(f"line {self.line_of(span.outer)}", why), title=self.name)

    def put(self, way: Way, value: Value) -> None:
        """Change the value at the end of the way, or add its key to the last table of it."""
        table = self.root
        for key in way[:-1]:
            inner = table.at(str(key))
            assert inner is not None  # noqa: S101 - `depth` walked there
            table = inner
        old = table.at(str(way[-1]))
        if old is None:
            self.add(table, str(way[-1]), value)
        else:
            self.change(old, value)
        self.touched[way] = (old or table, value)

    def change(self, old: Span, value: Value) -> None:
        if _same_shape(old, value):
            self.change_items(old, value)
            return
        comments = [gap for gap in self.gaps(old) if "#" in gap]
        head = _LINE.match(self.text, old.start + 1)
        first = head[0].strip() if head and old.flow and comments and head[0].lstrip().startswith("#") else ""
        if comments and (len(comments) > 1 or comments[0].strip("[{ \t" + BREAKS) != first):
            self.refuse(old, f"{_said(old.way)} holds comments among its items, which would be lost as its shape "
                             "changes; move them above it")  # fmt: skip
        if old.kind == "alias" or old.flow:
            space = "" if old.start == 0 or self.text[old.start - 1] in f" \t{BREAKS}[{{," else " "
            self.replace(old.start, old.end, space + self.shown(value, old) + (f"  {first}" if first else ""))
        else:
            self.unblock(old, value)

    def change_items(self, old: Span, value: Value) -> None:
        """Only the items that differ, each where it stands."""
        assert isinstance(value, list)  # noqa: S101 - for the type checker
        now: Any = parse_mapping(self.text, self.name)
        for key in old.way:
            now = now[key]
        for one, new, was in _leaves(old, value, now):
            if _plain(new) != _plain(was):
                self.replace(one.start, one.end, self.shown(new, one))

    def unblock(self, old: Span, value: Value) -> None:
        """A list of dashes, or a table of lines, as one in brackets on the line of its key."""
        first, last = self.line_start(old.start), self.line_end(old.end)
        rest = self.text[old.end : last]
        if "#" in rest:
            self.refuse(old, f"{_said(old.way)} ends in a comment, which would be lost as its shape changes; move it "
                             "above the key")  # fmt: skip
        colon = self.key_end(old)
        self.replace(colon, colon, " " + self.shown(value, old))
        before = first - (2 if self.text[max(0, first - 2) : first] == "\r\n" else 1)
        self.replace(before, last, "")

    def key_end(self, old: Span) -> int:
        """Behind the colon of its key, or behind its anchor."""
        if old.outer < old.start and self.text[old.outer] in "&!":
            head = self.text[old.outer : old.start]
            return old.outer + len(re.match(r"(?:[&!]\S*[ \t]*)+", head)[0].rstrip())  # type: ignore[index]
        parent = self.root
        for key in old.way[:-1]:
            inner = parent.inner[key] if isinstance(key, int) else parent.at(key)
            assert inner is not None  # noqa: S101 - the way was walked
            parent = inner
        own = next(key for key, one in parent.pairs() if one is old)
        return max(self.text.find(":", own.end) + 1, own.end)

    def gaps(self, old: Span) -> Iterator[str]:
        """What stands between the items of a list or a table."""
        if old.kind not in {"list", "table"}:
            return
        place = old.start
        for one in sorted((*old.keys, *old.inner), key=lambda one: one.start):
            yield self.text[place : one.outer]
            yield from self.gaps(one)
            place = one.end
        yield self.text[place : old.end]

    def add(self, table: Span, key: str, value: Value) -> None:
        """A key that was not there, behind a neighbour."""
        pair = f"{key}: {self.shown(value)}"
        if not table.keys:
            self.replace(table.start, table.end, f"{{{pair}}}")
            return
        names = [one.value for one in table.keys]
        wanted = next((names.index(one) for one in self.after.get(key, ()) if one in names), len(names) - 1)
        name, neighbour = table.keys[wanted], table.inner[wanted]
        place = max(name.end, neighbour.end)
        if table.flow:
            self.replace(place, place, f", {pair}")
            return
        column = table.keys[0].outer - self.line_start(table.keys[0].outer)
        place = self.line_end(max(place, self.key_end(neighbour)))
        self.replace(place, place, self.end_of_line + " " * column + pair)

    def replace(self, start: int, end: int, text: str) -> None:
        self.pieces.append(Piece(start=start, end=end, text=text))

    def line_start(self, place: int) -> int:
        while place > 0 and self.text[place - 1] not in BREAKS:
            place -= 1
        return place

    def line_end(self, place: int) -> int:
        found = _LINE.match(self.text, place)
        return found.end() if found else place

    def text_now(self) -> str:
        made, place = list[str](), 0
        for piece in sorted(self.pieces, key=lambda piece: piece.start):
            made += [self.text[place : piece.start], piece.text]
            place = piece.end
        return "".join([*made, self.text[place:]])

    def shown(self, value: Value, old: Span | None = None) -> str:
        """A value as it is written; true and false, and quotes, as before."""
        if isinstance(value, bool):
            return str(value).lower() if (old.value.islower() if old and old.value else self.small) else str(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self.shown, value))}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{_word(key)}: {self.shown(one)}' for key, one in value.items())}}}"
        quote = self.text[old.start] if old and old.start < len(self.text) and old.kind == "scalar" else ""
        return f"{quote}{value}{quote}" if isinstance(value, str) and quote in {"'", '"'} else str(value)

    def followers(self) -> dict[Way, Value]:
        """Other values that change with what is changed, as an alias says; those of another name are refused."""
        found: dict[Way, Value] = {}
        aliases = [one for one in self.root.walk() if one.kind == "alias"]
        gone = [(piece.start, piece.end) for piece in self.pieces if piece.end > piece.start]
        for way, (_, value) in self.touched.items():
            for held in self.anchored(way):
                for alias in aliases:
                    if alias.anchor != held.anchor or any(a <= alias.start < b for a, b in gone):
                        continue
                    if alias.name != held.name or len(held.way) > len(way):
                        self.refuse(alias, f"{_said(alias.way)} is *{held.anchor}, which changes as {_said(way)} does; "
                                           "write its value out there")  # fmt: skip
                    found[(*alias.way, *way[len(held.way) :])] = value
        return found

    def anchored(self, way: Way) -> Iterator[Span]:
        """Values with an anchor on the way, at its end and inside of what is there."""
        table: Span | None = self.root
        for key in way:
            table = table.at(str(key)) if table else None
            if table and table.anchor and table.kind != "alias":
                yield table
        if table and table.kind in {"list", "table"}:
            yield from (one for one in table.walk() if one is not table and one.anchor and one.kind != "alias")


def _same_shape(old: Span, value: Value) -> bool:
    """Whether a list holds as many plain items as another, row by row."""
    if old.kind != "list" or not isinstance(value, list) or len(old.inner) != len(value):
        return False
    return all(
        not one.anchor and (_same_shape(one, new) if isinstance(new, list) else one.kind == "scalar" and one.value)
        for one, new in zip(old.inner, value, strict=True)
    )


def _leaves(old: Span, value: list[Any], now: Any) -> Iterator[tuple[Span, Any, Any]]:  # noqa: ANN401
    for one, new, was in zip(old.inner, value, now, strict=True):
        if isinstance(new, list):
            yield from _leaves(one, new, was)
        else:
            yield one, new, was


def _word(key: Key) -> str:
    """A key in brackets, in quotes where its letters mean something there."""
    text = str(key)
    return text if re.fullmatch(r"[A-Za-z_][\w.]*", text) else "'" + text.replace("'", "''") + "'"
