"""A profile as Aceso's files, with a `profile.toml` for what those cannot say."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from shardwise.errors import FileError
from shardwise.frameworks.aceso.profile_texts import ENDINGS
from shardwise.inputs.write import together, write_text
from shardwise.per_op.profiles.facts import written_facts
from shardwise.per_op.profiles.table import MB, MS, US, Band, Profile

_STRANGE = re.compile(r"[^\w.+-]+")
"""What a model's name may hold and a file's name should not."""
_HEAD = "op_name,forward-compute,backward-compute,input_size,output_size,weights,activations,fwd_reserved,bwd_reserved"


def write_profile(profile: Profile, folder: str | Path) -> None:
    """Write every file of a set; the folder is made. Another set's files in it would be read with ours: refused."""
    made = texts(profile)
    found = (item.name for item in Path(folder).glob("*") if item.name.endswith(ENDINGS))
    strange = sorted(name for name in found if name not in made)
    if strange:
        raise FileError(
            folder, f"holds {strange[0]}, which would be read as part of the profile; choose another folder"
        )
    with together():
        for name, text in made.items():
            write_text(Path(folder) / name, text, folder=True)


def texts(profile: Profile) -> dict[str, str]:
    """File name -> text."""
    profile = replace(profile, name=_STRANGE.sub("-", profile.name))
    found = dict(_op_files(profile))
    for (kind, gpus), samples in profile.collectives.items():
        lines = [
            f"{size / MB!r},{seconds / MS!r}" for size, seconds in zip(samples.sizes, samples.seconds, strict=True)
        ]
        found[f"prim_{profile.name}_{kind}_{gpus}gpus.csv"] = "\n".join(["data_size(MB),time(ms)", *lines]) + "\n"
    found["p2p_intra_node.csv"] = _band(profile.intra)
    if profile.inter is not None:
        found["p2p_inter_node.csv"] = _band(profile.inter)
    found["profile.toml"] = _side(profile)
    return found


def _op_files(profile: Profile) -> Iterator[tuple[str, str]]:
    axes = (profile.micro_batches, profile.tps, profile.variants)
    for place in itertools.product(*(range(len(axis)) for axis in axes)):
        mbs, tp, variant = (axis[index] for axis, index in zip(axes, place, strict=True))
        table = profile.values[:, place[0], place[1], place[2]]
        lines = [_HEAD]
        for index, op in enumerate(profile.ops):
            times = [repr(float(value / US)) for value in table[:2, index]]
            lines.append(",".join([op, *times, *(repr(float(value / MB)) for value in table[2:, index])]))
        yield f"{profile.name}_mbs{mbs}_tp{tp}_algo{variant}.csv", "\n".join(lines) + "\n"


def _band(band: Band) -> str:
    sizes = ",".join(repr(size / MB) for size in band.sizes)
    return sizes + "\n" + ",".join(repr(rate / (1000 * MB)) for rate in band.rates) + "\n"


def _side(profile: Profile) -> str:
    import tomli_w

    data: dict[str, object] = {"tags": profile.tags}
    if profile.layer_ops:
        data["layer_ops"] = list(profile.layer_ops)
    if profile.runs:
        data["runs"] = [
            {"layers": [[profile.ops[row] for row in span] for span in run.spans], "repeats": run.repeats}
            for run in profile.runs
        ]
    if profile.whole:
        data["whole"] = True
    if profile.operators:
        data["operators"] = {name: written_facts(said) for name, said in profile.operators.items()}
    return tomli_w.dumps(data)
