"""The settings of a torchtitan configuration in Python, read from its calls as text and never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

Settings = dict[str, Any]
_TABLES = {"parallelism", "training", "activation_checkpoint", "model", "optimizer", "compile", "job"}
_MODELS = "torchtitan.models."
PLANNED = "planned"
"""The function of our own files that puts another model into one of torchtitan's."""


def model_module(tree: ast.Module) -> str:
    """Whose `model_registry` the file calls: `from torchtitan.models.llama3 import model_registry` -> llama3."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and any(name.name == "model_registry" for name in node.names):
            return (node.module or "").removeprefix(_MODELS).split(".")[0]
    return ""


def calls(tree: ast.AST, module: str = "") -> Settings:
    """Literal keyword arguments by table: `parallelism=ParallelismConfig(...)` fills the table parallelism."""
    settings: Settings = {}
    named = dict(_assigned(tree))
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        function = ast.unparse(call.func).split(".")[-1]
        if function in {"model_registry", PLANNED}:  # the outer one is met first, and names what is trained
            settings = _model(call, module or _from_function(tree)) | settings
        for argument in call.keywords:
            value = named.get(argument.value.id) if isinstance(argument.value, ast.Name) else argument.value
            if argument.arg in _TABLES and isinstance(value, ast.Call):
                settings |= _table(argument.arg or "", value)
            elif argument.arg == "activation_checkpoint" and isinstance(value, ast.Constant):
                settings["activation_checkpoint.mode"] = "none"  # 0.3 has no class for it but None
            elif any(other.arg in _TABLES for other in call.keywords):  # the configuration's other parts, to be named
                settings[argument.arg or "**"] = ast.unparse(argument.value)[:60]
    return settings if any(name.startswith(("parallelism.", "training.")) for name in settings) else {}


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """`compile_config = CompileConfig(...)`, which is handed on by its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))


def _from_function(tree: ast.AST) -> str:
    """In torchtitan's own files the registry is a neighbour: `def llama3_70b()` is one of llama3's."""
    name = tree.name if isinstance(tree, ast.FunctionDef) else ""
    known = ("deepseek_v3", "gpt_oss", "llama3", "qwen3")
    return next((module for module in known if name.startswith(f"{module}_")), "")


def _model(call: ast.Call, module: str) -> Settings:
    """`model_registry("70B", converters=[Float8LinearConverter.Config()])`: the model, and what its numbers become."""
    found: Settings = {"model.name": module} if module else {}
    if call.args and isinstance(call.args[0], ast.Constant):
        found["model.flavor"] = call.args[0].value
    for argument in call.keywords:
        if argument.arg == "converters" and isinstance(argument.value, ast.List):
            kinds = [ast.unparse(item.func) for item in argument.value.elts if isinstance(item, ast.Call)]
            found["model.converters"] = [kind.removesuffix(".Config").lower() for kind in kinds]
    return found


def _table(table: str, call: ast.Call) -> Settings:
    name = ast.unparse(call.func)
    found: Settings = {}
    if table == "activation_checkpoint":
        # 0.3 has a class for each mode: FullAC.Config(), SelectiveAC.Config(), MemoryBudgetAC.Config().
        modes = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
        found = {f"{table}.mode": mode for start, mode in modes.items() if start in name}
    for argument in call.keywords:
        try:
            found[f"{table}.{argument.arg}"] = ast.literal_eval(argument.value)
        except ValueError:
            found[f"{table}.{argument.arg}"] = f"<{ast.unparse(argument.value)}>"
    return found
