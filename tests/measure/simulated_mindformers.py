"""A program that answers dry runs as MindFormers would: the peak of one rank, from a hidden truth, with noise.

`python simulated_mindformers.py FILE` reads RANK_ID, RANK_SIZE and ENABLE_LESS_MEM_VPP from the environment, and the
truth from SIMULATED_TRUTH, a JSON file: parts of memory, noise (a share of a peak, the same whenever a stage runs the
same) and `more`, what single stages hold beside. It shares no code with Shardwise.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from pathlib import Path


def layers_of(data, stages):
    """Per chunk of every rank: its layers, and how many of them are recomputed how."""
    model, recompute = data["model"]["model_config"], data["recompute_config"]
    chunks = model.get("pp_interleave_num", 1) if data["parallel"]["pipeline_config"]["pipeline_interleave"] else 1
    even = model["num_layers"] // (stages * chunks)

    def rows(value, every):
        if value in (None, False, 0):
            return [[0] * stages for _ in range(chunks)]
        if value is True:
            return every
        return [value] if not isinstance(value[0], list) else value

    layers = [[even + more for more in row] for row in rows(model.get("offset"), None)]
    names = ("recompute", "select_recompute", "select_comm_recompute")
    return layers, [rows(recompute.get(name), layers) for name in names]


def activation(truth, n, full, select, comm):
    """What the layers of a chunk keep of one micro batch, layer by layer."""
    total = 0.0
    for layer in range(n):
        kind = (
            "full" if layer < full else
            "both" if layer < min(select, comm) else "select" if layer < select else "comm" if layer < comm else "act"
        )  # fmt: skip
        total += truth[kind]
    return total


def most(held, rank, stages, batches, *, low):
    """The most that a rank keeps at once, in the order of 1F1B, interleaved or low-memory."""
    chunks = len(held)
    units = batches * chunks
    ahead = stages - rank - 1 if chunks == 1 else (chunks - 1) * stages + (1 if low else 2) * (stages - rank - 1)
    place = lambda unit: unit // stages % chunks  # noqa: E731 - which chunk a forward is of
    level, top, back = 0.0, 0.0, 0
    for unit in range(units):
        level += held[place(unit)]
        top = max(top, level)
        if unit >= min(ahead, units):
            level -= held[chunks - 1 - place(back)]
            back += 1
    return top


def peak(truth, data, rank, stages, *, low):
    layers, (full, select, comm) = layers_of(data, stages)
    batches = data["parallel_config"]["micro_batch_num"]
    held = [
        activation(truth, layers[v][rank], full[v][rank], select[v][rank], comm[v][rank]) for v in range(len(layers))
    ]
    own = [layers[v][rank] for v in range(len(layers))]
    found = truth["const"] + truth["par"] * sum(own) + most(held, rank, stages, batches, low=low)
    found += truth["head"] * (rank == 0) + truth["tail"] * (rank == stages - 1) + truth["more"].get(str(rank), 0.0)
    seed = hashlib.sha256(repr((truth["seed"], rank, own, held)).encode()).digest()
    return found * (1 + truth["noise"] * random.Random(seed).gauss(0, 1))  # noqa: S311 - a repeatable peak


def main():
    import yaml

    truth = json.loads(Path(os.environ["SIMULATED_TRUTH"]).read_text(encoding="utf-8"))
    data = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))
    stages = data["parallel_config"]["pipeline_stage"]
    rank = int(os.environ["RANK_ID"]) * stages // int(os.environ["RANK_SIZE"])
    low = os.environ.get("ENABLE_LESS_MEM_VPP") == "1"
    print("compiled")
    print(f"[INFO] Actual peak memory usage (with fragments): {peak(truth, data, rank, stages, low=low):.0f}M")


if __name__ == "__main__":
    main()
