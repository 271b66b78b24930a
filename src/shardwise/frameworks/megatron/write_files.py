"""Megatron-LM's flags as files: a script that starts as it is, and the YAML form of Megatron-LM's own tests."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from shardwise.frameworks.launcher import starting
from shardwise.frameworks.megatron.write_model import Flag
from shardwise.frameworks.target import ExportDraft, File

Groups = dict[str, list[Flag]]
_MANY = {"recompute-modules", "spec"}
"""Flags that take several words."""
_DATA = (
    "--mock-data",
    "--tokenizer-type NullTokenizer",
    "--no-create-attention-mask-in-dataloader",
    "--train-iters $STEPS",
    "--lr 1e-4",
    "--seed ${SEED:-1234}",
)
_LOGGING = (
    "--eval-iters 0",
    "--eval-interval 1000",
    "--log-interval 1",
    "--log-throughput",
    "--log-memory-interval 5",
    "--timing-log-level 1",
    "--no-barrier-with-level-1-timing",
)
"""Evaluation is off, and its interval must be a number all the same."""
_FIND = """
import importlib.util, pathlib, sys
spec = importlib.util.find_spec("megatron")
places = [pathlib.Path(place).parent for place in spec.submodule_search_locations or ()] if spec else []
places.append(pathlib.Path(sys.argv[1]))
print(next((place for place in places if (place / "pretrain_gpt.py").is_file()), ""))
"""
_KERNEL = "fused_weight_gradient_mlp_cuda"


def files(draft: ExportDraft, groups: Groups) -> tuple[File, ...]:
    """The script with what starts it, and the YAML."""
    return *_script(draft, groups), File(name="model_config.yaml", text=_yaml(draft, groups))


def _words(flags: Iterable[Flag]) -> Iterator[str]:
    for flag, value in flags:
        spaced = value if flag in _MANY else None if value is None else shlex.quote(str(value))
        yield f"--{flag}" if value is None else f"--{flag} {spaced}"


def environment(draft: ExportDraft) -> dict[str, Any]:
    """What Megatron-LM must find set."""
    s = draft.strategy
    return {"CUDA_DEVICE_MAX_CONNECTIONS": 1} if (s.tp > 1 or s.cp > 1) and s.zero < 2 else {}


def _script(draft: ExportDraft, groups: Groups) -> tuple[File, ...]:
    lines = ["# A stand-in so that it starts: replace it by your data, tokenizer and learning rate.", *_array(_DATA)]
    lines += _array(_LOGGING, "LOG")
    for name, flags in groups.items():
        if flags:
            lines += _array(_words(flags), name.upper())
    used = [f'"${{{name.upper()}_ARGS[@]}}"' for name, flags in groups.items() if flags]
    program = "pretrain_hybrid.py" if draft.model.recurrent else "pretrain_gpt.py"
    local = any(flag == "no-gradient-accumulation-fusion" for flag, _ in groups["numbers"])
    engine = "" if local else ", Transformer Engine and apex (without apex weight gradients are added apart)"
    return starting(
        draft, "train",
        [f'"$MEGATRON/{program}"', *used, '"${LOG_ARGS[@]}" "${DATA_ARGS[@]}"'],
        before=[*lines, *_found(draft), *([] if local else _apex())], environment=environment(draft),
        needs=f"{draft.speaks}: name its folder as MEGATRON=/path/to/Megatron-LM, or have it on PYTHONPATH{engine}",
    )  # fmt: skip


def _array(words: Iterable[str], name: str = "DATA") -> list[str]:
    return [f"{name}_ARGS=(", *(f"    {word}" for word in words), ")"]


def _found(draft: ExportDraft) -> list[str]:
    """pretrain_gpt.py is in no package: it stands beside the package that Python finds, or where the user says."""
    missing = f"no pretrain_gpt.py was found: set MEGATRON to the folder of {draft.speaks}"
    return [
        "# Megatron-LM's folder: MEGATRON, else beside the package that Python finds, else where this was called.",
        f'MEGATRON=${{MEGATRON:-}}; [ -n "$MEGATRON" ] || MEGATRON=$(python3 -c \'{_FIND}\' "$OLDPWD")',
        f'[ -f "$MEGATRON/pretrain_gpt.py" ] || {{ echo "train.sh: {missing}" >&2; exit 2; }}',
    ]


def _apex() -> list[str]:
    test = f'import importlib.util as util, sys; sys.exit(util.find_spec("{_KERNEL}") is None)'
    return [
        "# The kernel that adds a weight's gradient to its sum is apex's; without it they are added apart.",
        f"python3 -c '{test}' || DATA_ARGS+=(--no-gradient-accumulation-fusion)",
    ]


def _yaml(draft: ExportDraft, groups: Groups) -> str:
    given = {f"--{flag}": True if value is None else value for flags in groups.values() for flag, value in flags}
    document: dict[str, Any] = {"ENV_VARS": environment(draft)} if environment(draft) else {}
    document["MODEL_ARGS"] = given
    return draft.header() + yaml.safe_dump(document, sort_keys=False, width=120)
