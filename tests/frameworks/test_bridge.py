"""Megatron Bridge's configurations are read by the reader of Megatron-LM's flags."""

from __future__ import annotations

import pytest

from shardwise.errors import InputError
from shardwise.frameworks.read import read_content

DEEPSEEK = """
model:
  _target_: megatron.bridge.models.mla_provider.MLAModelProvider
  num_layers: 61
  hidden_size: 7168
  ffn_hidden_size: 18432
  num_attention_heads: 128
  kv_channels: 128
  q_lora_rank: 1536
  kv_lora_rank: 512
  qk_head_dim: 128
  qk_pos_emb_head_dim: 64
  v_head_dim: 128
  vocab_size: 129280
  normalization: RMSNorm
  position_embedding_type: rope
  gated_linear_unit: true
  activation_func: torch.nn.functional.silu
  add_bias_linear: false
  share_embeddings_and_output_weights: false
  qk_layernorm: true
  num_moe_experts: 256
  moe_router_topk: 8
  moe_router_num_groups: 8
  moe_router_group_topk: 4
  moe_ffn_hidden_size: 2048
  moe_shared_expert_intermediate_size: 2048
  moe_layer_freq: [0, 0, 0, {}]
  mtp_num_layers: 1
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 8
  virtual_pipeline_model_parallel_size: 2
  expert_model_parallel_size: 32
  expert_tensor_parallel_size: 1
  context_parallel_size: 1
  sequence_parallel: false
  pipeline_model_parallel_layout: {}
  seq_length: 4096
  moe_token_dispatcher_type: flex
  moe_flex_dispatcher_backend: hybridep
  recompute_granularity: selective
  recompute_modules: [mla_up_proj]
  cuda_graph_impl: transformer_engine
  cuda_graph_scope: [attn, moe_router, moe_preprocess]
  attention_softmax_in_fp32: false
  deallocate_pipeline_outputs: true
train:
  micro_batch_size: 1
  global_batch_size: 4096
  train_iters: 50
ddp:
  use_distributed_optimizer: true
  overlap_grad_reduce: true
  grad_reduce_in_fp32: false
mixed_precision:
  bf16: true
  fp8: e4m3
  fp8_recipe: mxfp8
  fp8_param_gather: true
comm_overlap:
  tp_comm_overlap: false
  overlap_moe_expert_parallel_comm: true
logger:
  log_interval: 1
""".format(
    ", ".join(["1"] * 58),
    "[[embedding, decoder, decoder, decoder, decoder], "
    + "[decoder, decoder, decoder, decoder], " * 14
    + "[decoder, mtp, loss]]",
)


def test_a_deepseek_configuration():
    found = read_content(DEEPSEEK, "config.yaml")
    s, model = found.strategy, found.model
    assert (s.tp, s.pp, s.vpp, s.ep, s.etp, s.zero) == (1, 8, 2, 32, 1, 1)
    assert (s.micro_batch, s.global_batch, s.seq) == (1, 4096, 4096)
    assert (s.dispatcher, s.ep_overlap, s.cuda_graphs) == ("hybridep", True, "attention")
    assert (s.dtype, s.fp8_weights, s.grad_dtype) == ("mxfp8", True, "bf16")
    assert s.recompute.modules == ("mla-up",)
    assert s.layers == (4,) * 15 + (1,)
    assert model is not None
    assert model.moe is not None
    assert (model.moe.experts, model.moe.top_k, model.moe.groups, model.moe.top_groups) == (256, 8, 8, 4)
    assert (model.moe.first_dense, model.mtp, model.gated, model.tied) == (3, 1, True, False)
    assert model.mla is not None
    assert any("attention-softmax-in-fp32" in text or "deallocate" in text for text in found.understanding.ignored)
    assert "section logger" in found.understanding.ignored


def test_a_dense_configuration_with_grouped_queries():
    text = """
model:
  tensor_model_parallel_size: 2
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  num_query_groups: 8
  ffn_hidden_size: 14336
  vocab_size: 128256
  gated_linear_unit: true
  add_bias_linear: false
  normalization: RMSNorm
  position_embedding_type: rope
  sequence_parallel: true
  seq_length: 8192
train: {micro_batch_size: 1, global_batch_size: 128}
ddp: {use_distributed_optimizer: true}
mixed_precision: {bf16: true}
"""
    found = read_content(text, "config.yaml")
    assert found.model is not None
    assert (found.model.kv_heads, found.model.activation, found.model.mlp_bias) == (8, "swiglu", False)
    assert (found.strategy.tp, found.strategy.sp, found.strategy.dtype) == (2, True, "bf16")


@pytest.mark.parametrize(
    ("setting", "word"),
    [("tensor_model_parallel_size: many", "many"), ("moe_token_dispatcher_type: pigeon", "pigeon")],
)
def test_what_is_wrong_is_said(setting, word):
    text = f"model: {{tensor_model_parallel_size: 1, num_moe_experts: 8, {setting}}}\ntrain: {{micro_batch_size: 1}}\n"
    text = text.replace("tensor_model_parallel_size: 1, num", "num") if "tensor" in setting else text
    with pytest.raises(InputError, match=word):
        read_content(text, "config.yaml")
