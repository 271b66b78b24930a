"""The program that measures one GPU (or a torchrun job); copied alone to GPU nodes, so it imports nothing of ours."""

from pathlib import Path

PROGRAM = Path(__file__).parent / "shardwise_probe.py"
