"""From the fields that were given to a whole strategy for a cluster."""

from __future__ import annotations

from shardwise.inputs.cluster import Cluster
from shardwise.inputs.strategy import Strategy
from shardwise.inputs.strategy_text import Given, build


def complete(given: Given, cluster: Cluster) -> Strategy:
    """A strategy with dp derived from the cluster where it is not given.

    Where tp x pp x cp does not divide the GPUs, dp stays 1: `check` then says so together with all other faults.
    """
    return build({"dp": derived_dp(given, cluster.gpus), **given})


def derived_dp(given: Given, gpus: int) -> int:
    """GPUs left for data parallel, 1 where that is no whole number."""
    product = 1
    for axis in ("tp", "pp", "cp"):
        product *= given.get(axis, 1)
    return gpus // product if product > 0 and gpus % product == 0 else 1
