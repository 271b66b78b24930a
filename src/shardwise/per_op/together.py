"""Jobs side by side on the executor of `plan`: this process, a pool of processes, or Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from typing import Any, TypeVar

from shardwise.search.executor import Executor, Pool, Ray

Job = TypeVar("Job")
Made = TypeVar("Made")
PATIENCE = 3.0
"""Seconds that workers have to hand in what they have after Ctrl-C."""


def each(executor: Executor | None, function: Callable[[Job], Made], jobs: Iterable[Job]) -> Iterator[Made]:
    """What the function makes of every job, in order; Ctrl-C ends early with what is done.

    The function itself answers Ctrl-C with its best so far, which a terminal sends to every process of the group.
    """
    if isinstance(executor, Ray):
        yield from executor.ray.get([executor.ray.remote(function).remote(job) for job in jobs])
    elif isinstance(executor, Pool):
        yield from _pooled(executor.pool, function, jobs)
    else:
        yield from map(function, jobs)


def _pooled(pool: ProcessPoolExecutor, function: Callable[[Job], Made], jobs: Iterable[Job]) -> list[Made]:
    futures: list[Future[Any]] = [pool.submit(function, job) for job in jobs]
    try:
        return [future.result() for future in futures]
    except KeyboardInterrupt:
        for future in futures:
            future.cancel()
        done, late = wait([future for future in futures if not future.cancelled()], timeout=PATIENCE)
        if late:  # the signal came to this process alone
            for process in list(getattr(pool, "_processes", {}).values()):
                process.terminate()
        kept = [future.result() for future in futures if future in done and future.exception() is None]
        if not kept:
            raise
        return kept
