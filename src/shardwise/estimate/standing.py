"""Where the towers of a model may stand in a pipeline, each way with its best cut and what decides its time.

Three ways are strategies, told apart by their layers alone: all towers in the first stage beside layers of the model,
in stages of their own, or cut wherever stages take equal time. In the fourth every pipeline rank holds a copy of the
towers and encodes its share of the pictures before the pipeline begins, and where towers train, once more behind it
with its gradients: no strategy says that, and its time is put together from both parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardwise.cost.chunk import BlockRun, Chunk, chunk_of, combined
from shardwise.cost.layer import ENDS
from shardwise.cost.memory import footprint_of
from shardwise.cost.network import send
from shardwise.errors import InputError
from shardwise.estimate.estimate import Estimate, estimate
from shardwise.estimate.setup import Setup, setup_of
from shardwise.inputs.load import load_runtime
from shardwise.units import show_bytes, show_seconds

ASKED, FIRST, OWN, EVEN = "as asked", "first stage", "stages of their own", "cut by time alone"
COPIED = "a copy on every rank"
TRIED = 12
"""Cuts of each way that are estimated, the likeliest first."""


class TowerPlace(NamedTuple):
    """One way for the towers to stand."""

    towers: str
    layers: tuple[int, ...]
    """Layers of every stage, towers included where they stand in one."""
    seconds: float
    """Of an iteration."""
    bytes: float
    """What the fullest rank needs."""
    why: str
    """What decides its time."""


def standings(found: Estimate) -> tuple[TowerPlace, ...]:
    """The strategy as it is, then every other way; none where there is no tower, or no pipeline of single chunks."""
    s, model = found.strategy, found.model
    if not model.towers or s.pp == 1 or s.vpp > 1:
        return ()
    towers = model.depth - model.layers
    rows = [_row(found, ASKED)]
    cuts = {FIRST: _first(towers, model.layers, s.pp), OWN: _own(found, towers), EVEN: [_even(found)]}
    for name, ways in cuts.items():
        tried = [one for way in ways if (one := _cut(found, way)) is not None]
        if tried:
            rows.append(_row(min(tried, key=lambda one: one.iteration_seconds), name))
    copied = None if model.crosses or model.layers < s.pp else _copied(found)
    return (*rows, copied) if copied else tuple(rows)


def _shared(layers: int, stages: int) -> tuple[int, ...]:
    """Evenly, the longer ones before the last."""
    each, more = divmod(layers, stages)
    return tuple(each + (index < more) for index in range(stages))


def _first(towers: int, layers: int, pp: int) -> Iterator[tuple[int, ...]]:
    """All towers on the first stage, beside so many layers of the model."""
    most = min(layers - pp + 1, layers // pp)
    step = max(1, -(-(most + 1) // TRIED))
    for beside in range(1, most + 1, step):
        yield (towers + beside, *_shared(layers - beside, pp - 1))


def _own(found: Estimate, towers: int) -> Iterator[tuple[int, ...]]:
    """The first stages hold towers alone: as many as their share of the work says, and their neighbours."""
    pp, layers = found.strategy.pp, found.model.layers
    counts = range(1, min(pp - 1, towers) + 1)
    for stages in sorted(counts, key=lambda count: (count > TRIED, count))[:TRIED]:
        if layers >= pp - stages:
            yield (*_shared(towers, stages), *_shared(layers, pp - stages))


def _even(found: Estimate) -> tuple[int, ...]:
    """Stages that take as long as each other, as far as layers let them."""
    pp = found.strategy.pp
    runs = _whole(found).chunks[0].runs
    each = [combined(run.block.f, run.block.i, run.block.w, run.block.recompute).total for run in runs]
    layers = [seconds for run, seconds in zip(runs, each, strict=True) for _ in range(run.repeat)]
    names = [run.block.name for run in runs for _ in range(run.repeat)]
    share, done, counts = sum(layers) / pp, 0.0, [0] * pp
    left = sum(name not in ENDS for name in names)
    for name, seconds in zip(names, layers, strict=True):
        if name not in ENDS:
            wanted = min(pp - 1, int((done + seconds / 2) / share))
            rank = max(index for index in range(wanted + 1) if index == 0 or counts[index - 1])
            rank = max(rank, pp - left)  # a layer for every stage that is left
            counts[rank] += 1
            left -= 1
        done += seconds
    return tuple(counts)


def _whole(found: Estimate) -> Setup:
    """All layers on one stage."""
    s = found.strategy
    whole = replace(
        s, pp=1, layers=(), first_layers=0, last_layers=0, schedule="1f1b", placement="loop", count_embedding=False,
        count_head=False, recompute=replace(s.recompute, layers=()),
    )  # fmt: skip
    return setup_of(found.model, found.cluster, whole, load_runtime(s.runtime))


def _cut(found: Estimate, layers: tuple[int, ...]) -> Estimate | None:
    plain = {"first_layers": 0, "last_layers": 0, "count_embedding": False, "count_head": False}
    recompute = found.strategy.recompute
    if recompute.layers and len(recompute.layers) > 1:  # of the stages that are there
        recompute = replace(recompute, layers=())
    strategy = replace(found.strategy, layers=layers, recompute=recompute, **plain)  # type: ignore[arg-type]
    try:
        return estimate(found.model, found.cluster, strategy)
    except InputError:
        return None


def _row(found: Estimate, name: str) -> TowerPlace:
    layers = tuple(sum(stage.layers) for stage in found.stages)
    return TowerPlace(name, layers, found.iteration_seconds, found.total_bytes, _why(found))


def _why(found: Estimate) -> str:
    """The slowest stage over the mean, and what stands in it."""
    busy = [stage.forward + stage.backward for stage in found.stages]
    slowest, mean = max(busy), sum(busy) / len(busy)
    rank = busy.index(slowest)
    towers, before = found.model.depth - found.model.layers, sum(sum(one.layers) for one in found.stages[:rank])
    own = sum(found.stages[rank].layers)
    held = "towers" if before + own <= towers else "towers and layers" if before < towers else "layers"
    return f"stage {rank} ({held}) takes {show_seconds(slowest)}, {slowest / mean - 1:.0%} above the mean"


def _copied(found: Estimate) -> TowerPlace | None:
    """The model alone, and the towers beside it on every rank; none where it cannot run without them."""
    s, model = found.strategy, found.model
    plain = {"images": 1.0, "image_size": 0, "source": 0, "frozen": (), "image_imbalance": 1.0}
    even = () if model.layers % s.pp == 0 else _shared(model.layers, s.pp)
    spread = {"layers": even, "first_layers": 0, "last_layers": 0, "recompute": replace(s.recompute, layers=())}
    try:
        alone = estimate(replace(model, towers=()), found.cluster, replace(s, **plain, **spread))  # type: ignore[arg-type]
    except InputError:
        return None
    setup = _whole(found)
    towers = _towers(setup)
    again = 0.0 if _all_frozen(found) else towers.forward_seconds
    back = 0.0 if _all_frozen(found) else towers.backward_seconds
    encoded = -(-s.microbatches // s.pp) * (towers.forward_seconds + again + back)
    handed = sum(_handed(setup))
    sent = send(setup.network, s.between_stages, handed) * s.microbatches * (1 if _all_frozen(found) else 2)
    own = footprint_of([towers], setup.shard, s, setup.runtime, setup.states)
    held = own.static - sum(part.value for part in own.parts if part.name == "workspace and buffers")
    kept = handed * s.microbatches
    told = f"{-(-s.microbatches // s.pp)} of {s.microbatches} micro batches encoded on every rank"
    why = f"{told} in {show_seconds(encoded)}; {show_bytes(held)} of towers on each, {show_bytes(kept)} of their output"
    layers = tuple(sum(stage.layers) for stage in alone.stages)
    return TowerPlace(COPIED, layers, alone.iteration_seconds + encoded + sent, alone.total_bytes + held + kept, why)


def _all_frozen(found: Estimate) -> bool:
    return {tower.name for tower in found.model.towers} <= set(found.strategy.frozen)


def _towers(setup: Setup) -> Chunk:
    """What stands before the first of the model's own layers."""
    return chunk_of(tuple(_before(setup.chunks[0].runs, setup.model.depth - setup.model.layers)), 0.0)


def _before(runs: Iterable[BlockRun], layers: int) -> Iterator[BlockRun]:
    left = layers
    for run in runs:
        if run.block.name == "embedding":
            yield run
        elif left > 0:
            yield run._replace(repeat=min(left, run.repeat))
            left -= run.repeat


def _handed(setup: Setup) -> Sequence[float]:
    """Bytes of every tower's output of a micro batch."""
    model, shard = setup.model, setup.shard
    sizes = []
    for tower in shard.towers:
        projector = tower.model.projector
        merge = projector.merge**2 if projector and tower.model.stem and not tower.model.stem.flat else 1
        sizes.append(shard.element * tower.tokens / merge * model.hidden / (shard.tp if shard.sp else 1))
    return sizes
