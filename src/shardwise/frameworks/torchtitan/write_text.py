"""The text of a torchtitan configuration, TOML or Python, and the script that starts it."""

from __future__ import annotations

from typing import Any

import tomli_w

from shardwise.frameworks.target import Draft, File, start_lines
from shardwise.frameworks.torchtitan.names import TORCHTITAN_FLAVORS
from shardwise.frameworks.torchtitan.write_python import flavor, mtp, python

Settings = dict[str, Any]


def say_model(draft: Draft) -> None:
    """What of the model cannot be said, and where to say it."""
    s, (name, _) = draft.strategy, flavor(draft)
    if draft.model.name not in TORCHTITAN_FLAVORS:
        known = f"torchtitan has no flavor that is known to be {draft.model.name}"
        draft.by_hand.append(f"the model: {known}; name yours, the file stops until then")
    if draft.model.mtp and not mtp(draft):
        stages = name == "deepseek_v3" and draft.version != "0.2" and (s.pp > 1 or s.cp > 1)
        why = "does not run with a pipeline or context parallel here" if stages else "is not in this model"
        draft.lose("model.mtp", f"{draft.model.mtp}: multi-token prediction {why}; it is trained without")


def config(draft: Draft, tables: dict[str, Settings]) -> tuple[File, File]:
    """The configuration file of a version, and what starts it."""
    if draft.version == "0.2":
        file = File(name="torchtitan.toml", text=_toml(draft, tables))
        return file, _start(draft, "--job.config_file torchtitan.toml")
    file = File(name="shardwise_config.py", text=python(draft, tables))
    return file, _start(draft, "--module shardwise_config --config shardwise")


def _toml(draft: Draft, tables: dict[str, Settings]) -> str:
    s, (name, known) = draft.strategy, flavor(draft)
    model: Settings = {"name": name, "flavor": known or draft.model.name}
    if s.dtype in {"fp8", "mxfp8"}:
        kind = "float8" if s.dtype == "fp8" else "mx"
        model["converters"] = [f"quantize.linear.{kind}", *([f"quantize.grouped_mm.{kind}"] if draft.model.moe else [])]
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


def _start(draft: Draft, flags: str) -> File:
    """The files are found from their own folder: the module by Python, the CSV and the TOML by their names."""
    lines = ["#!/bin/bash", draft.header().rstrip("\n"), "# Flags after the script's name are added to the end.", ""]
    lines += ['cd "$(dirname "${BASH_SOURCE[0]}")"', *start_lines(draft.strategy.world)]
    lines.append(f'    -m torchtitan.train {flags} "$@"')
    return File(name="torchtitan.sh", text="\n".join(lines) + "\n", program=True)
