"""Reading a TOML, YAML or JSON file into plain values, with every refusal a sentence.

Only safe loaders; a size limit; no duplicate keys, no NaN or infinity, nothing nested without end.
"""

from __future__ import annotations

import json
import math
import re
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.errors import FileError
from shardwise.units import show_bytes

if TYPE_CHECKING:
    import yaml

SIZE_LIMIT = 64 * 2**20
NODE_LIMIT = 2_000_000
DEPTH_LIMIT = 64

Mapping = dict[str, Any]


def read_text(path: str | Path) -> str:
    """The text of a file of at most 64 MiB."""
    try:
        return read_bytes(path).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FileError(path, f"is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def read_bytes(path: str | Path) -> bytes:
    """What a regular file holds, at most 64 MiB of it; a device or a pipe could go on, or wait, without end."""
    path = Path(path)
    try:
        state = path.stat()
        if stat.S_ISDIR(state.st_mode):
            raise FileError(path, "is a folder; give a file")
        if not stat.S_ISREG(state.st_mode):
            raise FileError(path, "is a pipe or a device, which may never end; save it as a file and give that")
        with path.open("rb") as file:
            content = file.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        raise FileError(path, "there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise FileError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > SIZE_LIMIT:
        said = show_bytes(max(state.st_size, len(content)))
        raise FileError(path, f"is {said}; files of up to {show_bytes(SIZE_LIMIT)} are read")
    return content


def read_mapping(path: str | Path) -> Mapping:
    """A file of keys and values; its form is told by its name, else by its text."""
    return parse_mapping(read_text(path), path)


def parse_mapping(text: str, path: str | Path) -> Mapping:
    """Keys and values of a text; `path` names it in errors and its ending tells the form."""
    parse = _PARSERS.get(Path(path).suffix.lower()) or _by_content(text)
    try:
        data = parse(text, path)
    except RecursionError:
        raise FileError(path, "is nested too deeply to be an input of ours") from None
    except ValueError as error:
        raise FileError(path, odd_value(error)) from None
    if not isinstance(data, dict):
        raise FileError(path, f"holds {_kind(data)} at the top; it must hold keys and values")
    _refuse_strange(data, path)
    return data


def odd_value(error: ValueError) -> str:
    """What a parser could not turn into a value, in our words; Python reads no number of more than 4,300 digits."""
    if "digits" in str(error):
        return "holds a whole number of more than 4,300 digits; no setting is that large: correct it"
    return f"holds a value that cannot be read: {error}"


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return {list: "a list", str: "a text", bool: "a truth value"}.get(type(value), "a number")


def _by_content(text: str) -> Callable[[str, str | Path], Any]:
    if text.lstrip().startswith(("{", "[{", "//", "/*")):
        return _parse_json
    toml = re.search(r"^\s*(\[[\w.\"\-\]\[ ]+\]|[\w.\"\-]+\s*=)", text, re.MULTILINE)
    return _parse_toml if toml else _parse_yaml


def _parse_toml(text: str, path: str | Path) -> Any:  # noqa: ANN401 - a file can hold anything
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileError(path, f"is not valid TOML: {error}") from None


def _parse_json(text: str, path: str | Path) -> Any:  # noqa: ANN401
    def unique(pairs: list[tuple[str, Any]]) -> Mapping:
        return _unique(pairs, path)

    def refuse(word: str) -> float:
        raise FileError(path, f"holds {word}, which is not a number; write a finite one")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise FileError(path, _json_message(text, error)) from None


def _json_message(text: str, error: json.JSONDecodeError) -> str:
    where = f"line {error.lineno} column {error.colno}"
    rest = text[error.pos :].lstrip()
    line = (text.splitlines()[error.lineno - 1 : error.lineno] or [""])[0]  # a file cut off ends past its last line
    if rest.startswith(("//", "/*", "#")) or re.search(r"(//|/\*)", line):
        return f"has a comment at {where}; JSON has no comments: remove it, or write the file as TOML or YAML"
    return f"is not valid JSON: {error.msg} at {where}"


def _unique(pairs: list[tuple[str, Any]], path: str | Path) -> Mapping:
    found: Mapping = {}
    for key, value in pairs:
        if key in found:
            raise FileError(path, f"gives {key!r} twice; keep one of the two")
        found[key] = value
    return found


def _parse_yaml(text: str, path: str | Path) -> Any:  # noqa: ANN401
    import yaml

    class Loader(yaml.SafeLoader):
        """Safe loading that refuses duplicate keys and reads 1e9 as a number."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> Mapping:
        loader.flatten_mapping(node)
        pairs = [(_key(loader, key), loader.construct_object(value, deep=True)) for key, value in node.value]
        return _unique(pairs, path)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    # YAML 1.1 wants a dot and a sign in the exponent, so PyYAML reads 1e9 as a text; people mean the number.
    exponent = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9]*)?[eE][-+]?[0-9]+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    try:
        return yaml.load(text, Loader=Loader)  # noqa: S506 - a subclass of the safe loader
    except yaml.YAMLError as error:
        raise FileError(path, f"is not valid YAML: {' '.join(str(error).split())}") from None


def _key(loader: yaml.SafeLoader, node: yaml.Node) -> str:
    return str(loader.construct_object(node, deep=True))


_PARSERS: dict[str, Callable[[str, str | Path], Any]] = {
    ".toml": _parse_toml,
    ".json": _parse_json,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
}


def _refuse_strange(data: Mapping, path: str | Path) -> None:
    """Refuse NaN, infinity and halves of characters, and what is too large once YAML references are followed."""
    seen = 0
    stack: list[tuple[Any, str, int]] = [(data, "", 0)]
    while stack:
        value, at, depth = stack.pop()
        seen += 1
        if seen > NODE_LIMIT or depth > DEPTH_LIMIT:
            raise FileError(path, f"holds more than {NODE_LIMIT:,} values or nests deeper than {DEPTH_LIMIT}")
        if isinstance(value, dict):
            stack.extend((key, at, depth) for key in value if isinstance(key, str) and not key.isascii())
            stack.extend((inner, f"{at}.{key}" if at else str(key), depth + 1) for key, inner in value.items())
        elif isinstance(value, list):
            stack.extend((inner, f"{at}.{index}", depth + 1) for index, inner in enumerate(value))
        elif isinstance(value, float) and not math.isfinite(value):
            raise FileError(path, f"{at} is {value}, which is not a number to plan with; write a finite one")
        elif isinstance(value, str) and not _is_text(value):
            raise FileError(path, f"{ascii(at)[1:-1]} holds half of a character (a lone surrogate); correct it")


def _is_text(value: str) -> bool:
    """Whether it can be written: JSON can spell halves of characters that no file can hold."""
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
