"""Layers and recompute of every chunk; the objective is the simulated time."""
