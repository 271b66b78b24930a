"""Seconds of sends and collectives out of a profile: Aceso's look-ups to the digit, or interpolated."""

from __future__ import annotations

from math import log2

import numpy as np

from shardwise.per_op.flavour import Flavour
from shardwise.per_op.profiles.table import MB, Band, Profile, Samples

PENALTY = 100.0
"""Seconds that Aceso charges where its table has no entry: as good as never."""


def send_seconds(size: float, band: Band, flavour: Flavour) -> float:
    """One message to the neighbouring stage."""
    if flavour.exact_lookups:
        return size / _binned(size, band)
    return 0.0 if size <= 0 else size / _interpolated(size, band)


def _binned(size: float, band: Band) -> float:
    """The entry one below the right one; below 0.5 MB Python's negative index wraps around, and so do we."""
    if size <= 0:
        return 1e6 * MB  # Aceso divides by 1 MB per us
    index = int(log2(size / MB))
    if index >= 1:
        index -= 1
    last = len(band.rates) - 1
    return band.rates[max(-last - 1, min(index, last))]


def _interpolated(size: float, band: Band) -> float:
    """Linear in the logarithm of the size between measured sizes; a small message costs what the smallest did."""
    if size <= band.sizes[0]:
        return band.rates[0] * size / band.sizes[0]
    return float(np.interp(np.log(size), np.log(band.sizes), band.rates))


def collective_seconds(kind: str, gpus: int, size: float, profile: Profile, flavour: Flavour) -> float:
    """One collective over `gpus` GPUs of one stage; splitting what is there already is free."""
    if kind in {"", "split"} or gpus == 1:
        return 0.0
    found = profile.collectives.get((kind, gpus))
    if flavour.exact_lookups:
        return PENALTY if found is None else _exact(found, size)
    if found is None:
        return _modelled(kind, gpus, size, profile)
    return float(_linear(found, max(size, 0.0)))


def _exact(found: Samples, size: float) -> float:
    known = dict(zip((f"{entry / MB:.0f}" for entry in found.sizes), found.seconds, strict=True))
    for text in (f"{size / MB:.0f}", f"{size / MB - 1:.0f}"):
        if text in known:
            return known[text]
    return PENALTY


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
