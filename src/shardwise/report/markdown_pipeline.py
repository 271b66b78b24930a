"""A schedule or a balanced pipeline as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardwise.partition.compare import Compared, bubble_of
from shardwise.partition.lists import can_say
from shardwise.partition.problem import BalanceAnswer
from shardwise.pipeline.timeline import Timeline
from shardwise.report.balance import compared_rows, paste_block, plan_rows
from shardwise.report.markdown import facts_table, folded, joined, plain, table
from shardwise.units import show_bytes, show_percent, show_seconds


def timeline_markdown(
    timeline: Timeline, *, bound: float | None = None, seconds: bool = False, others: Sequence[Timeline] = ()
) -> str:
    """A pipeline's times, bubbles with their causes and memory; `others` are compared with it, itself first."""
    schedule = timeline.schedule
    title = f"### {plain(schedule.name or 'schedule')}: pp {schedule.pp}, vpp {schedule.vpp}, "
    title += f"{schedule.microbatches} micro batches"
    causes = ", ".join(f"{name} {show_percent(share, 2)}" for name, share in timeline.bubbles().items() if share > 5e-5)
    facts = [
        ("makespan", _time(timeline.makespan, seconds)),
        ("period", _time(timeline.period, seconds)),
        ("bubble", f"{show_percent(timeline.bubble, 2)} synchronous ({causes or 'none'})"),
        ("peak memory", " ".join(_bytes(peak, seconds) for peak in timeline.peak)),
    ]
    if bound:
        gap = max(0.0, timeline.makespan / bound - 1)
        proof = "optimal, proven" if gap <= 1e-9 else f"gap {show_percent(gap, 2)}"
        facts.insert(2, ("bound", f"{_time(bound, seconds)} ({proof}, under this cost model)"))
    rows = [_row(one, seconds) for one in others]
    heads = ("schedule", "makespan", "period", "bubble", "period bubble", "peak")
    order = folded("The order, a line a rank", "```text\n" + schedule.csv() + "```") if schedule.actions <= 2000 else ""
    return joined([title, facts_table(facts), table(heads, rows) if rows else "", order])


def _row(one: Timeline, seconds: bool) -> tuple[str, ...]:
    return (
        plain(one.schedule.name), _time(one.makespan, seconds), _time(one.period, seconds),
        show_percent(one.bubble, 2), show_percent(one.period_bubble, 2), _bytes(max(one.peak), seconds),
    )  # fmt: skip


def balance_markdown(answer: BalanceAnswer, compared: Iterable[Compared] = ()) -> str:
    """The partition, its proof, the lists to paste, and what it was compared with."""
    problem, best = answer.problem, answer.best
    proof = "proven optimal" if answer.proven else f"gap {show_percent(answer.gap, 2)}"
    facts = [
        ("simulated", f"{answer.simulated:,.4f}"),
        ("bound", f"{answer.bound:,.4f}: {proof} under these costs and this order"),
        ("bubble", str(bubble_of(problem, best))),
    ]
    title = f"### {plain(problem.name or 'balance')}: {sum(best.partition.layers)} layers on {problem.pp} stages"
    heads, rows = plan_rows(problem, best)
    stages = table([*map(plain, heads)], [[*map(plain, row)] for row in rows])
    paste = (
        folded("For MindFormers' YAML", f"```yaml\n{paste_block(problem, best)}\n```")
        if can_say(problem, best.partition)
        else ""
    )
    heads, rows = compared_rows(compared)
    others = table([*map(plain, heads)], [[*map(plain, row)] for row in rows]) if rows else ""
    return joined([title, facts_table(facts), stages, others, paste])


def _time(value: float, seconds: bool) -> str:
    return show_seconds(value) if seconds else f"{value:.6g}"


def _bytes(value: float, seconds: bool) -> str:
    return show_bytes(value) if seconds else f"{value:g}"
