"""Rules between model and strategy: what tp, cp, ep and etp divide."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardwise.check.rule import Combination, divisors_near, either, multiples_near, rule
from shardwise.errors import Fault
from shardwise.inputs.formats import format_of

_SHAPE = ("model.heads", "model.kv_heads", "model.hidden", "model.ffn", "model.moe", "model.mla", "model.layers",
          "model.recurrent", "model.mixers", "model.feeds", "model.traced")  # fmt: skip


def _split_by_tp(case: Combination) -> dict[str, int]:
    """What tensor parallel cuts into equal parts, by name."""
    model, moe = case.model, case.model.moe
    if model.traced:
        return {}
    mixers = {model.mixer_of(index) for index in range(model.layers)}
    parts: dict[str, int] = {}
    if mixers & {"attention", "both"}:
        parts["heads"] = model.heads
        if model.mla is None:
            parts["kv_heads"] = model.kv_heads
    parts["hidden"] = model.hidden
    if model.recurrent:
        parts["recurrent.heads"] = model.recurrent.heads
        if model.recurrent.key_heads:
            parts["recurrent.key_heads"] = model.recurrent.key_heads
    if any(model.feed_of(index) == "dense" for index in range(model.layers)):
        parts["ffn"] = model.ffn
    if moe and moe.shared_ffn:
        parts["moe.shared_ffn"] = moe.shared_ffn
    return parts


@rule("tp", *_SHAPE)
def shape_by_tp(case: Combination) -> Iterator[Fault]:
    tp, parts = case.strategy.tp, _split_by_tp(case)
    uneven = [f"{name} {size}" for name, size in parts.items() if size % tp]
    if not uneven:
        return
    legal = either(n for n in divisors_near(math.gcd(*parts.values()), tp) if n != tp)
    reason = (
        " (kv heads are not copied: Megatron and torchtitan refuse it too)" if tp > parts.get("kv_heads", tp) else ""
    )
    yield Fault("strategy.tp", f"{tp} does not divide the model's {', '.join(uneven)}{reason}; use tp {legal}")


@rule("tp", "model.vocab", "model.traced")
def vocabulary(case: Combination) -> Iterator[Fault]:
    if not case.model.traced and case.model.vocab < case.strategy.tp:
        yield Fault(
            "strategy.tp", f"{case.strategy.tp} ranks cannot share a vocabulary of {case.model.vocab}; lower tp"
        )


@rule("seq", "tp", "cp", "sp")
def sequence_parts(case: Combination) -> Iterator[Fault]:
    s = case.strategy
    # Context parallel gives every rank an early and a late piece so that causal work is even: two pieces each.
    step = math.lcm(2 * s.cp if s.cp > 1 else 1, s.cp * s.tp if s.sp else 1)
    if s.seq % step:
        near = either(multiples_near(step, s.seq))
        yield Fault(
            "strategy.seq",
            f"{s.seq} tokens are not a multiple of {step}, which cp {s.cp} and tp {s.tp}"
            f"{' with sequence parallel' if s.sp else ''} need; use {near}",
        )


@rule("seq", "model.position", "model.max_positions", "model.stem")
def position_rows(case: Combination) -> Iterator[Fault]:
    """Of text; the rows of pictures are stretched over those of another size (interpolate_pos_encoding)."""
    rows = case.model.max_positions
    if case.model.tabled and not case.model.stem and case.strategy.seq > rows >= 1:
        yield Fault(
            "strategy.seq", f"{case.strategy.seq} tokens are more than the {rows} learned positions; use at most {rows}"
        )


@rule("cp", "cp_kind", "tp", "model.heads", "model.kv_heads", "model.mla")
def heads_by_cp(case: Combination) -> Iterator[Fault]:
    s, model = case.strategy, case.model
    if s.cp == 1 or s.cp_kind != "all-to-all":
        return
    heads = math.gcd(model.heads, model.kv_heads) if model.mla is None else model.heads
    if heads % (s.tp * s.cp) and heads % s.tp == 0:
        legal = either(n for n in divisors_near(heads // s.tp, s.cp) if n != s.cp)
        yield Fault(
            "strategy.cp",
            f"all-to-all exchanges heads: {model.heads} and {model.kv_heads} for keys and values do not divide over "
            f"tp {s.tp} x cp {s.cp}; use cp {legal}, or cp_kind ring",
        )


@rule("cp", "tp", "model.recurrent")
def recurrent_heads_by_cp(case: Combination) -> Iterator[Fault]:
    s, mixer = case.strategy, case.model.recurrent
    if s.cp == 1 or mixer is None:
        return
    heads = math.gcd(mixer.heads, mixer.key_heads or mixer.heads)
    if heads % (s.tp * s.cp) and heads % s.tp == 0:
        legal = either(n for n in divisors_near(heads // s.tp, s.cp) if n != s.cp)
        told = f"recurrent layers exchange heads: {mixer.heads} and {mixer.key_heads or mixer.heads} of keys"
        yield Fault("strategy.cp", f"{told} do not divide over tp {s.tp} x cp {s.cp}; use cp {legal}")


@rule("ep", "etp", "model.moe")
def experts_by_ep(case: Combination) -> Iterator[Fault]:
    s, moe = case.strategy, case.model.moe
    if moe is None:
        for name in ("ep", "etp"):
            if getattr(s, name) > 1:
                yield Fault(
                    f"strategy.{name}", f"{getattr(s, name)}, but {case.model.name} has no experts; use {name} 1"
                )
        return
    if moe.experts % s.ep:
        legal = either(divisors_near(moe.experts, s.ep))
        yield Fault("strategy.ep", f"{s.ep} does not divide {moe.experts} experts; use ep {legal}")
    if moe.expert_ffn % s.etp:
        legal = either(divisors_near(moe.expert_ffn, s.etp))
        yield Fault(
            "strategy.etp", f"{s.etp} does not divide the experts' width expert_ffn {moe.expert_ffn}; use etp {legal}"
        )


@rule("lora", *_SHAPE, "model.head_size")
def adapters(case: Combination) -> Iterator[Fault]:
    lora = case.strategy.lora
    if lora is None:
        return
    unknown = [name for name in lora.targets if name not in {"qkv", "out", "mlp"}]
    if unknown or not lora.targets:
        yield Fault(
            "strategy.lora.targets", f"{', '.join(unknown) or 'none'} cannot carry an adapter; choose qkv, out, mlp"
        )
    narrowest = min(_adapted_widths(case))
    if lora.rank > narrowest:
        message = f"{lora.rank} is more than {narrowest}, the narrowest side of the layers it adapts; use at most that"
        yield Fault("strategy.lora.rank", message)


def _adapted_widths(case: Combination) -> list[int]:
    """The sides of the matrices that carry adapters: an adapter of a higher rank is larger than what it replaces."""
    model, targets = case.model, case.strategy.lora.targets if case.strategy.lora else ()
    widths = [model.hidden]
    if {"qkv", "out"} & set(targets):
        widths.append(model.heads * (model.mla.value_size if model.mla else model.head_size))
    if "mlp" in targets:
        widths += [size for size in (model.ffn, model.moe.expert_ffn if model.moe else 0) if size]
    return widths


@rule("dtype", "master")
def fp32_everywhere(case: Combination) -> Iterator[Fault]:
    s = case.strategy
    if s.dtype == "fp32" and s.master == "autocast":
        yield Fault(
            "strategy.master",
            "autocast computes in 16 bits beside fp32 parameters, but dtype is fp32; use dtype bf16, or master pure",
        )


@rule("dtype", "fp8_weights", "fp8_attention")
def below_sixteen_bit(case: Combination) -> Iterator[Fault]:
    s = case.strategy
    for name, what in (("fp8_weights", "weights in 8 bit go"), ("fp8_attention", "attention in 8 bit goes")):
        if getattr(s, name) and format_of(s.dtype, s.scaling) is None:
            text = f"{what} with products below 16 bit, but dtype is {s.dtype}; use fp8, or leave it out"
            yield Fault(f"strategy.{name}", text)


RULES = (
    fp32_everywhere,
    below_sixteen_bit,
    shape_by_tp,
    vocabulary,
    sequence_parts,
    position_rows,
    heads_by_cp,
    recurrent_heads_by_cp,
    experts_by_ep,
    adapters,
)
