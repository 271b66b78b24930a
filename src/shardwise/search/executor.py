"""Where simulations run: in this process, in a pool of processes, or on a Ray cluster. The answers are the same.

A worker that dies takes its batch with it; the batch is done again, in a new pool, and in this process if that fails
too. Simulations have no side effects, so nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from typing import Any, Protocol

from shardwise.errors import MissingExtraError
from shardwise.inputs.gate import held, word
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import Strategy
from shardwise.search.question import Question
from shardwise.search.refine import Refined, refine

TRIES = 3
SHARE = 4
"""Strategies that a worker takes at a time."""


class Executor(Protocol):
    """Refines strategies; the results come in order, each as soon as it is there. `goal`: seconds to beat."""

    def refine(self, question: Question, strategies: Sequence[Strategy], goal: float) -> Iterator[Refined | None]: ...

    def close(self) -> None: ...


class Serial:
    """In this process."""

    def refine(self, question: Question, strategies: Sequence[Strategy], goal: float) -> Iterator[Refined | None]:
        return (refine(question, strategy, goal) for strategy in strategies)

    def close(self) -> None:
        pass


def _several(question: Question, strategies: Sequence[Strategy], goal: float) -> list[Refined | None]:
    return list(Serial().refine(question, strategies, goal))


def _shares(strategies: Sequence[Strategy]) -> list[Sequence[Strategy]]:
    return [strategies[start : start + SHARE] for start in range(0, len(strategies), SHARE)]


class Pool:
    """A pool of processes on this machine."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.pool = ProcessPoolExecutor(workers)

    def refine(self, question: Question, strategies: Sequence[Strategy], goal: float) -> Iterator[Refined | None]:
        done = 0
        for _ in range(TRIES):
            try:
                futures = [self.pool.submit(_several, question, share, goal) for share in _shares(strategies[done:])]
                for future in futures:
                    found = future.result()
                    done += len(found)
                    yield from found
            except BrokenProcessPool:
                self.pool = ProcessPoolExecutor(self.workers)
            else:
                return
        yield from _several(question, strategies[done:], goal)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


class Ray:
    """A Ray cluster; one is started on this machine where no address is given."""

    def __init__(self, workers: int = 0, address: str | None = None) -> None:
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise MissingExtraError("--executor ray", "ray") from None
        self.ray = ray
        self.started = not ray.is_initialized()
        if self.started:
            size: dict[str, Any] = {"num_cpus": workers} if workers and address is None else {}
            ray.init(address=address, include_dashboard=False, log_to_driver=False, **size)
        self.several = ray.remote(max_retries=TRIES)(_several)

    def refine(self, question: Question, strategies: Sequence[Strategy], goal: float) -> Iterator[Refined | None]:
        asked = self.ray.put(question)
        for share in [self.several.remote(asked, share, goal) for share in _shares(strategies)]:
            yield from self.ray.get(share)

    def close(self) -> None:
        if self.started:
            self.ray.shutdown()


def executor_of(kind: str = "processes", workers: int = 1, address: str | None = None) -> Executor:
    """The executor by its name."""
    held(workers, SCALARS["option.workers"], "workers")
    if word(kind, ("processes", "ray"), "executor") == "ray":
        return Ray(workers if workers > 1 else 0, address)
    return Pool(workers) if workers > 1 else Serial()
