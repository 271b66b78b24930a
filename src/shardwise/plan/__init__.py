"""The estimate of one strategy, the search over strategies, the plan file, validation."""
