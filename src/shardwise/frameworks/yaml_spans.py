"""Where every value of a YAML text stands, so that single values can be changed and all else stays byte for byte.

The marks are PyYAML's own; anchors and tags stand before a span, comments and spaces behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import yaml

BREAKS = "\r\n\x85\u2028\u2029"
"""What ends a line of YAML."""
_BEFORE = re.compile(rf"(?:[&!][^\s,\[\]{{}}]*[ \t{BREAKS}]*)*")
"""Anchors and tags of a value."""
Key = str | int
Way = tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A value of the text, and those inside of it."""

    kind: Literal["scalar", "list", "table", "alias"]
    way: Way
    """Keys and places that lead to it."""
    start: int
    """Where it begins, behind its anchor and tag."""
    end: int
    outer: int
    """Where its anchor begins, where it has one."""
    anchor: str = ""
    """Its own, or the one that an alias stands for."""
    flow: bool = True
    """Whether it is written in brackets, or within some; scalars are."""
    value: str = ""
    """What a scalar says."""
    inner: tuple[Span, ...] = ()
    """Values of a list or a table."""
    keys: tuple[Span, ...] = ()
    """Keys of a table."""

    def at(self, key: str) -> Span | None:
        """The value of a table's own key, not one that comes by a merge."""
        return next((value for name, value in self.pairs() if name.kind == "scalar" and name.value == key), None)

    def pairs(self) -> Iterator[tuple[Span, Span]]:
        return zip(self.keys, self.inner, strict=True)

    def walk(self) -> Iterator[Span]:
        """It and all values inside of it, in the order of the text."""
        yield self
        for one in self.inner:
            yield from one.walk()

    @property
    def name(self) -> str:
        """The nearest key above it."""
        return next((key for key in reversed(self.way) if isinstance(key, str)), "")


def spans(text: str) -> Span:
    """The whole text; it is YAML of one document, which the reader of files made sure of."""
    events = [event for event in yaml.parse(text, Loader=yaml.SafeLoader) if isinstance(event, _VALUES)]
    return _Builder(text, iter(events)).value(())


def _begin(event: yaml.Event) -> int:
    assert event.start_mark is not None  # noqa: S101 - only for events that no parser made
    return event.start_mark.index


def _end(event: yaml.Event) -> int:
    assert event.end_mark is not None  # noqa: S101 - as above
    return event.end_mark.index


_VALUES = (yaml.NodeEvent, yaml.CollectionEndEvent)


class _Builder:
    """Takes the events of PyYAML's parser one by one."""

    def __init__(self, text: str, events: Iterator[yaml.Event]) -> None:
        self.text, self.events = text, events

    def value(self, way: Way) -> Span:
        found = self.next(way)
        assert found is not None  # noqa: S101 - the parser closes what it opened
        return found

    def next(self, way: Way) -> Span | None:
        """The next value; None at the end of the list or the table."""
        event = next(self.events)
        if isinstance(event, yaml.CollectionEndEvent):
            self.closed = event
            return None
        outer, anchor = _begin(event), getattr(event, "anchor", None) or ""
        if isinstance(event, yaml.AliasEvent):
            return Span(kind="alias", way=way, start=outer, end=_end(event), outer=outer, anchor=anchor)
        if isinstance(event, yaml.ScalarEvent):
            start, end = self.bare(outer, _end(event))
            value = event.value
            return Span(kind="scalar", way=way, start=start, end=end, outer=outer, anchor=anchor, value=value)
        return self.collection(event, way, outer, anchor)

    def bare(self, outer: int, end: int) -> tuple[int, int]:
        """A scalar without what stands before it and without the line breaks of a block behind it."""
        before = _BEFORE.match(self.text, outer, end)
        start = before.end() if before else outer
        while end > start and self.text[end - 1] in f" \t{BREAKS}":
            end -= 1
        return min(start, end), end

    def collection(self, event: yaml.Event, way: Way, outer: int, anchor: str) -> Span:
        flow, table = bool(getattr(event, "flow_style", False)), isinstance(event, yaml.MappingStartEvent)
        mark = _end(event)  # behind a bracket, or behind the first dash where dashes stand below their key
        start = mark - 1 if flow or (not table and not self.text.startswith("-", mark)) else mark
        keys, inner = self.table(way) if table else ([], self.list(way))
        end = _end(self.closed) if flow else max((one.end for one in (*keys, *inner)), default=start)
        return Span(
            kind="table" if table else "list", way=way, start=start, end=end, outer=outer, anchor=anchor, flow=flow,
            inner=tuple(inner), keys=tuple(keys),
        )  # fmt: skip

    def table(self, way: Way) -> tuple[list[Span], list[Span]]:
        keys, inner = list[Span](), list[Span]()
        while (key := self.next(way)) is not None:
            keys.append(key)
            inner.append(self.value((*way, key.value)))
        return keys, inner

    def list(self, way: Way) -> list[Span]:
        found = list[Span]()
        while (one := self.next((*way, len(found)))) is not None:
            found.append(one)
        return found
