"""Rules of documents: what a histogram must be, and where it means something."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.check.rule import Combination, rule
from shardwise.errors import Fault
from shardwise.inputs.documents import Documents

MOST = 4096
"""Lengths that an estimate takes in full; a file of more is read into fewer."""


@rule("documents", "seq")
def histogram(case: Combination) -> Iterator[Fault]:
    yield from documents_faults(case.strategy.documents)


def documents_faults(found: Documents | None) -> Iterator[Fault]:
    """What is wrong with a histogram as a whole."""
    if found is None:
        return
    if not found.lengths or len(found.lengths) != len(found.counts) or len(found.lengths) > MOST:
        told = f"has {len(found.lengths)} lengths and {len(found.counts)} counts"
        yield Fault("strategy.documents", f"{told}; give as many of each, from 1 to {MOST:,}")
    elif list(found.lengths) != sorted(set(found.lengths)):
        yield Fault("strategy.documents.lengths", "must ascend, each length once; `Documents.parse` puts them so")


@rule("documents", "packing")
def packed_documents(case: Combination) -> Iterator[Fault]:
    if case.strategy.packing != "packed" and case.strategy.documents is None:
        told = f"{case.strategy.packing} says how documents become samples, and there are none"
        yield Fault("strategy.packing", f"{told}; give --documents FILE, or leave it out")


@rule("documents", "model.traced")
def traced_documents(case: Combination) -> Iterator[Fault]:
    if case.model.traced and case.strategy.documents is not None:
        told = "a traced module was followed with samples of one length"
        yield Fault("strategy.documents", f"{told}; leave documents out, or put the packing into the module")


RULES = (histogram, packed_documents, traced_documents)
