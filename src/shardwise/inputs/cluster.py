"""What the model runs on: one kind of GPU, how many, and the levels of network between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shardwise.inputs.calibration import Calibration
from shardwise.inputs.site import USUAL, Site

Topology = Literal["switch", "mesh", "pcie", "torus-2d", "torus-3d"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator."""

    name: str
    """Catalog name, such as `h100`."""
    memory: float
    """Bytes on the device as sold (80 GB parts: 80 GiB on NVIDIA's)."""
    bandwidth: float
    """Device memory bandwidth, bytes per second."""
    flops: dict[str, float] = field(hash=False)
    """Dense peak per number format (fp32, tf32, bf16, fp16, fp8, fp4), operations per second."""
    sms: int = 108
    """Compute units that a matrix kernel's tiles are spread over."""
    l2: float = 40e6
    """Last-level cache, bytes; recorded, no formula uses it yet."""
    reserved: float = 0.6e9
    """Bytes the driver and the context take before the first tensor."""
    calibration: str | Calibration = ""
    """Which set of fitted efficiencies applies, by name or, where it came with the cluster's own file, in full; empty:
    that of the nearest known family."""

    def peak(self, dtype: str) -> float:
        """Dense peak for a number format; a format without hardware falls back to the next wider one."""
        for name in _WIDER[dtype]:
            if name in self.flops:
                return self.flops[name]
        return self.flops["fp32"]

    def has(self, dtype: str) -> bool:
        return dtype in self.flops


_WIDER = {
    "fp4": ("fp4", "fp8", "bf16", "fp16"),
    "fp8": ("fp8", "bf16", "fp16"),
    "bf16": ("bf16", "fp16"),
    "fp16": ("fp16", "bf16"),
    "tf32": ("tf32", "fp32"),
    "fp32": ("fp32",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of the network, from the inside out."""

    name: str
    """nvlink, node, rail, spine ..."""
    size: int
    """GPUs inside one domain of this level; each level's is a multiple of the one inside it."""
    bandwidth: float
    """Bytes per second and direction that one GPU can send at this level."""
    latency: float
    """Seconds for a message to the neighbour."""
    topology: Topology = "switch"
    """switch: any pair at full speed; mesh: speed grows with the group (links per pair); pcie: a shared tree; torus-2d,
    torus-3d: two links an axis, a group has those of the axes that it spans."""
    oversubscription: float = 1.0
    """Traffic out of the domains below over what this level carries; 1: full bisection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """GPUs and the network between them."""

    name: str
    """What it is called in reports, such as `64xh100`, or `64xh100@bloom` at a site."""
    gpu: Gpu
    """The kind of GPU; all are alike."""
    gpus: int
    """How many."""
    levels: tuple[Level, ...]
    """The network from the inside out; the last level's size is at least `gpus`."""
    host_bandwidth: float = 25e9
    """Bytes per second between one GPU and host memory."""
    host_memory: float = 1e12
    """Host memory per node, bytes."""
    site: Site = Site()
    """Where it stands; a file names one of the catalog's (`site = "bloom"`) or gives its own numbers."""

    @property
    def node_size(self) -> int:
        """GPUs of the innermost domain."""
        return min(self.levels[0].size, self.gpus)


def cluster_name(gpus: int, gpu: str, site: Site) -> str:
    """How a cluster is written: `64xh100`, and `64xh100@bloom` at a site that is not the usual one."""
    return at_site(f"{gpus}x{gpu}", site)


def at_site(name: str, site: Site) -> str:
    """A name with the site behind it, where times are not those of the usual one."""
    return name if site == USUAL or name.endswith(f"@{site.name}") else f"{name}@{site.name}"
