"""The verbs: name -> the module that holds it as `command`, and its line in `shardwise --help`.

A verb is one file. It is imported only when it is called, so that help costs nothing.
"""

from __future__ import annotations

VERBS: dict[str, tuple[str, str]] = {
    "estimate": ("shardwise.cli.estimate", "Predict time, memory and MFU of one strategy, and say why."),
    "plan": ("shardwise.cli.plan", "Find the fastest way to split a model, proven."),
    "plan-operators": ("shardwise.cli.plan_operators", "The same for every operator alone, from profiled operators."),
    "show": ("shardwise.cli.show", "Show a plan: what it does, its stages, where time and memory go."),
    "diff": ("shardwise.cli.diff", "Tell in what two plans differ."),
    "why": ("shardwise.cli.why", "Say why another strategy lost against a plan."),
    "what-if": ("shardwise.cli.what_if", "Plan again for other GPUs, networks or memory, and compare."),
    "sweep": ("shardwise.cli.sweep", "Plan a grid of clusters, batches and sequences: time, days, cost."),
    "balance": ("shardwise.cli.balance", "Spread layers and recompute over stages, from measured memory."),
    "schedule": ("shardwise.cli.schedule", "Order the passes of a pipeline: any known schedule, or the best one."),
    "simulate": ("shardwise.cli.simulate", "Replay a schedule from a file: times, memory, bubbles."),
    "export": ("shardwise.cli.export", "Write a plan as a training framework's files."),
    "serve": ("shardwise.cli.serve", "Serve the page to plan with: choose, search, look inside, compare, export."),
    "check": ("shardwise.cli.check", "Tell everything that is wrong with a strategy, at once."),
    "probe": ("shardwise.cli.probe", "Measure a GPU, or write the program that does."),
    "calibrate": ("shardwise.cli.calibrate", "Fit the cost model to a probe, a trace or a log."),
    "rehearse": ("shardwise.cli.rehearse", "Run one rank of a plan on one GPU, or count its memory without."),
    "validate": ("shardwise.cli.validate", "Hold predictions against measured runs: errors, fits, regret."),
    "models": ("shardwise.cli.models", "List the models of the catalog, or show one with its parameters."),
    "clusters": ("shardwise.cli.clusters", "List the GPUs of the catalog, or show a cluster with its network."),
}
