"""The decoder of torch pipelining is the planned model: transformers' own, with the same weights, has its loss."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import asdict, replace

import pytest
from start_models import DENSE, EXPERTS, GQA, small

from shardwise.frameworks.huggingface.config import write_config
from shardwise.frameworks.torch.write import MODEL
from shardwise.inputs.parameters import count

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NAMES = [
    (r"^model\.", ""), (r"^embed_tokens\.", "embedding."), (r"^lm_head\.", "head."),
    (r"self_attn\.([qkv])_proj", r"attention.\1"), (r"self_attn\.o_proj", "attention.out"),
    (r"self_attn\.([qk])_norm", r"attention.\1_norm"), (r"self_attn\.q_a_proj", "attention.q_down"),
    (r"self_attn\.q_a_layernorm", "attention.q_norm"), (r"self_attn\.q_b_proj", "attention.q"),
    (r"self_attn\.kv_a_proj_with_mqa", "attention.kv_down"), (r"self_attn\.kv_a_layernorm", "attention.kv_norm"),
    (r"self_attn\.kv_b_proj", "attention.kv_up"), (r"input_layernorm", "norm1"), (r"post_attention_layernorm", "norm2"),
    (r"pre_feedforward_layernorm", "norm2"), (r"post_feedforward_layernorm", "norm4"),
    (r"mlp\.gate\.", "mlp.router."), (r"mlp\.experts\.gate_up_proj", "mlp.up"),
    (r"mlp\.experts\.down_proj", "mlp.down"),
    (r"(gate|up|down)_proj", r"\1"), (r"shared_experts?\.", "shared."), (r"shared_expert_gate", "shared_gate"),
]  # fmt: skip


def decoder():
    sys.path.append(str(MODEL.parent))
    spec = importlib.util.spec_from_file_location("planned_model", MODEL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def theirs(model):
    keys = dict(write_config(model).keys)
    config = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
    config.output_router_logits = False
    torch.manual_seed(5)
    stored = "eager" if model.score_cap else "sdpa"  # transformers' sdpa passes caps over
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=stored).train()
    with torch.no_grad():  # norms, biases and routers that do something
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


def ours(model, weights):
    chunk = decoder().build({**asdict(model), "flash": True}, 0, model.layers, "cpu", torch.float32, 1)
    renamed = {}
    rules = [("post_attention_layernorm", "norm3"), *NAMES] if model.norms_per_layer == 4 else NAMES
    for name, tensor in weights.items():
        for pattern, instead in rules:
            name = re.sub(pattern, instead, name)  # noqa: PLW2901 - one rule after the other
        renamed[name] = tensor
    chunk.load_state_dict(renamed)
    return chunk


MODELS = {
    "stretched as Llama 3": DENSE,
    "own rotary base": GQA,
    "norms of heads": small("qwen3-0.6b"),
    "window": small("mistral-7b", windows=(7,)),
    "gemma": small("gemma-2b"),
    "gemma 2: caps": small("gemma-2-2b", windows=(7, 0), score_cap=0.5, logit_cap=0.3),
    "gemma 3: two rotary bases": small("gemma-3-27b", windows=(7, 7, 0), layers=4),
    "experts": EXPERTS,
    "weights not normalised": replace(EXPERTS, moe=replace(EXPERTS.moe, normalised=False)),
    "latent, yarn": small("deepseek-v2-lite"),
    "latent, sigmoid": small("deepseek-v3", mtp=0, layers=4),
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_loss_is_that_of_transformers(kind):
    model = MODELS[kind]
    reference = theirs(model)
    own = ours(model, {name: one.detach() for name, one in reference.named_parameters(remove_duplicate=False)})
    ids = torch.randint(0, model.vocab, (2, 48), generator=torch.Generator().manual_seed(3))
    wanted = reference(input_ids=ids, labels=ids).loss
    found = decoder().loss_of(own(ids), ids)
    assert found.item() == pytest.approx(wanted.item(), rel=2e-5)
    wanted.backward()
    found.backward()
    there, here = (
        sum(float(one.grad.square().sum()) for one in made.parameters() if one.grad is not None)
        for made in (reference, own)
    )
    assert here == pytest.approx(there, rel=1e-3)
    assert sum(one.numel() for one in own.parameters()) == count(model).total
