"""One forward and backward pass of a module on fake tensors, operator by operator; the only file here that needs torch.

Every operator is seen below autograd, so that backward's are seen, too. An autograd node carries the number that was
next when its operator was called: this is how what is saved, and what runs backward, finds its operator of forward.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as fn
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardwise.errors import InputError
from shardwise.frameworks.torch.trace_ops import ATTENTIONS, SILENT, Cost, Seen, cost_of
from shardwise.frameworks.torch.trace_split import ALIAS, RANKS, CallCut, TensorCuts

STEPS = 4096
ROW_SUMS = 12.0
"""Bytes of a row of logits that ranks add up: the largest, that of the target, the sum of exponentials."""
LAST = 2**62
"""Numbers of nodes beyond this are those of nodes that gather gradients, which have none."""


@dataclass(slots=True)
class Call:
    """One operator that ran."""

    name: str
    owner: str
    """Path of the module that called it."""
    segment: int
    """Its place in the chain: 0 before the first block, then block by block; the last one is behind them."""
    cost: Cost | None
    """None: it launches nothing."""
    live: float
    """Bytes of activations once it is done."""
    of: int = -1
    """Backward: the operator of forward that it belongs to."""
    kept: float = 0.0
    """Bytes that stay for its backward, each where it is saved first."""
    params: float = 0
    """Parameters that it is the first to read."""
    sums: float = 0.0
    """Bytes of its results that tensor parallel adds up over the ranks."""
    sums_back: float = 0.0
    """Bytes of gradients of its inputs that it adds up in backward."""


@dataclass(slots=True)
class Held:
    """A tensor's memory."""

    bytes: float
    segment: int
    trains: bool = False
    """Something that has a gradient was read from it."""
    kept: int = -1
    """The first operator that saves it."""
    readers: set[int] = field(default_factory=set)
    """Segments that read it."""


@dataclass(slots=True)
class Recording:
    """What ran."""

    forward: list[Call] = field(default_factory=list)
    backward: list[Call] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    """Paths of the blocks in the order in which they began."""
    memory: list[Held] = field(default_factory=list)
    """Of everything that was made in forward, and of the inputs."""
    params: dict[str, float] = field(default_factory=dict)
    """Parameters that nothing read, by name."""
    shared: list[tuple[int, int, float]] = field(default_factory=list)
    """Parameters that later segments read again: first segment, later one, how many."""


class KnownValues(TorchFunctionMode):
    """Gives values to what modules decide by: short rows of equal steps, their rates of dropped paths, and single
    random numbers, by which they draw layers to skip: none is skipped.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        if func is torch.rand and list(args) in ([], [[]], [1], [()], [[1]], [(1,)]):
            return torch.tensor(1.0)
        if func is torch.linspace and len(args) == 3 and all(isinstance(one, int | float) for one in args):
            start, end, steps = args
            if 1 < steps <= STEPS:
                return torch.tensor([start + (end - start) * index / (steps - 1) for index in range(steps)])
        return func(*args, **(kwargs or {}))


class GpuKernels(TorchFunctionMode):
    """Calls the operators that a GPU would run where fake tensors of a CPU would take other ones."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        if func is fn.scaled_dot_product_attention:
            return attention(*args, **(kwargs or {}))
        if func in {torch.rms_norm, fn.rms_norm}:
            return rms_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """As torch chooses on a GPU: one fused kernel in 16 bit, in 32 the memory-efficient one, and plain products where a
    mask learns.
    """
    aten = torch.ops.aten
    lead = query.shape[:-2]
    query, key, value = (one.reshape(-1, *one.shape[-3:]) if one.dim() > 4 else one for one in (query, key, value))
    if query.dim() < 4:
        query, key, value = (one.unsqueeze(0) for one in (query, key, value))
    learns = attn_mask is not None and attn_mask.requires_grad
    fused = query.element_size() == 2 and not learns
    if fused and attn_mask is None and query.shape[-1] == value.shape[-1]:
        out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    else:
        if enable_gqa and key.shape[1] != query.shape[1]:
            key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, float("-inf"))
        grows = torch.is_grad_enabled()
        if learns:
            plain = aten._scaled_dot_product_attention_math
            out = plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]
        elif fused:
            kernel = aten._scaled_dot_product_cudnn_attention
            out = kernel(query, key, value, attn_mask, grows, dropout_p, is_causal, scale=scale)[0]
        else:
            attn_mask = None if attn_mask is None else attn_mask.expand(*query.shape[:3], key.shape[2])
            kernel = aten._scaled_dot_product_efficient_attention
            out = kernel(query, key, value, attn_mask, grows, dropout_p, is_causal, scale=scale)[0]
    made: Tensor = out.reshape(*lead, *out.shape[-2:]) if out.dim() != len(lead) + 2 else out
    return made


@contextmanager
def gradients_dropped(root: nn.Module) -> Iterator[None]:
    """Inside it gradients of parameters go as soon as they are there."""
    with ExitStack() as stack:
        for parameter in root.parameters():
            if parameter.requires_grad:
                drop = partial(setattr, parameter, "grad", None)
                hook = parameter.register_post_accumulate_grad_hook(lambda _, drop=drop: drop())  # type: ignore[no-untyped-call]
                stack.callback(hook.remove)
        yield


@contextmanager
def unpacked() -> Iterator[None]:
    """Inside it transformers takes the positions that its models count themselves for those of one document a sample,
    as they are: it looks at their values, which fake tensors have not, and else makes a mask that a run does without.
    """
    masks = sys.modules.get("transformers.masking_utils")
    found = getattr(masks, "find_packed_sequence_indices", None)
    if found is None:
        yield
        return
    try:
        masks.find_packed_sequence_indices = lambda *_, **__: None  # type: ignore[union-attr]
        yield
    finally:
        masks.find_packed_sequence_indices = found  # type: ignore[union-attr]


class _FusedNorm(torch.autograd.Function):
    """RMS norm in one kernel each way, as on a GPU: it moves what a layer norm moves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: list[int], weight: Tensor | None, eps: float) -> Tensor:  # noqa: ANN401
        out, mean, rstd = torch.native_layer_norm(x, shape, weight, None, eps)
        ctx.shape = shape
        ctx.save_for_backward(x, rstd, weight)
        del mean
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, rstd, weight = ctx.saved_tensors
        mask = [True, weight is not None, False]
        back = torch.ops.aten.native_layer_norm_backward
        gradient, of_weight, _ = back(grad, x, ctx.shape, rstd, rstd, weight, None, mask)
        return gradient, None, of_weight, None


def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:  # noqa: A002, ANN401
    found: Tensor = _FusedNorm.apply(input, list(normalized_shape), weight, eps or 1e-6)  # type: ignore[no-untyped-call]
    return found


class Recorder(TorchDispatchMode):
    """Writes down every operator of one pass through a module."""

    def __init__(
        self, root: nn.Module, blocks: dict[str, nn.Module], inputs: list[Tensor], cuts: TensorCuts | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found, self._cuts, self._seen = Recording(), cuts, 0
        self._root, self._blocks = root, {id(module): path for path, module in blocks.items()}
        self._paths = {id(module): path for path, module in root.named_modules()}
        self._owners, self._inside, self._segment = [""], 0, 0
        self._alive: dict[int, tuple[weakref.ref[Any], Held]] = {}
        self._live = 0.0
        self._numbers: dict[int, int] = {}
        self._saved: list[tuple[int, Held]] = []
        self._backward = False
        self._weights: dict[int, tuple[str, float]] = {}
        self._read: dict[int, int] = {}
        self._lasting = self._of_module()
        for one in inputs:
            self._born(one)

    def _of_module(self) -> list[Any]:
        """Memory of parameters and buffers, held so that no other can take its number."""
        held = []
        for name, parameter in self._root.named_parameters():
            storage = parameter.untyped_storage()
            held.append(storage)
            share = RANKS if self._cuts and name in self._cuts.weights else 1
            self._weights[storage._cdata] = name, parameter.numel() / share
        for buffer in self._root.buffers():
            held.append(buffer.untyped_storage())
            self._weights.setdefault(held[-1]._cdata, ("", 0))
        self.found.params = {name: number for name, number in self._weights.values() if name}
        return held

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Until it ends, modules say when they begin, and autograd what it saves."""
        with ExitStack() as stack:
            modules = nn.modules.module
            for made in (
                modules.register_module_forward_pre_hook(self._enter),
                modules.register_module_forward_hook(self._leave),
            ):
                stack.callback(made.remove)
            stack.enter_context(gradients_dropped(self._root))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved))
            stack.enter_context(self)
            yield

    def turn(self) -> None:
        """Forward is done: what is saved is known, and backward begins."""
        self._backward = True
        alive = {id(memory) for _, memory in self._alive.values()}  # of branches that lead nowhere, nothing stays
        for number, memory in self._saved:
            if id(memory) not in alive:
                continue
            index = self._numbers.get(number, len(self.found.forward) - 1)
            if memory.kept < 0 or index < memory.kept:
                memory.kept = index

    def _enter(self, module: nn.Module, _: object) -> None:
        if self._backward:
            name = self._paths.get(id(module), type(module).__name__)
            raise InputError(
                f"{name or 'the module'} runs again in backward (torch.utils.checkpoint); turn that off for the trace: "
                "what is recomputed is the strategy's to say"
            )
        self._owners.append(self._paths.get(id(module), self._owners[-1]))
        if id(module) in self._blocks:
            if not self._inside:
                self.found.starts.append(self._blocks[id(module)])
                self._segment = 2 * len(self.found.starts) - 1
            self._inside += 1

    def _leave(self, module: nn.Module, _: object, __: object) -> None:
        self._owners.pop()
        if id(module) in self._blocks:
            self._inside -= 1
            self._segment += not self._inside

    def _pack(self, tensor: Tensor) -> Tensor:
        known = self._alive.get(tensor.untyped_storage()._cdata)
        if known:
            self._saved.append((_next_number() - 1, known[1]))
        return tensor

    def _born(self, tensor: Tensor, dim: int = -1) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or key in self._weights:
            return
        memory = Held(storage.nbytes() / (1 if dim < 0 else RANKS), place_of(self._segment))
        self._alive[key] = weakref.ref(storage, partial(self._gone, key)), memory
        self._live += memory.bytes
        if not self._backward:
            self.found.memory.append(memory)

    def _gone(self, key: int, _: object) -> None:
        found = self._alive.pop(key, None)
        if found:
            self._live -= found[1].bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        space, _, name = func._schema.name.partition("::")
        if space == "prim":  # questions that Python asks a tensor
            return func(*args, **(kwargs or {}))
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        fresh = 0 if self._backward else self._reads(inputs)
        out = func(*args, **(kwargs or {}))
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        cut = self._cut(name, len(inputs), len(outputs))
        before = len(self._alive), self._live
        for one, dim in zip(outputs, cut.outs, strict=True):
            self._born(one, dim)
        launches = (len(self._alive), self._live) != before or func._schema.is_mutable
        if name in SILENT or not outputs:
            launches = False
        cost = _cost(name, args, inputs, outputs, cut) if launches else None
        sums = _bytes(outputs[:1]) * cut.sums + (ROW_SUMS * outputs[0][..., 0].numel() if cut.rows else 0.0)
        back = _bytes([inputs[place] for place in cut.sums_back])
        call = Call(name, self._owners[-1], place_of(self._segment), cost, self._live, sums=sums, sums_back=back)
        self._write(call, fresh)
        return out

    def _cut(self, name: str, inputs: int, outputs: int) -> CallCut:
        """What of this operator's tensors is cut."""
        if self._cuts is None or name == ALIAS:
            return CallCut((-1,) * inputs, (-1,) * outputs)
        self._seen += 1
        cut = self._cuts.calls[self._seen - 1] if self._seen <= len(self._cuts.calls) else CallCut()
        if (len(cut.ins), len(cut.outs)) != (inputs, outputs):
            raise InputError(f"{name} runs in another order the second time; a trace needs the same every time")
        return cut

    def _write(self, call: Call, params: float) -> None:
        if self._backward:
            node = torch._C._current_autograd_node()
            number = node._sequence_nr() if node is not None else LAST
            last = self.found.backward[-1].of if self.found.backward else len(self.found.forward) - 1
            call.of = self._numbers.get(number, last) if number < LAST else last
            self.found.backward.append(call)
            return
        call.params = params
        self._numbers.setdefault(_next_number() - 1, len(self.found.forward))
        self.found.forward.append(call)

    def _reads(self, inputs: list[Tensor]) -> float:
        """Parameters that are read for the first time; of other memory, who reads it."""
        segment, fresh = place_of(self._segment), 0.0
        for one in inputs:
            key = one.untyped_storage()._cdata
            if key in self._weights:
                name, number = self._weights[key]
                first = self._read.setdefault(key, segment)
                if self.found.params.pop(name, None) is not None:
                    fresh += number
                elif first < segment and (first, segment, number) not in self.found.shared and number:
                    self.found.shared.append((first, segment, number))
            elif key in self._alive:
                memory = self._alive[key][1]
                memory.readers.add(segment)
                memory.trains = memory.trains or one.requires_grad
        return fresh


def place_of(segment: int) -> int:
    """What runs between two blocks (even segments) belongs to the later one."""
    return segment // 2 + 1 if segment else 0


def _next_number() -> int:
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def _cost(name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor], cut: CallCut) -> Cost:  # noqa: ANN401
    seen_in, seen_out = (
        [_seen(one, dim) for one, dim in zip(tensors, dims, strict=True)]
        for tensors, dims in ((inputs, cut.ins), (outputs, cut.outs))
    )
    causal = name in ATTENTIONS and any(one is True for one in args[4 if "flash" in name else 6 :])
    steps, groups = {"convolution": (args[3:4], args[8:9]), "convolution_backward": (args[4:5], args[9:10])}.get(
        name, ((), ())
    )
    unit = all(step == 1 for one in steps for step in one)
    return cost_of(name, seen_in, seen_out, flag=causal, groups=groups[0] if groups else 1, unit=unit)


def _bytes(tensors: list[Tensor]) -> float:
    return float(sum(one.numel() * one.element_size() for one in tensors))


def _seen(tensor: Tensor, dim: int) -> Seen:
    shape: list[Any] = list(tensor.shape)
    if dim >= 0:
        shape[dim] /= RANKS
    return Seen(tuple(shape), tuple(tensor.stride()), tensor.element_size(), tensor.is_contiguous())


def record(
    module: nn.Module, blocks: dict[str, nn.Module], inputs: dict[str, Tensor], loss_of: Callable[[Any], Tensor],
    cuts: TensorCuts | None = None,
) -> Recording:  # fmt: skip
    """One pass, both ways; `loss_of`: what backward begins at, of what the module gives; `cuts`: as a rank of tensor
    parallel has it.
    """
    recorder = Recorder(module, blocks, list(inputs.values()), cuts)
    with ExitStack() as stack:
        if "position_ids" not in inputs:
            stack.enter_context(unpacked())
        stack.enter_context(recorder.watching())
        with GpuKernels():
            given = module(**inputs)
        loss = loss_of(given)
        del given
        recorder.turn()
        torch.autograd.backward([loss], [torch.ones_like(loss)])
    _keep(recorder.found)
    return recorder.found


def _keep(found: Recording) -> None:
    """What is saved counts once, at its first saver; tables that no gradient reaches are told apart later."""
    for memory in found.memory:
        if memory.kept >= 0:
            found.forward[memory.kept].kept += memory.bytes
