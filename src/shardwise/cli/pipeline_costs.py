"""Costs of a pipeline from the command line: `10,11,9`, a JSON file, or a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.errors import Fault, InputError
from shardwise.inputs.files import read_mapping
from shardwise.inputs.gate import Scalar, held, listed, typed
from shardwise.inputs.scalars import SCALARS
from shardwise.pipeline.action import placed
from shardwise.pipeline.costs import Costs, costs, limit_of
from shardwise.units import parse_bytes

if TYPE_CHECKING:
    from shardwise.estimate.setup import Setup
    from shardwise.plan.plan import Plan

_FIELDS = ("f", "i", "w", "hop", "activation", "free_at_input_grad", "static", "memory_limit", "alternatives")
_CHUNK_FIELDS = ("f", "i", "w", "activation")
_ROWS = {
    **dict.fromkeys(("f", "i", "w", "hop"), "pipeline.time"), "activation": "pipeline.bytes",
    "static": "pipeline.bytes", "memory_limit": "pipeline.limit", "free_at_input_grad": "pipeline.share",
}  # fmt: skip
"""Field -> its row of the one table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What is to be scheduled."""

    costs: Costs
    pp: int
    vpp: int
    microbatches: int
    placement: str
    alternatives: tuple[Costs, ...] = ()
    """Costs of every alternative (plain, recomputed ...), the first of which is `costs`."""
    setup: Setup | None = None
    """Of a plan: times are seconds, bytes are bytes, not the user's own units."""

    @property
    def seconds(self) -> bool:
        return self.setup is not None


def read_costs(text: str, pp: int, vpp: int, hop: float | None, free: float | None) -> tuple[Costs, ...]:
    """The alternatives that a text or a file describes; one where it names no others."""
    if not text.strip():
        raise InputError("--costs is empty; write f,i,w such as 10,11,9, or name a JSON file")
    if not re.match(r"[-+.0-9]", text.strip()) or Path(text).is_file():
        if Path(text).suffix or Path(text).exists():
            return _from_file(text, pp, vpp, hop, free)
        raise InputError(f"--costs {text!r} is neither f,i,w such as 10,11,9 nor a file ending in .json")
    numbers = listed(text, SCALARS["pipeline.time"], "--costs")
    if len(numbers) != 3:
        raise InputError(f"--costs {text!r} has {len(numbers)} numbers; write f,i,w of one chunk, such as 10,11,9")
    f, i, w = numbers
    share = 0.5 if free is None else free
    return (costs(pp=pp, vpp=vpp, f=f, i=i, w=w, hop=hop or 0.0, free_at_input_grad=share),)


def _from_file(path: str, pp: int, vpp: int, hop: float | None, free: float | None) -> tuple[Costs, ...]:
    data = read_mapping(path)
    unknown = sorted(set(data) - set(_FIELDS))
    faults = [Fault(key, f"is not a cost; the keys are {', '.join(_FIELDS)}") for key in unknown]
    faults += [Fault(key, "is missing; give one number or one per chunk") for key in "fiw" if key not in data]
    others = data.pop("alternatives", [])
    if not isinstance(others, list) or any(not isinstance(other, dict) for other in others):
        faults.append(Fault("alternatives", "must be a list of tables with f, i, w and activation"))
        others = []
    faults += [
        Fault(f"alternatives[{k}].{key}", f"is not a cost of a chunk; the keys are {', '.join(_CHUNK_FIELDS)}")
        for k, other in enumerate(others)
        for key in sorted(set(other) - set(_CHUNK_FIELDS))
    ]
    tables = {"": data, **{f"alternatives[{k}].": other for k, other in enumerate(others)}}
    faults += [fault for at, table in tables.items() for key, value in table.items() if key in _ROWS
               for fault in _number_faults(f"{at}{key}", value, SCALARS[_ROWS[key]])]  # fmt: skip
    if faults:
        raise InputError(faults, title=path)
    data |= {"hop": hop} if hop is not None else {}
    data |= {"free_at_input_grad": free} if free is not None else {}
    return tuple(costs(pp=pp, vpp=vpp, **(data | other)) for other in ({}, *others))


def _number_faults(at: str, value: Any, row: Scalar) -> Iterator[Fault]:  # noqa: ANN401 - what a file holds
    """A number, or a list of them; a share is one for all."""
    if value == []:
        yield Fault(at, "is an empty list; give one number, one per chunk or rank, or leave it out")
    for item in value if isinstance(value, list) and row is not SCALARS["pipeline.share"] else [value]:
        try:
            held(item, row, at)
        except InputError as error:
            yield from error.faults


def limited(found: tuple[Costs, ...], text: str | None, rank_of: tuple[int, ...]) -> tuple[Costs, ...]:
    """The costs with the memory limit of the command line, `1.5p` or bytes; the same for every alternative."""
    if text is None:
        return found
    if text.lower() == "none":
        return tuple(replace(one, memory_limit=()) for one in found)
    try:
        limits = _limits(found[0], text.strip().lower(), rank_of)
    except InputError as error:
        raise InputError(f"--memory-limit {text!r}: {error.faults[0].message}; {_FORMS}") from None
    if not 0 < min(limits) < float("inf"):
        raise InputError(f"--memory-limit {text!r} leaves a rank nothing; {_FORMS}")
    return tuple(replace(one, memory_limit=limits) for one in found)


_FORMS = "write 1.5p, 40GB, a number or none"


def _limits(costs: Costs, text: str, rank_of: tuple[int, ...]) -> tuple[float, ...]:
    if text.endswith("p"):
        return limit_of(costs, rank_of, typed(text[:-1], SCALARS["option.times"], ""))
    bare = re.fullmatch(r"[-+.0-9e]+", text)
    value = typed(text, SCALARS["pipeline.limit"], "") if bare else parse_bytes(text)
    return (value,) * (1 + max(rank_of))


def regrouped(costs: Costs, pp: int, vpp: int) -> Costs:
    """The same model cut into pp x vpp chunks: work and bytes are spread evenly inside each old chunk."""
    old, new = costs.chunks, pp * vpp
    if old == new:
        return costs

    def spread(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(sum(values[c] * _share(c, old, k, new) for c in range(old)) for k in range(new))

    hop = max(costs.hop, default=0.0)
    held = tuple(costs.held(c) for c in range(old))
    return replace(
        costs, f=spread(costs.f), i=spread(costs.i), w=spread(costs.w), activation=spread(held),
        hop=(hop,) * (new - 1), transfer=(max(costs.transfer, default=0.0),) * (new - 1) if costs.transfer else (),
    )  # fmt: skip


def _share(c: int, old: int, k: int, new: int) -> float:
    """How much of old chunk c of `old` lies in new chunk k of `new`."""
    low, high = max(c * new, k * old), min((c + 1) * new, (k + 1) * old)
    return max(0, high - low) / new


def plan_pipeline(plan: Plan, name: str, placement: str | None = None, limit: str | None = None) -> Pipeline:
    """The pipeline of a plan in an order: what an estimate of it replays, the device's memory as the limit."""
    from shardwise.estimate.passes import SPLIT, pass_costs
    from shardwise.estimate.setup import setup_of
    from shardwise.inputs.load import load_runtime
    from shardwise.plan.predict import reordered

    own = plan.strategy.schedule == name and not (name == "auto" and placement)
    strategy = plan.strategy if own else reordered(plan.strategy, name, plan.model.layers, placement)  # type: ignore[arg-type]
    setup = setup_of(plan.model, plan.cluster, strategy, load_runtime(strategy.runtime))
    rank_of = placed(strategy.pp, strategy.vpp, setup.placement)
    return Pipeline(
        costs=limited((pass_costs(setup, split=name in SPLIT | {"auto"}),), limit, rank_of)[0], pp=strategy.pp,
        vpp=strategy.vpp, microbatches=strategy.microbatches, placement=setup.placement, setup=setup,
    )  # fmt: skip
