"""A search as events: progress, points as they are simulated, and the plan at its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from shardwise import api
from shardwise.errors import InfeasibleError
from shardwise.inputs.serialise import to_plain
from shardwise.report.view import candidate_view, plan_view
from shardwise.web.question import searched
from shardwise.web.stream import Event
from shardwise.web.tasks import Data, Say, encode
from shardwise.web.untrusted import read_body

if TYPE_CHECKING:
    from shardwise.search.question import Answer, Closest
    from shardwise.search.search import Search


class Follower:
    """Turns the reports of a search into events."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.sent = 0
        self.began = time.monotonic()

    def __call__(self, search: Search) -> None:
        fresh = [one for _, one in search.tried[self.sent :]]
        self.sent += len(fresh)
        if fresh:
            self.say(Event("point", encode({"points": [candidate_view(one) for one in fresh]})))
        self.say(Event("progress", encode(self._progress(search))))

    def _progress(self, search: Search) -> Data:
        best, bound = search.best, search.bound if math.isfinite(search.bound) and search.bound > 0 else None
        return {
            "evaluated": search.points,
            "considered": search.size,
            "pruned": search.pruned,
            "left_open": search.size - search.points - search.pruned,
            "best": {"strategy": str(best.strategy), "seconds": best.seconds} if best else None,
            "bound": bound,
            "gap": max(0.0, best.seconds / bound - 1) if best and bound else None,
            "memory_limit": search.question.memory_limit,
            "seconds": time.monotonic() - self.began,
        }


def run(body: bytes, say: Say, stop: Callable[[], bool]) -> None:
    """Search, and say what happens; the last event is `done`, or `failed` by the error that is raised."""
    asked = searched(read_body(body))
    answer = api.plan(**asked.question, **asked.effort, report=Follower(say), stop=stop)
    if answer.best is None and not answer.finished:
        raise InfeasibleError(api.why_nothing(answer))
    say(Event("done", encode(_done(answer))))


def _done(answer: Answer) -> Data:
    found = api.plan_of(answer) if answer.best else None
    return {
        "plan": api.plan_table(found) if found else None,
        "view": plan_view(found, answer) if found else None,
        "top": [candidate_view(one, answer) for one in answer.top],
        "finished": answer.finished,
        "closest": _closest(answer, answer.closest) if answer.closest else None,
        "message": "" if found else api.why_nothing(answer),
    }


def _closest(answer: Answer, near: Closest) -> Data:
    return {
        "strategy": str(near.strategy),
        "missing_bytes": near.missing,
        "needed_bytes": near.missing + answer.question.memory_limit,
        "limit_bytes": answer.question.memory_limit,
        "memory_bytes": answer.question.cluster.gpu.memory,
        "gpus": near.gpus or None,
        "cluster": f"{near.gpus}x{answer.question.cluster.gpu.name}" if near.gpus else None,
        "at_gpus": str(near.at_gpus) if near.at_gpus else None,
        "seconds": near.seconds,
        "ledger": [{"name": part.name, "value": part.value} for part in near.ledger.parts],
        "ladder": [{**to_plain(rung), "strategy": str(rung.strategy)} for rung in near.ladder],
    }
