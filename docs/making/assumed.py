"""The page of assumed numbers: what each is, and how far typical estimates move when it is wrong by 20%."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import _lru_cache_wrapper, cache

from making import MARK, row
from shardwise.estimate.estimate import estimate
from shardwise.estimate.goodput import goodput
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.assumed import ASSUMED, Assumed
from shardwise.inputs.describe import describe
from shardwise.inputs.strategy import Strategy
from shardwise.search.sweep import checkpoint_seconds

TYPICAL = (
    ("llama-3-8b", "8xh100", "dp8 zero3 mbs1 gbs16 seq8192 runtime=torchtitan"),
    ("llama-3-70b", "64xh100", "tp8 pp4 dp2 zero1 mbs1 gbs256 seq8192"),
    ("qwen3-30b-a3b", "16xh100", "dp16 ep8 zero1 mbs1 gbs128 seq4096"),
    ("gpt-3-13b", "64xa100", "tp4 pp2 dp8 mbs2 gbs256 seq2048 noflash runtime=megatron-local"),
    ("qwen3-8b", "1xh200", "mbs1 gbs4 seq4096 compile runtime=huggingface"),
    ("gpt-2-124m", "512xa100", "dp512 zero0 mbs2 gbs1024 seq1024 runtime=mosaic"),
    ("llama-3-8b", "8xh100", "dp8 mbs2 gbs16 seq8192 offload=activations"),
)
"""Model, cluster and strategy of the estimates that are moved."""
MTBF = 1.64e8
"""Seconds between failures of one GPU: 16,384 of them had 466 in 54 days (Llama 3, 2024, section 3.3.4)."""
OFF = 0.2


def page() -> str:
    """The text of the page."""
    runs = "\n".join(f"- `{model}` on `{cluster}`: `{strategy}`" for model, cluster, strategy in TYPICAL)
    lead = f"""Numbers of the cost model that nobody measured or published, all in `inputs/assumed.py`. Every other
number has its source beside it, in the code or in a calibration or runtime of the catalog. The last columns say by how
much the predicted time and memory move when the number is 20% larger or smaller: the most of these estimates, and for
the last three numbers the days of a run of `llama-3-70b` on 1,024 GPUs that fail as those of Llama 3 did. A dash: none
of them has anything of it.

{runs}"""
    before = _predicted()
    heads = ["number", "value", "what it is, and why it is believed", "time", "memory"]
    lines = [row(heads), row(["---"] * 3 + ["---:"] * 2)]
    for one in describe(Assumed):
        value = getattr(ASSUMED, one.name)
        moved = map(_percent, _moved(before, one.name, value))
        lines.append(row([f"`{one.name}`", _shown(value), " ".join(one.text.split()), *moved]))
    return "\n\n".join(["# Assumed numbers", MARK, lead, "\n".join(lines)]) + "\n"


def _predicted() -> list[tuple[float, float]]:
    """Seconds and bytes of every estimate; of the run, its time over that without failures."""
    found = [estimate(load_model(m), load_cluster(c), Strategy.parse(text)) for m, c, text in TYPICAL]
    save = checkpoint_seconds(load_model("llama-3-70b"), 1024, 8, ASSUMED.store)
    run = 1 / goodput(1024, MTBF, save, ASSUMED.restart).share
    return [*((one.iteration_seconds, one.total_bytes) for one in found), (run, 1.0)]


def _moved(before: list[tuple[float, float]], name: str, value: object) -> tuple[float, float]:
    changes = []
    for factor in (1 - OFF, 1 + OFF):
        with _changed(name, _scaled(value, factor)):
            after = _predicted()
        changes += [(abs(b / a - 1), abs(y / x - 1)) for (a, x), (b, y) in zip(before, after, strict=True)]
    times, memories = zip(*changes, strict=True)
    return max(times), max(memories)


@contextmanager
def _changed(name: str, value: object) -> Iterator[None]:
    """One number changed for a while, and nothing remembered from before."""
    kept = getattr(ASSUMED, name)
    object.__setattr__(ASSUMED, name, value)
    try:
        _forget()
        yield
    finally:
        object.__setattr__(ASSUMED, name, kept)
        _forget()


def _forget() -> None:
    for one in _remembering():
        one.cache_clear()


@cache
def _remembering() -> list[_lru_cache_wrapper[object]]:
    """The functions that keep results; all are loaded once the first estimates are made."""
    objects = gc.get_objects()
    return [one for one in objects if isinstance(one, _lru_cache_wrapper) and one.__module__.startswith("shardwise.")]


def _scaled(value: object, factor: float) -> object:
    if isinstance(value, dict):
        return {key: _scaled(one, factor) for key, one in value.items()}
    return tuple(factor * one for one in value) if isinstance(value, tuple) else factor * value  # type: ignore[operator]


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(one)}" for key, one in value.items())
    return " and ".join(f"{one:g}" for one in value) if isinstance(value, tuple) else f"{value:g}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share > 1e-5 else "-"
