"""Plan distributed training of large models: the fastest layout that fits, its time, its memory, and why."""

from __future__ import annotations

__version__ = "0.1.0"
