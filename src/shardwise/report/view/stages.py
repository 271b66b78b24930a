"""What every pipeline rank spends its iteration and its memory on; both add up to what the estimate says."""

from __future__ import annotations

from shardwise.cost.chunk import Chunk, combined, recomputed_layers
from shardwise.cost.memory import RankMemory
from shardwise.estimate.estimate import Estimate
from shardwise.estimate.setup import Setup
from shardwise.inputs.serialise import Plain
from shardwise.pipeline.timeline import Timeline

_MEMORY = {
    "weights": ("weights", "fp8 weight copies"),
    "gradients": ("gradients",),
    "states": ("master weights", "optimizer moments"),
    "activations": ("activations in flight", "working set of the pass"),
    "buffers": ("workspace and buffers", "communication buckets", "gathered layers", "optimizer temporaries"),
}
"""Parts of a bar -> parts of the peak's ledger; all else, fragmentation and context too, is `other`."""


def stages_data(found: Estimate, setup: Setup, timeline: Timeline) -> list[Plain]:
    """One entry a pipeline rank."""
    again = [recomputed_layers(setup.strategy, chunk, setup.layers, n) for chunk, n in enumerate(setup.layers)]
    return [
        {
            "rank": rank,
            "layers": [setup.layers[chunk] for chunk in setup.rank_indices(rank)],
            "recomputed": [again[chunk] for chunk in setup.rank_indices(rank)],
            "time": _time(found, setup, timeline, rank),
            "memory": memory_parts(found.memory[rank]),
            "total": found.memory[rank].total,
            "limit": found.limit,
            "peak_in": found.memory[rank].at,
        }
        for rank in range(setup.strategy.pp)
    ]


def memory_parts(memory: RankMemory) -> dict[str, float]:
    """The bytes that the device of a rank must have, by kind."""
    parts = dict.fromkeys(_MEMORY, 0.0)
    for ledger in memory.peak.parts:
        for name, members in _MEMORY.items():
            if ledger.name in members:
                parts[name] += ledger.value
    return parts | {"other": memory.total - sum(parts.values())}


def _time(found: Estimate, setup: Setup, timeline: Timeline, rank: int) -> dict[str, float]:
    """Seconds of an iteration: passes without communication, all exposed communication, waiting, update, the rest."""
    count, own, busy = setup.strategy.microbatches, setup.rank_indices(rank), timeline.work[rank]
    passes = {name: count * value for name, value in _passes([setup.chunks[c] for c in own]).items()}
    update = found.update.exposed
    return {
        **passes,
        "communication": max(0.0, busy - sum(passes.values())),
        "bubble": max(0.0, timeline.makespan - busy),
        "update": update,
        "other": max(0.0, found.iteration_seconds - timeline.makespan - update),
    }


def _passes(chunks: list[Chunk]) -> dict[str, float]:
    """Seconds of one micro batch without communication; waits for launches are shared by what a backward is made of."""
    backward = sum(combined(chunk.i, chunk.w, chunk.recompute).alone for chunk in chunks)
    shares = {
        "inputs": sum(chunk.i.compute for chunk in chunks),
        "weights": sum(chunk.w.compute for chunk in chunks),
        "recompute": sum(chunk.recompute.compute for chunk in chunks),
    }
    whole = sum(shares.values()) or 1.0
    forward = sum(chunk.f.alone for chunk in chunks)
    return {"forward": forward, **{name: backward * share / whole for name, share in shares.items()}}
