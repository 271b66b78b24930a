"""What users already have: the launch scripts and configurations of training frameworks.

The form is told by the content. Files are read, never run; what was understood, assumed and ignored is told.
"""

from __future__ import annotations

from shardwise.inputs.frameworks.imported import Imported, Understanding
from shardwise.inputs.frameworks.read import read_framework

__all__ = ["Imported", "Understanding", "read_framework"]
