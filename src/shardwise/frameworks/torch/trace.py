"""A user's own module as blocks that can be planned: its file is executed, its weights are never made."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shardwise.errors import Fault, InputError, MissingExtraError, ShardwiseError
from shardwise.inputs.gate import counted
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.traced import ElementType, Traced

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from shardwise.frameworks.torch.trace_record import Recording
    from shardwise.frameworks.torch.trace_split import Cuts

TYPES = {
    "int64": "int64", "int32": "int32", "int8": "int8", "uint8": "uint8", "bool": "bool", "bf16": "bfloat16",
    "fp16": "float16", "fp32": "float32", "bfloat16": "bfloat16", "float16": "float16", "float32": "float32",
}  # fmt: skip
DTYPES: tuple[ElementType, ...] = ("bf16", "fp16", "fp32")
_INPUT = re.compile(r"\s*([A-Za-z_]\w{0,63})\s*=\s*([0-9]{1,12}(?:x[0-9]{1,12}){0,7})\s*(?::\s*(\w{1,16})\s*)?")
_NOT_THEIRS = ("shardwise/frameworks/torch/trace", "site-packages/torch/", "<")
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


def trace(source: str, inputs: Sequence[str], dtype: str = "bf16") -> Traced:
    """The module that `my_model.py:build` gives, followed forward and backward. The file is executed: it is the user's
    code, and can do whatever its user can.
    """
    asked, path, name = inputs_of(inputs), *_named(source)
    if dtype not in DTYPES:
        raise InputError(Fault("dtype", f"{dtype!r} is no format to trace in; choose {', '.join(DTYPES)}"))
    with _fake() as module_of:
        module = module_of(path, name)
        return traced(module, asked, dtype, ",".join(inputs), source)


def traced(module: Module, asked: Sequence[Input], dtype: ElementType, text: str, source: str) -> Traced:
    """A module that was made on fake tensors, followed with two numbers of samples."""
    from dataclasses import replace

    from shardwise.frameworks.torch.trace_blocks import blocks_of
    from shardwise.frameworks.torch.trace_fold import folded

    _cast(module, dtype)
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
    with _told(source, "following the module"):
        found = folded(few, many, counts, inputs=text, dtype=dtype, seq=seq, names=names, cut=parts)
    idle = round(sum(few.params.values()))
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in module.buffers())
    return replace(found, buffers=buffers, idle=idle, ways=cuts.ways, whole=cuts.whole)


def _recorded(
    module: Module, blocks: dict[str, Module], asked: Sequence[Input], count: int, dtype: ElementType, source: str,
    cuts: Cuts | None = None,
) -> Recording:  # fmt: skip
    from shardwise.frameworks.torch.trace_record import record

    given = _given(asked, count, dtype)
    with _told(source, f"one pass with {count} samples"):
        return record(module, blocks, given, _loss, cuts)


def _cuts(module: Module, asked: Sequence[Input], count: int, dtype: ElementType, source: str) -> Cuts:
    """Where tensor parallel cuts it."""
    from shardwise.frameworks.torch.trace_graph import graph_of
    from shardwise.frameworks.torch.trace_split import cuts_of

    with _told(source, "looking for columns and rows"):
        return cuts_of(*graph_of(module, _given(asked, count, dtype), _loss))


def _given(asked: Sequence[Input], count: int, dtype: ElementType) -> dict[str, Tensor]:
    """The inputs with so many samples."""
    import torch

    given: dict[str, Tensor] = {}
    for one in asked:
        sizes = (count, *one.sizes[1:]) if one.sizes[0] == asked[0].sizes[0] else one.sizes
        kind = getattr(torch, one.type or TYPES[dtype])
        given[one.name] = torch.ones(sizes, dtype=kind)
    return given


def _loss(given: Any) -> Tensor:  # noqa: ANN401 - whatever a module gives
    """Where backward begins: the loss if there is one, else the first floating tensor."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    own = given.get("loss") if isinstance(given, dict) else getattr(given, "loss", None)
    leaves = [own] if isinstance(own, Tensor) else tree_leaves(given)
    found = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not found:
        raise TypeError("the module gives no tensor that has a gradient; let it return its loss")
    return found[0]


def _cast(module: Module, dtype: ElementType) -> None:
    """Floating parameters and buffers in the format that is trained in; complex tables stay."""
    import torch

    kind = getattr(torch, TYPES[dtype])
    for part in (*module.parameters(), *module.buffers()):
        if part.is_floating_point() and part.dtype != kind:
            part.data = part.data.to(kind)


def _named(source: str) -> tuple[Path, str]:
    path, mark, name = source.rpartition(":")
    if not mark or not path.endswith(".py") or not name.isidentifier():
        raise InputError(Fault("trace", f"{source[:80]!r} names no function of a file; write my_model.py:build"))
    if not Path(path).is_file():
        raise InputError(Fault("trace", f"there is no file {path[:200]}"))
    return Path(path), name


@contextmanager
def _fake() -> Iterator[Callable[[Path, str], Module]]:
    """Inside it tensors have shapes and no values; gives what loads a module from a file."""
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError as error:
        raise MissingExtraError("tracing a module", "torch") from error
    from torch.nn import init

    from shardwise.frameworks.torch.trace_record import KnownValues

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level, drawn = logger.level, init._no_grad_trunc_normal_
    logger.setLevel(logging.CRITICAL)  # it prints tracebacks of what we tell in a sentence
    try:
        # it looks at what it has drawn, which fake tensors cannot
        init._no_grad_trunc_normal_ = lambda tensor, *_, **__: tensor
        with FakeTensorMode(allow_non_fake_inputs=True), KnownValues():
            yield _built
    finally:
        logger.setLevel(level)
        init._no_grad_trunc_normal_ = drawn


def _built(path: Path, name: str) -> Module:
    from importlib.util import module_from_spec, spec_from_file_location

    from torch.nn import Module

    spec = spec_from_file_location(f"shardwise_traced_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(Fault("trace", f"{path} cannot be loaded as Python"))
    file = module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[spec.name] = file
    try:
        with _told(str(path), "executing it"):
            spec.loader.exec_module(file)
        build = getattr(file, name, None)
        if not callable(build):
            known = ", ".join(key for key, item in vars(file).items() if callable(item) and not key.startswith("_"))
            raise InputError(Fault("trace", f"{path} has no function {name}; it has {known[:200] or 'none'}"))
        with _told(str(path), f"{name}()"):
            module = build if isinstance(build, Module) else build()
    finally:
        sys.path.pop(0)
        del sys.modules[spec.name]
    if not isinstance(module, Module):
        raise InputError(Fault("trace", f"{path}: {name}() gives {type(module).__name__}, not a torch.nn.Module"))
    return module


@contextmanager
def _told(source: str, doing: str) -> Iterator[None]:
    """Whatever the user's code raises, as a sentence with the last line of its traceback."""
    try:
        yield
    except ShardwiseError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - it is another's code, and may raise anything
        raise InputError(f"{source}: {doing} failed{_place(error)}: {_said(error)}") from None


def _said(error: BaseException) -> str:
    kind = type(error).__name__
    if kind in {"DataDependentOutputException", "DynamicOutputShapeException"}:
        return (
            f"{getattr(error, 'func', error)} needs the values of a tensor, and a trace has shapes only; leave that "
            "branch out of what is traced (experts: products of all groups at once)"
        )
    if kind == "UnsupportedOperatorException":
        return f"{getattr(error, 'func', error)} has no implementation on fake tensors; register one, or leave it out"
    lines = traceback.format_exception_only(type(error), error)[-1].strip().splitlines()
    return (lines[0] if lines else kind)[:400]


def _place(error: BaseException) -> str:
    """The last line of the user's own that was running, or of the library that it called."""
    frames = [(frame.filename.replace("\\", "/"), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    library = str(Path(traceback.__file__).parent)
    others = [
        (file, line)
        for file, line in frames
        if not any(part in file for part in _NOT_THEIRS) and ("site-packages" in file or not file.startswith(library))
    ]
    own = [pair for pair in others if "site-packages" not in pair[0]] or others
    return f" at line {own[-1][1]} of {Path(own[-1][0]).name}" if own else ""
