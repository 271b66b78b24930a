"""Hugging Face: config.json of a model."""
