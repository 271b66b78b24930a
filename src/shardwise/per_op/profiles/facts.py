"""What must be known of an operator beside its seconds and bytes. It is data of the profile, or of a table by exact
name; nothing is guessed from a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.per_op.profiles.table import Profile

KINDS = ("embedding", "head", "norm", "matrix", "attention", "pointwise", "convolution", "pool")
ENDS = ("embedding", "head")
"""Kinds that stand where a model begins and ends: not recomputed unless it is said."""
WIDTHS = {"fp16": 2.0, "bf16": 2.0, "fp8": 2.0, "fp32": 4.0}
"""Bytes of a profiled weight. Weights of fp8 runs are kept in 16 bit."""
LETTERS = frozenset("1dt")
WHOLE = ("1d1",) * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFacts:
    """One operator's properties."""

    kind: str = "pointwise"
    """One of `KINDS`."""
    dtype: str = "fp16"
    """Of its weights. fp32 weights have no fp32 copy beside them."""
    inputs: tuple[str, ...] = ()
    """Layout of its input, a form per variant: three dimensions, each whole (1) or split over the replicas (d) or the
    tensor parallel GPUs (t). Empty: nothing is known, and a change costs nothing."""
    outputs: tuple[str, ...] = ()
    """Layout of its output."""
    tp: tuple[int, ...] = ()
    """Tensor parallel sizes that it can have; empty: all that were profiled."""
    keeps: float = 1.0
    """Part of its activations that is really kept: tensors shared with a neighbour count there."""
    shares: str = ""
    """The operator whose parameters it uses: in a pipeline of one stage they are there once."""
    starts_layer: bool = False
    """Its input is kept whatever is recomputed: runs of recomputed operators end before it."""
    recompute: bool = True
    """May be recomputed."""

    @property
    def width(self) -> float:
        return WIDTHS[self.dtype]


Said = Mapping[str, Any]
"""Some of the facts of an operator, by name."""
_LISTS = ("inputs", "outputs", "tp")


def said_faults(name: str, said: object) -> Iterator[Fault]:
    """What is wrong with one table `[operators.name]`."""
    at, known = f"profile.toml: operators.{name}", [field.name for field in fields(OperatorFacts)]
    if not isinstance(said, dict):
        yield Fault(at, 'must be a table such as kind = "matrix"')
        return
    for key, value in said.items():
        if key not in known:
            yield Fault(at, f"{key} is no fact of an operator; there are {', '.join(known)}")
        elif why := _wrong(key, value):
            yield Fault(at, f"{key} is {value!r}; {why}")


def _wrong(key: str, value: object) -> str:
    if key in {"kind", "dtype"}:
        choices = KINDS if key == "kind" else tuple(WIDTHS)
        return "" if value in choices else f"choose {', '.join(choices)}"
    if key in {"inputs", "outputs"}:
        good = isinstance(value, list) and all(isinstance(one, str) and _form(one) for one in value)
        return "" if good else 'write a list of forms, one per variant, such as ["1d1", "1dt"]'
    if key == "tp":
        good = isinstance(value, list) and len(value) > 0 and all(type(one) is int and one > 0 for one in value)
        return "" if good else "write a list of tensor parallel sizes such as [1, 2]"
    if key == "keeps":
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100
        return "" if good else "write a number from 0"
    if key == "shares":
        return "" if isinstance(value, str) and value else "name the operator whose parameters it uses"
    return "" if isinstance(value, bool) else "write true or false"


def _form(text: str) -> bool:
    return len(text) == 3 and set(text) <= LETTERS


def read_facts(
    operators: object, ops: tuple[str, ...], tps: tuple[int, ...] = ()
) -> tuple[dict[str, Said], list[Fault]]:
    """The table `[operators]` of a profile, and what is wrong with it; `tps`: sizes that were profiled."""
    if not isinstance(operators, dict):
        return {}, [Fault("profile.toml: operators", 'must be tables such as [operators.mlp] with kind = "matrix"')]
    faults = [fault for name, said in operators.items() for fault in said_faults(str(name), said)]
    faults += [Fault(f"profile.toml: operators.{name}", f"is no operator of the profile: {', '.join(ops)}")
               for name in operators if ops and name not in ops]  # fmt: skip
    if not faults:
        faults = [Fault(f"profile.toml: operators.{name}", f"shares {said['shares']}, which is no other operator")
                  for name, said in operators.items()
                  if "shares" in said and (said["shares"] not in ops or said["shares"] == name)]  # fmt: skip
        faults += [Fault(f"profile.toml: operators.{name}", f"tp is {said['tp']}; profiled are {list(tps)}: name one")
                   for name, said in operators.items()
                   if tps and "tp" in said and not set(said["tp"]) & set(tps)]  # fmt: skip
    found = {} if faults else {str(name): _tuples(said) for name, said in operators.items()}
    return found, faults


def _tuples(said: Said) -> Said:
    return {key: tuple(value) if key in _LISTS else value for key, value in said.items()}


def written_facts(facts: Said) -> dict[str, Any]:
    """As `profile.toml` holds them."""
    return {key: list(value) if key in _LISTS else value for key, value in facts.items() if value not in ("", ())}


def facts_of(profile: Profile, known: Callable[[str], OperatorFacts | None]) -> tuple[OperatorFacts, ...]:
    """Of every operator: what the profile says, and `known` for what it leaves out; unknown operators are refused."""
    dtype = _dtype(profile)
    found, unknown = [], []
    for name in profile.ops:
        said, table = profile.operators.get(name, {}), known(name)
        if table is None and "kind" not in said:
            unknown.append(name)
            continue
        base = table or _by_kind(said["kind"])
        found.append(replace(base, **{**({"dtype": dtype} if dtype else {}), **said}))
    if unknown:
        raise InputError([Fault("--profiles", _unknown(name)) for name in unknown])
    return tuple(found)


def _dtype(profile: Profile) -> str:
    dtype = profile.tags.get("dtype", "")
    if dtype and dtype not in WIDTHS:
        raise InputError(Fault("profile.toml: tags.dtype", f"is {dtype!r}; choose {', '.join(WIDTHS)}"))
    return dtype


def _by_kind(kind: str) -> OperatorFacts:
    """Whole tensors in and out: a change of layout is not free."""
    return OperatorFacts(kind=kind, inputs=WHOLE, outputs=WHOLE, recompute=kind not in ENDS)


def _unknown(name: str) -> str:
    quoted = name if name.replace("-", "").replace("_", "").isalnum() else f'"{name}"'
    return (
        f"nothing is known of operator {name!r}; add to profile.toml: [operators.{quoted}] with the line "
        f'kind = "pointwise", or one of {", ".join(kind for kind in KINDS if kind != "pointwise")}'
    )
