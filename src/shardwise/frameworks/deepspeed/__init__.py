"""DeepSpeed: its JSON, both ways."""
