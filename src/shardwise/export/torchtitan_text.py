"""The text of a torchtitan configuration, TOML or Python."""

from __future__ import annotations

from pprint import pformat
from typing import Any

import tomli_w

from shardwise.export.target import Draft, File
from shardwise.inputs.names import TORCHTITAN_FLAVORS

Settings = dict[str, Any]
_STAND_IN = ("llama3", "debugmodel")


def config(draft: Draft, tables: dict[str, Settings]) -> File:
    """The configuration file of a version."""
    name, flavor = TORCHTITAN_FLAVORS.get(draft.model.name, _STAND_IN)
    if draft.model.name not in TORCHTITAN_FLAVORS:
        known = f"torchtitan has no flavor that is known to be {draft.model.name}; {name} {flavor} is named"
        draft.by_hand.append(f"the model: {known}")
    if draft.version == "0.2":
        return File(name="torchtitan.toml", text=_toml(draft, tables, name, flavor))
    draft.by_hand.append(
        f"put the function into torchtitan/models/{name}/config_registry.py and start with --module {name} "
        "--config shardwise"
    )
    base = f"{name}_{flavor.lower().replace('.', '_').replace('-', '_')}"
    return File(name="shardwise_config.py", text=_python(draft, tables, name, base))


def _toml(draft: Draft, tables: dict[str, Settings], name: str, flavor: str) -> str:
    s = draft.strategy
    model: Settings = {"name": name, "flavor": flavor}
    if s.dtype in {"fp8", "mxfp8"}:
        model["converters"] = ["quantize.linear.float8" if s.dtype == "fp8" else "quantize.linear.mx"]
    kind = "full" if s.recompute.full else "selective" if s.recompute.modules else "none"
    document = {
        "job": {"description": f"{draft.model.name}: Shardwise plan {draft.id}"},
        "model": model,
        "optimizer": {"name": "AdamW"},
        **tables,
        "activation_checkpoint": {"mode": kind, **({"selective_ac_option": "op"} if kind == "selective" else {})},
        "compile": {"enable": s.compile},
    }
    return draft.header() + tomli_w.dumps(document)


def _python(draft: Draft, tables: dict[str, Settings], name: str, base: str) -> str:
    s = draft.strategy
    policy = "FullAC" if s.recompute.full else "SelectiveAC" if s.recompute.modules else ""
    imports = ["from torchtitan.config import ParallelismConfig"]
    if policy:
        imports.append(f"from torchtitan.distributed.activation_checkpoint import {policy}")
    imports.append(f"from torchtitan.models.{name}.config_registry import {base}")
    body = [
        *_call("training", "replace", tables["training"], "base.training"),
        *_call("parallelism", "ParallelismConfig", tables["parallelism"]),
        f"        activation_checkpoint={f'{policy}.Config()' if policy else None},",
        *_call("compile", "replace", {"enable": s.compile}, "base.compile"),
    ]
    function = ["def shardwise():", f"    base = {base}()", "    return replace(", "        base,", *body, "    )", ""]
    return draft.header() + "\n".join(["from dataclasses import replace", "", *imports, "", "", *function])


def _call(field: str, function: str, settings: Settings, first: str = "") -> list[str]:
    inside = [f"            {name}={_literal(value)}," for name, value in settings.items()]
    return [f"        {field}={function}(", *([f"            {first},"] if first else []), *inside, "        ),"]


def _literal(value: object) -> str:
    if not isinstance(value, list):
        return repr(value)
    rows = (pformat(row, width=100, compact=True).replace("\n", "\n" + " " * 16) for row in value)
    return "[\n" + "".join(f"                {row},\n" for row in rows) + "            ]"
