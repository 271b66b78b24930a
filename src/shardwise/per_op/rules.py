"""What is known about a profiled operator: how its tensors lie, what it shares, whether it may be recomputed.

A layout form is three letters for the tensor's dimensions: `1` whole, `d` split over dp, `t` split over tp; where no
letter is `t` the tensor is replicated over tp. Which operator has which is data (`frameworks/aceso/rules.py`).
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """One operator's properties."""

    inputs: tuple[str, ...] = ()
    """Layout form of the input, per variant; empty: nothing is known and a change costs nothing."""
    outputs: tuple[str, ...] = ()
    share: float = 1.0
    """Part of its activations that is really kept: tensors shared with a neighbour count there."""
    starts_layer: bool = False
    """Its input is kept whatever is recomputed: runs of recomputed operators end before it."""
    recompute: bool = True
    """May be recomputed."""


WHOLE = ("1d1",) * 2


class Spec(NamedTuple):
    """A form under a tp and a dp: copies, and pieces of each dimension."""

    copies: int
    pieces: tuple[int, ...]


def spec(forms: tuple[str, ...], tp: int, dp: int, variant: int) -> Spec | None:
    if not forms:
        return None
    form = forms[variant if variant < len(forms) else 0]
    pieces = tuple({"1": 1, "d": dp, "t": tp}[letter] for letter in form)
    return Spec(1 if "t" in form else tp, pieces)


class Change(NamedTuple):
    """Collectives that turn one layout into another: forward, backward, and over how many GPUs."""

    forward: str
    backward: str
    gpus: int


NOTHING = Change("", "", 1)


def change(have: Spec | None, want: Spec | None) -> Change | None:
    """How to get from one layout to the next; none: there is no single collective for it."""
    if have is None or want is None or have == want:
        return NOTHING
    more = [w > h for h, w in zip(have.pieces, want.pieces, strict=True)]
    if have.copies > want.copies:
        ratio, rest = divmod(have.copies, want.copies)
        return Change("split", "all_gather", ratio) if any(more) and not rest else None
    for index, (h, w) in enumerate(zip(have.pieces, want.pieces, strict=True)):
        if h <= w:
            continue
        ratio, rest = divmod(h, w)
        if rest:
            return None
        if have.copies < want.copies:
            return Change("all_gather", "split", ratio)
        if any(flag for other, flag in enumerate(more) if other != index):
            return Change("all_to_all", "all_to_all", ratio)
    return None
