"""torchtitan: its configurations, both ways."""
