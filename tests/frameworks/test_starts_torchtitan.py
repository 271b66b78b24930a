"""Folders for torchtitan 0.2 start unedited and train the planned model, on two CPU processes.

torchtitan knows no CPU: what it asks of its device, and gloo and the CPU lack, is stood in for from outside the folder.
It is not among the tools of the tests, as it imports Triton, which takes a gigabyte: where it is missing, the tests
that need it are skipped and say so.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from shardwise.errors import InfeasibleError
from shardwise.frameworks.export import export
from shardwise.frameworks.folder import write_export
from shardwise.frameworks.load import load_cluster, load_model
from shardwise.frameworks.torch.write import MODEL
from shardwise.frameworks.torchtitan.families import Flavor, flavor
from shardwise.inputs.model import Mla, Model, Moe, RopeScaling
from shardwise.inputs.parameters import count
from shardwise.inputs.strategy import Strategy
from shardwise.plan.plan import Plan

MISSING = [name for name in ("torchtitan", "triton", "datasets") if importlib.util.find_spec(name) is None]
VERSION = "" if MISSING else importlib.metadata.version("torchtitan")


def needs(version):
    told = f"{', '.join(MISSING)} not installed" if MISSING else f"torchtitan {VERSION} is installed"
    return pytest.mark.skipif(not VERSION.startswith(version), reason=f"{told}: torchtitan {version} is not started")


real = needs("0.2")

SIZES = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_size": 16, "ffn": 160, "vocab": 320}
LLAMA = Model(name="llama", **SIZES, tied=True, rotary_base=5e5,
              rope_scaling=RopeScaling(kind="llama3", factor=8.0, original=64))  # fmt: skip
QWEN2 = Model(name="qwen2", **SIZES, qkv_bias=True, rotary_base=1e6, norm_eps=1e-6)
QWEN3 = Model(name="qwen3", **{**SIZES, "head_size": 32}, tied=True, qk_norm="head", rotary_base=3e6, norm_eps=1e-6)
EXPERTS = Model(name="experts", **SIZES, qk_norm="head", rotary_base=1e6,
                moe=Moe(experts=8, top_k=2, expert_ffn=32, shared_ffn=64))  # fmt: skip
LATENT = Model(
    name="latent", **{**SIZES, "kv_heads": 4, "head_size": 24},
    mla=Mla(kv_rank=32, nope_size=16, rope_size=8, value_size=16, q_rank=24),
    moe=Moe(experts=8, top_k=2, expert_ffn=32, shared_ffn=32, first_dense=1, score="sigmoid", scale=2.5,
            balance_bias=True, groups=2, top_groups=1),
)  # fmt: skip
MODELS = (LLAMA, QWEN2, QWEN3, EXPERTS, LATENT)

DEVICE = """
import types
import torch
import torch._utils
from torch.distributed.fsdp import FSDPModule

torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.current_device = lambda: 0
torch.cpu.get_device_name = lambda *_: "CPU"
torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 34)
torch.cpu.memory_stats = lambda *_: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda *_: None
histc, divide = torch.histc, FSDPModule.set_gradient_divide_factor
torch.histc = lambda x, *rest, **more: histc(x.float(), *rest, **more).to(x.dtype)  # integers are CUDA's alone

def summed(self, factor):  # gloo scales nothing on its way
    divide(self, factor)
    self.set_force_sum_reduction_for_comms(True)

FSDPModule.set_gradient_divide_factor = summed
"""


def folder_of(model: Model, words: str, folder: Path, to: str = "torchtitan@0.2") -> Path:
    strategy = Strategy.parse(words)
    plan = Plan(model=model, cluster=load_cluster(f"{strategy.world}xh100"), strategy=strategy)
    write_export(export(plan, to), folder)
    return folder


def started(folder: Path, tmp_path: Path, port: int) -> str:
    """What the script says, started from elsewhere for five steps."""
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "sitecustomize.py").write_text(DEVICE)
    found = os.pathsep.join([str(tmp_path / "device"), *(path for path in sys.path if path)])
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    more = {"STEPS": "5", "MASTER_PORT": str(port), "PYTHONPATH": found, "PATH": tools, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(folder / "torchtitan.sh")], env={**os.environ, **more}, cwd=tmp_path, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


@real
@pytest.mark.parametrize(
    ("model", "words", "port"),
    [
        (LLAMA, "dp2 zero3 mbs1 gbs4 seq128", 6411),
        (QWEN2, "pp2 zero0 pure mbs1 gbs4 seq128", 6412),
        (EXPERTS, "dp2 zero2 mbs1 gbs2 seq128 recompute=full", 6413),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_it_trains_the_planned_model(model, words, port, tmp_path):
    log = started(folder_of(model, words, tmp_path / "out"), tmp_path, port)
    steps = [float(loss) for loss in re.findall(r"step: +\d+ +loss: +([\d.]+)", log)]
    assert len(steps) == 5
    assert 5.0 < steps[0] < 10.0  # tokens at random of 320
    assert re.findall(r"size: ([\d,]+) total parameters", log) == [f"{count(model).total:,}"]


@real
def test_every_family_has_the_planned_parameters(tmp_path):
    """Built by torchtitan itself on no device."""
    names = []
    for model in MODELS:
        made = folder_of(model, "mbs1 gbs2 seq128", tmp_path / model.name)
        names.append(f"{model.name}_model")
        (made / "shardwise_model.py").rename(tmp_path / f"{names[-1]}.py")
    code = f"""
import importlib, torch
from torchtitan.protocols import train_spec
for name in {names}:
    train_spec._extra_train_specs.clear()
    importlib.import_module(name)
    (spec,) = train_spec._extra_train_specs.values()
    (args,) = spec.model_args.values()
    args.moe_impl = "standard"
    with torch.device("meta"):
        print(name, sum(one.numel() for one in spec.model_cls(args).parameters()))
"""
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = dict(line.split() for line in done.stdout.splitlines() if line.count(" ") == 1)
    assert {name: int(told[name]) for name in names} == {f"{one.name}_model": count(one).total for one in MODELS}


SAME = """
import importlib, importlib.util, json, re, sys
import torch
from torchtitan.protocols import train_spec

def plain(path):
    sys.path.append(path.rsplit("/", 1)[0])
    spec = importlib.util.spec_from_file_location("plain", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

NAMES = [
    ("embedding", "tok_embeddings"), ("head", "output"), ("norm1", "attention_norm"), ("norm2", "ffn_norm"),
    ("attention.q_down", "attention.wq_a"), ("attention.kv_down", "attention.wkv_a"),
    ("attention.kv_up", "attention.wkv_b"), ("attention.out", "attention.wo"), ("mlp.router", "moe.router.gate"),
    ("mlp.shared.gate", "moe.shared_experts.w1"), ("mlp.shared.up", "moe.shared_experts.w3"),
    ("mlp.shared.down", "moe.shared_experts.w2"), ("mlp.gate", "feed_forward.w1"), ("mlp.up.", "feed_forward.w3."),
    ("mlp.down.", "feed_forward.w2."),
]

def theirs(weights, m, family):
    for name, value in weights.items():
        if name.endswith("mlp.up"):
            gate, up = value.chunk(2, dim=1)
            yield name.replace("mlp.up", "moe.experts.w1"), gate
            yield name.replace("mlp.up", "moe.experts.w3"), up
            continue
        own = re.search(r"attention\\.([qkv])\\.", name)
        if own and family == "llama3" and own[1] != "v":  # neighbours turn there, halves here
            value = value.view(-1, 2, m["head_size"] // 2, *value.shape[1:]).transpose(1, 2).reshape(value.shape)
        wide = "_b" if m["mla"] and m["mla"]["q_rank"] else ""
        name = re.sub(r"attention\\.([qkv])\\.", lambda found: f"attention.w{found[1]}{wide}.", name)
        name = re.sub(r"mlp\\.down$", "moe.experts.w2", name)
        for mine, other in NAMES:
            name = name.replace(mine, other)
        yield name, value

for name, m in json.load(open(sys.argv[1])).items():
    train_spec._extra_train_specs.clear()
    importlib.import_module(name)
    ((family, spec),) = train_spec._extra_train_specs.items()
    (args,) = spec.model_args.values()
    args.moe_impl, args.max_seq_len = "standard", 128
    net = spec.model_cls(args)
    with torch.no_grad():
        net.init_weights(torch.device("cpu"))
    chunk = plain(sys.argv[2]).build(m, 0, m["layers"], "cpu", torch.float32, 1)
    torch.manual_seed(3)
    with torch.no_grad():  # norms and biases that do something
        for parameter in chunk.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    kept = dict(theirs(chunk.state_dict(), m, family))
    missing, more = net.load_state_dict(kept, strict=False)
    assert not more and all("expert_bias" in one for one in missing), (missing, more)
    ids = torch.randint(m["vocab"], (2, 128))
    chunk.eval(), net.eval()
    with torch.no_grad():
        ours, found = chunk(ids), net(ids)
    print(name, float((ours - found).abs().max() / ours.abs().max()))
"""


@real
def test_every_family_computes_what_the_planned_model_does(tmp_path):
    """Their logits are those of our plain decoder with the same weights: rotary base and scaling, epsilon, router."""
    tables = {}
    for model in MODELS:
        made = folder_of(model, "mbs1 gbs2 seq128", tmp_path / model.name)
        (made / "shardwise_model.py").rename(tmp_path / f"{model.name}_model.py")
        tables[f"{model.name}_model"] = {**asdict(model), "flash": True}
    (tmp_path / "models.json").write_text(json.dumps(tables))
    (tmp_path / "sitecustomize.py").write_text(DEVICE)
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, "-c", SAME, str(tmp_path / "models.json"), str(MODEL)],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    apart = dict(line.split() for line in done.stdout.splitlines() if line.count(" ") == 1)
    assert set(apart) == set(tables)
    assert all(float(share) < 1e-4 for share in apart.values()), apart


@needs("0.3")
@pytest.mark.parametrize("model", [LLAMA, QWEN3, EXPERTS, LATENT], ids=lambda model: model.name)
def test_every_family_of_later_versions_has_the_planned_parameters(model, tmp_path):
    made = folder_of(model, "mbs1 gbs2 seq128", tmp_path, "torchtitan@0.3")
    code = """
import torch
from torchtitan.config import ConfigManager
words = "--module shardwise_config --config shardwise --training.steps 5 --debug.seed 7"
config = ConfigManager().parse_args(words.split())
with torch.device("meta"):
    net = config.model_spec.model.build()
norms = {one.eps for one in net.modules() if isinstance(one, torch.nn.RMSNorm)}
print(sum(one.numel() for one in net.parameters()), config.training.steps, *norms)
"""
    paths = os.pathsep.join([str(made), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-3:] == [str(count(model).total), "5", str(model.norm_eps)]


def test_biases_are_in_no_family_of_later_versions(tmp_path):
    with pytest.raises(InfeasibleError, match=r"model\.qkv_bias: .* use 0\.2"):
        folder_of(QWEN2, "mbs1 gbs2 seq128", tmp_path, "torchtitan@0.3")


def test_a_family_says_every_fact():
    found = flavor(LATENT, 128)
    assert isinstance(found, Flavor)
    assert found.family == "deepseek_v3"
    assert found.args["moe_args"] == {
        "num_experts": 8, "num_shared_experts": 1, "top_k": 2, "score_func": "sigmoid", "route_norm": True,
        "route_scale": 2.5, "gate_bias": False, "score_before_experts": False, "num_expert_groups": 2,
        "num_limited_groups": 1, "load_balance_coeff": 1e-3,
    }  # fmt: skip
    llama = flavor(LLAMA, 128)
    assert isinstance(llama, Flavor)
    assert (llama.family, llama.args["rope_theta"], llama.tied) == ("llama3", 5e5, True)
    assert llama.args["rope_scaling_args"]["scaling_factor"] == 8.0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gemma-2-9b", r"model\.activation: geglu \(swiglu alone\): none of llama3, qwen3 and deepseek_v3 has it"),
        ("gpt-oss-20b", r"model\.sinks: sinks: none of"),
        ("deepseek-moe-16b", r"model\.moe: none of .* is deepseek-moe-16b: llama3 has no experts; qwen3 has no dense"),
        ("olmo-2-7b", r"model\.qk_norm: none of torchtitan's families is olmo-2-7b"),
    ],
)  # fmt: skip
def test_what_no_family_is_exactly_is_refused(name, told):
    """A mixture of experts was written as a dense llama3."""
    strategy = Strategy.parse("dp8 zero1 mbs1 gbs8 seq4096")
    plan = Plan(model=load_model(name), cluster=load_cluster("8xh200"), strategy=strategy)
    with pytest.raises(InfeasibleError, match=told):
        export(plan, "torchtitan@0.2")


def test_tied_weights_are_not_cut_into_stages():
    with pytest.raises(InfeasibleError, match=r"model\.tied: with pp 2 the embedding and the output layer are on two"):
        export(
            Plan(model=LLAMA, cluster=load_cluster("2xh100"), strategy=Strategy.parse("pp2 gbs4 seq128")), "torchtitan"
        )


def test_the_script_trains_for_the_steps_that_are_asked_for(tmp_path):
    made = folder_of(EXPERTS, "dp2 zero3 mbs1 gbs4 seq128", tmp_path)
    script, config = (made / "torchtitan.sh").read_text(), (made / "torchtitan.toml").read_text()
    assert "--training.steps $STEPS" in script
    assert 'export PYTHONPATH="$PWD' in script
    assert 'custom_import = "shardwise_model"' in config
    assert "log_freq = 1" in config
