"""`shardwise probe`: measure this machine, or write the program that measures another."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from shardwise import api
from shardwise.cli.options import Number
from shardwise.cli.output import Output, output_options
from shardwise.errors import Fault, InputError, MissingExtraError


@click.command("probe")
@click.option("--write", metavar="FILE", help="Write the program (one file, torch only) to copy to a GPU machine.")
@click.option("--out", metavar="FILE", help="Run it here and write what it measures.")
@click.option("--minutes", type=Number("option.minutes"), default=5.5, show_default=True, help="Time it may take.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="Where to measure; default: a GPU if there is one.")
@click.option("--operators", metavar="REQUEST", help="Measure the operators that a request lists (per-op search).")
@click.option("--quick", is_flag=True, help="A few sizes only, to see that it works.")
@output_options
def command(
    write: str | None,
    out: str | None,
    minutes: float,
    device: str | None,
    operators: str | None,
    *,
    quick: bool,
    output: Output,
) -> int | None:
    """Measure what the cost model needs to know about a GPU, in about five minutes.

    \b
    shardwise probe                              how to run it
    shardwise probe --write shardwise_probe.py   the program, to copy to a GPU machine
    shardwise probe --out h200.json              run it on this machine
    shardwise probe --operators request.json --out operators.json      the operators of one model
    torchrun --nproc-per-node 8 shardwise_probe.py --out node.json     with collectives

    Then: shardwise calibrate h200.json --name my-h200
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    if write:
        from shardwise.inputs.write import once_written, write_text

        write_text(write, api.probe_program().read_text(encoding="utf-8"))
        said = f"wrote {write}; on the GPU machine:  python {Path(write).name} --out gpu.json"
        once_written(lambda: output.say(said))
    elif out:
        return _run(out, minutes, device, operators, quick=quick)
    elif operators:
        raise InputError(Fault("--out", "is missing: it names the file for what --operators measures"))
    else:
        _explain(output)
    output.answer({"program": str(api.probe_program()), "written": write})
    return None


def _explain(output: Output) -> None:
    output.say("One file measures a GPU; it needs torch and the standard library only.")
    output.say("  shardwise probe --out gpu.json                  on this machine, about 5 minutes")
    output.say("  shardwise probe --write shardwise_probe.py      to copy it to another:")
    output.say("      python shardwise_probe.py --out gpu.json")
    output.say("      torchrun --nproc-per-node 8 shardwise_probe.py --out node.json     (collectives too)")
    output.say("  shardwise calibrate gpu.json --name my-gpu      then --cluster 64xmy-gpu uses it")
    output.say(f"The program is {api.probe_program()}")


def _run(out: str, minutes: float, device: str | None, operators: str | None, *, quick: bool) -> int:
    if find_spec("torch") is None:
        raise MissingExtraError("measuring a GPU", "torch")
    if operators:
        from shardwise.inputs.files import opened

        with opened(operators):
            pass  # what is no file is told here; the program for GPU machines would wait for it
    words = [sys.executable, str(api.probe_program()), "--out", out, "--minutes", f"{minutes:g}"]
    words += ["--device", device] if device else []
    words += ["--operators", operators] if operators else []
    words += ["--quick"] if quick else []
    with subprocess.Popen(words) as process:  # noqa: S603 - our own program, words without a shell
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # it writes what it has measured, and ends
                process.send_signal(signal.SIGINT)
