"""Transformers' own classes, small, as somebody would give them to `models --trace`."""

import transformers as tf


def llama():
    return tf.LlamaForCausalLM(
        tf.LlamaConfig(
            hidden_size=512, intermediate_size=1408, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
            vocab_size=32000,
        )
    )  # fmt: skip


def qwen3_moe():
    config = tf.Qwen3MoeConfig(
        hidden_size=256, intermediate_size=512, moe_intermediate_size=128, num_experts=8, num_experts_per_tok=2,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=1000,
    )  # fmt: skip
    config.head_dim = 64
    config._experts_implementation = "grouped_mm"
    return tf.Qwen3MoeForCausalLM(config)


def t5():
    config = tf.T5Config(
        d_model=256, d_ff=512, num_layers=2, num_decoder_layers=2, num_heads=4, vocab_size=1000, pad_token_id=0
    )
    config.decoder_start_token_id = 0
    return tf.T5ForConditionalGeneration(config)


def vit():
    return tf.ViTForImageClassification(
        tf.ViTConfig(hidden_size=192, num_hidden_layers=2, num_attention_heads=3, intermediate_size=768)
    )


def whisper():
    return tf.WhisperForConditionalGeneration(
        tf.WhisperConfig(
            d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=512, decoder_ffn_dim=512, vocab_size=1000, max_source_positions=300,
            decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def llama_8b():
    """Three of its layers."""
    return tf.LlamaForCausalLM(
        tf.LlamaConfig(
            hidden_size=4096, intermediate_size=14336, num_hidden_layers=3, num_attention_heads=32,
            num_key_value_heads=8, vocab_size=128256,
        )
    )  # fmt: skip
