"""Seconds of sends and collectives out of a profile, interpolated between the sizes that were measured."""

from __future__ import annotations

import numpy as np

from shardwise.per_op.profiles.table import Band, Profile, Samples


def send_seconds(size: float, band: Band) -> float:
    """One message to the neighbouring stage: linear in the logarithm of the size between measured sizes; a small
    message costs what the smallest did.
    """
    if size <= 0:
        return 0.0
    if size <= band.sizes[0]:
        return band.sizes[0] / band.rates[0]
    return size / float(np.interp(np.log(size), np.log(band.sizes), band.rates))


def collective_seconds(kind: str, gpus: int, size: float, profile: Profile) -> float:
    """One collective over `gpus` GPUs of one stage; splitting what is there already is free."""
    if kind in {"", "split"} or gpus == 1:
        return 0.0
    found = profile.collectives.get((kind, gpus))
    return _modelled(kind, gpus, size, profile) if found is None else float(_linear(found, max(size, 0.0)))


def _linear(found: Samples, size: float) -> float:
    """Linear between measured sizes and beyond them; never below 0."""
    sizes, seconds = found.sizes, found.seconds
    if len(sizes) == 1:
        return seconds[0] * max(1.0, size / sizes[0])
    if sizes[0] <= size <= sizes[-1]:
        return float(np.interp(size, sizes, seconds))
    low, high = (0, 1) if size < sizes[0] else (len(sizes) - 2, len(sizes) - 1)
    slope = (seconds[high] - seconds[low]) / (sizes[high] - sizes[low])
    edge = seconds[0] if size < sizes[0] else seconds[-1]
    return max(min(edge, seconds[0]) / 4, edge + slope * (size - (sizes[0] if size < sizes[0] else sizes[-1])))


def _modelled(kind: str, gpus: int, size: float, profile: Profile) -> float:
    """A ring at the bandwidth between neighbours, for groups that were not measured."""
    band = profile.intra if gpus <= profile.tps[-1] else (profile.inter or profile.intra)
    rounds = 2 if kind == "all_reduce" else 1
    return rounds * size * (gpus - 1) / gpus / band.rates[-1] if size > 0 else 0.0
