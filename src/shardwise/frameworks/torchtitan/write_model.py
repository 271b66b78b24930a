"""The module beside a torchtitan 0.2 configuration: the planned model as a flavor, and random tokens to train it on."""

from __future__ import annotations

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


def module(draft: ExportDraft, flavor: Flavor) -> File:
    """`experimental.custom_import` runs it in every process before the model is built."""
    name, args = flavor
    moe = "moe_args" in args
    lines = [
        "import dataclasses",
        "",
        "import torch",
        *(["import torchtitan.models.llama4.infra.parallelize as sharding"] if args.get("enable_weight_tying") else []),
        "from torchtitan.components.dataloader import ParallelAwareDataloader",
        *(["from torchtitan.components.optimizer import build_optimizers_with_moe_load_balancing"] if moe else []),
        "from torchtitan.distributed.pipeline_parallel import pipeline_llm",
        f"from torchtitan.models.{name} import {_CLASSES[name]}, get_train_spec",
        *(["from torchtitan.models.llama3.model.args import RoPEScalingArgs"] if name == "llama3" else []),
        *(["from torchtitan.models.moe import MoEArgs"] if moe else []),
        "from torchtitan.protocols.train_spec import register_train_spec",
        *(["from torchtitan.tools.utils import has_cuda_capability"] if moe else []),
        "",
        f"ARGS = {_call(_CLASSES[name], args)}",
        _DATA.format(dataset=RANDOM),
        *([_TIED] if args.get("enable_weight_tying") else []),
        "register_train_spec(",
        f'    "{name}",',
        "    dataclasses.replace(",
        "        OWN,",
        f"        model_args={{{draft.model.name!r}: ARGS}},",
        "        build_tokenizer_fn=tokenizer,",
        "        build_dataloader_fn=dataloader,",
        # their qwen3 names none, though its stages may lack any module as those of the others do
        "        pipelining_fn=pipeline_llm,",
        *(["        build_optimizers_fn=build_optimizers_with_moe_load_balancing,"] if moe else []),
        "    ),",
        ")",
    ]
    return File(name=f"{MODULE}.py", text=draft.header() + "\n".join(lines) + "\n")


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
