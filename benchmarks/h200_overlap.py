"""What a collective behind kernels takes from them, on one GPU: `OUT=folder python h200_overlap.py`.

Products, attention and norms are timed alone and beside a copy kernel of 1 to 32 blocks on another stream, which stands
for the channels of a collective library: each block holds a compute unit and moves bytes through device memory, as fast
as it can or at a rate that a network would set. Needs torch and triton; takes about a minute and
writes overlap.json.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import triton
import triton.language as tl
from torch.nn import functional
from triton.language.extra.cuda import globaltimer

BLOCKS = (1, 2, 4, 8, 16, 32)
RATES = (None, 50e9, 100e9, 200e9, 400e9)
"""Bytes per second that the copy sends; none: as fast as it can."""
PIECE = 65536
"""Bytes that a block moves at a time."""
SPAN = 8e-3
"""Seconds of kernels in one measurement."""
ROUNDS = 3
LIMIT = 85.0
"""Seconds after which no further measurement is begun."""


@triton.jit
def copying(source, target, flag, moved, pieces, period, SIZE: tl.constexpr):
    """Copies piece after piece until the flag is set, for a second at most; `period`: nanoseconds that a block takes
    for one at least.
    """
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    begun = globaltimer()
    at = tl.arange(0, SIZE)
    done = tl.full((), 0, tl.int64)
    going = tl.load(flag, volatile=True) == 0
    while going:
        place = ((done * blocks + block) % pieces) * SIZE
        tl.store(target + place + at, tl.load(source + place + at))
        done += 1
        waiting = globaltimer() - begun < done * period
        while waiting:
            waiting = (globaltimer() - begun < done * period) & (tl.load(flag, volatile=True) == 0)
        going = (tl.load(flag, volatile=True) == 0) & (globaltimer() - begun < 1_000_000_000)
    tl.store(moved + block, done)


class Copier:
    """The copy kernel and what it works on."""

    def __init__(self) -> None:
        self.source = torch.zeros(2**28, dtype=torch.int32, device="cuda")
        self.target = torch.zeros_like(self.source)
        self.flag = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.moved = torch.zeros(max(BLOCKS), dtype=torch.int64, device="cuda")
        self.stream = torch.cuda.Stream()
        self.edges = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def start(self, blocks: int, rate: float | None) -> None:
        self.flag.zero_()
        self.moved.zero_()
        torch.cuda.synchronize()
        period = int(blocks * PIECE / rate * 1e9) if rate else 0
        size = PIECE // 4
        pieces = self.source.numel() // size
        with torch.cuda.stream(self.stream):
            self.edges[0].record()
            arguments = (self.source, self.target, self.flag, self.moved, pieces, period)
            copying[(blocks,)](*arguments, SIZE=size, num_warps=16)
            self.edges[1].record()

    def reached(self) -> float:
        """Bytes per second sent, after `flag` was set and all has ended."""
        return float(self.moved.sum()) * PIECE / (self.edges[0].elapsed_time(self.edges[1]) * 1e-3)


def works() -> dict[str, Callable[[], object]]:
    """Kernels of layers as they are trained: products, attention forth and back, a norm."""
    bf16 = {"dtype": torch.bfloat16, "device": "cuda"}
    found: dict[str, Callable[[], object]] = {}
    for m, k, n in (
        (8192, 8192, 8192), (8192, 8192, 3584), (8192, 3584, 8192), (4096, 4096, 4096), (2048, 4096, 6144),
        (8192, 8192, 1280), (1024, 8192, 8192),
    ):  # fmt: skip
        a, b = torch.randn(m, k, **bf16), torch.randn(k, n, **bf16)
        found[f"product {m} {k} {n}"] = lambda a=a, b=b: torch.mm(a, b)
    for length, heads in ((8192, 8), (4096, 32), (2048, 8)):
        q, k, v = (torch.randn(1, heads, length, 128, **bf16, requires_grad=True) for _ in range(3))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        grad = torch.randn_like(out)
        found[f"attention {length} {heads} forward"] = lambda q=q, k=k, v=v: attend(q, k, v)
        found[f"attention {length} {heads} backward"] = lambda out=out, q=q, k=k, v=v, grad=grad: torch.autograd.grad(
            out, (q, k, v), grad, retain_graph=True
        )
    x = torch.randn(8192, 8192, **bf16)
    weight = torch.ones(8192, **bf16)
    found["norm 8192 8192"] = lambda: functional.layer_norm(x, (8192,), weight, weight)
    y = torch.randn(8192, 28672, **bf16)
    found["addition 8192 28672"] = lambda: y.add_(y)
    return found


@torch.no_grad()
def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def pause(seconds: float) -> None:
    torch.cuda._sleep(int(2e9 * seconds))  # noqa: SLF001 - there is no public kernel that waits


def timed(
    work: Callable[[], object], count: int, begun: Callable[[], None], ended: Callable[[], object], ahead: float
) -> float:
    """Seconds of one call, `count` in a row."""
    edges = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    begun()
    pause(ahead)  # the copy is under way, and launches are ahead of the kernels
    edges[0].record()
    for _ in range(count):
        work()
    edges[1].record()
    ended()
    torch.cuda.synchronize()
    return edges[0].elapsed_time(edges[1]) * 1e-3 / count


def launching(work: Callable[[], object]) -> float:
    """Seconds of the host for one call."""
    begun = time.perf_counter()
    for _ in range(10):
        work()
    spent = time.perf_counter() - begun
    torch.cuda.synchronize()
    return spent / 10


def measured() -> list[dict[str, object]]:
    since = time.monotonic()
    copier = Copier()
    rows: list[dict[str, object]] = []

    def nothing() -> None:
        pause(5e-4)

    def idle() -> None:
        pass

    def beside(
        work: Callable[[], object], count: int, blocks: int, rate: float | None, ahead: float
    ) -> tuple[float, float]:
        seconds = timed(work, count, lambda: copier.start(blocks, rate), lambda: copier.flag.fill_(1), ahead)
        return seconds, copier.reached()

    for name, work in {"nothing": nothing, **works()}.items():
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        count = max(2, min(200, round(SPAN / timed(work, 3, idle, idle, 1e-3))))
        ahead = 3e-4 + 1.5 * count * launching(work)
        alone = median(timed(work, count, idle, idle, ahead) for _ in range(ROUNDS))
        for blocks in BLOCKS:
            for rate in RATES:
                if time.monotonic() - since > LIMIT:
                    return rows
                both = [beside(work, count, blocks, rate, ahead) for _ in range(ROUNDS)]
                rows.append({
                    "work": name, "alone": alone, "beside": median(one for one, _ in both), "blocks": blocks,
                    "asked": rate, "reached": median(one for _, one in both),
                })  # fmt: skip
    return rows


def main() -> None:
    torch.manual_seed(0)
    gpu = torch.cuda.get_device_properties(0)
    rows = measured()
    found = {"gpu": gpu.name, "sms": gpu.multi_processor_count, "torch": torch.__version__, "rows": rows}
    target = Path(os.environ.get("OUT", ".")) / "overlap.json"
    target.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(rows)} rows in {target}")


if __name__ == "__main__":
    main()
