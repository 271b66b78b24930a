"""Laws of both engines, the deep one, and what goes in and out of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from shardwise.errors import InfeasibleError, InputError
from shardwise.frameworks.aceso.plan_file import from_aceso, to_aceso
from shardwise.per_op.advice import measured_memory
from shardwise.per_op.alleviate import HopBudget, alleviate, starts_of
from shardwise.per_op.bound import stage_bounds
from shardwise.per_op.chain import chain_of
from shardwise.per_op.evaluate import evaluate, stage_cost
from shardwise.per_op.layer_bound import layer_bound
from shardwise.per_op.search import search
from shardwise.per_op.solve import solve
from shardwise.per_op.start import Balancer, uniform_shapes
from shardwise.per_op.tables import tables_of

from .conftest import full, question, random_profile

OPS = ("encoder-embedding", "enc-1st-layernorm", "enc-attention-qkv", "enc-attention-score", "enc-attention-dropout",
       "enc-attention-dense", "enc-post-MLP-dropout", "final-layernorm", "gpt-post-process")  # fmt: skip


def middling(seed, *, share=0.8, layers=2, **more):
    """A few dozen operators and a limit that binds."""
    found = random_profile(seed, ops=OPS, layer=(1, 6), micro_batches=(1, 2, 4), tps=(1, 2, 4))
    asked = question(found, layers=layers, gpus=4, node=4, global_batch=32, **more)
    return replace(asked, memory=share * max(search(asked).cost.memory))


@pytest.mark.parametrize("seed", range(4))
def test_more_memory_is_never_slower_and_the_bound_stays_below(seed):
    asked = middling(seed)
    last = np.inf
    for share in (1.0, 1.1, 1.3):
        found = search(replace(asked, memory=share * asked.memory))
        assert found.cost.seconds <= last * (1 + 1e-12)
        assert found.bound <= found.cost.seconds * (1 + 1e-12)
        assert found.cost.fits(share * asked.memory)
        last = found.cost.seconds


@pytest.mark.parametrize("seed", range(3))
def test_no_choice_of_a_stage_is_below_its_bound(seed):
    asked = middling(seed)
    draw = np.random.default_rng(seed)
    count = len(asked.chain.rows)
    for gpus in (1, 2, 4):
        bounds, tables = stage_bounds(asked, 4, gpus, 3, 10.0), tables_of(asked, 4, gpus)
        for _ in range(300):
            first, end = sorted(draw.choice(count + 1, size=2, replace=False).tolist())
            rows = tables.rows[first:end]
            layouts = draw.integers(0, len(tables.layouts), size=end - first)
            if draw.random() < 0.5:
                layouts[:] = layouts[0]
            again = (draw.random(end - first) < 0.4) & tables.may[rows]
            behind, crossing = int(draw.integers(0, len(bounds.alike))), (0, int(draw.integers(0, 2)))
            cost = stage_cost(asked, tables, first, layouts, again, behind, crossing, 4)
            low = bounds.column(*crossing, behind)[bounds.ranges.number[first, end]]
            assert cost.memory > asked.memory or cost.seconds >= low * (1 - 1e-9)


def test_the_same_question_has_the_same_answer():
    one, two = search(middling(3)), search(middling(3))
    assert one.plan == two.plan
    assert one.bound == two.bound


def test_nothing_fits_is_said():
    asked = middling(1)
    with pytest.raises(InfeasibleError, match="no plan"):
        search(replace(asked, memory=1e6))


@pytest.mark.parametrize("seed", range(3))
def test_alleviation_improves_its_start_and_keeps_a_diary(seed):
    asked = middling(seed)
    best = search(asked).cost.seconds
    found = alleviate(asked, budget=HopBudget(plans=400, trials=8))
    fitting = [cost.seconds for plan in starts_of(asked) if (cost := evaluate(asked, plan)).fits(asked.memory)]
    assert found.cost.fits(asked.memory)
    assert best * (1 - 1e-9) <= found.cost.seconds <= min(fitting, default=np.inf)
    assert found.diary[0].startswith("start with")
    assert all("is short of" in line for line in found.diary[1:-1])
    assert found.bound <= found.cost.seconds
    assert not found.proven or found.cost.seconds == pytest.approx(best)
    assert alleviate(asked, budget=HopBudget(plans=400, trials=8)).plan == found.plan


def test_starts_can_run_in_processes_of_their_own():
    from shardwise.search.executor import executor_of

    asked, budget = middling(1), HopBudget(plans=60, trials=3)
    pool = executor_of("processes", 2)
    try:
        alone, together = alleviate(asked, budget=budget), alleviate(asked, budget=budget, executor=pool)
        assert (alone.plan, alone.diary) == (together.plan, together.diary)
        proven, parts = solve(asked), solve(asked, executor=pool)
        assert parts.proven
        assert parts.cost.seconds == pytest.approx(proven.cost.seconds, rel=1e-12)
    finally:
        pool.close()


@pytest.mark.parametrize("most", [100, 4000])
def test_deep_models_are_balanced_and_not_worse_than_uniform(monkeypatch, most):
    """With a coarse cut, and with the bounds of all stages."""
    monkeypatch.setattr("shardwise.per_op.search.MOST_OPS", most)
    asked = middling(2)
    asked = replace(asked, chain=chain_of(asked.profile, 40), memory=7 * asked.memory)
    found = search(asked, limit=10.0)
    balancer = Balancer(asked)
    assert found.cost.seconds <= min(balancer.value(shape) for shape in uniform_shapes(asked))
    assert found.cost.fits(asked.memory)
    assert found.bound <= found.cost.seconds
    assert min(layer_bound(asked, size) for size in (1, 2, 4)) <= found.cost.seconds


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_by_layers_is_below_the_proven_best(seed):
    asked = middling(seed)
    found = search(asked)
    assert found.proven
    assert min(layer_bound(asked, size) for size in (1, 2, 4)) <= found.cost.seconds


def test_a_plan_written_for_aceso_reads_back():
    asked = middling(0)
    found = search(asked)
    data = json.loads(json.dumps(to_aceso(asked, found.plan)))
    assert from_aceso(data, asked) == found.plan
    assert data["flex_recompute_activations"] == [any(stage.recompute) for stage in found.plan.stages]
    assert data["shardwise"]["seconds"] == pytest.approx(found.cost.seconds)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("seq_length", 4096, "measured at 2048"),
        ("hidden_size", 4096, "measured at 2048"),
        ("global_batch_size", 512, "--global-batch 512"),
        ("num_gpus", [4, 8], "there are 8 GPUs"),
        ("micro_batch_size", 3, "not in the profile"),
        ("micro_batch_size", "1", "whole number"),
        ("recompute_ops", [[0]], "recompute_ops"),
    ],
)
def test_an_edited_plan_is_refused_with_the_reason(seed_profile, key, value, said):
    asked = question(seed_profile, layers=24, gpus=8, node=8, memory=28000 * 2**20, global_batch=1024)
    data = to_aceso(asked, starts_of(asked)[1])
    with pytest.raises(InputError, match=said):
        from_aceso({**data, key: value}, asked)


def test_a_measured_peak_corrects_the_search():
    asked = middling(0)
    first = search(asked)
    factor, _, told = measured_memory(f"stage0={1.2 * first.cost.memory[0]:.0f}B", first.cost)
    assert factor == pytest.approx(1.2, rel=1e-6)
    assert "measured" in told[0]
    second = solve(replace(asked, memory_factor=factor))
    assert second.cost.fits(asked.memory)
    assert max(stage.memory for stage in second.cost.stages) * factor <= asked.memory * (1 + 1e-9)
    for text in ("stage9=1GB", "stage0", "stage0=many", "stage0=1B", "stage0=999TB", "stage1=1GB,stage1=2GB"):
        with pytest.raises(InputError, match="--measured-memory"):
            measured_memory(text, first.cost)


def test_the_full_space_takes_any_number_of_gpus():
    found = random_profile(4, ops=OPS, layer=(1, 6), micro_batches=(1, 2, 4), tps=(1, 2))
    asked = question(
        found, layers=3, gpus=3, node=2, global_batch=12, pricing=full(found, layers=3, gpus=3), space="full"
    )
    answer = search(asked)
    assert sum(answer.plan.gpus) == 3
    assert answer.proven
    assert answer.cost.seconds <= search(replace(asked, space="compatible")).cost.seconds * (1 + 1e-12)


def test_more_plans_are_found_when_asked_for():
    asked = middling(1)
    answer = solve(asked, more=3)
    values = [evaluate(asked, plan).seconds for plan in (answer.plan, *answer.others)]
    assert len(values) == 3
    assert values == sorted(values)
