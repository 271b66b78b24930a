"""What a user should know before a run: how it may differ from its profile, and what a measured peak teaches."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from shardwise.errors import Fault, InputError
from shardwise.inputs.model import Model
from shardwise.per_op.evaluate import PerOpCost
from shardwise.per_op.profiles.facts import OperatorFacts
from shardwise.per_op.profiles.table import MB, Profile
from shardwise.units import parse_bytes, show_bytes


class Dimensions(NamedTuple):
    """Shape of a model that Aceso knows by name."""

    layers: int
    seq: int
    hidden: int
    heads: int


# Aceso's GPT sizes (microsoft/SuperScaler, search/aceso_utils.py); the vocabulary is 51,200 everywhere.
KNOWN = {
    "gpt_350M": Dimensions(24, 2048, 1024, 16),
    "gpt_1_3B": Dimensions(24, 2048, 2048, 32),
    "gpt_2_6B": Dimensions(32, 2048, 2560, 32),
    "gpt_6_7B": Dimensions(32, 2048, 4096, 32),
    "gpt_13B": Dimensions(40, 2048, 5120, 40),
    "gpt_scale-layer": Dimensions(1, 2048, 512, 8),
}


def dimensions(profile: Profile) -> Dimensions | None:
    """Shape of the profiled model: its tags first, then its name."""
    known, tags = KNOWN.get(profile.name), profile.tags
    try:
        said = {key: int(tags[key]) for key in Dimensions._fields if key in tags}
    except ValueError:
        raise InputError(Fault("profile.toml", "layers, seq, hidden and heads must be whole numbers")) from None
    if known is None:
        return Dimensions(**said) if len(said) == len(Dimensions._fields) else None
    return known._replace(**said)


def attention_kernel(profile: Profile, facts: tuple[OperatorFacts, ...]) -> str:
    """Flash or plain: its tag, else told from what attention keeps against the size of its scores; "": unknown."""
    if "attention" in profile.tags:
        return profile.tags["attention"]
    shape = dimensions(profile)
    rows = [index for index, own in enumerate(facts) if own.kind == "attention"]
    if shape is None or not rows or profile.micro_batches[0] != 1:
        return ""
    kept = float(profile.column("activations")[0, 0, 0, rows].sum())
    scores = 2.0 * shape.heads * shape.seq**2
    return "flash" if kept < 0.8 * scores else "plain"


def scores_bytes(profile: Profile) -> float:
    """Bytes of attention scores and their dropout per sample and layer, kept where attention is not fused."""
    shape = dimensions(profile)
    return 5.0 * shape.heads * shape.seq**2 if shape else 0.0


def warnings(profile: Profile, facts: tuple[OperatorFacts, ...], runs_with: dict[str, str]) -> Iterator[str]:
    """Where the run will differ from what was profiled."""
    own = {**profile.tags, **({"attention": kernel} if (kernel := attention_kernel(profile, facts)) else {})}
    for key, value in runs_with.items():
        if key in own and own[key] != value:
            yield f"the profile was made with {key} {own[key]} and the run has {key} {value}: " + _effect(
                key, value, profile
            )
        elif key not in own:
            yield f"the profile does not say its {key}; the run has {key} {value}"
    if "attention" not in runs_with and own.get("attention") == "flash":
        extra = scores_bytes(profile)
        more = f"; without it each attention keeps about {show_bytes(extra)} more per sample" if extra else ""
        yield f"the profile has a fused attention: the run must have flash attention too{more}"


def _effect(key: str, value: str, profile: Profile) -> str:
    if key == "attention" and value == "plain":
        return (
            f"its scores take about {show_bytes(scores_bytes(profile))} more per sample and layer, and the plan "
            "will run out of memory; profile without flash attention"
        )
    return "times and memory will differ; profile again"


def unsupported(model: Model) -> Iterator[str]:
    """What Aceso's runtime cannot do with a model, before it fails there."""
    if model.position == "rope":
        yield (
            "Aceso's runtime has no context-parallel group: --position-embedding-type rope stops with 'context "
            "parallel group is not initialized'; use learned positions there, or another runtime"
        )
    if model.kv_heads != model.heads:
        yield f"Aceso's runtime has no grouped queries: {model.kv_heads} key-value heads would run as {model.heads}"
    if model.moe is not None:
        yield "Aceso's runtime has no mixture of experts"


FARTHEST = 10.0
"""Times a prediction, or a part of it, beyond which a peak is not one of the plan."""


class MeasuredMemory(NamedTuple):
    """What the peaks of a run teach."""

    factor: float
    """By which predictions must be multiplied."""
    room: float
    """Less than this the GPUs had, where a stage ran out of memory; else endless."""
    told: tuple[str, ...]
    """A sentence for every stage."""


def measured_memory(text: str, cost: PerOpCost) -> MeasuredMemory:
    """`stage0=58.8GiB,stage1=40GB`; a stage that ran out is `stage0=58.8GiB+2.13GiB`, held and asked for in addition:
    it needs at least the sum, and its GPU had less than that.
    """
    faults, told, factors, room = [], [], [], inf
    seen: set[str] = set()
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        index = name.removeprefix("stage")
        if name in seen:
            faults.append(Fault("--measured-memory", f"{name} is said twice; give the larger"))
            continue
        seen.add(name)
        if not (index.isascii() and index.isdigit()) or int(index) >= len(cost.memory) or not value:
            most = len(cost.memory) - 1
            faults.append(
                Fault("--measured-memory", f"{word!r}: write stage0=58.8GiB, stages 0 to {most} as in the plan")
            )
            continue
        try:
            sizes = [parse_bytes(size) for size in value.split("+")]
        except InputError as error:
            faults += [Fault("--measured-memory", fault.message) for fault in error.faults]
            continue
        if min(sizes) <= 0:
            faults.append(Fault("--measured-memory", f"{word!r}: a stage holds more than nothing"))
            continue
        measured, predicted, failed = sum(sizes), cost.memory[int(index)], len(sizes) > 1
        ratio = measured / predicted
        if not 1 / FARTHEST <= ratio <= FARTHEST:
            said = f"is {ratio:.3g} x the {show_bytes(predicted)} predicted: not a peak of this plan, or another unit"
            faults.append(Fault("--measured-memory", f"{word!r}: {show_bytes(measured)} {said}"))
            continue
        factors.append(max(1.0, ratio) if failed else ratio)
        room = min(room, measured) if failed else room
        said = f"needed at least ({' + '.join(map(show_bytes, sizes))})" if failed else "measured"
        told.append(f"stage {index}: {show_bytes(measured)} {said}, {show_bytes(predicted)} predicted ({ratio:.2f} x)")
    if faults:
        raise InputError(faults)
    return MeasuredMemory(max(factors), room, tuple(told))


def mebibytes(value: float) -> float:
    """Bytes as MiB, which Aceso calls MB."""
    return value / MB
