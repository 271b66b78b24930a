"""Traces and logs of users: streamed, classified, refused with a sentence."""

from __future__ import annotations

import gzip
import json

import pytest

from shardwise.errors import FileError
from shardwise.inputs import trace as module
from shardwise.inputs.trace import events, kind_of, read_trace


def kernel(name, length, **more):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 1, "dur": length, "pid": 0, "tid": 7, **more}


PYTORCH = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 0, "dur": 9e5, "pid": 1},
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "ts": 0, "dur": 9e5, "pid": 1},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 5e5, "pid": 1},
    kernel("nvjet_tst_256x128_64x4", 3000),
    kernel("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", 500),
    kernel("void at::native::vectorized_elementwise_kernel<4>", 250),
    kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 100),
]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("piece", [7, 1 << 20])
def test_pytorch_traces(tmp_path, monkeypatch, zipped, piece):
    monkeypatch.setattr(module, "PIECE", piece)
    text = json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": PYTORCH})
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    found = read_trace(path)
    assert found.steps == 2
    assert found.events == 4
    assert found.seconds == pytest.approx({"gemm": 3e-3, "attention": 5e-4, "memory": 2.5e-4, "communication": 1e-4})
    assert found.top[0][1] == "gemm"


def test_ascend_traces_are_a_bare_list(tmp_path):
    rows = [
        {"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "Ascend Hardware"}},
        {"ph": "M", "name": "process_name", "pid": 6, "args": {"name": "Python"}},
        {"ph": "X", "name": "MatMulV2", "pid": 5, "tid": 1, "ts": "1.5", "dur": 70.0},
        {"ph": "X", "name": "FlashAttentionScore", "pid": 5, "tid": 1, "ts": "2.5", "dur": 30.0},
        {"ph": "X", "name": "hcom_allReduce_", "pid": 5, "tid": 2, "ts": "2.5", "dur": 20.0},
        {"ph": "X", "name": "forward", "pid": 6, "tid": 2, "ts": "2.5", "dur": 9999.0},
    ]
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(rows))
    found = read_trace(path)
    assert found.seconds == pytest.approx({"gemm": 7e-5, "attention": 3e-5, "memory": 0, "communication": 2e-5})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1}', "no Chrome trace"),
        ('[{"ph": "X", "name": "x"', "middle of an event"),
        ("[]", "no events of a device"),
    ],
)
def test_other_files_are_refused(tmp_path, text, words):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(FileError, match=words):
        read_trace(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        list(events(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_gemm_bf16", "gemm"),
        ("ampere_bf16_s16816gemm", "gemm"),
        ("void flash::flash_fwd_kernel", "attention"),
        ("triton_poi_fused_add_0", "memory"),
        ("ncclKernel_AllGather", "communication"),
    ],
)
def test_kinds(name, kind):
    assert kind_of(name) == kind
