"""Where chunks lie, as people say it: `loop`, `v`, the rank of every chunk (`0,1,2,3,3,2,1,0`), or an order's file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardwise.errors import Fault, InputError
from shardwise.inputs.gate import listed
from shardwise.inputs.scalars import SCALARS
from shardwise.pipeline.action import placed

WORDS = ("loop", "v")
_AT = "--placement"


def is_map(text: str | None) -> bool:
    """Whether a placement is a map of its own, or names a file of one, and not a word."""
    return text is not None and text not in WORDS


def read_map(text: str) -> tuple[int, ...]:
    """The rank of every chunk: of a text, or of the order that a file holds."""
    if Path(text).suffix.lower() in {".csv", ".json"}:
        from shardwise.pipeline.replay import read_order

        return read_order(text)[1].rank_of
    if "," not in text and not text.strip().isdigit():
        told = f"is {text!r}; write loop, v, the rank of every chunk such as 0,1,1,0, or the file of an order"
        raise InputError(Fault(_AT, told))
    return tuple(int(rank) for rank in listed(text, SCALARS["option.none"], _AT))


def check_map(rank_of: Sequence[int], pp: int | None = None, vpp: int | None = None) -> tuple[int, int]:
    """Ranks, and chunks of each, of a map that can be put in order; InputError where it cannot, or is of others."""
    ranks = 1 + max(rank_of)
    if ranks > len(rank_of):
        raise InputError(
            Fault(_AT, f"names rank {ranks - 1} and has {_chunks(len(rank_of))}; every rank holds one or more")
        )
    counts = [0] * ranks
    for rank in rank_of:
        counts[rank] += 1
    least, most = counts.index(min(counts)), counts.index(max(counts))
    if counts[least] != counts[most]:
        told = f"puts {_chunks(counts[most])} on rank {most} and {counts[least]} on rank {least}"
        raise InputError(Fault(_AT, f"{told}; auto orders maps with equally many on all (`simulate` replays any)"))
    own = {"--pp": (pp, ranks), "--vpp": (vpp, counts[0])}
    faults = [
        Fault(name, f"is {given}, and the map of {_AT} has {there}; leave one out")
        for name, (given, there) in own.items()
        if given is not None and given != there
    ]
    if faults:
        raise InputError(faults)
    return ranks, counts[0]


def _chunks(count: int) -> str:
    return f"{count} chunk{'s' * (count != 1)}"


def word_of(rank_of: tuple[int, ...]) -> str:
    """The word for a map where there is one, so that the named orders of it are known; else its text."""
    pp, vpp = check_map(rank_of)
    return next((word for word in WORDS if placed(pp, vpp, word) == rank_of), ",".join(map(str, rank_of)))
