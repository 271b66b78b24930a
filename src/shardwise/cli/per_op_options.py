"""Options that `plan-operators` cannot follow: said before the search, never passed over in silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.errors import Fault, InputError
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
