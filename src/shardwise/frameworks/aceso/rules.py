"""Aceso's look-ups of messages and collectives, to the digit."""

from __future__ import annotations

from math import log2

from shardwise.per_op.profiles.table import MB, Band, CollectiveSamples, Profile

PENALTY = 100.0
"""Seconds that Aceso charges where its table has no entry: as good as never."""


def send_seconds(size: float, band: Band) -> float:
    """One message to the neighbouring stage."""
    return size / _binned(size, band)


def _binned(size: float, band: Band) -> float:
    """The entry one below the right one; below 0.5 MB Python's negative index wraps around, and so do we."""
    if size <= 0:
        return 1e6 * MB  # Aceso divides by 1 MB per us
    index = int(log2(size / MB))
    if index >= 1:
        index -= 1
    last = len(band.rates) - 1
    return band.rates[max(-last - 1, min(index, last))]


def collective_seconds(kind: str, gpus: int, size: float, profile: Profile) -> float:
    """One collective over `gpus` GPUs of one stage; splitting what is there already is free."""
    if kind in {"", "split"} or gpus == 1:
        return 0.0
    found = profile.collectives.get((kind, gpus))
    return PENALTY if found is None else _exact(found, size)


def _exact(found: CollectiveSamples, size: float) -> float:
    known = dict(zip((f"{entry / MB:.0f}" for entry in found.sizes), found.seconds, strict=True))
    for text in (f"{size / MB:.0f}", f"{size / MB - 1:.0f}"):
        if text in known:
            return known[text]
    return PENALTY
