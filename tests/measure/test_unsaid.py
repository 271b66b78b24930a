"""What sources leave open: number formats of their recipes, and recompute."""

from __future__ import annotations

from statistics import fmean

import pytest

from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.measure.validate.recipes import formats_of
from shardwise.measure.validate.unsaid import mildest
from shardwise.measure.validate.validate import validate

BRIDGE = "Megatron Bridge (Megatron-Core) + TransformerEngine"
NEMO = "NeMo (Megatron-Core) + TransformerEngine"


@pytest.mark.parametrize(
    ("source", "framework", "precision", "notes", "said"),
    [
        ("mbridge-new", BRIDGE, {"compute": "bf16"}, "", {"grad_dtype": "bf16"}),
        ("mbridge-new", BRIDGE, {"compute": "mxfp8"}, "",
         {"grad_dtype": "bf16", "scaling": "tensor", "fp8_weights": True}),
        ("mlperf-llama8b", NEMO, {"compute": "nvfp4", "grads": "bf16 reduce"}, "CUDA graphs. FP8 attention.",
         {"grad_dtype": "bf16", "scaling": "delayed", "fp8_weights": True, "fp8_attention": True}),
        ("torchtitan", "torchtitan (PyTorch FSDP2)", {"compute": "fp8", "detail": "float8 rowwise"}, "",
         {"scaling": "row"}),
        ("zero-bubble", "Megatron-LM fork", {"compute": "fp16"}, "", {}),
    ],
)  # fmt: skip
def test_rows_take_the_recipe_of_their_framework(source, framework, precision, notes, said):
    row = {"source_key": source, "framework": framework, "precision": precision, "parallel": {}, "notes": notes}
    assert formats_of(row) == said


@pytest.mark.parametrize(
    ("model", "cluster", "text", "found"),
    [
        ("llama3-8b", "8xh100", "dp8 gbs8 seq4096 grad-bf16", "none"),
        ("llama3-8b", "8xh100", "dp8 gbs8 seq4096", "attention-norm+mlp-norm"),
        ("llama3-8b", "8xh100", "dp8 gbs8 seq4736", "full:8"),
        ("deepseek-v3", "256xh200", "pp16 dp16 ep16 gbs256 seq4096 grad-bf16 nosp", "mla-up"),
    ],
)
def test_the_mildest_recompute_that_fits(model, cluster, text, found):
    strategy = Strategy.parse(text)
    assert str(mildest(load_model(model), load_cluster(cluster), strategy, load_runtime("megatron"))) == found


@pytest.fixture(scope="module")
def narrow():
    """Outcomes of all shipped runs below 16 bit."""
    return [one for one in validate().outcomes if one.case.precision in {"fp8", "mxfp8", "nvfp4"}]


def test_runs_below_16_bit_that_ran_are_not_refused(narrow):
    """Once 34 of 151: 16-bit weights beside fp8 ones, fp32 gradients, and recompute that recipes set in silence."""
    ran = [one for one in narrow if one.case.measured.get("fits") is True]
    refused = [one.case.id for one in ran if not one.predicted["fits"]]
    assert len(ran) >= 150
    assert len(refused) <= 0.03 * len(ran), refused


def test_dense_runs_below_16_bit(narrow):
    found: dict[str, list[float]] = {}
    for one in narrow:
        case = one.case
        if case.complete and case.model.moe is None:
            found.setdefault(case.source, []).append(abs(one.error["iteration_seconds"]))
    # torchao's B200 were held to less power, and no run calibrates an MI300X
    sources = [fmean(errors) for source, errors in found.items() if source != "torchao"]
    assert len(sources) >= 9
    assert fmean(sources) <= 0.065
