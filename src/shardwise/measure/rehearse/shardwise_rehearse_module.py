"""Count one rank of a plan with the user's own module; `rehearse --trace` runs this file in a process of its own.

The module is built on fake tensors, by its own file, which is executed. Of the blocks those of the rank run, those
before them give empty tensors of the form that they gave once, and what would follow the rank's last one is left out.
FakeStates, shares of ZeRO and the count of bytes are those of the rehearsal's program.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

from shardwise.errors import InputError, ShardwiseError
from shardwise.frameworks.torch.trace_blocks import blocks_of
from shardwise.frameworks.torch.trace_build import built, cast, fake, loss_of, told
from shardwise.frameworks.torch.trace_record import GpuKernels, unpacked
from shardwise.measure.rehearse import shardwise_rehearse as program
from shardwise.measure.rehearse.shardwise_rehearse import (
    RANKS,
    Clock,
    Counter,
    Enter,
    Exit,
    Home,
    ParameterStates,
    Unit,
    accumulate,
)  # fmt: skip


class StageDone(Exception):  # noqa: N818 - a way out of somebody else's code
    """The rank's last block is done; carries what the next one was called with."""

    def __init__(self, given: list[Tensor]) -> None:
        self.given = given


class FakeStates(ParameterStates):
    """Fake tensors have no address to compare."""

    def renew(self) -> None:
        return


def run(module: nn.Module, given: dict[str, Tensor]) -> Any:  # noqa: ANN401
    """Forward, with the kernels of a GPU."""
    with GpuKernels():
        return module(**given)


class ChunkBlocks:
    """The outermost blocks of a module, called through here: which of them run is a chunk's to say."""

    def __init__(self, module: nn.Module, wanted: int) -> None:
        self.module, self.formed, self.calls, self.inside = module, list[Any](), list[nn.Module](), False
        self.at, self.range, self.again = 0, (0, 10**9), 0
        self.around: Callable[..., Any] = lambda _, work, *args, **named: work(*args, **named)
        for block in blocks_of(module).values() if wanted > 1 else [module]:
            block.forward = self.wrapped(block, block.forward)

    def wrapped(self, block: nn.Module, work: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **named: Any) -> Any:  # noqa: ANN401
            if self.inside:
                return work(*args, **named)
            place, (start, stop) = self.at, self.range
            self.at += 1
            if place < start:
                return tree_map(lambda x: torch.empty_like(x) if isinstance(x, Tensor) else x, self.formed[place])
            if place == stop:
                raise StageDone([x for x in tree_leaves((args, named)) if isinstance(x, Tensor) and x.requires_grad])
            if place == start > 0:
                torch.set_grad_enabled(True)
                args, named = tree_map(self.received, (args, named))
            self.inside = True
            try:
                run = self.recomputed(work) if place - start < self.again else work
                out = self.around(block, run, *args, **named)
            finally:
                self.inside = False
            if len(self.formed) == place:
                self.formed.append(tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, out))
                self.calls.append(block)
            return out

        return forward

    @staticmethod
    def recomputed(work: Callable[..., Any]) -> Callable[..., Any]:
        """Backward leaves the modes of functions, so that what runs again enters them by itself."""

        def again(*args: Any, **named: Any) -> Any:  # noqa: ANN401
            with GpuKernels():
                return work(*args, **named)

        return lambda *args, **named: checkpoint(again, *args, use_reentrant=False, **named)

    @staticmethod
    def received(x: Any) -> Any:  # noqa: ANN401
        """What another rank has sent."""
        return x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x


class Reads(TorchDispatchMode):
    """Notes in which places of the chain each parameter is read: 0 before the first block, then block by block; what is
    read between two blocks belongs to the later one.
    """

    def __init__(self, blocks: ChunkBlocks) -> None:
        super().__init__()
        self.blocks, self.places = blocks, dict[int, set[int]]()
        self.names = {p.untyped_storage()._cdata: id(p) for p in blocks.module.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        at = self.blocks.at
        place = at if self.blocks.inside or not at else at + 1
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata in self.names:
                self.places.setdefault(self.names[leaf.untyped_storage()._cdata], set()).add(place)
        return func(*args, **(kwargs or {}))


class ModuleRank:
    """The blocks of one rank with their states, and one iteration of its schedule."""

    def __init__(self, spec: dict[str, Any], device: str, counter: Counter | None = None) -> None:
        self.spec, self.device, self.home, self.told = (
            spec,
            device,
            Home(spec, counter),
            {"framework": "its own module"},
        )
        self.module, self.blocks, self.places = spec["built"]
        self.roots: list[Unit] = []
        self.live: dict[tuple[int, int], list[Tensor]] = {}
        owned = [self._parts(chunk) for chunk in spec["chunks"]]
        self.parameters = list({id(p): p for units in owned for unit in units for p in unit}.values())
        mine = set(map(id, self.parameters))
        for parameter in self.module.parameters():
            if counter is not None and id(parameter) not in mine:
                counter.sizes[parameter.untyped_storage()._cdata] = 0  # another rank's
        for one in (*self.parameters, *self.module.buffers()):
            if counter is not None:
                counter.add(one)
        for parameter in self.parameters:
            parameter.states = FakeStates(parameter, spec, self.home)  # type: ignore[attr-defined]
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(accumulate)
            if parameter.states.comes:  # type: ignore[attr-defined]
                parameter.states.release()  # type: ignore[attr-defined]
        self.trained = [p.states for p in self.parameters if p.requires_grad]  # type: ignore[attr-defined]
        for units in owned:
            self._units(units)
        copies = 1 if spec["strategy"]["optimizer"] == "sgd" else 2
        self.moments = [torch.empty_like(one.master) for one in self.trained for _ in range(copies)]
        self.blocks.around = self._through

    @staticmethod
    @contextlib.contextmanager
    def around(spec: dict[str, Any], device: str) -> Iterator[None]:
        """The module on fake tensors, and a first pass that shows what blocks give."""
        del device
        source, asked = spec["source"], spec["inputs"]
        with fake(), contextlib.ExitStack() as stack:
            module = built(Path(source.rpartition(":")[0]), source.rpartition(":")[2])
            cast(module, spec["format"])
            params = sum(one.numel() for one in module.parameters())
            if params != spec["params"]:
                raise InputError(
                    f"{source} has {params:,} parameters, and what was traced {spec['params']:,}; trace it again"
                )
            blocks = ChunkBlocks(module, spec["blocks"])
            given = {name: torch.ones(sizes, dtype=getattr(torch, kind)) for name, sizes, kind in asked}
            if "position_ids" not in given:
                stack.enter_context(unpacked())
            with told(source, f"one pass with {spec['strategy']['micro_batch']} samples"), Reads(blocks) as reads:
                run(module, given)
            if len(blocks.calls) != spec["blocks"]:
                raise InputError(f"{source} runs {len(blocks.calls)} blocks, not the {spec['blocks']} that were traced")
            spec["built"], spec["given"] = (module, blocks, reads.places), given
            yield

    def _parts(self, chunk: dict[str, Any]) -> list[list[nn.Parameter]]:
        """Parameters of every block of a chunk, then those of the ends that it has; unread ones are the first's."""
        start, stop = chunk["range"]
        places: list[list[nn.Parameter]] = [[] for _ in range(len(self.blocks.calls) + 2)]
        for parameter in self.module.parameters():
            read = self.places.get(id(parameter), {0})
            places[min(read)].append(parameter)
            if max(read) == len(places) - 1 > min(read):  # the last part has a copy of its own
                places[-1].append(parameter)
        ends = [*(places[0] if chunk["embedding"] else ()), *(places[-1] if chunk["head"] else ())]
        return [*places[start + 1 : stop + 1], list({id(one): one for one in ends}.values())]

    def _units(self, parts: list[list[nn.Parameter]]) -> None:
        """A unit for every block, and one of the ends, which stays while a micro batch is at work."""
        last: Unit | None = None
        for own in parts[:-1]:
            unit = Unit([p.states for p in own])  # type: ignore[attr-defined]
            for parameter in own:
                parameter.unit = unit  # type: ignore[attr-defined]
            unit.before, last = last, unit
            if unit.before:
                unit.before.next = unit
        self.roots.append(Unit([p.states for p in parts[-1]]))  # type: ignore[attr-defined]

    def _through(self, block: nn.Module, work: Callable[..., Any], *args: Any, **named: Any) -> Any:  # noqa: ANN401
        """A block whose parameters come before it and go after it."""
        unit = next((p.unit for p in block.parameters() if hasattr(p, "unit")), None)
        if unit is None or not unit.states or not torch.is_grad_enabled():
            return work(*args, **named)
        args, named = self._once((args, named), lambda x: Enter.apply(x, unit, self.home))
        return self._once(work(*args, **named), lambda x: Exit.apply(x, unit))

    @staticmethod
    def _once(tree: Any, work: Callable[[Tensor], Any]) -> Any:  # noqa: ANN401
        """The first tensor with a gradient goes through; a block takes and gives one that all else hangs on."""
        done: list[int] = []

        def each(x: Any) -> Any:  # noqa: ANN401
            if not done and isinstance(x, Tensor) and x.requires_grad:
                done.append(1)
                return work(x)
            return x

        return tree_map(each, tree)

    def step(self) -> None:
        for one in self.trained:
            if one.total is not None:
                one.master.grad = one.total[: one.count].to(one.master.dtype)
        if not self.spec["kernels"]["fused_optimizer"]:
            copies = [torch.empty_like(one.master) for one in self.trained]
            del copies
        for one in self.trained:
            one.master.grad = None
            if self.spec["states"]["lazy"]:
                one.total = None
            elif one.total is not None:
                one.total.zero_()

    def forward(self, chunk: int, microbatch: int) -> None:
        how, blocks = self.spec["chunks"][chunk], self.blocks
        self.roots[chunk].gather()
        blocks.at, blocks.range, blocks.again = 0, tuple(how["range"]), how["again"]
        given = {name: x.clone() for name, x in self.spec["given"].items()}
        torch.set_grad_enabled(how["embedding"])
        try:
            self.live[chunk, microbatch] = [loss_of(run(self.module, given))]
        except StageDone as left:
            self.live[chunk, microbatch] = left.given
        finally:
            torch.set_grad_enabled(True)

    def backward(self, chunk: int, microbatch: int) -> None:
        outs = self.live.pop((chunk, microbatch))
        self.roots[chunk].gather()
        torch.autograd.backward(outs, [torch.ones_like(x) for x in outs])
        self.roots[chunk].finish(self.home)
        self.roots[chunk].release()
        self.home.sent = []

    def passes(self, clock: Clock, after_first: Callable[[], None]) -> None:
        del clock
        for index, (chunk, kind, microbatch) in enumerate(self.spec["actions"]):
            if kind == "F":
                self.forward(chunk, microbatch)
            else:
                self.backward(chunk, microbatch)
            if index == 0:
                after_first()


RANKS["module"] = ModuleRank


def main(spec: str, out: str) -> int:
    """Count the share that a file holds; the result, or why there is none, goes to another."""
    found = json.loads(Path(spec).read_text(encoding="utf-8"))
    try:
        result = program.rehearse(found, "meta", 1, 0)
    except ShardwiseError as error:
        result = {**program.identity(found, "meta"), "error": str(error)}
    program.write(result, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
