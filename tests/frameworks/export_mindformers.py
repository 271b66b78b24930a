"""Readers of MindFormers' YAML that share nothing with the exporter: see export_readers."""

from __future__ import annotations

import yaml


def mindformers_graph(text):
    data = yaml.safe_load(text)
    c, model, parallel = data["parallel_config"], data["model"]["model_config"], data["parallel"]
    pp, dp, cp = c["pipeline_stage"], c["data_parallel"], c["context_parallel"]
    pipeline = parallel.get("pipeline_config", {})
    vpp = model.get("pp_interleave_num", 1) if pipeline.get("pipeline_interleave") else 1
    v = pipeline.get("pipeline_scheduler") == "zero_bubble_v"
    share = model["num_hidden_layers"] // (pp * vpp)
    layers = [share + n for n in in_order(model.get("offset", [0]), v)]
    assert sum(layers) == model["num_hidden_layers"]
    passes = c["micro_batch_num"] if pp > 1 else data["runner_config"]["gradient_accumulation_steps"]
    table = {
        "tp": c["model_parallel"], "pp": pp, "dp": dp, "cp": cp, "micro_batch": data["runner_config"]["batch_size"],
        "global_batch": data["runner_config"]["batch_size"] * passes * dp, "seq": model["seq_length"],
        "dtype": {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[model["compute_dtype"]],
        "flash": model["use_flash_attention"], "compile": False, "grad_dtype": "fp32", "optimizer": "adamw",
        "offload": "none", "recompute": mindformers_recompute(data["recompute_config"], layers, v),
    }  # fmt: skip
    if c["model_parallel"] > 1:
        table["sp"] = c["use_seq_parallel"]
    if cp > 1:
        table["cp_kind"] = {"colossalai_cp": "ring", "ulysses_cp": "all-to-all"}[c["context_parallel_algo"]]
    if dp * cp > 1:
        table["zero"] = int(parallel["enable_parallel_optimizer"])
        if table["zero"]:
            config = parallel.get("parallel_optimizer_config", {})
            table["shard"] = config.get("optimizer_weight_shard_size", dp * cp)
    if "n_routed_experts" in model or "num_experts" in model:
        table |= {"ep": c["expert_parallel"], "etp": model["expert_model_parallel"]}
    if pp > 1:
        name = pipeline["pipeline_scheduler"]
        schedule = "zb-v" if v else "interleaved" if vpp > 1 else name
        table |= {"vpp": vpp, "layers": tuple(layers), "schedule": schedule, "placement": "v" if v else "loop"}
    return table


def in_order(value, v):
    """Numbers in model order from a list, or from rows in rank order of which the second of a v runs backwards."""
    if not isinstance(value[0], list):
        return list(value)
    return [n for index, row in enumerate(value) for n in (row[::-1] if v and index else row)]


def mindformers_recompute(config, layers, v):
    def counts(value):
        if isinstance(value, bool):
            return tuple(layers) if value else (0,) * len(layers)
        return tuple(in_order(value, v))

    if config["recompute"]:
        found = counts(config["recompute"])
        return ("full", 1, found) if any(found) else None
    chosen = config["select_recompute"]
    if not chosen:
        return None
    if not isinstance(chosen, dict):
        found = counts(chosen)
        return (frozenset({"activation"}), found) if any(found) else None
    cells = {r"self_attention\.core_attention": "core-attention", "self_attention": "attention", "mlp": "mlp",
             "input_layernorm": "attention-norm", "pre_mlp_layernorm": "mlp-norm"}  # fmt: skip
    found = {counts(value) for value in chosen.values()}
    assert len(found) == 1
    return (frozenset(cells[name] for name in chosen), found.pop()) if any(map(any, found)) else None


def ranges(texts_of_ranges):
    return [tuple(range(int(a), int(b) + 1)) for a, b in (text.split("-") for text in texts_of_ranges)]


def mindformers_pynative(text):
    data = yaml.safe_load(text)
    p, model = data["parallelism"], data["model"]
    assert "pipeline_parallel_microbatch_size" not in p
    tp, pp, cp, dp = p["tensor_parallel"], p["pipeline_parallel"], p["context_parallel"], p["data_parallel_shard"]
    vpp = p.get("pipeline_parallel_interleave_num", 1)
    held = [[tuple(range(model["num_hidden_layers"]))]]
    if pp > 1:
        held = [ranges(rank.split(",")) for rank in p["pipeline_parallel_layers_per_stage"]]
    chunks = [held[rank][turn] for turn in range(vpp) for rank in range(pp)]
    assert [layer for chunk in chunks for layer in chunk] == list(range(model["num_hidden_layers"]))
    assert p["sequence_parallel"] == (tp > 1)
    table = {
        "tp": tp, "pp": pp, "dp": dp, "cp": cp, "micro_batch": data["training"]["local_batch_size"],
        "global_batch": data["training"]["global_batch_size"], "seq": model["seq_length"],
        "dtype": {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[model["compute_dtype"]],
        "flash": model["use_flash_attention"], "compile": False, "grad_dtype": "fp32", "optimizer": "adamw",
        "offload": "optimizer" if p.get("cpu_offload") else "none",
        "recompute": pynative_recompute(data["recompute"], chunks),
    }  # fmt: skip
    if tp > 1:
        table["sp"] = True
    if cp > 1:
        table["cp_kind"] = {"colossal": "ring", "ulysses": "all-to-all"}[p["context_parallel_method"]]
    if dp * cp > 1:
        table["zero"] = {"always": 3, "never": 2}[p["reshard_after_forward_policy"]]
        table["shard"] = p.get("dense_fsdp_shard_size", dp * cp)
    if "expert_parallel" in p:
        table["ep"] = p["expert_parallel"]
    if pp > 1:
        schedule = p["pipeline_parallel_schedule"].replace("interleaved_1f1b", "interleaved")
        table |= {"vpp": vpp, "layers": tuple(map(len, chunks)), "schedule": schedule, "placement": "loop"}
    return table


def pynative_recompute(config, chunks):
    if config["mode"] == "None":
        return None

    def counts(value):
        chosen = {layer for run in ranges(value) for layer in run}
        return tuple(len(chosen & set(chunk)) for chunk in chunks)

    if config["mode"] == "full":
        return ("full", 1, counts(config["full_recompute_layer"]))
    cells = {r"self_attention\.core_attention": "core-attention", "self_attention": "attention", "mlp": "mlp",
             "input_layernorm": "attention-norm", "pre_mlp_layernorm": "mlp-norm"}  # fmt: skip
    found = {counts(value) for value in config["select_module"].values()}
    assert len(found) == 1
    return frozenset(cells[name] for name in config["select_module"]), found.pop()
