"""What the backward pass computes again, and the short text for it.

none
full                       every layer
full:4                     the first 4 layers of every stage (Megatron's block method)
full:[4,3,0]               so many of each stage (or chunk, when pp x vpp numbers are given)
full/2                     uniform groups of 2 layers
core-attention+moe-act     these modules of every layer; with `:4` or `:[..]` as above
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from shardwise.errors import InputError

MODULES = (
    "core-attention",  # scores, softmax and values
    "attention",  # the whole attention block, projections included
    "attention-norm",  # the norm before attention (or MLA)
    "mlp",  # the whole feed-forward or expert block
    "ffn",  # its matrices and activation only: routing, dispatched tokens and a shared expert are kept
    "mlp-norm",  # the norm before it
    "activation",  # the activation of the feed-forward block
    "moe-act",  # the activation of the experts
    "mla-up",  # MLA's up-projections
    "comm",  # gathered inputs of tensor-parallel layers are gathered again
    "ops",  # torchtitan's selective: every other matmul is kept, the rest recomputed
)
_TEXT = re.compile(r"([a-z+\-]+)(?:/([0-9]{1,9}))?(?::([0-9]{1,9}|\[ *[0-9]{1,9}(?: *, *[0-9]{1,9})* *\]))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """What the backward pass computes again."""

    full: bool = False
    """Whole layers: only their inputs are kept."""
    modules: tuple[str, ...] = ()
    """Parts of a layer that are recomputed (see MODULES)."""
    layers: tuple[int, ...] = ()
    """Layers that do so, from the first of each stage on: one number for all, or one per stage or chunk. Empty: all."""
    group: int = 1
    """Consecutive layers recomputed as one segment from one kept input (uniform method)."""

    @property
    def active(self) -> bool:
        return self.full or bool(self.modules)

    def __str__(self) -> str:
        text = "full" if self.full else "+".join(self.modules) or "none"
        if self.group != 1:
            text += f"/{self.group}"
        if len(self.layers) == 1:
            text += f":{self.layers[0]}"
        elif self.layers:
            text += ":[" + ",".join(map(str, self.layers)) + "]"
        return text

    @classmethod
    def parse(cls, text: str) -> Recompute:
        found = _TEXT.fullmatch(text.strip().lower())
        if found is None:
            raise InputError(
                f"{text!r} is not a recompute choice; write none, full, full:4, full:[4,3,0], full/2, or modules "
                f"joined by +: {', '.join(MODULES)}"
            )
        base = cls._named(found[1], text)
        layers = tuple(int(n) for n in found[3].strip("[]").split(",")) if found[3] else ()
        return replace(base, group=int(found[2] or 1), layers=layers)

    @classmethod
    def _named(cls, names: str, text: str) -> Recompute:
        if names == "none":
            return cls()
        if names == "full":
            return cls(full=True)
        modules = tuple("core-attention" if name == "selective" else name for name in names.split("+"))
        unknown = [name for name in modules if name not in MODULES]
        if unknown:
            raise InputError(
                f"{text!r}: {', '.join(unknown)} cannot be recomputed; choose from none, full, selective, "
                f"{', '.join(MODULES)}"
            )
        return cls(modules=tuple(sorted(set(modules), key=MODULES.index)))
