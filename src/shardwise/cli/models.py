"""`shardwise models`: the catalog of models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import click

from shardwise import api
from shardwise.cli.options import MODEL
from shardwise.cli.output import Output, output_options
from shardwise.inputs.load import model_names
from shardwise.inputs.mixers import Recurrent, Sparse
from shardwise.inputs.model import Mla, Model, Moe, RopeScaling
from shardwise.inputs.parameters import Parameters, count
from shardwise.units import show_count


@click.command("models")
@click.argument("model", type=MODEL, required=False)
@output_options
def command(model: str | None, output: Output) -> None:
    """List the models of the catalog, or show one with its parameters.

    MODEL is a name of the catalog, a Hugging Face config.json, or a file of ours or SimuMax's.
    """
    if model is None:
        _list(output)
    else:
        _show(model, output)


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
    parameters = count(read.value)
    output.answer({"model": read.value, "parameters": dict(_parts(parameters)), "active": parameters.active})
    output.say(f"{read.value.name}: {parameters.total:,} parameters, {parameters.active:,} active per token")
    output.table(("field", "value"), _fields(read.value))
    output.say()
    output.table(("block", "parameters", "share"), _blocks(parameters))


def _fields(value: Model | Mla | Moe | Recurrent | RopeScaling | Sparse, at: str = "") -> Iterator[tuple[str, str]]:
    """What a model gives beside the defaults."""
    for field in fields(value):
        item = getattr(value, field.name)
        if isinstance(item, Mla | Moe | Recurrent | RopeScaling | Sparse):
            yield from _fields(item, f"{at}{field.name}.")
        elif item != field.default:
            yield f"{at}{field.name}", str(item)


def _blocks(parameters: Parameters) -> Iterator[tuple[str, ...]]:
    for name, number in _parts(parameters):
        if number:
            yield name, f"{number:,}", f"{100 * number / parameters.total:.2f}%"


def _parts(p: Parameters) -> Iterator[tuple[str, int]]:
    """Parts that add up to the total."""
    yield "embedding", p.embedding + p.position + p.embedding_norm
    yield "dense layers", p.of_feed("dense")
    yield "expert layers", p.of_feed("experts")
    yield "layers that only mix", p.of_feed("none")
    yield "multi-token prediction", p.mtp
    yield "output", p.final_norm + p.head
    yield "total", p.total
