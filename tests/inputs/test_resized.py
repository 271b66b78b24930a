from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.inputs.load import named_cluster, resized


@pytest.mark.parametrize(("few", "many"), [("8xh100", "64xh100"), ("16xa100", "64xa100"), ("8xtpu-v6e", "512xtpu-v6e")])
def test_a_grown_cluster_is_the_catalogs_of_that_size(few, many):
    there = named_cluster(many)
    assert resized(named_cluster(few), there.gpus) == there


def test_site_memory_and_network_stay():
    cluster = named_cluster("16xa100@bloom")
    node, between = cluster.levels
    own = replace(
        cluster, gpu=replace(cluster.gpu, memory=141e9), levels=(node, replace(between, bandwidth=123e9)),
    )  # fmt: skip
    assert resized(own, 16) is own
    for gpus in (8, 32):
        there = resized(own, gpus)
        assert (there.gpus, there.gpu, there.site) == (gpus, own.gpu, own.site)
        assert there.levels[-1].size >= gpus
    assert resized(own, 32).levels[-1].bandwidth == 123e9
    assert resized(own, 8).levels == (node,)
