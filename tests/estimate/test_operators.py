"""The operators of one pass fill it, and add up to what the estimate says of its seconds and bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest

import shardwise
from shardwise.cost.chunk import combined
from shardwise.estimate.estimate import assemble
from shardwise.estimate.operators import pass_trace
from shardwise.estimate.passes import pass_costs
from shardwise.estimate.setup import setup_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy_text import complete, parse

CASES = [
    ("llama-3-8b", "16xh100", "tp2 pp4x2 gbs64 seq4096"),
    ("llama-3-8b", "16xh100", "tp2 cp2 pp2 gbs32 seq16384 recompute=full"),
    ("llama-3-8b", "16xh100", "tp2 pp2 gbs32 seq8192 recompute=attention"),
    ("llama-3-8b", "16xh100", "tp2 pp2 gbs32 seq8192 recompute=mlp+attention-norm"),
    ("llama-3-8b", "16xh100", "tp2 pp2 gbs32 seq8192 recompute=full:4"),
    ("llama-3-8b", "16xh100", "tp2 pp2 gbs32 seq8192 recompute=full/2"),
    ("llama-3-8b", "16xh100", "pp1 gbs16 seq4096 zero3 runtime=torchtitan recompute=ops"),
    ("llama-3-8b", "8xh100", "pp1 gbs8 seq4096 zero3 runtime=torchtitan"),
    ("llama-3-8b", "8xh100", "pp2 gbs16 seq4096 offload=activations"),
    ("mixtral-8x7b", "64xh100", "tp2 ep8 pp2 gbs64 seq4096"),
    ("deepseek-v3", "256xh100", "tp2 ep8 pp16 gbs256 seq4096 layers=3,4,4,4,4,4,4,4,4,4,4,4,4,4,3,3"),
]
IDS = [text for _, _, text in CASES]


def setup(model, cluster, text):
    model, cluster = shardwise.load_model(model), shardwise.load_cluster(cluster)
    strategy = complete(parse(text), cluster)
    return setup_of(model, cluster, strategy, load_runtime(strategy.runtime))


def passes(case):
    made = setup(*case)
    ends = (0, len(made.chunks) // 2, len(made.chunks) - 1)
    return made, [(chunk, pass_trace(made, chunk)) for chunk in dict.fromkeys(ends)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_operators_fill_their_pass(case):
    made, traces = passes(case)
    costs = pass_costs(made, split=False)
    for chunk, trace in traces:
        for runs, whole in ((trace.forward, costs.f[chunk]), (trace.backward, costs.i[chunk] + costs.w[chunk])):
            assert runs[-1].end == pytest.approx(whole, rel=1e-9)
            assert runs[0].start == 0
            assert all(a.end == b.start for a, b in pairwise(runs))
            assert all(run.end >= run.start for run in runs)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_kernels_and_collectives_add_up_to_the_chunks(case):
    made, traces = passes(case)
    for index, trace in traces:
        chunk = made.chunks[index]
        for runs, seconds in ((trace.forward, chunk.f), (trace.backward, combined(chunk.i, chunk.w, chunk.recompute))):
            if not chunk.offloaded:
                assert sum(run.kernels for run in runs) == pytest.approx(seconds.compute + seconds.slowed, rel=1e-9)
            for axis in ("tp", "cp", "ep"):
                shown = sum(getattr(run.shown, axis) for run in runs)
                assert shown == pytest.approx(getattr(seconds, axis), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_highest_points_are_the_chunks(case):
    made, traces = passes(case)
    for index, trace in traces:
        chunk = made.chunks[index]
        assert max(run.level for run in trace.forward) == pytest.approx(chunk.forward, rel=1e-9)
        highest = max(run.level for run in trace.backward)
        assert max(highest, chunk.kept) == pytest.approx(chunk.backward, rel=1e-9)
        assert all(run.stays <= run.level * (1 + 1e-12) + 1 for run in (*trace.forward, *trace.backward))


@pytest.mark.parametrize("case", CASES[:3], ids=IDS[:3])
def test_the_ledger_of_the_busiest_rank_is_made_of_these_operators(case):
    """Law: two verbs say the same. `estimate` prints the parts, a trace of the passes shows them."""
    made = setup(*case)
    found, strategy = assemble(made), made.strategy
    work = [sum(made.chunks[c].forward_seconds + made.chunks[c].backward_seconds for c in made.rank_indices(r))
            for r in range(strategy.pp)]  # fmt: skip
    busiest = work.index(max(work))
    runs = [run for c in made.rank_indices(busiest) for run in pass_trace(made, c).forward]
    slowest = made.cluster.site.slowest(made.cluster.gpus)
    told = next(part for part in found.time.parts if part.name == "forward")
    shown = sum(run.shown.tp for run in runs)
    assert strategy.microbatches * shown == pytest.approx(told.part("tp communication"), rel=1e-9)
    kernels = sum(run.kernels for run in runs) - sum(made.chunks[c].f.slowed for c in made.rank_indices(busiest))
    kinds = sum(told.part(name) for name in ("gemm", "attention", "memory"))
    assert strategy.microbatches * kernels / slowest == pytest.approx(kinds, rel=1e-9)


def test_what_is_computed_again_comes_before_what_needs_it():
    made = setup(*CASES[1])
    runs = pass_trace(made, 0).backward
    layer = [run for run in runs if run.place == "layer 3"]
    parts = [run.part for run in layer]
    assert parts.index("R") == 0
    assert parts.index("I") == parts.count("R")
    assert set(parts) == {"R", "I", "W"}
