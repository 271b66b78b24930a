"""Measured training runs: reading their files and holding predictions against them."""
