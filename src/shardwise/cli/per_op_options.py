"""Options that `plan-operators` cannot follow: said before the search, never passed over in silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardwise.cli.output import Output
from shardwise.errors import Fault, InputError
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.load import load_runtime
from shardwise.inputs.model import Model
from shardwise.per_op.advice import dimensions
from shardwise.per_op.profiles.table import Profile


def contradictions(options: Mapping[str, Any]) -> list[Fault]:
    """Options that contradict each other."""
    found = [
        Fault("--" + name.replace("_", "-"), "is empty; leave it out, or say what is meant")
        for name, value in options.items()
        if value == ""
    ]
    if options["micro_batch"] and not options["write_operators"]:
        said = "says which sizes the probe should measure, with --write-operators"
        found.append(Fault("--micro-batch", f"{said}; say how many micro batches an iteration has with --microbatches"))
    if options["compatible"]:
        against = {
            "--zero": bool(options["zero"]),
            "--p2p-overlap": bool(options["p2p_overlap"]),
            "--schedule": options["schedule"] == "gpipe",
        }
        why = "is not part of Aceso's cost model; leave out it or --compatible (--compatible-space keeps the space)"
        found += [Fault(flag, why) for flag, wrong in against.items() if wrong]
    if options["zero"] == 3:
        found.append(
            Fault("--zero", "3 gathers whole layers, whose operators then have one split: use `shardwise plan`")
        )
    if options["zero"] == 2 and options["stages"] not in {None, "1"}:
        found.append(Fault("--zero", "2 reduces gradients after every micro batch: one stage only; use 1, or leave "
                           "out --stages"))  # fmt: skip
    if options["out"] and not (options["model"] and options["cluster"]):
        found.append(Fault("--out", "a plan file holds its model and cluster: give MODEL and --cluster as well"))
    return found


def other_length(options: Mapping[str, Any], typed: frozenset[str], profile: Profile) -> list[Fault]:
    """A length that is not the profiled one."""
    shape = dimensions(profile)
    seq = str(shape.seq) if shape else profile.tags.get("seq")
    if "seq" not in typed or seq is None or str(options["seq"]) == seq:
        return []
    said = f"is {options['seq']}, but {profile.name} was profiled with {seq}: its times and memory hold for that"
    return [Fault("--seq", f"{said}; leave --seq out, or profile again")]


def refuse_other_layers(options: Mapping[str, Any], model: Model | None, profile: Profile) -> None:
    """A profile that says itself how its layers follow one another is of one model, at one depth."""
    own = sum(len(run.spans) * run.repeats for run in profile.runs)
    given = {"--layers": options["layers"], "MODEL": model.layers + model.mtp if model else None}
    told = (
        f"the profile says itself which {own} layers {profile.name} has: leave it out, or change runs in profile.toml"
    )
    faults = [
        Fault(name, f"has {count} layers, but {told}") for name, count in given.items() if count not in {None, own}
    ]
    faults += [Fault("--layer-ops", f"is {options['layer_ops']}, but {told}")] if options["layer_ops"] else []
    if faults:
        raise InputError(faults)


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
