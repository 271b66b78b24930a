"""Which modules of a network are its blocks: what pipelines cut between and recompute takes one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn import Module

CONTAINERS = ("ModuleList", "Sequential", "ModuleDict")
FEW = 2
"""Blocks that a list must hold."""


def blocks_of(root: Module) -> dict[str, Module]:
    """The blocks by path, in the order of definition: the children of the outermost lists of modules that have parts
    of their own, where these differ those of the lists inside them, and without any list the parts of the whole.
    """
    found = dict(_listed("", root))
    if len(found) >= FEW:
        return found
    parts = {name: part for name, part in root.named_children() if _has_parts(part)}
    if len(parts) == 1:  # a wrapper
        ((name, only),) = parts.items()
        return {f"{name}.{path}": module for path, module in blocks_of(only).items()} or parts
    return parts


def _listed(path: str, module: Module) -> Iterator[tuple[str, Module]]:
    for name, part in module.named_children():
        at = f"{path}.{name}" if path else name
        children = [(f"{at}.{key}", child) for key, child in part.named_children()]
        if not _is_container(part) or not any(_has_parts(child) for _, child in children):
            yield from _listed(at, part)
        elif _differ([child for _, child in children]):
            for key, child in children:
                inside = list(_listed(key, child)) or list(_wrapped(key, child))
                yield from inside or [(key, child)]
        else:
            yield from children


def _wrapped(path: str, module: Module) -> Iterator[tuple[str, Module]]:
    """A list inside a list: its children, where they have parts."""
    if _is_container(module):
        parts = [(f"{path}.{key}", child) for key, child in module.named_children()]
        if all(_has_parts(child) for _, child in parts):
            yield from parts


def _differ(children: list[Module]) -> bool:
    """Whether no two are built alike, so that each is more a level than a block."""
    forms = [form(child) for child in children]
    return len(set(forms)) == len(forms) > 1


def form(module: Module) -> tuple[Any, ...]:
    """Class and structure: modules of one form are blocks of one kind."""
    shapes = tuple((name, tuple(part.shape)) for name, part in module.named_parameters())
    return type(module).__qualname__, shapes


def _is_container(module: Module) -> bool:
    return type(module).__name__ in CONTAINERS


def _has_parts(module: Module) -> bool:
    return any(True for _ in module.children())
