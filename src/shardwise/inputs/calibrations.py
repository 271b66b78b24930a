"""Which calibration a GPU uses: the one it names, a user's own, or that of its family."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from shardwise.errors import UnknownNameError
from shardwise.inputs import lookup
from shardwise.inputs.calibration import Calibration, Learnt
from shardwise.inputs.cluster import Gpu
from shardwise.inputs.files import read_mapping
from shardwise.inputs.typed import validated

SHIPPED = lookup.CATALOG / "calibrations"

# GPU name prefixes to the family whose kernels they run; the longest that fits wins.
FAMILIES = {
    "v100": "volta",
    "a100": "ampere",
    "a800": "ampere",
    "h100": "hopper",
    "h100-96": "hopper-500w",
    "h800": "hopper",
    "h20": "hopper",
    "h200": "h200",
    "gh200": "h200",
    "b200": "b200",
    "b300": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
    "mi": "cdna",
    "mi325": "cdna-1000w",
    "mi35": "cdna4",
    "mi355": "cdna4-1400w",
    "tpu": "tpu",
    "ascend": "ascend",
    "910": "ascend",
}


def family_of(gpu: Gpu) -> str:
    """Name of the calibration that applies to a GPU."""
    if isinstance(gpu.calibration, Calibration):
        return gpu.calibration.name
    if gpu.calibration:
        return gpu.calibration
    name = gpu.name.lower()
    fitting = [prefix for prefix in FAMILIES if name.startswith(prefix)]
    return FAMILIES[max(fitting, key=len)] if fitting else "generic"


def calibration_of(gpu: Gpu) -> Calibration:
    """The calibration that applies to a GPU."""
    if isinstance(gpu.calibration, Calibration):
        return gpu.calibration
    return load_calibration(family_of(gpu))


def learnt_of(calibration: Calibration, runtime: str) -> Learnt | None:
    """What was learnt of a runtime, by its name with or without values laid over it."""
    base = runtime.partition("+")[0]
    return next((one for one in calibration.learnt if one.runtime == base), None)


def learnt_line(name: str, found: Learnt) -> str:
    """What was learnt, in a few words."""
    return f"{name} learnt from {f'{len(found.runs)} runs' if len(found.runs) > 1 else 'a run'} of {found.runtime}"


@functools.lru_cache(maxsize=256)
def as_run_by(calibration: Calibration, runtime: str, *, experts: bool) -> Calibration:
    """The calibration with what was learnt of a runtime in it; once in, it is not applied again.

    `experts`: the model has some.
    """
    found = learnt_of(calibration, runtime)
    if found is None or not found.corrections:
        return calibration
    more = found.corrections.get("experts", 1.0) if experts else 1.0
    host = found.corrections.get("host", 1.0)
    kinds = {kind: found.corrections.get(kind, 1.0) * more for kind in ("gemm", "attention", "memory")}
    corrections = {kind: calibration.corrections.get(kind, 1.0) * factor for kind, factor in kinds.items()}
    runs = tuple(dict.fromkeys(found.runs))
    told = f"{learnt_line(calibration.name, found)}: {'; '.join(runs[:3])}{' ...' if len(runs) > 3 else ''}"
    return replace(
        calibration,
        corrections={**corrections, "host": host},
        host=calibration.host / host,
        source=f"{calibration.source}; {told}",
        learnt=(replace(found, corrections={}),),
    )


@functools.cache
def load_calibration(name: str) -> Calibration:
    """A calibration by name, from the user's folder or the shipped ones."""
    own = lookup.home() / "calibrations" / f"{name}.toml"
    if own.is_file():
        return validated(Calibration, {"name": name, **read_mapping(own)}, title=str(own), at="calibration")
    path = SHIPPED / f"{name}.toml"
    if not path.is_file():
        raise UnknownNameError("calibration", name, calibration_names())
    return lookup.build(Calibration, {"name": name, **read_mapping(path)})


@functools.cache
def is_shipped(name: str) -> bool:
    """Whether a calibration is one of ours; any other was measured where it is used."""
    return (SHIPPED / f"{name}.toml").is_file()


def calibration_names() -> list[str]:
    """Shipped calibrations and the user's own."""
    folders: tuple[Path, ...] = (SHIPPED, lookup.home() / "calibrations")
    return sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
