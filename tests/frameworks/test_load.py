from __future__ import annotations

import subprocess
import sys

import pytest

from shardwise.errors import FileError, InputError, UnknownNameError
from shardwise.frameworks.load import load_cluster, load_model, load_strategy, read_cluster, read_strategy
from shardwise.inputs import files
from shardwise.inputs.load import load_runtime

MODEL = """
layers = 4
hidden = 64
heads = 8
kv_heads = 2
head_size = 8
ffn = 128
vocab = 1000
"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWISE_HOME", str(tmp_path / "home"))


def _write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def _message(load, *arguments):
    with pytest.raises(InputError) as caught:
        load(*arguments)
    return str(caught.value)


def test_cluster_texts():
    cluster = load_cluster("64xh100")
    assert (cluster.name, cluster.gpus, cluster.node_size) == ("64xh100", 64, 8)
    assert [level.size for level in cluster.levels] == [8, 64]
    assert load_cluster("h100").gpus == 8
    assert load_cluster("gb200").gpus == 72
    assert load_cluster(" 4 X A100-40GB ").levels[0].size == 8
    assert load_cluster("12xh100").levels[-1].size == 16
    assert "at least 1" in _message(load_cluster, "0xh100")
    assert "h100" in _message(load_cluster, "64xh1000")


def test_unknown_names_offer_the_nearest():
    with pytest.raises(UnknownNameError, match="llama-3-8b"):
        load_model("llama-3-9b")
    with pytest.raises(UnknownNameError, match="runtime"):
        load_runtime("megatronn")


def test_a_model_in_three_forms(tmp_path):
    toml = load_model(_write(tmp_path, "m.toml", MODEL))
    yaml = load_model(_write(tmp_path, "m.yaml", MODEL.replace(" =", ":")))
    json = load_model(
        _write(
            tmp_path, "m.json", '{"layers":4,"hidden":64,"heads":8,"kv_heads":2,"head_size":8,"ffn":128,"vocab":1000}'
        )
    )
    assert toml == yaml == json
    assert toml.name == "m"


def test_a_model_based_on_another(tmp_path):
    model = load_model(_write(tmp_path, "short.toml", 'base = "llama-3-8b"\nlayers = 4\n'))
    assert (model.name, model.layers, model.hidden) == ("short", 4, 4096)


def test_every_fault_of_a_model_at_once(tmp_path):
    text = MODEL.replace("layers = 4", 'layers = "4"').replace("hidden", "hiden") + "[moe]\nexperts = true\ntop = 2\n"
    message = _message(load_model, _write(tmp_path, "m.toml", text))
    for words in (
        "model.layers",
        "'4'",
        "hiden",
        "did you mean hidden",
        "moe.experts",
        "true",
        "moe.top_k",
        "moe.expert_ffn",
    ):
        assert words in message


def test_fields_of_a_model_must_agree(tmp_path):
    text = (
        MODEL.replace("kv_heads = 2", "kv_heads = 3")
        + 'position = "learned"\n[moe]\nexperts = 2\ntop_k = 3\nexpert_ffn = 8\n'
    )
    message = _message(load_model, _write(tmp_path, "m.toml", text))
    assert all(word in message for word in ("kv_heads", "3", "max_positions", "top_k"))


def test_a_strategy_file(tmp_path):
    loaded = read_strategy(_write(tmp_path, "s.toml", 'tp = 8\npp = 4\nrecompute = "full:4"\nlayers = [8, 8, 8, 8]\n'))
    assert loaded.value.layers == (8, 8, 8, 8)
    assert str(loaded.value.recompute) == "full:4"
    assert loaded.given == {"tp", "pp", "recompute", "layers"}
    table = load_strategy(_write(tmp_path, "t.yaml", "strategy:\n  tp: 2\n  lora: {rank: 16}\n"))
    assert (table.tp, table.lora.rank) == (2, 16)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tp: true", ["strategy.tp", "truth value true"]),
        ('tp: "2"', ["strategy.tp", "write 2 without quotes"]),
        ("tp: 2.5", ["strategy.tp", "2.5"]),
        ("tp: 0", ["strategy.tp", "0 is too small"]),
        ("tp: -8", ["strategy.tp", "-8"]),
        ("tp: null", ["strategy.tp", "null"]),
        ("tpp: 8", ["strategy.tpp", "did you mean"]),
        ("recompute: fulll", ["strategy.recompute", "fulll", "core-attention"]),
        ("recompute: 3", ["strategy.recompute"]),
        ("dtype: fp4", ["strategy.dtype", "'fp4'", "nvfp4"]),
        ("zero: 5", ["strategy.zero", "5"]),
        ("tp: 8\ntp: 4", ["'tp' twice"]),
        ("straggler: .nan", ["straggler", "nan"]),
        ("straggler: .inf", ["straggler", "inf"]),
        ("straggler: 0", ["straggler", "0 is too small"]),
        ("layers: 4", ["strategy.layers", "list"]),
        ("- 1\n- 2", ["a list at the top"]),
        ("", ["nothing at the top"]),
        ("tp: [", ["not valid YAML"]),
        ("tp: !!python/object/apply:os.system ['true']", ["not valid YAML"]),
    ],
)
def test_bad_strategy_files(tmp_path, text, words):
    message = _message(load_strategy, _write(tmp_path, "s.yaml", text))
    assert all(word in message for word in words), message


def test_bad_json(tmp_path):
    comment = '{\n  "tp": 8, // tensor parallel\n  "pp": 2\n}'
    assert "JSON has no comments" in _message(load_strategy, _write(tmp_path, "c.json", comment))
    assert "twice" in _message(load_strategy, _write(tmp_path, "d.json", '{"tp": 1, "tp": 2}'))
    assert "NaN" in _message(load_strategy, _write(tmp_path, "n.json", '{"straggler": NaN}'))
    assert "inf" in _message(load_strategy, _write(tmp_path, "i.json", '{"straggler": 1e999}'))
    assert "nested" in _message(
        load_strategy, _write(tmp_path, "r.json", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    )
    assert "line 1" in _message(load_strategy, _write(tmp_path, "b.json", '{"tp": }'))


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    assert "no such file" in _message(load_strategy, tmp_path / "none.toml")
    assert "no such file" in _message(load_model, "none/of/these.json")
    assert "folder" in _message(load_strategy, tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    assert "UTF-8" in _message(load_model, tmp_path / "latin.toml")
    monkeypatch.setattr(files, "SIZE_LIMIT", 10)
    with pytest.raises(FileError, match="files of up to"):
        load_strategy(_write(tmp_path, "big.toml", "tp = 8\npp = 2\n"))


def test_references_without_end_are_refused(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join(f'*a{i - 1}' for _ in range(9))}]" for i in range(1, 10)]
    assert "more than" in _message(load_strategy, _write(tmp_path, "laughs.yaml", "\n".join(lines)))


CLUSTER = """
gpus = 1024
gpu = "h100"
levels = [
  { name = "nvlink", size = 8, bandwidth = "450GB/s", latency = "3us" },
  { name = "rail", size = 256, bandwidth = "400Gb/s", latency = "6us" },
  { name = "spine", bandwidth = "50GB/s", latency = "9us", oversubscription = 2.0 },
]
"""


def test_a_cluster_file(tmp_path):
    cluster = load_cluster(_write(tmp_path, "big.toml", CLUSTER))
    assert [level.size for level in cluster.levels] == [8, 256, 1024]
    assert cluster.levels[1].bandwidth == 50e9
    assert cluster.levels[2].oversubscription == 2.0
    assert cluster.gpu.name == "h100"
    assert load_cluster(f"2048x{tmp_path / 'big.toml'}").levels[-1].size == 2048
    usual = load_cluster(_write(tmp_path, "usual.toml", 'gpu = "a100"\ngpus = 16\n'))
    assert [level.name for level in usual.levels] == ["nvlink", "infiniband"]
    changed = _write(tmp_path, "changed.toml", 'gpus = 8\n[gpu]\nbase = "h100"\nmemory = "94GiB"\nname = "mine"\n')
    assert (load_cluster(changed).gpu.name, load_cluster(changed).gpu.memory) == ("mine", 94 * 2**30)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("450GB/s", "450GB", ["levels.0.bandwidth", "'450GB' is not a rate"]),
        ("3us", "3GB", ["levels.0.latency", "not a time"]),
        ("size = 256", "size = 100", ["levels.1.size", "100", "multiple of the 8"]),
        ('bandwidth = "50GB/s"', 'size = 512, bandwidth = "50GB/s"', ["512 of 1024"]),
        ("gpus = 1024", "", ["cluster.gpus", "missing"]),
        ("gpus = 1024", "gpus = 0", ["cluster.gpus", "0 is too small"]),
        ('"h100"', '"h1000"', ["h100"]),
        ("oversubscription", "over_subscription", ["did you mean oversubscription"]),
        ('"h100"', '{ base = "h100", flops = { fp8 = "1PFLOPS" } }', ["cluster.gpu.flops", "fp32"]),
        ('"h100"', '{ base = "h100", memory = "80GB/s" }', ["cluster.gpu.memory", "80GB/s"]),
    ],
)
def test_bad_clusters(tmp_path, old, new, words):
    message = _message(load_cluster, _write(tmp_path, "c.toml", CLUSTER.replace(old, new, 1)))
    assert all(word in message for word in words), message


def test_a_gpu_of_the_users_own(tmp_path):
    folder = tmp_path / "home" / "gpus"
    folder.mkdir(parents=True)
    _write(folder, "mine.toml", '[gpus."my-h200"]\nbase = "h200"\nbandwidth = "4.3TB/s"\ncalibration = "my-h200"\n')
    cluster = load_cluster("64xmy-h200")
    assert (cluster.gpu.name, cluster.gpu.bandwidth, cluster.gpu.calibration) == ("my-h200", 4.3e12, "my-h200")
    assert cluster.gpu.sms == 132


def test_a_wrong_gpu_of_the_users_own(tmp_path):
    folder = tmp_path / "home" / "gpus"
    folder.mkdir(parents=True)
    _write(
        folder, "mine.toml", '[gpus."odd"]\nbase = "h200"\nmemory = "4.3TB/s"\nsmss = 3\n[gpus."bare"]\nmemory = 3\n'
    )
    message = _message(load_cluster, "8xodd")
    assert all(word in message for word in ("gpu.memory", "smss", "sms"))
    assert "levels" in _message(load_cluster, "8xbare")


def test_a_runtime_file(tmp_path):
    runtime = load_runtime(str(_write(tmp_path, "mine.toml", 'title = "Mine"\n[can]\nzero = [0, 1, 2]\n')))
    assert (runtime.name, runtime.can.zero) == ("mine", (0, 1, 2))
    message = _message(load_runtime, str(_write(tmp_path, "bad.toml", "[can]\nzeros = [0]\n")))
    assert "runtime.can.zeros" in message
    assert "did you mean zero" in message


def test_read_cluster_gives_notes():
    assert read_cluster("h100").notes == ()


def test_catalog_names_need_no_pydantic():
    code = (
        "import sys; from shardwise import load_model, load_cluster;"
        "load_model('llama-3-8b'); load_cluster('64xh100');"
        "sys.exit('pydantic' in sys.modules or 'yaml' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
