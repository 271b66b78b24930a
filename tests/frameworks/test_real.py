"""Our output in the hands of the real thing, where it is installed; each test that cannot run says what it needs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace

import export_readers as readers
import pytest
import yaml
from export_plans import DENSE, EXPERTS, TALL, plan_of

from shardwise.frameworks.export import export
from shardwise.inputs.recompute import Recompute
from shardwise.inputs.strategy import Strategy

PIPED = Strategy(tp=2, pp=4, dp=2, global_batch=16, seq=2048)
CASES = {
    "plain": (PIPED, DENSE),
    "uneven": (replace(PIPED, layers=(7, 6, 6, 6)), TALL),
    "interleaved": (replace(PIPED, vpp=2, schedule="interleaved"), DENSE),
    "uneven chunks": (replace(PIPED, vpp=2, schedule="interleaved", layers=(2, 3, 3, 4, 3, 3, 3, 3)), DENSE),
    "experts": (Strategy(tp=2, pp=2, dp=4, ep=4, global_batch=16, seq=2048), EXPERTS),
    "selective": (replace(PIPED, recompute=Recompute.parse("attention-norm+mlp-norm+mlp")), DENSE),
    "experts recomputed": (
        Strategy(dp=8, ep=8, global_batch=16, seq=2048, recompute=Recompute.parse("moe-act+mla-up")),
        EXPERTS,
    ),
    "block": (replace(PIPED, recompute=Recompute.parse("full:2")), DENSE),
    "fsdp": (replace(PIPED, pp=1, dp=8, zero=3, zero_group=4), DENSE),
    "bf16 moments": (replace(PIPED, optimizer="adamw-bf16", offload="optimizer", dtype="mxfp8"), DENSE),
    "context": (replace(PIPED, cp=2, dp=1, cp_kind="all-gather", flash=False, grad_dtype="bf16"), DENSE),
}
cases = pytest.mark.parametrize("name", CASES)


def megatron_flags(name):
    strategy, model = CASES[name]
    made = export(plan_of(strategy, model), "megatron")
    return made, readers.flags_of_yaml(readers.texts(made)["model_config.yaml"])


def needs(module):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"needs {module} to be installed")


@needs("megatron")
@cases
@pytest.mark.filterwarnings("ignore")
def test_megatron_core_takes_the_configuration(name):
    """TransformerConfig checks layers, stages, recompute and experts against each other."""
    import torch
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    made, flags = megatron_flags(name)
    kind = MLATransformerConfig if "multi-latent-attention" in flags else TransformerConfig
    fields = kind.__dataclass_fields__
    values = {}
    for flag, words in flags.items():
        field = RENAMED.get(flag, flag.replace("-", "_"))
        if field in fields:
            values[field] = parsed(words, many=field == "recompute_modules")
    for field in ("moe_layer_freq", "cp_comm_type", "attention_backend", "fp8_format", "window_size", "softmax_type"):
        values.pop(field, None)  # made of them by Megatron-LM's parser, not here
    config = kind(**values, pipeline_dtype=torch.bfloat16, add_bias_linear="disable-bias-linear" not in flags)
    if "pipeline-model-parallel-layout" in flags:
        held = config.pipeline_model_parallel_layout.layout
        turns = range(made.strategy.vpp)
        counts = [sum("decoder" in str(part) for part in rank[turn]) for turn in turns for rank in held]
        assert tuple(counts) == made.strategy.layers


RENAMED = {
    "num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
    "num-experts": "num_moe_experts",
}


def parsed(words, *, many):
    if many:
        return words
    if not words:
        return True
    try:
        return json.loads(words[0])
    except ValueError:
        return words[0]


PARSE = """
import sys, os, typing, typing_extensions, argparse, json, warnings, contextlib
from unittest.mock import MagicMock
warnings.filterwarnings("ignore")
import torch
typing.override = typing_extensions.override
torch.compile = lambda f=None, **_: f or (lambda g: g)
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.get_device_properties = lambda *_: MagicMock(major=9)
for name in ("triton", "triton.language"):
    sys.modules[name] = MagicMock(__spec__=None, __version__="3.0")
from megatron.training.arguments import add_megatron_arguments, validate_args
for line in sys.stdin:
    given = json.loads(line)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_megatron_arguments(parser)
    args = parser.parse_args(given["words"])
    args.rank, args.local_rank, args.world_size = 0, 0, given["world"]
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(given["environment"])
    with contextlib.redirect_stdout(sys.stderr):
        validate_args(args)
    print(json.dumps({k: v for k, v in vars(args).items() if isinstance(v, (int, str, float, type(None)))}))
"""
MEGATRON_LM = os.environ.get("SHARDWISE_MEGATRON_LM", "")


@pytest.mark.skipif(not MEGATRON_LM, reason="set SHARDWISE_MEGATRON_LM to a checkout of Megatron-LM")
def test_megatron_lm_takes_every_flag(tmp_path):
    """The words that the script hands over, parsed and validated by Megatron-LM itself, in a process of its own."""
    lines = []
    for strategy, model in CASES.values():
        files = readers.texts(export(plan_of(strategy, model), "megatron"))
        words = readers.run_script(files, "train.sh", tmp_path, "torchrun")
        words = words[next(at for at, word in enumerate(words, 1) if word.endswith("pretrain_gpt.py")) :]
        given = yaml.safe_load(files["model_config.yaml"]).get("ENV_VARS", {})
        environment = {name: str(value) for name, value in given.items()}
        lines.append(json.dumps({"words": words, "world": strategy.world, "environment": environment}))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PARSE], input="\n".join(lines), capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": MEGATRON_LM}, check=False, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for found, (strategy, _) in zip(answers, CASES.values(), strict=True):
        assert found["data_parallel_size"] == strategy.dp
        assert found["virtual_pipeline_model_parallel_size"] == (strategy.vpp if strategy.vpp > 1 else None)
        assert found["expert_tensor_parallel_size"] == (strategy.etp if strategy.ep > 1 else strategy.tp)
        assert (found["micro_batch_size"], found["global_batch_size"]) == (strategy.micro_batch, strategy.global_batch)


def needs_bridge():
    found = importlib.util.find_spec("megatron") and importlib.util.find_spec("megatron.bridge")
    return pytest.mark.skipif(not found, reason="needs megatron-bridge to be installed")


@needs_bridge()
@cases
@pytest.mark.filterwarnings("ignore")
def test_megatron_bridge_builds_and_validates_the_configuration(name, tmp_path, monkeypatch):
    strategy, model = CASES[name]
    for file in export(plan_of(strategy, model), "megatron-bridge").files:
        (tmp_path / file.name).write_text(file.text)
    monkeypatch.setenv("WORLD_SIZE", str(strategy.world))
    spec = importlib.util.spec_from_file_location("train_bridge", tmp_path / "train_bridge.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.container(["train.train_iters=5", "rng.seed=7"])
    made.validate()
    assert made.data_parallel_size == strategy.dp


@needs("deepspeed")
@pytest.mark.filterwarnings("ignore")
def test_deepspeed_takes_the_configuration(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    for zero in (0, 1, 2, 3):
        strategy = Strategy(dp=1, global_batch=8, micro_batch=2, zero=zero, seq=2048, recompute=Recompute(full=True))
        made = export(plan_of(strategy), "deepspeed")
        config = DeepSpeedConfig(json.loads(made.files[0].text))
        stage = max(zero, 1)  # without ZeRO there is no fp32 sum of bf16 gradients
        assert (config.zero_optimization_stage, config.train_batch_size) == (stage, 8)
        assert (config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps) == (2, 4)


TORCHTITAN = os.environ.get("SHARDWISE_TORCHTITAN", "")


@pytest.mark.skipif(not TORCHTITAN, reason="set SHARDWISE_TORCHTITAN to a checkout of torchtitan's main")
def test_torchtitans_own_classes_take_every_field():
    """`configs.py` holds plain dataclasses; a name that they lack is a TypeError."""
    spec = importlib.util.spec_from_file_location("titan_configs", f"{TORCHTITAN}/torchtitan/config/configs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["titan_configs"] = module
    spec.loader.exec_module(module)
    for strategy, model in CASES.values():
        settings = readers.torchtitan_settings(
            "main", readers.texts(export(plan_of(strategy, model), "torchtitan@main"))
        )
        assert module.ParallelismConfig(**settings["parallelism"]).tensor_parallel_degree == strategy.tp
        assert module.TrainingConfig(**settings["training"]).max_context_length == strategy.seq


@needs("torch")
@pytest.mark.torch
def test_torch_reads_the_cells_of_an_exported_schedule():
    from torch.distributed.pipelining.schedules import _Action

    strategy = replace(PIPED, schedule="zb-h1", zero=0, runtime="zero-bubble")
    text = readers.texts(export(plan_of(strategy), "torchtitan"))["schedule.csv"]
    cells = [[_Action.from_str(cell) for cell in line.split(",")] for line in text.splitlines()]
    assert len(cells) == 4
    assert all(str(action) == cell for line, row in zip(text.splitlines(), cells, strict=True)
               for cell, action in zip(line.split(","), row, strict=True))  # fmt: skip
