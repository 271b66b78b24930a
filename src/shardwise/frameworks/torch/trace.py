"""A user's own module as blocks that can be planned: its file is executed, its weights are never made."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shardwise.errors import Fault, InputError
from shardwise.frameworks.torch.trace_build import TYPES, cast, fake, loss_of, told
from shardwise.inputs.gate import counted
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.traced import ElementType, Traced

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from shardwise.frameworks.torch.trace_record import Recording
    from shardwise.frameworks.torch.trace_split import TensorCuts

DTYPES: tuple[ElementType, ...] = ("bf16", "fp16", "fp32")
_INPUT = re.compile(r"\s*([A-Za-z_]\w{0,63})\s*=\s*([0-9]{1,12}(?:x[0-9]{1,12}){0,7})\s*(?::\s*(\w{1,16})\s*)?")
MOST_PLACES = 2**40
"""Elements of an input."""


class Input(NamedTuple):
    """One input of the module."""

    name: str
    sizes: tuple[int, ...]
    type: str


def inputs_of(texts: Sequence[str]) -> list[Input]:
    """`ids=1x4096:int64` and its like, with commas between several."""
    parts = [part for text in texts for part in text.split(",")]
    found, faults = list[Input](), list[Fault]()
    for part in parts:
        try:
            found.append(_input(part))
        except InputError as error:
            faults += error.faults
    names = [one.name for one in found]
    faults += [
        Fault("input", f"{name} is given twice; keep one") for name in sorted(set(names)) if names.count(name) > 1
    ]
    if not parts:
        faults.append(Fault("input", "is missing; say what the module is called with, such as ids=1x4096:int64"))
    if faults:
        raise InputError(faults)
    return found


def _input(text: str) -> Input:
    match = _INPUT.fullmatch(text)
    if not match:
        raise InputError(Fault("input", f"{text[:60]!r} is no input; write name=sizes:type, such as ids=1x4096:int64"))
    name, sizes, kind = (
        match[1],
        [counted(one, SCALARS["foreign.count"], "input") for one in match[2].split("x")],
        match[3],
    )
    if kind and kind not in TYPES:
        raise InputError(Fault("input", f"{name}: {kind} is no type; choose {', '.join(TYPES)}"))
    places = 1
    for size in sizes:
        places *= size
    if places > MOST_PLACES:
        raise InputError(Fault("input", f"{name} has {places:,} elements; give at most {MOST_PLACES:,}"))
    return Input(name, tuple(sizes), TYPES.get(kind or "", ""))


def trace(
    source: str, inputs: Sequence[str], dtype: str = "bf16", *, executing: Callable[[Path], object] | None = None
) -> Traced:
    """The module that `my_model.py:build` gives, followed forward and backward. The file is executed: it is the user's
    code, and can do whatever its user can; `executing` is told of it first.
    """
    asked, path, name = inputs_of(inputs), *file_of(source)
    if dtype not in DTYPES:
        raise InputError(Fault("dtype", f"{dtype!r} is no format to trace in; choose {', '.join(DTYPES)}"))
    with fake() as module_of:
        if executing:
            executing(path)
        module = module_of(path, name)
        return traced(module, asked, dtype, ",".join(inputs), source)


def traced(module: Module, asked: Sequence[Input], dtype: ElementType, text: str, source: str) -> Traced:
    """A module that was made on fake tensors, followed with two numbers of samples."""
    from dataclasses import replace

    from shardwise.frameworks.torch.trace_blocks import blocks_of
    from shardwise.frameworks.torch.trace_fold import folded

    cast(module, dtype)
    blocks = blocks_of(module) or {"": module}
    each = asked[0].sizes[0]
    counts = (max(2, each), max(2, each) + 1)
    few, many = (_recorded(module, blocks, asked, count, dtype, source) for count in counts)
    if not few.starts:
        blocks = {"": module}
        few, many = (_recorded(module, blocks, asked, count, dtype, source) for count in counts)
    cuts = _cuts(module, asked, counts[0], dtype, source)
    parts = None
    if cuts.weights:
        one, other = (_recorded(module, blocks, asked, count, dtype, source, cuts) for count in counts)
        parts = one, other
    first = asked[0]
    seq = first.sizes[1] if len(first.sizes) == 2 and "int" in first.type else 1
    names = {path: type(part).__name__ for path, part in blocks.items()}
    with told(source, "following the module"):
        found = folded(few, many, counts, inputs=text, dtype=dtype, seq=seq, names=names, cut=parts)
    idle = round(sum(few.params.values()))
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in module.buffers())
    return replace(found, buffers=buffers, idle=idle, ways=cuts.ways, whole=cuts.whole)


def _recorded(
    module: Module, blocks: dict[str, Module], asked: Sequence[Input], count: int, dtype: ElementType, source: str,
    cuts: TensorCuts | None = None,
) -> Recording:  # fmt: skip
    from shardwise.frameworks.torch.trace_record import record

    given = _given(asked, count, dtype)
    with told(source, f"one pass with {count} samples"):
        return record(module, blocks, given, loss_of, cuts)


def _cuts(module: Module, asked: Sequence[Input], count: int, dtype: ElementType, source: str) -> TensorCuts:
    """Where tensor parallel cuts it."""
    from shardwise.frameworks.torch.trace_graph import graph_of
    from shardwise.frameworks.torch.trace_split import cuts_of

    with told(source, "looking for columns and rows"):
        return cuts_of(*graph_of(module, _given(asked, count, dtype), loss_of))


def given_sizes(text: str, count: int, dtype: ElementType) -> list[tuple[str, tuple[int, ...], str]]:
    """Names, sizes and torch's types of the inputs that a text says, with so many samples."""
    return _sizes(inputs_of([text]), count, dtype)


def _sizes(asked: Sequence[Input], count: int, dtype: ElementType) -> list[tuple[str, tuple[int, ...], str]]:
    each = asked[0].sizes[0]
    return [
        (one.name, (count, *one.sizes[1:]) if one.sizes[0] == each else one.sizes, one.type or TYPES[dtype])
        for one in asked
    ]


def _given(asked: Sequence[Input], count: int, dtype: ElementType) -> dict[str, Tensor]:
    """The inputs with so many samples."""
    import torch

    return {name: torch.ones(sizes, dtype=getattr(torch, kind)) for name, sizes, kind in _sizes(asked, count, dtype)}


def file_of(source: str) -> tuple[Path, str]:
    path, mark, name = source.rpartition(":")
    if not mark or not path.endswith(".py") or not name.isidentifier():
        raise InputError(Fault("trace", f"{source[:80]!r} names no function of a file; write my_model.py:build"))
    if not Path(path).is_file():
        raise InputError(Fault("trace", f"there is no file {path[:200]}"))
    return Path(path), name
