"""A rank's allocations as a PyTorch memory snapshot, which its own viewer opens (pytorch.org/memory_viz).

The file is a pickle of plain values (dict, list, text, whole numbers), as torch's own snapshots are. Nothing in it can
name or call anything. One segment holds all: a piece gets the address of one of its size that was given back, or a new
one, so that no two pieces that live together overlap.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from typing import Any

from shardwise.estimate.allocations import Allocation, Allocations

BASE = 0x7F0000000000
"""Where the segment begins: an address as devices have them."""
_PROTOCOL = 4
"""Of torch's own snapshots; the viewer reads no later one."""

Plain = dict[str, Any]


def snapshot_bytes(found: Allocations) -> bytes:
    """The file."""
    return pickle.dumps(snapshot_data(found), protocol=_PROTOCOL)


def snapshot_data(found: Allocations) -> Plain:
    """What the file holds."""
    space = _Space()
    record = [event for one in found.events for event in space.events(one)]
    first = {"action": "segment_alloc", "addr": BASE, "size": space.end - BASE, "stream": 0, "time_us": 0, "frames": []}
    return {"segments": [space.segment()], "device_traces": [[first, *record]], "allocator_settings": {}}


class _Space:
    """Addresses, and what lies at them."""

    def __init__(self) -> None:
        self.end = BASE
        self.free: dict[int, list[int]] = defaultdict(list)
        self.at: dict[int, tuple[int, int, list[Plain]]] = {}
        self.sizes: dict[int, int] = {}

    def events(self, one: Allocation) -> list[Plain]:
        """What the allocator would have recorded."""
        time = round(one.time * 1e6)
        if one.size > 0:
            size, frames = max(1, round(one.size)), _frames(one)
            address = self.free[size].pop() if self.free[size] else self._new(size)
            self.at[one.block] = address, size, frames
            return [_event("alloc", address, size, time, frames)]
        address, size, frames = self.at.pop(one.block)
        self.free[size].append(address)
        return [_event(action, address, size, time, frames) for action in ("free_requested", "free_completed")]

    def _new(self, size: int) -> int:
        address, self.end = self.end, self.end + size
        self.sizes[address] = size
        return address

    def segment(self) -> Plain:
        """The state at the end."""
        live = {address: frames for address, _, frames in self.at.values()}
        blocks = [_block(address, size, live.get(address)) for address, size in self.sizes.items()]
        active = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        return {
            "device": 0, "address": BASE, "total_size": self.end - BASE, "allocated_size": active,
            "active_size": active, "requested_size": active, "stream": 0, "segment_type": "large",
            "segment_pool_id": [0, 0], "is_expandable": False, "frames": [], "blocks": blocks,
        }  # fmt: skip


def _block(address: int, size: int, frames: list[Plain] | None) -> Plain:
    state = "inactive" if frames is None else "active_allocated"
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames or []}


def _event(action: str, address: int, size: int, time: int, frames: list[Plain]) -> Plain:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time, "frames": frames}


def _frames(one: Allocation) -> list[Plain]:
    """Where it comes from: the operator, then its layer."""
    return [{"filename": one.place, "line": 0, "name": one.name}]
