"""A user's own module on fake tensors: its file is executed, and whatever it raises is told in a sentence."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.errors import Fault, InputError, MissingExtraError, ShardwiseError
from shardwise.inputs.traced import ElementType

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

TYPES = {
    "int64": "int64", "int32": "int32", "int8": "int8", "uint8": "uint8", "bool": "bool", "bf16": "bfloat16",
    "fp16": "float16", "fp32": "float32", "bfloat16": "bfloat16", "float16": "float16", "float32": "float32",
}  # fmt: skip
_NOT_THEIRS = ("shardwise/frameworks/torch/trace", "site-packages/torch/", "<")


def loss_of(given: Any) -> Tensor:  # noqa: ANN401 - whatever a module gives
    """Where backward begins: the loss if there is one, else the first floating tensor."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    own = given.get("loss") if isinstance(given, dict) else getattr(given, "loss", None)
    leaves = [own] if isinstance(own, Tensor) else tree_leaves(given)
    found = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not found:
        raise TypeError("the module gives no tensor that has a gradient; let it return its loss")
    return found[0]


def cast(module: Module, dtype: ElementType) -> None:
    """Floating parameters and buffers in the format that is trained in; complex tables stay."""
    import torch

    kind = getattr(torch, TYPES[dtype])
    for part in (*module.parameters(), *module.buffers()):
        if part.is_floating_point() and part.dtype != kind:
            part.data = part.data.to(kind)


@contextmanager
def fake() -> Iterator[Callable[[Path, str], Module]]:
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
            yield built
    finally:
        logger.setLevel(level)
        init._no_grad_trunc_normal_ = drawn


def built(path: Path, name: str) -> Module:
    from importlib.util import module_from_spec, spec_from_file_location

    from torch.nn import Module

    spec = spec_from_file_location(f"shardwise_traced_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(Fault("trace", f"{path} cannot be loaded as Python"))
    file = module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[spec.name] = file
    try:
        with told(str(path), "executing it"):
            spec.loader.exec_module(file)
        build = getattr(file, name, None)
        if not callable(build):
            known = ", ".join(key for key, item in vars(file).items() if callable(item) and not key.startswith("_"))
            raise InputError(Fault("trace", f"{path} has no function {name}; it has {known[:200] or 'none'}"))
        with told(str(path), f"{name}()"):
            module = build if isinstance(build, Module) else build()
    finally:
        sys.path.pop(0)
        del sys.modules[spec.name]
    if not isinstance(module, Module):
        raise InputError(Fault("trace", f"{path}: {name}() gives {type(module).__name__}, not a torch.nn.Module"))
    return module


@contextmanager
def told(source: str, doing: str) -> Iterator[None]:
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
