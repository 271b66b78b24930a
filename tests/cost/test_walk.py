"""The memory walk by hand: what stays, and the highest point."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.cost.activations import full_walk, plain_walk, selective_walk
from shardwise.ops.op import Op


def op(name, module="mlp", *, kept=0.0, extra_f=0.0, extra_b=0.0, kind="memory", params=0.0, stays=-1.0):
    return Op(name, module, kind, kept=kept, extra_f=extra_f, extra_b=extra_b, params=params, stays=stays)


A = op("a", "attention", kept=10, extra_f=3, extra_b=1)
B = op("b", "core-attention", kept=20, extra_f=5, extra_b=30, stays=8)
C = op("c", "mlp", kept=5, extra_f=40, extra_b=2)


class TestPlain:
    def test_kept_bytes_add_up(self):
        assert plain_walk([A, B, C]).kept == 35

    def test_forward_peak_is_the_highest_step(self):
        # after a: 13; after b: 35; after c: 35 + 40
        assert plain_walk([A, B, C]).forward == 75

    def test_backward_peak_names_its_operator(self):
        # c: 35 + 2; b: 30 + 30; a: 10 + 1
        walk = plain_walk([A, B, C])
        assert (walk.backward, walk.at) == (60, "b")

    def test_backward_is_at_least_what_is_kept(self):
        walk = plain_walk([op("x", kept=7)])
        assert (walk.backward, walk.at) == (7, "")

    def test_gradients_pile_up_from_the_end(self):
        # w: 2 bytes per parameter of c stand while b and a run
        ops = [op("a", extra_b=1), op("c", params=100, kept=1)]
        assert plain_walk(ops, 2.0).backward == 201

    def test_nothing_is_replayed(self):
        assert plain_walk([A, B, C]).recomputed == ()


class TestFull:
    def test_only_the_entry_stays(self):
        ops = [A, B, C]
        walk = full_walk(ops, plain_walk(ops), 4.0, skip_last=False)
        assert walk.kept == 4.0
        assert walk.recomputed == (0, 1, 2)

    def test_a_group_shares_one_entry(self):
        ops = [A, B, C]
        whole = plain_walk(ops)
        assert full_walk(ops, whole, 4.0, skip_last=False, group=2).kept == 2.0

    def test_the_replay_is_as_high_as_the_layer(self):
        ops = [A, B, C]
        walk = full_walk(ops, plain_walk(ops), 10.0, skip_last=False)
        assert walk.backward == 75  # the entry is a's own kept input


class TestSelective:
    def test_a_recomputed_operator_keeps_what_stays(self):
        walk = selective_walk([A, B, C], frozenset({"core-attention"}))
        assert walk.kept == 10 + 8 + 5
        assert walk.recomputed == (1,)

    def test_modules_that_are_not_there_change_nothing(self):
        assert selective_walk([A, C], frozenset({"moe-act"})) == plain_walk([A, C])

    def test_attention_takes_its_core_with_it(self):
        walk = selective_walk([A, B, C], frozenset({"attention"}))
        assert walk.recomputed == (0, 1)
        assert walk.kept == 10 + 5


sizes = st.floats(0, 1e9)
some_ops = st.lists(
    st.builds(
        op,
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["attention", "core-attention", "mlp", "mlp-norm", "activation"]),
        kept=sizes, extra_f=sizes, extra_b=sizes,
    ),
    min_size=1, max_size=8,
)  # fmt: skip
modules = st.frozensets(st.sampled_from(["attention", "core-attention", "mlp", "mlp-norm", "activation"]))


@given(some_ops, modules, modules)
def test_more_recompute_never_keeps_more(ops, some, more):
    whole, part = selective_walk(ops, some | more), selective_walk(ops, some)
    assert whole.kept <= part.kept + 1e-3
    assert part.kept <= plain_walk(ops).kept + 1e-3
    assert set(part.recomputed) <= set(whole.recomputed)


@given(some_ops)
def test_peaks_are_above_what_is_kept(ops):
    walk = plain_walk(ops)
    assert walk.backward >= walk.kept
    assert walk.forward >= walk.kept - pytest.approx(0, abs=1e-3).expected
