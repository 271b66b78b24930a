"""The module beside a torchtitan 0.2 configuration: the planned model as a flavor, and random tokens to train it on."""

from __future__ import annotations

from collections.abc import Iterator
from pprint import pformat
from typing import Any

from shardwise.frameworks.target import ExportDraft, File
from shardwise.frameworks.torchtitan.families import Flavor

MODULE = "shardwise_model"
RANDOM = "shardwise-random"
"""`training.dataset` that means random tokens; any other is torchtitan's own, with its tokenizer."""
_CLASSES = {"llama3": "TransformerModelArgs", "qwen3": "Qwen3ModelArgs", "deepseek_v3": "DeepSeekV3ModelArgs"}
_TABLES = {"moe_args": "MoEArgs", "rope_scaling_args": "RoPEScalingArgs"}
"""Arguments that are classes of their own."""


_SHARDING = {"llama3": "llama3", "qwen3": "llama4"}
"""Whose FSDP a family runs."""


def module(draft: ExportDraft, flavor: Flavor) -> File:
    """`experimental.custom_import` runs it in every process before the model is built."""
    name, args = flavor.family, flavor.args
    parts = [
        "\n".join(_imports(flavor)) + "\n",
        f"ARGS = {_call(_CLASSES[name], args)}\n{_DATA.format(dataset=RANDOM)}",
        "\n".join(_planned(flavor)) if flavor.tied or flavor.biased else "",
        _TIED if flavor.tied else "",
        "\n".join(_registered(draft, flavor)),
    ]
    text = "\n\n".join(part.rstrip("\n") + "\n" for part in parts if part)
    return File(name=f"{MODULE}.py", text=draft.header() + text)


def _imports(flavor: Flavor) -> Iterator[str]:
    name, moe = flavor.family, "moe_args" in flavor.args
    yield from ("import dataclasses", "", "import torch")
    if flavor.tied:
        yield f"import torchtitan.models.{_SHARDING[name]}.infra.parallelize as sharding"
    yield "from torchtitan.components.dataloader import ParallelAwareDataloader"
    if moe:
        yield "from torchtitan.components.optimizer import build_optimizers_with_moe_load_balancing"
    yield "from torchtitan.distributed.pipeline_parallel import pipeline_llm"
    yield f"from torchtitan.models.{name} import {_CLASSES[name]}, get_train_spec"
    if name == "llama3":
        yield "from torchtitan.models.llama3.model.args import RoPEScalingArgs"
    if moe:
        yield "from torchtitan.models.moe import MoEArgs"
    yield "from torchtitan.protocols.train_spec import register_train_spec"
    if moe:
        yield "from torchtitan.tools.utils import has_cuda_capability"


def _planned(flavor: Flavor) -> Iterator[str]:
    """A class of the family's with what the planned model has more."""
    more = ["tied embeddings"] * flavor.tied + ["biases of queries, keys and values"] * flavor.biased
    yield "class Planned(OWN.model_cls):"
    yield f'    """The family\'s model with what the planned one has more: {" and ".join(more)}."""'
    yield ""
    yield "    def __init__(self, args):"
    yield "        super().__init__(args)"
    if flavor.biased:
        yield from _EACH
        yield "                old = getattr(block.attention, name)"
        yield "                setattr(block.attention, name, torch.nn.Linear(old.in_features, old.out_features))"
    if flavor.tied:
        yield "        self.output.weight = self.tok_embeddings.weight"
    yield ""
    yield "    def init_weights(self, *args, **rest):"
    if flavor.tied:
        yield "        self.output.weight = self.tok_embeddings.weight  # they came to the device one by one"
    yield "        super().init_weights(*args, **rest)"
    if flavor.biased:
        yield from _EACH
        yield "                torch.nn.init.zeros_(getattr(block.attention, name).bias)"


_EACH = ("        for block in self.layers.values():", '            for name in ("wq", "wk", "wv"):')


def _registered(draft: ExportDraft, flavor: Flavor) -> Iterator[str]:
    yield "register_train_spec("
    yield f'    "{flavor.family}",'
    yield "    dataclasses.replace("
    yield "        OWN,"
    if flavor.tied or flavor.biased:
        yield "        model_cls=Planned,"
    yield f"        model_args={{{draft.model.name!r}: ARGS}},"
    yield "        build_tokenizer_fn=tokenizer,"
    yield "        build_dataloader_fn=dataloader,"
    # their qwen3 names none, though its stages may lack any module as those of the others do
    yield "        pipelining_fn=pipeline_llm,"
    if "moe_args" in flavor.args:
        yield "        build_optimizers_fn=build_optimizers_with_moe_load_balancing,"
    yield from ("    ),", ")")


def _call(function: str, args: dict[str, Any], depth: int = 0) -> str:
    pad = "    " * (depth + 1)
    rows = [
        f"{pad}{key}={_call(_TABLES[key], value, depth + 1) if key in _TABLES else pformat(value)},\n"
        for key, value in args.items()
    ]
    if function == "MoEArgs":  # their qwen3 takes it for granted, and stops on older GPUs
        rows.append(f"{pad}use_grouped_mm=has_cuda_capability(9, 0),\n")
    return f"{function}(\n{''.join(rows)}{'    ' * depth})"


_DATA = '''OWN = get_train_spec()
RANDOM = "{dataset}"  # name another data set in [training], and it is torchtitan's own that is read


class RandomTokens(torch.utils.data.IterableDataset):
    """Rows of random tokens of the model's vocabulary, the same for the same seed."""

    def __init__(self, length, seed):
        self.length, self.seed = length, seed

    def __iter__(self):
        chance = torch.Generator().manual_seed(self.seed)
        while True:
            row = torch.randint(ARGS.vocab_size, (self.length + 1,), generator=chance)
            yield {{"input": row[:-1]}}, row[1:]


def tokenizer(job_config):
    return None if job_config.training.dataset == RANDOM else OWN.build_tokenizer_fn(job_config)


def dataloader(dp_world_size, dp_rank, tokenizer, job_config, **rest):
    training = job_config.training
    if training.dataset != RANDOM:
        return OWN.build_dataloader_fn(dp_world_size, dp_rank, tokenizer, job_config, **rest)
    rows = RandomTokens(training.seq_len, (job_config.debug.seed or 0) + dp_rank)
    return ParallelAwareDataloader(
        rows, dp_rank=dp_rank, dp_world_size=dp_world_size, batch_size=training.local_batch_size
    )

'''
_TIED = '''
def together(module, **rest):
    """FSDP of 0.2.2 puts the two ends into a group each, which unties them: the root's group takes both."""
    if isinstance(module, (list, torch.nn.Embedding)):
        return module
    if hasattr(module, "tok_embeddings"):
        module.output.weight = module.tok_embeddings.weight
    return torch.distributed.fsdp.fully_shard(module, **rest)


sharding.fully_shard = together

'''
