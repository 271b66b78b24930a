"""The switches of a SimuMax strategy that say which kernels run and what overlaps, as changes of a runtime of ours.

A runtime with other values is written `megatron+kernels.loss=fused`, in plans too: the catalog's runtime is what a
file that says nothing means.
"""

from __future__ import annotations

import re
from typing import Any

from shardwise.inputs.foreign import Foreign

_SWITCHES: dict[str, tuple[bool, dict[str, str]]] = {
    "cross_entropy_loss_fusion": (False, {"kernels.loss": "fused"}),
    "use_fused_norm": (True, {"kernels.norm": "eager"}),
    "use_fused_swiglu": (True, {"kernels.activation": "eager"}),
    "use_fused_grad_accumulation": (True, {"kernels.weight_grad_fusion": "false"}),
    "overlap_grad_reduce": (True, {"overlap.grad_reduce": "0", "overlap.param_gather": "0"}),
    "pp_comm_async": (True, {"overlap.p2p": "0"}),
}
"""Its switches: what SimuMax takes where they are not given, and what the other value changes."""
_NEVER = {"overlap.tp": "0", "overlap.cp": "0"}
"""SimuMax has no switch that hides communication of tensor, context or expert parallel behind compute."""


def read_runtime(keys: Foreign) -> str:
    """The runtime by name, with what the file changes about it."""
    base = _base(keys)
    changes = dict(_NEVER)
    for name, (usual, found) in _SWITCHES.items():
        if keys.switch(name, default=usual) != usual:
            changes |= found
    kept = not keys.switch("dispatch_probs", default=False)
    if kept == (base == "megatron"):  # the catalog's `megatron` sends probabilities with the tokens, the older does not
        changes["kernels.expert_output_kept"] = str(kept).lower()
    if keys.has("mem_factor"):
        lost = f"{1 / keys.number('mem_factor', row='simumax.mem_factor') - 1:.6g}"
        changes |= {"memory.fragmentation": lost, "memory.lasting_fragmentation": lost}
    return "+".join((base, *(f"{path}={value}" for path, value in changes.items())))


def _base(keys: Foreign) -> str:
    """Transformer Engine from 2.3 on keeps unused weight gradients; SimuMax counts them from te_version on."""
    version = keys.text("te_version", "") if keys.has("te_version") else ""
    digits = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", version)
    if version and not digits:
        keys.fault("te_version", f"{version!r} is not a version; write for example 2.8.0")
    return "megatron" if digits and (int(digits[1]), int(digits[2])) >= (2, 3) else "megatron-2024"


def write_runtime(name: str) -> dict[str, Any]:
    """SimuMax's switches for a runtime."""
    base, *texts = name.split("+")
    changes = dict(text.partition("=")[::2] for text in texts)
    found: dict[str, Any] = {"te_version": "2.3.0"} if base == "megatron" else {}
    found |= {key: usual != (own.items() <= changes.items()) for key, (usual, own) in _SWITCHES.items()}
    found["dispatch_probs"] = changes.get("kernels.expert_output_kept", str(base != "megatron").lower()) == "false"
    if "memory.lasting_fragmentation" in changes:
        found["mem_factor"] = round(1 / (1 + float(changes["memory.lasting_fragmentation"])), 6)
    return found
