"""Small profiles of our own, and the rows that stand behind the four configurations printed in seed 000."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from shardwise.api import load_cluster
from shardwise.frameworks.aceso.names import full_facts
from shardwise.frameworks.aceso.pricing import Aceso
from shardwise.inputs.load import load_runtime
from shardwise.inputs.strategy import Strategy
from shardwise.per_op.chain import chain_of
from shardwise.per_op.profiled import Profiled
from shardwise.per_op.profiles.table import COLLECTIVES, COLUMNS, MB, US, Band, CollectiveSamples, Profile
from shardwise.per_op.question import OperatorQuestion

OPS = ("encoder-embedding", "enc-1st-layernorm", "enc-attention-qkv", "enc-attention-dropout", "gpt-post-process")


def band(*rates):
    return Band(sizes=tuple(MB * 2**n for n in range(len(rates))), rates=tuple(1000 * MB * rate for rate in rates))


def profile(values, *, ops, micro_batches, tps, variants=(0,), **more):
    """`values`: [8, micro batch, tp, variant, op] in us and MB."""
    scaled = np.array(values, dtype=float)
    scaled[:2] *= US
    scaled[2:] *= MB
    given = {
        "name": "gpt_small", "ops": tuple(ops), "micro_batches": tuple(micro_batches), "tps": tuple(tps),
        "variants": tuple(variants), "values": scaled, "collectives": {}, "intra": band(10, 12, 14, 16),
        "inter": band(2, 3, 3, 3),
    }  # fmt: skip
    return Profile(**(given | more))


def random_profile(seed, *, ops=OPS, layer=(1, 3), micro_batches=(1, 2), tps=(1, 2)):
    """Sizes in whole MB, so that sums are exact; times with three digits."""
    draw = np.random.default_rng(seed)
    shape = (len(COLUMNS), len(micro_batches), len(tps), 2, len(ops))
    values = draw.integers(1, 60, size=shape).astype(float)
    values[:2] = draw.integers(100, 900, size=shape[1:]) + draw.integers(0, 1000, size=(2, *shape[1:])) / 1000
    for index, size in enumerate(micro_batches):  # more samples take longer and keep more
        values[[0, 1, 2, 3, 5], index] *= size
    collectives = {
        (kind, gpus): CollectiveSamples(
            sizes=tuple(MB * n for n in range(1, 200)), seconds=tuple(1e-5 * n for n in range(1, 200))
        )
        for kind in COLLECTIVES
        for gpus in tps[1:]
    }
    return profile(
        values, ops=ops, micro_batches=micro_batches, tps=tps, variants=(0, 1), collectives=collectives,
        layer_ops=(ops[layer[0]], ops[layer[1]]),
    )  # fmt: skip


# Solved from the sums that seed 000 prints (its author's Ascend profile with four operators, micro batch 1): seconds of
# forward + backward in us; weights, activations, reserved forward and backward in MB; by tp 1, 2, 4, 8. The split into
# forward and backward is ours, as are the rows at tp 1 beyond their times.
SEED_OPS = ("dec-embedding", "dec-self-attention", "dec-mlp", "dec-post-process")
SEED_ROWS = {
    1: ((2031.088, 208, 8, 12, 620), (11455.679, 32, 832.02, 0, 900), (2025.318, 64, 80.019, 0, 100),
        (10657.788, 200, 408.044, 0, 0)),
    2: ((1733.637, 108, 8.019, 11.981, 340), (7410.575, 16, 424.021, 15.979, 840), (2140.283, 32, 48.019, 0, 60),
        (5593.968, 100, 208.044, 0, 0)),
    4: ((1290.325, 58, 8.019, 11.981, 180), (4009.973, 8, 220.021, 19.979, 380), (1668.264, 16, 32.019, 0, 40),
        (3951.076, 50, 108.044, 0, 0)),
    8: ((1507.855, 33, 8.019, 0, 120), (3370.137, 4, 109.991, 43.48, 180), (1695.300, 8, 24.019, 0, 40),
        (3125.771, 25, 58.044, 0, 0)),
}  # fmt: skip
SEED_INPUTS, SEED_OUTPUTS = (0.008, 8, 8, 8), (8, 8, 8, -0.004)
SEED_BAND = (4.19, 5.47, 8.79, 13.29, 16.02, 16.92, 17.96, 18.42, 18.32, 18.63, 18.68)


@pytest.fixture(scope="session")
def seed_profile():
    values = np.zeros((8, 1, 4, 1, 4))
    for place, (tp, op) in enumerate(itertools.product(SEED_ROWS, range(4))):
        time, weights, activations, forward, backward = SEED_ROWS[tp][op]
        column = (time / 3, time * 2 / 3, SEED_INPUTS[op], SEED_OUTPUTS[op], weights, activations, forward, backward)
        values[:, 0, place // 4, 0, op] = column
    return profile(
        values, ops=SEED_OPS, micro_batches=(1,), tps=(1, 2, 4, 8), intra=band(*SEED_BAND), inter=None, name="gpt_1_3B"
    )


def question(found, *, layers=1, **more):
    given = {"gpus": 4, "node": 2, "memory": 1e15, "global_batch": 8, "pricing": Aceso()}
    return OperatorQuestion(profile=found, chain=chain_of(found, layers), **(given | more))


def full(found, *, layers=1, gpus=4, **base):
    """The full cost model of a small profile, on GPUs whose driver and context take nothing."""
    runtime, cluster = load_runtime("megatron"), load_cluster(f"{gpus}xa100-80gb")
    return Profiled(found, full_facts(found), layers, cluster, runtime, Strategy(seq=64, sp=False, **base))
