"""How far a calibration's measurements reach: a shape far outside them is told, never silently extrapolated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardwise.cost.layer import Block
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.calibrations import learnt_line
from shardwise.ops.op import Op

MOST = 4096
"""Blocks that are remembered."""
SLIGHT = 0.002
"""A learnt correction that is not worth a word."""
FAR = 4.0
"""Times the largest, or a share of the smallest probed size, beyond which a kernel is flagged."""

# Where in `Op.shape` they are.
_SIZES = {
    "gemm": (("rows", 0), ("columns", 1), ("depth", 2)),
    "grouped": (("rows", 0), ("columns", 1), ("depth", 2)),
    "attention": (("sequence", 2), ("head", 3)),
}


def sizes(op: Op) -> Iterator[tuple[str, float]]:
    """The sizes of a kernel that its speed depends on."""
    for name, index in _SIZES.get(op.kind, ()):
        yield f"{op.kind}_{name}", float(op.shape[index])


def probed(ops: Iterable[Op]) -> dict[str, tuple[float, float]]:
    """Smallest and largest of every size among measured kernels."""
    seen: dict[str, tuple[float, float]] = {}
    for op in ops:
        for name, size in sizes(op):
            low, high = seen.get(name, (size, size))
            seen[name] = (min(low, size), max(high, size))
    return seen


Told = tuple[tuple[str, str], ...]
# by identity: hashing a block costs more than the question; a kept block keeps its identity
_known: dict[tuple[int, str], tuple[Block, Told]] = {}


def outside(block: Block, calibration: Calibration) -> Told:
    """(gemm or attention, sentence) for the kernels of a block that are far from anything that was measured."""
    if not calibration.probed:
        return ()
    key = (id(block), calibration.name)
    if key not in _known:
        if len(_known) > MOST:
            _known.clear()
        _known[key] = block, tuple(_outside(block, calibration))
    return _known[key][1]


def _outside(block: Block, calibration: Calibration) -> Iterator[tuple[str, str]]:
    for op in block.ops:
        for name, size in sizes(op):
            limits = calibration.probed.get(name)
            if limits and not limits[0] / FAR <= size <= limits[1] * FAR:
                kind = "attention" if op.kind == "attention" else "gemm"
                word = name.partition("_")[2]
                yield kind, f"{op.name}: {word} {size:,.0f}, probed {limits[0]:,.0f} to {limits[1]:,.0f}"


def kernel_notes(blocks: Iterable[Block], calibration: Calibration) -> dict[str, str]:
    """What must be said beside the seconds of a kind of kernel: corrections, and shapes beyond what was probed."""
    told: dict[str, list[str]] = {}
    for block in blocks:
        for kind, text in outside(block, calibration):
            if text not in told.setdefault(kind, []):
                told[kind].append(text)
    notes = {kind: "outside the probed range: " + "; ".join(texts[:4]) for kind, texts in told.items()}
    for kind, factor in calibration.corrections.items():
        if calibration.learnt and abs(factor - 1) < SLIGHT:
            continue
        source = learnt_line(calibration.name, calibration.learnt[0]) if calibration.learnt else calibration.source
        what = "time of memory-bound kernels " if kind == "memory" else ""  # not bytes
        text = f"{what}corrected x{factor:.3g} ({source})"
        notes[kind] = f"{notes[kind]}; {text}" if kind in notes else text
    return notes
