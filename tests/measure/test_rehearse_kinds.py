"""Every kind of plan: its memory counted without a GPU against the analytic model, and the gradients it makes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from shardwise.errors import InputError
from shardwise.estimate.estimate import estimate
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.model import Mla, Model, Moe
from shardwise.inputs.strategy_text import complete, parse
from shardwise.measure.rehearse import shardwise_rehearse as program
from shardwise.measure.rehearse.compare import compare
from shardwise.measure.rehearse.rehearse import spec_for
from shardwise.measure.rehearse.spec import spec_of
from shardwise.plan.plan import Plan
from shardwise.plan.predict import plan_of

pytestmark = pytest.mark.torch


def plan_for(model: Model, cluster: str, text: str) -> Plan:
    on = load_cluster(cluster)
    return plan_of(estimate(model, on, complete(parse(text), on)))


def shortened(name: str, layers: int = 8) -> Model:
    model = load_model(name)
    return replace(model, layers=layers, windows=model.windows[:layers])


KINDS = [
    ("llama-3-8b", "8xh200", "tp2 mbs1 gbs8 recompute=attention-norm"),
    ("llama-3-8b", "8xh200", "tp2 mbs1 gbs8 recompute=mlp-norm+activation"),
    ("llama-3-8b", "8xh200", "tp2 mbs1 gbs8 recompute=mlp"),
    ("llama-3-8b", "8xh200", "tp2 mbs1 gbs8 recompute=ffn"),
    ("llama-3-8b", "8xh200", "tp2 mbs1 gbs8 recompute=attention"),
    ("llama-3-8b", "8xh200", "tp2 mbs1 gbs8 recompute=full/2"),
    ("llama-3-8b", "8xh200", "tp2 mbs1 gbs8 recompute=comm"),
    ("deepseek-v2-lite", "8xh200", "tp2 ep4 mbs1 gbs8 recompute=mla-up"),
    ("deepseek-v2-lite", "8xh200", "tp2 ep4 mbs1 gbs8 recompute=moe-act+attention-norm"),
    ("qwen3-30b-a3b", "8xh200", "ep8 mbs1 gbs16 recompute=mlp"),
    ("qwen3-30b-a3b", "8xh200", "ep4 etp2 tp2 mbs1 gbs16 recompute=ffn"),
    ("llama-3-8b", "8xh200", "zero2 mbs1 gbs8"),
    ("llama-3-8b", "8xh200", "zero3 tp2 mbs1 gbs8"),
    ("llama-3-8b", "8xh200", "zero3 mbs1 gbs8 runtime=torchtitan"),
    ("llama-3-8b", "8xh200", "zero3 mbs2 gbs16 recompute=full runtime=torchtitan"),
    ("llama-3-8b", "8xh200", "zero3 mbs1 gbs8 recompute=ops runtime=torchtitan"),
    ("llama-3-8b", "8xh200", "zero2 mbs1 gbs16 runtime=torchtitan"),
    ("llama-2-13b", "32xh200", "zero3 hsdp8 mbs2 gbs64 runtime=torchtitan"),
    ("mixtral-8x7b", "8xh200", "zero3 ep4 mbs1 gbs8 runtime=torchtitan"),
    ("llama-3-8b", "8xh200", "zero3 mbs2 gbs16 runtime=huggingface"),
    ("llama-3-8b", "8xh200", "zero3 mbs2 gbs16 runtime=deepspeed"),
    ("llama-3-8b", "8xh200", "zero3 mbs1 gbs8 compile runtime=torchtitan"),
    ("llama-3-8b", "8xh200", "tp2 mbs1 gbs8 fp8"),
    ("llama-3-8b", "8xh200", "zero3 mbs1 gbs8 fp8 runtime=torchtitan"),
    ("llama-3-8b", "8xh200", "tp2 mbs1 gbs8 lora16"),
    ("llama-3-8b", "8xh200", "tp2 mbs1 gbs8 noflash"),
    ("llama-3-8b", "8xh200", "tp2 cp4 mbs1 gbs8"),
    ("llama-3-8b", "8xh200", "tp2 cp4:all-gather mbs1 gbs8"),
    ("llama-3-8b", "8xh200", "tp2 pp2 mbs1 gbs8 seq-1f1b runtime=mindformers"),
    ("mistral-7b", "8xh200", "tp2 mbs1 gbs8"),
    ("gpt-oss-20b", "8xh200", "tp2 ep4 mbs1 gbs8"),
    ("gpt-neox-20b", "8xh200", "tp4 mbs1 gbs8"),
    ("gemma-2-9b", "8xh200", "tp2 mbs1 gbs8"),
    ("falcon-40b", "8xh200", "tp4 mbs1 gbs8"),
    ("olmo-2-7b", "8xh200", "tp2 mbs1 gbs8"),
    ("llama-3-8b", "8xh200", "tp2 pp2x2 mbs1 gbs8 interleaved layers=3,2,2,1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "cluster", "text"), KINDS, ids=[f"{name} {text}" for name, _, text in KINDS])
def test_the_program_holds_what_is_predicted(name, cluster, text):
    plan = plan_for(shortened(name), cluster, f"{text} seq4096")
    result = program.rehearse(_plain(spec_of(plan, 0)), "meta", 1, 0)
    for line in compare(plan, result):
        assert abs(line.error) < 0.02, line


def _plain(spec: dict[str, Any]) -> dict[str, Any]:
    """As the program reads it."""
    found: dict[str, Any] = json.loads(json.dumps(spec))
    return found


DENSE = Model(name="dense", layers=2, hidden=64, heads=4, kv_heads=2, head_size=16, ffn=128, vocab=256)
EXPERTS = replace(DENSE, name="experts", moe=Moe(experts=4, top_k=2, expert_ffn=64, shared_ffn=64))
LATENT = replace(EXPERTS, name="latent", kv_heads=4,
                 mla=Mla(kv_rank=32, nope_size=16, rope_size=16, value_size=16, q_rank=32))  # fmt: skip


class Untimed:
    @contextlib.contextmanager
    def over(self, _: str) -> Iterator[None]:
        yield


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(program, "META", False)


def gradients(model: Model, text: str) -> dict[str, Any]:
    spec = _plain(spec_of(plan_for(model, "8xh200", f"{text} mbs1 gbs8 seq32"), 0))
    torch.manual_seed(0)
    rank = program.Rank(spec, "cpu")
    torch.manual_seed(1)
    rank.passes(Untimed(), lambda: None)
    states: dict[str, Any] = {name: p.states for name, p in rank.chunks[0].named_parameters()}  # type: ignore[attr-defined]
    found = {name: one.total for name, one in states.items() if one.total is not None}
    rank.step()
    rank.passes(Untimed(), lambda: None)  # what a step leaves behind runs again
    return found


@pytest.mark.parametrize(
    ("model", "base", "kinds"),
    [
        (DENSE, "tp2", ("attention-norm", "mlp-norm", "mlp", "ffn", "attention", "activation", "core-attention", "full",
                        "full/2", "core-attention+attention-norm+mlp-norm+activation")),
        (EXPERTS, "ep4", ("moe-act", "ffn", "mlp", "full")),
        (LATENT, "tp2", ("mla-up", "moe-act+mla-up+attention-norm")),
        (DENSE, "zero3 runtime=torchtitan", ("full", "ops")),
        (DENSE, "zero3", ("full", "attention-norm+mlp-norm")),
    ],
    ids=["dense", "experts", "latent", "fsdp", "zero3"],
)  # fmt: skip
@pytest.mark.usefixtures("on_cpu")
def test_recompute_changes_no_gradient(model, base, kinds):
    wanted = gradients(model, base)
    for kind in kinds:
        found = gradients(model, f"{base} recompute={kind}")
        assert found.keys() == wanted.keys()
        for name, grad in wanted.items():
            assert torch.equal(found[name], grad), (kind, name)


@pytest.mark.parametrize("text", ["tp2 fp8", "tp2 lora8", "tp2 cp2", "cp2:all-to-all zero2", "tp2 noflash"])
@pytest.mark.usefixtures("on_cpu")
def test_other_kinds_run_too(text):
    assert all(
        bool(grad.float().abs().sum() > 0) for name, grad in gradients(DENSE, text).items() if "lora.0" not in name
    )


@pytest.mark.parametrize("others", [(), [(True, 1)] * 3, [(True, 3)], [(False, 2)]])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.usefixtures("on_cpu")
def test_attention_in_parts_is_attention(others, sinks):
    """A ring, gathered keys, or earlier pieces of a sequence: as if all keys (copies of ours) stood in a row."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, 64, 16, requires_grad=True) for heads in (4, 2, 2))
    sink = torch.randn(4, requires_grad=True) if sinks else None
    out = program.Parts.apply(q, k, v, sink, {"window": 0, "others": others})
    times = 1 + sum(count for _, count in others)
    keys, values = (torch.cat([one] * times, 2).repeat_interleave(2, 1) for one in (k, v))
    seen = torch.ones(64, 64 * times, dtype=torch.bool)
    seen[:, :64] = seen[:, :64].tril()
    if others and others[0][0]:
        seen[:32, 64:] = False
    scores = (q @ keys.transpose(2, 3) / 4).masked_fill(~seen, -torch.inf)
    if sink is not None:
        scores = torch.cat((scores, sink.view(1, -1, 1, 1).expand(1, 4, 64, 1)), -1)
    wanted = scores.softmax(-1)[..., : 64 * times] @ values
    grad, inputs = torch.randn_like(out), [one for one in (q, k, v, sink) if one is not None]
    torch.testing.assert_close(out, wanted)
    for one, two in zip(torch.autograd.grad(out, inputs, grad), torch.autograd.grad(wanted, inputs, grad), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tp2 muon", "strategy.optimizer: is muon"),
        ("tp2 offload-optimizer", "strategy.offload: is optimizer"),
        ("ep4 dispatch=all-gather", "strategy.dispatcher: is all-gather"),
    ],
)
def test_what_is_not_built_is_refused(text, told):
    plan = plan_for(shortened("mixtral-8x7b"), "8xh200", f"{text} mbs1 gbs8 seq2048")
    with pytest.raises(InputError, match=told):
        spec_of(plan, 0)


@pytest.mark.parametrize("text", ["ep4 fp8", "tp2 compile zero3 runtime=torchtitan"])
def test_what_can_only_be_counted_says_so(text):
    plan = plan_for(shortened("mixtral-8x7b"), "8xh200", f"{text} mbs1 gbs8 seq2048")
    assert spec_for(plan, device="meta")["counted_only"]
    with pytest.raises(InputError, match="the program has no kernels for"):
        spec_for(plan)


def test_winning_plans_are_what_an_h200_measured():
    """One rank each of fifteen winners of all kinds."""
    path = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_winning_plans.json"
    rows = [row for row in json.loads(path.read_text())["rows"] if "memory" in row.get("result", {})]
    seconds = []
    for row in rows:
        plan = plan_for(load_model(row["model"]), row["cluster"], row["strategy"])
        errors = {line.what: abs(line.error) for line in compare(plan, row["result"])}
        assert errors["peak"] < 0.005, row["kind"]
        seconds.append(errors["iteration of the rank alone"])
    assert len(rows) == 15
    assert max(seconds) < 0.12
    assert fmean(seconds) < 0.05
