"""The flags in a shell script or a list of arguments, with simple variables filled in; nothing is run."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from typing import Any


class Flags(dict[str, str | None]):
    """Flags and their values, None for a switch; remembers which were looked at, so that the others can be named."""

    def __init__(self, flags: Mapping[str, str | None] = {}) -> None:
        super().__init__(flags)
        self.read: set[str] = set()

    def __contains__(self, flag: object) -> bool:
        self.read.add(str(flag))
        return super().__contains__(flag)

    def get(self, flag: str, default: Any = None) -> Any:  # noqa: ANN401 - as that of a dict
        self.read.add(flag)
        return super().get(flag, default)

    def __getitem__(self, flag: str) -> str | None:
        self.read.add(flag)
        return super().__getitem__(flag)


_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s;#()]*)", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_PRODUCT = re.compile(r"\$\(\(([^()]*)\)\)")


def flags(text: str) -> Flags:
    """Every `--flag`, without its dashes and with hyphens, and the words after it; None: a switch."""
    text = re.sub(r"\\\r?\n", " ", text)
    known = _variables(text)
    if any(len(line.split()) > 1 for line in text.splitlines()):
        # The end of a line ends the values of a flag, unless the file holds one word a line.
        text = text.replace("\n", " ;\n")
    words = _words(_filled(text, known))
    found: dict[str, str | None] = {}
    name = None
    for word in itertools.chain.from_iterable(map(_bare, words)):
        if re.match(r"--[A-Za-z]", word):
            name, _, value = word[2:].partition("=")
            name = name.replace("_", "-")
            found[name] = value or None
        elif name is not None and _is_value(word) and not (found[name] and word.endswith(".py")):
            found[name] = f"{found[name]} {word}" if found[name] else word
        else:
            name = None
    return Flags(found)


def _bare(word: str) -> list[str]:
    """A word without the assignment and the parentheses that touch it: `PAR=(--tp` -> `--tp`, `8)` -> `8` `)`."""
    word = re.sub(r"^(?:[A-Za-z_]\w*\+?=\(?|\()(?=--)", "", word)
    bare = word
    while bare.endswith(")") and bare.count(")") > bare.count("(") and len(bare) > 1:
        bare = bare[:-1]
    return [word] if bare == word else [bare, ")"]


def _is_value(word: str) -> bool:
    return not re.fullmatch(r"[A-Za-z_]\w*=.*|[()&|;<>]+|.*\)|\d*[<>].*", word) or word.startswith("(")


def _variables(text: str) -> dict[str, str]:
    known: dict[str, str] = {}
    for name, value in _ASSIGNMENT.findall(text):
        bare = value[1:-1] if value[:1] in {'"', "'"} else value
        if bare and "--" not in bare:
            known[name] = _filled(bare, known)
    # A product such as $(($GPUS*$NODES)) holds parentheses that the pattern for plain values leaves out.
    for name, inside in re.findall(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=\$\(\(([^()]*)\)\)", text, re.MULTILINE):
        known[name] = _filled(f"$(({inside}))", known)
    return known


def _filled(text: str, known: dict[str, str]) -> str:
    def variable(found: re.Match[str]) -> str:
        name, default = found[1] or found[3], found[2]
        return known.get(name, found[0] if default is None else default)

    def product(found: re.Match[str]) -> str:
        inside = re.sub(r"\b([A-Za-z_]\w*)\b", lambda word: known.get(word[1], word[1]), found[1])
        factors = [factor.strip() for factor in inside.split("*")]
        if not all(factor.isdecimal() and len(factor) < 10 for factor in factors):
            return found[0]
        value = 1
        for factor in factors:
            value *= int(factor)
        return str(value)

    return _PRODUCT.sub(product, _VARIABLE.sub(variable, text))


def _words(text: str) -> list[str]:
    """Shell words; a quoted string that holds flags is opened up."""
    words: list[str] = []
    for word in _split(text):
        words.extend(_split(word) if re.search(r"\s", word) and "--" in word else [word])
    return words


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an odd quote somewhere: words are good enough
        return [word.strip("\"'") for word in re.sub(r"(?m)(^|\s)#.*$", "", text).split()]
