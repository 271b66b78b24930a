"""The module beside a torchtitan 0.3 configuration: the planned model out of torchtitan's own layers, random tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise.frameworks.target import ExportDraft, File
from shardwise.frameworks.torchtitan.families import BALANCE, Flavor
from shardwise.inputs.model import Model, Moe

MODULE = "shardwise_model"
BASE = "debugmodel"
"""The flavor, which every family has, whose parts the planned model's take the place of."""


def module(draft: ExportDraft, flavor: Flavor, mtp: int) -> File:
    """`planned` puts the model into a specification of the family's."""
    parts = ["\n".join(_imports(draft.model, flavor)), "\n".join(_planned(draft, flavor, mtp)), _DATA]
    text = "\n\n\n".join(part.strip("\n") for part in parts) + "\n"
    return File(name=f"{MODULE}.py", text=draft.header() + text)


def _imports(model: Model, flavor: Flavor) -> Iterator[str]:
    rope = "CosSinRoPE" if flavor.family == "qwen3" else "ComplexRoPE"
    yield from ("from dataclasses import dataclass, replace", "", "import torch")
    yield "from torchtitan.components.dataloader import ParallelAwareDataloader"
    yield "from torchtitan.components.tokenizer import BaseTokenizer"
    yield f"from torchtitan.models import {flavor.family} as family"
    yield f"from torchtitan.models.common import RMSNorm, {rope}"
    if model.moe and model.moe.shared_ffn:
        yield "from torchtitan.models.common.config_utils import make_ffn_config"
    yield ""
    yield f"VOCABULARY = {model.vocab}"


def _planned(draft: ExportDraft, flavor: Flavor, mtp: int) -> Iterator[str]:
    model = draft.model
    build, args = _LAYERS[flavor.family](model)
    yield "def planned(name, spec, converters=()):"
    yield '    """The specification of a family with the layers and ends of the planned model."""'
    yield f"    rope = {_rope(model, draft.strategy.seq, flavor.family)}"
    yield f"    layers = family.{build}("
    yield from (f"        {key}={value!r}," for key, value in args.items())
    yield '        attn_backend="flex",'
    yield "        rope=rope,"
    yield "    )"
    yield from _settled(model, flavor.family)
    first = "_EMBEDDING_SKIP_INIT" if model.tied else "_EMBEDDING_INIT"
    last = "family._LINEAR_INIT" if flavor.family == "qwen3" else f"family._output_linear_init({model.hidden})"
    sizes = f"num_embeddings=VOCABULARY, embedding_dim={model.hidden}"
    yield "    model = replace("
    yield "        spec.model,"
    yield f"        dim={model.hidden},"
    yield "        vocab_size=VOCABULARY,"
    yield f"        tok_embeddings=replace(spec.model.tok_embeddings, {sizes}, param_init=family.{first}),"
    yield f"        norm=replace(spec.model.norm, normalized_shape={model.hidden}),"
    yield "        lm_head=replace("
    yield f"            spec.model.lm_head, in_features={model.hidden}, out_features=VOCABULARY, param_init={last}"
    yield "        ),"
    yield "        layers=layers,"
    if flavor.family != "deepseek_v3":
        yield f"        enable_weight_tying={model.tied},"
    elif mtp:
        yield f"        mtp_layers=family._build_mtp_layers(layers[-1], dim={model.hidden}, num_mtp_layers={mtp}),"
    yield "    )"
    yield "    for _, norm, _, _ in model.traverse(RMSNorm.Config):"
    yield f"        norm.eps = {model.norm_eps!r}"
    yield "    for converter in converters:"
    yield "        model = converter.build().convert(model)"
    yield "    return replace(spec, flavor=name, model=model)"


def _settled(model: Model, family: str) -> Iterator[str]:
    """What their builders do not ask for."""
    if model.qk_norm == "none" and family == "qwen3":
        yield from ("    for layer in layers:", "        layer.attention.qk_norm = None")
    moe = model.moe
    if moe is None:
        return
    yield "    for layer in (one for one in layers if one.moe is not None):"
    router = ", ".join(f"{key}={value!r}" for key, value in _router(moe).items())
    yield f"        layer.moe.router = replace(layer.moe.router, {router})"
    yield f"        layer.moe.load_balance_coeff = {BALANCE if moe.balance_bias else None}"
    if moe.router_bias:
        yield "        layer.moe.router.gate.bias = True"
    if moe.shared_ffn:
        sizes = f"dim={model.hidden}, hidden_dim={moe.shared_ffn}"
        inits = "w1_param_init=family._LINEAR_INIT, w2w3_param_init=family._LINEAR_INIT"
        yield f"        layer.moe.shared_experts = make_ffn_config({sizes}, {inits})"
    else:
        yield "        layer.moe.shared_experts = None"


def _router(moe: Moe) -> dict[str, Any]:
    grouped = {"num_expert_groups": moe.groups, "num_limited_groups": moe.top_groups} if moe.groups > 1 else {}
    return {"score_func": moe.score, "route_norm": moe.normalised, "route_scale": moe.scale, **grouped}


def _rope(model: Model, seq: int, family: str) -> str:
    scaling, size = model.rope_scaling, model.mla.rope_size if model.mla else model.head_size
    args: dict[str, Any] = {"dim": size, "max_seq_len": seq, "theta": model.rotary_base}
    if scaling and scaling.kind == "llama3":
        args |= {"scaling": "llama", "scaling_factor": scaling.factor, "low_freq_factor": scaling.low}
        args |= {"high_freq_factor": scaling.high, "original_max_position_embeddings": scaling.original}
    elif scaling:
        args |= {"scaling": "yarn", "rope_factor": scaling.factor, "beta_fast": scaling.beta_fast}
        args |= {"beta_slow": scaling.beta_slow, "original_seq_len": scaling.original, "truncate": scaling.truncate}
    kind = "CosSinRoPE" if family == "qwen3" else "ComplexRoPE"
    return f"{kind}.Config({', '.join(f'{key}={value!r}' for key, value in args.items())})"


def _dense(model: Model) -> dict[str, Any]:
    return {
        "n_layers": model.layers, "dim": model.hidden, "n_heads": model.heads, "n_kv_heads": model.kv_heads,
    }  # fmt: skip


def _llama3(model: Model) -> tuple[str, dict[str, Any]]:
    return "_build_llama3_layers", {**_dense(model), "hidden_dim": model.ffn}


def _qwen3(model: Model) -> tuple[str, dict[str, Any]]:
    sizes = {**_dense(model), "head_dim": model.head_size}
    moe = model.moe
    if moe is None:
        return "_build_qwen3_layers", {**sizes, "hidden_dim": model.ffn}
    return "_build_qwen3_moe_layers", {
        **sizes, "moe_hidden_dim": moe.expert_ffn, "num_experts": moe.experts, "top_k": moe.top_k,
        "moe_comm_backend": "standard",
    }  # fmt: skip


def _deepseek(model: Model) -> tuple[str, dict[str, Any]]:
    mla, moe = model.mla, model.moe
    assert mla is not None  # noqa: S101 - the family was chosen for it
    mscale = model.rope_scaling.mscale_all if model.rope_scaling else 1.0
    return "_build_dsv3_layers", {
        "n_layers": model.layers, "n_dense_layers": moe.first_dense if moe else model.layers, "dim": model.hidden,
        "n_heads": model.heads, "q_lora_rank": mla.q_rank, "kv_lora_rank": mla.kv_rank,
        "qk_nope_head_dim": mla.nope_size, "qk_rope_head_dim": mla.rope_size, "v_head_dim": mla.value_size,
        "mscale": mscale, "dense_hidden_dim": model.ffn, "moe_hidden_dim": moe.expert_ffn if moe else 1,
        "num_experts": moe.experts if moe else 1, "num_shared_experts": 1, "router_top_k": moe.top_k if moe else 1,
        "router_score_func": moe.score if moe else "softmax", "moe_comm_backend": "standard",
        "non_blocking_capacity_factor": None,
    }  # fmt: skip


_LAYERS = {"llama3": _llama3, "qwen3": _qwen3, "deepseek_v3": _deepseek}
_DATA = '''
class Rows(torch.utils.data.IterableDataset):
    """Rows of random tokens of the model's vocabulary, the same for the same seed."""

    def __init__(self, length, seed):
        self.length, self.seed = length, seed

    def __iter__(self):
        chance = torch.Generator().manual_seed(self.seed)
        while True:
            row = torch.randint(VOCABULARY, (self.length + 1,), generator=chance)
            yield {"input": row[:-1], "positions": torch.arange(self.length)}, row[1:]


class RandomTokens(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        seed: int = 1234

    def __init__(self, config, *, dp_world_size, dp_rank, seq_len, local_batch_size, **_):
        rows = Rows(seq_len, config.seed + dp_rank)
        super().__init__(rows, dp_rank=dp_rank, dp_world_size=dp_world_size, batch_size=local_batch_size)


class NoTokenizer(BaseTokenizer):
    """Random tokens need none."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **_):
        super().__init__()

    def encode(self, *_, **__):
        return []

    def decode(self, *_, **__):
        return ""

    def get_vocab_size(self):
        return VOCABULARY
'''
