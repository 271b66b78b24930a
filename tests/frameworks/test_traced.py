"""Modules traced on fake tensors: parameters, kept bytes and peaks against torch's own count, and every refusal."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path

import pytest

from shardwise.cost.activations import plain_walk
from shardwise.errors import InputError
from shardwise.frameworks.torch.trace import inputs_of, trace
from shardwise.frameworks.torch.trace_build import cast, fake, loss_of
from shardwise.inputs.traced import at
from shardwise.ops.traced import block_ops

torch = pytest.importorskip("torch")
from shardwise.frameworks.torch.trace_record import GpuKernels  # noqa: E402 - it needs torch

HERE = Path(__file__).parent
OWN, THEIRS = "traced_models", "traced_families"
CASES = {
    "small_llama": (OWN, "ids=1x256:int64,labels=1x256:int64"),
    "tied_llama": (OWN, "ids=1x256:int64,labels=1x256:int64"),
    "dit": (OWN, "x=1x4x32x32,t=1x256,label=1:int64"),
    "unet": (OWN, "x=1x3x64x64"),
    "resnet50": (OWN, "x=1x3x224x224,label=1:int64"),
    "mamba2": (OWN, "ids=1x256:int64"),
    "toy": (OWN, "x=8x64"),
    "llama": (THEIRS, "input_ids=1x256:int64,labels=1x256:int64"),
    "qwen3_moe": (THEIRS, "input_ids=1x256:int64,labels=1x256:int64"),
    "t5": (THEIRS, "input_ids=1x128:int64,labels=1x64:int64"),
    "vit": (THEIRS, "pixel_values=1x3x224x224,labels=1:int64"),
    "whisper": (THEIRS, "input_features=1x80x600,labels=1x64:int64"),
}
SAMPLES = 5
"""Neither of the numbers that a trace runs with."""


@functools.cache
def traced_case(name):
    file, inputs = CASES[name]
    if file == THEIRS:
        pytest.importorskip("transformers")
    return trace(f"{HERE / file}.py:{name}", [inputs])


def made(name):
    """The module."""
    sys.path.insert(0, str(HERE))
    try:
        module = getattr(importlib.import_module(CASES[name][0]), name)()
    finally:
        sys.path.remove(str(HERE))
    cast(module, "bf16")
    return module


def torchs_own(name):
    """Parameters, and bytes after forward and at the peak, as torch's memory tracker counts them."""
    from torch.distributed._tools.mem_tracker import MemTracker

    inputs = CASES[name][1]
    with fake():
        module = made(name)
        given = {
            one.name: torch.ones((SAMPLES, *one.sizes[1:]), dtype=getattr(torch, one.type or "bfloat16"))
            for one in inputs_of([inputs])
        }
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))
        tracker = MemTracker()
        tracker.track_external(module, *given.values())
        with tracker:
            with GpuKernels():
                loss = loss_of(module(**given))
            after = tracker.get_tracker_snapshot("current")
            loss.backward()
        peak = tracker.get_tracker_snapshot("peak")
        static = sum(one.numel() * one.element_size() for one in (*module.parameters(), *module.buffers()))
    found = (snapshot[torch.device("cpu")]["Total"] - static for snapshot in (after, peak))
    return sum(one.numel() for one in module.parameters()), *found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_parameters_are_exact_and_bytes_are_those_of_torchs_own_tracker(name):
    found = traced_case(name)
    if name == "whisper":  # torch's tracker knows no parameters that are frozen
        with fake():
            assert found.params == sum(one.numel() for one in made(name).parameters())
        return
    parameters, kept, peak = torchs_own(name)
    assert found.params == parameters
    ours = walked(found)
    assert ours[0] == pytest.approx(kept, rel=0.001)
    if name != "toy":  # its shared layer's gradient waits for its first use, and counts among the gradients
        assert ours[1] == pytest.approx(peak, rel=0.001)


def chain(found):
    """All operators in a row."""
    blocks = (found.first, *(found.kinds[kind] for kind in found.order), found.last)
    return [op for block in blocks for op in block_ops(block, SAMPLES)]


def walked(found):
    """Kept bytes and the peak, from the chain of blocks."""
    walk = plain_walk(chain(found))
    tables = at(found.tables, SAMPLES)
    return walk.kept + tables, max(walk.forward, walk.backward) + tables


@pytest.mark.filterwarnings("ignore")
def test_flops_are_those_of_torchs_own_counter():
    from torch.utils.flop_counter import FlopCounterMode

    with fake(), FlopCounterMode(display=False) as counter, GpuKernels():
        module = made("small_llama")
        ids = torch.ones((SAMPLES, 256), dtype=torch.int64)
        module(ids, ids).backward()
    ops = chain(traced_case("small_llama"))
    # torch counts the whole square of causal attention, as do its own figures; ours is the half that is computed
    ours = sum(sum(op.flops()) * (2 if op.kind == "attention" else 1) for op in ops)
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_blocks_are_found_where_they_repeat_and_where_they_differ():
    assert traced_case("small_llama").order == (0, 0)
    resnet = traced_case("resnet50")
    assert len(resnet.order) == 16
    assert len(resnet.kinds) < 10
    unet = traced_case("unet")
    assert len(unet.order) == 8  # two of every level, down and up
    assert unet.border[1] > 2 * 64 * 64 * 64  # what the way down made crosses, too


def test_shared_weights_are_counted_once():
    tied, untied = traced_case("tied_llama"), traced_case("small_llama")
    assert tied.tied == 32000 * 512 == untied.params - tied.params
    assert untied.tied == 0
    assert traced_case("toy").idle == 7


REFUSED = {
    "broken x=1": "broken() failed at line",
    "not_a_module x=1": "gives int, not a torch.nn.Module",
    "choosing x=1x8": "needs the values of a tensor",
    "selecting x=1x8": "aten.nonzero.default needs the values of a tensor",
    "saving x=1x8": "runs again in backward",
    "unsure x=2x8": "runs other operators with 2 samples than with 3",
    "nothing x=1": "has no function nothing",
    "toy y=2x64": "unexpected keyword argument 'y'",
    "toy x=2x65": "RuntimeError",
    "toy x=2x64,x=3": "x is given twice",
    "toy x=axb": "is no input; write name=sizes:type",
    "toy x=1x64:float": "float is no type",
    "toy x=99999999x99999999": "at most",
    "toy x=0x64": "too small",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_traced_is_told_in_a_sentence(case):
    name, inputs = case.split()
    with pytest.raises(InputError) as told:
        trace(f"{HERE / OWN}.py:{name}", [inputs])
    assert REFUSED[case] in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("source", ["model.py", "missing.py:build", "model:build", ":", "a.py:b c", "/dev/null:x"])
def test_a_source_that_names_no_function_is_refused(source):
    with pytest.raises(InputError):
        trace(source, ["x=1"])


def test_a_file_that_ends_python_or_loops_through_itself_is_told(tmp_path):
    bodies = {
        "exit": "import sys\nsys.exit(3)\n", "syntax": "def build(:\n", "lost": "import nothing_like_this\n",
        "deep": "def build():\n    return build()\n",
    }  # fmt: skip
    for name, body in bodies.items():
        file = tmp_path / f"{name}.py"
        file.write_text(body, encoding="utf-8")
        with pytest.raises(InputError) as told:
            trace(f"{file}:build", ["x=1"])
        assert "failed" in str(told.value)
        assert "Traceback" not in str(told.value)
