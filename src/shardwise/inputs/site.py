"""Where a run happens, apart from its GPUs and its software: heat and power, slow members, the fabric that is left.

A runtime describes software. What one machine room made of it is a factor of that room, has a name, and does not
follow the software elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from shardwise.inputs.serialise import later


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One machine room, as far as it differs from the usual one."""

    name: str = "usual"
    """Catalog name; `usual` is the middle of all sites whose runs were published."""
    slowdown: float = 1.0
    """Time of all kernels over that on a usual site: clocks held down, members that all the others wait for."""
    fabric: float = 1.0
    """Share of the bandwidth between nodes that is there for the run."""
    host: float = 1.0
    """Speed of the hosts' processors over usual ones: launches and framework code take their time divided by it."""
    spread: float = 0.05
    """How far iteration times lie from the prediction on a site of which no more is known: two in three are within it,
    as a logarithm. More than usual widens intervals: of the site's numbers little is known."""
    error: float = later(0.0)
    """Mean error of whole jobs that were predicted there, in place of what any run errs; 0: none were."""
    jitter: float = later(0.010)
    """What a host of eight GPUs is late on average, over the time of a step; all wait for the latest of them, which is
    the later the more there are. Runs of one set-up each on 8 to 2,304 H100s (NVIDIA's DGX Cloud recipes) and 2,240 and
    4,480 A100s (MegaScale) say 0.007 by all of their rows, and 0.012 by the first and last of each series."""
    pod: int = later(0)
    """GPUs of a pod, beyond which the outermost level of the network is oversubscribed; 0: it has no pods."""
    oversubscription: float = later(1.0)
    """Traffic that a pod's GPUs can send over what leaves it."""
    source: str = "the middle of 24 published sites, two in three of which lie within 5% of it"
    """What the numbers were learnt from."""

    def slowest(self, gpus: int) -> float:
        """Time of the latest of a run's hosts over that of the mean one: what each is late is drawn from an exponential
        distribution, the largest of n draws is H(n) = 1 + 1/2 + ... + 1/n of them on average.
        """
        return 1 + self.jitter * (harmonic(gpus / HOST) - 1)


HOST = 8
"""GPUs of a host."""


def harmonic(count: float) -> float:
    """H(n), by its expansion, which is right to 3e-4 from 2 on; 1 for one and less."""
    return log(count) + EULER + 1 / (2 * count) - 1 / (12 * count * count) if count > 1 else 1.0


EULER = 0.5772156649


USUAL = Site()
