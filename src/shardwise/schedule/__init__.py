"""The order of F, I and W on every rank: generators, an optimiser under a memory limit, bounds."""
