"""What `validate --advice` says: the set-ups beside our proposals, where the difference lies, groups and regret."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import Any

from shardwise.estimate.estimate import Estimate
from shardwise.estimate.intervals import within_error
from shardwise.estimate.predictions import ledger_table
from shardwise.inputs.strategy import Strategy
from shardwise.measure.validate.advice import Advice, Advised
from shardwise.measure.validate.summary import Regret, mean_regret
from shardwise.report.validation import Listing, listed_markdown
from shardwise.search.simplicity import SHORT
from shardwise.units import show_seconds

BAND = (0.85, 1.15)
"""Claim over published speed that is called right: what two releases of one framework differ by."""
KINDS = {"dense": False, "with experts": True}
_SHOWN = 4
NOTABLE = 0.01
"""Share of a published time from which on a part's source is named."""
_SHARED = ("gbs", "seq", "layers=", "runtime=", "scaling=")
"""Words of a strategy that both layouts have, or that say nothing of a layout."""


def advice_data(advice: Advice) -> dict[str, Any]:
    """The JSON answer."""
    return {
        "setups": [_row(one) for one in advice.setups],
        "groups": [_row(one) for one in advice.groups],
        "regrets": advice.regrets,
        "skipped": advice.skipped,
        "summary": _summary(advice),
        "finished": advice.finished,
    }


def _row(one: Advised) -> dict[str, Any]:
    best = one.proposed
    return {
        "name": one.name,
        "run": one.case.id,
        "source": one.source,
        "model": one.case.model.name,
        "cluster": one.case.cluster.name,
        "runtime": one.case.runtime.name,
        "published_seconds": one.published,
        "chosen": str(one.case.strategy),
        "predicted_seconds": one.chosen.iteration_seconds,
        "predicted_interval": one.chosen.iteration_seconds_interval,
        "error": one.error,
        "fits": one.chosen.fits,
        "proposed": None if best is None else str(best.strategy),
        "claimed_seconds": None if best is None else best.iteration_seconds,
        "claimed_interval": None if best is None else best.iteration_seconds_interval,
        "ratio": one.ratio,
        "difference": one.difference and ledger_table(one.difference),
        "assumed": list(one.case.notes),
        "proven": one.proven,
        "without_cp_seconds": one.without_cp and one.without_cp.iteration_seconds,
    }


def _summary(advice: Advice) -> dict[str, Any]:
    inside = [one for one in advice.setups if one.ratio is not None and BAND[0] <= one.ratio <= BAND[1]]
    regret = {name: [one for one in advice.regrets if one.experts is experts] for name, experts in KINDS.items()}
    return {
        "setups": len(advice.setups),
        "in_band": len(inside),
        "band": BAND,
        "mean_error": fmean(abs(one.error) for one in advice.setups) if advice.setups else None,
        "said_not_to_fit": [one.name for one in advice.setups if one.chosen.fits == "no"],
        "short_with_cp": [_gain_of_cp(one) for one in advice.setups if one.without_cp],
        "regret": {name: mean_regret(own) for name, own in regret.items()},
    }


def _gain_of_cp(one: Advised) -> str:
    """What a proposal gains by context parallel, and whether that is more than the error."""
    best, plain = one.proposed, one.without_cp
    if best is None or plain is None:
        return one.name
    gain = plain.iteration_seconds / best.iteration_seconds - 1
    held = "within the error" if within_error(best, plain) else "more than the error"
    return f"{one.name} (the best without takes {gain:.0%} longer, {held})"


def sentences(advice: Advice) -> list[str]:
    """The figures in words."""
    told, lines = _summary(advice), []
    if advice.setups:
        low, high = BAND
        lines.append(
            f"claim / published is from {low} to {high} in {told['in_band']} of {told['setups']} known set-ups"
        )
        lines.append(f"mean error of our predictions of the practitioners' layouts: {told['mean_error']:.1%}")
        lines.append(f"layouts that ran and are said not to fit: {', '.join(told['said_not_to_fit']) or 'none'}")
        short = ", ".join(told["short_with_cp"]) or "none"
        lines.append(f"dense proposals with context parallel at {SHORT:,} tokens or fewer: {short}")
    lines += [f"mean regret on measured groups, {name}: {x:.1%}" for name, x in told["regret"].items() if x is not None]
    lines += [f"left out: {one.reason}" for one in advice.skipped]
    if not advice.finished:
        lines.append(f"stopped after {advice.done} of {advice.total}")
    return lines


def tables(advice: Advice) -> Iterator[Listing]:
    """Every table that has a row."""
    every = (_chosen(advice), _layouts(advice), _parts(advice), _sources(advice), _groups(advice))
    yield from (one for one in every if one.rows)


def advice_markdown(advice: Advice) -> str:
    """A page: the figures, then every table."""
    return listed_markdown(
        f"# Advice held against what practitioners did\n\n{_LEAD}", sentences(advice), tables(advice)
    )


_LEAD = """Written by `shardwise validate --advice --md FILE`. For every set-up: the layout that practitioners published
and the time that it reached, what we predict for that layout, and the layout that `plan` recommends for the same model,
cluster, batch, sequence, number format and runtime, with its claim. Claim / published is a ratio of speeds."""


def _chosen(advice: Advice) -> Listing:
    heads = ("set-up", "published", "predicted", "error", "fits", "claimed", "claim / published", "source")
    rows = [(*_figures(one), one.source) for one in advice.setups]
    return Listing("well-known set-ups: seconds of an iteration", heads, rows)


def _figures(one: Advised) -> tuple[str, ...]:
    claimed = "nothing fits" if one.proposed is None else show_seconds(one.proposed.iteration_seconds)
    claimed += "" if one.proven else " (time was up)"
    return (
        one.name, show_seconds(one.published), show_seconds(one.chosen.iteration_seconds), f"{one.error:+.1%}",
        one.chosen.fits, claimed, "-" if one.ratio is None else f"{one.ratio:.2f}",
    )  # fmt: skip


def _layouts(advice: Advice) -> Listing:
    rows: list[tuple[str, ...]] = [
        (one.name, _layout(one.case.strategy), _proposed(one.proposed)) for one in advice.setups
    ]
    return Listing("what was chosen, and what we propose", ("set-up", "practitioners chose", "we propose"), rows)


def _proposed(found: Estimate | None) -> str:
    return "-" if found is None else _layout(found.strategy)


def _layout(strategy: Strategy) -> str:
    return " ".join(word for word in str(strategy).split() if not word.startswith(_SHARED))


def _parts(advice: Advice) -> Listing:
    """Of the published time: what we predict wrongly, then what the layouts spend differently."""
    rows: list[tuple[str, ...]] = []
    for one in advice.setups:
        if (found := one.difference) is None:
            continue
        whole, own, *rest = (part.value / one.published for part in (found, *found.parts))
        told = ", ".join(f"{part.name} {x:+.1%}" for part, x in zip(found.parts[1 : _SHOWN + 1], rest, strict=False))
        rows.append((one.name, f"{whole:+.1%}", f"{own:+.1%}", told, f"{sum(rest[_SHOWN:]):+.1%}"))
    below = (
        "Shares of the published time, above 0 where the published run takes longer: first our error on the "
        "practitioners' own layout, then the parts of the ledger of time in which the two layouts differ."
    )
    heads = ("set-up", "published less claimed", "our error", "largest differences of the layouts", "all others")
    return Listing("where the difference between published and claimed time lies", heads, rows, below)


_KERNELS = "an H200's kernels (benchmarks/data/h200_probe_raw.json); other GPUs as their calibration says"
_LINKS = "bandwidths fitted to published runs of the GPU (its calibration; errors by source in `validate`)"
_JOBS = "whole jobs and ranks on an H200 (benchmarks/data/h200_jobs.json, h200_rehearsals.json)"
MEASURED = {
    "gemm": _KERNELS,
    "attention": _KERNELS,
    "memory": f"{_KERNELS}; 61 layers there (benchmarks/data/h200_layers.json)",
    "tp communication": _LINKS,
    "cp communication": _LINKS,
    "ep communication": f"{_LINKS}; the hidden share is a trace's of Qwen3-30B on 16 H100s",
    "recompute": "the forward pass of what is computed again: its parts as above",
    "waiting for launches": "the host's time of those 61 layers, and of vTrain's small ones on an A100",
    "parameter sharding": f"{_LINKS}; copies that it makes are counted",
    "pipeline waits and sends": "the simulated order; zero-bubble's 25 sweeps are predicted to 2.9%",
    "hidden communication": "kernels beside copies on an H200 (benchmarks/data/h200_overlap.json); arXiv 2507.03114",
    "stragglers": "seven published pairs of sizes: +2.2% measured, +1.7% predicted (docs/explain/time.md, Many hosts)",
    "waiting for documents": "drawn samples; no published run says how long its documents are",
    "gradient reduction": _LINKS,
    "weight gathering": _LINKS,
    "optimizer": _JOBS,
    "framework": _JOBS,
}
"""What the parts of the ledger of time rest on."""


def _sources(advice: Advice) -> Listing:
    """Of all parts in which a layout differs by a percent or more of its time."""
    named = dict.fromkeys(
        part.name
        for one in advice.setups
        if one.difference
        for part in one.difference.parts[1:]
        if abs(part.value) >= NOTABLE * one.published
    )
    rows: list[tuple[str, ...]] = [(name, MEASURED[name]) for name in named]
    return Listing("what these parts were measured on", ("part", "measured on"), rows)


def _groups(advice: Advice) -> Listing:
    """Groups of a sweep, by source."""
    by_source: dict[str, list[Advised]] = {}
    for one in advice.groups:
        by_source.setdefault(one.case.source, []).append(one)
    rows = [_group_row(source, own, advice.regrets) for source, own in sorted(by_source.items())]
    heads = ("source", "groups", "mean error", "not to fit", "claim / published", "from", "to", "regret")
    title = "groups of published runs that differ only in layout: the fastest run of each beside our proposal"
    return Listing(title, heads, rows)


def _group_row(source: str, own: list[Advised], regrets: Iterable[Regret]) -> tuple[str, ...]:
    ratios = [one.ratio for one in own if one.ratio is not None]
    regret = mean_regret(regrets, source)
    shown = [f"{fmean(ratios):.2f}", f"{min(ratios):.2f}", f"{max(ratios):.2f}"] if ratios else ["-"] * 3
    refused = sum(one.chosen.fits == "no" for one in own)
    error = fmean(abs(one.error) for one in own)
    return (source, str(len(own)), f"{error:.1%}", str(refused), *shown, "-" if regret is None else f"{regret:.1%}")
