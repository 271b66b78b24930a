"""The operators of one pass with the tensors that they meet, by which tensor parallel finds its way through them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from shardwise.frameworks.torch.trace_moves import Node, Value
from shardwise.frameworks.torch.trace_record import GpuKernels, gradients_dropped, unpacked
from shardwise.frameworks.torch.trace_split import ALIAS


class Graph(TorchDispatchMode):
    """Writes down the same operators as a `Recorder`, in the same order. It holds no tensor: torch works in place where
    nobody else does.
    """

    def __init__(self, root: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self._root = root
        self._memory: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._values: dict[tuple[Any, ...], Value] = {}
        self._weights = {one.untyped_storage()._cdata: (name, one.stride()) for name, one in root.named_parameters()}
        self._paths = {id(module): path for path, module in root.named_modules()}
        self._owners, self._backward = [""], False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Until it ends, modules say when they begin."""
        modules = nn.modules.module
        before, behind = modules.register_module_forward_pre_hook, modules.register_module_forward_hook
        hooks = [before(self._enter), behind(self._leave)]
        try:
            with gradients_dropped(self._root), self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def turn(self) -> None:
        """Backward begins."""
        self._backward = True

    def value(self, tensor: Tensor) -> Value:
        """What is known of a tensor: two of one memory that lie alike in it are one."""
        storage = tensor.untyped_storage()
        name, steps = self._weights.get(storage._cdata, ("", ()))
        if storage._cdata not in self._memory:
            gone = partial(self._gone, storage._cdata)
            self._memory[storage._cdata] = weakref.ref(storage, gone), len(self._values)
        memory = self._memory[storage._cdata][1]
        key = memory, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())
        if key not in self._values:
            self._values[key] = Value(
                len(self._values), tuple(tensor.shape), tuple(tensor.stride()), memory, name, tuple(steps),
                tensor.requires_grad,
            )  # fmt: skip
        found = self._values[key]
        found.trains = found.trains or tensor.requires_grad
        return found

    def _gone(self, key: int, _: object) -> None:
        self._memory.pop(key, None)

    def _enter(self, module: nn.Module, _: object) -> None:
        self._owners.append(self._paths.get(id(module), self._owners[-1]))

    def _leave(self, module: nn.Module, _: object, __: object) -> None:
        del module
        self._owners.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        space, _, name = func._schema.name.partition("::")
        out = func(*args, **kwargs)
        if space == "prim" or name == ALIAS:
            return out

        def known(leaf: Any) -> Any:  # noqa: ANN401
            return self.value(leaf) if isinstance(leaf, Tensor) else leaf

        given, named = tree_map(known, args), tree_map(known, kwargs)
        self.nodes.append(
            Node(
                name, self._owners[-1], self._backward, torch.Tag.pointwise in func.tags, tuple(given),
                tuple(leaf for leaf in tree_leaves((given, named)) if isinstance(leaf, Value)),
                tuple(self.value(leaf) for leaf in tree_leaves(out) if isinstance(leaf, Tensor)),
            )
        )  # fmt: skip
        return out


def graph_of(
    module: nn.Module, inputs: dict[str, Tensor], loss_of: Callable[[Any], Tensor]
) -> tuple[list[Node], Value]:
    """The operators of one pass, both ways, and the loss."""
    graph = Graph(module)
    with graph.watching():
        with GpuKernels():
            if "position_ids" in inputs:
                given = module(**inputs)
            else:
                with unpacked():
                    given = module(**inputs)
        loss = loss_of(given)
        graph.turn()
        torch.autograd.backward([loss], [torch.ones_like(loss)])
    return graph.nodes, graph.value(loss)
