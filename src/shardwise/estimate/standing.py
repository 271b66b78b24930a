"""Where the towers of a model may stand in a pipeline, each way with its best cut and what decides its time.

Three ways are strategies, told apart by their layers alone: all towers in the first stage beside layers of the model,
in stages of their own, or cut wherever stages take equal time. In the fourth every pipeline rank holds a copy of the
towers and encodes its share of the pictures before the pipeline begins, and where towers train, once more behind it
with its gradients: no strategy says that, and its time is put together from both parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import add, sub
from typing import NamedTuple

from shardwise.cost.chunk import BlockRun, Chunk, chunk_of, combined
from shardwise.cost.layer import ENDS
from shardwise.cost.memory import footprint_of
from shardwise.cost.network import send
from shardwise.cost.seconds import meet
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
    taken = _taken(_whole(found))
    behind = _evened(taken, range(towers, model.depth), s.pp)
    cuts = {
        FIRST: _first(taken, towers, behind[s.pp - 1]),
        OWN: _own(_evened(taken, range(towers), s.pp), behind, s.pp),
        EVEN: [_evened(taken, range(model.depth), s.pp)[s.pp][0]],
    }
    rows = [_row(found, ASKED)]
    for name, ways in cuts.items():
        likely = sorted(way for way in ways if way)[:TRIED]
        tried = [one for way in likely if (one := _cut(found, way.layers)) is not None]
        if tried:
            rows.append(_row(min(tried, key=lambda one: one.iteration_seconds), name))
    copied = None if model.crosses else _copied(found, behind[s.pp][0])
    return (*rows, copied) if copied else tuple(rows)


class TowerCut(NamedTuple):
    """Layers in a row, cut into stages."""

    slowest: float
    """Seconds of the slowest stage."""
    squares: float
    """Of the seconds of every stage, in sum: of equally slow cuts the one that is most even."""
    layers: tuple[int, ...]


def _taken(whole: Setup) -> list[list[float]]:
    """Seconds of both passes, on the device and on the host each, of all layers before each; the ends are taken with
    the layer beside them.
    """
    layers: list[list[float]] = []
    before = [0.0] * 4
    for (block, repeat), end in ((run, run.block.name in ENDS) for run in whole.chunks[0].runs):
        back = combined(block.i, block.w, block.recompute)
        each = [block.f.device, block.f.host, back.device, back.host]
        for _ in range(repeat):
            if not end:
                layers.append([*map(add, before, each)])
            elif layers:
                layers[-1] = [*map(add, layers[-1], each)]
            before = each if end and not layers else [0.0] * 4
    return [*accumulate(layers, lambda one, other: [*map(add, one, other)], initial=[0.0] * 4)]


def _stage(taken: Sequence[list[float]], first: int, end: int) -> float:
    device, host, back, again = map(sub, taken[end], taken[first])
    return meet(device, host) + meet(back, again)


def _evened(taken: Sequence[list[float]], among: range, most: int) -> list[list[TowerCut | None]]:
    """By the number of stages, up to `most`, and by the layer of a range that it begins with: the cut of all from there
    on whose slowest stage is fastest; none where there are too few.
    """
    spans = [[_stage(taken, first, end) for end in range(first + 1, among.stop + 1)] for first in among]
    found: list[list[TowerCut | None]] = [[], [TowerCut(span[-1], span[-1] ** 2, (len(span),)) for span in spans]]
    for _ in range(2, most + 1):
        found.append([_ahead(span, found[-1][index + 1 :]) for index, span in enumerate(spans)])
    return found


def _ahead(span: Sequence[float], behind: Sequence[TowerCut | None]) -> TowerCut | None:
    """The best first stage in front of the cuts of what is left."""
    best: TowerCut | None = None
    for count, (own, rest) in enumerate(zip(span, behind, strict=False), 1):
        if best and own > best.slowest:
            break
        if rest:
            made = TowerCut(max(own, rest.slowest), own * own + rest.squares, (count, *rest.layers))
            best = min(best, made) if best else made
    return best


def _first(taken: Sequence[list[float]], towers: int, behind: Sequence[TowerCut | None]) -> Iterator[TowerCut]:
    """All towers on the first stage, beside so many layers of the model."""
    for beside, rest in enumerate(behind):
        if rest and beside:
            own = _stage(taken, 0, towers + beside)
            yield TowerCut(max(own, rest.slowest), own * own + rest.squares, (towers + beside, *rest.layers))


def _own(
    ahead: Sequence[Sequence[TowerCut | None]], behind: Sequence[Sequence[TowerCut | None]], pp: int
) -> Iterator[TowerCut]:
    """The first stages hold towers alone, the others none."""
    for stages in range(1, pp):
        one, two = ahead[stages][0], behind[pp - stages][0]
        if one and two:
            yield TowerCut(max(one.slowest, two.slowest), one.squares + two.squares, (*one.layers, *two.layers))


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


def _copied(found: Estimate, cut: TowerCut | None) -> TowerPlace | None:
    """The model alone, and the towers beside it on every rank; none where it cannot run without them."""
    if cut is None:
        return None
    s, model = found.strategy, found.model
    plain = {"images": 1.0, "image_size": 0, "source": 0, "frozen": (), "image_imbalance": 1.0}
    spread = {"layers": cut.layers, "first_layers": 0, "last_layers": 0, "recompute": replace(s.recompute, layers=())}
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
