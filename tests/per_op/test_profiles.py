"""Profiles are read whole or refused with all their faults."""

from __future__ import annotations

import io
import tarfile
import zipfile

import numpy as np
import pytest

from shardwise.errors import InputError, UnknownNameError
from shardwise.frameworks.aceso.names import full_facts
from shardwise.frameworks.aceso.profile_texts import MOST_BYTES
from shardwise.frameworks.aceso.read_profile import read_profile
from shardwise.frameworks.aceso.write_profile import texts, write_profile
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.inputs.load import load_runtime
from shardwise.per_op.advice import attention_kernel, warnings
from shardwise.per_op.chain import chain_of, own_chain
from shardwise.per_op.profiles.analytic import make_profile
from shardwise.per_op.profiles.table import COLUMNS, MB

from .conftest import random_profile


@pytest.fixture
def folder(tmp_path):
    write_profile(random_profile(5, tps=(1, 2, 4)), tmp_path / "set")
    return tmp_path / "set"


def refused(path, name=""):
    with pytest.raises(InputError) as caught:
        read_profile(path, name)
    return str(caught.value)


def test_a_profile_written_reads_back(folder):
    read, made = read_profile(folder), random_profile(5, tps=(1, 2, 4))
    np.testing.assert_allclose(read.values, made.values, rtol=1e-6, atol=1e-12)
    assert (read.ops, read.tps, read.micro_batches, read.layer_ops) == (
        made.ops,
        made.tps,
        made.micro_batches,
        made.layer_ops,
    )
    assert read.collectives.keys() == made.collectives.keys()
    assert read.identity == read_profile(folder).identity


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_archives_are_read_like_folders(folder, tmp_path, kind):
    path = tmp_path / f"set.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for item in folder.iterdir():
                archive.write(item, f"deep/{item.name}")
    else:
        with tarfile.open(path, "w:gz") as archive:
            archive.add(folder, "deep")
    assert read_profile(path).identity == read_profile(folder).identity


def test_all_faults_are_told_at_once(folder):
    (folder / "gpt_small_mbs2_tp2_algo0.csv").unlink()
    (folder / "prim_gpt_small_all_to_all_2gpus.csv").unlink()
    (folder / "p2p_intra_node.csv").unlink()
    letters = folder / "gpt_small_mbs1_tp1_algo0.csv"
    letters.write_text(letters.read_text().replace("encoder-embedding,", "encoder-embedding,1o", 1))
    cut = folder / "gpt_small_mbs1_tp2_algo1.csv"
    cut.write_text(cut.read_text()[:-40])
    said = refused(folder)
    for words in (
        "gpt_small_mbs2_tp2_algo0.csv: is missing",
        "prim_gpt_small_all_to_all_2gpus.csv: is missing",
        "p2p_intra_node.csv: is missing",
        "gpt_small_mbs1_tp1_algo0.csv: line 2 (encoder-embedding): forward-compute is '1o",
        "gpt_small_mbs1_tp2_algo1.csv: line",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("cell", "said"),
    [("nan", "'nan'"), ("-3", "negative"), ("1e300", "absurd"), ("inf", "'inf'")],
)
def test_absurd_times_are_refused(folder, cell, said):
    path = folder / "gpt_small_mbs1_tp1_algo0.csv"
    lines = path.read_text().splitlines()
    cells = lines[1].split(",")
    path.write_text("\n".join([lines[0], ",".join([cells[0], cell, *cells[2:]]), *lines[2:]]))
    assert said in refused(folder)


def test_negative_sizes_are_noted(folder):
    path = folder / "gpt_small_mbs1_tp1_algo0.csv"
    lines = path.read_text().splitlines()
    cells = lines[1].split(",")
    path.write_text("\n".join([lines[0], ",".join([*cells[:4], "-0.004", *cells[5:]]), *lines[2:]]))
    read = read_profile(folder)
    assert read.values[COLUMNS.index("output"), 0, 0, 0, 0] == pytest.approx(-0.004 * MB)
    assert any("negative size" in note for note in read.notes)


def test_folders_without_profiles_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no CSV files" in refused(tmp_path / "empty")
    assert "no such folder" in refused(tmp_path / "nowhere")
    (tmp_path / "text").write_text("hello")
    assert "neither a folder nor" in refused(tmp_path / "text")
    (tmp_path / "empty" / "other.csv").write_text("a,b\n")
    assert "no operator files" in refused(tmp_path / "empty")


def test_a_zip_bomb_is_refused_before_it_unpacks(tmp_path):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gpt_small_mbs1_tp1_algo0.csv", b"0" * (MOST_BYTES + 1))
    assert path.stat().st_size < 10**6
    assert "unpacks to" in refused(path)


def test_an_archive_that_lies_about_its_size_is_refused(tmp_path):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gpt_small_mbs1_tp1_algo0.csv", b"0" * 100)
    path = tmp_path / "cut.zip"
    path.write_bytes(data.getvalue()[:-10])
    assert "broken" in refused(path) or "neither" in refused(path)


def test_one_of_several_models_must_be_named(folder):
    for name, text in texts(random_profile(6)).items():
        (folder / name.replace("gpt_small", "gpt_other")).write_text(text)
    assert "holds gpt_other, gpt_small; say which one" in refused(folder)
    assert read_profile(folder, "gpt_other").name == "gpt_other"
    with pytest.raises(UnknownNameError, match="gpt_small"):
        read_profile(folder, "gpt_smal")


def test_unknown_layers_are_asked_for():
    unknown = random_profile(1, ops=("a", "b", "c", "d"), layer=(1, 2))
    assert len(chain_of(unknown, 3).rows) == 2 + 3 * 2
    from dataclasses import replace

    with pytest.raises(InputError, match="--layer-ops"):
        chain_of(replace(unknown, layer_ops=None), 3)
    with pytest.raises(InputError, match="no operator"):
        chain_of(unknown, 3, ("b", "x"))


def test_folded_ranges_hold_the_same_operators():
    chain = chain_of(random_profile(1), 5)
    count = len(chain.rows)
    for first in range(count):
        for end in range(first + 1, count + 1):
            a, b = chain.fold(first, end)
            assert chain.rows[a:b] == chain.rows[first:end]


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite"])
def test_profiles_are_made_from_models(name):
    made = make_profile(load_model(name), load_cluster("16xh100"), load_runtime("megatron"), seq=2048)
    chain = own_chain(made)
    profile = made
    assert len(set(profile.ops)) == len(profile.ops)
    assert (profile.column("forward") > 0).all()
    assert (profile.column("backward") >= 0).all()
    # twice the samples take longer and keep more; tp takes weights away
    assert (profile.column("forward")[1] >= profile.column("forward")[0]).all()
    total = profile.column("weights")[0, :, 0].sum(axis=-1)
    assert (np.diff(total) < 0).all()
    assert sum(name.startswith("start:") for name in chain.names) == load_model(name).layers + load_model(name).mtp


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ('[[runs]]\nlayers = [["nothing", "d"]]\nrepeats = 2', "runs: 'nothing' is no operator"),
        ("[[runs]]\nrepeats = 2", "runs: 'layers' is no operator of gpt_small, or a missing key"),
        ("runs = 3", "runs must be tables such as"),
        ("[[runs]]\nlayers = []\nrepeats = 2", "runs must be tables such as"),
        ('[[runs]]\nlayers = [["FIRST"]]\nrepeats = 2', "runs must be tables such as"),
        ('[[runs]]\nlayers = [["FIRST", "LAST"]]\nrepeats = 1000000', "runs must be tables such as"),
        ('[[runs]]\nlayers = [["LAST", "FIRST"]]\nrepeats = 2', "runs must be tables such as"),
    ],
)
def test_runs_that_cannot_be(folder, runs, said):
    ops = read_profile(folder).ops
    (folder / "profile.toml").write_text(runs.replace("FIRST", ops[0]).replace("LAST", ops[-1]))
    assert said in refused(folder)


def test_a_models_name_does_not_lead_out_of_the_folder(tmp_path):
    from dataclasses import replace

    write_profile(replace(random_profile(5, tps=(1, 2)), name="../my model/7B"), tmp_path / "set")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    assert read_profile(tmp_path / "set").name == "..-my-model-7B"


def test_the_seed_profile_is_told_from_one_with_fused_attention(seed_profile):
    assert attention_kernel(seed_profile, full_facts(seed_profile)) == "plain"
    from dataclasses import replace

    values = seed_profile.values.copy()
    values[5, ..., 1] = 30 * MB
    fused = replace(seed_profile, values=values)
    assert attention_kernel(fused, full_facts(fused)) == "flash"
    assert "out of memory" in " ".join(warnings(fused, full_facts(fused), {"attention": "plain"}))
    assert not list(warnings(seed_profile, full_facts(seed_profile), {"attention": "plain"}))


def test_t5_has_two_runs_of_layers_and_is_planned():
    """An encoder and a decoder: both runs are folded, and no operator is lost."""
    from shardwise.per_op.search import search

    from .conftest import question

    ops = ("encoder-embedding", "enc-1st-layernorm", "enc-attention-qkv", "enc-post-MLP-dropout", "decoder-embedding",
           "dec-1st-layernorm", "dec-attention-qkv-1", "dec-post-MLP-dropout", "t5-post-process")  # fmt: skip
    found = random_profile(11, ops=ops)
    from dataclasses import replace

    found = replace(found, layer_ops=None)
    chain = chain_of(found, 4)
    assert len(chain.rows) == 3 + 2 * 3 * 4
    assert [block.repeats for block in chain.blocks] == [4, 4]
    asked = question(found, layers=4, gpus=4, node=4, global_batch=16)
    answer = search(asked)
    assert answer.proven
    assert sum(answer.plan.sizes) == len(chain.rows)


def zeros(folder):
    path = folder / "gpt_small_mbs1_tp1_algo0.csv"
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *(",".join([row.split(",")[0], *["0"] * 8]) for row in rows)]))


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (zeros, "all its times are 0"),
        (lambda f: (f / "p2p_intra_node.csv").write_text("8,4\n1,2\n"), "its sizes must rise: 8, 4"),
        (lambda f: (f / "p2p_intra_node.csv").write_text("1,2\n1\n"), "two lines of as many numbers"),
        (lambda f: (f / "p2p_intra_node.csv").write_text("1,2\n1,-2\n"), "above 0"),
        (lambda f: (f / "gpt_small_mbs1_tp1_algo0.csv").write_bytes(b"\xff\xfe\x00" * 50), "its first line must be"),
        (lambda f: (f / "gpt_small_mbs1_tp1_algo0.csv").write_text(""), "is empty"),
        (lambda f: (f / "gpt_small_mbs0_tp1_algo0.csv").write_text("x"), "of 0 cannot be"),
        (lambda f: (f / "prim_gpt_small_all_gather_2gpus.csv").write_text("a,b\n1,nan\n"), "'1,nan'"),
        (lambda f: (f / "profile.toml").write_text("[[["), "not valid TOML"),
        (lambda f: (f / "profile.toml").write_text("layer_ops = 3"), "must name two operators"),
        (lambda f: (f / "pipe.csv").symlink_to("/dev/zero"), "is a pipe or a device"),
        (lambda f: (f / "gone.csv").symlink_to("/nowhere/at/all"), "there is no such file"),
    ],
)
def test_ten_more_ways_to_break_a_set(folder, break_it, said):
    break_it(folder)
    assert said in refused(folder)


def test_an_archive_with_two_files_of_one_name_is_refused(folder, tmp_path):
    path = tmp_path / "twice.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for item in folder.iterdir():
            archive.write(item, f"one/{item.name}")
        archive.writestr("two/p2p_intra_node.csv", "1,2\n3,4\n")
    assert "twice" in refused(path)
