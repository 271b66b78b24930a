"""The script that measures the peaks of a pipeline without its devices: MindSpore's simulation of one rank a stage."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from shardwise.errors import Fault, InputError
from shardwise.frameworks.mindformers.names import LESS_MEMORY

FAILED = " failed: see "
"""How the script says of a stage that its command ended with an error."""
_SCRIPT = """#!/bin/bash
# Dry run of one rank per pipeline stage (shardwise balance dryrun): the peak memory is in the logs.
set -u
export MS_SIMULATION_LEVEL=1
export MS_KERNEL_LAUNCH_SKIP=all
export MS_MEMORY_STATISTIC=1
export RANK_SIZE={ranks}
{order}for stage in $(seq 0 {last}); do
  rank=$((stage * {per_stage}))
  folder={folder}/stage_${{stage}}_rank_${{rank}}
  mkdir -p "$folder"
  RANK_ID=$rank {command} > "$folder/mindformer.log" 2>&1 || echo "stage $stage{failed}$folder/mindformer.log" >&2
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dryrun:
    """The script, and what it writes."""

    script: str
    ranks: tuple[int, ...]
    """The rank that stands for every stage."""
    logs: tuple[str, ...]
    """The file with the peak of every stage."""


def dryrun(
    command: str, *, ranks: int, stages: int, folder: str = "output_dryrun", low_memory: bool | None = None
) -> Dryrun:
    """Run the training command once per stage in simulation mode; `ranks`: all devices of the training.

    `low_memory`: which of the two interleaved orders it compiles; None: there is one chunk a rank, or the environment
    says it.
    """
    if not command.strip():
        raise InputError(Fault("COMMAND", 'is empty; give the training command: "python run_mindformer.py --config x"'))
    if ranks % stages:
        raise InputError(Fault("--ranks", f"{ranks} do not divide over {stages} stages; use a multiple of {stages}"))
    each = ranks // stages
    text = _SCRIPT.format(
        failed=FAILED, ranks=ranks, last=stages - 1, per_stage=each, folder=shlex.quote(folder), command=command,
        order="" if low_memory is None else f"export {LESS_MEMORY}={int(low_memory)}\n",
    )  # fmt: skip
    firsts = tuple(stage * each for stage in range(stages))
    logs = tuple(f"{folder}/stage_{stage}_rank_{rank}/mindformer.log" for stage, rank in enumerate(firsts))
    return Dryrun(script=text, ranks=firsts, logs=logs)
