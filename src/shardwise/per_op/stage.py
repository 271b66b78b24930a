"""The fastest layouts and recompute flags of one stage that fit: labels along its operators, exact.

A label is a choice for the operators so far. It is dropped when, even with the cheapest completion at some price of
memory (the relaxation of `bound`), it cannot come within the wanted time; or when another label at the same operator,
layout and flag is no slower and no larger. The wanted time starts just above the lower bound and grows: the first
answer found is the fastest. Should labels pass a limit, the slowest-looking are dropped and the answer says that it is
no longer proven.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from shardwise.per_op.answer import ENDLESS, Deadline
from shardwise.per_op.evaluate import in_flight
from shardwise.per_op.question import OperatorQuestion
from shardwise.per_op.relaxed import prices_of
from shardwise.per_op.tables import Array, Tables, tables_of

MOST_LABELS = 6_000
SAME_BYTES = 1.0
"""Sums in another order differ by rounding: less than a byte is the same."""


class StageTask(NamedTuple):
    """One stage to solve."""

    first: int
    end: int
    gpus: int
    behind: int
    crossing: tuple[int, int]
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SolvedStage:
    """The best choice for a stage."""

    seconds: float
    """Of the choice; infinite: nothing within the cap fits."""
    lower: float
    """No choice that fits is faster."""
    layouts: Array
    recompute: Array


UNKNOWN = SolvedStage(seconds=np.inf, lower=0.0, layouts=np.empty(0, dtype=int), recompute=np.empty(0, dtype=bool))


class _Labels(NamedTuple):
    """Columns of all labels at one operator."""

    layout: Array
    recompute: Array
    time: Array
    memory: Array
    """Weights and what they bring, and kept activations of all micro batches held."""
    weight: Array
    high_f: Array
    high_b: Array
    peak: Array
    run: Array
    opened: Array
    """Layout of the first operator."""

    def take(self, index: Array) -> _Labels:
        return _Labels(*(column[index] for column in self))


class Stager:
    """Solves stages of one question."""

    def __init__(self, question: OperatorQuestion, most: int = MOST_LABELS, deadline: Deadline = ENDLESS) -> None:
        self.question = question
        self.most = most
        self.deadline = deadline

    def solve(self, task: StageTask, lower: float, cap: float, less: float = 0.0) -> SolvedStage:
        """The fastest choice within `cap` seconds; `lower` is where the search begins, `less` bytes stay free."""
        stage = _Stage(self.question, task, self.question.limit - less, self.most, self.deadline)
        wanted = lower * (1 + 4e-3) + 1e-9
        while True:
            wanted = min(wanted, cap)
            found = stage.search(wanted)
            if found is not None or wanted >= cap:
                break
            wanted = wanted + 2 * (wanted - lower)
        if found is None:
            return replace(UNKNOWN, lower=min(cap, stage.dropped))
        seconds, layouts, again = found
        return SolvedStage(seconds=seconds, lower=min(seconds, stage.dropped), layouts=layouts, recompute=again)


class _Stage:
    """Labels of one stage."""

    def __init__(
        self, question: OperatorQuestion, task: StageTask, limit: float, most: int, deadline: Deadline = ENDLESS
    ) -> None:
        self.question, self.task, self.most, self.deadline = question, task, most, deadline
        self.tables: Tables = tables_of(question, task.samples, task.gpus)
        self.limit = limit - self.tables.fixed
        self.rows = self.tables.rows[task.first : task.end]
        self.held = in_flight(question, task.behind, task.samples) + 1
        self.per_byte = prices_of(self.tables) / self.held
        self.counts = np.arange(len(self.rows)) < len(self.rows) - 1
        self.leave = self.tables.leave[task.crossing[1]][:, :, self.rows[-1]]
        self.dropped = np.inf
        self.closing = len(self.rows) < 2 or not bool(self.tables.shared[self.rows[-2]])
        """Whether every run counts in the end: one that is open there before a shared tensor does not."""
        self._completions()

    def _completions(self) -> None:
        """[operator, flag, price, layout] least cost after it; and the least reserves of what is left."""
        t, rows, per, held = self.tables, self.rows, self.per_byte[:, None], self.held
        count, size = len(rows), len(t.layouts)
        self.rest = np.zeros((count, 2, len(per), size))
        self.rest[-1, :] = self.leave.min(axis=0) - per * held * t.sent[:, rows[-1]]
        self.rest_f, self.rest_b, self.rest_w = np.zeros(count), np.zeros(count), np.zeros(count)
        for at in range(count - 2, -1, -1):
            row = rows[at + 1]
            own = t.work[:, row] + per * (t.static[:, row] + held * t.act[:, row])
            kept = own + self.rest[at + 1, 0]
            again = own + t.forward[:, row] + self.rest[at + 1, 1] if t.may[row] else np.full_like(own, 1e12)
            saving = per * held * (t.act[:, rows[at]] if self._saves(at) else 0.0)
            cross = t.cross[row]
            on_kept = (np.minimum(kept, again)[:, None, :] + cross).min(axis=-1)
            self.rest[at, 0] = on_kept
            only_kept = (kept[:, None, :] + cross).min(axis=-1)
            self.rest[at, 1] = np.minimum(only_kept, (again[:, None, :] + cross).min(axis=-1) - saving)
            counted = self.counts[at + 1]
            self.rest_f[at] = max(self.rest_f[at + 1], t.reserved_f[:, row].min() if counted else 0.0)
            self.rest_b[at] = max(self.rest_b[at + 1], t.reserved_b[:, row].min() if counted else 0.0)
            self.rest_w[at] = self.rest_w[at + 1] + t.weights[:, row].min()

    def _saves(self, at: int) -> bool:
        t, rows = self.tables, self.rows
        return bool(not t.starts[rows[at + 1]] or t.shared[rows[at]])

    def search(self, wanted: float) -> tuple[float, Array, Array] | None:
        """The fastest choice within the wanted seconds."""
        self.dropped = np.inf
        labels = self._first()
        labels, _ = self._pruned(labels, np.arange(len(labels.time)), 0, wanted)
        history: list[tuple[Array, Array, Array]] = [(labels.layout, labels.recompute, np.arange(0))]
        for at in range(1, len(self.rows)):
            self.deadline.check()
            labels, parents = self._extended(labels, at)
            labels, parents = self._pruned(labels, parents, at, wanted)
            history.append((labels.layout, labels.recompute, parents))
            if not len(labels.time):
                return None
        return self._best(labels, history, wanted)

    def _first(self) -> _Labels:
        t, row, size = self.tables, self.rows[0], len(self.tables.layouts)
        flags = (False, True) if t.may[row] else (False,)
        layout = np.tile(np.arange(size), len(flags))
        again = np.repeat(np.array(flags), size)
        enter = t.enter[self.task.crossing[0]][layout, row]
        counted = bool(self.counts[0])
        zero = np.zeros(len(layout))
        return _Labels(
            layout=layout,
            recompute=again,
            time=enter + t.work[layout, row] + again * t.forward[layout, row],
            memory=t.static[layout, row] + self.held * (t.entry[layout, row] + t.act[layout, row]),
            weight=t.weights[layout, row],
            high_f=t.reserved_f[layout, row] * counted,
            high_b=t.reserved_b[layout, row] * counted,
            peak=zero,
            run=zero,
            opened=layout,
        )

    def _extended(self, labels: _Labels, at: int) -> tuple[_Labels, Array]:
        """Every label with every layout and flag of the next operator."""
        t, row, before = self.tables, self.rows[at], self.rows[at - 1]
        size, flags = len(t.layouts), 2 if t.may[row] else 1
        count = len(labels.time)
        parents = np.repeat(np.arange(count), size * flags)
        layout = np.tile(np.arange(size), count * flags)
        again = np.tile(np.repeat(np.array([False, True])[:flags], size), count)
        old = labels.take(parents)
        pair = old.recompute & again
        act = t.act[old.layout, before]
        run = np.where(pair, old.run + t.made[old.layout, before], old.run)
        closes = ~pair | bool(not t.shared[before] and (t.starts[row] or at == len(self.rows) - 1))
        saved = np.where(pair, act, 0.0) if self._saves(at - 1) else 0.0
        counted = bool(self.counts[at])
        made = _Labels(
            layout=layout,
            recompute=again,
            time=old.time + t.work[layout, row] + again * t.forward[layout, row] + t.cross[row, old.layout, layout],
            memory=old.memory + t.static[layout, row] + self.held * (t.act[layout, row] - saved),
            weight=old.weight + t.weights[layout, row],
            high_f=np.maximum(old.high_f, t.reserved_f[layout, row]) if counted else old.high_f,
            high_b=np.maximum(old.high_b, t.reserved_b[layout, row]) if counted else old.high_b,
            peak=np.where(closes, np.maximum(old.peak, run), old.peak),
            run=np.where(closes, 0.0, run),
            opened=old.opened,
        )
        return made, parents

    def _reserve(self, labels: _Labels, rest_f: float = 0.0, rest_b: float = 0.0, rest_w: float = 0.0) -> Array:
        high_f, high_b = np.maximum(labels.high_f, rest_f), np.maximum(labels.high_b, rest_b)
        found: Array = np.maximum(high_f + high_b, labels.weight + rest_w)
        return found

    def _pruned(self, labels: _Labels, parents: Array, at: int, wanted: float) -> tuple[_Labels, Array]:
        reserve = self._reserve(labels, self.rest_f[at], self.rest_b[at], self.rest_w[at])
        highest = np.maximum(labels.peak, labels.run) if self.closing else labels.peak
        over = labels.memory + highest + reserve - self.limit
        rest = self.rest[at][labels.recompute.astype(int), :, labels.layout]
        reach = (labels.time[:, None] + self.per_byte[None, :] * over[:, None] + rest).max(axis=1)
        good = np.flatnonzero(reach <= wanted)
        good = good[self._undominated(labels.take(good))]
        if len(good) > self.most:
            order = np.argsort(reach[good], kind="stable")
            self.dropped = min(self.dropped, float(reach[good[order[self.most]]]))
            good = np.sort(good[order[: self.most]])
        return labels.take(good), parents[good]

    def _undominated(self, labels: _Labels) -> Array:
        """Positions of labels that no label with the same discrete state beats in both time and memory."""
        if len(labels.time) < 2:
            return np.arange(len(labels.time))
        group = _hashed(labels)
        order = np.lexsort((labels.memory, labels.time, group))
        memory, group = labels.memory[order], group[order]
        fresh = np.concatenate([[True], group[1:] != group[:-1]])
        # a running minimum per group: groups are shifted apart so that one pass serves all of them
        shift = (float(memory.max() - memory.min()) + 2 * SAME_BYTES + 1) * np.cumsum(fresh)
        least = np.minimum.accumulate(memory - shift) + shift
        before = np.concatenate([[np.inf], least[:-1]])
        return np.sort(order[fresh | (memory < before - SAME_BYTES)])

    def _best(
        self, labels: _Labels, history: list[tuple[Array, Array, Array]], wanted: float
    ) -> tuple[float, Array, Array] | None:
        memory = labels.memory + labels.peak + self._reserve(labels)
        memory -= self.held * self.tables.sent[labels.layout, self.rows[-1]]
        time = labels.time + self.leave[labels.opened, labels.layout]
        time = np.where((memory <= self.limit) & (time <= wanted), time, np.inf)
        at = int(np.argmin(time)) if len(time) else 0
        if not len(time) or not np.isfinite(time[at]):
            return None
        best = float(time[at])
        layouts, again = [], []
        for layout, flag, parents in reversed(history):
            layouts.append(int(layout[at]))
            again.append(bool(flag[at]))
            at = int(parents[at]) if len(parents) else 0
        return best, np.array(layouts[::-1]), np.array(again[::-1])


def _hashed(labels: _Labels) -> Array:
    """One 64-bit number per discrete state: layouts, flag, reserves, peak, run and weights, to the byte."""
    columns = (labels.layout, labels.recompute, labels.opened, labels.high_f, labels.high_b, labels.peak, labels.run,
               labels.weight)  # fmt: skip
    mixed = np.zeros(len(labels.time), dtype=np.uint64)
    for column in columns:
        mixed ^= np.rint(column).astype(np.int64).view(np.uint64)
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed
