"""The options that verbs share: the model, the cluster, one flag for every field of a strategy, with Megatron's
spellings, and click's types for numbers, which the gate reads.

Flags, their types and their help come from the fields themselves (`inputs/describe.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, get_args

import click
from click.shell_completion import CompletionItem

from shardwise.api import ask
from shardwise.cli.output import show
from shardwise.errors import InputError
from shardwise.frameworks.megatron.names import MEGATRON_ALSO, MEGATRON_NUMBERS, MEGATRON_SWITCHES
from shardwise.inputs.describe import FieldDoc, describe
from shardwise.inputs.documents import Packing
from shardwise.inputs.gate import Scalar, listed, typed
from shardwise.inputs.scalars import SCALARS
from shardwise.inputs.strategy import SCHEDULES, Strategy


class Number(click.ParamType[float]):
    """A number that has a row."""

    name = "number"
    _NAMES: ClassVar = {"whole": "N", "number": "X", "bytes": "SIZE", "rate": "RATE", "seconds": "TIME", "count": "N"}

    def __init__(self, row: str | Scalar, read: Callable[[str, Scalar, str], Any] = typed) -> None:
        self.row = SCALARS[row] if isinstance(row, str) else row
        self.read = read
        self.name = self._NAMES.get(self.row.kind, "number")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        if not isinstance(value, str):
            return value  # a default
        try:
            return self.read(value, self.row, "")
        except InputError as error:
            self.fail(self.told(error.faults[0].message, param), param, ctx)

    def told(self, message: str, param: click.Parameter | None) -> str:
        """What click says after the option's name."""
        del param
        return message


def numbers(row: str) -> Number:
    """Several numbers, commas between them."""
    return Number(row, listed)


def share(text: str, row: Scalar, at: str) -> float:
    """`0.5%` or `0.005`."""
    if not text.strip().endswith("%"):
        return typed(text, row, at)
    percent = Scalar(kind="number", least=100 * row.least, most=100 * row.most)
    return typed(repr(typed(text.strip()[:-1], percent, at) / 100), row, at)


_SAME_VALUE = {
    **{ours: (theirs, *MEGATRON_ALSO.get(ours, ())) for ours, theirs in MEGATRON_NUMBERS.items()},
    **{ours: (theirs,) for theirs, (ours, value) in MEGATRON_SWITCHES.items() if value is True},
    "flash": ("use-flash-attn",),
}
MEGATRON = {ours: tuple(f"--{name}" for name in names) for ours, names in _SAME_VALUE.items()}
"""Field -> flags that mean the same and take the same value."""

SWITCHES: dict[str, tuple[str, object]] = {
    "--use-distributed-optimizer": ("zero", 1),
    "--bf16": MEGATRON_SWITCHES["bf16"],
    "--fp16": MEGATRON_SWITCHES["fp16"],
}
"""Flags without a value -> the field and the value that they set."""


F = TypeVar("F", bound=Callable[..., Any])

_FORMS = {"layers": "N,N,...", "batches": "N,N,...", "recompute": "none|full|full:4|modules", "lora": "RANK[:TARGETS]",
          "documents": "FILE"}  # fmt: skip
_HIDDEN = frozenset(name for names in MEGATRON.values() for name in names)
MEGATRON_WORDS = "shardwise.megatron"
PACKINGS = get_args(Packing)
MICROBATCHES = "Passes per iteration and replica, in place of --global-batch."


class Flag(click.Option):
    """An option whose other spellings are accepted but not shown; `also`: names that it had."""

    def __init__(self, declared: Sequence[str], *, also: Sequence[str] = (), **words: Any) -> None:  # noqa: ANN401
        super().__init__([*declared, *also], **words)
        self.unseen = _HIDDEN | {*also}

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        every, self.opts = self.opts, [opt for opt in self.opts if opt not in self.unseen]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = every

    def get_error_hint(self, ctx: click.Context | None) -> str:
        del ctx
        return self.opts[0]


class GroupedCommand(click.Command):
    """A verb whose help has its options in groups; what is in none of them comes last."""

    def __init__(self, *args: Any, groups: Mapping[str, str] | None = None, **words: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **words)
        self.groups = groups or {}
        """Title -> names of parameters, spaces between them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        told = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        grouped = {name for names in self.groups.values() for name in names.split()}
        rest = " ".join(str(name) for name in told if name not in grouped)
        for title, names in {**self.groups, "Else": rest}.items():
            rows = [record for name in names.split() if (record := told.get(name)) and record[1]]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=26)


class Words(click.ParamType[str]):
    """Text that completes to known words; `check` refuses others together with all other faults."""

    def __init__(self, known: Callable[[], Iterable[str]], name: str = "text") -> None:
        self.known = known
        self.name = name

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        start, _, rest = incomplete.rpartition("x") if incomplete[:1].isdigit() else ("", "", incomplete)
        prefix = f"{start}x" if start else ""
        return [CompletionItem(prefix + word) for word in self.known() if word.startswith(rest)]


class FieldNumber(Number):
    """A number of a field of the strategy: its kind is looked at here, its range with all other faults by `check`."""

    def __init__(self, field: str, kind: str) -> None:
        super().__init__("any.whole" if kind == "int" else "any.number")
        self.field = field

    def told(self, message: str, param: click.Parameter | None) -> str:
        example = "2" if self.row.kind == "whole" else "1.5"
        return f"strategy.{self.field}: {message}; write for example {param.opts[0] if param else self.field} {example}"


def _models() -> Iterable[str]:
    from shardwise.inputs.load import model_names

    return model_names()


def _gpus() -> Iterable[str]:
    from shardwise.inputs.load import gpu_names

    return gpu_names()


def _runtimes() -> Iterable[str]:
    from shardwise.inputs.load import runtime_names

    return runtime_names()


MODEL = Words(_models, "MODEL")
CLUSTER = Words(_gpus, "CLUSTER")


def strategy_flags() -> list[Flag]:
    """One flag for every field of a strategy, unset unless given, and Megatron's switches."""
    flags = [_flag(doc) for doc in describe(Strategy)]
    flags.append(Flag(["--microbatches"], type=FieldNumber("microbatches", "int"), metavar="N", help=MICROBATCHES))
    flags += [Flag([name], is_flag=True, default=None, hidden=True) for name in SWITCHES]
    return flags


def _flag(doc: FieldDoc) -> Flag:
    name = "--" + doc.name.replace("_", "-")
    if doc.kind == "switch":
        return Flag([f"{name}/--no-{name[2:]}", *MEGATRON.get(doc.name, ())], default=None, help=_help(doc))
    numeric = doc.kind in {"int", "float"}
    kind: click.ParamType[Any] = FieldNumber(doc.name, doc.kind) if numeric else Words(lambda: _choices(doc))
    return Flag([name, *MEGATRON.get(doc.name, ())], type=kind, metavar=_metavar(doc), default=None, help=_help(doc))


def _choices(doc: FieldDoc) -> Iterable[str]:
    return SCHEDULES if doc.name == "schedule" else _runtimes() if doc.name == "runtime" else doc.choices


def _metavar(doc: FieldDoc) -> str:
    if doc.name in _FORMS:
        return _FORMS[doc.name]
    names = {"int": "N", "float": "X"}
    return "|".join(doc.choices) or names.get(doc.kind, "NAME")


def _help(doc: FieldDoc) -> str:
    default = ("on" if doc.default else "off") if doc.kind == "switch" else str(doc.default).lower()
    derived = doc.name in {"dp", "layers", "batches", "first_layers", "last_layers", "zero_group", "group"}
    extra = f" One of {', '.join(SCHEDULES)}." if doc.name == "schedule" else ""
    return f"{doc.text}{extra}" + ("" if derived else f" [{default}]")


def asks(verb: F) -> F:
    """MODEL, --cluster, --strategy, --from and all strategy flags; the verb gets `asked` (`api.ask`)."""

    def collected(**options: Any) -> Any:  # noqa: ANN401 - whatever the verb takes and returns
        own = {name: options.pop(name) for name in list(options) if name not in names}
        notes: list[str] = []
        try:
            asked = ask(**_requested(options), notes=notes)
        except InputError:  # what was understood of a file often says why something is missing
            for note in () if own.get("quiet") else notes:
                show(f"note: {note}", err=True)
            raise
        return verb(asked=asked, **own)

    collected.__name__, collected.__doc__ = verb.__name__, verb.__doc__
    params: list[click.Parameter] = list(getattr(verb, "__click_params__", []))
    shared: list[click.Parameter] = [*_sources(), *strategy_flags()]
    names = {param.name for param in shared}
    collected.__click_params__ = [*params, *reversed(shared)]  # type: ignore[attr-defined]
    return collected  # type: ignore[return-value]


def fixes(verb: F) -> F:
    """Every flag of a strategy as `asks` has it, unseen: `--tp 2` is a word of --fix, and Megatron's spelling too."""

    def collected(**options: Any) -> Any:  # noqa: ANN401 - whatever the verb takes and returns
        given = {name: options.pop(name) for name in names}
        words = [_fixed(name, value) for name, value in given.items() if value is not None]
        return verb(fix=(*options.pop("fix"), *words), **options)

    collected.__name__, collected.__doc__ = verb.__name__, verb.__doc__
    shared = [_flag(doc) for doc in describe(Strategy) if doc.name not in _ASKED]
    names = [flag.name for flag in shared]
    for flag in shared:
        flag.hidden = True
    params: list[click.Parameter] = list(getattr(verb, "__click_params__", []))
    collected.__click_params__ = [*params, *reversed(shared)]  # type: ignore[attr-defined]
    return collected  # type: ignore[return-value]


_ASKED = frozenset({"global_batch", "seq", "documents", "packing", "runtime"})
"""Fields that `plan` has an option of its own for."""
_FIX = {"micro_batch": "mbs", "zero_group": "hsdp", "dispatcher": "dispatch", "cuda_graphs": "graphs"}


def _fixed(name: str, value: object) -> str:
    """A field as a word of --fix."""
    said = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
    text = "".join(str(said).split())
    return f"lora{text}" if name == "lora" else f"{_FIX.get(name, name)}={text}"


def _requested(options: dict[str, Any]) -> dict[str, Any]:
    """The options as `api.ask` takes them."""
    switches = {
        name: value for flag, (name, value) in SWITCHES.items() if options.pop(flag[2:].replace("-", "_"), None)
    }
    found = {name: options.pop(name) for name in ("model", "cluster", "strategy")}
    found["source"] = options.pop("framework_file")
    megatron = click.get_current_context().meta.get(MEGATRON_WORDS, {})
    fields = {name: value for name, value in options.items() if value is not None}
    return {**found, "fields": fields, "switches": switches, "megatron": megatron}


class Asking(click.Command):
    """A verb of `asks`: takes Megatron's flags beside ours, and refuses one thing said twice."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours = frozenset(name for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts))
        if any(word.startswith("--") and word.partition("=")[0] not in ours for word in args):
            from shardwise.frameworks.megatron.typed import split

            args, ctx.meta[MEGATRON_WORDS] = split(args, ours)
        self._refuse_twice(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_twice(self, ctx: click.Context, args: list[str]) -> None:
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        for param in dict.fromkeys(order):
            if isinstance(param, click.Option) and not param.multiple and order.count(param) > 1:
                names = [name for name in (*param.opts, *param.secondary_opts) if name in _names(args)]
                word = "is given more than once" if len(names) == 1 else "say the same thing"
                raise click.UsageError(f"{' and '.join(names)} {word}; keep one", ctx)


def _names(args: list[str]) -> set[str]:
    return {word.partition("=")[0] if word.startswith("--") else word[:2] for word in args if word.startswith("-")}


def _sources() -> list[click.Parameter]:
    return [
        click.Argument(["model"], type=MODEL, required=False),
        Flag(["--cluster", "-c"], type=CLUSTER, metavar="64xh100|FILE", help="What it runs on."),
        Flag(
            ["--strategy", "-s"], metavar="TEXT|FILE",
            help='A strategy in one line, such as "tp8 pp4x2 mbs1 gbs512", or a file. Flags go before it.',
        ),
        Flag(
            ["--from", "framework_file"], metavar="FILE",
            help="Take model and strategy from a plan, a Megatron script, torchtitan, MindFormers or DeepSpeed file.",
        ),
    ]  # fmt: skip


def several(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Options as one decorator, shown in this order."""

    def added(verb: Any) -> Any:  # noqa: ANN401 - a click decorator
        for option in reversed(options):
            verb = option(verb)
        return verb

    return added


GLOBAL_BATCH = click.option(
    "--global-batch",
    cls=Flag,
    also=("--global-batch-size",),
    type=Number("Strategy.global_batch"),
    default=1024,
    metavar="N",
    help="Samples per iteration. [1024]",
)
executor_options = several(
    click.option("--workers", type=Number("option.workers"), default=1, metavar="N", help="Processes. [1]"),
    click.option("--executor", type=click.Choice(["processes", "ray"]), default="processes", help="[processes]"),
    click.option("--address", metavar="HOST:PORT", help="A running Ray cluster. [one is started here]"),
)


def typed_options(context: click.Context) -> frozenset[str]:
    """The options that were typed, not defaulted."""
    source = click.core.ParameterSource.COMMANDLINE
    return frozenset(name for name in context.params if context.get_parameter_source(name) == source)
