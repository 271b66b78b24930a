"""Sites: named factors of a machine room, apart from GPUs and software."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.errors import InputError, UnknownNameError
from shardwise.estimate.estimate import estimate
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.load import load_site, resized
from shardwise.inputs.site import USUAL, Site
from shardwise.inputs.strategy import Strategy

LINE = "tp4 pp4 dp4 mbs2 gbs64 seq2048 runtime=megatron-2021"


def seconds(cluster):
    return estimate(load_model("gpt-3-13b"), cluster, Strategy.parse(LINE)).iteration_seconds


def test_a_cluster_stands_at_a_usual_site_unless_it_says_so(tmp_path):
    assert load_cluster("64xa100").site == USUAL == load_site("usual")
    assert load_cluster("64xa100@bloom").site.slowdown == 1.2
    own = tmp_path / "ours.toml"
    own.write_text('gpu = "a100"\ngpus = 64\nsite = "bloom"\n')
    assert load_cluster(str(own)).site == load_site("jean-zay")
    own.write_text('gpu = "a100"\ngpus = 64\n[site]\nname = "cellar"\nfabric = 0.5\n')
    assert load_cluster(str(own)).site == Site(name="cellar", fabric=0.5)


def test_an_unknown_site_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(UnknownNameError, match="bloom"):
        load_cluster("64xa100@blom")
    own = tmp_path / "ours.toml"
    own.write_text('gpu = "a100"\ngpus = 64\n[site]\nslowdown = 0\n')
    with pytest.raises(InputError, match="slowdown"):
        load_cluster(str(own))


def test_each_number_of_a_site_slows_what_it_names():
    cluster = load_cluster("64xa100")
    usual = seconds(cluster)
    slow = {
        name: seconds(replace(cluster, site=replace(USUAL, **{name: value})))
        for name, value in {"slowdown": 1.2, "fabric": 0.2, "host": 0.05}.items()
    }
    assert all(found > usual for found in slow.values())
    assert slow["slowdown"] < 1.2 * usual  # the network and the host are no slower
    assert seconds(replace(cluster, site=replace(USUAL, spread=0.5))) == usual


def test_a_site_of_which_little_is_known_has_a_wider_interval():
    model, strategy, cluster = load_model("gpt-3-13b"), Strategy.parse(LINE), load_cluster("64xa100")
    found = [
        estimate(model, replace(cluster, site=replace(USUAL, spread=spread)), strategy).iteration_seconds_interval
        for spread in (0.0, USUAL.spread, 0.2)
    ]
    assert found[0] == found[1]
    assert found[2][0] < found[1][0] < found[1][1] < found[2][1]


def test_the_name_of_a_cluster_says_its_site_and_is_read_back(tmp_path):
    for text in ("64xh100@bloom", "64xh100@jean-zay"):
        named = load_cluster(text)
        assert named.name == "64xh100@bloom"
        assert load_cluster(named.name) == named
    assert load_cluster("64xh100@usual").name == "64xh100"
    own = tmp_path / "ours.toml"
    for site, name in (('site = "bloom"', "bloom"), ('[site]\nname = "cellar"\nfabric = 0.5', "cellar")):
        own.write_text(f'gpu = "a100"\ngpus = 64\n{site}\n')
        assert load_cluster(str(own)).name == f"ours@{name}"
    own.write_text('gpu = "a100"\ngpus = 64\n[site]\nfabric = 0.5\n')
    assert load_cluster(str(own)).name == "ours@own"


def test_a_site_stays_when_the_number_of_gpus_changes():
    assert resized(load_cluster("64xh100@bloom"), 128) == load_cluster("128xh100@bloom")


def test_an_empty_site_is_refused_and_a_wrong_one_told_all_of_them():
    with pytest.raises(InputError, match="no site stands behind the @ of '64xh100@'; known: usual, bloom"):
        load_cluster("64xh100@")
    for wrong in ("blom", "nowhere-at-all"):
        with pytest.raises(UnknownNameError, match=r"bloom, jean-zay.*mt-nlg, power-limited.*virtual-h200"):
            load_cluster(f"64xh100@{wrong}")
