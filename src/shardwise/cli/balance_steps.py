"""The steps before `balance`: design the measuring rounds, write the dry-run script, or balance by the quick rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardwise import api
from shardwise.cli.options import Number
from shardwise.cli.output import Output, output_options
from shardwise.errors import Fault, InputError
from shardwise.inputs.gate import counted
from shardwise.inputs.scalars import SCALARS

if TYPE_CHECKING:
    from shardwise.partition.guide import Design

_QUESTIONS = (
    ("full", "Do you consider full recomputation?"),
    ("select", "Do you consider select recomputation?"),
    ("both", "Does your communication recomputation co-work with select recomputation?"),
    ("comm", "Do you consider extra communication recomputation?"),
)


@click.command("guide")
@click.option("--stages", "-s", type=Number("Strategy.pp"), help="Pipeline stages; asked for when left out.")
@click.option("--layers", "-l", type=Number("Model.layers"), help="Layers of the model.")
@click.option("--full/--no-full", default=None, help="Full recomputation.")
@click.option("--select/--no-select", default=None, help="Select recomputation.")
@click.option("--comm/--no-comm", default=None, help="Communication recomputation alone.")
@click.option("--both/--no-both", default=None, help="Select and communication recomputation of one layer.")
@click.option("--layer-kinds", metavar="NAME:N,...", help="Kinds of layers in model order: dense:3,moe:58,mtp:1.")
@click.option("--after", metavar="FILE", help="Init file or kept model with the rounds so far: design the next best.")
@click.option("--rounds", type=Number("option.splits"), default=None, help="More rounds than needed: smaller errors.")
@click.option("--seed", type=Number("option.seed"), default=1, help="Same seed, same design.")
@output_options
def guide(
    output: Output, *, stages: int | None = None, layers: int | None = None, full: bool | None = None,
    select: bool | None = None, comm: bool | None = None, both: bool | None = None, layer_kinds: str | None = None,
    after: str | None = None, rounds: int | None = None, seed: int = 1,
) -> None:  # fmt: skip
    """Design the measuring rounds: which layers and recompute counts to dry-run so that memory can be taken apart."""
    given = {"full": full, "select": select, "comm": comm, "both": both}
    of = _layer_kinds(layer_kinds)
    if after is None:
        layers = sum(of.values()) if of and layers is None else layers
        stages, layers = _asked(stages, layers, given)
    kinds = [name for name in ("select", "comm", "both", "full") if given[name]]
    made = api.design_rounds(stages, layers, kinds, seed=seed, rounds=rounds or 0, layer_kinds=of, after=after)
    _say_design(made, output)
    output.answer({
        "rounds": [made.lists(one) for one in made.rounds], "rank": made.rank, "condition": made.condition,
        "errors_per_100_mb": made.errors, "largest_stage_over_mean": made.largest, "degrees_of_freedom": made.spare,
        "worst_stage_per_100_mb": made.worst,
        "noise_mb": made.noise, "worst_stage_before": None if made.before in {None, float("inf")} else made.before,
    })  # fmt: skip


def _asked(stages: int | None, layers: int | None, given: dict[str, bool | None]) -> tuple[int, int]:
    """What is to be measured, asked for where it was not given; the recompute kinds into `given`."""
    asks = stages is None or layers is None
    stages = int(click.prompt("Pipeline stages", type=Number("Strategy.pp"))) if stages is None else stages
    layers = int(click.prompt("Layers of the model", type=Number("Model.layers"))) if layers is None else layers
    if asks:
        for name, question in _QUESTIONS:
            if given[name] is None and (name != "both" or given["select"]):
                given[name] = click.confirm(question, default=False)
    return stages, layers


def _layer_kinds(text: str | None) -> dict[str, int]:
    """`dense:3,moe:58`."""
    found = {}
    for part in text.split(",") if text else ():
        name, colon, count = part.partition(":")
        if not colon or not name.strip():
            raise InputError(Fault("--layer-kinds", f"{part!r} is no kind with its layers; write dense:3,moe:58"))
        found[name.strip()] = counted(count, SCALARS["Model.layers"], "--layer-kinds")
    return found


def _say_design(made: Design, output: Output) -> None:
    for number, one in enumerate(made.rounds, start=1):
        output.say(f"round {number} of {len(made.rounds)}:" if made.before is None else "the next best round:")
        for name, values in made.lists(one).items():
            output.say(f"  {name}: {values}")
    output.say(
        f"solvable: rank {made.rank} of {len(made.unknowns)}, {made.spare} degrees of freedom, condition "
        f"{made.condition:.1f}; largest stage {made.largest:.2f} x the mean"
    )
    noise = 100.0 if made.noise is None else made.noise
    if made.before is not None:
        known = made.before != float("inf")
        before = f"is off by {made.before * noise / 100:,.0f} MB" if known else "cannot be predicted"
        output.say(
            f"a peak is taken to be off by {noise:,.0f} MB; then the worst stage of even splits {before} with what is "
            f"measured, and is off by {made.worst * noise / 100:,.0f} MB with this round too"
        )
    errors = ", ".join(f"{name} {error * noise / 100:,.0f}" for name, error in made.errors.items())
    output.say(f"expected error in MB if every peak is {noise:,.0f} MB off: {errors}")
    if len(made.rounds) > 1:
        output.note("measure head and tail in every round: head_memory and tail_memory may be lists, one peak a round")


@click.command("dryrun")
@click.argument("training", metavar="COMMAND")
@click.option("--ranks", type=Number("Cluster.gpus"), required=True, help="All devices of the training.")
@click.option("--stages", "-s", type=Number("Strategy.pp"), required=True, help="Pipeline stages.")
@click.option("--out", "folder", default="output_dryrun", show_default=True, help="Folder for the logs.")
@click.option("--script", default="dryrun.sh", show_default=True, help="File to write.")
@output_options
def dryrun(output: Output, *, training: str, ranks: int, stages: int, folder: str, script: str) -> None:
    """Write the script that runs COMMAND once per stage in simulation mode, and say what to collect."""
    from shardwise.inputs.write import write_now, write_text

    made = api.dryrun(training, ranks=ranks, stages=stages, folder=folder)
    write_text(script, made.script)
    output.answer({"script": made.script, "ranks_of_stages": made.ranks})
    write_now()
    output.say(f"{script} is written; run it with bash {script}")
    rows = [(str(stage), str(made.ranks[stage]), made.logs[stage]) for stage in range(stages)]
    output.table(["stage", "rank", "log with the peak"], rows)
    wanted = ", ".join(f"rank {made.ranks[stage]}" for stage in sorted({0, stages // 2, stages - 1}))
    output.say(f"traces are needed of at least the first, one middle and the last stage: {wanted}")
    output.say("into the training YAML, for those traces:\nprofile: True\nprofile_start_step: 3\nprofile_stop_step: 4")


@click.command("quick")
@click.option("--stages", "-s", type=Number("Strategy.pp"), required=True, help="2 or 4.")
@click.option("--layers", "-l", type=Number("Model.layers"), required=True, help="Layers of the model.")
@click.option(
    "--memory",
    "-mem",
    type=Number("pipeline.limit"),
    required=True,
    help="MB of a device (any one unit: all sizes here must be in it).",
)
@click.option("--layer", type=Number("pipeline.bytes"), required=True, help="MB of a layer's parameters and states.")
@click.option(
    "--kept", type=Number("pipeline.bytes"), required=True, help="MB of a layer's activations, one micro batch."
)
@click.option("--recomputed", type=Number("pipeline.bytes"), default=0.0, help="The same with full recompute.")
@click.option("--head-memory", type=Number("pipeline.bytes"), default=0.0, help="More MB on the first stage.")
@click.option("--tail-memory", type=Number("pipeline.bytes"), default=0.0, help="More MB on the last stage.")
@click.option("--head", type=Number("pipeline.time"), default=0.0, help="Time of the embedding in layers (e).")
@click.option("--tail", type=Number("pipeline.time"), default=0.0, help="Time of the output layer in layers (l).")
@output_options
def quick(output: Output, *, stages: int, layers: int, **options: float) -> None:
    """The quick rule for 2 or 4 stages: a stage takes 3 (n + e) T + r T; one layer weighs three recomputed ones."""
    found = api.quick_balance(stages, layers, **options)
    base = layers // stages
    rows = [
        (str(s), str(n), str(r), f"{time:g}", f"{found.slowest - time:g}")
        for s, (n, r, time) in enumerate(zip(found.layers, found.recompute, found.times, strict=True))
    ]
    output.table(["stage", "layers", "recomputed", "time in T", "idle"], rows)
    output.say(f"slowest stage {found.slowest:g} T: no other split under this rule is faster (dynamic programme)")
    output.say(f"  offset: {[n - base for n in found.layers]}\n  recompute: {list(found.recompute)}")
    output.answer({"layers": found.layers, "recompute": found.recompute, "times": found.times})
