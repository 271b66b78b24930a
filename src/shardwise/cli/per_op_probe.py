"""Operators measured by the probe: what to ask it for, and reading what it has measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardwise.cli.output import Output
from shardwise.errors import Fault, InputError
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.load import load_runtime

if TYPE_CHECKING:
    from shardwise.inputs.cluster import Cluster
    from shardwise.inputs.model import Model
    from shardwise.per_op.profiles.table import Profile

Options = Mapping[str, Any]
DEFAULT_SEQ = 4096
"""Stands for a length that was not typed."""


def is_measured(options: Options) -> bool:
    """Whether the profiles are what the probe has written."""
    return bool(options["profiles"]) and options["profiles"].endswith(".json")


def read_measured(options: Options, model: Model | None, cluster: Cluster | None) -> Profile:
    from shardwise.per_op.profiles.operators import measured_profile, read_operators

    if cluster is None:
        raise InputError(Fault("--cluster", "is missing; measured operators take their collectives from it"))
    data = read_operators(options["profiles"])
    model = model or load_model(data["model"])
    if model.name != data["model"]:
        raise InputError(Fault("MODEL", f"is {model.name}, {options['profiles']} was measured for {data['model']}"))
    if options["seq"] not in {DEFAULT_SEQ, data["seq"]}:
        said = f"is {options['seq']}, the operators were measured at {data['seq']}"
        raise InputError(Fault("--seq", f"{said}: times and memory would not hold; measure them at {options['seq']}"))
    runtime = load_runtime(options.get("runtime") or "megatron")
    return measured_profile(data, model, cluster, runtime, title=options["profiles"])


def write_request(options: Options, micro_batches: tuple[int, ...], output: Output) -> int:
    """`--write-operators`: what the probe should measure; nothing is searched."""
    from shardwise.inputs.serialise import to_json
    from shardwise.inputs.write import write_now, write_text
    from shardwise.per_op.profiles.request import operator_request

    if not options["model"] or not options["cluster"]:
        raise InputError(Fault("--write-operators", "needs MODEL and --cluster: they say which operators there are"))
    model, cluster = load_model(options["model"]), load_cluster(options["cluster"])
    runtime = load_runtime(options.get("runtime") or "megatron")
    request = operator_request(model, cluster, runtime, seq=options["seq"], micro_batches=micro_batches)
    path = options["write_operators"]
    write_text(path, to_json(request))
    output.answer({"operators": len(request["operators"]), "file": path})
    write_now()
    output.say(
        f"{len(request['operators'])} operators of {model.name} at sequence length {options['seq']} are in {path}"
    )
    output.say(f"measure them on a GPU: shardwise probe --operators {path} --out operators.json")
    return 0
