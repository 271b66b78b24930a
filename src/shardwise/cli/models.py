"""`shardwise models`: the catalog of models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

import click

from shardwise import api
from shardwise.cli.options import MODEL
from shardwise.cli.output import Output, output_options
from shardwise.errors import Fault, InputError
from shardwise.inputs.load import model_names
from shardwise.inputs.mixers import Recurrent, Sparse
from shardwise.inputs.model import Mla, Model, Moe, RopeScaling
from shardwise.inputs.parameters import Parameters, count
from shardwise.inputs.serialise import to_json
from shardwise.inputs.towers import Projector, Stem
from shardwise.inputs.traced import Traced, at
from shardwise.inputs.write import once_written, write_text
from shardwise.units import show_bytes, show_count


@click.command("models")
@click.argument("model", type=MODEL, required=False)
@click.option("--trace", metavar="FILE.py:BUILD", help="Execute FILE and follow the PyTorch module that BUILD() gives.")
@click.option("--input", "inputs", metavar="NAME=SIZES:TYPE", multiple=True, help="What the module is called with.")
@click.option("--dtype", default="bf16", show_default=True, help="Of --trace: format of its parameters.")
@click.option("--out", metavar="FILE", help="Of --trace: write the model, to be planned as any other.")
@output_options
def command(
    model: str | None, trace: str | None, inputs: tuple[str, ...], dtype: str, out: str | None, output: Output
) -> None:
    """List the models of the catalog, show one with its parameters, or trace your own.

    \b
    shardwise models
    shardwise models llama-3-8b
    shardwise models --trace my_model.py:build --input ids=1x4096:int64 --out model.json

    MODEL is a name of the catalog, a Hugging Face config.json, or a file of ours or SimuMax's.
    """  # noqa: D301 - \b is click's mark for lines that stay as they are
    if trace is not None:
        if model is not None:
            raise InputError(Fault("--trace", f"traces a module, and {model} names a model; give one of the two"))
        _trace(trace, inputs, dtype, out, output)
    elif inputs or out:
        raise InputError(Fault("--input" if inputs else "--out", "goes with --trace FILE.py:BUILD; add it"))
    elif model is None:
        _list(output)
    else:
        _show(model, output)


def _trace(source: str, inputs: tuple[str, ...], dtype: str, out: str | None, output: Output) -> None:
    found = api.trace_module(source, inputs, dtype=dtype, executing=output.note_executed)
    if out:
        write_text(out, to_json(found))
        once_written(lambda: output.say(f"wrote {out}; plan it with --seq {found.traced.seq if found.traced else 1}"))
    _tell(found, output)


def _list(output: Output) -> None:
    models = [api.load_model(name) for name in model_names()]
    totals = [count(model) for model in models]
    output.answer(
        [{"name": m.name, "parameters": p.total, "active": p.active} for m, p in zip(models, totals, strict=True)]
    )
    output.table(
        ("model", "parameters", "active", "layers", "hidden", "heads", "kv", "ffn", "experts", "vocab"),
        [_row(model, total) for model, total in zip(models, totals, strict=True)],
    )


def _row(model: Model, parameters: Parameters) -> tuple[str, ...]:
    moe = model.moe
    return (
        model.name,
        show_count(parameters.total),
        show_count(parameters.active),
        str(model.layers),
        str(model.hidden),
        str(model.heads),
        "MLA" if model.mla else str(model.kv_heads),
        str(model.ffn),
        f"{moe.top_k} of {moe.experts}" if moe else "-",
        str(model.vocab),
    )


def _show(name: str, output: Output) -> None:
    read = api.read_model(name)
    for note in read.notes:
        output.note(note)
    _tell(read.value, output)


def _tell(model: Model, output: Output) -> None:
    parameters = count(model)
    output.answer({"model": model, "parameters": dict(_parts(parameters)), "active": parameters.active})
    output.say(f"{model.name}: {parameters.total:,} parameters, {parameters.active:,} active per token")
    if model.traced:
        output.table(("block", "times", "parameters", "kept per sample", "kernels", "entry"), _kinds(model.traced))
        output.say(_shared(model.traced))
    else:
        output.table(("field", "value"), _fields(model))
    output.say()
    output.table(("block", "parameters", "share"), _blocks(parameters))


def _kinds(traced: Traced) -> Iterator[tuple[str, ...]]:
    """Every kind of traced block; kernels of both passes."""
    counts = Counter(traced.order)
    blocks = [(traced.first, 1), *((kind, counts[index]) for index, kind in enumerate(traced.kinds)), (traced.last, 1)]
    for block, times in blocks:
        kept, kernels = sum(op.kept[1] for op in block.ops), sum(op.kernels_f + op.kernels_b for op in block.ops)
        entry = show_bytes(at(block.entry, 1.0))
        yield block.name, str(times), f"{block.params:,}", show_bytes(kept), f"{kernels:.0f}", entry


_Table = Model | Mla | Moe | Recurrent | RopeScaling | Sparse | Stem | Projector


def _shared(traced: Traced) -> str:
    """What tensor parallel can do with it."""
    if traced.ways == 1:
        return f"tensor parallel: none, {traced.whole}" if traced.whole else "tensor parallel: none"
    blocks = (traced.first, *(traced.kinds[kind] for kind in traced.order), traced.last)
    share = sum(op.cut.params for block in blocks for op in block.ops if op.cut) / max(1, traced.params)
    left = f"; the rest is whole on every rank ({traced.whole})" if traced.whole else ""
    return f"tensor parallel: up to {traced.ways} ranks share {share:.0%} of the parameters{left}"


def _fields(value: _Table, at: str = "") -> Iterator[tuple[str, str]]:
    """What a model gives beside the defaults."""
    for field in fields(value):
        item = getattr(value, field.name)
        if isinstance(item, _Table):
            yield from _fields(item, f"{at}{field.name}.")
        elif field.name == "towers":
            for tower in item:
                yield from _fields(tower, f"{at}{tower.name}.")
        elif item != field.default:
            yield f"{at}{field.name}", str(item)


def _blocks(parameters: Parameters) -> Iterator[tuple[str, ...]]:
    for name, number in _parts(parameters):
        if number:
            yield name, f"{number:,}", f"{100 * number / parameters.total:.2f}%"


def _parts(p: Parameters) -> Iterator[tuple[str, int]]:
    """Parts that add up to the total."""
    yield "embedding", p.embedding + p.position + p.embedding_norm
    yield "blocks", p.blocks
    yield "towers", p.towers
    yield "dense layers", p.of_feed("dense")
    yield "expert layers", p.of_feed("experts")
    yield "layers that only mix", p.of_feed("none")
    yield "multi-token prediction", p.mtp
    yield "output", p.final_norm + p.head
    yield "total", p.total
