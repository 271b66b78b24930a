"""Readers of the exported files that share nothing with the exporters: keys and rules are written out again here.

Each gives the table of `export_plans.said`, as far as its format can say it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tomllib
import types

import yaml


def texts(export):
    return {file.name: file.text for file in export.files}


def run_script(files, name, folder, program):
    """What a script would start, beside the other files: the words that it hands to `program`."""
    for other, text in files.items():
        (folder / other).write_text(text)
    for wanted in ("pretrain_gpt.py", "llm/auto_parallel/llama/run_pretrain_auto.py"):
        (folder / wanted).parent.mkdir(parents=True, exist_ok=True)  # the frameworks, as far as their scripts look
        (folder / wanted).touch()
    stand_in = folder / program
    stand_in.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eu", folder / name],
        capture_output=True,
        text=True,
        env={"PATH": path, "MEGATRON": str(folder), "PADDLENLP": str(folder), "TOKENIZER": str(folder)},
        check=True,
    )
    return done.stdout.splitlines()


def flags_of_words(words):
    found, name = {}, None
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            found[name] = []
        elif name:
            found[name].append(word)
    return found


def flags_of_yaml(text):
    given = yaml.safe_load(text)["MODEL_ARGS"]
    return {flag[2:]: [] if value is True else str(value).split() for flag, value in given.items()}


def megatron(flags, gpus):
    def number(name, default=1):
        return int(flags[name][0]) if name in flags else default

    tp, pp, cp = (number(f"{name}-parallel-size") for name in ("tensor-model", "pipeline-model", "context"))
    dp = gpus // (tp * pp * cp)
    pieces = unroll(flags["pipeline-model-parallel-layout"][0]) if "pipeline-model-parallel-layout" in flags else None
    vpp = len(pieces) // pp if pieces else number("num-virtual-stages-per-pipeline-rank")
    layers = [piece.count("t") for piece in pieces] if pieces else even(number("num-layers"), pp * vpp)
    table = {
        "tp": tp, "pp": pp, "dp": dp, "cp": cp, "micro_batch": number("micro-batch-size"),
        "global_batch": number("global-batch-size"), "seq": number("seq-length"), "dtype": megatron_dtype(flags),
        "flash": flags.get("attention-backend") != ["unfused"], "compile": False,
        "grad_dtype": "bf16" if "grad-reduce-in-bf16" in flags else "fp32",
        "offload": "optimizer" if "optimizer-cpu-offload" in flags else "none",
        "optimizer": megatron_optimizer(flags), "recompute": megatron_recompute(flags, layers),
    }  # fmt: skip
    if flags.get("cuda-graph-impl", ["none"]) != ["none"]:
        table["cuda_graphs"] = "attention" if flags.get("cuda-graph-modules") == ["attn"] else "layer"
    scaling = {"delayed": "delayed", "blockwise": "block"}.get(flags.get("fp8-recipe", [""])[0])
    if scaling:
        table["scaling"] = scaling
    if flags.keys() & {"fp8-param-gather", "fp4-param-gather"}:
        table["fp8_weights"] = True
    if "fp8-dot-product-attention" in flags:
        table["fp8_attention"] = True
    if tp > 1:
        table["sp"] = "sequence-parallel" in flags
    if cp > 1:
        table["cp_kind"] = {"p2p": "ring", "all_gather": "all-gather", "a2a": "all-to-all"}[flags["cp-comm-type"][0]]
    if dp * cp > 1:
        order = ["no_shard", "optim", "optim_grads", "optim_grads_params"]
        plain = int("use-distributed-optimizer" in flags)
        fsdp = "use-megatron-fsdp" in flags
        table["zero"] = order.index(flags["data-parallel-sharding-strategy"][0]) if fsdp else plain
        if table["zero"]:
            table["shard"] = dp * cp // number("num-distributed-optimizer-instances")
    if "num-experts" in flags:
        table |= {"ep": number("expert-model-parallel-size"), "etp": number("expert-tensor-parallel-size", tp)}
        kind = flags["moe-token-dispatcher-type"][0]
        name = {"alltoall": "all-to-all", "allgather": "all-gather"}.get(kind) or flags["moe-flex-dispatcher-backend"][
            0
        ]
        if table["ep"] > 1 and name != "all-to-all":
            table["dispatcher"] = name
    if pp > 1:
        schedule = "interleaved" if vpp > 1 else "1f1b"
        table |= {"vpp": vpp, "layers": tuple(layers), "schedule": schedule, "placement": "loop"}
    return table


def unroll(layout):
    text = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text.split("|")


def even(layers, chunks):
    assert layers % chunks == 0
    return [layers // chunks] * chunks


def bridge(text, gpus):
    """Fields of Megatron Bridge by hand as Megatron-LM's flags, which are then read as above."""
    names = {
        "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank", "fp8": "fp8-format",
        "num_moe_experts": "num-experts", "fp4": "fp4-format",
    }  # fmt: skip
    flags = {}
    for section in yaml.safe_load(text).values():
        for field, value in section.items():
            words = value if isinstance(value, list) else [] if value is True else [value]
            if value is not False and value is not None:
                flags[names.get(field, field.replace("_", "-"))] = [str(word) for word in words]
            elif field == "grad_reduce_in_fp32":
                flags["grad-reduce-in-bf16"] = []
    return megatron(flags, gpus)


def megatron_dtype(flags):
    if "fp8-format" in flags:
        return "mxfp8" if flags["fp8-recipe"] == ["mxfp8"] else "fp8"
    return "bf16" if "bf16" in flags else "fp16" if "fp16" in flags else "fp32"


def megatron_optimizer(flags):
    if flags.get("exp-avg-dtype") == ["bf16"]:
        return "adamw-bf16"
    return {"adam": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}[flags["optimizer"][0]]


def megatron_recompute(flags, layers):
    kind = flags.get("recompute-granularity")
    if kind is None:
        return None
    if kind == ["full"]:
        number = int(flags["recompute-num-layers"][0])
        if flags["recompute-method"] == ["block"]:
            return ("full", 1, tuple(min(number, count) for count in layers))
        return ("full", number, tuple(layers))
    ours = {"core_attn": ["core-attention"], "layernorm": ["attention-norm", "mlp-norm"], "mla_up_proj": ["mla-up"],
            "moe_act": ["moe-act"], "mlp": ["mlp"], "moe": ["mlp"]}  # fmt: skip
    return frozenset(name for theirs in flags["recompute-modules"] for name in ours[theirs]), tuple(layers)


def torchtitan_settings(version, files):
    if version == "0.2":
        return tomllib.loads(files["torchtitan.toml"])
    return run_config(files["shardwise_config.py"], version)


def run_config(text, version):
    """Run the Python configuration against stand-ins that have torchtitan's fields, so that a wrong name fails."""
    batch = ["local_batch_size", "global_batch_size", "seq_len"]
    if version == "main":
        batch = ["num_tokens_per_microbatch_per_dp_rank", "num_tokens_per_train_step", "max_context_length"]
    parallel = [
        "data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward",
        "tensor_parallel_degree", "enable_sequence_parallel", "pipeline_parallel_degree",
        "module_fqns_per_model_part", "pipeline_parallel_schedule", "pipeline_parallel_schedule_csv",
        "num_pp_microbatches" if version == "main" else "pipeline_parallel_microbatch_size",
        "context_parallel_degree", "expert_parallel_degree",
    ]  # fmt: skip

    def kind(name, fields):
        return dataclasses.make_dataclass(name, [(f, object, dataclasses.field(default=None)) for f in fields])

    offload = ["enable_cpu_offload", "disable_cuda_graphs", "dtype", "mixed_precision_param"]
    training = kind("Training", [*batch, *offload])
    compiled, parallelism = kind("CompileConfig", ["enable"]), kind("ParallelismConfig", parallel)
    parts = ["hf_assets_path", "tokenizer", "dataloader", "metrics", "checkpoint", "validator"]
    named = ["model_spec", "loss", "training", "parallelism", "activation_checkpoint", "compile"]
    config = kind("Config", [*named, *(parts if version == "0.3" else [])])
    switched = kind("Part", ["enable", "log_freq", "disable_color_printing"])
    more = {name: switched() for name in ("metrics", "checkpoint", "validator")} if version == "0.3" else {}

    def planned(name, spec, converters=()):
        return types.SimpleNamespace(flavor=name, model=spec.model, converters=converters)

    own = {name: types.SimpleNamespace(Config=lambda **_: None) for name in ("NoTokenizer", "RandomTokens")}
    losses = {
        name: types.SimpleNamespace(Config=lambda **_: None) for name in ("ChunkedLossWrapper", "CrossEntropyLoss")
    }
    policies = {n: types.SimpleNamespace(Config=lambda n=n: n) for n in ("FullAC", "SelectiveAC")}
    names = [f"{start}{end}Converter" for start in ("Float8", "MXFP8") for end in ("Linear", "GroupedExperts")]
    converters = {n: types.SimpleNamespace(Config=lambda n=n, **_: n) for n in names}
    guard = re.search(r"layers\) != (\d+)", text)
    depth = int(guard[1]) if guard else 0  # the model that the plan is for; of 0.3 it stands in a module beside

    name = re.search(r"from torchtitan\.models\.(\w+) import model_registry", text)[1]
    base = re.search(r"config_registry import (\w+)", text)[1]

    def model_registry(flavor, converters=(), num_mtp_layers=0):
        assert num_mtp_layers in {0, 1}
        model = types.SimpleNamespace(layers=[None] * depth)
        return types.SimpleNamespace(flavor=flavor, model=model, converters=converters)

    modules = {
        "torchtitan.components.quantization": types.SimpleNamespace(**converters),
        "torchtitan.config": types.SimpleNamespace(ParallelismConfig=parallelism, CompileConfig=compiled),
        "torchtitan.distributed.activation_checkpoint": types.SimpleNamespace(**policies),
        "torchtitan.models.common.config_utils": types.SimpleNamespace(decoder_vocab_size=lambda spec: spec and 1),
        f"torchtitan.models.{name}": types.SimpleNamespace(model_registry=model_registry),
        f"torchtitan.models.{name}.config_registry": types.SimpleNamespace(
            **{base: lambda: config(training=training(), compile=compiled(), **more)}
        ),
        "shardwise_model": types.SimpleNamespace(VOCABULARY=1, planned=planned, **own),
        "torchtitan.components.loss": types.SimpleNamespace(**losses),
        f"torchtitan.models.{name}.mtp": types.SimpleNamespace(
            MTPLoss=types.SimpleNamespace(Config=lambda global_vocab_size: global_vocab_size)
        ),
    }
    space = {}
    before = dict(sys.modules)
    try:
        for name, module in modules.items():
            for parent in [name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1)]:
                sys.modules.setdefault(parent, types.ModuleType(parent))
            sys.modules[name] = module  # type: ignore[assignment] # what looks like a module is enough
        exec(compile(text, "shardwise_config.py", "exec"), space)  # noqa: S102 - our own output
        made = space["shardwise"]()
    finally:
        for name in set(sys.modules) - set(before):
            del sys.modules[name]
    settings = {table: {k: v for k, v in dataclasses.asdict(getattr(made, table)).items() if v is not None}
                for table in ("training", "parallelism", "compile")}  # fmt: skip
    mode = {"FullAC": "full", "SelectiveAC": "selective", None: "none"}[made.activation_checkpoint]
    return settings | {"activation_checkpoint": {"mode": mode}, "model": {"converters": made.model_spec.converters}}


def torchtitan(version, files, model_layers):
    settings = torchtitan_settings(version, files)
    p, t = settings["parallelism"], settings["training"]
    pp, tp, cp = (p[f"{name}_parallel_degree"] for name in ("pipeline", "tensor", "context"))
    shard, replicate = p["data_parallel_shard_degree"], p["data_parallel_replicate_degree"]
    parts = p.get("module_fqns_per_model_part")
    layers = tuple(sum(name.startswith("layers.") for name in part) for part in parts) if parts else (model_layers,)
    if version == "main":
        micro, total = t["num_tokens_per_microbatch_per_dp_rank"], t["num_tokens_per_train_step"]
        seq = t["max_context_length"]
        micro, total = micro // seq, total // seq
        assert p.get("num_pp_microbatches", 1) in {1, total // (micro * shard * replicate)}
    else:
        total, seq, micro = t["global_batch_size"], t["seq_len"], p.get("pipeline_parallel_microbatch_size")
        micro = micro or t["local_batch_size"]
        assert t["local_batch_size"] == (micro if pp == 1 else total // (shard * replicate))
    mode = settings["activation_checkpoint"]["mode"]
    assert mode != "selective" or version != "0.2" or settings["activation_checkpoint"]["selective_ac_option"] == "op"
    table = {
        "tp": tp, "pp": pp, "cp": cp, "dp": shard * replicate, "micro_batch": micro, "global_batch": total, "seq": seq,
        "flash": True, "compile": settings["compile"]["enable"], "grad_dtype": "fp32", "optimizer": "adamw",
        "offload": "optimizer" if t.get("enable_cpu_offload") else "none",
        "recompute": {"none": None, "full": ("full", 1, layers), "selective": (frozenset({"ops"}), layers)}[mode],
    }  # fmt: skip
    table["dtype"] = torchtitan_dtype(settings["model"].get("converters", ()), t)
    if version != "0.2":
        assert t.get("disable_cuda_graphs", False) is (pp > 1 or p.get("expert_parallel_degree", 1) > 1)
    if t.get("dtype") == "bfloat16":
        del table["grad_dtype"]  # as the parameters, reduced in fp32
    if tp > 1:
        table["sp"] = p.get("enable_sequence_parallel", True)
    if cp > 1 and version == "0.2":
        table["cp_kind"] = {"alltoall": "ring", "allgather": "all-gather"}[p["context_parallel_rotate_method"]]
    if shard * replicate * cp > 1:
        stage = {"always": 3, "never": 2}[p["fsdp_reshard_after_forward"]]
        table["zero"] = stage if shard * cp > 1 else 0
        if table["zero"]:
            table["shard"] = shard * cp
    if "expert_parallel_degree" in p:
        table["ep"] = p["expert_parallel_degree"]
        if p.get("expert_parallel_comm_backend", "standard") != "standard":
            table["dispatcher"] = p["expert_parallel_comm_backend"]
        table |= {"etp": p["expert_tensor_parallel_degree"]} if version == "0.2" else {}
    if pp > 1:
        name = p["pipeline_parallel_schedule"]
        v = name in {"ZBVZeroBubble", "DualPipeV"}
        table |= {"vpp": len(parts) // pp, "layers": layers, "placement": "v" if v else "loop"}
        if "pipeline_parallel_schedule_csv" not in p:
            ours = {"1F1B": "1f1b", "Interleaved1F1B": "interleaved", "GPipe": "gpipe", "ZBVZeroBubble": "zb-v",
                    "DualPipeV": "dualpipe-v"}  # fmt: skip
            table["schedule"] = ours[name]
    return table


def torchtitan_dtype(converters, training):
    names = " ".join(converters)
    eights = "mxfp8" if "MXFP8" in names or ".mx" in names else "fp8" if names else ""
    return eights or {"float32": "fp32", "bfloat16": "bf16"}[training["mixed_precision_param"]]


def deepspeed(text, gpus):
    data = json.loads(text)
    tp = data.get("tensor_parallel", {}).get("autotp_size", 1)
    cp, pp = data.get("sequence_parallel_size", 1), data.get("pipeline", {}).get("stages", 1)
    assert sum(degree > 1 for degree in (tp, cp, pp)) < 2  # each of them takes the rest for replicas
    dp = gpus // (tp * cp * pp)
    zero = data["zero_optimization"]
    micro = data["train_micro_batch_size_per_gpu"]
    total = micro * data["gradient_accumulation_steps"] * dp
    assert data.get("train_batch_size") == (None if tp > 1 else total)
    assert data.get("data_parallel_size") == (dp if cp > 1 else None)
    assert "mics_shard_size" not in zero
    table = {
        "tp": tp, "pp": pp, "dp": dp, "cp": cp, "micro_batch": micro, "global_batch": total,
        "dtype": next((name for name in ("bf16", "fp16") if name in data), "fp32"),
        "optimizer": {"AdamW": "adamw", "SGD": "sgd", "Muon": "muon"}[data["optimizer"]["type"]],
        "offload": "optimizer" if "offload_optimizer" in zero else "none", "compile": False,
    }  # fmt: skip
    if tp > 1:
        table["sp"] = False
    if cp > 1:
        table["cp_kind"] = "all-to-all"
    if dp * cp > 1:
        table["zero"] = zero["stage"]
        if zero["stage"]:
            table["shard"] = dp * cp
    if "expert_parallel" in data:
        table["ep"] = data["expert_parallel"]["autoep_size"]
    if pp > 1:
        table |= {"vpp": 1, "schedule": "1f1b", "placement": "loop"}
        interval = data["pipeline"]["activation_checkpoint_interval"]
        table["interval"] = interval
    return table


def paddle(text, gpus, model_layers):
    data = json.loads(text)
    tp, pp, vpp = (data[f"{name}_degree"] for name in ("tensor_parallel", "pipeline_parallel", "virtual_pp"))
    ring, swap = data.get("context_parallel_degree", 1), data.get("sep_parallel_degree", 1)
    cp = ring * swap
    dp = gpus // (tp * pp * cp)
    layers = even(model_layers, pp * vpp)
    micro = data["per_device_train_batch_size"]
    table = {
        "tp": tp, "pp": pp, "dp": dp, "cp": cp, "micro_batch": micro, "seq": data["max_seq_length"],
        "global_batch": micro * data["gradient_accumulation_steps"] * dp, "flash": data["use_flash_attention"],
        "dtype": "bf16" if data["bf16"] else "fp16" if data["fp16"] else "fp32", "compile": False,
        "grad_dtype": "fp32", "optimizer": "adamw", "offload": "none", "recompute": paddle_recompute(data, layers),
    }  # fmt: skip
    if tp > 1:
        table["sp"] = data["sequence_parallel"]
    if cp > 1:
        table["cp_kind"] = "ring" if ring > 1 else "all-to-all"
    if pp > 1:
        ours = {"1F1B": "1f1b", "VPP": "interleaved", "FThenB": "gpipe", "ZBH1": "zb-h1", "ZBVPP": "zb-v"}
        schedule = ours[data["pipeline_schedule_mode"]]
        placement = "v" if schedule == "zb-v" else "loop"
        table |= {"vpp": vpp, "layers": tuple(layers), "schedule": schedule, "placement": placement}
    return table


def paddle_recompute(data, layers):
    if not data["recompute"]:
        return None
    kept = set(data.get("no_recompute_layers", ()))
    counts, start = [], 0
    for count in layers:
        again = [layer for layer in range(start, start + count) if layer not in kept]
        assert again == list(range(start, start + len(again)))
        counts.append(len(again))
        start += count
    kind = data["recompute_granularity"]
    if kind == "full":
        return ("full", 1, tuple(counts))
    return frozenset({{"core_attn": "core-attention", "full_attn": "attention"}[kind]}), tuple(counts)
