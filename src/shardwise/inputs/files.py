"""The one reader of files: bounded, and every refusal a sentence.

Only regular files are opened (a pipe or a device may wait, or go on, without end); how much is read, how deep it nests
and how long its numbers are is limited; only safe loaders; no duplicate keys, no NaN or infinity.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from shardwise.errors import FileError
from shardwise.inputs.gate import DIGITS
from shardwise.units import show_bytes

if TYPE_CHECKING:
    import yaml

SIZE_LIMIT = 64 * 2**20
TOML_LIMIT, YAML_LIMIT = 4 * 2**20, 2**20
"""Their parsers are slow: this much takes some ten seconds."""
NODE_LIMIT = 2_000_000
DEPTH_LIMIT = 64

Mapping = dict[str, Any]


@contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """A regular file, opened for reading; whatever goes wrong with it, then or later, is a sentence."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer; on a regular file the flag means nothing.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _refuse_irregular(path, os.fstat(file.fileno()).st_mode)
            yield file
    except FileNotFoundError:
        raise FileError(path, "there is no such file") from None
    except IsADirectoryError:
        raise FileError(path, "is a folder; give a file") from None
    except (OSError, EOFError, zlib.error) as error:  # of gzip, too: what it finds broken is an OSError or one of those
        if isinstance(error, OSError) and error.errno in {6, 19}:  # ENXIO, ENODEV: a socket or an absent device
            raise _endless(path) from None
        raise FileError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except ValueError as error:
        if "null" not in str(error):  # a NUL byte in the name; any other is the reader's own
            raise
        raise FileError(path, f"cannot be read: {error}") from None
    except Exception as error:  # lzma's own is imported only with lzma
        if type(error).__name__ != "LZMAError":
            raise
        raise FileError(path, f"cannot be unpacked: {error}") from None


def _refuse_irregular(path: str | Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise FileError(path, "is a folder; give a file")
    if not stat.S_ISREG(mode):
        raise _endless(path)


def _endless(path: str | Path) -> FileError:
    return FileError(path, "is a pipe or a device, which may never end; save it as a file and give that")


def read_text(path: str | Path) -> str:
    """The text of a file of at most 64 MiB."""
    try:
        return read_bytes(path).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FileError(path, f"is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def read_bytes(path: str | Path) -> bytes:
    """What a regular file holds, unpacked where its name ends in .gz; at most 64 MiB."""
    with opened(path) as file:
        packed = str(path).endswith(".gz")
        source = gunzip(file) if packed else file
        content = source.read(SIZE_LIMIT + 1)
        if len(content) > SIZE_LIMIT:
            whole = "more" if packed else show_bytes(max(os.fstat(file.fileno()).st_size, len(content)))
            raise FileError(path, f"holds {whole}; files of up to {show_bytes(SIZE_LIMIT)} are read")
        return content


def gunzip(file: IO[bytes]) -> Any:  # noqa: ANN401 - a file of another class
    """What a gzip file holds."""
    import gzip

    return gzip.GzipFile(fileobj=file)


def read_json(path: str | Path) -> Any:  # noqa: ANN401 - a file can hold anything
    """Any value in a JSON file, whatever the file is called."""
    return _parsed(_parse_json, read_text(path), path)


def read_mapping(path: str | Path) -> Mapping:
    """A file of keys and values; its form is told by its name, else by its text."""
    return parse_mapping(read_text(path), path)


def parse_mapping(text: str, path: str | Path) -> Mapping:
    """Keys and values of a text; `path` names it in errors and its ending tells the form."""
    data = _parsed(_PARSERS.get(Path(path).suffix.lower()) or _by_content(text), text, path)
    if not isinstance(data, dict):
        raise FileError(path, f"holds {_kind(data)} at the top; it must hold keys and values")
    return data


def _parsed(parse: Callable[[str, str | Path], Any], text: str, path: str | Path) -> Any:  # noqa: ANN401
    try:
        data = parse(text, path)
    except RecursionError:
        raise FileError(path, "is nested too deeply to be an input of ours") from None
    except ValueError as error:
        raise FileError(path, _odd_value(error)) from None
    _refuse_strange(data, path)
    return data


def _odd_value(error: ValueError) -> str:
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


def _refuse_long(text: str, path: str | Path, form: str, limit: int) -> None:
    if len(text) > limit:
        said = f"is {show_bytes(len(text))} of {form}, which is slow to read; up to {show_bytes(limit)} are read"
        raise FileError(path, f"{said}: write it as JSON, of which {show_bytes(SIZE_LIMIT)} are")


def _parse_toml(text: str, path: str | Path) -> Any:  # noqa: ANN401 - a file can hold anything
    _refuse_long(text, path, "TOML", TOML_LIMIT)
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
    return f"is not valid JSON: {error.msg.removesuffix(' at')} at {where}"


def _unique(pairs: list[tuple[str, Any]], path: str | Path) -> Mapping:
    found: Mapping = {}
    for key, value in pairs:
        if key in found:
            raise FileError(path, f"gives {key!r} twice; keep one of the two")
        found[key] = value
    return found


def _parse_yaml(text: str, path: str | Path) -> Any:  # noqa: ANN401
    import yaml

    _refuse_long(text, path, "YAML", YAML_LIMIT)

    merge = "tag:yaml.org,2002:merge"

    class Loader(yaml.SafeLoader):
        """Safe loading that refuses duplicate keys and reads 1e9 as a number."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> Mapping:
        own = [(_key(loader, key), value) for key, value in node.value if key.tag != merge]
        _unique(own, path)
        loader.flatten_mapping(node)  # puts what is merged (<<) first: own keys go before it
        return {_key(loader, key): loader.construct_object(value, deep=True) for key, value in node.value}

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


def _refuse_strange(data: object, path: str | Path) -> None:
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
        elif isinstance(value, int) and abs(value) >= 10**DIGITS:
            raise FileError(
                path, f"{at} is a whole number of over {DIGITS} digits; no setting is that large: correct it"
            )
        elif isinstance(value, float) and not math.isfinite(value):
            raise FileError(path, f"{at} is {value}, which is not a number to plan with; write a finite one")
        elif isinstance(value, str) and not _is_text(value):
            raise FileError(path, f"{ascii(at)[1:-1]} holds half of a character (a lone surrogate); correct it")


def _is_text(value: str) -> bool:
    """Whether it can be written: JSON can spell halves of characters that no file can hold."""
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
