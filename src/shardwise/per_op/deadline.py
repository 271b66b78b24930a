"""When a search must end: asked for in every loop that can take long."""

from __future__ import annotations

import time

from shardwise.errors import InfeasibleError


class OutOfTimeError(InfeasibleError):
    """The time limit ended a search before it had any plan."""


class Deadline:
    """So many CPU seconds from now."""

    __slots__ = ("began", "until")

    def __init__(self, seconds: float = float("inf")) -> None:
        self.began = time.process_time()
        self.until = self.began + seconds

    @property
    def over(self) -> bool:
        return time.process_time() > self.until

    @property
    def left(self) -> float:
        return max(0.0, self.until - time.process_time())

    @property
    def used(self) -> float:
        return time.process_time() - self.began

    def check(self) -> None:
        """End the work where the time is over; whoever holds the best so far catches this."""
        if self.over:
            raise OutOfTimeError("no plan was found in the time given; give more, or use --method alleviate")


NEVER = Deadline()
