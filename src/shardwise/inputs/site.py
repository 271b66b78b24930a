"""Where a run happens, apart from its GPUs and its software: heat and power, slow members, the fabric that is left.

A runtime describes software. What one machine room made of it is a factor of that room, has a name, and does not
follow the software elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

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
    jitter: float = later(0.013)
    """How far hosts of eight GPUs lie apart in speed: two in three are within it of their mean. All wait for the
    slowest of them, which is further off the more there are. Fitted to runs of one set-up each on 8 to 2,304 H100s
    (NVIDIA's DGX Cloud recipes)."""
    source: str = "the middle of 24 published sites, two in three of which lie within 5% of it"
    """What the numbers were learnt from."""

    def slowest(self, gpus: int) -> float:
        """Time of the slowest of a run's hosts over the mean one's: the expected maximum of as many normal draws."""
        return 1 + self.jitter * expected_maximum(gpus / HOST)


HOST = 8
"""GPUs of a host."""


@lru_cache(maxsize=1024)
def expected_maximum(draws: float) -> float:
    """Of so many standard normal draws (Blom 1958): 0 for one, 2.6 for 128, 3.4 for 2,048."""
    return NormalDist().inv_cdf((draws - 0.375) / (draws + 0.25)) if draws > 1 else 0.0


USUAL = Site()
