from __future__ import annotations

from dataclasses import fields

import pytest

from shardwise.inputs.cluster import Cluster, Gpu, Level
from shardwise.inputs.describe import describe
from shardwise.inputs.model import Mla, Model, Moe
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Lora, Strategy


@pytest.mark.parametrize("kind", [Model, Mla, Moe, Cluster, Gpu, Level, Strategy, Recompute, Lora])
def test_every_field_says_what_it_means(kind):
    docs = describe(kind)
    assert [doc.name for doc in docs] == [field.name for field in fields(kind)]
    for doc in docs:
        assert doc.text.endswith((".", "...")), f"{kind.__name__}.{doc.name} has no string under it"


def describe_field(kind, name):
    return next(doc for doc in describe(kind) if doc.name == name)


def test_kinds_choices_and_defaults():
    tp, dtype, sp = (describe_field(Strategy, name) for name in ("tp", "dtype", "sp"))
    assert (tp.kind, tp.default, tp.required) == ("int", 1, False)
    assert dtype.choices == ("fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4")
    assert sp.kind == "switch"
    assert describe_field(Model, "layers").required
    assert describe_field(Model, "windows").kind == "list of int"
    assert describe_field(Model, "mla").kind == "Mla or none"
    assert describe_field(Gpu, "flops").kind == "table of float"
