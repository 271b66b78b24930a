"""Rotary positions and routers as Megatron-LM's flags say them: neither moves time or memory, and both make the model.

Two things its program takes without a word are read as they were meant: `--rope-scaling-factor` is parsed and never
used (8 is), and latent attention has no flags for yarn's borders (4096, 32 and 1 are built in).
"""

from __future__ import annotations

from typing import Any, cast

from shardwise.errors import InputError
from shardwise.frameworks.imported import ImportDraft
from shardwise.frameworks.shell import Flags
from shardwise.inputs.gate import typed
from shardwise.inputs.model import RopeScaling, Score
from shardwise.inputs.scalars import SCALARS

FACT_FLAGS = frozenset({
    "norm-epsilon", "rotary-percent", "rotary-seq-len-interpolation-factor", "rope-scaling-factor", "rope-type",
    "rotary-scaling-factor", "mscale", "mscale-all-dim", "yarn-original-max-position-embeddings", "yarn-beta-fast",
    "yarn-beta-slow", "moe-router-score-function", "moe-router-topk-scaling-factor", "moe-router-load-balancing-type",
    "moe-aux-loss-coeff",
})  # fmt: skip
FACT_SWITCHES = frozenset({
    "use-rope-scaling", "yarn-correction-range-round-to-int", "no-yarn-correction-range-round-to-int",
    "moe-router-pre-softmax", "moe-router-enable-expert-bias",
})  # fmt: skip
LLAMA3_ORIGINAL = 8192
YARN_ORIGINAL = 4096
"""Built into Megatron-LM: llama3's, and yarn's where no flag says another."""
_SCORES = ("softmax", "sigmoid", "sqrtsoftplus")


def number(draft: ImportDraft, found: Flags, flag: str, default: str | None, row: str) -> float | None:
    """A flag's number, or the default's; what is wrong with it is kept with the other faults."""
    text = found.get(flag, default)
    if text is None and flag not in found:
        return None
    try:
        return typed(text or "", SCALARS[row], f"--{flag}")
    except InputError as error:
        draft.faults += error.faults
        return None


def rope_scaling(draft: ImportDraft, found: Flags, *, latent: bool) -> RopeScaling | None:
    """How rotary positions are stretched; latent attention is always yarn's, by 1 unless a flag says more."""

    def given(flag: str, default: str, field: str) -> float:
        return number(draft, found, flag, default, f"RopeScaling.{field}") or 0.0

    if "rotary-seq-len-interpolation-factor" in found:
        return RopeScaling(kind="linear", factor=given("rotary-seq-len-interpolation-factor", "1", "factor"))
    if "use-rope-scaling" in found:
        factor = given("rope-scaling-factor", "8", "factor")
        return RopeScaling(kind="llama3", factor=factor, original=LLAMA3_ORIGINAL)
    yarn = found.get("rope-type", "yarn") == "yarn" if latent else found.get("position-embedding-type") == "yarn"
    factor = given("rotary-scaling-factor", "1", "factor")
    if not yarn or factor <= 1:
        return None
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original=int(given("yarn-original-max-position-embeddings", str(YARN_ORIGINAL), "original")),
        beta_fast=given("yarn-beta-fast", "32", "beta_fast"),
        beta_slow=given("yarn-beta-slow", "1", "beta_slow"),
        mscale=given("mscale", "1", "mscale"),
        mscale_all=given("mscale-all-dim", "0", "mscale_all"),
        truncate="no-yarn-correction-range-round-to-int" not in found,
    )


def router(draft: ImportDraft, found: Flags, top_k: int) -> dict[str, Any]:
    """Fields of a mixture of experts that the router's flags set."""
    score = draft.word("--moe-router-score-function", found.get("moe-router-score-function", "softmax"), _SCORES)
    if score == "sqrtsoftplus":
        draft.assumed.append("the router's score sqrtsoftplus is read as sigmoid: neither time nor memory differ")
        score = "sigmoid"
    kind = found.get("moe-router-load-balancing-type") or "aux_loss"
    first, *more = (found.get("moe-aux-loss-coeff") or "0").split()
    if more:  # a list of losses has a list of coefficients
        draft.assumed.append(f"of several --moe-aux-loss-coeff the first is kept, {first}")
        found["moe-aux-loss-coeff"] = first
    loss = number(draft, found, "moe-aux-loss-coeff", "0", "Moe.balance_loss") if "aux_loss" in kind else 0.0
    before = "moe-router-pre-softmax" in found
    return {
        "score": cast("Score", score),
        # Weights of a sigmoid always add up to one, unless there is but one.
        "normalised": top_k > 1 if score == "sigmoid" else not before,
        "scale": number(draft, found, "moe-router-topk-scaling-factor", "1", "Moe.scale") or 1.0,
        "balance_loss": loss or 0.0,
        "balance_bias": "moe-router-enable-expert-bias" in found,
    }
