"""MindFormers: its YAML, both ways."""
