"""What a child process can do: read a request's body, compute, and say the answer as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from shardwise.errors import Fault, InputError, ShardwiseError
from shardwise.web.stream import Event

_NOT_FINITE = "these numbers lead to no finite answer; correct those that no machine has"
MOST_FAULTS = 50
"""Faults that one answer lists."""
Say = Callable[[Event], None]
Data = dict[str, Any]


class Desk:
    """Does tasks one after the other; `say` sends a message, `stop` tells whether a search is to end."""

    def __init__(self, *, say: Say, stop: Callable[[], bool]) -> None:
        self.say = say
        self.stop = stop

    def warm_up(self) -> None:
        """Import what the first question needs, before it comes."""
        from shardwise.web import answers, search

        assert answers  # noqa: S101 - imported for its weight
        assert search  # noqa: S101

    def do(self, task: Event) -> None:
        """Do one task; what is wrong with the question is its answer."""
        from shardwise.web import answers, search

        try:
            if task.word == "plan":
                search.run(task.body, self.say, self.stop)
            elif task.word in answers.TEXT:
                self.say(Event("200", answers.TEXT[task.word](task.body).encode()))
            else:
                self.say(Event("200", encode(answers.JSON[task.word](task.body))))
        except ShardwiseError as error:
            self._fail(task, error)
        except (OverflowError, ZeroDivisionError):
            self._fail(task, InputError(_NOT_FINITE))

    def _fail(self, task: Event, error: ShardwiseError) -> None:
        self.say(Event("failed" if task.word == "plan" else "422", encode(error_of(error))))


def encode(value: object) -> bytes:
    """JSON bytes without a line break."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:  # from numbers that are each allowed: a bandwidth of 1e-300
        raise InputError(_NOT_FINITE) from None


def error_of(error: ShardwiseError) -> Data:
    """`{"error": {"message", "faults": [{"where", "what"}]}}`."""
    faults: tuple[Fault, ...] = error.faults if isinstance(error, InputError) else ()
    told = [{"where": _cut(fault.path), "what": _cut(fault.message)} for fault in faults[:MOST_FAULTS]]
    return {"error": {"message": _cut(str(error), 4000), "faults": told}}


def _cut(text: str, most: int = 1000) -> str:
    return text if len(text) <= most else f"{text[:most]} ..."
