"""Kernel times by hand, and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.cost.kernels import machine_of, op_times
from shardwise.inputs.calibration import Calibration
from shardwise.inputs.cluster import Gpu
from shardwise.inputs.runtime import Overheads, Runtime
from shardwise.ops.op import Op

GPU = Gpu(name="toy", memory=80e9, bandwidth=1e12, flops={"bf16": 1e14, "fp8": 2e14, "fp32": 1e13}, sms=100)
IDEAL = Calibration(
    name="ideal", source="test", gemm={"bf16": 1.0, "fp8": 1.0, "fp32": 1.0}, gemm_depth=0.0, gemm_fixed=0.0, wave=0.0,
    grouped=1.0, bandwidth=1.0, kernel_fixed=0.0,
)  # fmt: skip


def machine(dtype="bf16", calibration=IDEAL, **overheads):
    return machine_of(
        GPU, calibration, Runtime(name="toy", overheads=Overheads(**overheads)), dtype, accumulating=False
    )


def gemm(rows, columns, depth):
    return Op("gemm", "mlp", "gemm", (rows, columns, depth))


class TestProducts:
    def test_an_ideal_product_runs_at_the_peak(self):
        times = op_times(gemm(4096, 4096, 4096), machine())
        assert times.f == pytest.approx(2 * 4096**3 / 1e14)
        # backward products have layouts that run no faster
        assert times.f <= times.i <= 1.2 * times.f
        assert times.f <= times.w <= 1.2 * times.f

    def test_a_thin_product_is_bound_by_its_traffic(self):
        times = op_times(gemm(8, 8192, 8192), machine())
        assert times.f == pytest.approx(2 * (8 * 8192 * 2 + 8192**2) / 1e12)

    def test_fp8_is_twice_as_fast_where_it_is_used(self):
        op = gemm(8192, 8192, 8192)
        assert op_times(op, machine("fp8"), narrow=True).f == pytest.approx(op_times(op, machine("fp8")).f / 2)

    def test_odd_widths_are_slow(self):
        assert op_times(gemm(4096, 4097, 4096), machine()).f > 2 * op_times(gemm(4096, 4096, 4096), machine()).f

    def test_older_kernels_are_slower(self):
        op = gemm(4096, 4096, 4096)
        assert op_times(op, machine(slowdown=1.5)).f == pytest.approx(1.5 * op_times(op, machine()).f)


class TestMemoryBound:
    def test_bytes_over_bandwidth(self):
        times = op_times(Op("norm", "mlp-norm", "memory", bytes_f=1e9, bytes_b=3e9), machine())
        assert (times.f, times.i, times.w) == pytest.approx((1e-3, 3e-3, 0.0))


sizes = st.sampled_from([128, 256, 1024, 4096, 8192])


@given(sizes, sizes, sizes, st.sampled_from([2, 4]))
def test_a_larger_product_never_takes_less(rows, columns, depth, factor):
    real = machine(calibration=Calibration(name="real", source="test", gemm={"bf16": 0.7}))
    time = op_times(gemm(rows, columns, depth), real).f
    assert op_times(gemm(factor * rows, columns, depth), real).f >= time * (1 - 1e-9)
    assert op_times(gemm(rows, columns, factor * depth), real).f >= time * (1 - 1e-9)


@given(sizes, sizes, sizes)
def test_no_product_is_faster_than_the_peak(rows, columns, depth):
    real = machine(calibration=Calibration(name="real", source="test", gemm={"bf16": 0.7}))
    assert op_times(gemm(rows, columns, depth), real).f >= 2 * rows * columns * depth / 1e14
