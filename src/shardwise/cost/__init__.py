"""Seconds and bytes of operators and layers on a GPU, a network and a runtime."""
