"""The shape of a pipeline that is to be put in order: its ranks, the chunks of each, and where they lie."""

from __future__ import annotations

from shardwise.errors import Fault, InputError
from shardwise.inputs.gate import word
from shardwise.inputs.strategy import Placement
from shardwise.pipeline.action import placed
from shardwise.pipeline.generate import SHAPES, Shape
from shardwise.pipeline.placements import WORDS, check_map, is_map, read_map, word_of

TWO = "dualpipe"
"""The order of two copies. Not among the named orders of a model: it holds the parameters twice."""
_BOTH = Shape(vpp=1, placement="loop", text="DeepSeek's DualPipe: two copies of the model, from both ends")
_FREE = Shape(vpp=2, placement="v", text="auto, where nothing else is said")


def shape_of(name: str, pp: int | None, vpp: int | None, placement: str | None) -> tuple[int, int, str]:
    """Ranks, chunks of each, and where they lie, for an order of this name; `pp` is missing only beside a map."""
    named = _BOTH if name == TWO else SHAPES.get(name)
    if placement is None or not is_map(placement):
        assert pp  # noqa: S101 - for the type checker
        wanted = named or _FREE
        return pp, vpp or wanted.vpp or 2, placement or wanted.placement
    rank_of = read_map(placement)
    pp, vpp = check_map(rank_of, pp, vpp)
    if named and placed(pp, vpp, named.placement) != rank_of:
        told = f"is a map of its own, and {name} lies on a {named.placement}; maps are for auto"
        raise InputError(Fault("--placement", told))
    return pp, vpp, word_of(rank_of)


def as_word(placement: str | None) -> Placement | None:
    """The placement as a plan's strategy says it: it has no word for a map."""
    if placement is not None:
        word(placement, WORDS, "--placement")
    return placement  # type: ignore[return-value]
