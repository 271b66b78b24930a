"""Per-operator plans on their way to a framework: their operators as layers of the model, and, where all of them are
split alike, the strategy that the plan is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import NamedTuple

from shardwise.errors import Fault, InfeasibleError, InputError
from shardwise.inputs.layers import spread
from shardwise.inputs.load import load_runtime
from shardwise.inputs.recompute import MODULES, Recompute
from shardwise.inputs.strategy import Strategy
from shardwise.ops.layer import layer_kinds
from shardwise.per_op.profiles.analytic import operator_rows
from shardwise.plan.plan import Operators, Plan
from shardwise.plan.predict import estimate_of
from shardwise.units import show_seconds

SAME_SECONDS = 1e-9
_HOLDS = {"attention": ("core-attention", "mla-up"), "mlp": ("activation", "moe-act")}
"""Modules whose recompute takes others in."""


class OperatorRow(NamedTuple):
    """One operator of a plan."""

    layer: int
    """-1: before the first layer; as many as the model has layers: after the last."""
    unit: str
    """Module and name, such as `attention.qkv`."""
    tp: int
    dp: int
    recompute: bool

    @property
    def module(self) -> str:
        return self.unit.partition(".")[0]


StageRows = tuple[OperatorRow, ...]


def stage_rows(plan: Plan) -> tuple[StageRows, ...]:
    """The operators of every stage; raises InfeasibleError where they are not those of the model."""
    operators = _operators(plan)
    places = _model_rows(plan)
    if [name for _, name in places] != list(operators.names):
        profile = operators.profile.get("name", "a profile") if isinstance(operators.profile, dict) else "a profile"
        raise InfeasibleError(
            f"the plan's operators are those of {profile}, not the ones that {plan.model.name} is made of here: no "
            "other runtime has them; `plan-operators --aceso FILE` writes the plan for Aceso's, or plan from MODEL and "
            "--cluster, or from what the probe measured"
        )
    found, at = [], 0
    for stage in operators.stages:
        own = places[at : at + stage.ops]
        found.append(tuple(
            OperatorRow(layer, name.rpartition("/")[2], tp, dp, index in stage.recompute)
            for index, ((layer, name), (tp, dp, _)) in enumerate(zip(own, stage.layouts, strict=True))
        ))  # fmt: skip
        at += stage.ops
    return tuple(found)


def _operators(plan: Plan) -> Operators:
    if plan.operators is None:
        raise InputError("the plan is one of a whole strategy, not of operators")
    return plan.operators


def _model_rows(plan: Plan) -> list[tuple[int, str]]:
    """Layer and name of every operator of the model, in order."""
    s, kinds = plan.strategy, layer_kinds(plan.model)
    rows = next(operator_rows(plan.model, load_runtime(s.runtime), seq=s.seq, dtype=s.dtype, micro_batches=(1,),
                              tps=(1,), flash=s.flash))  # fmt: skip
    parts = [rows.names[first:end] for first, end in zip([0, *rows.ends], rows.ends, strict=False)]
    own = dict(zip(dict.fromkeys(kinds), parts[1:-1], strict=True))
    layers = [parts[0], *(own[kind] for kind in kinds), parts[-1]]
    return [(index - 1, name) for index, names in enumerate(layers) for name in names]


def lowered(plan: Plan) -> tuple[Plan, tuple[Fault, ...]]:
    """The plan of the strategy that a per-operator plan is, and what of it is said otherwise; raises InfeasibleError
    with all reasons where it is none.
    """
    stages = stage_rows(plan)
    reasons = [*_split_reasons(stages), *_cut_reasons(stages)]
    kinds = {kind for rows in stages for kind in _recomputed(rows, plan.model.layers).values() if kind}
    if not reasons:
        reasons += _recompute_reasons(kinds)
    if reasons:
        raise InfeasibleError(
            _refused("operators of the plan have splits of their own, which no strategy says:", reasons)
        )
    made = replace(plan, strategy=_strategy(plan, stages, kinds), operators=None, proof=None)
    try:
        return made, (*_moved(stages, plan.model.layers), *_other_seconds(plan, made))
    except InputError as error:
        said = f"the plan is the strategy {made.strategy}, which its runtime does not run:"
        raise InfeasibleError(_refused(said, map(str, error.faults))) from None


def _refused(said: str, reasons: Iterable[str]) -> str:
    way = "`export --to torch-pipelining` writes a program that runs it as it is"
    return "\n".join([said, *(f"  - {reason}" for reason in reasons), way])


def _split_reasons(stages: Sequence[StageRows]) -> Iterator[str]:
    splits = [sorted({(row.tp, row.dp) for row in rows}, reverse=True) for rows in stages]
    if len({tuple(own) for own in splits}) > 1 or len(splits[0]) > 1:
        told = ", ".join(
            f"stage {index} " + " and ".join(f"tp{tp} dp{dp}" for tp, dp in own) for index, own in enumerate(splits)
        )
        yield f"splits differ: {told}"


def _cut_reasons(stages: Sequence[StageRows]) -> Iterator[str]:
    for index, (rows, after) in enumerate(pairwise(stages)):
        if rows[-1].layer == after[0].layer:
            yield f"stage {index} ends inside layer {rows[-1].layer}, after {rows[-1].unit}"


Kind = tuple[str, ...]
"""Modules that are recomputed; ("full",): the layer; none: nothing; ("?",): operators that make up no module."""


def _recomputed(rows: StageRows, layers: int) -> dict[int, Kind]:
    """What is recomputed of every layer of a stage."""
    found = {}
    for layer, group in groupby(rows, key=lambda row: row.layer):
        own = list(group)
        if 0 <= layer < layers or any(row.recompute for row in own):
            found[layer] = _kind(own) if 0 <= layer < layers else ("?",)
    return found


def _kind(rows: Sequence[OperatorRow]) -> Kind:
    again = {row.unit for row in rows if row.recompute}
    if len(again) in {0, len(rows)}:
        return ("full",) if again else ()
    modules = {row.module for row in rows if row.recompute}
    inside = {one for name in modules for one in _HOLDS.get(name, ())}
    whole = {row.unit for row in rows if row.module in modules | inside}
    known = whole == again and modules <= set(MODULES)
    return tuple(sorted(modules - inside, key=MODULES.index)) if known else ("?",)


def _recompute_reasons(kinds: set[Kind]) -> Iterator[str]:
    if ("?",) in kinds:
        yield "operators are recomputed that make up no module of a layer"
    elif len(kinds) > 1:
        yield f"layers are recomputed in several ways: {', '.join(sorted(map('+'.join, kinds)))}"


def _strategy(plan: Plan, stages: Sequence[StageRows], kinds: set[Kind]) -> Strategy:
    first, total = stages[0][0], plan.model.layers
    counts = [_recomputed(rows, total) for rows in stages]
    layers = tuple(len(own) for own in counts)
    again = tuple(sum(map(bool, own.values())) for own in counts)
    base = replace(plan.strategy, tp=first.tp, dp=first.dp, pp=len(stages), layers=(), recompute=_recompute(kinds))
    if again != layers and kinds:
        base = replace(base, recompute=replace(base.recompute, layers=again if len({*again}) > 1 else again[:1]))
    return base if _even(total, base) == layers else replace(base, layers=layers)


def _recompute(kinds: set[Kind]) -> Recompute:
    (kind,) = kinds or {()}
    return Recompute(full=kind == ("full",), modules=() if kind == ("full",) else kind)


def _even(layers: int, strategy: Strategy) -> tuple[int, ...]:
    try:
        return spread(layers, strategy)
    except InputError:
        return ()


def _moved(stages: Sequence[StageRows], layers: int) -> Iterator[Fault]:
    """A strategy counts recomputed layers from the first of a stage on."""
    for index, rows in enumerate(stages):
        flags = [bool(kind) for kind in _recomputed(rows, layers).values()]
        if flags != sorted(flags, reverse=True):
            text = (
                f"{sum(flags)} layers of stage {index} are recomputed, not its first ones; its first ones are written"
            )
            yield Fault("operators.recompute", text)


def _other_seconds(plan: Plan, made: Plan) -> Iterator[Fault]:
    """The same strategy by `estimate`, which knows no measured operator and no later version's figures."""
    told, found = _operators(plan).seconds, estimate_of(made).iteration_seconds
    if abs(found - told) > SAME_SECONDS * told:
        tags = _operators(plan).profile.get("tags") if isinstance(_operators(plan).profile, dict) else None
        measured = isinstance(tags, dict) and tags.get("source") == "measured"
        why = "its operators were measured" if measured else "the plan was priced otherwise"
        text = f"the plan says {show_seconds(told)}, an estimate of its strategy {show_seconds(found)}: {why}"
        yield Fault("operators.seconds", text)
