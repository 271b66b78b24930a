"""The program that measures one GPU (or a torchrun job); copied alone to GPU nodes, so it imports nothing of ours."""
