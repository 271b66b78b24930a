"""One strategy with documents beside samples of one document, and beside the other ways to pack them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, get_args

from shardwise.estimate.estimate import Estimate, estimate
from shardwise.estimate.imbalance import NAME
from shardwise.inputs.documents import Packing
from shardwise.ops.documents import keys_met

ONE = "one document a sample"


class PackingRow(NamedTuple):
    """One way to make samples."""

    packing: str
    """Or `one document a sample`: without documents."""
    seconds: float
    """Of an iteration."""
    waiting: float
    """Of these, for longer documents elsewhere."""
    useful: float
    """Share of the tokens that are not padding."""
    tokens_per_second_per_gpu: float
    """Of documents."""
    mfu: float


def packings(found: Estimate) -> tuple[PackingRow, ...]:
    """Samples of one document first, then every packing; none where the strategy has no documents."""
    if found.strategy.documents is None:
        return ()
    whole = _row(found, ONE, documents=None, packing="packed")
    return (whole, *(_row(found, packing, packing=packing) for packing in get_args(Packing)))


def _row(found: Estimate, name: str, **changes: object) -> PackingRow:
    strategy = replace(found.strategy, **changes)  # type: ignore[arg-type]
    one = estimate(found.model, found.cluster, strategy, checked=True, order=found.order)
    return PackingRow(
        name, one.iteration_seconds, one.time.part(NAME), strategy.useful_share, one.tokens_per_second_per_gpu, one.mfu
    )


def told(found: Estimate) -> str:
    """What documents change, in a sentence; empty: there are none."""
    documents, s = found.strategy.documents, found.strategy
    if documents is None:
        return ""
    mean = f"mean {documents.mean:,.0f} tokens, {s.packing}"
    whole = _row(found, ONE, documents=None, packing="packed")
    if s.packing == "padded":
        return f"{mean}: {1 - s.useful_share:.0%} of all tokens are padding"
    if s.masked_documents is None:
        return f"{mean}: attention over whole samples, as if each were one document"
    met, most = keys_met(documents, s.seq), s.seq / 2
    change = found.iteration_seconds / whole.seconds - 1
    return (
        f"{mean}: a token meets {met:,.0f} keys on average, {met / most:.0%} of those in samples of one document; "
        f"{change:+.1%} of their {whole.seconds:.4g} s"
    )
