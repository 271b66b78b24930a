"""The loop of `balance`: its plans dry-run, their peaks measured, and balanced again."""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: who presses Ctrl-C while that loads would see a traceback of Python's
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal

    from shardwise.api.reading import Source
    from shardwise.measure.dry_loop import DryRound, Looped


def balance_loop(
    config: Source,
    *,
    training: str,
    ranks: int,
    init: Source | None = None,
    peaks: Sequence[Source] = (),
    peak: Literal["actual", "used"] = "actual",
    times: Sequence[float] | None = None,
    model: str | None = None,
    pp: int = 4,
    vpp: int = 1,
    microbatches: int = 4,
    memory: Sequence[float] = (56000.0,),
    low_memory: bool = False,
    confidence: float = 0.95,
    out: Source = "balance_loop",
    rounds: int = 3,
    run: bool = False,
    tolerance: float = 0.02,
    time_limit: float = 60.0,
    effort: float = 1.0,
    seed: int = 1,
    tell: Callable[[str], object] | None = None,
    report: Callable[[DryRound], object] | None = None,
) -> Looped:
    """Balance, dry-run the plan, fit what it measured, and balance again, until prediction and peaks agree.

    `config`: the user's MindFormers YAML, which every round patches into its folder; `training`: the training command
    of one rank, `{config}` stands for that YAML; `ranks`: all devices of the training; `init` to `confidence`: as for
    `read_problem`; `out`: the folder of the loop, which goes on where its rounds stopped; `rounds`: at most; `run`: run
    the script of every round here, else stop once it is written; `tolerance`: share of a peak within which
    prediction and measurement agree; `time_limit`, `effort`, `seed`: of every search; `tell`: called with notes and
    with what is about to be run; `report`: called with every round that was measured.
    """
    from pathlib import Path

    from shardwise.measure.dry_loop import DryRuns, LoopSettings, close_loop
    from shardwise.partition.balance import Described

    asked = Described(
        init=None if init is None else str(init), peaks=tuple(map(str, peaks)), peak=peak, times=times, model=model,
        pp=pp, vpp=vpp, microbatches=microbatches, memory=tuple(memory), low_memory=low_memory,
    )  # fmt: skip
    dry = DryRuns(config=str(config), training=training, ranks=ranks, folder=Path(out), run=run)
    settings = LoopSettings(
        rounds=rounds, confidence=confidence, tolerance=tolerance, time_limit=time_limit, effort=effort, seed=seed
    )
    nothing: Callable[[object], object] = lambda _: None  # noqa: E731
    return close_loop(asked, dry, settings, tell=tell or nothing, follow=report or nothing)
