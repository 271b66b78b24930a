"""Predictions held against measurements: validated, calibrated, rehearsed."""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: who presses Ctrl-C while that loads would see a traceback of Python's
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from shardwise.api.reading import Source
    from shardwise.measure.calibrate import Calibrated
    from shardwise.measure.rehearse.rehearse import Builder, Device, Rehearsal
    from shardwise.measure.validate.advice import Advice, Advised
    from shardwise.measure.validate.case import Skipped
    from shardwise.measure.validate.validate import Validation
    from shardwise.plan.plan import Plan


def validate(*files: Source, cluster: str | None = None) -> Validation:
    """Measured runs predicted; without files, the published and our own runs that come with the package.

    `cluster`: a name or file, such as SimuMax's system file, that the rows of its GPU are predicted with.
    """
    from shardwise.frameworks.load import read_cluster, refuse_mixed
    from shardwise.measure.validate.validate import validate

    if cluster and "+" in cluster:
        refuse_mixed(read_cluster(cluster).value, "cluster", "validate", "its rows ran on one kind each: name one")
    return validate(files, cluster)


def validate_advice(*files: Source, told: Callable[[Advised | Skipped, int], None] | None = None) -> Advice:
    """What practitioners chose and reached beside what we predict for it, and what we propose and claim.

    Without files, well-known set-ups with a published run, and every group of shipped runs that differ only in layout;
    of files, their groups. `told` is called with every one that is done and the number of all; Ctrl-C ends it, and what
    is done is the answer.
    """
    from shardwise.measure.validate.advice import advise

    return advise(files, told or (lambda _one, _total: None))


def calibrate(
    name: str,
    *,
    probe: Source | None = None,
    nccl: Sequence[Source] = (),
    trace: Source | None = None,
    log: Source | None = None,
    snapshot: Source | None = None,
    plan: Plan | Source | None = None,
    base: str | None = None,
    rank: str | None = None,
    steps: int | None = None,
) -> Calibrated:
    """The cost model fitted to a probe of one GPU, or corrected by a run; `store_calibration` keeps it.

    `name`: what the calibrated GPU is called (`64xNAME`); one of `probe`: what the probe wrote, `nccl`: logs of
    nccl-tests, `trace`: a profiler's Chrome trace, `log`: of Megatron, torchtitan, DeepSpeed, Trainer or a program of
    ours, `snapshot`: a CUDA memory snapshot; `plan`: the one that the run followed, where it is of one; `base`: the GPU
    of the catalog that it is, by default the probe's, the logs' or the plan's; `rank`: which wrote the snapshot
    (`pp2`), by default the fullest; `steps`: iterations in the trace, where it marks none.
    """
    from shardwise.api.reading import as_plan
    from shardwise.measure.calibrate import calibrate

    return calibrate(
        name, probe=probe, nccl=nccl, trace=trace, log=log, snapshot=snapshot, base=base, rank=rank, steps=steps,
        plan=None if plan is None else as_plan(plan, "calibrate"),
    )  # fmt: skip


def judge_calibration(found: Calibrated) -> tuple[str, ...]:
    """What is strange about a calibration; one that is of another GPU than its base is refused."""
    from shardwise.measure.calibrate import judged

    return judged(found)


def store_calibration(found: Calibrated) -> tuple[Path, Path]:
    """Store a calibration and the GPU that uses it in the user's folder ($SHARDWISE_HOME); gives both files."""
    from shardwise.measure.calibrate import stored

    return stored(found)


def probe_program() -> Path:
    """The single file that measures a GPU with torch alone; it can be copied to any machine."""
    from shardwise.measure.probe import PROGRAM

    return PROGRAM


def rehearse(
    plan: Plan | Source,
    *,
    rank: str | None = None,
    device: Device | None = None,
    builder: Builder | None = None,
    read: Source | None = None,
    repeats: int = 3,
    result: Source | None = None,
    trace: str | None = None,
    executing: Callable[[Path], object] | None = None,
) -> Rehearsal:
    """One rank of a plan run here, all other ranks faked, and held against the prediction.

    `plan`: of a whole strategy; `rank`: such as `pp2`, needed where there are several; `device`: `cuda` runs it,
    `meta` counts its memory without a GPU; `builder`: `megatron` lets Megatron-Core build the rank, `torchtitan`
    torchtitan's trainer; `read`: a result that the program wrote elsewhere, in place of running it; `repeats`:
    iterations that are timed; `result`: a file that keeps the program's result; `trace`: of a traced module the file
    and function that build it, `my_model.py:build`, which is executed; `executing`: called with that file before.
    """
    from shardwise.api.reading import as_plan
    from shardwise.measure.rehearse import rehearse as run

    whole = as_plan(plan, "rehearse")
    if read:
        return run.read(whole, read, rank)
    return run.run(
        whole, rank, device=device, builder=builder, repeats=repeats, keep=result, trace=trace, executing=executing
    )


def rehearsal_program(
    plan: Plan | Source,
    *,
    rank: str | None = None,
    device: Device | None = None,
    builder: Builder | None = None,
) -> tuple[int, str]:
    """The number of a rank and the program that rehearses it, one file that needs torch alone; as for `rehearse`."""
    from shardwise.api.reading import as_plan
    from shardwise.measure.rehearse.program import program_text
    from shardwise.measure.rehearse.rehearse import spec_for

    spec = spec_for(as_plan(plan, "rehearse"), rank, device=device, builder=builder)
    return spec["rank"], program_text(spec)
