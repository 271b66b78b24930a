"""`shardwise rehearse`: one rank of a plan, run for real on one GPU, or counted without any."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from shardwise.cli.options import Number
from shardwise.cli.output import Output, output_options
from shardwise.errors import Fault, InputError, MissingExtraError

if TYPE_CHECKING:
    from shardwise.estimate.predictions import Line
    from shardwise.plan.plan import Plan


@click.command("rehearse")
@click.argument("plan_file", metavar="PLAN.json")
@click.option("--rank", metavar="ppN", help="Pipeline rank; its tensor and data parallel members are alike.")
@click.option("--write", metavar="FILE", help="Write the program for that rank (one file, torch only).")
@click.option(
    "--device", type=click.Choice(["cuda", "meta"]), help="cuda: run it here; meta: count its memory, no GPU."
)
@click.option(
    "--with", "builder", type=click.Choice(["megatron"]), help="Let Megatron-Core build the rank (dense, needs a GPU)."
)
@click.option("--read", metavar="FILE", help="Hold a result of the program against the plan.")
@click.option("--out", metavar="FILE", help="Write the plan with what was rehearsed in it.")
@click.option("--result", metavar="FILE", help="Keep the program's result.")
@click.option("--repeats", type=Number("option.steps"), default=3, show_default=True, help="Iterations that are timed.")
@output_options
def command(output: Output, **options: Any) -> None:  # noqa: ANN401 - one an option
    """Run one rank of a plan on one GPU, all other ranks faked, and hold it against the prediction.

    \b
    shardwise rehearse plan.json --rank pp2 --write rehearse_pp2.py    copy it to a GPU machine, run it there
    shardwise rehearse plan.json --read result.json --out plan2.json   fold the result back into the plan
    shardwise rehearse plan.json --rank pp2 --device cuda              both at once, on a machine with a GPU
    shardwise rehearse plan.json --rank pp2 --device meta              exact memory of the program, no GPU
    shardwise rehearse plan.json --rank pp2 --with megatron            Megatron-Core's own modules instead of ours
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    from shardwise.cli.per_op_show import refuse_per_op
    from shardwise.measure.rehearse.program import read_result
    from shardwise.plan.file import read_plan

    plan = read_plan(options["plan_file"])
    refuse_per_op(plan, options["plan_file"], "rehearse")
    if options["read"]:
        result = read_result(options["read"])
        _refuse_stranger(plan, result, options["read"])
        _refuse_other_rank(plan, result, options)
    elif options["write"]:
        _write(plan, options, output)
        return
    else:
        result = _run(plan, options)
    _tell(plan, result, options, output)


def _refuse_stranger(plan: Plan, result: dict[str, Any], path: str) -> None:
    from shardwise.plan.file import plan_id

    name = f"{plan.model.name}: {plan.strategy}"
    if result["name"] != name:
        why = f"{result['name']!r}, and the plan is {name!r}"
    elif result.get("plan") != plan_id(plan):
        why = f"another plan with the strategy {name!r}: its model, cluster, layers or schedule differ"
    elif result["rank"] >= plan.strategy.pp:
        why = f"rank pp{result['rank']}, and the plan ends at pp{plan.strategy.pp - 1}"
    else:
        return
    raise InputError(f"{path} is a rehearsal of {why}; read it with the plan that it was made from")


def _refuse_other_rank(plan: Plan, result: dict[str, Any], options: dict[str, Any]) -> None:
    from shardwise.measure.rehearse.spec import rank_number

    if options["rank"] is not None and rank_number(options["rank"], plan.strategy.pp) != result["rank"]:
        told = f"is {options['rank']}, and {options['read']} is a rehearsal of pp{result['rank']}; leave --rank out"
        raise InputError(Fault("--rank", told))


def _spec(plan: Plan, options: dict[str, Any]) -> dict[str, Any]:
    from shardwise.measure.rehearse.spec import rank_number, spec_of

    if options["rank"] is None and plan.strategy.pp > 1:
        raise InputError(
            Fault("--rank", f"is missing; give pp0 to pp{plan.strategy.pp - 1}, the fullest is a good one")
        )
    rank = rank_number(options["rank"] or "pp0", plan.strategy.pp)
    if options["builder"] == "megatron":
        from shardwise.measure.rehearse.megatron import megatron_spec

        if options["device"] == "meta":
            raise InputError(Fault("--device", "is meta, and Megatron's modules need a GPU; leave --with megatron out"))
        return megatron_spec(plan, rank)
    spec = spec_of(plan, rank)
    if spec["counted_only"] and options["device"] != "meta":
        raise InputError(f"{spec['counted_only']}; use --device meta")
    return spec


def _write(plan: Plan, options: dict[str, Any], output: Output) -> None:
    from shardwise.inputs.write import write_now, write_text
    from shardwise.measure.rehearse.program import program_text

    spec = _spec(plan, options)
    write_text(options["write"], program_text(spec))
    output.answer({"program": options["write"], "rank": spec["rank"]})
    write_now()
    output.say(f"wrote rank pp{spec['rank']} to {options['write']}; on a GPU machine:")
    output.say(f"  python {options['write']} --out result.json")
    output.say(f"then here:  shardwise rehearse {options['plan_file']} --read result.json")


def _run(plan: Plan, options: dict[str, Any]) -> dict[str, Any]:
    from shardwise.measure.rehearse.program import run_program

    spec = _spec(plan, options)
    if find_spec("torch") is None:
        raise MissingExtraError("rehearsing a rank", "torch")
    if options["builder"] and find_spec("megatron") is None:
        raise InputError(Fault("--with", "is megatron, and megatron-core is not installed here; use --write FILE"))
    device = options["device"] or "cuda"
    if device == "cuda" and shutil.which("nvidia-smi") is None:
        way = "" if options["builder"] else ", or give --device meta"
        raise InputError(f"this machine has no GPU: write the program for one with --write FILE{way}")
    result = run_program(spec, device=device, repeats=options["repeats"])
    if options["result"]:
        from shardwise.inputs.serialise import to_json
        from shardwise.inputs.write import write_now, write_text

        write_text(options["result"], to_json(result))
        write_now()  # minutes of a GPU: kept, whatever is wrong with it
    return result


def _tell(plan: Plan, result: dict[str, Any], options: dict[str, Any], output: Output) -> None:
    from shardwise.measure.rehearse.compare import compare, folded

    lines = compare(plan, result)
    by = f" by {result['framework']}" if "framework" in result else ""
    output.say(f"rank pp{result['rank']} of {result['name']} on {result['device']}{by}")
    output.table(("", "predicted", "rehearsed", "error"), [_row(line) for line in lines])
    if result.get("faked_seconds"):
        output.say(f"({result['faked_seconds']:.3g} s of filling in for other ranks are taken off)")
    corrected = folded(plan, result, lines)
    if options["out"]:
        from shardwise.plan.file import write_plan

        write_plan(corrected, options["out"])
        output.wrote(f"the plan with the rehearsal is in {options['out']}")
    output.answer({
        "rank": result["rank"], "device": result["device"],
        "lines": [{"what": x.what, "predicted": x.predicted, "measured": x.measured, "error": x.error} for x in lines],
    })  # fmt: skip


def _row(line: Line) -> tuple[str, ...]:
    from shardwise.units import show_bytes, show_seconds

    show = show_bytes if line.unit == "bytes" else show_seconds
    return line.what, show(line.predicted), show(line.measured), f"{100 * line.error:+.1f}%"
