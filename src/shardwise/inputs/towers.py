"""What stands before and behind the layers of a tower: what makes its tokens, and what hands them to the next model.

A tower is a model whose layers run before those of another: an encoder of pictures or recordings, whose tokens take the
place of tokens of text, or one of text, whose output every layer of a decoder attends to.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from shardwise.inputs.serialise import later


@dataclass(frozen=True, slots=True, kw_only=True)
class Stem:
    """What makes tokens of a picture or a recording, in place of a table of tokens."""

    size: int
    """Pixels of a side of a picture, or frames of a recording, where the strategy says no other."""
    patch: int
    """Pixels of a side, or frames, that become one token."""
    channels: int = 3
    """Numbers of a pixel or frame."""
    frames: int = later(1)
    """Pictures of a video that share a token; a lone picture is repeated (Qwen-VL)."""
    flat: bool = later(False)
    """A recording: frames in one row, no square of pixels."""
    kernel: int = later(0)
    """Frames that a convolution sees; two stand one behind the other, the second in steps of `patch` (Whisper). 0: a
    single one that sees a patch."""
    bias: bool = True
    """It has biases."""
    leading: int = later(0)
    """Learned tokens beside those of the picture (a class token)."""

    def tokens(self, size: int = 0) -> int:
        """Of one picture or recording of this size, or of its own."""
        side = (size or self.size) // self.patch
        return (side if self.flat else side * side) + self.leading

    @property
    def read(self) -> int:
        """Numbers that become one token."""
        return self.channels * self.frames * (self.patch if self.flat else self.patch * self.patch)

    def parameters(self, hidden: int) -> int:
        """All of it, learned tokens too."""
        biases = hidden * self.bias
        if self.kernel:
            return self.kernel * hidden * (self.channels + hidden) + 2 * biases + self.leading * hidden
        return self.read * hidden + biases + self.leading * hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector:
    """What turns the tokens of a tower into those of the model behind it."""

    merge: int = 1
    """Side of the square of tokens that become one, side by side."""
    pooled: bool = later(False)
    """Such a square becomes its mean (Gemma 3)."""
    norm: Literal["none", "tokens", "merged"] = "none"
    """A norm before it, on tokens as they come, or merged."""
    rms: bool = later(False)
    """That norm has one vector of weights, whatever those of the tower have."""
    inner: tuple[int, ...] = later(())
    """Widths between its linear layers; empty: it is a single one."""
    bias: bool = True
    """Its linear layers have biases."""
    taps: int = later(0)
    """So many more of it, with norms on merged tokens, whose output is added to early layers (Qwen3-VL)."""

    def widths(self, hidden: int, out: int) -> tuple[int, ...]:
        """Of its input, between its linear layers, and of its output."""
        return (hidden * (1 if self.pooled else self.merge * self.merge), *self.inner, out)

    def linears(self, hidden: int, out: int) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each linear layer."""
        widths = self.widths(hidden, out)
        return tuple(pairwise(widths))

    def parameters(self, hidden: int, out: int, rows: int) -> int:
        """All of it; `rows`: vectors of weights that a norm has."""
        merged = self.widths(hidden, out)[0]
        each = sum(inputs * outputs + self.bias * outputs for inputs, outputs in self.linears(hidden, out))
        own = {"none": 0, "tokens": hidden, "merged": merged}[self.norm]
        rows = 1 if self.rms else rows
        return (1 + self.taps) * each + rows * (own + self.taps * merged)
