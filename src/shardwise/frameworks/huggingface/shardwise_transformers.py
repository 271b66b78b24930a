"""The model of config.json: transformers' own, made layer by layer.

Weights follow from SEED alone: any number of GPUs, and any sharding, starts from the same ones, and so does the decoder
of torch pipelining.
"""

# mypy: ignore-errors
# a program to copy out: it must run, and read, without our checks; torch's own types change with its version

import contextlib
from pathlib import Path

import torch
from shardwise_loop import SEED, seeds_of
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).resolve().parent


@contextlib.contextmanager
def empty_parameters():
    """Parameters without memory; buffers, such as rotary tables, are made as ever."""
    plain = nn.Module.register_parameter

    def register(module, name, parameter):
        if parameter is not None and not parameter.is_meta:  # else it is one that modules share
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        plain(module, name, parameter)

    nn.Module.register_parameter = register
    try:
        yield
    finally:
        nn.Module.register_parameter = plain


def describe(plan):
    """The model without weights."""
    config = AutoConfig.from_pretrained(HERE / "config.json")
    with empty_parameters():
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="sdpa" if plan["flash"] else "eager"
        )
    if plan["recompute"] == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for module, seed in seeds_of(model, enumerate(layers_of(model))).items():
        module.shardwise_seed = seed
    return model.train()


def layers_of(model):
    """Its decoder layers, whatever the architecture calls the list."""
    count = model.config.num_hidden_layers
    return next(one for one in model.modules() if isinstance(one, nn.ModuleList) and len(one) == count)


def make(model, part, device, dtype):
    """Weights of `part`, a module of the model, by the architecture's own rule."""
    for module in part.modules():
        own = {name: one for name, one in module.named_parameters(recurse=False) if one.is_meta}
        for name, one in own.items():
            setattr(module, name, nn.Parameter(torch.empty_like(one, device=device), requires_grad=one.requires_grad))
        if own:
            torch.manual_seed(getattr(module, "shardwise_seed", SEED))
            with torch.no_grad():
                model._init_weights(module)  # noqa: SLF001 - the rule that from_config itself goes by
        for name, one in own.items():
            made = getattr(module, name)
            setattr(module, name, nn.Parameter(made.detach().to(dtype), requires_grad=one.requires_grad))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(device))
