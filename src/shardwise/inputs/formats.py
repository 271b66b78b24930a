"""Number formats below 16 bit: what an operand takes, and what making it moves.

From what Transformer Engine 2.x does with every operand of a product (input, weight, gradient of the output):

    fp8      one scale a tensor. `tensor`: its largest value is found first, one more pass over 16-bit values;
             `delayed`: the scale is of earlier steps, and a norm writes fp8 itself
             `row`, `block`: scales of rows (torchao) or of 128 values, for either side
    mxfp8    a scale of one byte for 32 values, along each side: two copies, quantised from 16 bit in one kernel
    nvfp4    a scale of one byte for 16 values, along each side; the copy of columns goes through a Hadamard transform,
             and the largest value after it is found first
"""

from __future__ import annotations

from typing import NamedTuple

# Time of casts over that of a streaming kernel of the same bytes (layers of Megatron-Core with Transformer Engine on an
# H200, 4096 and 8192 wide: 1.21 with a scale a tensor, 1.27 delayed).
SLOWER = 1.22


class Format(NamedTuple):
    """A number format of matrix products below 16 bit."""

    share: tuple[str, ...]
    """Names under which a calibration may hold the share of the peak that its products reach, the best first."""
    peak: str
    """Which of a GPU's peaks its products have."""
    size: float
    """Bytes of an element with its part of the scales."""
    sided: bool = True
    """Scaled along each side, so that either side has a copy. Else one copy serves both, but where the GPU multiplies
    8-bit operands along their rows only (Hopper): there a turned copy is made."""
    maxima: float = 0.0
    """Bytes read per element to find the scales before the cast."""
    reads: float = 2.0
    """Bytes that the cast reads per element."""
    normed: bool = False
    """A norm finds the maxima of its output itself, or writes the format itself where no maxima are sought."""
    kernels: float = 1.0
    """Kernels of a cast."""
    each: float = 1.0
    """Of these, kernels that every expert's tokens take by themselves (Megatron-Core on an H200, 16 experts: 96 in each
    pass of two grouped products with a scale a tensor, 32 with blocks)."""
    gathered: bool = True
    """Tensor parallel gathers operands in this format."""

    def layouts(self, *, turned: bool) -> int:
        """Copies of an operand. `turned`: the GPU multiplies 8-bit operands along their rows only."""
        return 2 if self.sided or turned else 1

    def traffic(self, *, turned: bool, normed: bool) -> float:
        """Weighted bytes that making an operand moves per element; `normed`: a norm has just written it."""
        written = self.size * self.layouts(turned=turned)
        if normed and self.normed:
            # what the norm writes anyway is not moved twice
            return SLOWER * (self.reads + written if self.maxima else max(0.0, written - self.reads))
        return SLOWER * (self.maxima + self.reads + written)


_FP8 = {
    "tensor": Format(("fp8",), "fp8", 1.0, sided=False, maxima=2.0, normed=True, kernels=3.0, each=3.0),
    "delayed": Format(("fp8",), "fp8", 1.0, sided=False, normed=True),
    # each side is cast from 16 bit by itself, and gathered in 16 bit
    "row": Format(("fp8-row", "fp8"), "fp8", 1.0, reads=4.0, kernels=2.0, gathered=False),
    # on that H200 as slow as if either side were read by itself
    "block": Format(("fp8-block", "fp8"), "fp8", 1.0 + 4 / 128, reads=4.0, kernels=2.0),
}
_OTHERS = {
    # scales are laid out anew for the product by a small kernel for either side
    "mxfp8": Format(("mxfp8", "fp8"), "fp8", 1.0 + 1 / 32, kernels=3.0),
    "nvfp4": Format(("fp4",), "fp4", 0.5 + 1 / 16, maxima=2.0, kernels=4.0),
}
PEAKS = {"fp8": "fp8", **{name: one.peak for name, one in _OTHERS.items()}}
"""Which peak of a GPU the products of a number format have, where it is not its own name."""


def format_of(dtype: str, scaling: str = "tensor") -> Format | None:
    """The format of a strategy's products; none where they are in 16 or 32 bit."""
    return _FP8[scaling] if dtype == "fp8" else _OTHERS.get(dtype)
