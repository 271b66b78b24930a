"""Collectives by hand on a small network, and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.cost.network import Network, all_reduce, all_to_all, collective, ring, send
from shardwise.errors import InputError
from shardwise.frameworks.load import load_cluster
from shardwise.inputs.calibration import Calibration, Reach
from shardwise.inputs.cluster import Cluster, Gpu, Level

GPU = Gpu(name="toy", memory=80e9, bandwidth=2e12, flops={"bf16": 3e14, "fp32": 2e13})


def network(*, inner=100e9, outer=10e9, latency=0.0, share=1.0, **level):
    levels = (
        Level(name="node", size=8, bandwidth=inner, latency=latency, **level),
        Level(name="net", size=64, bandwidth=outer, latency=2 * latency),
    )
    calibration = Calibration(name="x", source="test", gemm={}, network={"default": share}, collective_fixed=0.0)
    return Network(Cluster(name="toy", gpu=GPU, gpus=64, levels=levels), calibration)


class TestGroups:
    def test_inside_a_node(self):
        (hop,) = network().group(8, 1).hops
        assert (hop.members, hop.domains, hop.bandwidth) == (1, 8, 100e9)

    def test_across_nodes(self):
        inner, outer = network().group(16, 1).hops
        assert (inner.domains, outer.members, outer.domains) == (8, 8, 2)

    def test_one_member_a_node(self):
        (hop,) = network().group(8, 8).hops
        assert (hop.members, hop.domains, hop.bandwidth) == (1, 8, 10e9)

    def test_strided_inside_a_node(self):
        inner, outer = network().group(4, 4).hops
        assert (inner.domains, outer.members, outer.domains) == (2, 2, 2)

    def test_alone(self):
        assert network().group(1, 1).hops == ()


class TestTimes:
    def test_ring_inside_a_node(self):
        assert ring(network().group(8, 1), 8e9) == pytest.approx(7e9 / 100e9)

    def test_ring_over_nodes_uses_all_links_of_a_node(self):
        # 15/16 of the bytes at min(100, 8 x 10) GB/s
        assert ring(network().group(16, 1), 16e9) == pytest.approx(15e9 / 80e9)

    def test_latency_counts_steps(self):
        assert ring(network(latency=1e-6).group(8, 1), 0) == pytest.approx(7e-6)

    def test_large_all_reduce_is_two_rings(self):
        group = network(latency=1e-6).group(8, 1)
        assert all_reduce(group, 1e9) == pytest.approx(2 * ring(group, 1e9))

    def test_small_all_reduce_is_a_tree(self):
        group = network(latency=1e-6).group(8, 1)
        assert all_reduce(group, 8.0) == pytest.approx(6e-6, rel=1e-3)

    def test_all_to_all_crosses_what_it_must(self):
        # of 16 GB, half stays in the node's 8 ranks; 8 GB leave over a rank's own 10 GB/s
        assert all_to_all(network().group(16, 1), 16e9) == pytest.approx(0.8)

    def test_send(self):
        assert send(network(), 1, 1e9) == pytest.approx(0.01)
        assert send(network(), 8, 1e9) == pytest.approx(0.1)

    def test_what_is_reached(self):
        assert ring(network(share=0.5).group(8, 1), 8e9) == pytest.approx(2 * 7e9 / 100e9)

    def test_mesh_grows_with_the_group(self):
        mesh = network(topology="mesh")
        assert ring(mesh.group(2, 1), 2e9) == pytest.approx(7 * 1e9 / 100e9)
        assert ring(mesh.group(8, 1), 8e9) == pytest.approx(7e9 / 100e9)

    def test_two_of_a_mesh_have_one_link(self):
        assert send(network(topology="mesh"), 1, 1e9) == pytest.approx(7 * 0.01)

    def test_a_group_of_a_torus_has_the_links_of_its_axes(self):
        """A pod of 16 x 16 TPU v6e: 102.4 TB/s of all-reduce and 3.2 TB/s of bisection (Cloud TPU documentation)."""
        cluster = load_cluster("256xtpu-v6e")
        pod = Network(cluster, Calibration(name="-", source="-", gemm={}, network={"ici": 1.0}, collective_fixed=0.0))
        whole, axis = pod.group(256, 1), pod.group(16, 1)
        assert 256 * whole.hops[0].bandwidth == pytest.approx(102.4e12)
        assert axis.hops[0].bandwidth == pytest.approx(200e9)
        assert pod.group(16, 16).hops[0].bandwidth == pytest.approx(200e9)
        # of what 256 chips send to all others, a quarter crosses the middle in one direction
        size = 1e12
        assert all_to_all(whole, size) == pytest.approx(256 * size / 4 / 3.2e12, rel=0.01)
        assert send(pod, 1, 1e9) == pytest.approx(0.01, rel=1e-3)

    @pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce", "all-to-all"])
    def test_alone_costs_nothing(self, kind):
        assert collective(kind, network().group(1, 1), 1e12) == 0.0


@given(
    st.sampled_from(["all-gather", "reduce-scatter", "all-reduce", "all-to-all"]),
    st.sampled_from([2, 4, 8, 16, 32]), st.sampled_from([1, 2, 8]), st.floats(1, 1e10), st.floats(1.0, 4.0),
)  # fmt: skip
def test_more_bytes_or_slower_links_never_take_less(kind, size, stride, amount, factor):
    quick, slow = network(latency=1e-6), network(latency=1e-6, inner=50e9, outer=5e9)
    time = collective(kind, quick.group(size, stride), amount)
    assert collective(kind, quick.group(size, stride), factor * amount) >= time - 1e-12
    assert collective(kind, slow.group(size, stride), amount) >= time - 1e-12


def table(*lines: Reach) -> Network:
    usual = network()
    calibration = Calibration(name="x", source="test", gemm={}, collective_fixed=0.0, collectives=lines)
    levels = tuple(level for level, _ in usual.levels)
    return Network(Cluster(name="toy", gpu=GPU, gpus=64, levels=levels), calibration)


def line(**fields) -> Reach:
    return Reach(**{"level": "node", "kind": "all-gather", "share": 0.5, "latency": 0.0, **fields})


class TestTable:
    """The first line of a cluster's measured collectives that fits a group counts."""

    def test_by_kind(self):
        found = table(line(), line(kind="reduce-scatter", share=0.25)).group(8, 1)
        assert ring(found, 8e9) == pytest.approx(7e9 / 50e9)
        assert ring(found, 8e9, "reduce-scatter") == pytest.approx(7e9 / 25e9)
        both = table(line(kind="ring")).group(8, 1)
        assert ring(both, 8e9) == ring(both, 8e9, "reduce-scatter") == pytest.approx(7e9 / 50e9)

    @pytest.mark.parametrize("which", [{"size": 4}, {"stride": 2}, {"within": 4}, {"nodes": 2}])
    def test_a_line_of_other_groups_does_not_count(self, which):
        found = table(line(**which), line(share=0.8)).group(8, 1)
        assert ring(found, 8e9) == pytest.approx(7e9 / 80e9)

    def test_a_strided_group_has_its_own(self):
        lines = line(size=4, stride=2, share=0.1), line(size=4, share=0.7)
        assert ring(table(*lines).group(4, 2), 4e9) == pytest.approx(3e9 / 10e9)
        assert ring(table(*lines).group(4, 1), 4e9) == pytest.approx(3e9 / 70e9)

    def test_nodes_that_a_group_lies_on(self):
        lines = line(level="net", nodes=2, share=0.5), line(level="net", share=0.25)
        assert ring(table(*lines).group(16, 1), 16e9) == pytest.approx(15e9 / (8 * 5e9))
        assert ring(table(*lines).group(32, 1), 32e9) == pytest.approx(31e9 / (8 * 2.5e9))

    def test_messages_between_measured_sizes(self):
        found = table(line(size=8, sizes=(1e6, 1e8), seconds=(1e-4, 1e-2))).group(8, 1)
        assert ring(found, 1e7) == pytest.approx(1e-3)
        assert ring(found, 1.0) == pytest.approx(1e-4)
        assert ring(found, 1e9) == pytest.approx(0.1)
        # of another size the line's share is all that is known
        other = table(line(sizes=(1e6, 1e8), seconds=(1e-4, 1e-2))).group(8, 1)
        assert ring(other, 8e9) == pytest.approx(7e9 / 50e9)

    @pytest.mark.parametrize(("sizes", "seconds"), [((1e8, 1e6), (1.0, 2.0)), ((1e6,), (1.0, 2.0))])
    def test_a_wrong_table_is_refused(self, sizes, seconds):
        with pytest.raises(InputError, match="sizes must rise"):
            table(line(size=8, sizes=sizes, seconds=seconds)).group(8, 1)
