"""Options that `plan --space per-op` cannot follow: said before the search, never passed over in silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.cost.profiles.table import Profile
from shardwise.errors import Fault, InputError
from shardwise.inputs.model import Model
from shardwise.plan.per_op.advice import dimensions

_STRATEGY_ONLY = {
    "only": "say the limits with --most-tp, --stages and --micro-batch here",
    "fix": "say what is given with --most-tp, --stages, --micro-batch and --zero here",
    "memory_margin": "give what one GPU may use with --memory here",
    "gap": "end a search with --time-limit here; its gap is printed",
    "time_limit_wall": "use --time-limit here, in CPU seconds",
    "top": "use --best here, with --aceso FILE",
}
_FLAGS = {"time_limit_wall": "--time"}


def strangers(options: Mapping[str, Any], typed: frozenset[str]) -> list[Fault]:
    """Typed options of the other space, and those that contradict --compatible."""
    found = [
        Fault(_FLAGS.get(name, "--" + name.replace("_", "-")), f"belongs to --space strategy; {why}")
        for name, why in _STRATEGY_ONLY.items()
        if name in typed
    ]
    if options["compatible"]:
        against = {
            "--zero": options["zero"] == 1,
            "--p2p-overlap": options["p2p_overlap"] > 0,
            "--schedule": options["schedule"] == "gpipe",
        }
        why = "is not part of Aceso's cost model; leave out it or --compatible (--compatible-space keeps the space)"
        found += [Fault(flag, why) for flag, wrong in against.items() if wrong]
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
