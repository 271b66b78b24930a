"""A small slow simulator that judges the fast one: repeats the definition until nothing changes."""

from shardwise.pipeline.action import Schedule
from shardwise.pipeline.costs import Costs


def slow_times(schedule: Schedule, costs: Costs) -> dict[str, tuple[float, float]]:
    """Start and end by action text: the least times that satisfy every rule, found by relaxation from zero."""
    rank_of, last = schedule.rank_of, schedule.chunks - 1
    rows = [[str(action) for action in row] for row in schedule.rows]
    start = {name: 0.0 for row in rows for name in row}
    actions = {str(action): action for row in schedule.rows for action in row}

    def length(name):
        action = actions[name]
        table = {"F": costs.f, "I": costs.i, "W": costs.w}
        c = action.chunk
        return costs.i[c] + costs.w[c] if action.kind == "B" else table[action.kind][c]

    def hop(a, b):
        if rank_of[a] == rank_of[b]:
            return 0.0
        edge = min(a, b)
        return (costs.hop[edge] if costs.hop else 0.0) + (costs.transfer[edge] if costs.transfer else 0.0)

    def needs(name):
        c, kind, m = actions[name]
        if kind == "F":
            return [(f"{c - 1}F{m}", hop(c - 1, c))] if c else []
        if kind == "W":
            return [(f"{c}I{m}", 0.0)]
        if c == last:
            return [(f"{c}F{m}", 0.0)]
        ahead = f"{c + 1}I{m}" if f"{c + 1}I{m}" in actions else f"{c + 1}B{m}"
        return [(ahead, hop(c + 1, c))]

    for _ in range(len(start) + 2):
        changed = False
        for row in rows:
            for k, name in enumerate(row):
                ready = [start[row[k - 1]] + length(row[k - 1])] if k else [0.0]
                ready += [start[other] + length(other) + extra for other, extra in needs(name)]
                if max(ready) > start[name]:
                    start[name], changed = max(ready), True
        if not changed:
            return {name: (begin, begin + length(name)) for name, begin in start.items()}
    raise ValueError("deadlock")
