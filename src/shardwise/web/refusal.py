"""What the server says no to: a status and a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Refusal(Exception):  # noqa: N818 - an answer, not a fault of the program
    """Raised anywhere under a request; becomes `{"error": {"message", "faults"}}`."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.message = message
        self.headers = dict(headers or {})
        super().__init__(message)


def error_data(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "faults": []}}
