"""Layers in traces in every form: one event, several events, operators, recomputed ones, PyTorch's modules."""

from __future__ import annotations

import gzip
import json

import pytest

from shardwise.errors import InputError
from shardwise.partition.readers.init_file import Profiling
from shardwise.partition.readers.traces import read_times

M, STEPS = 4, 2


class Lane:
    """Events one after the other."""

    def __init__(self):
        self.events, self.clock = [], 0.0

    def add(self, name, length, **more):
        self.events.append({"name": name, "ph": "X", "pid": 3, "tid": 1, "ts": str(self.clock), "dur": length, **more})
        self.clock += length + 1.0

    def write(self, folder, name="trace_view0.json"):
        (folder / name).write_text(json.dumps(self.events), encoding="utf-8")


def read(folder, kinds=(), microbatches=M):
    return read_times(Profiling(folder=str(folder), microbatches=microbatches), kinds)


def stage(lane, layer, layers=2):
    """All micro batches of a stage: head, layers written by `layer`, tail."""
    for _ in range(STEPS * M):
        lane.add("Default/LlamaEmbedding/Gather-op1", 40.0)
        for k in range(layers):
            layer(lane, k)
        lane.add("Default/lm_head-Linear/MatMul-op9", 900.0)
        lane.add("Default/norm_out-LlamaRMSNorm/RmsNorm-op8", 100.0)


def split(lane, k):
    for _ in range(3):  # one scope, cut into three events
        lane.add(f"{k}-LLamaDecodeLayer", 500.0)


def operators(lane, k):
    scope = f"Default/{k}-LLamaDecodeLayer"
    for name, length in (("attention/MatMul-op1", 700.0), ("AllReduce-op2", 300.0), ("ffn/MatMul-op3", 500.0)):
        lane.add(f"{scope}/{name}", length)
    lane.add(f"{scope}/LlamaRMSNorm/RmsNorm-op7", 0.0)


@pytest.mark.parametrize("layer", [split, operators])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_layer_may_be_several_events(tmp_path, layer, layers):
    lane = Lane()
    stage(lane, layer, layers)
    lane.write(tmp_path)
    found = read(tmp_path)
    assert found.body == pytest.approx(1.5)
    assert (found.head, found.tail) == pytest.approx((0.04, 1.0))


def test_nested_events_count_once(tmp_path):
    lane = Lane()

    def nested(lane, k):
        begin = lane.clock
        lane.add(f"Default/{k}-LLamaDecodeLayer/attention", 600.0)
        lane.add(f"Default/{k}-LLamaDecodeLayer/ffn", 399.0)
        lane.events.append({"name": f"{k}-LLamaDecodeLayer", "pid": 3, "tid": 0, "ts": begin, "dur": 1000.0})

    stage(lane, nested)
    lane.write(tmp_path)
    assert read(tmp_path).body == pytest.approx(1.0)


def test_recompute_kinds_are_told_apart_by_what_runs_again(tmp_path):
    lane = Lane()
    again = {0: ("softmax-op4", 60.0), 1: ("AllGather-op5", 150.0)}

    def layer(lane, k):
        operators(lane, k)
        for name, length in [again[k], (f"{again[k][0]}b", 1.0)] if k < 2 else [again[0], again[1]]:
            lane.add(f"Gradients/recompute_Default/{k}-LLamaDecodeLayer/{name}", length)
        lane.add(f"Gradients/Default/{k}-LLamaDecodeLayer/MatMul-op6", 2500.0)

    stage(lane, layer, 3)
    lane.write(tmp_path)
    found = read(tmp_path, ("select", "comm", "both"))
    assert found.body_backward == pytest.approx(2.5)
    assert found.recompute == pytest.approx({"select": 0.061, "comm": 0.151, "both": 0.21})


def test_full_recompute_runs_the_layer_again(tmp_path):
    lane = Lane()

    def layer(lane, k):
        lane.add(f"{k}-LLamaDecodeLayer", 1000.0)
        lane.add(f"recompute_Default/{k}-LLamaDecodeLayer", 950.0 if k else 50.0)

    stage(lane, layer)
    lane.write(tmp_path)
    assert read(tmp_path, ("select", "full")).recompute == pytest.approx({"full": 0.95, "select": 0.05})
    found = read(tmp_path, ("select", "comm", "full"))
    assert found.recompute == pytest.approx({"full": 0.95})
    assert any("not which of select, comm, full" in note for note in found.notes)


def test_layers_that_are_not_alike_are_pointed_at(tmp_path):
    lane = Lane()
    stage(lane, lambda lane, k: lane.add(f"{k}-LLamaDecodeLayer", 500.0 + 700.0 * k))
    lane.write(tmp_path)
    assert any("layer 1 takes 1.2 ms, layer 0 0.5" in note for note in read(tmp_path).notes)


def test_other_names_are_suggested(tmp_path):
    lane = Lane()
    lane.add("Default/7-GPTBlock", 1.0)
    lane.write(tmp_path)
    with pytest.raises(InputError, match="may be meant: #-GPTBlock"):
        read(tmp_path)
    stage(lane, split)
    lane.write(tmp_path)
    with pytest.raises(InputError, match="no multiple of micro_batch_num 3"):
        read(tmp_path, microbatches=3)


def torch_events():
    """Modules on thread 1, backward on thread 2, kernels on a stream, each launched once and run later."""
    found, clock, launched = [], [0.0], [0]

    def launch(thread, name, length):
        launched[0] += 1
        at = clock[0]
        found.append({"name": "cudaLaunchKernel", "cat": "cuda_runtime", "pid": 1, "tid": thread, "ts": at, "dur": 1,
                      "args": {"correlation": launched[0]}})  # fmt: skip
        found.append({"name": name, "cat": "kernel", "pid": 0, "tid": 7, "ts": at + 5000.0, "dur": length,
                      "args": {"correlation": launched[0]}})  # fmt: skip
        clock[0] += length

    def module(name, thread, kernels, number=0):
        begin = clock[0]
        if number:
            found.append({"name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": thread, "ts": begin, "dur": 1,
                          "args": {"Sequence number": number, "Fwd thread id": 0}})  # fmt: skip
        for kernel, length in kernels:
            launch(thread, kernel, length)
        found.append({"name": f"nn.Module: {name}", "cat": "python_function", "pid": 1, "tid": thread, "ts": begin,
                      "dur": clock[0] - begin})  # fmt: skip
        clock[0] += 3.0

    for batch in range(M):
        module("Embedding_0", 1, [("gather", 30.0)])
        for k in range(2):
            module(f"LlamaDecoderLayer_{k}", 1, [("sm90_gemm", 800.0), ("ncclAllReduce", 200.0)], 10 * batch + k + 1)
        module("LMHead_0", 1, [("gemm", 400.0)])
        for k in (1, 0):
            begin = clock[0]
            module(f"LlamaDecoderLayer_{k}", 2, [("sm90_gemm", 790.0), ("ncclAllReduce", 200.0)])
            launch(2, "gemm", 2100.0)
            found.append({"name": "autograd::engine::evaluate_function: CheckpointBackward", "cat": "cpu_op", "pid": 1,
                          "tid": 2, "ts": begin, "dur": clock[0] - begin,
                          "args": {"Sequence number": 10 * batch + k + 1, "Fwd thread id": 1}})  # fmt: skip
            clock[0] += 3.0
    return found


def test_pytorchs_profiler(tmp_path):
    text = json.dumps({"schemaVersion": 1, "traceEvents": torch_events()})
    (tmp_path / "rank0.pt.trace.json.gz").write_bytes(gzip.compress(text.encode()))
    names = {"head": ("Embedding",), "body": ("LlamaDecoderLayer",), "tail": ("LMHead",)}
    found = read_times(Profiling(folder=str(tmp_path), microbatches=M, **names), ("full",))
    assert (found.head, found.body, found.tail) == pytest.approx((0.03, 1.0, 0.4))
    assert found.body_backward == pytest.approx(2.1)
    assert found.recompute == pytest.approx({"full": 0.99})
