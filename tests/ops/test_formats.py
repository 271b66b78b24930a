"""Operands below 16 bit: what making, keeping and gathering them costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.estimate.setup import setup_of
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.formats import SLOWER, format_of
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.ops.attention import attention
from shardwise.ops.shard import shard_of

LLAMA, MEGATRON = load_model("llama3-8b"), load_runtime("megatron")


def made(dtype, scaling="tensor", *, turned=True, normed=False):
    return format_of(dtype, scaling).traffic(turned=turned, normed=normed) / SLOWER


def test_bytes_of_a_cast_by_hand():
    assert made("fp8") == 2 + 2 + 1 + 1  # the largest value, the cast, both layouts
    assert made("fp8", turned=False) == 2 + 2 + 1
    assert made("fp8", normed=True) == 2 + 1 + 1
    assert made("fp8", "delayed") == 2 + 1 + 1
    assert made("fp8", "delayed", normed=True) == 0  # the norm writes both copies in place of one of 16 bit
    assert made("mxfp8", turned=False) == made("mxfp8") == 2 + 2 * (1 + 1 / 32)
    assert made("nvfp4") == 2 + 2 + 2 * (0.5 + 1 / 16)
    assert format_of("bf16") is None


# Two layers on an H200 (Megatron-Core, Transformer Engine), seconds of casts and norms over those of 16 bit.
@pytest.mark.parametrize(
    ("model", "tokens", "scaling", "measured"),
    [("llama3-8b", 8192, "delayed", 1.21e-3), ("llama3-8b", 8192, "tensor", 1.88e-3),
     ("llama3-8b", 8192, "block", 1.78e-3), ("llama3-70b", 4096, "delayed", 1.19e-3),
     ("llama3-70b", 4096, "tensor", 1.85e-3), ("llama3-70b", 4096, "block", 1.81e-3)],
)  # fmt: skip
def test_casts_of_a_layer_take_what_was_measured(model, tokens, scaling, measured):
    strategy = Strategy(seq=tokens, dtype="fp8", scaling=scaling)
    setup = setup_of(load_model(model), load_cluster("1xh200"), strategy, MEGATRON)
    ops = [op for op in setup.chunks[0].runs[1].block.ops if op.kind == "gemm"]
    assert 2 * sum(op.bytes_f + op.bytes_b for op in ops) / setup.machine.bandwidth == pytest.approx(measured, rel=0.15)


def test_experts_cast_their_tokens_one_by_one():
    """Two layers of Qwen3 30B with 16 of its experts on one H200: most of the time of casts is in starting kernels."""
    model = replace(load_model("qwen3-30b-a3b"), moe=replace(load_model("qwen3-30b-a3b").moe, experts=16))
    setup = setup_of(model, load_cluster("1xh200"), Strategy(seq=4096, dtype="fp8"), MEGATRON)
    block, machine = setup.chunks[0].runs[1].block, setup.machine
    groups = {op.name: op.shape[3] for op in block.ops if op.kind == "grouped"}
    assert set(groups.values()) == {16}
    narrow = format_of("fp8")
    ops = [op for op in block.ops if op.kind in {"gemm", "grouped"} and op.bytes_f]
    started = sum(narrow.kernels + narrow.each * (groups.get(op.name, 1) - 1) for op in ops)
    moved = sum(op.bytes_f + op.bytes_b for op in ops) / machine.bandwidth
    assert 2 * (moved + 2 * started * machine.kernel_fixed) == pytest.approx(2.08e-3, rel=0.2)


def qkv(strategy):
    ops = {op.name: op for op in attention(shard_of(LLAMA, strategy, MEGATRON), 0)}
    return ops["qkv"], ops["output"]


def test_operands_are_kept_and_gathered_in_their_format():
    wide, _ = qkv(Strategy(tp=8, seq=8192))
    for dtype, size in (("fp8", 1.0), ("mxfp8", 1 + 1 / 32), ("nvfp4", 0.5 + 1 / 16)):
        narrow, output = qkv(Strategy(tp=8, seq=8192, dtype=dtype))
        assert narrow.kept == pytest.approx(wide.kept * size / 2)
        gathers = [comm.bytes for comm in narrow.comms if comm.kind == "all-gather"]
        assert gathers == [pytest.approx(size * 8192 * LLAMA.hidden)] * 2
        gradient = next(comm.bytes for comm in output.comms if comm.kind == "all-gather")
        assert gradient == pytest.approx(size * 8192 * LLAMA.hidden * (1 if dtype == "fp8" else 2))


def test_a_rank_casts_its_own_share_before_it_is_gathered():
    whole, _ = qkv(Strategy(seq=8192, dtype="fp8"))
    share, _ = qkv(Strategy(tp=8, seq=8192, dtype="fp8"))
    assert share.bytes_f == pytest.approx(whole.bytes_f / 8)
    row, _ = qkv(Strategy(tp=8, seq=8192, dtype="fp8", scaling="row"))
    assert row.bytes_f > share.bytes_f * 8  # gathered in 16 bit, and cast by every rank


def weights(strategy, cluster):
    setup = setup_of(LLAMA, load_cluster(cluster), strategy, MEGATRON)
    from shardwise.estimate.estimate import assemble

    return {part.name: part.value for part in assemble(setup).memory[0].peak.parts}


def test_weights_in_8_bit_leave_no_16_bit_copy():
    given = {"dp": 8, "global_batch": 8, "seq": 4096, "dtype": "fp8"}
    layers = LLAMA.layers * 218_112_000.0
    both, alone = weights(Strategy(**given), "8xh100"), weights(Strategy(**given, fp8_weights=True), "8xh100")
    assert both["weights"] - alone["weights"] == pytest.approx(2 * layers, rel=0.01)
    assert alone["fp8 weight copies"] == both["fp8 weight copies"] == pytest.approx(2 * layers, rel=0.01)
    blackwell = weights(Strategy(**given, fp8_weights=True), "8xb200")
    assert blackwell["fp8 weight copies"] == pytest.approx(layers, rel=0.01)  # no turned copy
    mx = weights(Strategy(**(given | {"dtype": "mxfp8"}), fp8_weights=True), "8xb200")
    assert mx["fp8 weight copies"] == pytest.approx(2 * (1 + 1 / 32) * layers, rel=0.01)


def test_attention_in_8_bit_keeps_half_and_is_faster():
    def core(**given):
        setup = setup_of(
            LLAMA, load_cluster("8xb200"), Strategy(dp=8, global_batch=8, dtype="nvfp4", **given), MEGATRON
        )
        block = setup.chunks[0].runs[1].block
        return next(op for op in block.ops if op.name == "attention").kept, block.f.attention

    (kept, seconds), (half, less) = core(), core(fp8_attention=True)
    assert half == pytest.approx(kept / 2, rel=0.02)
    assert less < seconds
