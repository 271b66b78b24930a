"""Megatron-LM: its launch scripts, both ways."""
