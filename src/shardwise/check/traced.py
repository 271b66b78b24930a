"""Rules of traced modules: what was followed is one format, one length and one device's work, in eager torch."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.check.rule import Combination, divisors_near, either, rule
from shardwise.errors import Fault
from shardwise.inputs.load import load_runtime, runtime_names
from shardwise.inputs.model import Model
from shardwise.inputs.traced import Line, Traced, TracedCut, TracedOp
from shardwise.inputs.traced_model import disagreements

MOST_OPS = 20_000
"""Operators of all kinds of block together; a trace of a large model has some hundreds."""
_SHAPES = {"gemm": 3, "grouped": 4, "attention": 7, "memory": 0}
"""Numbers of an operator's shape."""


@rule("tp", "cp", "sp", "model.traced")
def split_operators(case: Combination) -> Iterator[Fault]:
    traced, s = case.model.traced, case.strategy
    if traced is None:
        return
    if s.cp > 1:
        told = "the samples of a traced module are not split"
        yield Fault("strategy.cp", f"{told}; use cp 1, and dp, zero or pp in its place")
    if s.tp > 1 and traced.ways == 1:
        told = f"no columns and rows were found in it that {s.tp} ranks could share"
        yield Fault("strategy.tp", f"{told} ({traced.whole or 'it was traced before they were looked for'}); use tp 1")
    elif traced.ways % s.tp:
        legal = either(n for n in divisors_near(traced.ways, s.tp) if n != s.tp)
        yield Fault("strategy.tp", f"{s.tp} does not divide {traced.ways}, which all that it cuts is; use tp {legal}")
    if s.sp and s.tp > 1:
        yield Fault("strategy.sp", "what lies between columns and rows of a traced module is not split; add nosp")


@rule("seq", "model.traced")
def traced_length(case: Combination) -> Iterator[Fault]:
    traced = case.model.traced
    if traced and case.strategy.seq != traced.seq:
        length = (
            f"it was traced with {traced.inputs}: a sample has {traced.seq} {'token' if traced.seq == 1 else 'tokens'}"
        )
        yield Fault("strategy.seq", f"{case.strategy.seq}, but {length}; use seq {traced.seq}, or trace it again")


@rule("dtype", "master", "compile", "lora", "model.traced")
def traced_format(case: Combination) -> Iterator[Fault]:
    traced, s = case.model.traced, case.strategy
    if traced is None:
        return
    if (s.dtype == "fp32") != (traced.dtype == "fp32") or s.dtype not in {"bf16", "fp16", "fp32"}:
        yield Fault("strategy.dtype", f"{s.dtype}, but the module was traced in {traced.dtype}; trace it again")
    if s.master == "autocast":
        yield Fault(
            "strategy.master", f"autocast casts inside the module, which was traced in {traced.dtype} throughout"
        )
    if s.compile:
        yield Fault("strategy.compile", "a compiler fuses what was traced kernel by kernel; drop compile")
    if s.lora:
        yield Fault("strategy.lora", "is not known of traced modules; put the adapters into the module and trace that")


@rule("recompute", "model.traced")
def traced_recompute(case: Combination) -> Iterator[Fault]:
    if case.model.traced and case.strategy.recompute.modules:
        told = "the parts of traced blocks have no names that modules could be chosen by"
        yield Fault("strategy.recompute", f"{told}; use recompute=full, for all blocks or some of each stage")


@rule("runtime", "model.traced")
def traced_runtime(case: Combination) -> Iterator[Fault]:
    if case.model.traced and not case.can.any_module:
        able = [name for name in runtime_names() if load_runtime(name).can.any_module]
        told = f"{case.runtime.base} has layers of its own, and a traced module runs in plain torch"
        yield Fault("strategy.runtime", f"{told}; use {either(able)}")


@rule("model.traced")
def traced_says_all(case: Combination) -> Iterator[Fault]:
    yield from traced_faults(case.model)


def traced_faults(model: Model) -> Iterator[Fault]:
    """What is wrong with traced blocks by themselves."""
    traced = model.traced
    if traced is None:
        return
    faults = list(_faults(traced))
    yield from faults
    if not faults and (others := disagreements(model)):
        yield Fault(
            "model.traced", f"does not agree with {either(others)}, which follow from it; trace the module again"
        )


def _faults(traced: Traced) -> Iterator[Fault]:
    idle = [kind.name for kind in traced.kinds if not kind.ops]
    if idle or not traced.kinds:
        told = f"{idle[0]} has no operators" if idle else "are missing: a module has blocks"
        yield Fault("model.traced.kinds", f"{told}; trace it again")
    elif not traced.order or any(not 0 <= kind < len(traced.kinds) for kind in traced.order):
        yield Fault("model.traced.order", f"must name kinds from 0 to {len(traced.kinds) - 1}, one for every block")
    names = [kind.name for kind in traced.kinds]
    if len(set(names)) != len(names) or {"embedding", "head", ""} & set(names):
        yield Fault("model.traced.kinds", "need names of their own, other than embedding and head")
    blocks = (traced.first, *traced.kinds, traced.last)
    if sum(len(block.ops) for block in blocks) > MOST_OPS:
        yield Fault("model.traced.kinds", f"have more than {MOST_OPS:,} operators; group blocks, or trace a part")
        return
    wrong = [op.name for block in blocks for op in block.ops if len(op.shape) != _SHAPES[op.kind]]
    if wrong:
        yield Fault("model.traced.kinds", f"the shape of {wrong[0]} has not the numbers of its kind; trace it again")
    cut = [op.name for block in blocks for op in block.ops if op.cut and len(op.cut.shape) not in {0, len(op.shape)}]
    if cut:
        yield Fault("model.traced.kinds", f"the cut of {cut[0]} has not the numbers of its shape; trace it again")
    if any(len(line) != 2 for line in _lines(traced)):
        yield Fault("model.traced", "lines are two numbers, what stands and what a sample adds; trace the module again")
        return
    absurd = [f"{op.name} of {block.name}" for block in blocks for op in block.ops if _absurd(op)]
    if absurd:
        why = "takes less than nothing for one sample, or tensor parallel cuts more of it than there is"
        yield Fault("model.traced.kinds", f"{absurd[0]} {why}; trace it again")


def _absurd(op: TracedOp) -> bool:
    """Whether no module can have this operator; half a byte, and half a token, are rounding. What is live beside is the
    difference of two measured peaks, and may be below nothing at few samples.
    """
    own = (op.bytes_f, op.bytes_b, op.kept, *op.shape)
    more = op.cut is not None and (op.cut.params > op.params or any(_parts_beyond(op, op.cut)))
    return more or any(sum(line) < -0.5 for line in own)


def _parts_beyond(op: TracedOp, cut: TracedCut) -> Iterator[bool]:
    """Whether a part is more than its whole, for one sample."""
    for part, whole in ((cut.kept, op.kept), *zip(cut.shape, op.shape, strict=False)):
        yield sum(part) > sum(whole) * (1 + 1e-9) + 0.5


def _lines(traced: Traced) -> Iterator[Line]:
    yield from (traced.border, traced.tables, traced.logits)
    for block in (traced.first, *traced.kinds, traced.last):
        yield block.entry
        for op in block.ops:
            yield from (op.bytes_f, op.bytes_b, op.kept, op.extra_f, op.extra_b, *op.shape)
            if cut := op.cut:
                yield from (cut.bytes_f, cut.bytes_b, cut.kept, cut.extra_f, cut.extra_b, *cut.shape)
                yield from (cut.sums_f, cut.sums_b)


RULES = (
    split_operators, traced_length, traced_format, traced_recompute, traced_runtime, traced_says_all,
)  # fmt: skip
