"""Rotary positions of a Hugging Face config: base, share of a head, and how they are stretched.

Transformers 5 puts all of it into `rope_parameters`; before, `rope_theta` and the share stood beside `rope_scaling`.
"""

from __future__ import annotations

from typing import Any, cast

from shardwise.frameworks.huggingface.families import ALIASES
from shardwise.frameworks.huggingface.keys import Keys
from shardwise.inputs.model import RopeScaling, Scaling

_KINDS = ("linear", "dynamic", "yarn", "llama3")
_NAMES = {
    "low": "low_freq_factor", "high": "high_freq_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow",
    "mscale": "mscale", "mscale_all": "mscale_all_dim",
}  # fmt: skip


def positions(keys: Keys, fields: dict[str, Any]) -> dict[str, Any]:
    """Our fields; Hugging Face's default base is the paper's."""
    nested = _nested(keys)
    base = keys.number("rope_theta", "rotary_emb_base", row="Model.rotary_base")
    found: dict[str, Any] = {
        "rotary_base": float(base or nested.number("rope_theta", row="Model.rotary_base") or 10_000.0),
        "rope_scaling": _scaling(keys, nested),
        "window_rotary_base": _of_windows(keys) or fields.get("window_rotary_base", 0.0),
    }
    names = ALIASES["rotary_share"]
    share = keys.number(*names, row="Model.rotary_share") or nested.number(*names, row="Model.rotary_share")
    turned = keys.whole("rotary_dim")
    if share or turned:
        found["rotary_share"] = share or (turned or 0) / fields["head_size"]
    return found


def _of_windows(keys: Keys) -> float | None:
    """The base of layers with a window, where they have a table, or before that a key, of their own."""
    row = "Model.window_rotary_base"
    table = keys.data.get("rope_parameters")
    local = table.get("sliding_attention") if isinstance(table, dict) else None
    own = keys.number("rope_local_base_freq", row=row)
    return Keys(local).number("rope_theta", row=row) if isinstance(local, dict) else own


def _nested(keys: Keys) -> Keys:
    """The table of rotary settings; of one per kind of layer that of full attention."""
    for name in ("rope_parameters", "rope_scaling"):
        table = keys.data.get(name)
        if isinstance(table, dict) and table:
            full = table.get("full_attention")
            inner = Keys(full if isinstance(full, dict) else table)
            if _kind(inner) in {*_KINDS, None, "default"}:
                keys.read.add(name)
                return inner
    return Keys({})


def _kind(inner: Keys) -> str | None:
    kind = inner.data.get("rope_type", inner.data.get("type"))
    return None if kind is None else str(kind)


def _scaling(keys: Keys, inner: Keys) -> RopeScaling | None:
    kind = _kind(inner)
    if kind not in _KINDS:
        return None
    given = {ours: inner.number(theirs, row=f"RopeScaling.{ours}") for ours, theirs in _NAMES.items()}
    original = "original_max_position_embeddings"
    longest = inner.whole(original) or keys.whole(original) or keys.whole(*ALIASES["max_positions"])
    truncate = inner.switch("truncate")
    return RopeScaling(
        kind=cast("Scaling", kind),
        factor=inner.number("factor", row="RopeScaling.factor") or 1.0,
        original=0 if kind == "linear" else longest or 0,
        truncate=truncate is not False,
        **{name: value for name, value in given.items() if value is not None},
    )
