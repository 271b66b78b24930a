"""Drawings that explain: where a rank's memory goes, and how tensor, context and ZeRO parallel cut a model."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import shardwise
from shardwise.units import show_bytes

if TYPE_CHECKING:
    from shardwise import Estimate

BLUE, ORANGE, GREEN, RED, SKY, GREY, PALE = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#8b949e", "#eef1f4"
"""The colours of the other pictures (Okabe and Ito)."""
GPUS = (BLUE, ORANGE, GREEN, RED)
MEMORY = {
    "weights": (BLUE, ("weights",)),
    "gradients": (SKY, ("gradients",)),
    "optimizer": (GREEN, ("master weights", "optimizer moments")),
    "activations": (ORANGE, ("activations in flight",)),
    "at work, buffers": (RED, ("working set of the pass", "workspace and buffers")),
}
"""What a bar shows -> its colour and the parts of the ledger that it adds up."""
PLAN = ("llama-3-70b", "64xh100", "tp4 pp4 dp4 mbs1 gbs1024 seq8192 layers=18,21,21,20")
"""The plan of the tutorial."""


class Sheet:
    """A white page that is drawn on piece by piece."""

    def __init__(self, width: int, height: int) -> None:
        self.size, self.parts = (width, height), [f'<rect width="{width}" height="{height}" fill="white"/>']

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, text: str = "", ink: str = "white"
    ) -> None:
        """A rectangle with a word in its middle."""
        at = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self.parts.append(f'<rect {at} fill="{fill}" stroke="white"/>')
        if text:
            self.text(x + width / 2, y + height / 2 + 4, text, ink, "middle")

    def text(self, x: float, y: float, text: str, ink: str = "#1a1a1a", anchor: str = "start", size: int = 12) -> None:
        """One line; y is where its letters stand."""
        place = f'x="{x:.1f}" y="{y:.1f}" fill="{ink}" text-anchor="{anchor}" font-size="{size}"'
        self.parts.append(f"<text {place}>{escape(text)}</text>")

    def line(self, x1: float, y1: float, x2: float, y2: float, *, dashes: bool = False, arrow: bool = False) -> None:
        """From one point to another."""
        more = (' stroke-dasharray="5 4"' if dashes else "") + (' marker-end="url(#tip)"' if arrow else "")
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.parts.append(f'<line {ends} stroke="#1a1a1a" stroke-width="1.2"{more}/>')

    def svg(self) -> str:
        """The file."""
        width, height = self.size
        tip = (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0L8 4L0 8z" fill="#1a1a1a"/></marker></defs>'
        )
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
        return "\n".join([head, tip, *self.parts, "</svg>"]) + "\n"


def memory_bars() -> str:
    """The memory of every pipeline rank of one plan against the GPU's."""
    found = shardwise.estimate(*PLAN)
    sheet, left, top, row = Sheet(900, 300), 70.0, 66.0, 46.0
    scale = 760.0 / (1.06 * found.limit)
    for place, (name, (colour, _)) in enumerate((*MEMORY.items(), ("beside it", (GREY, ())))):
        sheet.box(left + 134 * place, 14, 14, 14, colour)
        sheet.text(left + 134 * place + 19, 26, name)
    for rank, memory in enumerate(found.memory):
        y, x = top + row * rank, left
        sheet.text(10, y + 20, f"rank {rank}")
        for colour, parts in MEMORY.values():
            wide = scale * sum(memory.peak.part(part) for part in parts)
            sheet.box(x, y, wide, 30, colour, f"{wide / scale / 2**30:.0f}" if wide > 34 else "")
            x += wide
        sheet.box(x, y, scale * (memory.total - memory.peak.value), 30, GREY)
    _limit(sheet, found, left, top, scale)
    return sheet.svg()


def _limit(sheet: Sheet, found: Estimate, left: float, top: float, scale: float) -> None:
    """The GPU's memory as a line, and how far off the fullest rank may be."""
    at = left + scale * found.limit
    sheet.line(at, top - 8, at, top + 180, dashes=True)
    sheet.text(at, top + 198, f"the GPU has {show_bytes(found.limit)}", anchor="end")
    low, high = (left + scale * value for value in found.total_bytes_interval)
    sheet.line(low, top + 15, high, top + 15)
    for x in (low, high):
        sheet.line(x, top + 9, x, top + 21)
    sheet.text(left, top + 198, "the whisker on rank 0: nine runs in ten end within it")
    sheet.text(left, top + 218, "beside it: what the allocator holds and does not use, the CUDA context, communicators")


def tensor_parallel() -> str:
    """A feed-forward block on two GPUs: columns, rows, a sum."""
    sheet = Sheet(900, 240)
    for place, title in enumerate(
        ("tokens", "first matrix, by columns", "activation", "second matrix, by rows", "sum")
    ):
        sheet.text((70, 250, 430, 610, 810)[place], 24, title, anchor="middle")
    for gpu, colour in enumerate(GPUS[:2]):
        y = 44 + 92 * gpu
        sheet.text(12, y + 42, f"GPU {gpu}", colour)
        sheet.box(58, y, 40, 72, PALE, "X", "#1a1a1a")
        for half in range(2):
            sheet.box(210 + 42 * half, y, 40, 72, colour if half == gpu else PALE, f"A{half}" if half == gpu else "")
            sheet.box(570, y + 37 * half, 82, 35, colour if half == gpu else PALE, f"B{half}" if half == gpu else "")
        sheet.box(404, y, 52, 72, colour, f"f(XA{gpu})")
        sheet.box(782, y, 58, 72, PALE, "Y", "#1a1a1a")
        for x1, x2 in ((102, 204), (298, 398), (460, 564), (658, 776)):
            sheet.line(x1, y + 36, x2, y + 36, arrow=True)
    sheet.line(716, 92, 716, 160, arrow=True)
    sheet.line(716, 160, 716, 92, arrow=True)
    sheet.text(
        58,
        226,
        "Each GPU has half of the weights; what they put out are partial sums. One all-reduce a block and micro batch.",
    )
    return sheet.svg()


def context_parallel() -> str:
    """A sequence on two GPUs, an early and a late piece each."""
    sheet = Sheet(900, 190)
    sheet.text(
        12,
        24,
        "one sample of seq tokens: each GPU holds an early and a late piece, as a token looks only at those before it",
    )
    for piece, gpu in enumerate((0, 1, 1, 0)):
        sheet.box(70 + 190 * piece, 40, 188, 40, GPUS[gpu], f"piece {piece} on GPU {gpu}")
    for row, (piece, later) in enumerate(((0, 1), (0, 2), (1, 3), (2, 3))):
        y = 94 + 16 * row
        sheet.line(164 + 190 * piece, y, 164 + 190 * later, y, arrow=True)
    sheet.text(
        12,
        176,
        "Keys and values of earlier pieces travel to the GPU that needs them, in every layer; all else stays.",
    )
    return sheet.svg()


def zero() -> str:
    """What each of four replicas keeps of weights, gradients and optimizer states."""
    sheet = Sheet(900, 300)
    for place, what in enumerate(("weights", "gradients", "optimizer states")):
        sheet.text(250 + 230 * place, 24, what, anchor="middle")
    for stage, (name, cut) in enumerate((("zero0", 0), ("zero1", 1), ("zero2", 2), ("zero3", 3))):
        y = 40 + 56 * stage
        sheet.text(12, y + 26, name, size=14)
        for place in range(3):
            sharded = place >= 3 - cut
            for gpu, colour in enumerate(GPUS):
                x = 155 + 230 * place + 48 * gpu
                sheet.box(x, y, 44, 44, PALE if sharded else colour)
                if sharded:
                    sheet.box(x, y + 11 * gpu, 44, 11, colour)
    sheet.text(
        12,
        286,
        "Four replicas, a colour each. zero1 sends no more than zero0; zero3 gathers weights layer by layer.",
    )
    return sheet.svg()


DIAGRAMS = {"memory-bars": memory_bars, "tp": tensor_parallel, "cp": context_parallel, "zero": zero}
"""Name -> what draws it."""
