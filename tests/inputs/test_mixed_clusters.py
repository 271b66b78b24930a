"""Clusters of several kinds of GPU, from text and from files."""

from __future__ import annotations

import pytest

from shardwise.errors import InputError
from shardwise.frameworks.load import load_cluster
from shardwise.inputs.load import named_cluster
from shardwise.inputs.mixed import Mixed, kinds_of, orders_of, shared_batches, whole_kinds
from shardwise.inputs.serialise import to_plain
from shardwise.inputs.typed import validated


def mix(source) -> Mixed:
    found = load_cluster(source)
    assert isinstance(found, Mixed)
    return found


def test_kinds_keep_their_order_their_network_and_their_site():
    cluster = mix("32xh100@bloom + 64xa100")
    assert cluster.name == "32xh100@bloom + 64xa100"
    assert [kind.gpus for kind in cluster.kinds] == [32, 64]
    assert cluster.gpus == 96
    assert cluster.kinds[0].site.name == "bloom"
    assert cluster.join.bandwidth == cluster.kinds[1].levels[-1].bandwidth  # the slower of both networks
    assert [one.name for one in orders_of(cluster)] == ["32xh100@bloom + 64xa100", "64xa100 + 32xh100@bloom"]


def test_peaks_add_up_and_formats_are_those_that_all_have():
    cluster = mix("32xh100 + 64xa100")
    h100, a100 = (kind.gpu for kind in cluster.kinds)
    assert cluster.gpu.peak("bf16") * 96 == pytest.approx(32 * h100.peak("bf16") + 64 * a100.peak("bf16"))
    assert h100.has("fp8")
    assert not cluster.gpu.has("fp8")


def test_neighbours_that_are_alike_are_one_kind():
    assert named_cluster("32xh100 + 32xh100") == named_cluster("64xh100")
    assert [kind.name for kind in kinds_of(named_cluster("8xh100 + 8xh100 + 8xa100"))] == ["16xh100", "8xa100"]
    assert len(kinds_of(named_cluster("8xh100 + 8xa100 + 8xh100"))) == 3


def test_one_node_of_each_kind_is_joined_by_the_network_between_nodes():
    cluster = mix("4xh100 + 4xa100")
    assert cluster.join.name == "infiniband"
    for kind in whole_kinds(cluster):
        assert [level.name for level in kind.levels] == ["nvlink", "infiniband"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("8xh100 +", "has a + without a kind of GPU on either side; write 32xh100 + 64xa100"),
        ("8xh100 + 8xfoo", "there is no GPU named 'foo'"),
        ("8xh100 + 8xa100 + 8xv100 + 8xl40s", "has 4 kinds of GPU; up to 3 are known together"),
    ],
)
def test_what_is_wrong_is_told(text, told):
    with pytest.raises(InputError, match=told.replace("+", r"\+").replace("'", ".")):
        load_cluster(text)


def test_a_file_has_kinds_and_what_joins_them(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text("""
kinds = ["16xh100", { gpu = "a100", gpus = 8, host_memory = "512GB" }]
join = { name = "ethernet", bandwidth = "3.125GB/s", latency = "30us" }
""")
    cluster = mix(str(path))
    assert [kind.gpu.name for kind in cluster.kinds] == ["h100", "a100"]
    assert (cluster.join.name, cluster.join.size, cluster.join.bandwidth) == ("ethernet", 24, 3.125e9)
    assert cluster.kinds[1].host_memory == 512e9
    path.write_text('kinds = ["16xh100"]\ngpus = 3\n')
    with pytest.raises(InputError, match=r"cluster\.gpus: does not go with kinds; give it in each kind"):
        load_cluster(str(path))


def test_it_is_read_back_from_what_is_written():
    cluster = mix("32xh100 + 64xa100")
    plain = to_plain(cluster)
    assert set(plain) == {"name", "kinds", "join"}
    assert validated(Mixed, plain) == cluster


def test_batches_are_shared_in_every_way_that_adds_up():
    assert list(shared_batches((2, 3), 12)) == [(3, 2)]
    assert list(shared_batches((1, 1), 6)) == [(2, 4), (3, 3), (4, 2)]
    assert list(shared_batches((2, 3), 5)) == [(1, 1)]
    assert not list(shared_batches((2, 4), 7))
