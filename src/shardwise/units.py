"""Text to SI floats and back. `b` is bit, `B` is byte, `GB` is 1e9 bytes, `GiB` is 2^30 bytes."""

from __future__ import annotations

import re

from shardwise.errors import InputError

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0}
# Exponents of at most two digits: no quantity needs more, and none that is read is infinite.
_NUMBER = r"\s*([0-9]{0,40}\.?[0-9]{1,40}(?:[eE][+-]?[0-9]{1,2})?)\s*"
_BYTES = re.compile(_NUMBER + r"([kKMGTP]?|[KMGT]i)([bB])(?:yte|it)?s?\s*")
_RATE = re.compile(_NUMBER + r"([kKMGTP]?|[KMGT]i)([bB])(?:yte|it)?s?(?:/s|ps)\s*")
_FLOPS = re.compile(_NUMBER + r"([kKMGTP]?)(?:FLOPS|FLOP/s|FLOPs|flops|F)\s*")
_SECONDS = re.compile(_NUMBER + r"(s|ms|us|µs|ns|min|h|d)\s*")
_COUNT = re.compile(_NUMBER + r"([kKMBGT]?)\s*")


def _matched(pattern: re.Pattern[str], text: str | float, what: str, example: str) -> re.Match[str] | float:
    if isinstance(text, bool):
        raise InputError(f"{text!r} is not {what}; write for example {example}")
    if isinstance(text, int | float):
        return float(text)
    found = pattern.fullmatch(text)
    if found is None:
        raise InputError(f"{text!r} is not {what}; write for example {example}")
    return found


def _scaled(found: re.Match[str]) -> float:
    prefix = found[2]
    return float(found[1]) * (_BINARY.get(prefix) or _PREFIX[prefix])


def parse_bytes(text: str | float) -> float:
    """`80GB` -> 8e10, `80GiB` -> 80 * 2^30; a plain number is bytes."""
    found = _matched(_BYTES, text, "a number of bytes", "80GB or 80GiB")
    if isinstance(found, float):
        return found
    return _scaled(found) / (8 if found[3] == "b" else 1)


def parse_rate(text: str | float) -> float:
    """`400Gb/s` -> 5e10 bytes per second, `900GB/s` -> 9e11."""
    found = _matched(_RATE, text, "a rate", "900GB/s or 400Gb/s")
    if isinstance(found, float):
        return found
    return _scaled(found) / (8 if found[3] == "b" else 1)


def parse_flops(text: str | float) -> float:
    """`989TFLOPS` -> 9.89e14 operations per second."""
    found = _matched(_FLOPS, text, "a number of operations per second", "989TFLOPS")
    return found if isinstance(found, float) else float(found[1]) * _PREFIX[found[2]]


def parse_seconds(text: str | float) -> float:
    """`5us` -> 5e-6; a plain number is seconds."""
    found = _matched(_SECONDS, text, "a time", "5us or 30s")
    return found if isinstance(found, float) else float(found[1]) * _TIME[found[2]]


def parse_count(text: str | float) -> float:
    """`15T` -> 1.5e13, `2B` -> 2e9: tokens, parameters."""
    found = _matched(_COUNT, text, "a count", "15T")
    if isinstance(found, float):
        return found
    return float(found[1]) * {**_PREFIX, "B": 1e9}[found[2]]


def show_bytes(value: float) -> str:
    """Bytes as GiB (or MiB, KiB) with three significant digits or more."""
    for scale, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(value) >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value:.0f} B"


def show_seconds(value: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale * (1 - 5e-5):  # 999.96 us is written 1 ms
            return f"{value / scale:.4g} {unit}"
    return "0 s" if value == 0 else f"{value * 1e9:.3g} ns"


def show_count(value: float) -> str:
    for scale, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.4g}{unit}"
    return f"{value:.4g}"


def show_rate(value: float) -> str:
    for scale, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} B/s"


def show_flops(value: float) -> str:
    return f"{value / 1e12:.4g} TFLOPS"


def show_percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%"
